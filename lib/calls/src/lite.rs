//! Calls of `pegasus-lite`, which runs a job in a directory of its own on its node. Of the files beside
//! the DAG file, such a task needs only its description and those that it names.
//!
//! The task of a cluster needs the files of its jobs, too, and says so by `--cluster`.
//!
//! ```text
//! [/usr/bin/env NAME=VALUE…] [FOLDER/]pegasus-lite [--part START:LENGTH] DESCRIPTION
//! ```

use std::fmt;
use std::str::FromStr;

use crate::{LITE, env_words, name};

/// Marks the job of a cluster.
const CLUSTER: &[u8] = b"--cluster";

/// A part of a file: large plans keep the lists and descriptions of all jobs in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset of its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A text that is no part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected START:LENGTH, two whole numbers")]
pub struct BadPart;

impl FromStr for Part {
    type Err = BadPart;

    fn from_str(text: &str) -> Result<Self, BadPart> {
        let (start, length) = text.split_once(':').ok_or(BadPart)?;
        Ok(Part {
            start: start.parse().map_err(|_| BadPart)?,
            length: length.parse().map_err(|_| BadPart)?,
        })
    }
}

/// As the value of the option `--part`.
impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.start, self.length)
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiteCall<'w> {
    /// Number of the word that names the program.
    pub program: usize,
    /// Where the description is in its file, if others are there, too.
    pub part: Option<Part>,
    /// The file with the description.
    pub file: &'w [u8],
}

/// Returns whether a command is a call, by its first word and the others. Most commands are none, so the
/// others are hardly ever read.
pub fn is_lite<W: AsRef<[u8]>>(first: &[u8], mut rest: impl Iterator<Item = W> + Clone) -> bool {
    if name(first) == b"env" {
        let own = env_words(rest.clone());
        rest.nth(own).is_some_and(|word| name(&word) == LITE.as_bytes()) && is_one_job(rest)
    } else {
        name(first) == LITE.as_bytes() && is_one_job(rest)
    }
}

fn is_one_job<W: AsRef<[u8]>>(mut arguments: impl Iterator<Item = W>) -> bool {
    arguments.next().is_some_and(|word| word.as_ref() != CLUSTER)
}

impl<'w> LiteCall<'w> {
    /// Reads the words of a command. `None` if it is no call.
    #[must_use]
    pub fn new<W: AsRef<[u8]>>(words: &'w [W]) -> Option<Self> {
        let (first, rest) = words.split_first()?;
        let program = match name(first) {
            b"env" => 1 + env_words(rest),
            _ => 0,
        };
        let (first, arguments) = words.get(program..)?.split_first()?;
        let (part, file) = match arguments {
            [file] => (None, file.as_ref()),
            [option, part, file] if option.as_ref() == b"--part" => {
                let part = std::str::from_utf8(part.as_ref()).ok()?;
                (Some(part.parse().ok()?), file.as_ref())
            }
            _ => return None,
        };
        (name(first) == LITE.as_bytes() && !file.starts_with(b"-")).then_some(Self { program, part, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let read = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let (first, rest) = words.split_first().unwrap_or((&"", &[]));
            let call = LiteCall::new(&words).map(|call| (call.program, call.part, call.file.to_vec()));
            assert!(call.is_none() || is_lite(first.as_bytes(), rest.iter()), "{text}");
            call
        };
        assert_eq!(read("/opt/pegasus-lite a"), Some((0, None, b"a".to_vec())));
        let part = Some(Part { start: 7, length: 9 });
        let whole = "/usr/bin/env A=b -u C pegasus-lite --part 7:9 a";
        assert_eq!(read(whole), Some((4, part, b"a".to_vec())));
        assert_eq!(part.map(|part| part.to_string()).as_deref(), Some("7:9"));
        for other in [
            "",
            "pegasus-lite",
            "pegasus-lite --part 7 a",
            "pegasus-lite --help",
            "pegasus-lite --cluster a",
            "pegasus-lite a b",
            "my-pegasus-lite a",
            "/usr/bin/env",
            "/usr/bin/env A=b",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
