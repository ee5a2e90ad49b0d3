//! Table of invocations: one thread reads it, another sums it up.

use std::hash::Hasher as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender};

use rustc_hash::{FxBuildHasher, FxHashMap, FxHasher};

use super::levels::Levels;
use super::{Amount, Breakdown, Statistics, Step, by_host, index, open_untrusted};

/// Rows per batch.
const BATCH_SIZE: usize = 8192;
/// Maximum batches in the queue, about forty megabytes. They wait until all attempts have been read.
pub(super) const MAX_QUEUED: usize = 64;

/// One row.
pub(super) struct Invocation {
    /// Id of its attempt.
    id: usize,
    sequence: i64,
    start: f64,
    seconds: f64,
    exit: i64,
    cpu: Option<f64>,
    maxrss_kib: Option<f64>,
    avg_cpu: Option<f64>,
    /// Hash of the task name in the workflow.
    task: Option<u64>,
    /// Index into the names of transformations.
    transformation: u32,
    /// It is a sub-workflow.
    is_workflow: bool,
}

/// Endings of the last attempts of tasks, and the number of their workflow, by hash of workflow and name. A
/// collision among a million names has a probability of one in thirty million.
type Tasks = FxHashMap<u64, (u32, u8)>;

/// Odd, with many ones and zeros: spreads small numbers over all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

const GOOD: u8 = 1;
const BAD: u8 = 2;

/// Reads the table until the receiver is dropped. Returns the names of transformations.
pub(super) fn read(path: &Path, to: &SyncSender<Vec<Invocation>>) -> rusqlite::Result<Vec<String>> {
    let connection = open_untrusted(path)?;
    let mut statement = connection.prepare(
        "SELECT job_instance_id, task_submit_seq, CAST(start_time AS REAL), CAST(remote_duration AS REAL),
             CAST(remote_cpu_time AS REAL), exitcode, transformation, abs_task_id, maxrss,
             CAST(avg_cpu AS REAL)
         FROM invocation",
    )?;
    let mut known: FxHashMap<String, u32> = FxHashMap::default();
    let mut names = Vec::new();
    let mut batch = Vec::with_capacity(BATCH_SIZE);
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
        batch.push(Invocation {
            id: index(row.get(0)?),
            sequence: row.get(1)?,
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
        if batch.len() == BATCH_SIZE
            && to
                .send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH_SIZE)))
                .is_err()
        {
            return Ok(names);
        }
    }
    // The receiver may be dropped.
    let _ = to.send(batch);
    Ok(names)
}

impl Statistics {
    /// Sums up invocations; the attempts must have been read. Returns the breakdown by transformation:
    /// failed, successful.
    pub(super) fn add_invocations(
        &mut self,
        from: Receiver<Vec<Invocation>>,
        hosts: &[Option<String>],
        levels: &mut Levels,
        step: Step,
    ) -> Vec<[Breakdown; 2]> {
        let mut breakdown: Vec<[Breakdown; 2]> = Vec::new();
        let mut over_time: FxHashMap<(i64, u16), Amount> = FxHashMap::default();
        let expected = usize::try_from(self.tasks.total)
            .unwrap_or(0)
            .min(self.attempts.last.len());
        let mut tasks = Tasks::with_capacity_and_hasher(expected, FxBuildHasher);
        for invocation in from.into_iter().flatten() {
            let (id, seconds, exit) = (invocation.id, invocation.seconds, invocation.exit);
            if id >= self.attempts.last.len() {
                continue;
            }
            if invocation.sequence >= -1 {
                let worst = &mut self.attempts.exit[id];
                *worst = (*worst).max(i32::try_from(exit).unwrap_or(i32::MAX));
            }
            if invocation.sequence >= 0 && !invocation.is_workflow {
                self.job_seconds += seconds;
                if exit > 0 {
                    self.badput_seconds += seconds;
                }
                self.attempts.kickstart[id] += seconds;
                self.attempts.cpu[id] += invocation.cpu.unwrap_or(0.0);
                self.attempts.invocations[id] = self.attempts.invocations[id].saturating_add(1);
            }
            let at = invocation.transformation as usize;
            if breakdown.len() <= at {
                breakdown.resize(at + 1, [Breakdown::default(); 2]);
            }
            let sum = &mut breakdown[at][usize::from(exit == 0)];
            sum.seconds.add(seconds);
            if let Some(kib) = invocation.maxrss_kib {
                sum.memory_mb.add(kib / 1024.0);
            }
            if let Some(cpu) = invocation.avg_cpu {
                sum.cpu.add(cpu);
            }
            let period = (invocation.start as i64).div_euclid(step.seconds());
            over_time
                .entry((period, self.attempts.host[id]))
                .or_default()
                .add(seconds);
            let place = self.attempts.places.get(id).copied().unwrap_or_default();
            if let Some(task) = invocation.task.filter(|_| !place.is_nested) {
                // Two workflows may have tasks of one name.
                let key = task ^ u64::from(place.level).wrapping_mul(SPREAD);
                let (_, endings) = tasks.entry(key).or_insert((place.level, 0));
                levels.all[place.level as usize].tasks.retries += 1;
                if self.attempts.last[id] {
                    *endings |= if exit == 0 { GOOD } else { BAD };
                }
            }
        }
        for (level, endings) in tasks.values() {
            let counts = &mut levels.all[*level as usize].tasks;
            counts.succeeded += u64::from(endings & GOOD != 0);
            counts.failed += u64::from(endings & BAD != 0);
            // The first attempt is no retry.
            counts.retries -= 1;
        }
        self.invocations_over_time = by_host(over_time, hosts);
        breakdown
    }

    /// Adds the names of transformations to the breakdown.
    pub(super) fn name_breakdown(&mut self, names: Vec<String>, breakdown: &[[Breakdown; 2]]) {
        for (name, sums) in names.into_iter().zip(breakdown) {
            for (success, sum) in [false, true].into_iter().zip(sums) {
                if sum.seconds.count > 0 {
                    self.breakdown.insert((name.clone(), success), *sum);
                }
            }
        }
    }
}
