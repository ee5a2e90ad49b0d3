//! What a run can be told.

use std::path::PathBuf;
use std::time::Duration;

use crate::cancel::Cancel;
use crate::error::Retry;

/// How to carry out a list of work.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most rounds; at least 1.
    pub rounds: u32,
    /// Most transfers at a time; at least 1.
    pub threads: usize,
    /// Make links instead of copies of local files.
    pub symlink: bool,
    /// Where relative paths start; the working directory of the process if `None`.
    pub base: Option<PathBuf>,
    /// Waits between rounds.
    pub waits: Waits,
    /// File that published checksums are appended to (`KICKSTART_INTEGRITY_DATA`); they are reported as
    /// [`Event::Checksum`](crate::observer::Event::Checksum) if `None`.
    pub integrity_data: Option<PathBuf>,
    /// Directory for temporary files, among them those between two remote places.
    pub temporary: PathBuf,
    /// Test hook: percentage of copies to spoil by appending a text.
    pub error_rate: u8,
    /// Set when the run shall stop.
    pub cancel: Cancel,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rounds: 3,
            threads: 8,
            symlink: false,
            base: None,
            waits: Waits::default(),
            integrity_data: None,
            temporary: PathBuf::from("/tmp"),
            error_rate: 0,
            cancel: Cancel::new(),
        }
    }
}

/// How long to wait before the next round. Each wait is a random time between half of and the whole of
/// `first × 4^(round − 1)`, at most `longest`.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// For failures of local files.
    pub soon: Duration,
    /// For failures of remote services.
    pub later: Duration,
    /// Most of all waits.
    pub longest: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            soon: Duration::from_secs(2),
            later: Duration::from_secs(60),
            longest: Duration::from_secs(300),
        }
    }
}

impl Waits {
    pub(super) fn after(&self, round: u32, retry: Retry) -> Duration {
        let first = if retry == Retry::Later {
            self.later
        } else {
            self.soon
        };
        let whole = first
            .saturating_mul(4u32.saturating_pow(round.saturating_sub(1)))
            .min(self.longest);
        whole.mul_f64(0.5 + f64::from(random_below(1000)) / 2000.0)
    }
}

/// A number below `limit`, from the seeds that the standard library draws for its hash maps.
pub(super) fn random_below(limit: u32) -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    u32::try_from(random % u64::from(limit.max(1))).unwrap_or(0)
}
