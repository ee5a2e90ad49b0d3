//! Fast YAML reader for the subset that programs write: block mappings and sequences of scalars on one line.
//! It is several times faster than the full reader.
//!
//! Anything else (flow style, anchors, tags, multi-line texts, comments after values, tabs, errors) gives
//! [`Unsupported`], and [`Full`](super::full::Full) reads the file instead. This module must give the same
//! events as `Full` or give up. Tests compare both.

use std::borrow::Cow;

use super::{Event, Scalar};
use crate::diagnostic::Position;

/// A construct outside the subset.
#[derive(Debug)]
pub(super) struct Unsupported;

type Result<T> = std::result::Result<T, Unsupported>;

/// Maximum bytes of a key; the full reader reports longer ones.
const KEY_LIMIT: usize = 1000;

/// An open collection.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// Indentation of its entries: spaces and dashes.
    indent: usize,
    is_sequence: bool,
}

/// Next item to read.
#[derive(Debug)]
enum State<'a> {
    /// A new line.
    Line,
    /// The line that was found, which may close or continue collections.
    Found,
    /// A node at `at`. `own_line`: it is the first on its line.
    Node { own_line: bool },
    /// The dash at `at`.
    Dash,
    /// A key that has been read.
    Key(Scalar<'a>),
    /// The value after a key.
    Value,
    /// The end of `[]` or `{}`.
    EmptyEnd { is_sequence: bool },
}

/// Findings of one pass over a line.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// First colon that ends a key, and whether there is another one.
    colon: Option<usize>,
    more_colons: bool,
    /// A `#` after a space.
    comment: bool,
    /// The line contains non-ASCII characters.
    wide: bool,
}

/// Reader for the subset.
#[derive(Debug)]
pub(super) struct Block<'a> {
    text: &'a str,
    /// Current offset.
    at: usize,
    line: u32,
    line_start: usize,
    line_end: usize,
    indent: usize,
    marks: Marks,
    /// Position of the missing value after a key at the end of its line.
    waiting: Option<Position>,
    open: Vec<Open>,
    state: State<'a>,
    /// The document has started with `---`.
    marked: bool,
    /// The root node was found.
    rooted: bool,
    /// All lines have been read.
    done: bool,
}

