//! Options that limit what runs at a time.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::args::{EarlyExit, RawArgs};
use super::values::{at_least, float, integer};

type Set = Result<(), EarlyExit>;

pub(super) fn set_max_jobs(args: &mut RawArgs, value: &OsStr) -> Set {
    let bytes = value.as_bytes();
    let refuse = || EarlyExit::refuse("--max-jobs must be CATEGORY=N with an N of at least 1");
    let equals = bytes.iter().rposition(|byte| *byte == b'=').ok_or_else(refuse)?;
    let (category, limit) = (&bytes[..equals], &bytes[equals + 1..]);
    let limit = std::str::from_utf8(limit)
        .ok()
        .and_then(|limit| limit.parse().ok());
    args.max_jobs.push((category.to_vec(), limit.ok_or_else(refuse)?));
    Ok(())
}

/// Reads minutes, or `job:MINUTES`: the batch system says when the job ends, and the minutes count until it
/// answers.
pub(super) fn set_wall_time(args: &mut RawArgs, value: &OsStr, source: &str) -> Set {
    let minutes = value.as_bytes().strip_prefix(b"job:");
    args.asks_time_left = minutes.is_some();
    args.max_wall_time = Some(float(minutes.map_or(value, OsStr::from_bytes), source)?);
    Ok(())
}

pub(super) fn set_max_plans(args: &mut RawArgs, value: &OsStr) -> Set {
    let number = integer(value, "N for --max-plans is invalid")?;
    args.max_plans = Some(at_least(1, number, "N for --max-plans must be >= 1")?);
    Ok(())
}
