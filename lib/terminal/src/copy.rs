//! Passes output of tasks on.

use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{EscapingWriter, Stream, note};

/// The streams of this process are read by a process that knows whether there is a terminal.
static IS_PASSED_ON: AtomicBool = AtomicBool::new(false);

/// Lets later [`CopyWriter`]s write byte for byte, whatever their stream is. Another process of this program
/// passes their bytes on, and escapes if it has a terminal. Some launchers give a process a pseudo
/// terminal only to get its output at once.
pub fn is_passed_on() {
    IS_PASSED_ON.store(true, Ordering::Relaxed);
}

/// Writes output of other programs to a standard stream: with control characters escaped if the stream is a
/// terminal, else byte for byte.
#[derive(Debug)]
pub struct CopyWriter {
    stream: Stream,
    sink: Sink,
    is_open: bool,
}

#[derive(Debug)]
enum Sink {
    Escaped(EscapingWriter<Standard>),
    Raw(Standard),
}

/// A standard stream that no thread holds.
#[derive(Debug)]
struct Standard(Stream);

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0 {
            Stream::Stdout => io::stdout().write(bytes),
            Stream::Stderr => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {
            Stream::Stdout => io::stdout().flush(),
            Stream::Stderr => io::stderr().flush(),
        }
    }
}

impl CopyWriter {
    /// Writes to standard output.
    #[must_use]
    pub fn to_stdout() -> Self {
        Self::new(Stream::Stdout, io::stdout().is_terminal())
    }

    /// Writes to standard error.
    #[must_use]
    pub fn to_stderr() -> Self {
        Self::new(Stream::Stderr, io::stderr().is_terminal())
    }

    fn new(stream: Stream, is_terminal: bool) -> Self {
        let sink = if is_terminal && !IS_PASSED_ON.load(Ordering::Relaxed) {
            Sink::Escaped(EscapingWriter::new(Standard(stream)))
        } else {
            Sink::Raw(Standard(stream))
        };
        Self {
            stream,
            sink,
            is_open: true,
        }
    }

    /// Writes and flushes. Does nothing after a failure, which [`finish`](crate::finish) reports. A reader
    /// that has closed its end is not a failure.
    pub fn write(&mut self, bytes: &[u8]) {
        if !self.is_open {
            return;
        }
        let written = match &mut self.sink {
            Sink::Escaped(out) => out.write_all(bytes).and_then(|()| out.flush_characters()),
            Sink::Raw(out) => out.write_all(bytes).and_then(|()| out.flush()),
        };
        self.note(written);
    }

    /// Writes the rest of a character that is not complete.
    pub fn end(mut self) {
        if let (true, Sink::Escaped(out)) = (self.is_open, &mut self.sink) {
            let written = out.flush();
            self.note(written);
        }
    }

    fn note(&mut self, written: io::Result<()>) {
        self.is_open = written.is_ok();
        note(self.stream, written);
    }

    /// Returns whether nothing has failed so far.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }
}
