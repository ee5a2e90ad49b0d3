//! Values of the options of a TASK line. `name` is that of the task, for errors.

use std::borrow::Cow;
use std::time::Duration;

use super::{AbortOn, Forward};
use crate::error::DagErrorKind;
use crate::number;
use crate::text::lossy;

pub(super) fn invalid(what: &'static str, value: &[u8], name: &[u8]) -> DagErrorKind {
    DagErrorKind::Value {
        what,
        value: lossy(value),
        task: lossy(name),
    }
}

/// Parses a number of hosts or ranks.
pub(super) fn count(what: &'static str, value: &[u8], name: &[u8]) -> Result<u32, DagErrorKind> {
    let count = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    count
        .filter(|count| *count > 0)
        .ok_or_else(|| invalid(what, value, name))
}

/// Parses a number of attempts; a larger one than fits counts as the largest.
pub(super) fn tries(value: &[u8], name: &[u8]) -> Result<u32, DagErrorKind> {
    let tries = number::integer(value).ok_or_else(|| invalid("tries", value, name))?;
    if tries < 0 {
        return Err(DagErrorKind::Negative {
            what: "tries",
            task: lossy(name),
        });
    }
    Ok(u32::try_from(tries).unwrap_or(u32::MAX))
}

/// Parses a number in single precision that is not negative.
fn amount(what: &'static str, value: &[u8], name: &[u8]) -> Result<f64, DagErrorKind> {
    let number = number::float(value).ok_or_else(|| invalid(what, value, name))?;
    if number < 0.0 {
        return Err(DagErrorKind::Negative {
            what,
            task: lossy(name),
        });
    }
    Ok(f64::from(number))
}

/// Parses memory in MB or a number of CPUs or GPUs: in single precision, rounded up, at most 32 bits. Beyond
/// that, the original's conversion is undefined.
pub(super) fn request(what: &'static str, value: &[u8], name: &[u8]) -> Result<u32, DagErrorKind> {
    let number = amount(what, value, name)?.ceil();
    if number > f64::from(u32::MAX) {
        return Err(invalid(what, value, name));
    }
    Ok(number as u32)
}

/// Parses a time in seconds, rounded to milliseconds.
pub(super) fn seconds(what: &'static str, value: &[u8], name: &[u8]) -> Result<Duration, DagErrorKind> {
    let number = amount(what, value, name)?;
    let milliseconds = (number * 1000.0).round();
    if milliseconds > f64::from(u32::MAX) * 1000.0 {
        return Err(invalid(what, value, name));
    }
    // Zero means no limit, so a tiny limit must not become zero.
    let min = u64::from(number > 0.0);
    Ok(Duration::from_millis((milliseconds as u64).max(min)))
}

/// Parses an exit code, or the negative number of a signal.
pub(super) fn exit_code(value: &[u8]) -> Option<i16> {
    let code = std::str::from_utf8(value).ok()?.parse().ok()?;
    (-64..=255).contains(&code).then_some(code)
}

/// Parses `CODE[=RETURN]`. Without a second code, the run ends with that of the task. As in shells, this is
/// 128 and its number for a signal.
pub(super) fn abort_on(value: &[u8]) -> Option<AbortOn> {
    let text = std::str::from_utf8(value).ok()?;
    let (code, exit) = text
        .split_once('=')
        .map_or((text, None), |(code, exit)| (code, Some(exit)));
    let code = exit_code(code.as_bytes())?;
    let own = if code < 0 { 128 - code } else { code };
    let exit = match exit {
        Some(exit) => exit.parse().ok()?,
        None => u8::try_from(own).ok()?,
    };
    Some(AbortOn { code, exit })
}

/// Returns a text to look for in the output of a task. An empty one would be in every output.
pub(super) fn message(value: Cow<'_, [u8]>, name: &[u8]) -> Result<Vec<u8>, DagErrorKind> {
    if value.is_empty() {
        return Err(invalid("message", &value, name));
    }
    Ok(value.into_owned())
}

/// Adds a pair, split at the first `=`. The last of several with the same key wins.
pub(super) fn add(
    forwards: &mut Vec<Forward>,
    (option, format): (&'static str, &'static str),
    value: &[u8],
    name: &[u8],
) -> Result<(), DagErrorKind> {
    let Some(equals) = value.iter().position(|b| *b == b'=') else {
        return Err(DagErrorKind::Forward {
            option,
            format,
            task: lossy(name),
            value: lossy(value),
        });
    };
    let (key, path) = (value[..equals].to_vec(), value[equals + 1..].to_vec());
    match forwards.binary_search_by(|(other, _)| other.cmp(&key)) {
        Ok(at) => forwards[at].1 = path,
        Err(at) => forwards.insert(at, (key, path)),
    }
    Ok(())
}
