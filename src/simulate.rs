//! Simulated runs: the scheduler itself, a virtual clock, and tasks whose run times are known.
//!
//! Nothing starts and nothing waits: time jumps from one event to the next. A node may be lost at random
//! moments; another one takes its place.

mod saving;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};
use rustc_hash::FxHashMap;
use thiserror::Error;

use self::saving::Attempt;
pub use self::saving::Saving;
use crate::protocol::{Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker};
use crate::scheduler::{
    Event, GangParts, JoinError, Joining, Master, MasterConfig, MasterError, Outbox, Record, Role, Start,
    Workers,
};

/// What a simulated run has to do.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The tasks.
    pub dag: Arc<Dag>,
    /// How long each runs, by its number. For a sub-workflow that is planned when its turn comes, it is the
    /// time of its planning.
    pub times: Vec<Duration>,
    /// The sub-workflows whose tasks are known, by the number of the task. Others take no time.
    pub nested: BTreeMap<TaskId, Workload>,
}

impl Workload {
    /// Number of tasks, those of sub-workflows included.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.dag.len() + self.nested.values().map(Self::tasks).sum::<usize>()
    }
}

/// The nodes of a simulated run.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Each node, with its number of slots.
    pub nodes: Vec<(Registration, u32)>,
    /// Time from the end of a task to the start of the next one on its slot.
    pub overhead: Duration,
    /// How nodes are lost. Without it, none is.
    pub losses: Option<Losses>,
    /// How tasks save their state. Without it, none does: what a lost node ran begins again.
    pub saving: Option<Saving>,
}

/// How nodes are lost.
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    /// Mean number of losses of one node in an hour; positive.
    pub per_hour: f64,
    /// Time until another node takes the place of a lost one.
    pub replacement: Duration,
    /// Chooses the moments.
    pub seed: u64,
}

/// What a simulated run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Time from the first start to the last end.
    pub makespan: Duration,
    /// Sum of the run times of all tasks, on each of their nodes.
    pub busy: Duration,
    /// Slots of all nodes.
    pub slots: u32,
    /// Nodes.
    pub nodes: u32,
    /// Attempts that were lost with their nodes.
    pub lost_attempts: u64,
    /// Sum of the run times of these attempts, without what they had saved.
    pub lost: Duration,
    /// Time in which tasks saved their state and read it.
    pub saving_time: Duration,
}

impl Simulated {
    /// Share of the slots' time in which they ran tasks to their end, from 0 to 1.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let there = self.makespan.as_secs_f64() * f64::from(self.slots);
        if there > 0.0 {
            self.busy.as_secs_f64() / there
        } else {
            0.0
        }
    }

    /// Hours of nodes that the run used.
    #[must_use]
    pub fn node_hours(&self) -> f64 {
        self.makespan.as_secs_f64() * f64::from(self.nodes) / 3600.0
    }
}

/// Why a run cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The scheduler refuses the run, for instance because a task fits on no node.
    #[error(transparent)]
    Refused(#[from] MasterError),
    /// With its sub-workflows, the run has too many tasks.
    #[error(transparent)]
    TooLarge(#[from] JoinError),
    /// A task fits on no node, or tasks depend on each other in a circle.
    #[error("{left} of {tasks} tasks cannot run: they fit on no node, or depend on each other in a circle")]
    Incomplete {
        /// Tasks that did not run.
        left: usize,
        /// All tasks.
        tasks: usize,
    },
    /// Nodes are lost faster than tasks end.
    #[error("at this rate of losses, the run does not end: {0} attempts were lost")]
    Endless(u64),
}

/// Microseconds since the start of the run.
type Time = u64;

/// What happens next. The order of the variants is the order at equal times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    End(Rank, SubmitId, TaskId),
    Lose(u32),
    Join(u32),
    /// The scheduler wants to look whether something may start.
    Look,
}

