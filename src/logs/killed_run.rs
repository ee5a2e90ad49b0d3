//! Ends the logs of a run that was killed, when the next run begins.
//!
//! A run that a launcher kills cannot write its last lines. Readers of the logs would take the next run for a
//! part of it. The lines get the time of the last line of that run.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use monitord_compat::{dagman_out, jobstate_log};

use super::last_second::tail;

/// Adds the finish line of the last run to `lines`, if `.dagman.out` has none. No run may be writing the log.
pub(super) fn finish_dagman(log: &Path, lines: &mut Vec<u8>) -> io::Result<()> {
    let tail = tail(log)?;
    let last = tail
        .rsplit(|byte| *byte == b'\n')
        .find_map(|line| Some((line, dagman_out::Stamp::of(line)?)));
    if let Some((line, stamp)) = last
        && !dagman_out::is_finish(line)
        && let Some(pid) = last_pid(log)?
    {
        dagman_out::finish(lines, &stamp, pid, false);
    }
    Ok(())
}

/// Returns the process id of the last run in the log.
fn last_pid(log: &Path) -> io::Result<Option<u32>> {
    let mut reader = BufReader::with_capacity(1 << 16, File::open(log)?);
    let (mut line, mut pid) = (Vec::new(), None);
    while reader.read_until(b'\n', &mut line)? > 0 {
        pid = dagman_out::pid(&line).or(pid);
        line.clear();
    }
    Ok(pid)
}

/// As [`finish_dagman`], for `jobstate.log`.
pub(super) fn finish_jobstate(log: &Path, lines: &mut Vec<u8>) -> io::Result<()> {
    let tail = tail(log)?;
    let mut complete = tail.split_inclusive(|byte| *byte == b'\n').rev();
    if let Some((at, false)) = complete.find_map(jobstate_log::time_and_finish) {
        jobstate_log::finish(lines, at, false);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use chrono::NaiveDateTime;

    use super::*;

    /// Returns what is added to logs with these contents.
    fn added(dagman: &[u8], jobstate: &[u8]) -> (String, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("dagman"), dagman).unwrap();
        fs::write(path("jobstate"), jobstate).unwrap();
        let (mut to_dagman, mut to_jobstate) = (Vec::new(), Vec::new());
        finish_dagman(&path("dagman"), &mut to_dagman).unwrap();
        finish_jobstate(&path("jobstate"), &mut to_jobstate).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(to_dagman), text(to_jobstate))
    }

    #[test]
    fn a_killed_run_gets_its_finish_lines() {
        let at = |seconds: u64| {
            let local = NaiveDateTime::default() + chrono::TimeDelta::seconds(seconds.cast_signed());
            (dagman_out::Stamp::new(local), Duration::new(seconds, 5000))
        };
        let (mut dagman, mut jobstate) = (Vec::new(), Vec::new());
        for (pid, begin) in [(7, 0), (8, 20)] {
            let (stamp, time) = at(begin);
            dagman_out::start(&mut dagman, &stamp, pid, b"x.dag");
            jobstate_log::start(&mut jobstate, time);
            let (stamp, time) = at(begin + 5);
            dagman_out::queued(&mut dagman, &stamp, b"a", 1);
            jobstate_log::queued(&mut jobstate, time, b"a", 1);
            let expected = (
                format!(
                    "01/01/70 00:00:{:02} **** condor_scheduniv_exec.0.0 (condor_DAGMAN) pid {pid} \
                     EXITING WITH STATUS 1\n",
                    begin + 5
                ),
                format!("{}.000005 INTERNAL *** PMC_FINISHED 1 ***\n", begin + 5),
            );
            assert_eq!(added(&dagman, &jobstate), expected);
            let torn = (
                [dagman.as_slice(), b"01/01/70 00:0"].concat(),
                [jobstate.as_slice(), b"9999999999.000000 INTERNAL *** PMC_FINI"].concat(),
            );
            assert_eq!(added(&torn.0, &torn.1), expected);
            dagman_out::finish(&mut dagman, &stamp, pid, true);
            jobstate_log::finish(&mut jobstate, time, true);
            let none = (String::new(), String::new());
            assert_eq!(added(&dagman, &jobstate), none, "the run has ended by itself");
        }
    }

    #[test]
    fn other_files_stay_as_they_are() {
        assert_eq!(added(b"", b""), (String::new(), String::new()));
        assert_eq!(added(b"notes\n", b"notes\n"), (String::new(), String::new()));
        let mut none = Vec::new();
        finish_dagman(Path::new("/dev/null"), &mut none).unwrap();
        finish_jobstate(Path::new("/dev/null"), &mut none).unwrap();
        assert!(none.is_empty());
    }
}
