//! Where a run goes on: the file `NAME.dag.place` beside the DAG, for tools on other hosts.
//!
//! Its first line is the host of the master. In a batch job, the second one is the job: `slurm 17`. The
//! others say what ends the run although tasks are left: `stops 1795837297`, the end of its wall time in
//! seconds since the epoch, and `drains`.

use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pmc_batch::BatchJob;
use pmc_files::Destination;

use crate::RunLimits;
use crate::client::may_own;

/// Largest file that is read, in bytes.
const MAX_PLACE: u64 = 1 << 12;

/// Begins the line with the end of the wall time.
const STOPS: &str = "stops ";

/// The line of a run that starts no more tasks.
const DRAINS: &str = "drains";

/// Where a run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Host of the master.
    pub host: String,
    /// Its batch job.
    pub job: Option<BatchJob>,
    /// When its wall time is over, in seconds since the epoch.
    pub stops_at: Option<u64>,
    /// It starts no more tasks.
    pub drains: bool,
}

impl Place {
    /// Returns the path of the file of a DAG.
    #[must_use]
    pub fn path(dag: &Path) -> PathBuf {
        pmc_files::with_suffix(dag, ".place")
    }

    /// Writes the file of a DAG.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, dag: &Path) -> io::Result<()> {
        let destination = Destination::new(&Self::path(dag))?;
        let replacement = destination.only_replacement(".place-", 0o600)?;
        replacement.file().write_all(self.text().as_bytes())?;
        replacement.publish()
    }

    /// Reads the file of a DAG. `None` without one, if it makes no sense, or if it is not that of the user of
    /// this process: commands are made of it. Root also reads that of the owner of the DAG.
    #[must_use]
    pub fn read(dag: &Path) -> Option<Self> {
        let file = pmc_files::open(&Self::path(dag)).ok()?;
        if !may_own(dag, file.metadata().ok()?.uid()) {
            return None;
        }
        let bytes = pmc_files::read_at_most(&file, MAX_PLACE).ok()?;
        Self::parse(std::str::from_utf8(&bytes).ok()?)
    }

    fn text(&self) -> String {
        let job = self.job.as_ref().map(|job| format!("{job}\n"));
        let stops = self.stops_at.map(|at| format!("{STOPS}{at}\n"));
        let drains = self.drains.then(|| format!("{DRAINS}\n"));
        let rest: String = [job, stops, drains].into_iter().flatten().collect();
        format!("{}\n{rest}", self.host)
    }

    /// Returns what ends the run although tasks are left, at this time in seconds since the epoch.
    #[must_use]
    pub fn limits(&self, now: u64) -> RunLimits {
        RunLimits {
            wall_seconds_left: self.stops_at.map(|at| at.saturating_sub(now)),
            drains: self.drains,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let host = lines.next().filter(|host| is_host(host))?;
        let rest: Vec<&str> = lines.collect();
        let stops = |line: &&str| line.strip_prefix(STOPS)?.parse().ok();
        Some(Self {
            host: host.to_owned(),
            job: rest.first().and_then(|line| BatchJob::parse(line)),
            stops_at: rest.iter().find_map(stops),
            drains: rest.contains(&DRAINS),
        })
    }
}

/// Returns whether a word can be the name or address of a host, and nothing else to `ssh` or `srun`.
fn is_host(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    pmc_hosts::is_name(word) && !word.starts_with('-') && word.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use pmc_batch::Scheduler;

    use super::*;

    #[test]
    fn a_place_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        assert_eq!(Place::read(&dag), None);
        let job = BatchJob::new(Scheduler::Slurm, "17");
        for (job, stops_at, drains) in [
            (None, None, false),
            (None, Some(170), true),
            (job, Some(170), true),
        ] {
            let host = "n1.cluster".to_owned();
            let place = Place {
                host,
                job,
                stops_at,
                drains,
            };
            place.write(&dag).unwrap();
            assert_eq!(Place::read(&dag).as_ref(), Some(&place));
            assert_eq!(fs::metadata(Place::path(&dag)).unwrap().mode() & 0o777, 0o600);
            let limits = place.limits(150);
            assert_eq!(limits.wall_seconds_left, stops_at.map(|_| 20));
            assert_eq!(limits.drains, drains);
        }
        assert_eq!(Place::parse("n1\nstops soon\n").unwrap().stops_at, None);
    }

    #[test]
    fn words_that_a_command_would_misread_are_no_place() {
        for text in [
            "",
            "\n",
            "-oProxyCommand=x\n",
            "a b\n",
            "$(id)\n",
            "a/b\n",
            "\nslurm 17\n",
        ] {
            assert_eq!(Place::parse(text), None, "{text:?}");
        }
        let odd = Place::parse("n1\nslurm -u\n").unwrap();
        assert_eq!((odd.host.as_str(), odd.job), ("n1", None));
    }

    #[test]
    fn a_fifo_and_a_directory_are_no_place() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        nix::unistd::mkfifo(&Place::path(&dag), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(Place::read(&dag), None);
        fs::remove_file(Place::path(&dag)).unwrap();
        symlink("/nonexistent", Place::path(&dag)).unwrap();
        assert_eq!(Place::read(&dag), None);
    }
}