/// Follows the scheduler.
struct Follower<'a> {
    now: Time,
    overhead: Time,
    /// All workflows, with the number of their first task in the run.
    workloads: Vec<(u32, &'a Workload)>,
    /// Sub-workflows whose turn has come.
    nested: Vec<TaskId>,
    next: BinaryHeap<Reverse<(Time, Next)>>,
    saving: Option<Saving>,
    /// When the attempt of each rank began.
    began: Vec<Time>,
    /// Work of tasks that lost attempts had saved.
    saved: FxHashMap<TaskId, Time>,
    /// Members that join and leave gangs: at once.
    joins: Vec<(Rank, SubmitId)>,
    leaves: Vec<(Rank, SubmitId)>,
    /// Number of members of the gangs that run.
    members: BTreeMap<SubmitId, u32>,
    /// Time for which members were held.
    held: Time,
    lost: Time,
    lost_attempts: u64,
    /// Time in which tasks saved their state and read it.
    extra: Time,
}

impl<'a> Follower<'a> {
    /// Returns the workflow of a task, and its number there.
    fn locate(&self, task: TaskId) -> (&'a Workload, TaskId) {
        let after = self.workloads.partition_point(|(base, _)| *base <= task.0);
        let (base, workload) = self.workloads[after - 1];
        (workload, TaskId(task.0 - base))
    }

    fn time(&self, task: TaskId) -> Duration {
        let (workload, own) = self.locate(task);
        workload.times[own.index()]
    }

    /// The attempt of a task that runs or is to start.
    fn attempt(&self, task: TaskId) -> Attempt {
        let saved = self.saved.get(&task).copied().unwrap_or(0);
        Attempt::new(self.saving, micros(self.time(task)), saved)
    }

    /// The attempt of a task was lost with the node of its rank.
    fn lose(&mut self, task: TaskId, rank: Rank) {
        let began = self.began.get(rank.0 as usize).copied().unwrap_or(self.now);
        let ran = self.now - began;
        let attempt = self.attempt(task);
        let saved = attempt.saved(ran);
        if saved > 0 {
            *self.saved.entry(task).or_default() += saved;
        }
        // All of its saves were counted at its start.
        let extra = attempt.extra_until(ran);
        self.extra -= attempt.extra() - extra;
        self.lost += ran - saved - extra;
        self.lost_attempts += 1;
    }
}

impl Outbox for Follower<'_> {
    fn start(&mut self, _: Start) {}

    fn join(&mut self, gang: GangParts) {
        let members = gang.parts.iter().skip(1);
        self.members.insert(gang.submit, members.len() as u32);
        self.joins.extend(members.map(|part| (part.rank, gang.submit)));
    }

    fn leave(&mut self, from: Rank, submit: SubmitId) {
        self.leaves.push((from, submit));
    }

    fn send(&mut self, _: Rank, _: ToWorker) {}

    fn record(&mut self, record: Record<'_>) {
        match record {
            Record::Started(task, submit, Rank(rank)) => {
                let at = rank as usize;
                if self.began.len() <= at {
                    self.began.resize(at + 1, 0);
                }
                self.began[at] = self.now;
                let attempt = self.attempt(task);
                self.extra += attempt.extra();
                let end = self.now + attempt.time() + self.overhead;
                self.next
                    .push(Reverse((end, Next::End(Rank(rank), submit, task))));
            }
            Record::Nested(task, _) => self.nested.push(task),
            Record::Evicted {
                task, submit, rank, ..
            } => {
                self.members.remove(&submit);
                self.lose(task, rank);
            }
            _ => {}
        }
    }
}

/// Simulates a run of all tasks. Each succeeds.
///
/// # Errors
/// A task fits on no node, tasks depend on each other in a circle, or nodes are lost all the time.
pub fn simulate(workload: &Workload, cluster: &Cluster) -> Result<Simulated, SimulationError> {
    let follower = Follower {
        now: 0,
        overhead: micros(cluster.overhead),
        workloads: vec![(0, workload)],
        nested: Vec::new(),
        next: BinaryHeap::new(),
        saving: cluster.saving,
        began: Vec::new(),
        saved: FxHashMap::default(),
        joins: Vec::new(),
        leaves: Vec::new(),
        members: BTreeMap::new(),
        held: 0,
        lost: 0,
        lost_attempts: 0,
        extra: 0,
    };
    Run::new(&workload.dag, cluster, follower)?.finish(workload.tasks())
}

