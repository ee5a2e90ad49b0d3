//! What the hosts of an attempt agree on: from where it goes on.

use std::fs;
use std::io;
use std::path::Path;

use super::TaskStore;
use crate::StoreError;
use crate::error::at;
use crate::own::{MAX_TEXT, make_directory, write_new};

/// Beginning of the names of files that say from where an attempt goes on.
const BEGINNING: &str = "attempt-";

/// From where an attempt goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The highest number of a series so far. Those of the attempt follow it.
    pub last: u64,
    /// The series that it is given, if there is one.
    pub given: Option<u64>,
}

impl Start {
    fn text(self) -> String {
        format!("{} {}\n", self.last, self.given.unwrap_or(0))
    }

    fn parse(text: &str) -> Option<Self> {
        let (last, given) = text.trim_end().split_once(' ')?;
        let given: u64 = given.parse().ok()?;
        Some(Self {
            last: last.parse().ok()?,
            given: Some(given).filter(|given| *given > 0),
        })
    }
}

impl TaskStore {
    /// Returns from where an attempt goes on that has several hosts: what the first of them has chosen counts
    /// for all. `key` has letters and digits, and is that of no other attempt.
    ///
    /// # Errors
    /// It cannot be chosen, or noted, or what was noted cannot be read.
    pub fn agree(
        &self,
        key: &str,
        choose: impl FnOnce() -> Result<Start, StoreError>,
    ) -> Result<Start, StoreError> {
        let name = format!("{BEGINNING}{key}");
        let path = self.path.join(&name);
        if let Some(start) = read(&path)? {
            return Ok(start);
        }
        let start = choose()?;
        make_directory(&self.path)?;
        match write_new(&path, start.text().as_bytes()) {
            // Another host was first.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                read(&path)?.ok_or_else(|| at(&path)(io::ErrorKind::NotFound.into()))
            }
            written => {
                written.map_err(at(&path))?;
                self.forget_attempts(&name);
                Ok(start)
            }
        }
    }

    /// Removes what earlier attempts have agreed on.
    fn forget_attempts(&self, own: &str) {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        for name in names.filter(|name| name.starts_with(BEGINNING) && name != own) {
            // One that stays is read by nobody.
            let _ = fs::remove_file(self.path.join(name));
        }
    }
}

/// `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Start>, StoreError> {
    match pmc_files::read_to_string(path, MAX_TEXT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
        Ok(text) => {
            let start = Start::parse(&text);
            let invalid = || at(path)(io::ErrorKind::InvalidData.into());
            start.map(Some).ok_or_else(invalid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    #[test]
    fn the_hosts_of_an_attempt_go_on_from_one_series() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::make(&folder.path().join("a.dag")).unwrap();
        let task = store.task(b"t").unwrap();
        let start = |last, given| Start { last, given };
        assert_eq!(task.agree("k1", || Ok(start(3, None))).unwrap(), start(3, None));
        assert_eq!(
            task.agree("k1", || panic!("it was chosen")).unwrap(),
            start(3, None)
        );
        // Another host chooses while this one does.
        let chosen = task.agree("k2", || {
            task.agree("k2", || Ok(start(5, Some(4))))?;
            Ok(start(7, Some(7)))
        });
        assert_eq!(chosen.unwrap(), start(5, Some(4)));
        let names = fs::read_dir(store.path().join("t")).unwrap().count();
        assert_eq!(names, 1, "what the attempt before has agreed on goes");
        fs::write(store.path().join("t/attempt-k2"), "5").unwrap();
        assert!(task.agree("k2", || Ok(start(7, Some(7)))).is_err());
        // It is no series.
        assert_eq!(task.scan().unwrap().0.last(), 0);
    }
}
