//! A reader of XML: elements with their place, attributes unescaped, no entities but those of the
//! standard, no document type (and thereby no entity bombs).

use std::borrow::Cow;
use std::path::Path;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use crate::error::InputError;
use crate::error::Position;

/// Elements inside elements, more than which no honest file has.
const DEPTH_LIMIT: usize = 64;

/// Attributes of an element, more than which no honest file has.
const ATTRIBUTE_LIMIT: usize = 100;

/// The error that ends reading.
pub(crate) type Stop = Box<InputError>;
pub(crate) type Result<T> = std::result::Result<T, Stop>;

/// What may come inside an element.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    /// An element, which has to be read to its end.
    Element(Element<'a>),
    /// Text; what stands between two elements may come in several pieces.
    Text(Cow<'a, str>),
}

/// The start of an element.
#[derive(Debug)]
pub(crate) struct Element<'a> {
    tag: BytesStart<'a>,
    pub(crate) position: Position,
}

impl Element<'_> {
    /// Name without prefix.
    pub(crate) fn name(&self) -> &str {
        self.tag.local_name().into_inner()
    }
}

/// The reader. Problems that do not end reading are collected.
pub(crate) struct Xml<'a> {
    file: &'a Path,
    text: &'a str,
    reader: Reader<&'a [u8]>,
    /// Up to where lines are counted.
    counted: usize,
    line: u32,
    line_start: usize,
    /// Up to where characters of the line are counted, and how many there are.
    in_line: (usize, usize),
    /// Elements that are open.
    open: Vec<Position>,
    /// Bytes that were passed over without the reader.
    passed: usize,
    /// The reader stands between two elements, right behind a tag.
    between: bool,
    pub(crate) problems: Vec<InputError>,
}

impl<'a> Xml<'a> {
    pub(crate) fn new(file: &'a Path, text: &'a str) -> Self {
        // The declaration must stand at the very start; blank lines before it are forgiven, but counted.
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
        self.problems.push(InputError::at(self.file, position, message));
    }

    /// Place of a byte; bytes must be asked for in ascending order to be found fast.
    pub(crate) fn position(&mut self, byte: usize) -> Position {
        let byte = byte.min(self.text.len());
        let bytes = self.text.as_bytes();
        if byte < self.counted {
            return crate::error::position_of(self.text, byte);
        }
        for newline in memchr::memchr_iter(b'\n', &bytes[self.counted..byte]) {
            self.line += 1;
            self.line_start = self.counted + newline + 1;
        }
        self.counted = byte;
        // A whole file may be one line, so that its characters are counted on, too.
        if !(self.line_start..=byte).contains(&self.in_line.0) {
            self.in_line = (self.line_start, 0);
        }
        let (from, before) = self.in_line;
        // Characters are the bytes that do not continue one.
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

    /// The whole text, and where the next part begins, if the last one was the end of an element.
    pub(crate) fn rest(&self) -> Option<(&'a str, usize)> {
        self.between.then(|| (self.text, self.offset()))
    }

    /// Goes on at a byte that follows the end of an element, at the same depth.
    pub(crate) fn pass(&mut self, byte: usize) {
        self.passed += byte - self.offset();
        *self.reader.get_mut() = &self.text.as_bytes()[byte..];
    }

    fn broken(&mut self, byte: usize, message: &str) -> Stop {
        let position = self.position(byte);
        let path = std::path::absolute(self.file).unwrap_or_else(|_| self.file.to_owned());
        let message = format!("Exception while parsing xml file {}: {message}", path.display());
        Box::new(InputError::at(self.file, position, message))
    }

    /// The next part of the element that is open, `None` at its end (or at the end of the file).
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

    /// The next element inside the one that is open, which has to be read to its end; `None` when there
    /// are no more. Text is passed over.
    pub(crate) fn element(&mut self) -> Result<Option<Element<'a>>> {
        loop {
            match self.part()? {
                None => return Ok(None),
                Some(Part::Element(element)) => return Ok(Some(element)),
                Some(Part::Text(_)) => {}
            }
        }
    }

    /// Passes over the rest of the element that is open.
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

    /// The text of the element that is open, without white space at both ends; elements inside are passed
    /// over.
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

    /// Gives each attribute (name without prefix, value) to `each`.
    pub(crate) fn attributes(
        &mut self,
        element: &Element<'a>,
        mut each: impl FnMut(&mut Self, &str, &str),
    ) -> Result<()> {
        for (n, attribute) in element.tag.attributes().enumerate() {
            // Each is compared with those before it.
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

    /// The value of one attribute.
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

    /// Reports an element that does not belong where it stands and passes over it.
    pub(crate) fn illegal_element(&mut self, element: &Element<'a>, parent: &str, legal: &str) -> Result<()> {
        let message = format!("Illegal element {} in element {parent}", element.name());
        self.problems.push(
            InputError::at(self.file, element.position, message)
                .with_hint(format!("legal elements are {legal}")),
        );
        self.skip()
    }

    /// A boolean attribute; anything but a boolean is a problem.
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
