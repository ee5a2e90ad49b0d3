//! Numbers as the C library's `sscanf` reads them, which is what users' DAG files rely on: blanks
//! in front are skipped and whatever follows the number is ignored, so `12MB` is 12.

fn skip_blanks(text: &[u8]) -> &[u8] {
    let start = text
        .iter()
        .position(|b| !matches!(b, b' ' | 9..=13))
        .unwrap_or(text.len());
    &text[start..]
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// `%f`: decimal number in single precision. Infinity, not-a-number and hexadecimal are no
/// numbers here: no task can have them as its memory.
pub(crate) fn float(text: &[u8]) -> Option<f32> {
    let text = skip_blanks(text);
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let whole = digits(&text[sign..]);
    let mut end = sign + whole;
    let mut fraction = 0;
    if text.get(end) == Some(&b'.') {
        fraction = digits(&text[end + 1..]);
        end += 1 + fraction;
    }
    if whole + fraction == 0 {
        return None;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(&text[end + 1 + sign..]);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

/// `%d`: decimal integer. Out of range is no number.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let text = skip_blanks(text);
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let end = sign + digits(&text[sign..]);
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_end_where_the_number_ends() {
        for (text, value) in [
            ("12MB", Some(12.0)),
            ("1e3", Some(1000.0)),
            ("1e", Some(1.0)),
            (" 2.5 x", Some(2.5)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("+7", Some(7.0)),
            ("-0.5", Some(-0.5)),
            ("16777217", Some(16_777_216.0)),
            ("", None),
            ("-", None),
            (".", None),
            ("lots", None),
            ("inf", None),
            ("nan", None),
        ] {
            assert_eq!(float(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(float(b"1e999"), Some(f32::INFINITY), "left to the caller's limit");
    }

    #[test]
    fn integers_end_where_the_number_ends() {
        for (text, value) in [
            ("7x", Some(7)),
            ("-5", Some(-5)),
            ("+5", Some(5)),
            ("2.9", Some(2)),
            ("", None),
            ("x7", None),
            ("9999999999999999999999", None),
        ] {
            assert_eq!(integer(text.as_bytes()), value, "{text:?}");
        }
    }
}
