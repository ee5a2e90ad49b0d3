//! XML reader: elements with positions and unescaped attributes. It accepts only standard entities and no
//! document type, so entity bombs are impossible.

use std::borrow::Cow;
use std::path::Path;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use crate::diagnostic::{Diagnostic, Position};

/// Maximum depth of nested elements.
const DEPTH_LIMIT: usize = 64;

/// Maximum attributes of an element.
const ATTRIBUTE_LIMIT: usize = 100;

/// A fatal error.
pub(crate) type Stop = Box<Diagnostic>;
pub(crate) type Result<T> = std::result::Result<T, Stop>;

/// Content of an element.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    /// A child element. The caller must read it to its end.
    Element(Element<'a>),
    /// Text. The text between two elements may come in several pieces.
    Text(Cow<'a, str>),
}

/// Start tag of an element.
#[derive(Debug)]
pub(crate) struct Element<'a> {
    tag: BytesStart<'a>,
    pub(crate) position: Position,
}

impl Element<'_> {
    /// Returns the name without prefix.
    pub(crate) fn name(&self) -> &str {
        self.tag.local_name().into_inner()
    }
}

/// XML reader that collects problems that are not fatal.
pub(crate) struct Xml<'a> {
    file: &'a Path,
    text: &'a str,
    reader: Reader<&'a [u8]>,
    /// Offset up to which lines are counted.
    counted: usize,
    line: u32,
    line_start: usize,
    /// Offset in the line up to which characters are counted, and their number.
    in_line: (usize, usize),
    /// Open elements.
    open: Vec<Position>,
    /// Bytes skipped by [`Xml::pass`].
    passed: usize,
    /// The reader is between two elements, right after a tag.
    between: bool,
    pub(crate) problems: Vec<Diagnostic>,
}

impl<'a> Xml<'a> {
    pub(crate) fn new(file: &'a Path, text: &'a str) -> Self {
        // XML requires the declaration at the start. Blank lines before it are tolerated and counted.
        let blank = text.len() - text.trim_start().len();
        let (before, text) = text.split_at(blank);
        let line = 1 + before.matches('\n').count();
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        Xml {
            file,
            text,
            reader,
            counted: 0,
            line: u32::try_from(line).unwrap_or(u32::MAX),
            line_start: 0,
            in_line: (0, 0),
            open: Vec::new(),
            passed: 0,
            between: false,
            problems: Vec::new(),
        }
    }

