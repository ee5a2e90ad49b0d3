//! Reads numbers as the C library's `sscanf` does. It skips leading blanks and ignores anything behind the
//! number, so `2x` is 2. A number out of range becomes the nearest one that fits.

pub(super) use pmc_dag::number::integer;
use pmc_dag::number::{decimal_text, skip_blanks};

/// `%u`: a negative number wraps, as it does in C.
pub(super) fn unsigned(text: &[u8]) -> Option<u32> {
    let number = integer(text)?;
    let wrapped = if number < 0 {
        number.wrapping_add(1 << 32)
    } else {
        number
    };
    Some(u32::try_from(wrapped).unwrap_or(if wrapped < 0 { 0 } else { u32::MAX }))
}

/// `%lf`, also `inf` and `nan`.
pub(super) fn float(text: &[u8]) -> Option<f64> {
    match decimal_text(text) {
        Some(number) => number.parse().ok(),
        None => not_finite(text),
    }
}

fn not_finite(text: &[u8]) -> Option<f64> {
    let text = skip_blanks(text);
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let word = text.get(sign..sign + 3)?;
    let known = word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan");
    known.then(|| std::str::from_utf8(&text[..sign + 3]).ok()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_by_c() {
        for (text, number) in [
            ("2", Some(2)),
            (" \t-3x", Some(-3)),
            ("+7", Some(7)),
            ("99999999999999999999", Some(i64::MAX)),
            ("-99999999999999999999", Some(i64::MIN)),
            ("", None),
            ("x", None),
            ("-", None),
        ] {
            assert_eq!(integer(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn negative_numbers_wrap() {
        for (text, number) in [
            ("5", Some(5)),
            ("-5", Some(4_294_967_291)),
            ("4294967296", Some(u32::MAX)),
            ("-99999999999999999999", Some(0)),
            ("much", None),
        ] {
            assert_eq!(unsigned(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn floats_are_read_as_by_c() {
        for (text, number) in [
            ("0.04", Some(0.04)),
            (" 1e2min", Some(100.0)),
            ("1e", Some(1.0)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("-2", Some(-2.0)),
            ("inf", Some(f64::INFINITY)),
            ("\x0b-Infinity", Some(f64::NEG_INFINITY)),
            (".", None),
            ("long", None),
            ("", None),
        ] {
            assert_eq!(float(text.as_bytes()), number, "{text:?}");
        }
    }
}