struct Run<'a> {
    cluster: &'a Cluster,
    master: Master,
    out: Follower<'a>,
    /// The task that each DAG is that has joined.
    parents: Vec<TaskId>,
    /// Ranks of each node.
    ranks: Vec<Vec<Rank>>,
    last_rank: u32,
    random: u64,
}

impl<'a> Run<'a> {
    fn new(dag: &Arc<Dag>, cluster: &'a Cluster, out: Follower<'a>) -> Result<Self, SimulationError> {
        let slots: u32 = cluster.nodes.iter().map(|(_, slots)| *slots).sum();
        let workers = match cluster.losses {
            Some(_) => Workers::Dynamic,
            None => Workers::Fixed(slots),
        };
        let config = MasterConfig {
            max_attempts: 1,
            max_failures: 0,
            crash_limit: 0,
        };
        let mut run = Self {
            cluster,
            master: Master::new(Arc::clone(dag), DoneSet::new(), workers, config).with_gangs_over_hosts(),
            out,
            parents: Vec::new(),
            ranks: vec![Vec::new(); cluster.nodes.len()],
            last_rank: 0,
            random: cluster.losses.map_or(0, |losses| losses.seed),
        };
        for node in 0..cluster.nodes.len() as u32 {
            run.join(node)?;
        }
        run.master.start(&mut run.out)?;
        Ok(run)
    }

    /// Lets the workers of a node come.
    fn join(&mut self, node: u32) -> Result<(), SimulationError> {
        let (registration, slots) = &self.cluster.nodes[node as usize];
        self.ranks[node as usize].clear();
        for _ in 0..*slots {
            self.last_rank += 1;
            let rank = Rank(self.last_rank);
            self.ranks[node as usize].push(rank);
            let event = Event::Registered(rank, registration.clone());
            self.master.handle(event, &mut self.out)?;
        }
        if let Some(losses) = self.cluster.losses {
            let wait = self.exponential() / losses.per_hour * 3600.0;
            let time = self.out.now.saturating_add((wait * 1e6) as Time);
            self.out.next.push(Reverse((time, Next::Lose(node))));
        }
        Ok(())
    }

