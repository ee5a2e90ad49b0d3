//! The output files of a job, and the numbers of its attempts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Largest output of a job that is looked through, in bytes.
const MAX_OUTPUT: u64 = 1 << 30;
/// Numbers of attempts that names have room for.
const MAX_ATTEMPTS: u32 = 1000;

/// The output of an attempt.
#[derive(Debug)]
pub(crate) struct Output {
    /// Number of the attempt, `None` if the files keep their names.
    pub(crate) attempt: Option<u32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Returns the name of the job's other files: without `.out`, and without the number of an attempt.
pub(crate) fn base(out: &Path) -> PathBuf {
    let name = out.to_string_lossy();
    let without = name
        .rsplit_once('.')
        .filter(|(_, last)| last.len() >= 3 && last.bytes().all(|byte| byte.is_ascii_digit()));
    let name = without.map_or(&*name, |(before, _)| before);
    PathBuf::from(name.strip_suffix(".out").unwrap_or(name))
}

/// Reads the output of a job. `rename`: its files get the number of the attempt first. If this process was
/// killed before, they may have it already.
///
/// # Errors
/// A file that cannot be read or renamed.
pub(crate) fn take(out: &Path, rename: bool) -> io::Result<Output> {
    let base = base(out);
    let file = |suffix: &str| PathBuf::from(format!("{}{suffix}", base.display()));
    if !rename {
        let err = PathBuf::from(out.to_string_lossy().replacen(".out", ".err", 1));
        return Ok(Output {
            attempt: None,
            stdout: text(out)?.unwrap_or_default(),
            stderr: text(&err)?.unwrap_or_default(),
        });
    }
    let numbered = |kind: &str, number: u32| file(&format!(".{kind}.{number:03}"));
    let is_free = |number: &u32| !numbered("out", *number).exists();
    let Some(free) = (0..MAX_ATTEMPTS).find(is_free) else {
        return Err(io::Error::other(format!(
            "{} has the output of {MAX_ATTEMPTS} attempts",
            base.display()
        )));
    };
    let number = match fs::rename(file(".out"), numbered("out", free)) {
        Ok(()) => free,
        Err(error) if error.kind() == io::ErrorKind::NotFound && free > 0 => free - 1,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Output {
                attempt: None,
                stdout: String::new(),
                stderr: text(&file(".err"))?.unwrap_or_default(),
            });
        }
        Err(error) => return Err(error),
    };
    match fs::rename(file(".err"), numbered("err", number)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    Ok(Output {
        attempt: Some(number),
        stdout: text(&numbered("out", number))?.unwrap_or_default(),
        stderr: text(&numbered("err", number))?.unwrap_or_default(),
    })
}

/// Reads a file, `None` if it is missing. A job may have put a FIFO there, or a file that never ends.
fn text(path: &Path) -> io::Result<Option<String>> {
    let read = pmc_files::open(path).and_then(|file| pmc_files::read_rest(&file, MAX_OUTPUT));
    match read {
        Ok(bytes) => Ok(Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_jobs() {
        for out in ["a/b.out", "a/b.out.000", "a/b.out.012"] {
            assert_eq!(base(Path::new(out)), Path::new("a/b"), "{out}");
        }
        assert_eq!(base(Path::new("b.v1.out")), Path::new("b.v1"));
    }

    #[test]
    fn an_attempt_keeps_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let out = path("j.out");
        for attempt in 0..3 {
            fs::write(&out, format!("o{attempt}")).unwrap();
            fs::write(path("j.err"), format!("e{attempt}")).unwrap();
            let output = take(&out, true).unwrap();
            assert_eq!(output.attempt, Some(attempt));
            assert_eq!(
                (output.stdout, output.stderr),
                (format!("o{attempt}"), format!("e{attempt}"))
            );
        }
        // Killed between the two files.
        fs::write(path("j.out.003"), "o3").unwrap();
        fs::write(path("j.err"), "e3").unwrap();
        let output = take(&out, true).unwrap();
        assert_eq!(
            (output.attempt, &*output.stdout, &*output.stderr),
            (Some(3), "o3", "e3")
        );
        // Killed after both.
        let output = take(&out, true).unwrap();
        assert_eq!(
            (output.attempt, &*output.stdout, &*output.stderr),
            (Some(3), "o3", "e3")
        );
        assert!(path("j.err.003").exists() && !path("j.out.004").exists());
    }

    #[test]
    fn output_that_never_ends_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let make = |script: &str| {
            let mut shell = std::process::Command::new("/bin/sh");
            assert!(
                shell
                    .args(["-c", script])
                    .current_dir(dir.path())
                    .status()
                    .unwrap()
                    .success()
            );
        };
        for (script, reason) in [
            ("mkfifo j.out", "is a FIFO"),
            ("ln -s /dev/zero j.out", "is a device"),
            ("truncate -s 1T j.out", "larger than 1024 MiB"),
            ("echo >j.out; mkfifo j.err", "is a FIFO"),
            ("echo >j.out; truncate -s 1T j.err", "larger than 1024 MiB"),
        ] {
            for rename in [false, true] {
                make(&format!("rm -f j.*; {script}"));
                let error = take(&path("j.out"), rename).unwrap_err().to_string();
                assert!(error.contains(reason), "{script}: {error}");
            }
        }
        make("rm -f j.*; mkfifo j.sub j.log");
        assert!(crate::request::update(&path("j"), None, None, 0).is_err());
        assert!(crate::report::append(&path("j.log"), "x").is_err());
    }
}
