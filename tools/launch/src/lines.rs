//! What the last words of a command line name: a program with its arguments, or a load file.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::error::LaunchError;
use crate::loadfile::{self, Line, Ranks};

/// Most bytes of a load file.
const MAX_LOAD_FILE: u64 = 64 << 20;

/// The programs, and whether they are those of a load file.
///
/// # Errors
/// The load file cannot be read, or says something else.
pub(crate) fn of_words(words: &[OsString]) -> Result<(Vec<Line>, bool), LaunchError> {
    let first = words.first().map(Path::new).unwrap_or(Path::new(""));
    let is_load_file = words.len() == 1
        && fs::metadata(first).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 == 0);
    if !is_load_file {
        let words = words.iter().map(|word| word.as_bytes().to_vec());
        let line = Line {
            ranks: Ranks::Others,
            words: words.collect(),
            hosts: Vec::new(),
        };
        return Ok((vec![line], false));
    }
    let text = pmc_files::read(first, MAX_LOAD_FILE).map_err(|error| LaunchError::File {
        path: first.to_owned(),
        why: pmc_dag::reason(&error).to_string(),
    })?;
    let lines = loadfile::parse(&text).map_err(|error| LaunchError::LoadFile {
        path: first.to_owned(),
        line: error.line,
        why: error.why,
    })?;
    Ok((lines, true))
}
