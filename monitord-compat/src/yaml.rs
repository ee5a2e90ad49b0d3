//! A small YAML emitter: block style, streaming to a [`Write`].
//!
//! The text is valid YAML 1.1 and 1.2, even for arbitrary output of programs and names of files:
//!
//! * A *scalar* is plain only if every parser reads the plain form as the same string; otherwise it is
//!   double-quoted.
//! * In double quotes, control characters, line separators and the byte order mark are escaped
//!   (`\n`, `\t`, `\x1B`, `\u2028`), so nothing is dropped.
//! * Bytes that are no UTF-8 become U+FFFD, as with [`String::from_utf8_lossy`]. YAML has no form for raw
//!   bytes except base64.
//! * A *text* is a literal block if that keeps every character; otherwise a double-quoted scalar with one
//!   source line per line of text.
//! * Keys longer than the 1024 characters that YAML allows an ordinary key use the `? key` form.
//!
//! [`Emitter::with_guards`] protects readers that search for patterns instead of parsing.

use std::fmt::Display;
use std::io::{self, Write};

/// Minimum length of a key in the explicit form; YAML limits other keys to 1024 characters.
const MIN_EXPLICIT_KEY: usize = 1000;

/// How a key is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStyle {
    /// Plain if that is safe, otherwise double-quoted.
    Auto,
    /// Always double-quoted.
    Quoted,
}

/// Writes block mappings and sequences to `W`, indented by the current level.
#[derive(Debug)]
pub struct Emitter<W> {
    out: W,
    indent: usize,
    guards: &'static [&'static str],
}

impl<W: Write> Emitter<W> {
    /// Makes an emitter at indentation 0.
    pub fn new(out: W) -> Self {
        Self {
            out,
            indent: 0,
            guards: &[],
        }
    }

