//! Exit codes of kickstart itself.

use monitord_compat::invocation_record::Status;

/// The arguments cannot be expanded, or writing a checksum or the record failed.
pub const FAILURE: u8 = 1;
/// The time limit passed.
pub const TIMEOUT: u8 = 14;
/// Kickstart could not begin: no temporary files, no descriptors.
pub const INITIALISATION: u8 = 43;
/// A stream of the job cannot be opened.
pub const STREAM: u8 = 126;
/// Wrong option, or a program that cannot be run.
pub const NOT_RUNNABLE: u8 = 127;
/// Base of the exit code for a job killed by a signal: the signal's number is added.
pub const SIGNAL: u8 = 128;

/// Returns the exit code for a job with this status.
#[must_use]
pub fn of(status: &Status) -> u8 {
    match status {
        Status::Exited { code } => *code,
        Status::Signalled { signal, .. } => SIGNAL.saturating_add(u8::try_from(*signal).unwrap_or(u8::MAX)),
        Status::Failed { .. } => NOT_RUNNABLE,
    }
}
