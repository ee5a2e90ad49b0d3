//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Copies, links, makes and removes files and directories as a specification in JSON says.
#[derive(Debug, Clone, Parser)]
#[command(name = "pegasus-transfer", version)]
pub struct Options {
    /// Read the specification from FILE instead of stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Read only LENGTH bytes of FILE, from byte START on: large plans keep the specifications of all tasks in one file
    #[arg(long, value_name = "START:LENGTH", requires = "file")]
    pub part: Option<Part>,
    /// Try every transfer up to N times
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_attempts: u32,
    /// Transfer N files at a time [default: PEGASUS_TRANSFER_THREADS, else 8]
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub threads: u16,
    /// Make symbolic links instead of copies where source and destination are local files
    #[arg(short, long)]
    pub symlink: bool,
    /// Wait SECONDS (after a network error: 30 times as long) before the second attempt, four times as long before the third, …
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub retry_wait: f64,
    /// Give up a connection that is silent for SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    pub timeout: f64,
    /// Log more
    #[arg(short, long)]
    pub debug: bool,
    /// Ignored
    #[arg(hide = true)]
    pub rest: Vec<std::ffi::OsString>,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its first byte, from 0.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
}

impl std::str::FromStr for Part {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once(':')
            .and_then(|(start, length)| {
                Some(Part {
                    start: start.parse().ok()?,
                    length: length.parse().ok()?,
                })
            })
            .ok_or_else(|| "two whole numbers with a colon between them are expected".to_owned())
    }
}
