//! Output files of a sub-workflow beside its submit description.
//!
//! Pegasus' monitoring reads there what HTCondor's DAGMan has printed. Nothing prints there here, but for the
//! reason of a failure. The files have the number of the attempt, as those of its preparation.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pmc_files::OFlags;

use crate::options::folder;

/// The files of an attempt.
#[derive(Debug)]
pub(super) struct MonitoringFiles {
    out: PathBuf,
    err: PathBuf,
}

impl MonitoringFiles {
    /// Names the files of an attempt. `description` is relative to the directory of the DAG file `around`,
    /// `prepared` is the output file of the preparation.
    pub(super) fn new(around: &Path, description: &[u8], prepared: &Path) -> Option<Self> {
        let name = prepared.file_name()?.to_str()?;
        let (start, number) = name.rsplit_once(".out.")?;
        let beside = folder(around).join(OsStr::from_bytes(description));
        let file = |kind: &str| beside.with_file_name(format!("{start}.{kind}.{number}"));
        Some(Self {
            out: file("out"),
            err: file("err"),
        })
    }

    /// Creates the files.
    pub(super) fn create(&self) -> io::Result<()> {
        for path in [&self.out, &self.err] {
            append(path)?;
        }
        Ok(())
    }

    /// Adds a line to standard error.
    pub(super) fn tell(&self, text: &str) -> io::Result<()> {
        writeln!(append(&self.err)?, "{text}")
    }
}

fn append(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    pmc_files::open_output(path, flags, 0o666)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_beside_the_description() {
        let files =
            MonitoringFiles::new(Path::new("d/x.dag"), b"00/s.sub", Path::new("d/s.out.002")).unwrap();
        assert_eq!(
            (files.out, files.err),
            ("d/00/s.out.002".into(), "d/00/s.err.002".into())
        );
        assert!(MonitoringFiles::new(Path::new("x.dag"), b"s.sub", Path::new("other")).is_none());
    }
}
