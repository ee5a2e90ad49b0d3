//! The command line.

use std::path::PathBuf;

use clap::Parser;
use pmc_calls::Part;

/// Copies, links, creates and removes files and directories as listed in a JSON specification.
#[derive(Debug, Clone, Parser)]
#[command(name = "pegasus-transfer", version)]
pub struct Options {
    /// Read the specification from FILE instead of stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Read only LENGTH bytes of FILE, starting at byte START; large plans keep all specifications in one
    /// file
    #[arg(long, value_name = "START:LENGTH", requires = "file")]
    pub part: Option<Part>,
    /// Maximum attempts of each transfer
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_attempts: u32,
    /// Maximum parallel transfers [default: PEGASUS_TRANSFER_THREADS, else 8]
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub threads: u16,
    /// Create symbolic links instead of copies if source and destination are local files
    #[arg(short, long)]
    pub symlink: bool,
    /// Compare copies with the checksums in these metadata files, instead of those in the working directory
    #[arg(long, value_name = "FILE,...", value_delimiter = ',')]
    pub checksums_from: Vec<PathBuf>,
    /// Write the checksums that entries ask for into this metadata file, too
    #[arg(long, value_name = "FILE")]
    pub checksums_to: Option<PathBuf>,
    /// Wait before the second attempt; four times as long before each further one. Network errors wait 30
    /// times as long
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub retry_wait: f64,
    /// Close a connection after SECONDS without data
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    pub timeout: f64,
    /// Close a connection on which fewer BYTES a second arrive, on average over the time of --timeout; 0: no
    /// limit
    #[arg(long, value_name = "BYTES", default_value_t = 1000)]
    pub min_rate: u64,
    /// Log details for debugging
    #[arg(short, long)]
    pub debug: bool,
    /// Ignored
    #[arg(hide = true)]
    pub rest: Vec<std::ffi::OsString>,
}
