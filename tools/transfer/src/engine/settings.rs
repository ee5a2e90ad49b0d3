//! Settings of a run.

use std::path::PathBuf;
use std::time::Duration;

use crate::cancel::Cancel;
use crate::error::Retry;

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Maximum rounds; at least 1.
    pub rounds: u32,
    /// Maximum parallel transfers; at least 1.
    pub threads: usize,
    /// Create links instead of copies of local files.
    pub symlink: bool,
    /// Base of relative paths; the working directory of the process if `None`.
    pub base: Option<PathBuf>,
    /// Waits between rounds.
    pub waits: Waits,
    /// A full disk of this machine ends an entry at once: nobody will free space there soon.
    pub full_disk_is_final: bool,
    /// File that receives published checksums (`KICKSTART_INTEGRITY_DATA`). If `None`, they are reported as
    /// [`Event::Checksum`](crate::observer::Event::Checksum).
    pub integrity_data: Option<PathBuf>,
    /// Metadata files with the checksums that copies are compared with. If empty, those of the working
    /// directory are used.
    pub known_checksums: Vec<PathBuf>,
    /// Local directories stay when only files were to be removed; otherwise that is a failure.
    pub keeps_directories: bool,
    /// Directory for temporary files.
    pub temporary: PathBuf,
    /// Test hook: percentage of copies to corrupt by appending a text.
    pub error_rate: u8,
    /// Set to stop the run.
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
            full_disk_is_final: false,
            integrity_data: None,
            known_checksums: Vec::new(),
            keeps_directories: false,
            temporary: PathBuf::from("/tmp"),
            error_rate: 0,
            cancel: Cancel::new(),
        }
    }
}

/// Waits between rounds. With `t = first × 4^(round − 1)`, at most `longest`, each wait is a random time
/// between `t / 2` and `t`. `first` is `soon` or `later`.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// First wait after failures of local files.
    pub soon: Duration,
    /// First wait after failures of remote services.
    pub later: Duration,
    /// Maximum wait.
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
    pub(super) fn before_next(&self, round: u32, retry: Retry) -> Duration {
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

/// Returns a random number below `limit`, from the seeds of the standard hash maps.
pub(super) fn random_below(limit: u32) -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    u32::try_from(random % u64::from(limit.max(1))).unwrap_or(0)
}