    pub(crate) fn file(&self) -> &'a Path {
        self.file
    }

    pub(crate) fn problem(&mut self, position: Position, message: impl Into<String>) {
        self.problems.push(Diagnostic::at(self.file, position, message));
    }

    /// Returns the position of a byte. This is fast if offsets ascend.
    pub(crate) fn position(&mut self, byte: usize) -> Position {
        let byte = byte.min(self.text.len());
        let bytes = self.text.as_bytes();
        if byte < self.counted {
            return crate::diagnostic::position_of(self.text, byte);
        }
        for newline in memchr::memchr_iter(b'\n', &bytes[self.counted..byte]) {
            self.line += 1;
            self.line_start = self.counted + newline + 1;
        }
        self.counted = byte;
        // A whole file may be one line, so counting of characters continues, too.
        if !(self.line_start..=byte).contains(&self.in_line.0) {
            self.in_line = (self.line_start, 0);
        }
        let (from, before) = self.in_line;
        // Count all bytes except continuation bytes.
        let more = bytes[from..byte].iter().filter(|&&b| b & 0xc0 != 0x80);
        let characters = before + more.count();
        self.in_line = (byte, characters);
        Position {
            line: self.line,
            column: u32::try_from(characters + 1).unwrap_or(u32::MAX),
        }
    }

    fn offset(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).map_or(usize::MAX, |read| read + self.passed)
    }

    /// Returns the whole text and the offset of the next part, if the last part was the end of an element.
    pub(crate) fn rest(&self) -> Option<(&'a str, usize)> {
        self.between.then(|| (self.text, self.offset()))
    }

    /// Continues at an offset after the end of an element of the same depth.
    pub(crate) fn pass(&mut self, byte: usize) {
        self.passed += byte - self.offset();
        *self.reader.get_mut() = &self.text.as_bytes()[byte..];
    }

    fn broken(&mut self, byte: usize, message: &str) -> Stop {
        let position = self.position(byte);
        let path = std::path::absolute(self.file).unwrap_or_else(|_| self.file.to_owned());
        let message = format!("Exception while parsing xml file {}: {message}", path.display());
        Box::new(Diagnostic::at(self.file, position, message))
    }

    /// Returns the next part of the open element, `None` at its end or at the end of the file.
    pub(crate) fn part(&mut self) -> Result<Option<Part<'a>>> {
        loop {
            let start = self.offset();
            let event = match self.reader.read_event() {
                Ok(event) => event,
                Err(error) => {
                    let at = usize::try_from(self.reader.error_position());
                    let at = at.map_or(start, |at| at + self.passed);
                    return Err(self.broken(at, &error.to_string()));
                }
            };
            self.between = matches!(event, Event::End(_));
            match event {
                Event::Start(tag) => {
                    let position = self.position(start);
                    self.open.push(position);
                    if self.open.len() > DEPTH_LIMIT {
                        let message = format!("elements are nested more than {DEPTH_LIMIT} deep");
                        return Err(self.broken(start, &message));
                    }
                    return Ok(Some(Part::Element(Element { tag, position })));
                }
                Event::End(_) => {
                    self.open.pop();
                    return Ok(None);
                }
                Event::Text(text) => return Ok(Some(Part::Text(text.xml10_content()))),
                Event::CData(text) => return Ok(Some(Part::Text(text.xml10_content()))),
                Event::GeneralRef(reference) => {
                    let character = match reference.resolve_char_ref() {
                        Ok(character) => character,
                        Err(error) => return Err(self.broken(start, &error.to_string())),
                    };
                    if let Some(character) = character {
                        return Ok(Some(Part::Text(Cow::Owned(character.to_string()))));
                    }
                    let name = reference.into_inner();
                    match quick_xml::escape::resolve_predefined_entity(&name) {
                        Some(text) => return Ok(Some(Part::Text(Cow::Borrowed(text)))),
                        None => {
                            let message = format!("the entity &{name}; is not defined");
                            return Err(self.broken(start, &message));
                        }
                    }
                }
                Event::DocType(_) => {
                    return Err(self.broken(start, "a document type (<!DOCTYPE>) is not accepted, remove it"));
                }
                Event::Eof => {
                    if let Some(open) = self.open.pop() {
                        let message = format!("the file ends inside the element of line {}", open.line);
                        return Err(self.broken(start, &message));
                    }
                    return Ok(None);
                }
                Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            }
        }
    }

    /// Returns the next child of the open element, `None` if there are no more. Skips text. The caller must
    /// read the child to its end.
    pub(crate) fn element(&mut self) -> Result<Option<Element<'a>>> {
        loop {
            match self.part()? {
                None => return Ok(None),
                Some(Part::Element(element)) => return Ok(Some(element)),
                Some(Part::Text(_)) => {}
            }
        }
    }

    /// Skips the rest of the open element.
    pub(crate) fn skip(&mut self) -> Result<()> {
        let mut inside = 0_usize;
        loop {
            match self.part()? {
                Some(Part::Element(_)) => inside += 1,
                Some(Part::Text(_)) => {}
                None if inside == 0 => return Ok(()),
                None => inside -= 1,
            }
        }
    }

    /// Returns the trimmed text of the open element. Skips child elements.
    pub(crate) fn text(&mut self) -> Result<String> {
        let mut all = String::new();
        while let Some(part) = self.part()? {
            match part {
                Part::Text(text) => all.push_str(&text),
                Part::Element(_) => self.skip()?,
            }
        }
        let trimmed = all.trim();
        if trimmed.len() == all.len() {
            Ok(all)
        } else {
            Ok(trimmed.to_owned())
        }
    }

    /// Calls `each` with every attribute: name without prefix, value.
    pub(crate) fn attributes(
        &mut self,
        element: &Element<'a>,
        mut each: impl FnMut(&mut Self, &str, &str),
    ) -> Result<()> {
        for (n, attribute) in element.tag.attributes().enumerate() {
            // The check for duplicates is quadratic, so the number is limited.
            if n == ATTRIBUTE_LIMIT {
                let message = format!("the element has more than {ATTRIBUTE_LIMIT} attributes");
                return Err(self.broken_at(element.position, &message));
            }
            let attribute = match attribute {
                Ok(attribute) => attribute,
                Err(error) => return Err(self.broken_at(element.position, &error.to_string())),
            };
            let raw = attribute.value.as_ref();
            let as_it_is = !raw.bytes().any(|b| matches!(b, b'&' | b'\n' | b'\t' | b'\r'));
            let name = attribute.key.local_name().into_inner();
            if as_it_is {
                each(self, name, raw);
                continue;
            }
            match attribute.normalized_value(XmlVersion::Implicit1_0) {
                Ok(value) => each(self, name, &value),
                Err(error) => return Err(self.broken_at(element.position, &error.to_string())),
            }
        }
        Ok(())
    }

    /// Returns the value of one attribute.
    pub(crate) fn attribute(&mut self, element: &Element<'a>, wanted: &str) -> Result<Option<String>> {
        let mut found = None;
        self.attributes(element, |_, name, value| {
            if name == wanted {
                found = Some(value.to_owned());
            }
        })?;
        Ok(found)
    }

    fn broken_at(&mut self, position: Position, message: &str) -> Stop {
        let mut error = self.broken(self.counted, message);
        error.position = Some(position);
        error
    }

    /// Reports and skips an element that is not allowed here.
    pub(crate) fn illegal_element(&mut self, element: &Element<'a>, parent: &str, legal: &str) -> Result<()> {
        let message = format!("Illegal element {} in element {parent}", element.name());
        self.problems.push(
            Diagnostic::at(self.file, element.position, message)
                .with_hint(format!("legal elements are {legal}")),
        );
        self.skip()
    }

    /// Parses a boolean attribute. Reports other values.
    pub(crate) fn boolean(&mut self, position: Position, name: &str, value: &str) -> Option<bool> {
        let parsed = crate::profiles::parse_bool(value);
        if parsed.is_none() {
            self.problem(
                position,
                format!("the attribute {name} must be true or false, not `{value}`"),
            );
        }
        parsed
    }
}