    /// Returns a random number with an exponential distribution and the mean 1.
    fn exponential(&mut self) -> f64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        // 53 bits, above 0 and at most 1.
        let uniform = ((mixed >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -uniform.ln()
    }

    fn finish(mut self, tasks: usize) -> Result<Simulated, SimulationError> {
        // A run that loses more makes no progress.
        let most_lost = 1000 + 100 * tasks as u64;
        self.schedule()?;
        while !self.master.is_finished() {
            let Some(Reverse((time, next))) = self.out.next.pop() else {
                break;
            };
            self.out.now = time;
            self.happen(next)?;
            // What ends at the same time is seen at once.
            while let Some(&Reverse((same, next))) = self.out.next.peek()
                && same == time
            {
                self.out.next.pop();
                self.happen(next)?;
            }
            self.schedule()?;
            let lost = self.out.lost_attempts;
            if lost > most_lost {
                return Err(SimulationError::Endless(lost));
            }
            if self.master.stranded().is_some() && self.ranks.iter().all(|ranks| !ranks.is_empty()) {
                // All nodes are there, and none has room.
                break;
            }
        }
        let summary = self.master.summary();
        if !summary.success {
            let tasks = summary.tasks;
            let left = tasks - summary.done;
            return Err(SimulationError::Incomplete { left, tasks });
        }
        Ok(Simulated {
            makespan: Duration::from_micros(self.out.now),
            busy: summary.runtime + Duration::from_micros(self.out.held),
            slots: self.cluster.nodes.iter().map(|(_, slots)| *slots).sum(),
            nodes: self.cluster.nodes.len() as u32,
            lost_attempts: self.out.lost_attempts,
            lost: Duration::from_micros(self.out.lost),
            saving_time: Duration::from_micros(self.out.extra),
        })
    }

    /// Starts what can start. The tasks of sub-workflows join when their turn comes, and members of gangs
    /// answer at once.
    fn schedule(&mut self) -> Result<(), SimulationError> {
        self.answer()?;
        self.master.advance(Duration::from_micros(self.out.now));
        loop {
            self.master.schedule(&mut self.out);
            let has_answered = self.answer()?;
            let nested = std::mem::take(&mut self.out.nested);
            let (has_joined, mut ended) = (!nested.is_empty(), Vec::new());
            for task in nested {
                let (workload, own) = self.out.locate(task);
                match workload.nested.get(&own) {
                    Some(inner) => {
                        self.out.workloads.push((self.master.next_base(), inner));
                        self.parents.push(task);
                        self.master.grow(Joining {
                            dag: Arc::clone(&inner.dag),
                            done: DoneSet::new(),
                            role: Role::Nested(task),
                        })?;
                    }
                    None => ended.push(task),
                }
            }
            let joined = self.master.take_ended().into_iter();
            ended.extend(joined.map(|segment| self.parents[segment.index()]));
            if ended.is_empty() && !has_joined && !has_answered {
                break;
            }
            for task in ended {
                let event = Event::SubdagEnded(task, Outcome::new(0, Duration::ZERO));
                self.master.handle(event, &mut self.out)?;
            }
        }
        if let Some(time) = self.master.next_time() {
            let time = micros(time).max(self.out.now + 1);
            self.out.next.push(Reverse((time, Next::Look)));
        }
        Ok(())
    }

    /// Lets members of gangs join and leave. Returns whether there were any.
    fn answer(&mut self) -> Result<bool, SimulationError> {
        let mut has_answered = false;
        while !(self.out.joins.is_empty() && self.out.leaves.is_empty()) {
            has_answered = true;
            for (rank, submit) in std::mem::take(&mut self.out.joins) {
                self.master.handle(Event::Joined(rank, submit), &mut self.out)?;
            }
            for (rank, submit) in std::mem::take(&mut self.out.leaves) {
                let is_cut = false;
                self.master
                    .handle(Event::Left { rank, submit, is_cut }, &mut self.out)?;
            }
        }
        Ok(has_answered)
    }

    fn happen(&mut self, next: Next) -> Result<(), SimulationError> {
        match next {
            Next::End(rank, submit, task) => {
                // Those of a lost attempt are counted no more.
                let members = self.out.members.remove(&submit).unwrap_or(0);
                let time = micros(self.out.time(task));
                self.out.held = self.out.held.saturating_add(time.saturating_mul(members.into()));
                let result = TaskResult {
                    submit,
                    outcome: Outcome::new(0, self.out.time(task)),
                    forwards: Vec::new(),
                    returned: None,
                };
                self.master.handle(Event::Finished(rank, result), &mut self.out)?;
            }
            Next::Lose(node) => {
                for rank in std::mem::take(&mut self.ranks[node as usize]) {
                    self.master.handle(Event::Lost(rank), &mut self.out)?;
                }
                let wait = self
                    .cluster
                    .losses
                    .map_or(Duration::ZERO, |losses| losses.replacement);
                let time = self.out.now.saturating_add(micros(wait));
                self.out.next.push(Reverse((time, Next::Join(node))));
            }
            Next::Join(node) => self.join(node)?,
            Next::Look => {}
        }
        Ok(())
    }
}

fn micros(duration: Duration) -> Time {
    Time::try_from(duration.as_micros()).unwrap_or(Time::MAX / 4)
}
