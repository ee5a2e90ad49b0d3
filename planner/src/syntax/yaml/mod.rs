//! Streaming YAML reader: returns one node after another with its position and never builds a tree.

mod block;
pub(crate) mod common;
mod full;

use std::borrow::Cow;
use std::path::Path;

use crate::diagnostic::{Diagnostic, Position};
use crate::error::near_spelling;

use block::Block;
use full::Full;

/// Maximum depth of nested collections.
const DEPTH_LIMIT: u32 = 64;

/// Reason to stop before the end of the file.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The file is not valid YAML, or exceeds a limit.
    Broken(Box<Diagnostic>),
}

impl Stop {
    pub(crate) fn into_error(self) -> Diagnostic {
        let Stop::Broken(error) = self;
        *error
    }
}

pub(crate) type Result<T> = std::result::Result<T, Stop>;

/// Parser event.
#[derive(Clone, Debug, PartialEq)]
enum Event<'a> {
    Scalar(Scalar<'a>),
    SequenceStart,
    SequenceEnd,
    MappingStart,
    MappingEnd,
    /// End of the document.
    End,
}

/// A scalar with its text as in the source (`1.50` stays `1.50`).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scalar<'a> {
    pub(crate) text: Cow<'a, str>,
    /// Written without quotes.
    pub(crate) plain: bool,
    pub(crate) position: Position,
}

impl Scalar<'_> {
    /// Returns whether the scalar is empty, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_ref(), "" | "~" | "null" | "Null" | "NULL")
    }
}

/// Start of a node.
#[derive(Debug)]
pub(crate) enum Node<'a> {
    Scalar(Scalar<'a>),
    /// Followed by items until [`Yaml::item`] gives `None`.
    Sequence(Position),
    /// Followed by keys, each with a node, until [`Yaml::key`] gives `None`.
    Mapping(Position),
}

impl Node<'_> {
    pub(crate) fn position(&self) -> Position {
        match self {
            Node::Scalar(scalar) => scalar.position,
            Node::Sequence(position) | Node::Mapping(position) => *position,
        }
    }
    fn kind(&self) -> &'static str {
        match self {
            Node::Scalar(scalar) if scalar.is_null() => "nothing",
            Node::Scalar(_) => "text",
            Node::Sequence(_) => "a list",
            Node::Mapping(_) => "a mapping",
        }
    }
}

/// Legal keys of a mapping, and the keys found so far.
#[derive(Debug)]
pub(crate) struct Fields {
    element: &'static str,
    legal: &'static [&'static str],
    unsupported: &'static [&'static str],
    seen: u32,
}

impl Fields {
    pub(crate) const fn new(element: &'static str, legal: &'static [&'static str]) -> Self {
        Fields {
            element,
            legal,
            unsupported: &[],
            seen: 0,
        }
    }
    /// Returns whether a key is missing.
    pub(crate) fn lacks(&self, key: &str) -> bool {
        let bit = self.legal.iter().position(|legal| *legal == key);
        bit.is_none_or(|n| self.seen & (1 << n) == 0)
    }
    /// Sets keys of the published schema that are refused with a special message.
    pub(crate) const fn unsupported(mut self, keys: &'static [&'static str]) -> Self {
        self.unsupported = keys;
        self
    }
}

/// Source of events: the fast reader while it understands the file, then the full reader.
enum Source<'a> {
    /// The fast reader and the number of its events.
    Block(Block<'a>, usize),
    Full(Box<Full<'a>>),
}

/// YAML reader that collects problems that are not fatal.
pub(crate) struct Yaml<'a> {
    file: &'a Path,
    text: &'a str,
    source: Source<'a>,
    depth: u32,
    pub(crate) problems: Vec<Diagnostic>,
}

impl<'a> Yaml<'a> {
    pub(crate) fn new(file: &'a Path, text: &'a str) -> Self {
        Yaml {
            file,
            text,
            source: Source::Block(Block::new(text), 0),
            depth: 0,
            problems: Vec::new(),
        }
    }

