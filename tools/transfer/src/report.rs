//! The report of a run: attempts, failures and statistics.

use std::time::{Duration, SystemTime};

use crate::error::TransferError;
use crate::integrity::Checks;

/// One attempt of one transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Source URL, for display.
    pub source: String,
    /// Site of the source.
    pub source_site: String,
    /// Destination URL, for display.
    pub destination: String,
    /// Site of the destination.
    pub destination_site: String,
    /// Logical name; may be empty.
    pub lfn: String,
    /// Whether it succeeded.
    pub success: bool,
    /// Start time.
    pub start: SystemTime,
    /// Duration.
    pub duration: Duration,
    /// Size of the file in bytes; 0 if it failed or the size is unknown.
    pub bytes: u64,
    /// Whether source or destination is a local file, so that the size is known.
    pub local: bool,
}

/// An entry of the specification that finally failed.
#[derive(Debug)]
pub struct Failure {
    /// Index of the entry in the list of work.
    pub entry: usize,
    /// The entry on one line, with its URLs.
    pub description: String,
    /// The error to report.
    pub error: TransferError,
    /// Number of attempts.
    pub attempts: u32,
}

/// Result of [`engine::run`](crate::engine::run).
#[derive(Debug, Default)]
pub struct Report {
    /// All attempts of transfers, in the order of their completion.
    pub attempts: Vec<Attempt>,
    /// Entries that failed, in the order of the specification.
    pub failures: Vec<Failure>,
    /// Checksum comparisons.
    pub checks: Checks,
    /// Published checksums: logical name, SHA-256 in hexadecimal.
    pub published: Vec<(Vec<u8>, String)>,
}

impl Report {
    /// Returns whether every entry succeeded.
    #[must_use]
    pub fn success(&self) -> bool {
        self.failures.is_empty()
    }

    /// Returns the lines of statistics for `elapsed` of wall time.
    #[must_use]
    pub fn statistics(&self, elapsed: Duration) -> Vec<String> {
        if self.attempts.is_empty() {
            return vec!["Stats: no local files in the transfer set".to_owned()];
        }
        if self.attempts.iter().any(|attempt| !attempt.local) {
            return vec!["Unable to provide stats for third party gsiftp/srm transfers".to_owned()];
        }
        let mut pairs: Vec<(&str, &str, usize, u64)> = Vec::new();
        for attempt in &self.attempts {
            let (from, to) = (attempt.source_site.as_str(), attempt.destination_site.as_str());
            match pairs.iter_mut().find(|pair| (pair.0, pair.1) == (from, to)) {
                Some(pair) => {
                    pair.2 += 1;
                    pair.3 += attempt.bytes;
                }
                None => pairs.push((from, to, 1, attempt.bytes)),
            }
        }
        let bytes = self.attempts.iter().map(|attempt| attempt.bytes).sum();
        let mut lines = vec![format!(
            "Stats: Total {}",
            format_volume(self.attempts.len(), bytes, elapsed)
        )];
        for (from, to, count, bytes) in pairs {
            lines.push(format!(
                "       Between sites {from}->{to} : {}",
                format_volume(count, bytes, elapsed)
            ));
        }
        lines
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn format_volume(count: usize, bytes: u64, elapsed: Duration) -> String {
    // A shorter time would give a meaningless rate.
    let seconds = elapsed.as_secs_f64().max(1e-6);
    let rate = bytes as f64 / seconds;
    format!(
        "{count} transfers, {}B transferred in {seconds:.0} seconds. Rate: {}B/s ({}b/s)",
        with_prefix(bytes as f64),
        with_prefix(rate),
        with_prefix(rate * 8.0)
    )
}

/// Formats a number with one decimal and the prefix of a power of 1024.
fn with_prefix(number: f64) -> String {
    let mut scaled = number;
    let mut prefix = "";
    for next in ["K", "M", "G", "T"] {
        if scaled <= 1024.0 {
            break;
        }
        scaled /= 1024.0;
        prefix = next;
    }
    format!("{scaled:.1} {prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(from: &str, bytes: u64) -> Attempt {
        Attempt {
            source: "file:///a".into(),
            source_site: from.into(),
            destination: "file:///b".into(),
            destination_site: "x".into(),
            lfn: String::new(),
            success: true,
            start: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            bytes,
            local: true,
        }
    }

    #[test]
    fn statistics_sum_by_pair_of_sites() {
        let mut report = Report {
            attempts: vec![attempt("a", 100), attempt("b", 3 << 20), attempt("a", 200)],
            ..Report::default()
        };
        assert_eq!(
            report.statistics(Duration::from_secs(4)),
            [
                "Stats: Total 3 transfers, 3.0 MB transferred in 4 seconds. Rate: 768.1 KB/s (6.0 Mb/s)",
                "       Between sites a->x : 2 transfers, 300.0 B transferred in 4 seconds. Rate: 75.0 B/s (600.0 b/s)",
                "       Between sites b->x : 1 transfers, 3.0 MB transferred in 4 seconds. Rate: 768.0 KB/s (6.0 Mb/s)",
            ]
        );
        report.attempts[0].local = false;
        assert_eq!(report.statistics(Duration::ZERO).len(), 1);
        assert_eq!(
            Report::default().statistics(Duration::ZERO),
            ["Stats: no local files in the transfer set"]
        );
    }

    #[test]
    fn prefixes_start_above_their_unit() {
        let shown = [0.0, 1024.0, 1025.0, 1048577.0, 5e9, 3e15].map(with_prefix);
        assert_eq!(shown, ["0.0 ", "1024.0 ", "1.0 K", "1.0 M", "4.7 G", "2728.5 T"]);
    }
}
