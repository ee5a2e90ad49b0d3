//! Standard output and standard error of programs that people read.
//!
//! Names, arguments and outputs of tasks come from workflows of others. [`print()`] and [`message()`]
//! therefore escape every character that could control a terminal. They never panic: [`finish`] turns output
//! that could not be written into an exit code.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

mod copy;
mod escape;

pub use copy::{CopyWriter, is_passed_on};
pub use escape::{EscapingWriter, escape};

/// Exit code of a program that succeeded but could not write its output.
pub const NOT_WRITTEN: u8 = 4;

/// The first failures of writing to each stream.
static FAILED: Mutex<Failures> = Mutex::new(Failures {
    stdout: None,
    stderr: None,
});

#[derive(Debug)]
struct Failures {
    stdout: Option<io::Error>,
    stderr: Option<io::Error>,
}

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "standard output",
            Stream::Stderr => "standard error",
        }
    }

    fn write(self, text: &str) -> io::Result<()> {
        match self {
            Stream::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
            Stream::Stderr => io::stderr().lock().write_all(text.as_bytes()),
        }
    }
}

/// Writes to standard output, with control characters escaped.
///
/// [`finish`] reports failures. A reader that has closed its end is not a failure.
pub fn print(text: &str) {
    note(Stream::Stdout, Stream::Stdout.write(&escape(text)));
}

/// Writes one line to standard error, with control characters escaped.
///
/// [`finish`] reports failures. A reader that has closed its end is not a failure.
pub fn message(text: impl fmt::Display) {
    let mut line = text.to_string();
    line.push('\n');
    note(Stream::Stderr, Stream::Stderr.write(&escape(&line)));
}

/// Returns a writer to standard output for large texts. It escapes control characters. The caller reports
/// failures.
#[must_use]
pub fn output() -> EscapingWriter<io::StdoutLock<'static>> {
    EscapingWriter::new(io::stdout().lock())
}

/// Ends a program that has only printed its help, its version or a usage error.
///
/// `printed` is the result of printing. `is_error` is whether it went to standard error; then the exit code
/// is `usage`.
#[must_use]
pub fn finish_early(program: &str, printed: io::Result<()>, is_error: bool, usage: u8) -> ExitCode {
    let stream = if is_error { Stream::Stderr } else { Stream::Stdout };
    note(stream, printed);
    finish(program, if is_error { usage } else { 0 })
}

/// Returns the exit code of the program.
///
/// If output was lost, this writes one line to the other stream, and success becomes [`NOT_WRITTEN`].
#[must_use]
pub fn finish(program: &str, code: u8) -> ExitCode {
    let mut failures = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lost = false;
    let streams = [
        (Stream::Stdout, failures.stdout.take()),
        (Stream::Stderr, failures.stderr.take()),
    ];
    for (stream, failure) in streams {
        let Some(error) = failure else { continue };
        lost = true;
        let other = match stream {
            Stream::Stdout => Stream::Stderr,
            Stream::Stderr => Stream::Stdout,
        };
        // Nothing is left to report to when both streams fail.
        let _ = other.write(&format!("{program}: cannot write {}: {error}\n", stream.name()));
    }
    ExitCode::from(if lost && code == 0 { NOT_WRITTEN } else { code })
}

/// Keeps the first failure of each stream.
fn note(stream: Stream, result: io::Result<()>) {
    let Err(error) = result else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        return;
    }
    let mut failures = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = match stream {
        Stream::Stdout => &mut failures.stdout,
        Stream::Stderr => &mut failures.stderr,
    };
    slot.get_or_insert(error);
}
