//! Messages on standard error, in the form of Pegasus' job scripts: monitoring and `pegasus-analyzer` read
//! them.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use chrono::Local;
use monitord_compat::lite_data::LiteData;
use monitord_compat::lite_log::{self, Step};

/// The version of Pegasus whose job scripts this program replaces.
const COMPATIBLE_VERSION: &str = "5.1.3";

/// The log of a job. Clones write to the same stream; each line is one call, so that lines of several threads
/// do not mix.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<File>);

impl Log {
    /// Makes a log that writes to `stderr`.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new(stderr: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(Arc::new(stderr.try_clone_to_owned()?.into())))
    }

    /// Makes a log that nobody reads.
    #[cfg(test)]
    pub(crate) fn unread() -> Self {
        use std::os::fd::AsFd as _;
        let null = File::options().write(true).open("/dev/null").unwrap();
        Self::new(null.as_fd()).unwrap()
    }

    /// Returns the stream, for lines of another form.
    pub(crate) fn stream(&self) -> &File {
        &self.0
    }

    /// Writes a line without a time.
    fn line(&self, text: &str) {
        // There is no other place to report a failure.
        let _ = self.stream().write_all(format!("{text}\n").as_bytes());
    }

    /// Announces the program. Tools recognize the job by this line.
    pub(crate) fn version(&self) {
        self.line(&lite_log::version(COMPATIBLE_VERSION));
    }

    /// Writes a line with the time.
    pub(crate) fn say(&self, message: impl Display) {
        self.line(&lite_log::message(now(), message));
    }

    /// Writes why the job fails.
    pub(crate) fn error(&self, message: impl Display) {
        self.line(&lite_log::error(now(), message));
    }

    /// Names the directory of the job.
    pub(crate) fn directory(&self, directory: impl Display) {
        self.line(&lite_log::directory(now(), directory));
    }

    /// Begins a section.
    pub(crate) fn heading(&self, step: Step) {
        self.line(&step.heading());
    }

    /// Says how long the steps took, and how many bytes were moved.
    pub(crate) fn data(&self, data: &LiteData) {
        self.line(&data.to_string());
    }

    /// Ends the job: its whole run time in seconds, and the exit code that counts for monitoring.
    pub(crate) fn end(&self, seconds: u64, code: u8) {
        self.line(&lite_log::end(seconds, code));
    }
}

fn now() -> impl Display {
    Local::now().format("%Y-%m-%d %H:%M:%S")
}
