//! The files that a try leaves behind: `JOB.out.NNN` and `JOB.err.NNN`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use monitord_compat::job_output_reader::JobOutput;

/// A larger file loses its middle: a job that floods its output must not fill the memory.
const LARGE: u64 = 64 << 20;
/// Of a file that is too large, this much is read from its end.
const TAIL: u64 = 1 << 20;

/// A record whose start lies this many seconds before the try does not belong to it. Clocks of hosts
/// may differ, so this is more than they should.
const CLOCKS: f64 = 60.0;

/// How many numbers to look ahead for the file of a try.
const AHEAD: u32 = 1000;

/// Reads a file; without its middle if it is very large. Bytes that are no UTF-8 are replaced.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut bytes = Vec::new();
    if size <= LARGE {
        // Nobody writes into it any more, so no further look for its end is needed.
        bytes.resize(usize::try_from(size).unwrap_or(0), 0);
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
    } else {
        (&mut file).take(LARGE - TAIL).read_to_end(&mut bytes)?;
        bytes.push(b'\n');
        file.seek(SeekFrom::End(-(TAIL.cast_signed())))?;
        file.take(TAIL).read_to_end(&mut bytes)?;
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => match String::from_utf8_lossy(error.as_bytes()) {
            Cow::Owned(text) => text,
            Cow::Borrowed(text) => text.to_owned(),
        },
    })
}

/// As [`read`], for a file that is empty more often than not: that is found out without opening it.
///
/// # Errors
/// It cannot be read.
pub fn read_if_any(path: &Path) -> io::Result<String> {
    if path.metadata()?.len() == 0 {
        return Ok(String::new());
    }
    read(path)
}

/// Name of the output file with this number.
#[must_use]
pub fn name(job: &str, stream: &str, number: u32) -> String {
    let mut name = String::with_capacity(job.len() + stream.len() + 5);
    name.push_str(job);
    name.push('.');
    name.push_str(stream);
    name.push('.');
    if number < 1000 {
        let digits = [number / 100, number / 10 % 10, number % 10];
        name.extend(digits.map(|digit| char::from(b'0' + digit as u8)));
    } else {
        let _ = write!(name, "{number}");
    }
    name
}

/// The number in a name of [`name`].
#[must_use]
pub fn number_of(name: &str) -> Option<u32> {
    name.rsplit_once('.')?.1.parse().ok()
}

/// What the log tells of a try, to recognise its file.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Raw wait status.
    pub status: i64,
    /// When it was submitted, seconds since the epoch.
    pub submitted: Option<i64>,
}

/// The output of a try.
#[derive(Debug)]
pub struct Found {
    /// Number of its files.
    pub number: u32,
    /// Text and records of the output file, or why it cannot be read.
    pub output: io::Result<(String, JobOutput)>,
}

/// Finds and reads the output of a try of `job` in `dir`. `expected` is the number after that of the
/// try before.
///
/// The number is not certain: a log that was begun anew knows nothing of tries before it, whose files
/// are still there, and a try that was lost with its host may have left no file. So a file whose own
/// record contradicts the log is passed over if a later one fits.
#[must_use]
pub fn find(dir: &Path, job: &str, expected: u32, consumed: Option<u32>, known: Known) -> Found {
    let load = |number| {
        let text = read(&dir.join(name(job, "out", number)))?;
        let output = JobOutput::read(&text);
        io::Result::Ok((text, output))
    };
    let first = load(expected);
    match &first {
        Ok((_, output)) if !contradicts(output, job, known) => {}
        Ok(_) => {
            for number in (expected + 1..).take(AHEAD as usize) {
                match load(number) {
                    Ok(later) if contradicts(&later.1, job, known) => {}
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
            let least = consumed.map_or(0, |last| last + 1);
            for number in (least..expected).rev() {
                // An empty one keeps the number of a try that never ran.
                if let Ok(earlier) = load(number)
                    && !earlier.1.tasks.is_empty()
                    && !contradicts(&earlier.1, job, known)
                {
                    return Found {
                        number,
                        output: Ok(earlier),
                    };
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

fn contradicts(output: &JobOutput, job: &str, known: Known) -> bool {
    let task = output
        .tasks
        .iter()
        .rfind(|task| task.name.as_deref() == Some(job));
    let other_status = task
        .and_then(|task| task.status)
        .is_some_and(|status| status != known.status);
    let start = task
        .and_then(|task| task.start)
        .or_else(|| output.invocations.first()?.main.start);
    #[expect(
        clippy::cast_precision_loss,
        reason = "seconds since the epoch are far below 2^53"
    )]
    let earlier = matches!((start, known.submitted), (Some(start), Some(submitted))
        if start + CLOCKS < submitted as f64);
    other_status || earlier
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
    fn the_file_of_a_try() {
        let dir = tempfile::tempdir().unwrap();
        let put =
            |number, text: &str| std::fs::write(dir.path().join(name("a", "out", number)), text).unwrap();
        let found = |expected, status, second| {
            let known = Known {
                status,
                submitted: Some(MIDNIGHT + second),
            };
            let found = find(dir.path(), "a", expected, None, known);
            found.output.is_ok().then_some(found.number)
        };
        assert_eq!(found(0, 0, 0), None);
        put(0, &task(256, 0));
        assert_eq!(found(0, 256, 0), Some(0));
        assert_eq!(found(0, 0, 0), Some(0), "nothing better");
        assert_eq!(found(1, 256, 0), Some(0), "its own is missing");
        put(1, &task(0, 50));
        assert_eq!(found(0, 0, 50), Some(1), "other status");
        put(1, &task(256, 50));
        assert_eq!(found(0, 256, 100), Some(1), "long before the try");
        assert_eq!(found(0, 256, 0), Some(0));
        put(0, "plain text");
        assert_eq!(found(0, 256, 100), Some(0), "nothing contradicts");
    }

    #[test]
    fn names() {
        assert_eq!(name("a.b", "out", 7), "a.b.out.007");
        assert_eq!(number_of("a.b.out.1007"), Some(1007));
        assert_eq!(number_of(""), None);
    }

    #[test]
    fn bytes_that_are_no_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"a\xff\n").unwrap();
        assert_eq!(read(file.path()).unwrap(), "a\u{fffd}\n");
    }
}
