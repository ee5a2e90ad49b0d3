//! Standard input for ranks: read on when what was read is taken.

use std::io::{self, Read as _};
use std::sync::mpsc::{Sender, channel};

use super::{Event, spawn};
use crate::frames::MAX_DATA;

/// A thread that reads.
pub(super) struct InputReader(Sender<()>);

impl InputReader {
    /// Reads the first part.
    pub(super) fn start(events: Sender<Event>) -> io::Result<Self> {
        let (read_on, wanted) = channel();
        let read = move || {
            let mut buffer = vec![0; MAX_DATA];
            loop {
                let length = match io::stdin().lock().read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // What cannot be read has ended.
                    read => read.unwrap_or(0),
                };
                let bytes = buffer.get(..length).unwrap_or_default().to_vec();
                if events.send(Event::Input(bytes)).is_err() || length == 0 || wanted.recv().is_err() {
                    return;
                }
            }
        };
        spawn("input", read)?;
        Ok(Self(read_on))
    }

    /// What was read is taken.
    pub(super) fn read_on(&self) {
        // After its end, nothing is read.
        let _ = self.0.send(());
    }
}
