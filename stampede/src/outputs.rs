//! The output of an attempt: in the files `JOB.out.NNN` and `JOB.err.NNN`, or in a pack.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use monitord_compat::job_output_reader::JobOutput;
use pmc_packed::{Channel, TaskOutput};

use crate::text;

/// Maximum bytes read of a file, so that a job that floods its output does not fill the memory.
const MAX_SIZE: u64 = 64 << 20;
/// Bytes read from the end of a file that is too large.
const END_SIZE: u64 = 1 << 20;

/// Maximum difference, in seconds, between the clocks of hosts. A record that starts earlier before an
/// attempt does not belong to it.
const MAX_CLOCK_SKEW: f64 = 60.0;

/// Maximum files to look at for the file of an attempt.
const MAX_CANDIDATES: u32 = 1000;
/// Maximum bytes to look at for the file of an attempt; one more file is read as a whole.
const MAX_CANDIDATE_BYTES: usize = 64 << 20;

/// Reads a file; a very large one without its middle. Bytes that are no UTF-8 are replaced.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> io::Result<String> {
    let file = pmc_files::open(path)?;
    let size = file.metadata()?.len();
    read_from(file, size)
}

/// Like [`read`], for a stream of an attempt.
///
/// # Errors
/// There is no such stream, or it cannot be read.
pub fn read_stream(output: &mut TaskOutput, job: &str, channel: Channel, number: u32) -> io::Result<String> {
    let stream = output.open(job.as_bytes(), channel, number)?;
    let size = stream.size()?;
    read_from(stream, size)
}

fn read_from(mut file: impl Read + Seek, size: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    if size <= MAX_SIZE {
        file.read_to_end(&mut bytes)?;
    } else {
        (&mut file).take(MAX_SIZE - END_SIZE).read_to_end(&mut bytes)?;
        bytes.push(b'\n');
        file.seek(SeekFrom::End(-(END_SIZE.cast_signed())))?;
        file.take(END_SIZE).read_to_end(&mut bytes)?;
    }
    Ok(text::into_lossy(bytes))
}

/// Returns the name of an output file.
#[must_use]
pub fn name(job: &str, stream: &str, number: u32) -> String {
    format!("{job}.{stream}.{number:03}")
}

/// Returns the number in a name of [`name`].
#[must_use]
pub fn number_of(name: &str) -> Option<u32> {
    name.rsplit_once('.')?.1.parse().ok()
}

/// Facts of an attempt in the log, by which its file is recognised.
#[derive(Clone, Copy, Debug)]
pub struct LogFacts {
    /// Raw wait status.
    pub status: i64,
    /// Submission, seconds since the epoch.
    pub submitted: Option<i64>,
}

/// The output of an attempt.
#[derive(Debug)]
pub struct Found {
    /// Number of its files.
    pub number: u32,
    /// Text and records of the output file, or why it cannot be read.
    pub output: io::Result<(String, JobOutput)>,
}

/// Finds and reads the output of an attempt of `job`. `expected` is the number that its files should
/// have, `last_used` the number of an earlier attempt.
///
/// The number is uncertain: a new log does not know earlier attempts, whose files may still exist, and an
/// attempt that was lost with its host may have left no file. So a file whose record contradicts the log is
/// skipped if a later one fits.
#[must_use]
pub fn find(
    place: &mut TaskOutput,
    job: &str,
    expected: u32,
    last_used: Option<u32>,
    log: LogFacts,
) -> Found {
    let mut load = |number| {
        let text = read_stream(place, job, Channel::Out, number)?;
        let output = JobOutput::read(&text);
        io::Result::Ok((text, output))
    };
    let first = load(expected);
    match &first {
        Ok((_, output)) if !contradicts(output, job, log) => {}
        Ok((text, _)) => {
            let mut bytes = text.len();
            for number in (expected + 1..).take(MAX_CANDIDATES as usize) {
                match load(number) {
                    Ok(later) if contradicts(&later.1, job, log) => {
                        bytes += later.0.len();
                        if bytes > MAX_CANDIDATE_BYTES {
                            break;
                        }
                    }
                    Ok(later) => {
                        return Found {
                            number,
                            output: Ok(later),
                        };
                    }
                    Err(_) => break,
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let least = last_used.map_or(0, |last| last + 1);
            let mut bytes = 0;
            for number in (least..expected).rev() {
                let Ok(earlier) = load(number) else { continue };
                // An empty file belongs to an attempt that never ran.
                if !earlier.1.tasks.is_empty() && !contradicts(&earlier.1, job, log) {
                    return Found {
                        number,
                        output: Ok(earlier),
                    };
                }
                bytes += earlier.0.len();
                if bytes > MAX_CANDIDATE_BYTES {
                    break;
                }
            }
        }
        Err(_) => {}
    }
    Found {
        number: expected,
        output: first,
    }
}

/// Returns whether the records of an output contradict the log.
fn contradicts(output: &JobOutput, job: &str, log: LogFacts) -> bool {
    let task = output
        .tasks
        .iter()
        .rfind(|task| task.name.as_deref() == Some(job));
    let other_status = task
        .and_then(|task| task.status)
        .is_some_and(|status| status != log.status);
    let start = task
        .and_then(|task| task.start)
        .or_else(|| output.invocations.first()?.main.start);
    #[expect(
        clippy::cast_precision_loss,
        reason = "seconds since the epoch are far below 2^53"
    )]
    let is_earlier = matches!((start, log.submitted), (Some(start), Some(submitted))
        if start + MAX_CLOCK_SKEW < submitted as f64);
    other_status || is_earlier
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(status: i64, second: u32) -> String {
        format!(
            "[cluster-task id=1, name=a, start=\"2026-01-01T00:00:{second:02}.000+00:00\", duration=1.000, \
             status={status}, app=\"x\", hostname=\"h\", slot=1, cpus=1, memory=0]\n"
        )
    }

    const MIDNIGHT: i64 = 1_767_225_600;

    #[test]
    fn a_file_that_contradicts_the_log_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let put =
            |number, text: &str| std::fs::write(dir.path().join(name("a", "out", number)), text).unwrap();
        let found = |expected, status, second| {
            let log = LogFacts {
                status,
                submitted: Some(MIDNIGHT + second),
            };
            let found = find(&mut TaskOutput::new(dir.path()), "a", expected, None, log);
            found.output.is_ok().then_some(found.number)
        };
        assert_eq!(found(0, 0, 0), None);
        put(0, &task(256, 0));
        assert_eq!(found(0, 256, 0), Some(0));
        assert_eq!(found(0, 0, 0), Some(0), "no other file");
        assert_eq!(found(1, 256, 0), Some(0), "its own is missing");
        put(1, &task(0, 50));
        assert_eq!(found(0, 0, 50), Some(1), "other status");
        put(1, &task(256, 50));
        assert_eq!(found(0, 256, 100), Some(1), "long before the attempt");
        assert_eq!(found(0, 256, 0), Some(0));
        put(0, "plain text");
        assert_eq!(found(0, 256, 100), Some(0), "nothing contradicts");
    }

    #[test]
    fn names_have_at_least_three_digits() {
        assert_eq!(name("a.b", "out", 7), "a.b.out.007");
        assert_eq!(number_of("a.b.out.1007"), Some(1007));
        assert_eq!(number_of(""), None);
    }

    #[test]
    fn bytes_that_are_no_utf8_are_replaced() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"a\xff\n").unwrap();
        assert_eq!(read(file.path()).unwrap(), "a\u{fffd}\n");
    }
}
