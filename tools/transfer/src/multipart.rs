//! Records of transfer attempts and checksum comparisons, for monitoring. They are written to
//! `PEGASUS_MULTIPART_DIR`, from which the wrapper of the job forwards them.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::integrity::quoted;
use crate::report::Attempt;

/// Formats the record of attempts as YAML.
#[must_use]
pub fn record(attempts: &[Attempt]) -> String {
    let mut out = "- transfer_attempts:\n".to_owned();
    for attempt in attempts {
        let text = |text: &str| quoted(text.as_bytes());
        let start = attempt
            .start
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let _ = writeln!(
            out,
            "  - src_url: {}\n    src_label: {}\n    dst_url: {}\n    dst_label: {}\n    success: {}\n    \
             start: {start}\n    duration: {:.1}",
            text(&attempt.source),
            text(&attempt.source_site),
            text(&attempt.destination),
            text(&attempt.destination_site),
            if attempt.success { "True" } else { "False" },
            attempt.duration.as_secs_f64(),
        );
        if !attempt.lfn.is_empty() {
            let _ = writeln!(out, "    lfn: {}", text(&attempt.lfn));
        }
        if attempt.bytes > 0 {
            let _ = writeln!(out, "    bytes: {}", attempt.bytes);
        }
    }
    out
}

/// Writes the record of attempts into `directory`. Its name is `now` (seconds of the epoch), with a number if
/// taken.
pub fn write(directory: &Path, now: u64, attempts: &[Attempt]) -> io::Result<PathBuf> {
    write_as(directory, now, "transfer", &record(attempts))
}

/// Writes any record; its name ends in `kind`.
pub fn write_as(directory: &Path, now: u64, kind: &str, text: &str) -> io::Result<PathBuf> {
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    for number in 0u32.. {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!("-{number}")
        };
        let path = directory.join(format!("{now}-{kind}{suffix}"));
        match file.persist_noclobber(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => file = error.file,
            Err(error) => return Err(error.error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The comparison of a file with a known checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Logical name.
    pub lfn: Vec<u8>,
    /// The file.
    pub path: PathBuf,
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
    /// The expected checksum, if it differs.
    pub expected: Option<String>,
}

/// Formats the record of comparisons as YAML. `duration` is their total time.
#[must_use]
pub fn comparisons(all: &[Comparison], duration: Duration) -> String {
    let mut out = "- integrity_verification_attempts:\n".to_owned();
    for comparison in all {
        let _ = writeln!(
            out,
            "  - lfn: {}\n    pfn: {}\n    sha256: {}\n    success: {}",
            quoted(&comparison.lfn),
            quoted(comparison.path.as_os_str().as_encoded_bytes()),
            comparison.sha256,
            if comparison.expected.is_none() {
                "True"
            } else {
                "False"
            },
        );
        if let Some(expected) = &comparison.expected {
            let _ = writeln!(out, "    sha256_expected: {}", quoted(expected.as_bytes()));
        }
    }
    let failed = all
        .iter()
        .filter(|comparison| comparison.expected.is_some())
        .count();
    let _ = writeln!(
        out,
        "- integrity_summary:\n    succeeded: {}\n    failed: {failed}\n    duration: {:.3}",
        all.len() - failed,
        duration.as_secs_f64()
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn records_of_the_same_second_get_different_names() {
        let attempt = Attempt {
            source: "file://src/f\"2".into(),
            source_site: "s".into(),
            destination: "file://dst/ck".into(),
            destination_site: "d".into(),
            lfn: "x.lfn".into(),
            success: true,
            start: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_243_878),
            duration: Duration::from_millis(120),
            bytes: 200,
            local: true,
        };
        let dir = tempfile::tempdir().expect("directory");
        let paths: Vec<_> = (0..2)
            .map(|_| write(dir.path(), 42, std::slice::from_ref(&attempt)).expect("write"))
            .collect();
        assert_eq!(
            paths,
            [dir.path().join("42-transfer"), dir.path().join("42-transfer-1")]
        );
        assert_eq!(
            std::fs::read_to_string(&paths[1]).expect("read"),
            "- transfer_attempts:\n  - src_url: \"file://src/f\\\"2\"\n    src_label: \"s\"\n    dst_url: \"file://dst/ck\"\n    \
             dst_label: \"d\"\n    success: True\n    start: 1795243878\n    duration: 0.1\n    lfn: \"x.lfn\"\n    bytes: 200\n"
        );
    }
}
