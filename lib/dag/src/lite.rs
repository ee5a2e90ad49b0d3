//! Calls of `pegasus-lite`, which runs a job in a directory of its own on its node. Of the files beside
//! the DAG file, such a task needs only its description and those that it names.
//!
//! The task of a cluster needs the files of its jobs, too, and says so by `--cluster`.
//!
//! ```text
//! [/usr/bin/env NAME=VALUE…] [FOLDER/]pegasus-lite [--part START:LENGTH] DESCRIPTION
//! ```

use crate::words::Words;

const LITE: &[u8] = b"pegasus-lite";

/// Marks the job of a cluster.
const CLUSTER: &[u8] = b"--cluster";

/// Programs that set variables and then become another program.
const ENV_PROGRAMS: [&[u8]; 2] = [b"/usr/bin/env", b"/bin/env"];

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiteCall<'w> {
    /// Number of the word that names the program.
    pub program: usize,
    /// Start and length of the description in its file, if others are there, too.
    pub part: Option<(u64, u64)>,
    /// The file with the description.
    pub file: &'w [u8],
}

fn is_program(word: &[u8]) -> bool {
    let folder = word.strip_suffix(LITE);
    folder.is_some_and(|folder| folder.last().is_none_or(|byte| *byte == b'/'))
}

/// Returns whether a command is a call, by its first word and the others.
pub(crate) fn is_lite(first: &[u8], rest: &Words<'_>) -> bool {
    let is_env = ENV_PROGRAMS.contains(&first);
    if !is_env && !is_program(first) {
        return false;
    }
    let mut others = rest.clone().skip_while(|word| is_env && word.contains(&b'='));
    (!is_env || others.next().is_some_and(|word| is_program(&word)))
        && others.next().is_some_and(|word| *word != *CLUSTER)
}

impl<'w> LiteCall<'w> {
    /// Reads the words of a command. `None` if it is no call.
    #[must_use]
    pub fn new(words: &'w [Vec<u8>]) -> Option<Self> {
        let has_env = ENV_PROGRAMS.contains(&words.first()?.as_slice());
        let variables = words.iter().skip(1).take_while(|word| word.contains(&b'='));
        let program = if has_env { 1 + variables.count() } else { 0 };
        let (name, arguments) = words.get(program..)?.split_first()?;
        let (part, file) = match arguments {
            [file] => (None, file),
            [option, part, file] if option == b"--part" => (Some(read_part(part)?), file),
            _ => return None,
        };
        (is_program(name) && !file.starts_with(b"-")).then_some(Self { program, part, file })
    }
}

fn read_part(text: &[u8]) -> Option<(u64, u64)> {
    let (start, length) = std::str::from_utf8(text).ok()?.split_once(':')?;
    Some((start.parse().ok()?, length.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let read = |text: &str| {
            let words = crate::words::split(text.as_bytes());
            LiteCall::new(&words).map(|call| (call.program, call.part, call.file.to_vec()))
        };
        assert_eq!(read("/opt/pegasus-lite a"), Some((0, None, b"a".to_vec())));
        let whole = "/usr/bin/env A=b C=d pegasus-lite --part 7:9 'a b'";
        assert_eq!(read(whole), Some((3, Some((7, 9)), b"a b".to_vec())));
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
