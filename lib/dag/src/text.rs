//! Splitting of lines, for the DAG file and the rescue file.

/// True for blanks at the ends of a line and between the first words of a record.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Removes blanks at both ends.
pub(crate) fn trim(mut line: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = line
        && is_blank(*first)
    {
        line = rest;
    }
    while let [rest @ .., last] = line
        && is_blank(*last)
    {
        line = rest;
    }
    line
}

/// Returns the first word of a trimmed text and the rest without leading blanks.
/// A line has no line feed inside.
pub(crate) fn cut(text: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr::memchr3(b' ', b'\t', b'\r', text).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (word, trim(rest))
}

/// Converts text for a message. Bytes that are not UTF-8 become replacement characters.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trims_only_the_four_blanks() {
        assert_eq!(trim(b" \t\r\n a b \r\n"), b"a b");
        assert_eq!(trim(b"\x0ba\x0c"), b"\x0ba\x0c");
        assert_eq!(trim(b" \t "), b"");
    }

    #[test]
    fn cuts_the_first_word() {
        assert_eq!(cut(b"a  b c"), (&b"a"[..], &b"b c"[..]));
        assert_eq!(cut(b"a"), (&b"a"[..], &b""[..]));
        assert_eq!(cut(b""), (&b""[..], &b""[..]));
    }
}
