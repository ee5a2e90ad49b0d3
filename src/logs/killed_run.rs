//! Ends the logs of a run that was killed, when the next run begins.
//!
//! A run that a launcher kills cannot write its last lines. Readers of the logs would take the next run for a
//! part of it. The lines get the time of the last line of that run.
//!
//! A run can also be killed after it has recorded in the rescue file that a task is done, and before its logs
//! say so. That task does not run again, so readers would wait for its end for ever. Its last lines are
//! written, too. Attempts of other tasks that were running are evicted: they have ended with the run, or the
//! next master goes on with them under new numbers.

use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use monitord_compat::dagman_out_reader::{self, What};
use monitord_compat::{dagman_out, jobstate_log};
use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};
use rustc_hash::FxHashMap;

use super::last_second::tail;

/// The tasks that are done.
#[derive(Clone, Copy)]
pub(super) struct Done<'a> {
    pub(super) dag: &'a Dag,
    pub(super) done: &'a DoneSet,
}

/// Attempts that a log of the last run submits and does not end.
#[derive(Default)]
struct Unended(FxHashMap<TaskId, Attempt>);

struct Attempt {
    number: u64,
    /// The last state in the log.
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Queued,
    Started,
    /// The first of the two lines about its end is there.
    Terminated,
}

impl Unended {
    fn note(&mut self, dag: &Dag, task: &[u8], number: u64, state: &[u8]) {
        let Some(task) = dag.find(task) else { return };
        let state = match state {
            b"SUBMIT" => State::Queued,
            b"EXECUTE" => State::Started,
            b"JOB_TERMINATED" => State::Terminated,
            _ => {
                // A number that was cut off is that of no attempt.
                if self.0.get(&task).is_some_and(|attempt| attempt.number == number) {
                    self.0.remove(&task);
                }
                return;
            }
        };
        self.0.insert(task, Attempt { number, state });
    }

    /// Returns those of tasks that are done, and those that were running of others, each in the order of
    /// their submission.
    fn split(self, done: &DoneSet) -> [Vec<(TaskId, Attempt)>; 2] {
        let mut attempts: Vec<_> = self.0.into_iter().collect();
        attempts.sort_unstable_by_key(|(_, attempt)| attempt.number);
        let (of_done, mut others): (Vec<_>, Vec<_>) =
            attempts.into_iter().partition(|(task, _)| done.contains(*task));
        others.retain(|(_, attempt)| attempt.state == State::Started);
        [of_done, others]
    }
}

/// Adds to `lines` what the last run could not write to `.dagman.out`: ends of tasks that are done,
/// evictions of those that were running, and the finish line. No run may be writing the log. Returns the
/// number of ends.
pub(super) fn finish_dagman(log: &Path, done: Done<'_>, lines: &mut Vec<u8>) -> io::Result<usize> {
    let tail = tail(log)?;
    let last = tail
        .rsplit(|byte| *byte == b'\n')
        .find_map(|line| Some((line, dagman_out::Stamp::of(line)?)));
    let Some((line, stamp)) = last else { return Ok(0) };
    if dagman_out::is_finish(line) {
        return Ok(0);
    }
    let (pid, unended) = last_run(log, done.dag)?;
    let Some(pid) = pid else { return Ok(0) };
    let [ends, running] = unended.split(done.done);
    for (task, Attempt { number, state }) in &ends {
        let name = done.dag.name(*task);
        match state {
            State::Queued => dagman_out::started(lines, &stamp, name, *number),
            State::Started => {}
            State::Terminated => {
                dagman_out::result(lines, &stamp, name, *number, 0);
                continue;
            }
        }
        dagman_out::ended(lines, &stamp, name, *number, 0);
    }
    for (task, Attempt { number, .. }) in &running {
        dagman_out::evicted(lines, &stamp, done.dag.name(*task), *number);
    }
    dagman_out::finish(lines, &stamp, pid, false);
    Ok(ends.len())
}

