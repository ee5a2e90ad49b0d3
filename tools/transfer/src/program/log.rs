//! The log: `YYYY-MM-DD hh:mm:ss,mmm   LEVEL:  message`.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use chrono::Local;

use crate::observer::{Event, Observer};

/// Importance of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Details for debugging; only with `--debug`.
    Debug,
    /// An action.
    Info,
    /// A problem that fails nothing.
    Warning,
    /// An attempt or an entry failed.
    Error,
    /// The whole run failed.
    Critical,
}

/// Writes log lines, each with one call.
pub struct Log<'a> {
    out: Mutex<&'a mut (dyn Write + Send)>,
    debug: bool,
}

impl<'a> Log<'a> {
    /// Creates a log that writes to `out`. `debug` enables lines of that level.
    pub fn new(out: &'a mut (dyn Write + Send), debug: bool) -> Self {
        Self {
            out: Mutex::new(out),
            debug,
        }
    }

    /// Writes a line.
    pub fn line(&self, level: Level, message: &str) {
        if level == Level::Debug && !self.debug {
            return;
        }
        let name = match level {
            Level::Debug => "DEBUG",
            Level::Info => "INFO",
            Level::Warning => "WARNING",
            Level::Error => "ERROR",
            Level::Critical => "CRITICAL",
        };
        let time = Local::now().format("%Y-%m-%d %H:%M:%S,%3f");
        let line = format!("{time} {name:>7}:  {message}\n");
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // There is no other place to report a failing log.
        let _ = out.write_all(line.as_bytes());
    }

    pub(super) fn info(&self, message: &str) {
        self.line(Level::Info, message);
    }

    pub(super) fn rule(&self) {
        self.info(&"-".repeat(80));
    }
}

impl Observer for Log<'_> {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Round(round) => {
                self.rule();
                self.info(&format!("Starting transfers - attempt {round}"));
            }
            Event::Transfer(attempt, error) => {
                let what = format!("{} -> {}", attempt.source, attempt.destination);
                match error {
                    None => self.info(&what),
                    Some(error) => self.line(Level::Error, &format!("{what}: {error}")),
                }
            }
            Event::Other(what, None) => self.info(what),
            Event::Other(what, Some(error)) => self.line(Level::Error, &format!("{what}: {error}")),
            Event::Wait(time) => self.info(&format!(
                "Sleeping for {:.1} seconds before the next attempt",
                time.as_secs_f64()
            )),
            Event::Checksum(block) => self.info(&format!("checksum\n{block}")),
            Event::Note(message) => self.info(message),
            Event::Detail(message) => self.line(Level::Debug, message),
            Event::Warning(message) => self.line(Level::Warning, message),
        }
    }
}
