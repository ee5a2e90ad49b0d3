//! Values of options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::args::EarlyExit;
use super::number;

/// A path, unless the word is empty: scripts pass an empty one for "none".
pub(super) fn path(word: OsString) -> Option<PathBuf> {
    (!word.is_empty()).then(|| word.into())
}

/// A name of a host. An empty one means none.
pub(super) fn host_name(value: &OsStr, source: &str) -> Result<Option<String>, EarlyExit> {
    let name = value.to_str().ok_or_else(|| EarlyExit::invalid_value(source))?;
    if name.is_empty() {
        return Ok(None);
    }
    if !pmc_hosts::is_name(name) {
        return Err(EarlyExit::invalid_value(source));
    }
    Ok(Some(name.to_owned()))
}

pub(super) fn integer(value: &OsStr, message: &str) -> Result<i64, EarlyExit> {
    number::integer(value.as_bytes()).ok_or_else(|| EarlyExit::refuse(message))
}

/// The number, capped at `u32::MAX`.
pub(super) fn at_least(minimum: i64, number: i64, message: &str) -> Result<u32, EarlyExit> {
    if number < minimum {
        return Err(EarlyExit::refuse(message));
    }
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

pub(super) fn unsigned(value: &OsStr, option: &str) -> Result<u32, EarlyExit> {
    number::unsigned(value.as_bytes()).ok_or_else(|| EarlyExit::invalid_value(option))
}

pub(super) fn float(value: &OsStr, option: &str) -> Result<f64, EarlyExit> {
    number::float(value.as_bytes()).ok_or_else(|| EarlyExit::invalid_value(option))
}

pub(super) fn seconds(value: &OsStr, option: &str) -> Result<f64, EarlyExit> {
    let seconds = float(value, option)?;
    // Also false for a number that is none.
    if seconds >= 0.0 {
        Ok(seconds)
    } else {
        Err(EarlyExit::invalid_value(option))
    }
}