/// Returns the process id of the last run in `.dagman.out`, and its attempts without an end.
fn last_run(log: &Path, dag: &Dag) -> io::Result<(Option<u32>, Unended)> {
    let (mut pid, mut unended) = (None, Unended::default());
    for_each_line(log, |line| {
        match dagman_out_reader::read(line).map(|line| line.what) {
            Some(What::Pid(number)) => {
                pid = Some(number);
                unended.0.clear();
            }
            Some(What::Event { state, job, number }) => {
                if let Some(number) = submit_number(number) {
                    unended.note(dag, job, number, state);
                }
            }
            Some(What::Ended { job, number, .. }) => {
                if let Some(number) = submit_number(number) {
                    unended.note(dag, job, number, b"ended");
                }
            }
            _ => {}
        }
    })?;
    Ok((pid, unended))
}

/// Reads the number in `17.0`.
fn submit_number(id: &[u8]) -> Option<u64> {
    std::str::from_utf8(id.strip_suffix(b".0")?).ok()?.parse().ok()
}

/// As [`finish_dagman`], for `jobstate.log`.
pub(super) fn finish_jobstate(log: &Path, done: Done<'_>, lines: &mut Vec<u8>) -> io::Result<usize> {
    let mut tail = tail(log)?;
    tail.push(b'\n');
    let mut lines_of_tail = tail.split_inclusive(|byte| *byte == b'\n').rev();
    let Some((at, false)) = lines_of_tail.find_map(jobstate_log::time_and_finish) else {
        return Ok(0);
    };
    let mut unended = Unended::default();
    for_each_line(log, |line| match jobstate_log::read(line) {
        jobstate_log::What::Start => unended.0.clear(),
        jobstate_log::What::Attempt { task, state, number } => unended.note(done.dag, task, number, state),
        jobstate_log::What::Other => {}
    })?;
    let [ends, running] = unended.split(done.done);
    for (task, attempt) in &ends {
        end_in_jobstate(lines, at, done.dag.name(*task), attempt);
    }
    for (task, attempt) in &running {
        jobstate_log::evicted(lines, at, done.dag.name(*task), attempt.number);
    }
    jobstate_log::finish(lines, at, false);
    Ok(ends.len())
}

fn end_in_jobstate(lines: &mut Vec<u8>, at: Duration, name: &[u8], attempt: &Attempt) {
    let Attempt { number, state } = *attempt;
    if state == State::Terminated {
        jobstate_log::result(lines, at, name, number, 0);
        return;
    }
    if state == State::Queued {
        jobstate_log::started(lines, at, name, number);
    }
    jobstate_log::ended(lines, at, name, number, 0);
}

