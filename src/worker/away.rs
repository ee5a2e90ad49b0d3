//! Attempts on a host that does not see the directory of the DAG file.
//!
//! What the attempt reads there came with its assignment. Its output goes into files without names, and comes
//! back with its result, and so do the files that it writes there: the master puts them in their places.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pmc_calls::LiteCall;
use pmc_dag::words;
use pmc_job_files::{Description, FileUse};
use tempfile::TempDir;

use super::error::NotStarted;
use super::packing;
use super::stdio::TaskFiles;
use crate::payload::Payload;
use crate::protocol::{Assignment, Carried, ForwardedData, Output, Returned};

/// Maximum bytes of a stream that come back. The session keeps them in memory until the master has them.
const MAX_STREAM: u64 = 16 << 20;

/// Bytes at the end of a longer stream that come back: the record of the attempt is among them.
const STREAM_END: usize = 64 << 10;

/// Name of the description.
const DESCRIPTION: &str = "job.json";

/// A file that an attempt writes, and the path where it belongs.
type Written = (PathBuf, Vec<u8>);

/// An attempt, and the files that it has on this host.
pub(super) struct AwayAttempt {
    /// What is run: it names files of this host.
    pub(super) task: Assignment,
    pub(super) files: TaskFiles,
    written: Vec<Written>,
    _directory: TempDir,
}

impl AwayAttempt {
    /// Prepares an attempt in a new directory in `base`.
    pub(super) fn open(base: &Path, task: &Assignment, carried: &Carried) -> Result<Self, NotStarted> {
        let mut words = words::split(&task.command);
        let call = LiteCall::new(&words).ok_or(NotStarted::NothingCarried)?;
        let program = call.program;
        let failed = NotStarted::Prepare;
        let directory = tempfile::Builder::new().prefix("attempt-").tempdir_in(base);
        let directory = directory.map_err(failed)?;
        let (description, written) = unpack(carried, directory.path()).map_err(failed)?;
        words.truncate(program + 1);
        words.push(description.into_os_string().into_vec());
        let quoted: Vec<_> = words.iter().map(|word| words::quote(word)).collect();
        Ok(Self {
            task: Assignment {
                command: quoted.join(&b' '),
                // The master knows where the output goes.
                output: Output::Away(None),
                place: None,
                ..task.clone()
            },
            files: packing::streams_in(base).map_err(failed)?,
            written,
            _directory: directory,
        })
    }

    /// Returns what the attempt has written, now that it has ended.
    pub(super) fn returned(self) -> io::Result<Returned> {
        let TaskFiles { out, err, .. } = self.files;
        let mut returned = Returned {
            out: stream(out)?,
            err: stream(err)?,
            files: Vec::new(),
        };
        for (path, target) in self.written {
            match pmc_files::open(path.as_ref()) {
                // An attempt that fails writes none.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => returned.files.push(ForwardedData {
                    target,
                    data: Payload::of_file(opened?)?,
                }),
            }
        }
        Ok(returned)
    }
}

/// Writes the files that came with an attempt, and a description that names them. Returns the path of the
/// description, and which files the attempt writes instead of which.
fn unpack(carried: &Carried, directory: &Path) -> io::Result<(PathBuf, Vec<Written>)> {
    let path_of = |kind: &str, number: usize| directory.join(format!("{kind}-{number}"));
    let mut unpacked = Vec::with_capacity(carried.files.len());
    for (number, file) in carried.files.iter().enumerate() {
        let path = path_of("in", number);
        fs::write(&path, &file.data)?;
        unpacked.push((&file.path, path));
    }
    let mut description = Description::parse(&carried.description).map_err(io::Error::other)?;
    let mut written = Vec::new();
    description.each_file(&mut |what, path| {
        let new = match what {
            FileUse::Read | FileUse::Script => {
                let known = unpacked.iter().find(|(original, _)| *original == path);
                known.map(|(_, unpacked)| unpacked.clone())
            }
            FileUse::Written => {
                let new = path_of("out", written.len());
                written.push((new.clone(), path.clone().into_os_string().into_vec()));
                Some(new)
            }
        };
        // Another file is one of this host.
        if let Some(new) = new {
            *path = new;
        }
    });
    let path = directory.join(DESCRIPTION);
    fs::write(&path, description.to_json()?)?;
    Ok((path, written))
}

/// Returns a stream, without its middle if it is too long.
fn stream(mut file: File) -> io::Result<Payload> {
    let len = file.metadata()?.len();
    if len > MAX_STREAM {
        let mut end = vec![0; STREAM_END];
        let (kept, end_at) = (MAX_STREAM - STREAM_END as u64, len - STREAM_END as u64);
        file.read_exact_at(&mut end, end_at)?;
        file.set_len(kept)?;
        let left_out = end_at - kept;
        // The file is in append mode.
        file.write_all(format!("\n[{left_out} bytes of the output are left out here]\n").as_bytes())?;
        file.write_all(&end)?;
    }
    Payload::of_file(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::CarriedFile;

    fn text(payload: &Payload) -> String {
        let mut bytes = Vec::new();
        payload
            .for_each_chunk(|chunk| {
                bytes.extend_from_slice(chunk);
                Ok(())
            })
            .unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn description_names_files_of_the_host() {
        let directory = tempfile::tempdir().unwrap();
        let carried = Carried {
            description:
                br#"{"format": 1, "job": "j", "run": {"program": ["/bin/true"]}, "env_source": "/etc/env",
                "verify": [{"lfn": "a", "checksum_file": "/s/a.meta"}], "checksum_file": "/s/b.meta",
                "container": {"kind": "docker", "image": "i", "directory": "/scratch",
                "environment": {"env_source": "/s/a.meta", "checksum_file": "/s/a.meta"}}}"#
                    .to_vec(),
            files: vec![CarriedFile {
                path: "/s/a.meta".into(),
                data: b"checksums".to_vec(),
            }],
        };
        let (path, written) = unpack(&carried, directory.path()).unwrap();
        let description: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(description["env_source"], "/etc/env");
        let file = description["verify"][0]["checksum_file"].as_str().unwrap();
        assert_eq!(fs::read(file).unwrap(), b"checksums");
        // Variables of the program in the container are no files of the run.
        let variables = &description["container"]["environment"];
        assert_eq!(variables["env_source"], "/s/a.meta");
        assert_eq!(variables["checksum_file"], "/s/a.meta");
        assert_eq!(written.len(), 1);
        assert_eq!(written[0].1, b"/s/b.meta");
        assert_eq!(description["checksum_file"], written[0].0.to_str().unwrap());
    }

    #[test]
    fn end_of_a_long_stream_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let files = packing::streams_in(directory.path()).unwrap();
        let line = "x".repeat(99) + "\n";
        (&files.out).write_all(line.repeat(200_000).as_bytes()).unwrap();
        (&files.out).write_all(b"the record\n").unwrap();
        let stream = text(&stream(files.out).unwrap());
        assert!(stream.starts_with(&line) && stream.ends_with("x\nthe record\n"));
        assert!(stream.contains("\n[3222795 bytes of the output are left out here]\n"));
        assert_eq!(text(&super::stream(files.err).unwrap()), "");
    }
}
