//! The record of all attempts for `PEGASUS_MULTIPART_DIR`, from where the job's wrapper passes it on to
//! monitoring.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::integrity::quoted;
use crate::report::Attempt;

/// The record as YAML.
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

/// Writes the record into `directory`, named by the second `now`; a number is added if that name is taken.
pub fn write(directory: &Path, now: u64, attempts: &[Attempt]) -> io::Result<PathBuf> {
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(record(attempts).as_bytes())?;
    for number in 0u32.. {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!("-{number}")
        };
        let path = directory.join(format!("{now}-transfer{suffix}"));
        match file.persist_noclobber(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => file = error.file,
            Err(error) => return Err(error.error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn two_records_of_one_second_are_both_kept() {
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
