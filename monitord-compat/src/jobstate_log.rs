//! `jobstate.log`: one line per state of a task.
//!
//! The layout is that of pegasus-mpi-cluster 5.1 with `--jobstate-log`. Times are seconds since the epoch
//! with six decimals.

use std::io::Write as _;
use std::time::Duration;

use crate::reason::Reason;

/// Writes the start of a run. `at` is the time since the epoch, here and below.
pub fn start(out: &mut Vec<u8>, at: Duration) {
    time(out, at);
    out.extend_from_slice(b"INTERNAL *** PMC_STARTED ***\n");
}

/// Writes that an attempt is ready. `number` is its submit number, here and below.
pub fn queued(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64) {
    state(out, at, task, "SUBMIT", number);
}

/// Writes that an attempt was given to a worker.
pub fn started(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64) {
    state(out, at, task, "EXECUTE", number);
}

/// Writes that an attempt ended with this raw wait status.
pub fn ended(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64, status: i32) {
    state(out, at, task, "JOB_TERMINATED", number);
    result(out, at, task, number, status);
}

/// Writes the second line of [`ended`].
pub fn result(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64, status: i32) {
    time(out, at);
    out.extend_from_slice(task);
    let word = if status == 0 { "JOB_SUCCESS" } else { "JOB_FAILURE" };
    writeln!(out, " {word} {status} - - {number}").expect("writing to memory does not fail");
}

/// Writes why an attempt ended, before [`ended`] or [`aborted`].
pub fn reason(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64, reason: Reason) {
    time(out, at);
    out.extend_from_slice(b"INTERNAL *** PMC_REASON ");
    out.extend_from_slice(task);
    writeln!(out, " {number}.0 {} ***", reason.encode()).expect("writing to memory does not fail");
}

/// Writes that the command starts that makes the DAG of a sub-workflow: its PRE script.
pub fn preparing(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64) {
    state(out, at, task, "PRE_SCRIPT_STARTED", number);
}

/// Writes that this command has ended with this raw wait status.
pub fn prepared(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64, status: i32) {
    state(out, at, task, "PRE_SCRIPT_TERMINATED", number);
    time(out, at);
    out.extend_from_slice(task);
    let word = if status == 0 {
        "PRE_SCRIPT_SUCCESS"
    } else {
        "PRE_SCRIPT_FAILURE"
    };
    writeln!(out, " {word} {status} - - {number}").expect("writing to memory does not fail");
}

/// Writes that an attempt was lost with its worker. Its task is queued again, as another attempt.
pub fn evicted(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64) {
    state(out, at, task, "JOB_EVICTED", number);
}

/// Writes that an attempt was lost with its worker, and that its task has failed for that with this status.
pub fn aborted(out: &mut Vec<u8>, at: Duration, task: &[u8], number: u64, status: i32) {
    state(out, at, task, "JOB_ABORTED", number);
    result(out, at, task, number, status);
}

/// Writes the end of a run.
pub fn finish(out: &mut Vec<u8>, at: Duration, success: bool) {
    time(out, at);
    let status = u8::from(!success);
    writeln!(out, "INTERNAL *** PMC_FINISHED {status} ***").expect("writing to memory does not fail");
}

/// Returns the time of a line and whether it is that of [`finish`]. `None` for lines of other programs.
#[must_use]
pub fn time_and_finish(line: &[u8]) -> Option<(Duration, bool)> {
    let (time, text) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    // The whole line must be there, and monitord's own lines do not count.
    if !text.ends_with('\n') || text.starts_with("INTERNAL *** ") && !text.contains("*** PMC_") {
        return None;
    }
    let (seconds, micros) = time.split_once('.')?;
    let (seconds, micros): (u64, u32) = (seconds.parse().ok()?, micros.parse().ok()?);
    let nanos = micros.checked_mul(1000).filter(|nanos| *nanos < 1_000_000_000)?;
    let at = Duration::new(seconds, nanos);
    Some((at, text.starts_with("INTERNAL *** PMC_FINISHED ")))
}

