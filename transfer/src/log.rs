//! The log on stderr: `YYYY-MM-DD hh:mm:ss,mmm   LEVEL:  message`.

use std::io::{self, Write};

use chrono::Local;
use pegasus_transfer::engine::{Event, Observer};

/// Importance of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warning,
    Error,
    Critical,
}

/// Writes log lines, each with one system call.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    pub debug: bool,
}

impl Log {
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
        // There is no other place to report that stderr is gone.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }

    pub fn info(&self, message: &str) {
        self.line(Level::Info, message);
    }

    pub fn rule(&self) {
        self.info(&"-".repeat(80));
    }
}

impl Observer for Log {
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