impl<'a> Block<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Block {
            text,
            at: 0,
            line: 0,
            line_start: 0,
            line_end: 0,
            indent: 0,
            marks: Marks::default(),
            waiting: None,
            open: Vec::new(),
            state: State::Line,
            marked: false,
            rooted: false,
            done: false,
        }
    }

    fn byte(&self, at: usize) -> Option<u8> {
        if at < self.line_end {
            self.text.as_bytes().get(at).copied()
        } else {
            None
        }
    }

    fn position(&self, at: usize) -> Position {
        let before = &self.text.as_bytes()[self.line_start..at];
        let column = if self.marks.wide {
            // Count all bytes except continuation bytes.
            before.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
        } else {
            before.len()
        };
        Position {
            line: self.line,
            column: u32::try_from(column + 1).unwrap_or(u32::MAX),
        }
    }

    /// Returns whether the dash of an item is at `at`.
    fn is_dash(&self, at: usize) -> bool {
        self.byte(at) == Some(b'-') && matches!(self.byte(at + 1), None | Some(b' '))
    }

    /// Returns the next event.
    pub(super) fn next(&mut self) -> Result<(Event<'a>, Position)> {
        loop {
            match std::mem::replace(&mut self.state, State::Line) {
                State::Line => {
                    self.find_line()?;
                    self.state = State::Found;
                }
                State::Found => {
                    if let Some(event) = self.found()? {
                        return Ok(event);
                    }
                }
                State::Dash => {
                    self.at += 1;
                    while self.byte(self.at) == Some(b' ') {
                        self.at += 1;
                    }
                    if self.at == self.line_end {
                        return Err(Unsupported);
                    }
                    self.state = State::Node { own_line: false };
                }
                State::Node { own_line } => return self.node(own_line),
                State::Key(key) => {
                    let position = key.position;
                    self.after_key()?;
                    return Ok((Event::Scalar(key), position));
                }
                State::Value => return self.value(),
                State::EmptyEnd { is_sequence } => return Ok((end(is_sequence), Position::default())),
            }
        }
    }

    /// Moves to the next line with content.
    fn find_line(&mut self) -> Result<()> {
        let bytes = self.text.as_bytes();
        let mut start = if self.line == 0 { 0 } else { self.line_end + 1 };
        loop {
            self.line += 1;
            if start >= bytes.len() {
                self.done = true;
                self.line_start = bytes.len();
                self.line_end = bytes.len();
                self.at = bytes.len();
                self.indent = 0;
                return Ok(());
            }
            let mut at = start;
            while bytes.get(at) == Some(&b' ') {
                at += 1;
            }
            match bytes.get(at) {
                None | Some(b'\n') => start = at + 1,
                Some(b'#') => {
                    let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |n| at + n);
                    // The full reader refuses some characters even in comments.
                    if !bytes[at..end].iter().all(|&byte| CLASS[byte as usize] < CONTROL) {
                        return Err(Unsupported);
                    }
                    start = end + 1;
                }
                Some(_) => {
                    self.line_start = start;
                    self.at = at;
                    self.indent = at - start;
                    self.scan(at)?;
                    let line = &self.text[start..self.line_end];
                    if self.indent == 0 && (line.starts_with("---") || line.starts_with("...")) {
                        if line == "---" && !self.rooted && !self.marked {
                            self.marked = true;
                            start = self.line_end + 1;
                            continue;
                        }
                        return Err(Unsupported);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Scans a line in one pass.
    fn scan(&mut self, start: usize) -> Result<()> {
        let bytes = self.text.as_bytes();
        let mut marks = Marks::default();
        let mut at = start;
        let end = loop {
            let Some(&byte) = bytes.get(at) else { break at };
            match CLASS[byte as usize] {
                PLAIN => {}
                COLON => {
                    if matches!(bytes.get(at + 1), None | Some(b' ' | b'\n')) {
                        marks.more_colons |= marks.colon.is_some();
                        marks.colon = marks.colon.or(Some(at));
                    }
                }
                HASH => marks.comment |= at > 0 && bytes[at - 1] == b' ',
                WIDE => marks.wide = true,
                NEWLINE => break at,
                _ => return Err(Unsupported),
            }
            at += 1;
        };
        // Trailing spaces are not part of a value.
        let mut trimmed = end;
        while trimmed > start && bytes[trimmed - 1] == b' ' {
            trimmed -= 1;
        }
        if trimmed < end {
            return Err(Unsupported);
        }
        if marks.wide
            && self.text[start..end]
                .chars()
                .any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}'))
        {
            return Err(Unsupported);
        }
        self.line_end = end;
        self.marks = marks;
        Ok(())
    }

    /// Closes collections that end before the line, and finds the collection that the line continues.
    fn found(&mut self) -> Result<Option<(Event<'a>, Position)>> {
        let dash = self.is_dash(self.at);
        let Some(&top) = self.open.last() else {
            if self.done && self.rooted {
                self.state = State::Found;
                return Ok(Some((Event::End, Position::default())));
            }
            // Only one root node is allowed.
            if self.done || self.rooted || self.indent > 0 {
                return Err(Unsupported);
            }
            self.rooted = true;
            self.state = State::Node { own_line: true };
            return Ok(None);
        };
        if let Some(position) = self.waiting.take() {
            let deeper = if dash {
                self.indent >= top.indent
            } else {
                self.indent > top.indent
            };
            if deeper && !self.done {
                self.state = State::Node { own_line: true };
                return Ok(None);
            }
            self.state = State::Found;
            let text = Cow::Borrowed("");
            let scalar = Scalar {
                text,
                plain: true,
                position,
            };
            return Ok(Some((Event::Scalar(scalar), position)));
        }
        let ends = top.indent > self.indent || (top.is_sequence && top.indent == self.indent && !dash);
        if ends || self.done {
            self.open.pop();
            self.state = State::Found;
            return Ok(Some((end(top.is_sequence), Position::default())));
        }
        if top.indent != self.indent || top.is_sequence != dash {
            return Err(Unsupported);
        }
        if dash {
            self.state = State::Dash;
        } else {
            let key = self.key()?.ok_or(Unsupported)?;
            self.state = State::Key(key);
        }
        Ok(None)
    }

    /// Reads the node at the current offset.
    fn node(&mut self, own_line: bool) -> Result<(Event<'a>, Position)> {
        let mut position = self.position(self.at);
        // Spaces and dashes are one byte each.
        let indent = self.at - self.line_start;
        if self.is_dash(self.at) {
            // The full reader gives an unindented sequence the position of its first item.
            if own_line && self.open.last().is_some_and(|top| top.indent == indent) {
                let blanks = self.text.as_bytes()[self.at + 1..self.line_end]
                    .iter()
                    .take_while(|&&byte| byte == b' ');
                position = self.position(self.at + 1 + blanks.count());
            }
            self.open.push(Open {
                indent,
                is_sequence: true,
            });
            self.state = State::Dash;
            return Ok((Event::SequenceStart, position));
        }
        if let Some(key) = self.key()? {
            self.open.push(Open {
                indent,
                is_sequence: false,
            });
            self.state = State::Key(key);
            return Ok((Event::MappingStart, position));
        }
        // A text on its own line may continue on the next line.
        if own_line {
            return Err(Unsupported);
        }
        self.value()
    }

    /// Reads the key at the current offset, if there is one, up to the colon.
    fn key(&mut self) -> Result<Option<Scalar<'a>>> {
        let position = self.position(self.at);
        if matches!(self.byte(self.at), Some(b'"' | b'\'')) {
            let start = self.at;
            let (text, end) = self.quoted(start)?;
            if self.byte(end) != Some(b':') || end - start > KEY_LIMIT {
                return Ok(None);
            }
            if !matches!(self.byte(end + 1), None | Some(b' ')) {
                return Err(Unsupported);
            }
            self.at = end;
            return Ok(Some(Scalar {
                text,
                plain: false,
                position,
            }));
        }
        let Some(colon) = self.marks.colon.filter(|&colon| colon > self.at) else {
            return Ok(None);
        };
        let text = &self.text[self.at..colon];
        if !self.starts_plain(self.at) || text.ends_with(' ') || text.contains(" #") || text.len() > KEY_LIMIT
        {
            return Err(Unsupported);
        }
        self.at = colon;
        Ok(Some(Scalar {
            text: Cow::Borrowed(text),
            plain: true,
            position,
        }))
    }

    /// Moves from the colon to the value, or to the next line.
    fn after_key(&mut self) -> Result<()> {
        let colon = self.at;
        self.at += 1;
        while self.byte(self.at) == Some(b' ') {
            self.at += 1;
        }
        if self.at < self.line_end {
            self.state = State::Value;
        } else {
            // The full reader gives a missing value this position.
            self.waiting = Some(self.position(colon));
            self.state = State::Line;
        }
        Ok(())
    }

    /// Reads a scalar that ends on this line, or an empty collection.
    fn value(&mut self) -> Result<(Event<'a>, Position)> {
        let position = self.position(self.at);
        let rest = &self.text[self.at..self.line_end];
        let (text, plain) = match rest.as_bytes().first() {
            Some(b'"' | b'\'') => {
                let (text, end) = self.quoted(self.at)?;
                if end != self.line_end {
                    return Err(Unsupported);
                }
                (text, false)
            }
            Some(b'[') if rest == "[]" => {
                self.state = State::EmptyEnd { is_sequence: true };
                return Ok((Event::SequenceStart, position));
            }
            Some(b'{') if rest == "{}" => {
                self.state = State::EmptyEnd { is_sequence: false };
                return Ok((Event::MappingStart, position));
            }
            _ => {
                let colon = self.marks.colon.is_some_and(|colon| colon >= self.at);
                let is_text = self.starts_plain(self.at)
                    && !colon
                    && !self.marks.more_colons
                    && !self.marks.comment
                    && !self.continues();
                if !is_text {
                    return Err(Unsupported);
                }
                (Cow::Borrowed(rest), true)
            }
        };
        self.state = State::Line;
        let scalar = Scalar {
            text,
            plain,
            position,
        };
        Ok((Event::Scalar(scalar), position))
    }

    /// Returns whether the next line may continue a text of this one: it is indented further than the
    /// collection of the text.
    fn continues(&self) -> bool {
        let bytes = self.text.as_bytes();
        let indent = self.open.last().map_or(0, |open| open.indent);
        let mut start = self.line_end + 1;
        loop {
            let mut at = start;
            while bytes.get(at) == Some(&b' ') {
                at += 1;
            }
            match bytes.get(at) {
                None => return false,
                Some(b'\n') => start = at + 1,
                Some(_) => return at - start > indent,
            }
        }
    }

    /// Returns whether a plain scalar may start here.
    fn starts_plain(&self, at: usize) -> bool {
        match self.byte(at) {
            Some(b'-') => !matches!(self.byte(at + 1), None | Some(b' ')),
            Some(byte) => !b"?:,[]{}#&*!|>'\"%@`".contains(&byte),
            None => false,
        }
    }

    /// Reads a quoted text that ends on this line. Returns the text and its end.
    fn quoted(&self, start: usize) -> Result<(Cow<'a, str>, usize)> {
        let line = &self.text[..self.line_end];
        let inside = start + 1;
        if line.as_bytes()[start] == b'\'' {
            let mut end = inside;
            loop {
                end += memchr::memchr(b'\'', &line.as_bytes()[end..]).ok_or(Unsupported)?;
                if self.byte(end + 1) != Some(b'\'') {
                    break;
                }
                end += 2;
            }
            let raw = &line[inside..end];
            let text = if raw.contains('\'') {
                Cow::Owned(raw.replace("''", "'"))
            } else {
                Cow::Borrowed(raw)
            };
            return Ok((text, end + 1));
        }
        let stop = memchr::memchr2(b'"', b'\\', &line.as_bytes()[inside..]).ok_or(Unsupported)? + inside;
        if line.as_bytes()[stop] == b'"' {
            return Ok((Cow::Borrowed(&line[inside..stop]), stop + 1));
        }
        let mut text = String::from(&line[inside..stop]);
        let mut letters = line[stop..].char_indices();
        while let Some((n, letter)) = letters.next() {
            match letter {
                '"' => return Ok((Cow::Owned(text), stop + n + 1)),
                '\\' => text.push(match letters.next() {
                    Some((_, '"')) => '"',
                    Some((_, '\\')) => '\\',
                    Some((_, 'n')) => '\n',
                    Some((_, 't')) => '\t',
                    _ => return Err(Unsupported),
                }),
                letter => text.push(letter),
            }
        }
        Err(Unsupported)
    }
}

fn end(is_sequence: bool) -> Event<'static> {
    if is_sequence {
        Event::SequenceEnd
    } else {
        Event::MappingEnd
    }
}

const PLAIN: u8 = 0;
const COLON: u8 = 1;
const HASH: u8 = 2;
const WIDE: u8 = 3;
const NEWLINE: u8 = 4;
/// Tabs, other line breaks, and characters that YAML forbids.
const CONTROL: u8 = 5;

/// Class of each byte inside a line.
static CLASS: [u8; 256] = {
    let mut class = [PLAIN; 256];
    let mut byte = 0;
    while byte < 256 {
        if byte < 0x20 || byte == 0x7f {
            class[byte] = CONTROL;
        } else if byte >= 0x80 {
            class[byte] = WIDE;
        }
        byte += 1;
    }
    class[b':' as usize] = COLON;
    class[b'#' as usize] = HASH;
    class[b'\n' as usize] = NEWLINE;
    class
};
