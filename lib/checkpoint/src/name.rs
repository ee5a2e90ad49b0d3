//! Names: prefixes of files, and directories of tasks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum characters of a prefix.
pub const MAX_PREFIX: usize = 20;

/// Beginning of the prefixes of files that `pegasus-lite` saves for a program that does not do so itself.
pub const WATCHED: &str = "pegasusLite";

/// Maximum bytes of the name of a directory.
const MAX_DIRECTORY: usize = 255;

/// A name that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// It is no prefix.
    #[error("{0:?} is no prefix of a checkpoint file: these have 1 to {MAX_PREFIX} letters and digits")]
    Prefix(String),
    /// The directory of the task would have too long a name.
    #[error("the name of the task is too long: its checkpoints have no directory")]
    LongTask,
}

/// The prefix of a checkpoint file: 1 to 20 letters and digits. All ranks of a task save files with the same
/// prefixes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(String);

impl Prefix {
    /// Returns the prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether `pegasus-lite` saves the file: see [`WATCHED`].
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.0.starts_with(WATCHED)
    }
}

impl TryFrom<String> for Prefix {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        match is_plain && (1..=MAX_PREFIX).contains(&text.len()) {
            true => Ok(Self(text)),
            false => Err(InvalidName::Prefix(text)),
        }
    }
}

impl TryFrom<&str> for Prefix {
    type Error = InvalidName;

    fn try_from(text: &str) -> Result<Self, InvalidName> {
        Self::try_from(text.to_owned())
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the name of the directory for a task: bytes other than letters, digits and `._-` are `%XX`, and so
/// is a dot at the beginning.
///
/// # Errors
/// It would be too long.
pub fn task_directory(task: &[u8]) -> Result<String, InvalidName> {
    let mut name = String::with_capacity(task.len());
    for (at, byte) in task.iter().enumerate() {
        let is_plain =
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || (*byte == b'.' && at > 0);
        if is_plain {
            name.push(char::from(*byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    match (1..=MAX_DIRECTORY).contains(&name.len()) {
        true => Ok(name),
        false => Err(InvalidName::LongTask),
    }
}

/// Returns the name of the task that has this directory, or `None` if none has.
#[must_use]
pub fn task_name(directory: &str) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(directory.len());
    let mut bytes = directory.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            name.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        name.push(u8::try_from(high << 4 | low).ok()?);
    }
    // Only what `task_directory` writes.
    (task_directory(&name).as_deref() == Ok(directory)).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefixes_have_letters_and_digits() {
        for good in ["a", "fields", "0", "abcdefghij0123456789"] {
            assert_eq!(Prefix::try_from(good).unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a.0", "../x", "ä", "abcdefghij01234567890", "a\0"] {
            assert!(Prefix::try_from(bad).is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<Prefix>("\"a/b\"").is_err());
    }

    #[test]
    fn directories_lead_nowhere_else() {
        assert_eq!(task_directory(b"sim_ID01").unwrap(), "sim_ID01");
        assert_eq!(task_directory(b"..").unwrap(), "%2E.");
        assert_eq!(task_directory(b"a/b%\xc3\xa4").unwrap(), "a%2Fb%25%C3%A4");
        assert_eq!(task_directory(b""), Err(InvalidName::LongTask));
        assert_eq!(task_directory(&[b'x'; 256]), Err(InvalidName::LongTask));
        for other in ["%", "%2", "%2e.", "%41", ".", "..", "a/b", "%GG"] {
            assert_eq!(task_name(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn each_task_has_a_directory_of_its_own(task in prop::collection::vec(any::<u8>(), 1..80)) {
            let directory = task_directory(&task).unwrap();
            prop_assert!(!directory.contains('/') && !directory.starts_with('.'));
            prop_assert_eq!(task_name(&directory), Some(task));
        }
    }
}
