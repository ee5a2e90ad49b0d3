//! Numbers as the C library's `sscanf` reads them: blanks in front and anything behind the number
//! are ignored, so `2x` is 2. Out of range becomes the nearest number that fits.

fn skip_blanks(text: &[u8]) -> &[u8] {
    let start = text
        .iter()
        .position(|b| !matches!(b, b' ' | 9..=13))
        .unwrap_or(text.len());
    &text[start..]
}

/// Length of sign and digits; the digits' own length.
fn signed_digits(text: &[u8]) -> (usize, usize) {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[sign..].iter().take_while(|b| b.is_ascii_digit()).count();
    (sign + digits, digits)
}

/// `%d`.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let text = skip_blanks(text);
    let (len, digits) = signed_digits(text);
    if digits == 0 {
        return None;
    }
    let number = std::str::from_utf8(&text[..len]).ok()?;
    let limit = if number.starts_with('-') {
        i64::MIN
    } else {
        i64::MAX
    };
    Some(number.parse().unwrap_or(limit))
}

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
    let text = skip_blanks(text);
    let (mut len, mut digits) = signed_digits(text);
    let word = |at: usize, word: &str| {
        text.get(at..at + word.len())
            .is_some_and(|t| t.eq_ignore_ascii_case(word.as_bytes()))
    };
    if digits == 0 && (word(len, "inf") || word(len, "nan")) {
        len += 3;
        return std::str::from_utf8(&text[..len]).ok()?.parse().ok();
    }
    if text.get(len) == Some(&b'.') {
        let fraction = text[len + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
        digits += fraction;
        len += 1 + fraction;
    }
    if digits == 0 {
        return None;
    }
    if matches!(text.get(len), Some(b'e' | b'E')) {
        let (exponent, digits) = signed_digits(&text[len + 1..]);
        if digits > 0 {
            len += 1 + exponent;
        }
    }
    std::str::from_utf8(&text[..len]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers() {
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
    fn unsigned_integers() {
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
    fn floats() {
        for (text, number) in [
            ("0.04", Some(0.04)),
            (" 1e2min", Some(100.0)),
            ("1e", Some(1.0)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("-2", Some(-2.0)),
            ("inf", Some(f64::INFINITY)),
            (".", None),
            ("long", None),
            ("", None),
        ] {
            assert_eq!(float(text.as_bytes()), number, "{text:?}");
        }
    }
}
