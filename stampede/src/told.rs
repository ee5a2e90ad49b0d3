//! What the program that writes the log knows of ends of tries beyond the log: so their files need not be read.

use std::hash::Hasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::{FxHashMap, FxHasher};

/// Ends to remember at most; the files of others are read.
const MOST: usize = 1 << 16;

/// A try that printed nothing: its files hold the executor's record and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentTry {
    /// Fingerprint of the name of its job.
    pub job: u64,
    /// Number of its files.
    pub file: u32,
    /// When it began, in milliseconds since the epoch.
    pub start_ms: i64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Raw wait status of its process.
    pub status: i32,
    /// Program as the DAG names it.
    pub program: Arc<str>,
    /// Host where it ran.
    pub host: Arc<str>,
}

impl SilentTry {
    /// Fingerprint of a name.
    #[must_use]
    pub fn job(name: &[u8]) -> u64 {
        let mut hasher = FxHasher::default();
        hasher.write(name);
        hasher.finish()
    }

    /// When it began, in seconds since the epoch.
    #[must_use]
    pub fn start(&self) -> f64 {
        seconds(self.start_ms)
    }

    /// How long it took, in seconds.
    #[must_use]
    pub fn duration(&self) -> f64 {
        seconds(i64::try_from(self.duration_ms).unwrap_or(i64::MAX))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "as many milliseconds as there are since the epoch have exact numbers"
)]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// Ends that were told and not asked for yet, by the number of the execution.
#[derive(Debug, Default)]
pub struct Told(Mutex<FxHashMap<u64, SilentTry>>);

impl Told {
    /// Tells of an end, before the log does. There is no need to tell of each.
    pub fn tell(&self, number: u64, silent: SilentTry) {
        let mut ends = self.ends();
        if ends.len() < MOST {
            ends.insert(number, silent);
        }
    }

    /// What was told of this execution, if it is that of the job whose files have this number: in the log of an
    /// earlier run the number of the execution meant another try.
    pub(crate) fn take(&self, number: u64, job: &str, file: u32) -> Option<SilentTry> {
        let mut ends = self.ends();
        let told = ends.get(&number)?;
        if told.file != file || told.job != SilentTry::job(job.as_bytes()) {
            return None;
        }
        ends.remove(&number)
    }

    fn ends(&self) -> MutexGuard<'_, FxHashMap<u64, SilentTry>> {
        // It is whole whatever happened to who held it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent(job: &str, file: u32) -> SilentTry {
        SilentTry {
            job: SilentTry::job(job.as_bytes()),
            file,
            start_ms: 1_795_246_124_086,
            duration_ms: 47,
            status: 0,
            program: "/bin/true".into(),
            host: "n1".into(),
        }
    }

    #[test]
    fn only_the_same_try() {
        let told = Told::default();
        told.tell(3, silent("a", 1));
        assert_eq!(told.take(2, "a", 1), None);
        assert_eq!(told.take(3, "a", 0), None);
        assert_eq!(told.take(3, "b", 1), None);
        assert_eq!(told.take(3, "a", 1), Some(silent("a", 1)));
        assert_eq!(told.take(3, "a", 1), None);
    }

    #[test]
    fn it_takes_no_more_memory_than_this() {
        let told = Told::default();
        let count = MOST as u64 + 5;
        (0..count).for_each(|number| told.tell(number, silent("a", 0)));
        let known = (0..count).filter(|number| told.take(*number, "a", 0).is_some());
        assert_eq!(known.count(), MOST);
    }
}