    pub(crate) fn file(&self) -> &'a Path {
        self.file
    }

    pub(crate) fn problem(&mut self, position: Position, message: impl Into<String>) {
        self.problems.push(Diagnostic::at(self.file, position, message));
    }

    pub(crate) fn problem_with_hint(
        &mut self,
        position: Position,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.problems
            .push(Diagnostic::at(self.file, position, message).with_hint(hint));
    }

    fn event(&mut self) -> Result<(Event<'a>, Position)> {
        match &mut self.source {
            Source::Full(full) => full.next(),
            Source::Block(block, given) => match block.next() {
                Ok(found) => {
                    *given += 1;
                    Ok(found)
                }
                Err(block::Unsupported) => {
                    let mut full = Full::new(self.file, self.text);
                    for _ in 0..*given {
                        full.next()?;
                    }
                    let found = full.next();
                    self.source = Source::Full(Box::new(full));
                    found
                }
            },
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Position)> {
        let (event, position) = self.event()?;
        match event {
            Event::SequenceStart | Event::MappingStart => {
                self.depth += 1;
                if self.depth > DEPTH_LIMIT {
                    return Err(broken(
                        self.file,
                        position,
                        format!("lists and mappings are nested more than {DEPTH_LIMIT} deep"),
                    ));
                }
            }
            Event::SequenceEnd | Event::MappingEnd => self.depth -= 1,
            _ => {}
        }
        Ok((event, position))
    }

    /// Returns the next node, which must exist.
    pub(crate) fn node(&mut self) -> Result<Node<'a>> {
        match self.next()? {
            (Event::Scalar(scalar), _) => Ok(Node::Scalar(scalar)),
            (Event::SequenceStart, position) => Ok(Node::Sequence(position)),
            (Event::MappingStart, position) => Ok(Node::Mapping(position)),
            (_, position) => Err(broken(self.file, position, "a value is missing here")),
        }
    }

    /// Returns the next item of the open sequence.
    pub(crate) fn item(&mut self) -> Result<Option<Node<'a>>> {
        match self.next()? {
            (Event::SequenceEnd, _) => Ok(None),
            (Event::Scalar(scalar), _) => Ok(Some(Node::Scalar(scalar))),
            (Event::SequenceStart, position) => Ok(Some(Node::Sequence(position))),
            (Event::MappingStart, position) => Ok(Some(Node::Mapping(position))),
            (_, position) => Err(broken(self.file, position, "an item is missing here")),
        }
    }

    /// Returns the next key of the open mapping. The caller must read its node next.
    pub(crate) fn key(&mut self) -> Result<Option<Scalar<'a>>> {
        match self.next()? {
            (Event::MappingEnd, _) => Ok(None),
            (Event::Scalar(scalar), _) => Ok(Some(scalar)),
            (_, position) => Err(broken(self.file, position, "a key must be text")),
        }
    }

    /// Returns the next key of a mapping with fixed keys. Skips keys `x-…`; reports and skips other unknown
    /// keys and repeated keys.
    pub(crate) fn field(&mut self, fields: &mut Fields) -> Result<Option<(&'static str, Position)>> {
        while let Some(key) = self.key()? {
            let name = key.text.as_ref();
            let Some(n) = fields.legal.iter().position(|legal| *legal == name) else {
                if !name.starts_with("x-") {
                    self.illegal_key(&key, fields);
                }
                self.skip_value()?;
                continue;
            };
            let bit = 1_u32 << n;
            if fields.seen & bit != 0 {
                self.problem(
                    key.position,
                    format!("The key {name} appears twice in element {}", fields.element),
                );
                self.skip_value()?;
                continue;
            }
            fields.seen |= bit;
            return Ok(Some((fields.legal[n], key.position)));
        }
        Ok(None)
    }

    fn illegal_key(&mut self, key: &Scalar<'_>, fields: &Fields) {
        let name = key.text.as_ref();
        let legal = format!("legal keys are {}", fields.legal.join(", "));
        let kind = if fields.unsupported.contains(&name) {
            "Unsupported"
        } else {
            "Illegal"
        };
        let hint = match near_spelling(name, fields.legal.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? {legal}"),
            None => legal,
        };
        self.problem_with_hint(
            key.position,
            format!("{kind} key {name} for element {}", fields.element),
            hint,
        );
    }

    /// Skips the next node.
    pub(crate) fn skip_value(&mut self) -> Result<()> {
        let node = self.node()?;
        self.skip(&node)
    }

    /// Skips the rest of a node.
    pub(crate) fn skip(&mut self, node: &Node<'_>) -> Result<()> {
        if matches!(node, Node::Scalar(_)) {
            return Ok(());
        }
        let outside = self.depth - 1;
        while self.depth > outside {
            self.next()?;
        }
        Ok(())
    }

    fn wrong_kind(&mut self, node: &Node<'_>, what: &str, wanted: &str) -> Result<()> {
        self.problem(
            node.position(),
            format!("{what} must be {wanted}, not {}", node.kind()),
        );
        self.skip(node)
    }

    /// Returns whether the node is a mapping, which the caller must read then. An empty value (`key:`) counts
    /// as absent. Reports other nodes.
    pub(crate) fn is_mapping(&mut self, node: &Node<'_>, what: &str) -> Result<bool> {
        match node {
            Node::Mapping(_) => return Ok(true),
            Node::Scalar(scalar) if scalar.is_null() => {}
            _ => self.wrong_kind(node, what, "a mapping")?,
        }
        Ok(false)
    }

    /// Returns whether the next node is a mapping, see [`Yaml::is_mapping`].
    pub(crate) fn mapping(&mut self, what: &str) -> Result<bool> {
        let node = self.node()?;
        self.is_mapping(&node, what)
    }

    /// Returns whether the next node is a sequence, which the caller must read then. An empty value counts as
    /// absent.
    pub(crate) fn sequence(&mut self, what: &str) -> Result<bool> {
        match self.node()? {
            Node::Sequence(_) => return Ok(true),
            Node::Scalar(scalar) if scalar.is_null() => {}
            node => self.wrong_kind(&node, what, "a list")?,
        }
        Ok(false)
    }

    /// Reads a text. Reports collections and empty values.
    pub(crate) fn text(&mut self, what: &str) -> Result<Option<Scalar<'a>>> {
        match self.node()? {
            Node::Scalar(scalar) if !scalar.is_null() => Ok(Some(scalar)),
            node => {
                self.wrong_kind(&node, what, "text")?;
                Ok(None)
            }
        }
    }

    /// Reads a text, which may be empty or `null`.
    pub(crate) fn any_text(&mut self, what: &str) -> Result<Option<Scalar<'a>>> {
        match self.node()? {
            Node::Scalar(scalar) => Ok(Some(scalar)),
            node => {
                self.wrong_kind(&node, what, "text")?;
                Ok(None)
            }
        }
    }

    /// Reads a boolean.
    pub(crate) fn boolean(&mut self, what: &str) -> Result<Option<bool>> {
        let Some(scalar) = self.any_text(what)? else {
            return Ok(None);
        };
        match scalar.text.as_ref() {
            "true" => return Ok(Some(true)),
            "false" => return Ok(Some(false)),
            _ => {}
        }
        let value = crate::profiles::parse_bool(&scalar.text);
        if value.is_none() {
            self.problem(
                scalar.position,
                format!("{what} must be true or false, not `{}`", scalar.text),
            );
        }
        Ok(value)
    }

    /// Reads an integer.
    pub(crate) fn number(&mut self, what: &str) -> Result<Option<u64>> {
        let Some(scalar) = self.any_text(what)? else {
            return Ok(None);
        };
        let value = scalar.text.parse().ok();
        if value.is_none() {
            self.problem(
                scalar.position,
                format!("{what} must be a whole number, not `{}`", scalar.text),
            );
        }
        Ok(value)
    }

    /// Checks that nothing follows the document.
    pub(crate) fn end(&mut self) -> Result<()> {
        match self.next()? {
            (Event::End, _) => Ok(()),
            (_, position) => Err(broken(self.file, position, "the document should end here")),
        }
    }
}

/// Returns a fatal error. Other tools search for this wording.
fn broken(file: &Path, position: Position, message: impl AsRef<str>) -> Stop {
    let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    Stop::Broken(Box::new(Diagnostic::at(
        file,
        position,
        format!(
            "Exception while parsing yaml file {}: {}",
            path.display(),
            message.as_ref()
        ),
    )))
}

#[cfg(test)]
mod tests;
