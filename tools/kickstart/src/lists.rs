//! Files named on the command line: lists of files to examine (`-S`, `-s`), and the argument file (`-I`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::pipes::{self, Waiting};
use crate::words::{ExpandError, Lookup, split_command};

/// A file to examine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Logical name, if given.
    pub lfn: Option<Vec<u8>>,
    /// Name of the file.
    pub pfn: PathBuf,
    /// The list says that the job must write this file: it follows the line [`REQUIRED`].
    pub required: bool,
}

/// A comment in a list of outputs: the files on the following lines are required.
pub const REQUIRED: &[u8] = b"# required";

/// Largest list or argument file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The name of the list cannot be expanded.
    #[error("{0}")]
    Name(#[from] ExpandError),
    /// The name is empty.
    #[error("`@` without the name of a list")]
    NoName,
    /// The list cannot be read.
    #[error("cannot read the list {path}: {error}")]
    Read {
        /// Name of the list.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Returns the files that a value of `-S` or `-s` names: `[lfn=]pfn` or `@list`, the list relative to
/// `directory`.
///
/// # Errors
/// The list cannot be read.
pub fn entries(
    value: &[u8],
    directory: &Path,
    lookup: &Lookup<'_>,
    waiting: &mut Waiting<'_>,
) -> Result<Vec<Listed>, ListError> {
    let [b'@', name @ ..] = value else {
        return Ok(vec![listed(value)]);
    };
    let name = split_command(name, lookup)?
        .into_iter()
        .next()
        .ok_or(ListError::NoName)?;
    let path = directory.join(OsStr::from_bytes(&name));
    let text = read(&path, waiting).map_err(|error| ListError::Read { path, error })?;
    Ok(parse_list(&text))
}

/// Reads a list or an argument file of at most [`MAX_BYTES`].
///
/// # Errors
/// The file cannot be read, or is larger.
pub fn read(path: &Path, waiting: &mut Waiting<'_>) -> io::Result<Vec<u8>> {
    pipes::read(path, MAX_BYTES, waiting)
}

/// Parses a list: one file per line, `#` starts a comment, empty lines are skipped.
#[must_use]
pub fn parse_list(text: &[u8]) -> Vec<Listed> {
    let mut required = false;
    text.split(|&byte| byte == b'\n')
        .filter_map(|line| {
            required |= line == REQUIRED;
            let line = line
                .split(|&byte| byte == b'#')
                .next()
                .unwrap_or_default()
                .trim_ascii_end();
            (!line.is_empty()).then(|| Listed {
                required,
                ..listed(line)
            })
        })
        .collect()
}

fn listed(text: &[u8]) -> Listed {
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    match text.iter().position(|&byte| byte == b'=') {
        Some(at) => Listed {
            lfn: Some(text[..at].to_vec()),
            pfn: path(&text[at + 1..]),
            required: false,
        },
        None => Listed {
            lfn: None,
            pfn: path(text),
            required: false,
        },
    }
}

/// Parses an argument file: program and arguments, one per line. Empty lines and carriage returns at the end
/// of a line are dropped.
#[must_use]
pub fn parse_arguments(text: &[u8]) -> Vec<OsString> {
    text.split(|&byte| byte == b'\n')
        .map(|mut line| {
            while let [head @ .., b'\r'] = line {
                line = head;
            }
            line
        })
        .filter(|line| !line.is_empty())
        .map(|line| OsString::from_vec(line.to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    fn file(lfn: Option<&str>, pfn: &str) -> Listed {
        Listed {
            lfn: lfn.map(|lfn| lfn.as_bytes().to_vec()),
            pfn: pfn.into(),
            required: false,
        }
    }

    fn entries(value: &[u8], directory: &Path, lookup: &Lookup<'_>) -> Result<Vec<Listed>, ListError> {
        pipes::within(Duration::ZERO, |waiting| {
            super::entries(value, directory, lookup, waiting)
        })
    }

    #[test]
    fn files_after_the_mark_are_required() {
        let files = parse_list(b"a=a\n# comment\n# required\nb=b\n\n# other\nc\n");
        let required: Vec<bool> = files.iter().map(|file| file.required).collect();
        assert_eq!(required, [false, true, true]);
    }

    #[test]
    fn lists_have_comments_and_empty_lines() {
        let text = b"a=b # c\n\n# x\n  \nplain  \nl=p=q\nlast=x";
        let expected = [
            file(Some("a"), "b"),
            file(None, "plain"),
            file(Some("l"), "p=q"),
            file(Some("last"), "x"),
        ];
        assert_eq!(parse_list(text), expected);
    }

    #[test]
    fn values_are_files_or_lists() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.lof"), "x=y\n").unwrap();
        let lookup = |name: &[u8]| (name == b"N").then(|| b"a.lof".to_vec());
        assert_eq!(
            entries(b"a=b", folder.path(), &lookup).unwrap(),
            [file(Some("a"), "b")]
        );
        assert_eq!(
            entries(b"@$N", folder.path(), &lookup).unwrap(),
            [file(Some("x"), "y")]
        );
        let error = entries(b"@nofile", folder.path(), &lookup)
            .unwrap_err()
            .to_string();
        assert!(error.contains("nofile"), "{error}");
        let huge = std::fs::File::create(folder.path().join("huge")).unwrap();
        huge.set_len(MAX_BYTES + 1).unwrap();
        let error = entries(b"@huge", folder.path(), &lookup).unwrap_err().to_string();
        assert!(
            error.ends_with("huge: larger than 64 MiB, the most that is read"),
            "{error}"
        );
        assert!(matches!(
            entries(b"@", folder.path(), &lookup),
            Err(ListError::NoName)
        ));
    }

    #[test]
    fn argument_files_have_one_word_per_line() {
        assert_eq!(
            parse_arguments(b"/bin/echo\r\n\n a b \nlast"),
            ["/bin/echo", " a b ", "last"]
        );
    }
}