    /// Escapes the blank after any of `words` inside data, for readers that search the whole file for
    /// `word:` and a blank.
    #[must_use]
    pub fn with_guards(mut self, words: &'static [&'static str]) -> Self {
        self.guards = words;
        self
    }

    /// Starts at this indentation.
    #[must_use]
    pub fn at(mut self, indent: usize) -> Self {
        self.indent = indent;
        self
    }

    /// Returns the current indentation.
    #[must_use]
    pub fn indent(&self) -> usize {
        self.indent
    }

    /// Returns the sink.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Writes `body` two blanks deeper.
    pub fn nested<T>(&mut self, body: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        self.indent += 2;
        let result = body(self);
        self.indent -= 2;
        result
    }

    /// Writes `key:`. A block mapping or sequence may follow (see [`Self::nested`]); without one, the value
    /// is null.
    pub fn open(&mut self, style: KeyStyle, key: &[u8]) -> io::Result<()> {
        self.key(style, key)?;
        self.out.write_all(b"\n")
    }

    /// Like [`Self::open`], with a key that needs no quotes.
    pub fn section(&mut self, key: &'static str) -> io::Result<()> {
        self.own_key(key)?;
        self.out.write_all(b"\n")
    }

    /// Writes `key: value` with a value, such as a time, that needs no quotes. The key needs none either,
    /// here and below.
    pub fn verbatim(&mut self, key: &'static str, value: impl Display) -> io::Result<()> {
        self.own_key(key)?;
        writeln!(self.out, " {value}")
    }

    /// Like [`Self::verbatim`], with any key.
    pub fn computed(&mut self, key: &str, value: impl Display) -> io::Result<()> {
        self.key(KeyStyle::Auto, key.as_bytes())?;
        writeln!(self.out, " {value}")
    }

    /// Writes `key: value` with a number; faster than [`Self::verbatim`].
    pub fn number(&mut self, key: &'static str, value: impl itoa::Integer) -> io::Result<()> {
        self.ready(key, itoa::Buffer::new().format(value).as_bytes())
    }

    /// Writes several numbers as [`Self::number`] does.
    pub fn numbers<N: itoa::Integer>(&mut self, all: &[(&'static str, N)]) -> io::Result<()> {
        all.iter().try_for_each(|&(key, value)| self.number(key, value))
    }

    /// Writes `key: value` with a formatted value that needs no quotes.
    pub fn ready(&mut self, key: &'static str, value: &[u8]) -> io::Result<()> {
        // Most lines of a record are of this kind. One write takes half the time of five small ones.
        let (colon, length) = (self.indent + key.len(), self.indent + key.len() + value.len() + 3);
        let mut line = [b' '; 80];
        if let Some(line) = line.get_mut(..length) {
            check_own(key);
            line[self.indent..colon].copy_from_slice(key.as_bytes());
            line[colon] = b':';
            line[colon + 2..length - 1].copy_from_slice(value);
            line[length - 1] = b'\n';
            return self.out.write_all(line);
        }
        self.own_key(key)?;
        self.out.write_all(b" ")?;
        self.out.write_all(value)?;
        self.out.write_all(b"\n")
    }

    /// Writes `key: value` with a value that is plain if that is safe, otherwise double-quoted.
    pub fn scalar(&mut self, key: &'static str, value: &[u8]) -> io::Result<()> {
        if is_plain(value) {
            return self.ready(key, value);
        }
        self.own_key(key)?;
        self.out.write_all(b" ")?;
        self.quote(&String::from_utf8_lossy(value), false)?;
        self.out.write_all(b"\n")
    }

    /// Writes `key: "value"`.
    pub fn quoted(&mut self, style: KeyStyle, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.key(style, key)?;
        self.out.write_all(b" ")?;
        self.quote(&String::from_utf8_lossy(value), false)?;
        self.out.write_all(b"\n")
    }

    /// Writes `- "value"`, an item of a sequence.
    pub fn item_quoted(&mut self, value: &[u8]) -> io::Result<()> {
        self.pad()?;
        self.out.write_all(b"- ")?;
        self.quote(&String::from_utf8_lossy(value), false)?;
        self.out.write_all(b"\n")
    }

    /// Writes `key:` with a text of any number of lines.
    pub fn text(&mut self, key: &'static str, text: &str) -> io::Result<()> {
        self.own_key(key)?;
        self.out.write_all(b" ")?;
        if self.fits_literal(text) {
            return self.literal(text);
        }
        self.nested(|emitter| emitter.quote(text, true))?;
        self.out.write_all(b"\n")
    }

    /// Inserts lines of YAML.
    pub fn raw(&mut self, lines: &[u8]) -> io::Result<()> {
        self.out.write_all(lines)
    }

    fn pad(&mut self) -> io::Result<()> {
        const BLANKS: [u8; 32] = [b' '; 32];
        let mut left = self.indent;
        while left > 0 {
            let part = left.min(BLANKS.len());
            self.out.write_all(&BLANKS[..part])?;
            left -= part;
        }
        Ok(())
    }

    /// Writes a key of the program itself.
    fn own_key(&mut self, key: &'static str) -> io::Result<()> {
        check_own(key);
        self.pad()?;
        self.out.write_all(key.as_bytes())?;
        self.out.write_all(b":")
    }

    fn key(&mut self, style: KeyStyle, key: &[u8]) -> io::Result<()> {
        self.pad()?;
        if key.len() < MIN_EXPLICIT_KEY && style == KeyStyle::Auto && is_plain(key) {
            self.out.write_all(key)?;
            return self.out.write_all(b":");
        }
        let text = String::from_utf8_lossy(key);
        let mut quoted = Vec::with_capacity(key.len() + 2);
        quote_into(&mut quoted, &text, self.guards)?;
        if quoted.len() < MIN_EXPLICIT_KEY {
            self.out.write_all(&quoted)?;
        } else {
            self.out.write_all(b"? ")?;
            self.out.write_all(&quoted)?;
            self.out.write_all(b"\n")?;
            self.pad()?;
        }
        self.out.write_all(b":")
    }

    /// Double-quotes `text`. With `fold`, each line of text begins a source line; a backslash before the line
    /// break removes the break from the value.
    fn quote(&mut self, text: &str, fold: bool) -> io::Result<()> {
        if !fold {
            return quote_into(&mut self.out, text, self.guards);
        }
        self.out.write_all(b"\"")?;
        let mut lines = text.split_inclusive('\n').peekable();
        while let Some(line) = lines.next() {
            escape_into(&mut self.out, line, self.guards)?;
            if let Some(next) = lines.peek() {
                self.out.write_all(b"\\\n")?;
                self.pad()?;
                // Blanks at the start of a continued line would count as indentation.
                if next.starts_with(' ') {
                    self.out.write_all(b"\\")?;
                }
            }
        }
        self.out.write_all(b"\"")
    }

    fn fits_literal(&self, text: &str) -> bool {
        let body = text.trim_end_matches('\n');
        let last = body.rsplit('\n').next().unwrap_or_default();
        !last.trim_matches([' ', '\t']).is_empty()
            && text.chars().all(|c| c == '\n' || is_printable(c))
            && !self.guards.iter().any(|word| contains_guarded(text, word))
    }

    /// Writes a literal block. The chomping indicator keeps the line breaks at the end of the text, the
    /// indentation indicator the blanks at its start.
    fn literal(&mut self, text: &str) -> io::Result<()> {
        let body = text.trim_end_matches('\n');
        let breaks = text.len() - body.len();
        self.out.write_all(b"|")?;
        if body.starts_with([' ', '\t', '\n']) {
            self.out.write_all(b"2")?;
        }
        self.out.write_all(match breaks {
            0 => b"-\n",
            1 => b"\n",
            _ => b"+\n",
        })?;
        self.nested(|emitter| {
            for line in body.split('\n') {
                if !line.is_empty() {
                    emitter.pad()?;
                    emitter.out.write_all(line.as_bytes())?;
                }
                emitter.out.write_all(b"\n")?;
            }
            for _ in 1..breaks {
                emitter.out.write_all(b"\n")?;
            }
            Ok(())
        })
    }
}

fn check_own(key: &'static str) {
    debug_assert!(
        key.len() < MIN_EXPLICIT_KEY && is_plain(key.as_bytes()),
        "{key} needs quotes"
    );
}

fn contains_guarded(text: &str, word: &str) -> bool {
    text.match_indices(word)
        .any(|(at, _)| text[at + word.len()..].starts_with(' '))
}

fn quote_into(out: &mut impl Write, text: &str, guards: &[&str]) -> io::Result<()> {
    out.write_all(b"\"")?;
    escape_into(out, text, guards)?;
    out.write_all(b"\"")
}

fn escape_into(out: &mut impl Write, text: &str, guards: &[&str]) -> io::Result<()> {
    let mut done = 0;
    for (at, c) in text.char_indices() {
        let escape: &[u8] = match c {
            '"' => b"\\\"",
            '\\' => b"\\\\",
            '\n' => b"\\n",
            '\t' => b"\\t",
            '\r' => b"\\r",
            ' ' if guards.iter().any(|word| text[..at].ends_with(word)) => b"\\x20",
            _ if is_printable(c) => continue,
            _ => b"",
        };
        out.write_all(&text.as_bytes()[done..at])?;
        done = at + c.len_utf8();
        if escape.is_empty() {
            match u32::from(c) {
                code @ 0..=0xff => write!(out, "\\x{code:02X}")?,
                code @ 0x100..=0xffff => write!(out, "\\u{code:04X}")?,
                code => write!(out, "\\U{code:08X}")?,
            }
        } else {
            out.write_all(escape)?;
        }
    }
    out.write_all(&text.as_bytes()[done..])
}

/// Returns whether a character may be written as it is, and is no line break for any parser.
fn is_printable(c: char) -> bool {
    matches!(c, '\t' | ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
        || c > '\u{ffff}'
}

/// Bytes that are allowed in a plain scalar.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < plain.len() {
        plain[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b" _./+@%,=-";
    let mut at = 0;
    while at < others.len() {
        plain[others[at] as usize] = true;
        at += 1;
    }
    plain
};

/// Returns whether every YAML parser, 1.1 or 1.2, reads the plain `value` as that string. May be false
/// without need.
#[must_use]
pub fn is_plain(value: &[u8]) -> bool {
    const RESERVED: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let (Some(&first), Some(&last)) = (value.first(), value.last()) else {
        return false;
    };
    if last == b' ' || !value.iter().all(|&byte| PLAIN[usize::from(byte)]) {
        return false;
    }
    if first.is_ascii_alphabetic() || first == b'/' || first == b'_' {
        return !RESERVED
            .iter()
            .any(|word| value.eq_ignore_ascii_case(word.as_bytes()));
    }
    // No number, date or hexadecimal number contains these letters.
    first.is_ascii_digit()
        && value
            .iter()
            .any(|byte| b"ghijklmnpqrsuvwyzGHIJKLMNPQRSUVWY".contains(byte))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use saphyr_parser::{Event, Parser};

    use super::*;

    fn emit(body: impl FnOnce(&mut Emitter<Vec<u8>>) -> io::Result<()>) -> String {
        let mut emitter = Emitter::new(Vec::new()).with_guards(&["raw:"]);
        body(&mut emitter).unwrap();
        String::from_utf8(emitter.into_inner()).unwrap()
    }

    fn scalars(yaml: &str) -> Vec<String> {
        Parser::new_from_str(yaml)
            .filter_map(|event| match event.unwrap_or_else(|e| panic!("{e}\n{yaml}")).0 {
                Event::Scalar(value, ..) => Some(value.into_owned()),
                _ => None,
            })
            .collect()
    }

    /// Both parsers read the mapping `key: value` back.
    fn check(yaml: &str, key: &str, value: &str) {
        assert_eq!(scalars(yaml), [key, value], "{yaml}");
        let map: BTreeMap<String, String> =
            serde_saphyr::from_str(yaml).unwrap_or_else(|e| panic!("{e}\n{yaml}"));
        assert_eq!(map.get(key).map(String::as_str), Some(value), "{yaml}");
    }

    #[test]
    fn plain_only_where_it_is_a_string() {
        for plain in [
            "/usr/bin/dash",
            "6.18.44-fc-v445",
            "AMD EPYC",
            "x86_64",
            "sub/x",
            "f.a",
        ] {
            assert!(is_plain(plain.as_bytes()), "{plain}");
        }
        for quoted in [
            "",
            "123",
            "1e3",
            "6.18",
            "true",
            "No",
            "a: b",
            "*x",
            "0x1f",
            "2026-11-21",
            " a",
            "a ",
            "a#b",
            "-",
        ] {
            assert!(!is_plain(quoted.as_bytes()), "{quoted}");
        }
    }

    #[test]
    fn ordinary_output_is_a_literal_block() {
        assert_eq!(emit(|e| e.text("data", "hello\n")), "data: |\n  hello\n");
        assert_eq!(emit(|e| e.text("data", "hello")), "data: |-\n  hello\n");
        assert_eq!(
            emit(|e| e.text("data", " a\n\nb\n\n")),
            "data: |2+\n   a\n\n  b\n\n"
        );
    }

    #[test]
    fn control_characters_are_escaped_line_by_line() {
        let yaml = emit(|e| e.text("data", "\x1b[1mx\n  y\r\n"));
        assert_eq!(yaml, "data: \"\\x1B[1mx\\n\\\n  \\  y\\r\\n\"\n");
        check(&yaml, "data", "\x1b[1mx\n  y\r\n");
    }

    #[test]
    fn guarded_words_do_not_appear() {
        for yaml in [
            emit(|e| e.text("data", "raw: 5\n")),
            emit(|e| e.quoted(KeyStyle::Auto, b"data", b"raw: 5\n")),
        ] {
            assert!(!yaml.contains("raw: "), "{yaml}");
            check(&yaml, "data", "raw: 5\n");
        }
    }

    #[test]
    fn long_keys_use_the_explicit_form() {
        let key = "k".repeat(5000);
        check(
            &emit(|e| e.quoted(KeyStyle::Auto, key.as_bytes(), b"v")),
            &key,
            "v",
        );
    }

    fn hostile() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[ \t\n\r#:\"'\\\\|>&*!%@`{}\\[\\],?a-c\u{85}\u{2028}\u{feff}\u{0}-\u{1f}-]{0,40}",
            "([ ]{0,3}[a-b]{0,2}\n{0,3}){0,6}",
        ]
    }

    proptest! {
        #[test]
        fn text_reads_back(text in hostile()) {
            check(&emit(|e| e.text("data", &text)), "data", &text);
        }

        #[test]
        fn keys_and_values_read_back(key in hostile(), value in hostile()) {
            check(&emit(|e| e.quoted(KeyStyle::Auto, key.as_bytes(), value.as_bytes())), &key, &value);
            check(&emit(|e| e.scalar("k", value.as_bytes())), "k", &value);
        }

        #[test]
        fn items_read_back(values in prop::collection::vec(hostile(), 0..5)) {
            let yaml = emit(|e| values.iter().try_for_each(|value| e.item_quoted(value.as_bytes())));
            prop_assert_eq!(scalars(&yaml).len(), if values.is_empty() { 0 } else { values.len() });
            if !values.is_empty() {
                let list: Vec<String> = serde_saphyr::from_str(&yaml).unwrap();
                prop_assert_eq!(list, values);
            }
        }
    }
}