/// Content of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A run begins.
    Start,
    /// An attempt has a new state.
    Attempt {
        /// Task.
        task: &'a [u8],
        /// The state, for instance `SUBMIT`.
        state: &'a [u8],
        /// Submit number.
        number: u64,
    },
    /// Anything else.
    Other,
}

/// Reads a complete line. Lines of other programs and incomplete lines are [`What::Other`].
#[must_use]
pub fn read(line: &[u8]) -> What<'_> {
    let Some(line) = line.strip_suffix(b"\n") else {
        return What::Other;
    };
    let mut words = line.split(|byte| *byte == b' ').skip(1);
    let (Some(task), Some(state)) = (words.next(), words.next()) else {
        return What::Other;
    };
    if task == b"INTERNAL" && state == b"***" {
        let is_start = words.next() == Some(b"PMC_STARTED");
        return if is_start { What::Start } else { What::Other };
    }
    // After the state come its value, two empty columns and the number.
    let number = words
        .nth(3)
        .and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
    number.map_or(What::Other, |number| What::Attempt { task, state, number })
}

fn state(out: &mut Vec<u8>, at: Duration, task: &[u8], word: &str, number: u64) {
    time(out, at);
    out.extend_from_slice(task);
    writeln!(out, " {word} {number}.0 - - {number}").expect("writing to memory does not fail");
}

fn time(out: &mut Vec<u8>, at: Duration) {
    write!(out, "{}.{:06} ", at.as_secs(), at.subsec_micros()).expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_times_and_ends() {
        let at = Duration::new(1_700_000_000, 42_000_000);
        let mut out = Vec::new();
        start(&mut out, at);
        queued(&mut out, at, b"a", 7);
        finish(&mut out, at, false);
        let lines: Vec<_> = out
            .split_inclusive(|byte| *byte == b'\n')
            .map(time_and_finish)
            .collect();
        assert_eq!(lines, [Some((at, false)), Some((at, false)), Some((at, true))]);
        for other in [
            "1700000000 INTERNAL *** MONITORD_STARTED ***\n",
            "1700000000.000000 INTERNAL *** MONITORD_FINISHED 0 ***\n",
            "1700000000.042000 a SUB",
            "1700000000.042000",
            "x.0 a\n",
            "1.9999999 a\n",
            "",
        ] {
            assert_eq!(read(other.as_bytes()), What::Other, "{other}");
            assert_eq!(time_and_finish(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_run_has_these_lines() {
        let at = Duration::new(1_700_000_000, 42_000_999);
        let mut out = Vec::new();
        start(&mut out, at);
        queued(&mut out, at, b"a", 7);
        started(&mut out, at, b"a", 7);
        ended(&mut out, at, b"a", 7, 0);
        ended(&mut out, at, b"b", 8, 9);
        evicted(&mut out, at, b"c", 9);
        aborted(&mut out, at, b"c", 10, 256);
        finish(&mut out, at, false);
        let expected = [
            "INTERNAL *** PMC_STARTED ***",
            "a SUBMIT 7.0 - - 7",
            "a EXECUTE 7.0 - - 7",
            "a JOB_TERMINATED 7.0 - - 7",
            "a JOB_SUCCESS 0 - - 7",
            "b JOB_TERMINATED 8.0 - - 8",
            "b JOB_FAILURE 9 - - 8",
            "c JOB_EVICTED 9.0 - - 9",
            "c JOB_ABORTED 10.0 - - 10",
            "c JOB_FAILURE 256 - - 10",
            "INTERNAL *** PMC_FINISHED 1 ***",
        ];
        let expected: String = expected
            .iter()
            .map(|l| format!("1700000000.042000 {l}\n"))
            .collect();
        let read: Vec<_> = out.split_inclusive(|byte| *byte == b'\n').map(read).collect();
        let attempt = |task, state, number| What::Attempt { task, state, number };
        assert_eq!(read[0], What::Start);
        assert_eq!(read[1], attempt(b"a", b"SUBMIT", 7));
        assert_eq!(read[4], attempt(b"a", b"JOB_SUCCESS", 7));
        assert_eq!(read[7], attempt(b"c", b"JOB_EVICTED", 9));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
