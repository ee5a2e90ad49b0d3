//! Leaves the second in which the last run of a log ended.
//!
//! monitord knows the states of a workflow by the second in which they began. If a run began in
//! the second in which the one before ended, both would have a state of the same time, and
//! monitord would lose one of them together with all that it was about to store.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::clock::Clock;

/// Enough to hold some lines, whatever the length of names.
const TAIL: u64 = 1 << 16;

/// Waits for the next second if the log has a line of this one: at most a second, since lines from
/// the future, of before the clock was set back, do not count.
pub(super) fn leave(log: &Path, clock: &mut Clock) {
    // What cannot be read is no log of a run before. If it cannot be written, either, its owner
    // will say so.
    let tail = tail(log).unwrap_or_default();
    clock.now();
    while tail
        .split(|byte| *byte == b'\n')
        .any(|line| clock.stamp().begins(line))
    {
        std::thread::sleep(clock.rest_of_second());
        clock.now();
    }
}

fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(log)?;
    let data = file.metadata()?;
    if !data.is_file() {
        return Ok(Vec::new());
    }
    let len = data.len().min(TAIL);
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

    /// Whether the clock has gone on to another second, and how long that took.
    fn left(content: &[u8]) -> (bool, Duration) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("x.dag.dagman.out");
        fs::write(&log, content).unwrap();
        let (mut clock, began) = (Clock::new(), Instant::now());
        let before = clock.now().as_secs();
        leave(&log, &mut clock);
        (clock.now().as_secs() > before, began.elapsed())
    }

    #[test]
    fn a_run_does_not_begin_in_the_second_in_which_one_ended() {
        for torn in [&b""[..], b"11/2"] {
            let now = Local::now().naive_local();
            // This one and the next: the test may be slow.
            let mut log = end_of_run(now);
            log.extend(end_of_run(now + chrono::TimeDelta::seconds(1)));
            log.extend(torn);
            let (left, took) = left(&log);
            assert!(left && took < Duration::from_secs(3), "{took:?}");
        }
    }

    #[test]
    fn nothing_else_holds_up_a_run() {
        let now = Local::now().naive_local();
        for hours in [-1, 1] {
            let log = end_of_run(now + chrono::TimeDelta::hours(hours));
            assert!(left(&log).1 < Duration::from_millis(500));
        }
        for path in ["/dev/null", "/", "/nowhere/at/all"] {
            leave(Path::new(path), &mut Clock::new());
        }
    }
}
