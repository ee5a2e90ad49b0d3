//! What the batch jobs of a run have cost, from the ledger, the history and the log of checkpoints.
//!
//! The charge for a job is its nodes times the time that it was used: n · (UT − RT − min(LT, MaxLT)). UT is
//! the wall time of the job. RT is the time in which its tasks waited for checkpoints that were restored. LT
//! is what is lost: of each attempt that did not end by itself, the time since the newest checkpoint that its
//! task can have, else since its start. RT and LT are slot-seconds through the slots of the job, so that a
//! job which one task fills loses what the task does.
//!
//! A run outside of batch jobs has no ledger: each of its runs counts as a job. Its nodes are the hosts that
//! have come, also those that ran no task.
//!
//! A task over several hosts counts with a slot for each of its ranks, as far as its hosts have slots, and
//! with `--exclusive` with all slots of its hosts.

use std::collections::BTreeMap;

use monitord_compat::batch_jobs::{Entry, Event};
use monitord_compat::reason::Reason;
use pmc_dag::Gang;
use rustc_hash::FxHashMap;

use crate::events::Micros;
use crate::history::{History, NEVER, Run};
use crate::resources::HostNumber;

/// A checkpoint that a task has closed, or read.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Name of the task.
    pub task: Vec<u8>,
    /// When it was closed, in seconds since the epoch.
    pub closed: f64,
    /// For how long the task waited for it, in seconds.
    pub waited: f64,
    /// It was restored, not written.
    pub is_restored: bool,
}

/// What a job has cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobCost {
    /// The job, as the ledger names it.
    pub job: String,
    /// How it ended: the word of the ledger, `running`, or `killed`.
    pub end: String,
    /// Its nodes.
    pub nodes: usize,
    /// The slots of the hosts that came to it.
    pub slots: u32,
    /// When it began, in seconds since the epoch.
    pub begin: f64,
    /// UT, in seconds.
    pub used: f64,
    /// RT, in seconds.
    pub restoring: f64,
    /// LT, in seconds.
    pub lost: f64,
    /// Slot-seconds in which tasks ran.
    pub slot_seconds: f64,
}

impl JobCost {
    /// The charge in node-seconds, if at most `max_lost` seconds of the lost time are not charged.
    #[must_use]
    pub fn charge(&self, max_lost: Option<f64>) -> f64 {
        let lost = max_lost.map_or(self.lost, |max| self.lost.min(max));
        self.nodes as f64 * (self.used - self.restoring - lost).max(0.0)
    }
}

/// A batch job, from its begin to its end.
#[derive(Clone, Debug, PartialEq)]
struct Job {
    name: String,
    nodes: usize,
    begin: f64,
    /// `None` without an end in the ledger.
    end: Option<(f64, String)>,
}

/// Returns the jobs of a ledger, in the order of their begins. A successor goes on with its job.
fn jobs(ledger: &[Entry]) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for entry in ledger {
        match &entry.event {
            Event::Begin { nodes, .. } => match jobs.last_mut().filter(|last| last.name == entry.job) {
                Some(last) => {
                    last.nodes = last.nodes.max(nodes.len());
                    last.end = None;
                }
                None => jobs.push(Job {
                    name: entry.job.clone(),
                    nodes: nodes.len(),
                    begin: entry.at,
                    end: None,
                }),
            },
            Event::End { end, .. } => {
                if let Some(job) = jobs.iter_mut().rev().find(|job| job.name == entry.job) {
                    job.end = Some((entry.at, end.clone()));
                }
            }
            _ => {}
        }
    }
    jobs
}

/// Returns the runs of a history as jobs.
fn runs(runs: &[Run]) -> Vec<Job> {
    let job = |(number, run): (usize, &Run)| Job {
        name: format!("run {number}"),
        nodes: 0,
        begin: at(run.start),
        end: run.end.map(|(end, status)| {
            let word = if status == 0 { "success" } else { "failed" };
            (at(end), word.to_owned())
        }),
    };
    (1..).zip(runs).map(job).collect()
}

fn at(time: Micros) -> f64 {
    time as f64 / 1e6
}

/// When the checkpoints of each task were closed, ascending.
struct Closed<'a>(FxHashMap<&'a [u8], Vec<f64>>);

