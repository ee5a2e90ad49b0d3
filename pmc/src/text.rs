//! Formats values for people.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use monitord_compat::reason::Reason;
use monitord_compat::run_end::RunEnd;
use serde_json::{Value, json};

/// Formats a duration: `0.24 s`, `5.0 s`, `1 min 15 s`, `2 h 3 min`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds >= 3600 {
        format!("{} h {} min", seconds / 3600, seconds % 3600 / 60)
    } else if seconds >= 60 {
        format!("{} min {} s", seconds / 60, seconds % 60)
    } else if seconds >= 1 {
        format!("{:.1} s", (duration.as_secs_f64() * 10.0).floor() / 10.0)
    } else {
        format!("{:.2} s", duration.as_secs_f64())
    }
}

/// Appends a number with three decimals. Same as `{:.3}`, but faster, for tables of millions of lines.
pub fn push_thousandths(out: &mut String, value: f64) {
    let scaled = value * 1000.0;
    // Close to a rounding boundary, or out of range: the exact way.
    if value.is_sign_negative() || !(0.0..1e12).contains(&scaled) || (scaled.fract() - 0.5).abs() < 1e-3 {
        let _ = write!(out, "{value:.3}");
        return;
    }
    let rounded = scaled.round() as u64;
    push_digits(out, rounded / 1000, 1);
    out.push('.');
    push_digits(out, rounded % 1000, 3);
}

/// Appends an integer with at least `min_digits` digits.
pub fn push_digits(out: &mut String, number: u64, min_digits: usize) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    let mut left = number;
    while left > 0 || digits.len() - at < min_digits {
        at -= 1;
        digits[at] = b'0' + u8::try_from(left % 10).unwrap_or(0);
        left /= 10;
    }
    out.extend(digits[at..].iter().map(|digit| char::from(*digit)));
}

/// Formats a count: `1 file`, `2 files`.
pub fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Formats a size in the units of memory: `999 bytes`, `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    if bytes < 1024 {
        return if bytes == 1 {
            "1 byte".into()
        } else {
            format!("{bytes} bytes")
        };
    }
    for unit in ["KiB", "MiB", "GiB"] {
        value /= 1024.0;
        if value < 1024.0 {
            return format!("{value:.1} {unit}");
        }
    }
    format!("{:.1} TiB", value / 1024.0)
}

/// Formats a path, relative if it is below the working directory.
pub fn path(path: &Path, cwd: &Path) -> String {
    let short = path.strip_prefix(cwd).unwrap_or(path);
    if short.as_os_str().is_empty() {
        ".".into()
    } else {
        short.display().to_string()
    }
}

/// Replaces control characters, so that output of programs cannot change the terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Returns why a run ended before its work was done, for formats of programs.
pub fn run_end_value(end: &RunEnd) -> Value {
    let mut value = json!({"why": end.key()});
    match end {
        RunEnd::Signal { signal } => value["signal"] = (*signal).into(),
        RunEnd::Error { message } | RunEnd::Stranded { message } => {
            value["message"] = message.as_str().into()
        }
        _ => {}
    }
    value
}

/// Returns why an attempt failed, for formats of programs: `name`, `text`, and numbers where there are some.
pub fn reason_value(reason: Reason) -> Value {
    let mut value = json!({"name": reason.name(), "text": reason.to_string()});
    match reason {
        Reason::TimeLimit { limit } => value["seconds"] = limit.as_secs_f64().into(),
        Reason::OutOfMemory {
            used_mib,
            requested_mib,
        } => {
            value["used_mib"] = used_mib.into();
            value["requested_mib"] = requested_mib.into();
        }
        Reason::OutputFile { errno } | Reason::NotStarted { errno } => value["errno"] = errno.into(),
        Reason::Lost { attempts } => value["attempts"] = attempts.into(),
        Reason::NotForwarded | Reason::Evicted | Reason::CutOff | Reason::Saved | Reason::TakenOver => {}
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let text = |ms| duration(Duration::from_millis(ms));
        assert_eq!(text(243), "0.24 s");
        assert_eq!(text(59_990), "59.9 s");
        assert_eq!(text(75_000), "1 min 15 s");
        assert_eq!(text(7_384_000), "2 h 3 min");
    }

    #[test]
    fn numbers_with_three_decimals() {
        for value in [
            0.0,
            0.0004,
            0.0005,
            0.0015,
            1.0,
            1.9996,
            2.5,
            123.456_7,
            1e9,
            1e13,
            -0.0,
            -1.5,
            f64::NAN,
        ] {
            let mut text = String::new();
            push_thousandths(&mut text, value);
            assert_eq!(text, format!("{value:.3}"));
        }
        for at in 0..10_000 {
            let value = f64::from(at) * 0.123_45;
            let mut text = String::new();
            push_thousandths(&mut text, value);
            assert_eq!(text, format!("{value:.3}"));
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes(1), "1 byte");
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1_500_000), "1.4 MiB");
        assert_eq!(bytes(3 << 40), "3.0 TiB");
    }
}
