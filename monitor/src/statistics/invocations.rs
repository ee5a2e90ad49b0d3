//! The table of invocations: one thread reads it, another adds it up.

use std::hash::Hasher as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender};

use rustc_hash::{FxBuildHasher, FxHashMap, FxHasher};

use super::{Amount, Breakdown, Statistics, Step, by_host, index, open};

/// Rows that are handed over at a time.
const ROWS: usize = 8192;
/// How often that may happen before they are taken, which begins when all tries are known: some forty megabytes.
pub(super) const AHEAD: usize = 64;

/// One row.
pub(super) struct Invocation {
    /// Number of its try.
    id: usize,
    seq: i64,
    start: f64,
    seconds: f64,
    exit: i64,
    cpu: Option<f64>,
    maxrss_kib: Option<f64>,
    avg_cpu: Option<f64>,
    /// Hash of its task in the abstract workflow.
    task: Option<u64>,
    /// Index into the names of transformations.
    transformation: u32,
    /// It stands for a workflow of its own.
    is_workflow: bool,
}

/// How the last tries of tasks ended. Hashes stand for names: of a million, two are alike once in thirty million times.
type Tasks = FxHashMap<u64, u8>;

const GOOD: u8 = 1;
const BAD: u8 = 2;

/// Reads the table, and gives the names of transformations. Ends early when nobody wants the rows any more.
pub(super) fn read(path: &Path, to: &SyncSender<Vec<Invocation>>) -> rusqlite::Result<Vec<String>> {
    let connection = open(path)?;
    let mut statement = connection.prepare(
        "SELECT job_instance_id, task_submit_seq, CAST(start_time AS REAL), CAST(remote_duration AS REAL),
             CAST(remote_cpu_time AS REAL), exitcode, transformation, abs_task_id, maxrss, CAST(avg_cpu AS REAL)
         FROM invocation",
    )?;
    let mut known: FxHashMap<String, u32> = FxHashMap::default();
    let mut names = Vec::new();
    let mut some = Vec::with_capacity(ROWS);
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let name = row.get_ref(6)?.as_str().unwrap_or("");
        let transformation = match known.get(name) {
            Some(&number) => number,
            None => {
                let number = u32::try_from(names.len()).unwrap_or(u32::MAX);
                known.insert(name.to_owned(), number);
                names.push(name.to_owned());
                number
            }
        };
        some.push(Invocation {
            id: index(row.get(0)?),
            seq: row.get(1)?,
            start: row.get(2)?,
            seconds: row.get(3)?,
            exit: row.get(5)?,
            cpu: row.get(4)?,
            maxrss_kib: row.get(8)?,
            avg_cpu: row.get(9)?,
            task: row.get_ref(7)?.as_bytes().ok().map(|task| {
                let mut hasher = FxHasher::default();
                hasher.write(task);
                hasher.finish()
            }),
            transformation,
            is_workflow: name == "condor::dagman",
        });
        if some.len() == ROWS
            && to
                .send(std::mem::replace(&mut some, Vec::with_capacity(ROWS)))
                .is_err()
        {
            return Ok(names);
        }
    }
    // Nobody may want the last ones either.
    let _ = to.send(some);
    Ok(names)
}

impl Statistics {
    /// Adds up what comes; all tries must be known. Gives the figures of transformations that failed and succeeded.
    pub(super) fn add_invocations(
        &mut self,
        from: Receiver<Vec<Invocation>>,
        hosts: &[Option<String>],
        step: Step,
    ) -> Vec<[Breakdown; 2]> {
        let mut breakdown: Vec<[Breakdown; 2]> = Vec::new();
        let mut over_time: FxHashMap<(i64, u16), Amount> = FxHashMap::default();
        let expected = usize::try_from(self.tasks.total)
            .unwrap_or(0)
            .min(self.tries.last.len());
        let mut tasks = Tasks::with_capacity_and_hasher(expected, FxBuildHasher);
        let mut task_tries = 0;
        for one in from.into_iter().flatten() {
            let (id, seconds, exit) = (one.id, one.seconds, one.exit);
            if id >= self.tries.last.len() {
                continue;
            }
            if one.seq >= -1 {
                let worst = &mut self.tries.exit[id];
                *worst = (*worst).max(i32::try_from(exit).unwrap_or(i32::MAX));
            }
            if one.seq >= 0 && !one.is_workflow {
                self.job_seconds += seconds;
                if exit > 0 {
                    self.badput_seconds += seconds;
                }
                self.tries.kickstart[id] += seconds;
                self.tries.cpu[id] += one.cpu.unwrap_or(0.0);
                self.tries.invocations[id] = self.tries.invocations[id].saturating_add(1);
            }
            let at = one.transformation as usize;
            if breakdown.len() <= at {
                breakdown.resize(at + 1, [Breakdown::default(); 2]);
            }
            let sum = &mut breakdown[at][usize::from(exit == 0)];
            sum.seconds.add(seconds);
            if let Some(kib) = one.maxrss_kib {
                sum.memory_mb.add(kib / 1024.0);
            }
            if let Some(cpu) = one.avg_cpu {
                sum.cpu.add(cpu);
            }
            #[expect(clippy::cast_possible_truncation, reason = "seconds since the epoch")]
            let piece = (one.start as i64).div_euclid(step.seconds());
            over_time
                .entry((piece, self.tries.host[id]))
                .or_default()
                .add(seconds);
            if let Some(task) = one.task {
                let ends = tasks.entry(task).or_insert(0);
                task_tries += 1;
                if self.tries.last[id] {
                    *ends |= if exit == 0 { GOOD } else { BAD };
                }
            }
        }
        let with = |end: u8| tasks.values().filter(|ends| **ends & end != 0).count() as u64;
        (self.tasks.succeeded, self.tasks.failed) = (with(GOOD), with(BAD));
        self.tasks.retries = task_tries - tasks.len() as u64;
        self.invocations_over_time = by_host(over_time, hosts);
        breakdown
    }

    /// Brings the figures of transformations under their names.
    pub(super) fn name_breakdown(&mut self, names: Vec<String>, breakdown: &[[Breakdown; 2]]) {
        for (name, sums) in names.into_iter().zip(breakdown) {
            for (well, sum) in [false, true].into_iter().zip(sums) {
                if sum.seconds.count > 0 {
                    self.breakdown.insert((name.clone(), well), *sum);
                }
            }
        }
    }
}
