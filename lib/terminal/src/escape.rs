//! Escapes characters that control terminals.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Returns the text with control characters written as `\u001b`, the way of JSON: a JSON text keeps its
/// meaning. Line feeds and tabs stay.
///
/// Control characters are C0 and C1 of ISO 6429, DEL, and the marks that change the direction of text
/// (U+202A–U+202E, U+2066–U+2069), with which a name can look like another one.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control(c) {
            // Writing to a string cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Returns whether a character is escaped.
fn is_control(c: char) -> bool {
    match c {
        '\n' | '\t' | ' '..='~' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}

/// Passes text on with control characters escaped, like [`escape`]. Bytes that are not UTF-8 become `\u00XX`
/// with the value of the byte.
#[derive(Debug)]
pub struct EscapingWriter<W: Write> {
    inner: W,
    /// The first bytes of a character that is not complete yet.
    rest: Vec<u8>,
}

impl<W: Write> EscapingWriter<W> {
    /// Writes to `inner`.
    pub fn new(inner: W) -> Self {
        EscapingWriter {
            inner,
            rest: Vec::new(),
        }
    }

    /// Flushes what is written, but not the start of a character that is not complete yet.
    ///
    /// # Errors
    /// The inner writer fails.
    pub fn flush_characters(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    /// Writes whole characters of `bytes`, and returns the incomplete one at the end.
    fn write_characters<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.inner.write_all(escape(chunk.valid()).as_bytes())?;
            let invalid = chunk.invalid();
            // At the end, a few bytes may be the start of a character.
            if chunks.peek().is_none() && is_start_of_character(invalid) {
                return Ok(&bytes[bytes.len() - invalid.len()..]);
            }
            self.write_bytes(invalid)?;
        }
        Ok(&[])
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes {
            write!(self.inner, "\\u{byte:04x}")?;
        }
        Ok(())
    }
}

/// Returns whether more bytes could complete a character.
fn is_start_of_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = self.write_characters(bytes)?.to_vec();
        } else {
            let mut whole = std::mem::take(&mut self.rest);
            whole.extend_from_slice(bytes);
            self.rest = self.write_characters(&whole)?.to_vec();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.rest);
        self.write_bytes(&rest)?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_text_stays() {
        let text = "Überprüfung\tof 日本\n\"a\\b\"";
        assert!(matches!(escape(text), Cow::Borrowed(same) if same == text));
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            escape("a\x1b]0;x\x07b\r\u{9b}2J\u{7f}\u{202e}c"),
            "a\\u001b]0;x\\u0007b\\u000d\\u009b2J\\u007f\\u202ec"
        );
    }

    proptest! {
        #[test]
        fn pieces_give_the_same_text(text in "\\PC*[\u{1b}\u{9b}é日🦀]*\\PC*", cut in 0_usize..64) {
            let mut out = Vec::new();
            let mut writer = EscapingWriter::new(&mut out);
            let (first, second) = text.as_bytes().split_at(cut.min(text.len()));
            writer.write_all(first)?;
            writer.write_all(second)?;
            writer.flush()?;
            prop_assert_eq!(String::from_utf8(out)?, escape(&text));
        }

        #[test]
        fn no_bytes_control_a_terminal(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut out = Vec::new();
            let mut writer = EscapingWriter::new(&mut out);
            writer.write_all(&bytes)?;
            writer.flush()?;
            let text = String::from_utf8(out)?;
            prop_assert!(!text.chars().any(is_control));
        }
    }
}
