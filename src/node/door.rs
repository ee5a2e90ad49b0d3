//! A further name at which the service of a process listens.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pmc_wire::peers;

use super::{ACCEPT_PAUSE, NodeService};

/// The name is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Door {
    name: String,
    is_closed: Arc<AtomicBool>,
}

impl Door {
    /// Listens there.
    ///
    /// # Errors
    /// The name is taken, or the system has no socket or thread.
    pub(super) fn open(service: &Arc<NodeService>, name: &str) -> io::Result<Self> {
        let listener = peers::listen(name)?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let (service, closed) = (Arc::clone(service), Arc::clone(&is_closed));
        let accept = move || {
            for stream in listener.incoming() {
                if closed.load(Ordering::Acquire) {
                    return;
                }
                match stream {
                    Ok(stream) => service.accept(stream),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        };
        std::thread::Builder::new()
            .name("node-service".to_owned())
            .spawn(accept)?;
        let name = name.to_owned();
        Ok(Self { name, is_closed })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        // The thread sleeps until somebody connects. If nobody can now, the next one ends it.
        let _ = peers::connect(&self.name);
    }
}
