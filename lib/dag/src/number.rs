//! Numbers as `sscanf` of the C library reads them, because DAG files rely on it: leading blanks are skipped,
//! and text after the number is ignored, so `12MB` is 12.

/// Removes leading blanks, by the definition of C.
#[must_use]
pub fn skip_blanks(text: &[u8]) -> &[u8] {
    let start = text
        .iter()
        .position(|b| !matches!(b, b' ' | 9..=13))
        .unwrap_or(text.len());
    &text[start..]
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// Returns the length of an optional sign with digits, and of the digits.
fn signed_digits(text: &[u8]) -> (usize, usize) {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = digits(&text[sign..]);
    (sign + digits, digits)
}

/// Returns the decimal integer at the start of the text.
#[must_use]
fn integer_text(text: &[u8]) -> Option<&str> {
    let text = skip_blanks(text);
    let (end, digits) = signed_digits(text);
    (digits > 0).then(|| std::str::from_utf8(&text[..end]).ok())?
}

/// Returns the decimal number at the start of the text, with fraction and exponent. Infinity, not-a-number
/// and hexadecimal numbers are not accepted.
#[must_use]
pub fn decimal_text(text: &[u8]) -> Option<&str> {
    let text = skip_blanks(text);
    let (mut end, mut count) = signed_digits(text);
    if text.get(end) == Some(&b'.') {
        let fraction = digits(&text[end + 1..]);
        count += fraction;
        end += 1 + fraction;
    }
    if count == 0 {
        return None;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let (exponent, digits) = signed_digits(&text[end + 1..]);
        if digits > 0 {
            end += 1 + exponent;
        }
    }
    std::str::from_utf8(&text[..end]).ok()
}

/// `%f`: a decimal number in single precision.
pub(crate) fn float(text: &[u8]) -> Option<f32> {
    decimal_text(text)?.parse().ok()
}

/// `%d`: a decimal integer. Values out of range become the nearest one.
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    let text = integer_text(text)?;
    let nearest = if text.starts_with('-') { i64::MIN } else { i64::MAX };
    Some(text.parse().unwrap_or(nearest))
}

/// Parses a factor from 1 to 1000 and returns it in percent.
#[must_use]
pub fn factor(value: &[u8]) -> Option<u32> {
    let factor = float(value).filter(|factor| (1.0..=1000.0).contains(factor))?;
    Some((factor * 100.0).round() as u32)
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
            ("9999999999999999999999", Some(i64::MAX)),
            ("-9999999999999999999999", Some(i64::MIN)),
        ] {
            assert_eq!(integer(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn factors_are_parsed() {
        let parsed = |value: &str| factor(value.as_bytes());
        assert_eq!(
            (parsed("2"), parsed("1.5"), parsed("1")),
            (Some(200), Some(150), Some(100))
        );
        for value in ["", "x", "0.9", "-2", "1001", "nan", "inf"] {
            assert_eq!(parsed(value), None, "{value}");
        }
    }
}
