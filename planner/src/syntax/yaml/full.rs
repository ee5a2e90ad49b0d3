//! Full YAML reader, based on `saphyr-parser`. It records anchored nodes and replays them for aliases, within
//! limits.

use std::path::Path;

use rustc_hash::FxHashMap;
use saphyr_parser::{Event as Parsed, Marker, Parser, ScalarStyle, StrInput};

use super::{Event, Result, Scalar, broken};
use crate::diagnostic::Position;

/// Maximum nodes that all aliases expand to. An alias bomb has billions.
const ALIAS_LIMIT: usize = 1_000_000;
/// Maximum depth of nested aliases.
const ALIAS_DEPTH_LIMIT: usize = 32;

#[derive(Clone, Debug)]
enum Recorded<'a> {
    Event(Event<'a>),
    Alias(usize),
}

/// An anchored node that is being recorded.
#[derive(Debug)]
struct Open {
    anchor: usize,
    start: usize,
    /// Number of open collections, including itself.
    depth: u32,
}

pub(super) struct Full<'a> {
    file: &'a Path,
    parser: Parser<'a, StrInput<'a>>,
    /// Events of anchored nodes.
    tape: Vec<(Recorded<'a>, Position)>,
    open: Vec<Open>,
    anchors: FxHashMap<usize, (usize, usize)>,
    /// Parts of the tape that are being replayed, the innermost last.
    playing: Vec<(usize, usize)>,
    played: usize,
    documents: u32,
}

impl<'a> Full<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Full {
            file,
            parser: Parser::new_from_str(text),
            tape: Vec::new(),
            open: Vec::new(),
            anchors: FxHashMap::default(),
            playing: Vec::new(),
            played: 0,
            documents: 0,
        }
    }

    pub(super) fn next(&mut self) -> Result<(Event<'a>, Position)> {
        loop {
            if let Some((at, end)) = self.playing.last_mut() {
                if at == end {
                    self.playing.pop();
                    continue;
                }
                let (recorded, position) = self.tape[*at].clone();
                *at += 1;
                self.played += 1;
                if self.played > ALIAS_LIMIT {
                    return Err(broken(
                        self.file,
                        position,
                        format!("the aliases of this file expand to more than {ALIAS_LIMIT} nodes"),
                    ));
                }
                match recorded {
                    Recorded::Event(event) => return Ok((event, position)),
                    Recorded::Alias(anchor) => self.replay(anchor, position)?,
                }
                continue;
            }
            if let Some(found) = self.parse()? {
                return Ok(found);
            }
        }
    }

    /// Returns the next event of the parser, `None` for events without meaning here.
    fn parse(&mut self) -> Result<Option<(Event<'a>, Position)>> {
        let (parsed, span) = match self.parser.next_event() {
            None => return Ok(Some((Event::End, Position::default()))),
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                return Err(broken(self.file, position(error.marker()), error.info()));
            }
        };
        let position = position(&span.start);
        let (event, anchor) = match parsed {
            Parsed::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                (
                    Event::Scalar(Scalar {
                        text,
                        plain,
                        position,
                    }),
                    anchor,
                )
            }
            Parsed::SequenceStart(anchor, _) => (Event::SequenceStart, anchor),
            Parsed::MappingStart(anchor, _) => (Event::MappingStart, anchor),
            Parsed::SequenceEnd => (Event::SequenceEnd, 0),
            Parsed::MappingEnd => (Event::MappingEnd, 0),
            Parsed::Alias(anchor) => {
                if !self.open.is_empty() {
                    self.tape.push((Recorded::Alias(anchor), position));
                }
                self.replay(anchor, position)?;
                return Ok(None);
            }
            Parsed::StreamEnd => (Event::End, 0),
            Parsed::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(broken(self.file, position, "a second document starts here"));
                }
                return Ok(None);
            }
            Parsed::DocumentEnd | Parsed::StreamStart | Parsed::Nothing => return Ok(None),
        };
        if anchor > 0 || !self.open.is_empty() {
            self.record(&event, position, anchor);
        }
        Ok(Some((event, position)))
    }

    fn record(&mut self, event: &Event<'a>, position: Position, anchor: usize) {
        let start = self.tape.len();
        self.tape.push((Recorded::Event(event.clone()), position));
        match event {
            Event::SequenceStart | Event::MappingStart => {
                if let Some(open) = self.open.last_mut() {
                    open.depth += 1;
                }
                if anchor > 0 {
                    self.open.push(Open {
                        anchor,
                        start,
                        depth: 1,
                    });
                }
            }
            Event::SequenceEnd | Event::MappingEnd => {
                // The end of an anchored node also counts for the anchored node around it.
                while let Some(open) = self.open.last_mut() {
                    open.depth -= 1;
                    if open.depth > 0 {
                        break;
                    }
                    self.anchors.insert(open.anchor, (open.start, self.tape.len()));
                    self.open.pop();
                }
            }
            Event::Scalar(_) if anchor > 0 => {
                self.anchors.insert(anchor, (start, start + 1));
            }
            Event::Scalar(_) | Event::End => {}
        }
    }

    fn replay(&mut self, anchor: usize, position: Position) -> Result<()> {
        let Some(&part) = self.anchors.get(&anchor) else {
            return Err(broken(
                self.file,
                position,
                "an alias is inside the node that it names",
            ));
        };
        if self.playing.len() >= ALIAS_DEPTH_LIMIT {
            return Err(broken(
                self.file,
                position,
                format!("aliases are nested more than {ALIAS_DEPTH_LIMIT} deep"),
            ));
        }
        self.playing.push(part);
        Ok(())
    }
}

fn position(marker: &Marker) -> Position {
    Position {
        line: u32::try_from(marker.line()).unwrap_or(u32::MAX),
        column: u32::try_from(marker.col() + 1).unwrap_or(u32::MAX),
    }
}
