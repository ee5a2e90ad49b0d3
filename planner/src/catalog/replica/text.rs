//! Replica catalogs as text: lines `LFN PFN name="value" …` (types File, Regex and SimpleFile; cache files).

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use super::{Replica, ReplicaCatalog, ReplicaEntry, Wanted};
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::expand::{ExpandEnv, expand};
use crate::model::Position;
use crate::syntax::text::{decode, io_message, open};

/// Bytes of a large file that are read at a time. The rest of the last line comes in addition.
pub(super) const PIECE: u64 = 8 << 20;
/// Maximum bytes of the last line of a piece beyond it.
const MAX_LINE: u64 = 64 << 20;
/// Problems after which no more pieces are read.
const MANY_PROBLEMS: usize = 1000;

/// Reads a file piece by piece and expands its variables: memory depends on what is wanted, not on the file.
pub(super) fn load(path: &Path, env: &ExpandEnv, wanted: Wanted<'_>) -> Result<ReplicaCatalog, InputErrors> {
    let failed =
        |error: io::Error| Diagnostic::in_file(path, format!("cannot be read: {}", io_message(&error)));
    let mut file = BufReader::new(open(path).map_err(failed)?);
    let mut catalog = ReplicaCatalog::default();
    let mut problems = Vec::new();
    let mut lines_before = 0;
    loop {
        let mut piece = Vec::new();
        (&mut file).take(PIECE).read_to_end(&mut piece).map_err(failed)?;
        let rest = (&mut file)
            .take(MAX_LINE)
            .read_until(b'\n', &mut piece)
            .map_err(failed)?;
        if piece.is_empty() || problems.len() > MANY_PROBLEMS {
            break;
        }
        let lines = u32::try_from(memchr::memchr_iter(b'\n', &piece).count()).unwrap_or(u32::MAX);
        if rest as u64 == MAX_LINE && !piece.ends_with(b"\n") {
            let position = Position {
                line: lines_before + lines + 1,
                column: 0,
            };
            return Err(Diagnostic::at(path, position, "the line is too long").into());
        }
        let found = decode(path, piece)
            .map_err(InputErrors::from)
            .and_then(|text| add_lines(path, &expand(path, &text, env)?, &mut catalog, wanted));
        for mut problem in found.err().iter().flat_map(InputErrors::problems).cloned() {
            if let Some(position) = &mut problem.position {
                position.line += lines_before;
            }
            problems.push(problem);
        }
        lines_before += lines;
    }
    InputErrors::check(problems)?;
    Ok(catalog)
}

/// Reads a whole file. An absolute path becomes a `file://` URL, as in Pegasus.
pub(super) fn read(path: &Path, text: &str, wanted: Wanted<'_>) -> Result<ReplicaCatalog, InputErrors> {
    let mut catalog = ReplicaCatalog::default();
    add_lines(path, text, &mut catalog, wanted)?;
    Ok(catalog)
}

fn add_lines(
    path: &Path,
    text: &str,
    catalog: &mut ReplicaCatalog,
    wanted: Wanted<'_>,
) -> Result<(), InputErrors> {
    let mut problems = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if let Err((column, message)) = read_line(line, catalog, wanted) {
            let position = Position {
                line: u32::try_from(n + 1).unwrap_or(u32::MAX),
                column: u32::try_from(column).unwrap_or(u32::MAX),
            };
            problems.push(Diagnostic::at(path, position, message));
        }
    }
    InputErrors::check(problems)
}

/// Column and message of a problem.
type LineError = (usize, String);

fn read_line(line: &str, catalog: &mut ReplicaCatalog, wanted: Wanted<'_>) -> Result<(), LineError> {
    let mut words = Words {
        line,
        at: 0,
        counted: 0,
        column: 1,
    };
    let Some((lfn, lfn_column)) = words.next()? else {
        return Ok(());
    };
    let Some((mut pfn, _)) = words.next()? else {
        return Err((lfn_column, format!("the line has no location for {lfn}")));
    };
    if pfn.starts_with('/') {
        pfn.insert_str(0, "file://");
    }
    let mut entry = ReplicaEntry {
        lfn,
        ..ReplicaEntry::default()
    };
    let mut site = None;
    while let Some((attribute, column)) = words.next()? {
        let Some((name, value)) = attribute.split_once('=') else {
            return Err((
                column,
                format!("`{attribute}` is not an attribute, expected name=\"value\""),
            ));
        };
        match name {
            "site" | "pool" => site = Some(value.to_owned()),
            "regex" => entry.regex = crate::profiles::parse_bool(value).unwrap_or(false),
            // A priority of the replica, not metadata of the file.
            "priority" => {}
            _ => {
                entry.metadata.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    entry.replicas.push(Replica { pfn, site });
    catalog
        .push_if(wanted, entry)
        .map_err(|error| (lfn_column, error.to_string()))
}

struct Words<'a> {
    line: &'a str,
    at: usize,
    /// Offset up to which characters are counted, and its column.
    counted: usize,
    column: usize,
}

impl Words<'_> {
    /// Returns the next word and its column, `None` at the end of the line or at a comment.
    fn next(&mut self) -> Result<Option<(String, usize)>, LineError> {
        let rest = &self.line[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Ok(None);
        }
        self.column += self.line[self.counted..self.at].chars().count();
        self.counted = self.at;
        let column = self.column;
        let mut word = String::new();
        let mut quoted = false;
        let mut chars = trimmed.char_indices();
        let mut end = trimmed.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => quoted = !quoted,
                '\\' if quoted => match chars.next() {
                    Some((_, c @ ('"' | '\\'))) => word.push(c),
                    Some((_, c)) => {
                        word.push('\\');
                        word.push(c);
                    }
                    None => break,
                },
                c if c.is_whitespace() && !quoted => {
                    end = at;
                    break;
                }
                c => word.push(c),
            }
        }
        if quoted {
            return Err((column, "the quoted text does not end on its line".into()));
        }
        self.at += end;
        Ok(Some((word, column)))
    }
}