impl<'a> Closed<'a> {
    fn new(checkpoints: &'a [Checkpoint]) -> Self {
        let mut all: FxHashMap<&[u8], Vec<f64>> = FxHashMap::default();
        for checkpoint in checkpoints.iter().filter(|one| !one.is_restored) {
            all.entry(&checkpoint.task).or_default().push(checkpoint.closed);
        }
        all.values_mut().for_each(|times| times.sort_by(f64::total_cmp));
        Self(all)
    }

    /// Returns when the newest one of a task was closed that it has at a time.
    fn newest(&self, task: &[u8], time: f64) -> Option<f64> {
        let times = self.0.get(task)?;
        let before = times.partition_point(|closed| *closed <= time);
        times.get(before.checked_sub(1)?).copied()
    }
}

/// Returns what the jobs of a run have cost. `now` counts for what runs.
#[must_use]
pub fn account(
    history: &History,
    ledger: &[Entry],
    checkpoints: &[Checkpoint],
    now: Micros,
    is_running: bool,
) -> Vec<JobCost> {
    let mut jobs = jobs(ledger);
    if jobs.is_empty() {
        jobs = runs(&history.runs);
    }
    // What comes before the first job belongs to it: clocks may differ.
    let job_of = |time: f64| {
        let begun = jobs.partition_point(|job| job.begin <= time);
        begun.saturating_sub(1)
    };
    let mut work = vec![Work::default(); jobs.len()];
    let closed = Closed::new(checkpoints);
    for (number, attempt) in history.attempts.iter().enumerate() {
        if let Some(work) = work.get_mut(job_of(at(attempt.start))) {
            work.attempts.push(number);
            let end = if attempt.end == NEVER {
                attempt.start
            } else {
                attempt.end
            };
            work.last = work.last.max(at(end));
        }
    }
    for arrival in history.hosts.arrivals() {
        if let Some(work) = work.get_mut(job_of(at(arrival.time))) {
            let slots = work.hosts.entry(arrival.host).or_default();
            *slots = arrival.slots.max(*slots);
        }
    }
    for restored in checkpoints.iter().filter(|one| one.is_restored) {
        if let Some(work) = work.get_mut(job_of(restored.closed)) {
            work.restoring += restored.waited;
        }
    }
    let count = jobs.len();
    let last_event = history.last_event().map_or(0.0, at);
    let costs = jobs.iter().zip(work).enumerate().map(|(number, (job, work))| {
        let is_last = number + 1 == count;
        let (end, how) = match &job.end {
            Some((end, how)) => (*end, how.clone()),
            None if is_last && is_running => (at(now), "running".to_owned()),
            None if is_last => (work.last.max(last_event).max(job.begin), "killed".to_owned()),
            None => (work.last.max(job.begin), "killed".to_owned()),
        };
        cost_of(history, &closed, job, &work, (end, how))
    });
    costs.collect()
}

/// What ran in a job.
#[derive(Clone, Debug, Default)]
struct Work {
    attempts: Vec<usize>,
    /// The hosts that have come, and the most slots of each.
    hosts: BTreeMap<HostNumber, u32>,
    /// Time of the last start or end.
    last: f64,
    /// Seconds in which tasks waited for checkpoints.
    restoring: f64,
}

/// Returns when the executor started again after a moment.
fn next_run(history: &History, time: Micros) -> Option<f64> {
    let runs = &history.runs;
    let begun = runs.partition_point(|run| run.start <= time);
    runs.get(begun).map(|run| at(run.start))
}

/// Returns the slots that a task over several hosts holds in a job with these slots on these hosts.
fn slots_of(gang: &Gang, slots: u32, hosts: usize) -> f64 {
    let ranks = f64::from(gang.layout.ranks());
    let slots = f64::from(slots.max(1));
    let per_host = slots / hosts.max(1) as f64;
    let hosts = gang.layout.nodes().map_or((ranks / per_host).ceil(), f64::from);
    let of_hosts = (hosts * per_host).min(slots);
    if gang.exclusive {
        of_hosts
    } else {
        ranks.min(of_hosts)
    }
}

