//! How long a run takes, from the run times that the jobs declare.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::exec::{JobId, Task};
use crate::graph::Graph;
use crate::task_request::{self, Amounts};
use crate::tasks::Plan;

/// Estimated duration of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds from the start of the first job to the end of the last.
    pub makespan: f64,
    /// Seconds of the longest chain of jobs: a lower bound for any number of nodes.
    pub longest_chain: f64,
    /// Seconds of all jobs.
    pub work: f64,
    /// Assumed number of nodes.
    pub nodes: u32,
    /// Executor processes on each node; one of all is the master.
    pub tasks_per_node: u32,
    /// Compute jobs of known run time; other jobs count as 0.
    pub known: usize,
}

/// What jobs share in a batch job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) nodes: u32,
    pub(crate) tasks_per_node: u32,
    /// Jobs of one CPU that run at a time.
    pub(crate) slots: u64,
    /// MiB of memory of a node, if known.
    pub(crate) memory_mb: Option<u64>,
}

/// Resources of all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    slots: u64,
    memory_mb: u64,
}

impl Machine {
    fn all(&self) -> Share {
        Share {
            slots: self.slots.max(1),
            memory_mb: self.memory_mb.unwrap_or(0).saturating_mul(self.nodes.into()),
        }
    }

    /// Returns what a job takes. What it leaves on a node for no other job like it counts as taken.
    fn share(&self, amounts: Amounts) -> Share {
        let memory_mb = self
            .memory_mb
            .filter(|_| amounts.memory_mb > 0)
            .map_or(0, |node| {
                let fit = (node / amounts.memory_mb).max(1);
                node / fit
            });
        Share {
            slots: u64::from(amounts.cpus.min(self.tasks_per_node)).clamp(1, self.all().slots),
            memory_mb,
        }
    }
}

/// Estimates the duration of a run. Returns `None` if no run time is known.
pub(crate) fn estimate(plan: &Plan<'_>, machine: Machine) -> Option<Estimate> {
    let exec = plan.exec;
    let mut known = 0;
    let mut times = vec![0.0f64; exec.jobs.len()];
    for (n, job) in exec.jobs.iter().enumerate() {
        if matches!(job.task, Task::Compute(_) | Task::Cluster(..))
            && let Some(seconds) = task_request::run_time(&exec.setups[job.setup].profiles)
        {
            known += 1;
            times[n] = seconds;
        }
    }
    if known == 0 {
        return None;
    }
    let graph = Graph::new(exec.jobs.len(), &exec.edges);
    Some(Estimate {
        makespan: makespan(plan, &graph, &times, machine),
        longest_chain: longest_chain(plan, &graph, &times),
        work: times.iter().sum(),
        nodes: machine.nodes,
        tasks_per_node: machine.tasks_per_node,
        known,
    })
}

/// Simulates a run and returns its duration in seconds. Jobs start in the order in which they become ready,
/// as in the executor without priorities.
fn makespan(plan: &Plan<'_>, graph: &Graph<JobId>, times: &[f64], machine: Machine) -> f64 {
    let exec = plan.exec;
    let takes = |job: JobId| {
        let job = &exec.jobs[job];
        match job.task {
            Task::Compute(_) | Task::Cluster(..) => {
                machine.share(Amounts::of(&exec.setups[job.setup].profiles))
            }
            _ => Share {
                slots: 1,
                memory_mb: 0,
            },
        }
    };
    let mut free = machine.all();
    let mut waiting = graph.parent_counts();
    let roots = plan.order.iter().copied();
    let mut ready: VecDeque<JobId> = roots.filter(|&n| waiting[n] == 0).collect();
    // Ends, earliest first. Times are not negative, so their bits have the same order.
    let mut running: BinaryHeap<Reverse<(u64, JobId)>> = BinaryHeap::new();
    let mut now = 0.0f64;
    loop {
        while let Some(&job) = ready.front() {
            let needs = takes(job);
            if needs.slots > free.slots || needs.memory_mb > free.memory_mb {
                break;
            }
            ready.pop_front();
            free.slots -= needs.slots;
            free.memory_mb -= needs.memory_mb;
            let end: f64 = now + times[job];
            running.push(Reverse((end.to_bits(), job)));
        }
        let Some(Reverse((end, job))) = running.pop() else {
            break;
        };
        now = f64::from_bits(end);
        let taken = takes(job);
        free.slots += taken.slots;
        free.memory_mb += taken.memory_mb;
        for &child in graph.children(job) {
            waiting[child] -= 1;
            if waiting[child] == 0 {
                ready.push_back(child);
            }
        }
    }
    now
}

/// Returns the seconds of the longest chain of jobs.
fn longest_chain(plan: &Plan<'_>, graph: &Graph<JobId>, times: &[f64]) -> f64 {
    let mut ends = vec![0.0f64; times.len()];
    let mut longest = 0.0f64;
    for &job in &plan.order {
        let start = graph.parents(job).iter().map(|&p| ends[p]).fold(0.0, f64::max);
        ends[job] = start + times[job];
        longest = longest.max(ends[job]);
    }
    longest
}

/// Formats a duration.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

pub(super) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted() {
        assert_eq!(duration(2.34), "2.3 s");
        assert_eq!(duration(75.0), "1 min 15 s");
        assert_eq!(duration(7321.0), "2 h 02 min");
    }

    #[test]
    fn a_job_takes_its_cpus_and_its_share_of_the_memory_of_a_node() {
        let machine = Machine {
            nodes: 2,
            tasks_per_node: 8,
            slots: 15,
            memory_mb: Some(8000),
        };
        for (memory_mb, cpus, taken) in [
            (0, 1, (1, 0)),
            (1000, 2, (2, 1000)),
            (3000, 1, (1, 4000)),
            (9000, 99, (8, 8000)),
        ] {
            let amounts = Amounts {
                memory_mb,
                cpus,
                gpus: 0,
            };
            let share = machine.share(amounts);
            assert_eq!((share.slots, share.memory_mb), taken, "{amounts:?}");
        }
        assert_eq!(machine.all().memory_mb, 16000);
    }
}
