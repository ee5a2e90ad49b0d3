//! Messages on standard error, in the form of Pegasus' job scripts: monitoring and `pegasus-analyzer` read
//! them.

use std::fmt::Display;
use std::io::Write;

use chrono::Local;
use monitord_compat::lite_data::LiteData;

/// The version of Pegasus whose job scripts this program replaces.
const COMPATIBLE_VERSION: &str = "5.1.3";

/// Width of a heading.
const WIDTH: usize = 82;

/// Writes a line without a time. It is one call, so that lines of several threads do not mix.
fn line(text: &str) {
    // There is no other place to report a failure.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Announces the program. Tools recognize the job by this line.
pub(crate) fn version() {
    line(&format!("PegasusLite: version {COMPATIBLE_VERSION}"));
}

/// Writes a line with the time.
pub(crate) fn log(message: impl Display) {
    let time = Local::now().format("%Y-%m-%d %H:%M:%S");
    line(&format!("{time} PegasusLite: {message}"));
}

/// Begins a section.
pub(crate) fn heading(title: &str) {
    let rest = WIDTH.saturating_sub(title.len() + 2);
    let (before, after) = ("#".repeat(rest - rest / 2), "#".repeat(rest / 2));
    line(&format!("\n{before} {title} {after}"));
}

/// Says how long the steps took, and how many bytes were moved.
pub(crate) fn data(data: &LiteData) {
    line(&data.to_string());
}

/// Ends the job: its whole run time in seconds, and the exit code that counts for monitoring.
pub(crate) fn end(seconds: u64, code: u8) {
    line(&format!("PegasusLite: runtime {seconds}"));
    line(&format!("PegasusLite: exitcode {code}"));
}
