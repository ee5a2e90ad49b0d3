//! Waits until the second in which the previous run ended is over.
//!
//! monitord identifies states of a workflow by the second in which they began. If a run began in the second
//! in which the previous one ended, both would have a state with the same time. monitord would lose one of
//! them and the rows that it was about to store.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use pmc_system::thread;

use super::clock::Clock;

/// Bytes at the end of the log that are searched: some lines, even with long names.
const TAIL_LEN: u64 = 1 << 16;

/// Waits for the next second if the log has a line of the current one. Waits at most a second: later lines,
/// written before the clock was set back, do not count.
pub(super) fn wait(log: &Path, clock: &mut Clock) {
    // A file that cannot be read is not the log of a previous run.
    let tail = tail(log).unwrap_or_default();
    clock.now();
    while tail
        .split(|byte| *byte == b'\n')
        .any(|line| clock.stamp().begins(line))
    {
        thread::sleep(clock.rest_of_second());
        clock.now();
    }
}

/// Returns the end of a log; nothing for devices and pipes.
pub(super) fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let file = match pmc_files::open(log) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Vec::new()),
        opened => opened?,
    };
    let data = file.metadata()?;
    let len = data.len().min(TAIL_LEN);
    let mut tail = vec![0; len as usize];
    file.read_exact_at(&mut tail, data.len() - len)?;
    Ok(tail)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use chrono::Local;
    use monitord_compat::dagman_out::{self, Stamp};

    use super::*;

    fn end_of_run(at: chrono::NaiveDateTime) -> Vec<u8> {
        let mut lines = Vec::new();
        dagman_out::finish(&mut lines, &Stamp::new(at), 7, true);
        lines
    }

    /// Returns whether the second changed, and the time that took.
    fn waited(content: &[u8]) -> (bool, Duration) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("x.dag.dagman.out");
        fs::write(&log, content).unwrap();
        let (mut clock, began) = (Clock::new(), Instant::now());
        let before = clock.now().as_secs();
        wait(&log, &mut clock);
        (clock.now().as_secs() > before, began.elapsed())
    }

    #[test]
    fn a_run_begins_in_another_second_than_the_previous_one_ended() {
        for torn in [&b""[..], b"11/2"] {
            let now = Local::now().naive_local();
            // Also the next second, because the test may be slow.
            let mut log = end_of_run(now);
            log.extend(end_of_run(now + chrono::TimeDelta::seconds(1)));
            log.extend(torn);
            let (changed, took) = waited(&log);
            assert!(changed && took < Duration::from_secs(3), "{took:?}");
        }
    }

    #[test]
    fn other_files_and_lines_do_not_delay_a_run() {
        let now = Local::now().naive_local();
        for hours in [-1, 1] {
            let log = end_of_run(now + chrono::TimeDelta::hours(hours));
            assert!(waited(&log).1 < Duration::from_millis(500));
        }
        for path in ["/dev/null", "/", "/nowhere/at/all"] {
            wait(Path::new(path), &mut Clock::new());
        }
    }
}
