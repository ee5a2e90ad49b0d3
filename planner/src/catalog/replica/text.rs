//! Replica catalogs as text: lines `LFN PFN name="value" …` (types File, Regex and SimpleFile; cache files).

use std::path::Path;

use super::{Replica, ReplicaCatalog, ReplicaEntry};
use crate::error::{InputError, InputErrors};
use crate::model::Position;

/// Reads a whole file. An absolute path becomes a `file://` URL, as in Pegasus.
pub(super) fn read(path: &Path, text: &str) -> Result<ReplicaCatalog, InputErrors> {
    let mut catalog = ReplicaCatalog::default();
    let mut problems = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if let Err((column, message)) = read_line(line, &mut catalog) {
            let position = Position {
                line: u32::try_from(n + 1).unwrap_or(u32::MAX),
                column: u32::try_from(column).unwrap_or(u32::MAX),
            };
            problems.push(InputError::at(path, position, message));
        }
    }
    InputErrors::check(problems)?;
    Ok(catalog)
}

/// Column and message of a problem.
type LineError = (usize, String);

fn read_line(line: &str, catalog: &mut ReplicaCatalog) -> Result<(), LineError> {
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
        .push(entry)
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