/// Calls `each` with every line. A last line without its line feed gets one from this run, so readers take it
/// as it is then, and this one does, too.
fn for_each_line(log: &Path, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(1 << 16, pmc_files::open(log)?);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        each(&line);
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use chrono::NaiveDateTime;

    use super::*;

    /// Returns what is added to logs with these contents, when tasks `a` to `c` are done.
    fn added(dagman: &[u8], jobstate: &[u8]) -> (String, String) {
        let dag = Dag::parse(b"TASK a x\nTASK b x\nTASK c x\nTASK d x\n".to_vec()).unwrap();
        let mut done = DoneSet::new();
        for name in [b"a", b"b", b"c"] {
            done.insert(dag.find(name).unwrap());
        }
        let done = Done {
            dag: &dag,
            done: &done,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("dagman"), dagman).unwrap();
        fs::write(path("jobstate"), jobstate).unwrap();
        let (mut to_dagman, mut to_jobstate) = (Vec::new(), Vec::new());
        finish_dagman(&path("dagman"), done, &mut to_dagman).unwrap();
        finish_jobstate(&path("jobstate"), done, &mut to_jobstate).unwrap();
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
            dagman_out::queued(&mut dagman, &stamp, b"d", 1);
            jobstate_log::queued(&mut jobstate, time, b"d", 1);
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
                [jobstate.as_slice(), b"9999999999.0000"].concat(),
            );
            assert_eq!(added(&torn.0, &torn.1), expected);
            dagman_out::finish(&mut dagman, &stamp, pid, true);
            jobstate_log::finish(&mut jobstate, time, true);
            let none = (String::new(), String::new());
            assert_eq!(added(&dagman, &jobstate), none, "the run has ended by itself");
            let without_line_feed = |log: &[u8]| log[..log.len() - 1].to_vec();
            let torn = added(&without_line_feed(&dagman), &without_line_feed(&jobstate));
            assert_eq!(torn, none, "only the line feeds of the last lines are missing");
        }
    }

    #[test]
    fn an_end_counts_without_its_line_feed_but_not_with_a_number_cut_off() {
        let at = Duration::new(5, 0);
        let log = |cut: usize| {
            let mut lines = Vec::new();
            jobstate_log::start(&mut lines, at);
            jobstate_log::queued(&mut lines, at, b"a", 17);
            jobstate_log::started(&mut lines, at, b"a", 17);
            jobstate_log::ended(&mut lines, at, b"a", 17, 0);
            lines.truncate(lines.len() - cut);
            lines
        };
        let finish = "5.000000 INTERNAL *** PMC_FINISHED 1 ***\n";
        assert_eq!(added(b"", &log(1)).1, finish);
        let end = "5.000000 a JOB_SUCCESS 0 - - 17\n";
        assert_eq!(added(b"", &log(2)).1, format!("{end}{finish}"));
    }

    #[test]
    fn other_files_stay_as_they_are() {
        assert_eq!(added(b"", b""), (String::new(), String::new()));
        assert_eq!(added(b"notes\n", b"notes\n"), (String::new(), String::new()));
        let mut none = Vec::new();
        let (dag, done) = (Dag::parse(Vec::new()).unwrap(), DoneSet::new());
        let done = Done {
            dag: &dag,
            done: &done,
        };
        finish_dagman(Path::new("/dev/null"), done, &mut none).unwrap();
        finish_jobstate(Path::new("/dev/null"), done, &mut none).unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn tasks_that_are_done_get_their_ends() {
        let stamp = dagman_out::Stamp::new(NaiveDateTime::default());
        let at = Duration::new(5, 0);
        // The lines of a run with the states that the log of the killed run has.
        let log = |states: [usize; 4]| {
            let (mut dagman, mut jobstate) = (Vec::new(), Vec::new());
            dagman_out::start(&mut dagman, &stamp, 7, b"x.dag");
            jobstate_log::start(&mut jobstate, at);
            for (task, number, states) in [
                (b"a", 2, states[0]),
                (b"b", 3, states[1]),
                (b"c", 4, states[2]),
                (b"d", 5, states[3]),
            ] {
                let mut lines = Vec::new();
                dagman_out::queued(&mut lines, &stamp, task, number);
                dagman_out::started(&mut lines, &stamp, task, number);
                dagman_out::ended(&mut lines, &stamp, task, number, 0);
                // A submission has two lines.
                let lines = lines.split_inclusive(|byte| *byte == b'\n').take(states + 1);
                lines.for_each(|line| dagman.extend_from_slice(line));
                let mut lines = Vec::new();
                jobstate_log::queued(&mut lines, at, task, number);
                jobstate_log::started(&mut lines, at, task, number);
                jobstate_log::ended(&mut lines, at, task, number, 0);
                let lines = lines.split_inclusive(|byte| *byte == b'\n').take(states);
                lines.for_each(|line| jobstate.extend_from_slice(line));
            }
            (dagman, jobstate)
        };
        let sorted = |text: &[u8]| {
            let text = String::from_utf8(text.to_vec()).unwrap();
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        for states in [[1, 1, 1, 1], [1, 2, 3, 2], [4, 4, 3, 3], [4, 4, 4, 1]] {
            let (mut dagman, mut jobstate) = log(states);
            let (to_dagman, to_jobstate) = added(&dagman, &jobstate);
            dagman.extend_from_slice(to_dagman.as_bytes());
            jobstate.extend_from_slice(to_jobstate.as_bytes());
            // The task that is not done was running at most.
            let (mut whole_dagman, mut whole_jobstate) = log([4, 4, 4, states[3]]);
            if states[3] == 2 {
                dagman_out::evicted(&mut whole_dagman, &stamp, b"d", 5);
                jobstate_log::evicted(&mut whole_jobstate, at, b"d", 5);
            }
            dagman_out::finish(&mut whole_dagman, &stamp, 7, false);
            jobstate_log::finish(&mut whole_jobstate, at, false);
            assert_eq!(sorted(&dagman), sorted(&whole_dagman));
            assert_eq!(sorted(&jobstate), sorted(&whole_jobstate));
            let again = added(&dagman, &jobstate);
            assert_eq!(again, (String::new(), String::new()), "nothing is added twice");
        }
    }
}
