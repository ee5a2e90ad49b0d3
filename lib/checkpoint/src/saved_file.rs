//! A file as nodes and the master of a run speak of it.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Prefix, Sidecar, seconds};

/// Digits of a key, behind its letter: a key has letters and digits only, and at most 64 of them.
const KEY_DIGITS: usize = 32;

/// A file that a task has saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFile {
    /// The id of the store.
    pub run: String,
    /// Directory of the task: see [`task_directory`](crate::task_directory).
    pub task: String,
    /// Submit number of the attempt that has written it.
    pub submit: u64,
    /// Number of the series.
    pub series: u64,
    /// Prefix of the file.
    pub prefix: Prefix,
    /// Rank of the process that has written it.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// When it was closed: seconds since 1970, in whole milliseconds.
    #[serde(deserialize_with = "seconds::required")]
    pub closed: f64,
}

impl SavedFile {
    /// The file of a sidecar.
    #[must_use]
    pub fn of(sidecar: &Sidecar) -> Self {
        Self {
            run: sidecar.run.clone(),
            task: sidecar.task.clone(),
            submit: sidecar.submit,
            series: sidecar.series,
            prefix: sidecar.prefix.clone(),
            rank: sidecar.rank,
            ranks: sidecar.ranks,
            bytes: sidecar.bytes,
            closed: seconds::rounded(sidecar.closed),
        }
    }

    /// The key by which other nodes ask for the bytes.
    #[must_use]
    pub fn key(&self) -> String {
        self.key_with('c')
    }

    /// The key by which other nodes ask for the sidecar.
    #[must_use]
    pub fn sidecar_key(&self) -> String {
        self.key_with('s')
    }

    /// The files of two attempts have different keys, even if they are of one series.
    fn key_with(&self, letter: char) -> String {
        let Self {
            run,
            task,
            submit,
            series,
            prefix,
            rank,
            ..
        } = self;
        // None of these has a slash.
        let name = format!("{run}/{task}/{submit}/{series}/{prefix}/{rank}");
        let digits = Sha256::digest(name.as_bytes());
        let digits = digits.iter().map(|byte| format!("{byte:02x}"));
        let digits = digits.take(KEY_DIGITS / 2);
        std::iter::once(letter.to_string()).chain(digits).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A node that gets a sidecar from another one compares it with what the master says of the file.
        #[test]
        fn the_text_of_a_sidecar_is_that_of_the_same_file(closed in 0.0..1e11_f64) {
            let sidecar = Sidecar {
                ranks: 1,
                series: 1,
                closed,
                ..Sidecar::new("ab".to_owned(), "t".to_owned(), Prefix::try_from("p").unwrap())
            };
            let read = Sidecar::parse(&sidecar.text()).unwrap();
            prop_assert_eq!(SavedFile::of(&read), SavedFile::of(&sidecar));
            let again = Sidecar::parse(&read.text()).unwrap();
            prop_assert_eq!(again, read);
        }
    }

    #[test]
    fn keys_tell_files_from_each_other() {
        let sidecar = Sidecar::new("ab".to_owned(), "t".to_owned(), Prefix::try_from("p").unwrap());
        let file = SavedFile::of(&sidecar);
        let key = file.key();
        assert_eq!(key.len(), 1 + KEY_DIGITS);
        assert!(key.starts_with('c') && key.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(file.sidecar_key()[1..], key[1..]);
        let other = |change: fn(&mut SavedFile)| {
            let mut other = file.clone();
            change(&mut other);
            other.key()
        };
        assert_ne!(other(|file| file.rank = 1), key);
        assert_ne!(other(|file| file.series = 1), key);
        assert_ne!(other(|file| file.submit = 1), key);
        assert_ne!(other(|file| file.run = "cd".to_owned()), key);
    }
}