fn cost_of(
    history: &History,
    closed: &Closed<'_>,
    job: &Job,
    work: &Work,
    (end, how): (f64, String),
) -> JobCost {
    let slots = work
        .hosts
        .values()
        .fold(0, |sum: u32, slots| sum.saturating_add(*slots));
    let held = |task| match history.plan.gang(task) {
        None => 1.0,
        Some(gang) => slots_of(gang, slots, work.hosts.len()),
    };
    let (mut slot_seconds, mut lost) = (0.0, 0.0);
    for number in &work.attempts {
        let Some(attempt) = history.attempts.get(*number) else {
            continue;
        };
        let start = at(attempt.start);
        let has_ended = attempt.end != NEVER;
        // One that was cut off ran until the executor was killed, which no log says.
        let is_cut_off = attempt.lost && !attempt.worker_lost;
        let stop = match has_ended && !is_cut_off {
            true => at(attempt.end),
            false => next_run(history, attempt.start).map_or(end, |next| next.min(end)),
        };
        let held = held(attempt.task);
        slot_seconds += held * (stop - start).max(0.0);
        let is_running = !has_ended && how == "running";
        let ended_itself = has_ended && !attempt.lost;
        let is_kept = matches!(history.reason(*number), Some(Reason::Saved | Reason::TakenOver));
        if ended_itself || is_running || is_kept {
            continue;
        }
        let newest = closed.newest(history.plan.name(attempt.task), stop);
        lost += held * (stop - newest.map_or(start, |newest| newest.max(start))).max(0.0);
    }
    let share = f64::from(slots.max(1));
    JobCost {
        job: job.name.clone(),
        end: how,
        nodes: if job.nodes > 0 {
            job.nodes
        } else {
            work.hosts.len().max(1)
        },
        slots,
        begin: job.begin,
        used: (end - job.begin).max(0.0),
        restoring: work.restoring / share,
        lost: lost / share,
        slot_seconds,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::history::tests::TestRun;

    /// How an attempt ends.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum How {
        Succeeds,
        Fails,
        Evicted,
        Saved,
        /// Nothing says so.
        CutOff,
    }
    use How::{CutOff, Evicted, Fails, Saved, Succeeds};

    /// Task, start, end, and how it ends.
    type Ran = (&'static str, u32, u32, How);

    /// A job: begin, end if the ledger has one, and its nodes.
    type Ledger = (u32, Option<u32>, usize);

    /// UT, RT, LT and slot-seconds of a job.
    type Cost = (f64, f64, f64, f64);

    /// What happens, and what each job costs.
    type Scenario = (&'static str, Vec<Ledger>, Vec<Ran>, Vec<Checkpoint>, Vec<Cost>);

    /// One executor in each job, on a host with two slots.
    fn costs(jobs: &[Ledger], ran: &[Ran], checkpoints: &[Checkpoint]) -> Vec<JobCost> {
        let mut events: Vec<(u32, u32, String, i32)> = Vec::new();
        for (begin, _, _) in jobs {
            events.push((*begin, 0, "INTERNAL *** PMC_STARTED ***".to_owned(), 0));
        }
        for (number, (task, start, end, how)) in (1..).zip(ran) {
            let rest = format!("{number}.0 - - {number}");
            events.push((*start, 2, format!("{task} SUBMIT {rest}"), 0));
            events.push((*start, 3, format!("{task} EXECUTE {rest}"), -1));
            let lines: &[String] = &match how {
                Succeeds => vec![format!("{task} JOB_SUCCESS 0 - - {number}")],
                Fails => vec![format!("{task} JOB_FAILURE 256 - - {number}")],
                Evicted => vec![format!("{task} JOB_EVICTED {rest}")],
                Saved => vec![
                    format!("INTERNAL *** PMC_REASON {task} {number}.0 saved ***"),
                    format!("{task} JOB_EVICTED {rest}"),
                ],
                CutOff => continue,
            };
            for line in lines {
                let change = i32::from(!line.starts_with("INTERNAL"));
                events.push((*end, 1, line.clone(), change));
            }
        }
        events.sort_by_key(|(time, order, ..)| (*time, *order));
        let run = TestRun::new("TASK a x\nTASK b x\nTASK c x\n");
        let mut free = 2;
        for (time, order, line, change) in events {
            run.append("jobstate.log", &format!("{time}.0 {line}\n"));
            if order == 0 {
                free = 2;
            }
            free += change;
            if order == 0 || change != 0 {
                run.append("w.dag.resource", &format!("{time}.000000,{free},8,1000,n1\n"));
            }
        }
        let mut ledger = Vec::new();
        for (number, (begin, end, nodes)) in jobs.iter().enumerate() {
            let mut add = |at: u32, event| {
                ledger.push(Entry {
                    at: f64::from(at),
                    job: format!("slurm {number}"),
                    event,
                });
            };
            add(
                *begin,
                Event::Begin {
                    nodes: (0..*nodes).map(|node| format!("n{node}")).collect(),
                    slots: None,
                    limit: None,
                    chain: 0,
                    resubmit: 9,
                    command: Vec::new(),
                    successor: false,
                },
            );
            if let Some(end) = end {
                add(
                    *end,
                    Event::End {
                        end: "time".to_owned(),
                        action: "again".to_owned(),
                        done: 0,
                    },
                );
            }
        }
        account(&run.open(), &ledger, checkpoints, 0, false)
    }

    fn checkpoint(task: &str, closed: u32, restored: Option<u32>) -> Checkpoint {
        Checkpoint {
            task: task.as_bytes().to_vec(),
            closed: f64::from(closed),
            waited: f64::from(restored.unwrap_or(0)),
            is_restored: restored.is_some(),
        }
    }

    /// Ten scenarios, and what a person would charge for each of their jobs.
    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn jobs_cost_what_the_model_says() {
        let written = |task, closed| checkpoint(task, closed, None);
        let read = |task, closed, waited| checkpoint(task, closed, Some(waited));
        let scenarios: [Scenario; 10] = [
            (
                "all succeeds",
                vec![(100, Some(200), 1)],
                vec![("a", 110, 150, Succeeds), ("b", 110, 190, Succeeds)],
                vec![],
                vec![(100.0, 0.0, 0.0, 120.0)],
            ),
            (
                "a failure is no loss",
                vec![(100, Some(200), 3)],
                vec![("a", 110, 150, Fails)],
                vec![],
                vec![(100.0, 0.0, 0.0, 40.0)],
            ),
            (
                "an eviction loses its time",
                vec![(100, Some(200), 2)],
                vec![("a", 110, 150, Evicted), ("a", 155, 195, Succeeds)],
                vec![],
                vec![(100.0, 0.0, 20.0, 80.0)],
            ),
            (
                "what was saved is not lost",
                vec![(100, Some(200), 2)],
                vec![("a", 110, 150, Evicted), ("a", 155, 195, Succeeds)],
                vec![written("a", 130), written("a", 140), written("b", 145)],
                vec![(100.0, 0.0, 5.0, 80.0)],
            ),
            (
                "an attempt that has saved itself",
                vec![(100, Some(200), 2)],
                vec![("a", 110, 150, Saved), ("a", 155, 195, Succeeds)],
                vec![],
                vec![(100.0, 0.0, 0.0, 80.0)],
            ),
            (
                "the executor is killed",
                vec![(100, Some(200), 1), (300, Some(400), 1)],
                vec![("a", 110, 0, CutOff), ("a", 310, 350, Succeeds)],
                vec![],
                vec![(100.0, 0.0, 45.0, 90.0), (100.0, 0.0, 0.0, 40.0)],
            ),
            (
                "the whole job is killed: its last event counts",
                vec![(100, None, 1), (300, Some(400), 1)],
                vec![
                    ("a", 110, 0, CutOff),
                    ("b", 120, 180, Succeeds),
                    ("a", 310, 350, Succeeds),
                ],
                vec![written("a", 150)],
                vec![(80.0, 0.0, 15.0, 130.0), (100.0, 0.0, 0.0, 40.0)],
            ),
            (
                "a checkpoint of an earlier attempt does not shorten this one",
                vec![(100, Some(200), 1), (300, Some(400), 1)],
                vec![("a", 110, 190, Evicted), ("a", 310, 390, Evicted)],
                vec![written("a", 180)],
                vec![(100.0, 0.0, 5.0, 80.0), (100.0, 0.0, 40.0, 80.0)],
            ),
            (
                "restoring is not charged",
                vec![(100, Some(200), 4), (300, Some(400), 2)],
                vec![("a", 110, 190, Evicted), ("a", 310, 390, Succeeds)],
                vec![written("a", 190), read("a", 320, 8)],
                vec![(100.0, 0.0, 0.0, 80.0), (100.0, 4.0, 0.0, 80.0)],
            ),
            (
                "both slots lose",
                vec![(100, Some(200), 1)],
                vec![("a", 110, 150, Evicted), ("b", 120, 150, Evicted)],
                vec![written("b", 140)],
                vec![(100.0, 0.0, 25.0, 70.0)],
            ),
        ];
        for (name, jobs, ran, checkpoints, expected) in scenarios {
            let costs = costs(&jobs, &ran, &checkpoints);
            let found: Vec<Cost> = costs
                .iter()
                .map(|job| (job.used, job.restoring, job.lost, job.slot_seconds))
                .collect();
            assert_eq!(found, expected, "{name}");
            for (job, (_, _, nodes)) in costs.iter().zip(&jobs) {
                assert_eq!((job.nodes, job.slots), (*nodes, 2), "{name}");
                let charge = *nodes as f64 * (job.used - job.restoring - job.lost);
                assert_eq!(job.charge(None), charge, "{name}");
                let capped = *nodes as f64 * (job.used - job.restoring - job.lost.min(10.0));
                assert_eq!(job.charge(Some(10.0)), capped, "{name}");
            }
        }
    }

    /// A pause, a run time, and how the attempt ends.
    fn attempts() -> impl Strategy<Value = Vec<(u32, u32, How)>> {
        let how = prop_oneof![Just(Fails), Just(Evicted), Just(Saved), Just(CutOff)];
        vec((0..20_u32, 1..60_u32, how), 0..6)
    }

    /// Returns what a job costs, second by second. Its two slots run `a` and `b`.
    fn second_by_second((begin, end): (u32, u32), ran: &[Ran], checkpoints: &[Checkpoint]) -> Cost {
        let is_own = |at: u32| (begin..begin + 1000).contains(&at);
        let mut cost = (f64::from(end - begin), 0.0, 0.0, 0.0);
        for (task, start, stop, how) in ran.iter().filter(|(_, start, ..)| is_own(*start)) {
            let stop = if *how == CutOff { end } else { *stop };
            let has_saved = |after: u32| {
                let is_later = |closed: f64| closed > f64::from(after) && closed <= f64::from(stop);
                let mut own = checkpoints.iter().filter(|one| one.task == task.as_bytes());
                own.any(|one| !one.is_restored && is_later(one.closed))
            };
            for second in *start..stop {
                cost.3 += 1.0;
                let is_lost = matches!(how, Evicted | CutOff) && !has_saved(second);
                cost.2 += if is_lost { 0.5 } else { 0.0 };
            }
        }
        let restored = checkpoints
            .iter()
            .filter(|one| one.is_restored && is_own(one.closed as u32));
        cost.1 = restored.map(|one| one.waited / 2.0).sum();
        cost
    }

    proptest! {
        #[test]
        fn jobs_cost_what_is_counted_second_by_second(
            lanes in vec((attempts(), attempts(), 50..300_u32), 1..4),
            saved in vec((0..4000_u32, any::<bool>(), proptest::option::of(1..9_u32)), 0..12),
        ) {
            let (mut jobs, mut ran): (Vec<Ledger>, Vec<Ran>) = (Vec::new(), Vec::new());
            for (number, (a, b, length)) in (1..).zip(&lanes) {
                let (begin, end) = (number * 1000, number * 1000 + length);
                jobs.push((begin, Some(end), 2));
                for (task, lane) in [("a", a), ("b", b)] {
                    let mut now = begin + 1;
                    for (pause, time, how) in lane {
                        let start = now + pause;
                        if start + time >= end {
                            break;
                        }
                        ran.push((task, start, start + time, *how));
                        now = start + time + 1;
                        if *how == CutOff {
                            break;
                        }
                    }
                }
            }
            let times = 1000 * jobs.len() as u32;
            let checkpoints: Vec<_> = saved
                .iter()
                .map(|(at, of_a, waited)| checkpoint(if *of_a { "a" } else { "b" }, 1000 + at % times, *waited))
                .collect();
            let found = costs(&jobs, &ran, &checkpoints);
            prop_assert_eq!(found.len(), jobs.len());
            for (cost, (begin, end, nodes)) in found.iter().zip(&jobs) {
                let model = second_by_second((*begin, end.unwrap()), &ran, &checkpoints);
                prop_assert_eq!((cost.used, cost.restoring, cost.lost, cost.slot_seconds), model);
                let charge = *nodes as f64 * (model.0 - model.1 - model.2.min(20.0)).max(0.0);
                prop_assert_eq!(cost.charge(Some(20.0)), charge);
            }
            // They sum up to the history.
            let all: u32 = ran
                .iter()
                .map(|(_, start, stop, how)| match how {
                    CutOff => lanes[(*start / 1000) as usize - 1].2 + *start / 1000 * 1000 - start,
                    _ => stop - start,
                })
                .sum();
            prop_assert_eq!(found.iter().map(|cost| cost.slot_seconds).sum::<f64>(), f64::from(all));
        }
    }

    #[test]
    fn runs_without_a_ledger_are_jobs() {
        let run = TestRun::new("TASK a x\n");
        run.append(
            "jobstate.log",
            "100.0 INTERNAL *** PMC_STARTED ***\n101.0 a SUBMIT 1.0 - - 1\n101.0 a EXECUTE 1.0 - - 1\n\
             103.0 a JOB_FAILURE 256 - - 1\n104.0 INTERNAL *** PMC_FINISHED 1 ***\n\
             200.0 INTERNAL *** PMC_STARTED ***\n201.0 a SUBMIT 1.0 - - 1\n201.0 a EXECUTE 1.0 - - 1\n",
        );
        let costs = account(&run.open(), &[], &[], 210_000_000, true);
        let found: Vec<_> = costs
            .iter()
            .map(|job| (job.job.as_str(), job.end.as_str(), job.used, job.lost))
            .collect();
        assert_eq!(found[0], ("run 1", "failed", 4.0, 0.0));
        assert_eq!((found[1].0, found[1].1, found[1].2), ("run 2", "running", 10.0));
        assert!(account(&TestRun::new("TASK a x\n").open(), &[], &[], 0, false).is_empty());
    }

    #[test]
    fn tasks_over_several_hosts_hold_slots_of_all() {
        // On two hosts of four slots.
        let cases = [
            ("-N 2", 2.0),
            ("-N 2 --ranks-per-node 4", 8.0),
            ("--ranks 3", 3.0),
            ("--ranks 100", 8.0),
            ("-N 2 --ranks 100", 8.0),
            ("--ranks 5 --exclusive", 8.0),
            ("-N 1 --exclusive", 4.0),
            ("--ranks 6 --ranks-per-node 4", 6.0),
        ];
        for (options, expected) in cases {
            let run = TestRun::new(&format!("TASK a {options} x\n"));
            run.append(
                "jobstate.log",
                "100.0 INTERNAL *** PMC_STARTED ***\n101.0 a SUBMIT 1.0 - - 1\n101.0 a EXECUTE 1.0 - - 1\n\
                 111.0 a JOB_EVICTED 1.0 - - 1\n120.0 INTERNAL *** PMC_FINISHED 1 ***\n",
            );
            run.append("w.dag.resource", "100.1,4,4,1000,n1\n100.1,4,4,1000,n2\n");
            let costs = account(&run.open(), &[], &[], 0, false);
            let found: Vec<_> = costs.iter().map(|job| (job.slot_seconds, job.lost)).collect();
            assert_eq!(found, [(10.0 * expected, 10.0 * expected / 8.0)], "{options}");
        }
    }

    #[test]
    fn hosts_that_ran_no_task_count() {
        let run = TestRun::new("TASK a x\n");
        let of_run = |begin: u32| {
            format!(
                "{begin}.0 INTERNAL *** PMC_STARTED ***\n{}.0 a SUBMIT 1.0 - - 1\n{0}.0 a EXECUTE 1.0 - - 1\n\
                 {}.0 a JOB_FAILURE 256 - - 1\n{1}.0 INTERNAL *** PMC_FINISHED 1 ***\n",
                begin + 1,
                begin + 4
            )
        };
        run.append("jobstate.log", &(of_run(100) + &of_run(200)));
        // Two hosts are there from the start, one comes later, and one of them gets a second slot.
        run.append(
            "w.dag.resource",
            "100.1,2,4,1000,n1\n100.1,2,4,1000,n2\n101.0,1,4,1000,n1\n102.0,+1,+4,+1000,n3\n\
             102.5,+1,+0,+0,n3\n103.0,-2,-4,-1000,n2\n104.0,2,4,1000,n1\n\
             200.1,2,4,1000,n1\n201.0,1,4,1000,n1\n204.0,2,4,1000,n1\n",
        );
        let costs = account(&run.open(), &[], &[], 0, false);
        let found: Vec<_> = costs.iter().map(|job| (job.nodes, job.slots)).collect();
        assert_eq!(found, [(3, 6), (1, 2)]);
    }
}
