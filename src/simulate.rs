//! Simulated runs: the scheduler itself, a virtual clock, and tasks whose run times are known.
//!
//! Nothing starts and nothing waits: time jumps from one event to the next. A node may be lost at random
//! moments; another one takes its place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};
use thiserror::Error;

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
    /// Sum of the run times of these attempts.
    pub lost: Duration,
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
    /// When the attempt of each rank began.
    began: Vec<Time>,
    /// Members that join and leave gangs: at once.
    joins: Vec<(Rank, SubmitId)>,
    leaves: Vec<(Rank, SubmitId)>,
    /// Number of members of the gangs that run.
    members: BTreeMap<SubmitId, u32>,
    /// Time for which members were held.
    held: Time,
    lost: Time,
    lost_attempts: u64,
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
                let end = self.now + micros(self.time(task)) + self.overhead;
                self.next
                    .push(Reverse((end, Next::End(Rank(rank), submit, task))));
            }
            Record::Nested(task, _) => self.nested.push(task),
            Record::Evicted { rank, submit, .. } => {
                self.members.remove(&submit);
                let began = self.began.get(rank.0 as usize).copied().unwrap_or(self.now);
                self.lost += self.now - began;
                self.lost_attempts += 1;
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
        began: Vec::new(),
        joins: Vec::new(),
        leaves: Vec::new(),
        members: BTreeMap::new(),
        held: 0,
        lost: 0,
        lost_attempts: 0,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(nodes: u32, slots: u32) -> Cluster {
        let node = |number| {
            let registration = Registration {
                host: format!("n{number}"),
                memory_mb: 1000,
                threads: slots,
                cores: slots,
                sockets: 1,
                gpus: 0,
                away: false,
            };
            (registration, slots)
        };
        Cluster {
            nodes: (0..nodes).map(node).collect(),
            overhead: Duration::ZERO,
            losses: None,
        }
    }

    fn dag(text: &str) -> Arc<Dag> {
        Arc::new(Dag::parse(text.as_bytes().to_vec()).unwrap())
    }

    fn workload(dag: &Arc<Dag>, seconds: &dyn Fn(TaskId) -> Duration) -> Workload {
        Workload {
            dag: Arc::clone(dag),
            times: dag.ids().map(seconds).collect(),
            nested: BTreeMap::new(),
        }
    }

    fn simulate(
        dag: &Arc<Dag>,
        cluster: &Cluster,
        seconds: &dyn Fn(TaskId) -> Duration,
    ) -> Result<Simulated, SimulationError> {
        super::simulate(&workload(dag, seconds), cluster)
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_diamond_takes_its_longest_path() {
        let dag = dag("TASK a x\nTASK b x\nTASK c x\nTASK d x\nEDGE a b\nEDGE a c\nEDGE b d\nEDGE c d\n");
        let times = |task: TaskId| seconds([10, 20, 5, 1][task.index()]);
        let two = simulate(&dag, &cluster(1, 2), &times).unwrap();
        assert_eq!((two.makespan, two.busy), (seconds(31), seconds(36)));
        assert!((two.utilisation() - 36.0 / 62.0).abs() < 1e-9);
        assert!((two.node_hours() - 31.0 / 3600.0).abs() < 1e-9);
        let one = simulate(&dag, &cluster(1, 1), &times).unwrap();
        assert_eq!(one.makespan, seconds(36));
        let slow = Cluster {
            overhead: seconds(1),
            ..cluster(2, 1)
        };
        assert_eq!(simulate(&dag, &slow, &times).unwrap().makespan, seconds(34));
    }

    #[test]
    fn tasks_of_sub_workflows_share_the_slots() {
        let text = "TASK a x\nSUBDAG EXTERNAL s s.dag\nTASK z x\nEDGE a s\nEDGE s z\n";
        let outer = dag(text);
        let inner = dag("TASK a x\nTASK b x\nSUBDAG EXTERNAL t t.dag\nEDGE b t\n");
        let last = dag("TASK a x\n");
        let ten = |_: TaskId| seconds(10);
        let mut run = workload(&outer, &ten);
        let sub = outer.find(b"s").unwrap();
        let mut nested = workload(&inner, &ten);
        nested
            .nested
            .insert(inner.find(b"t").unwrap(), workload(&last, &ten));
        run.nested.insert(sub, nested);
        assert_eq!(run.tasks(), 7);
        let one = super::simulate(&run, &cluster(1, 1)).unwrap();
        assert_eq!((one.makespan, one.busy), (seconds(50), seconds(50)));
        let two = super::simulate(&run, &cluster(1, 2)).unwrap();
        assert_eq!((two.makespan, two.busy), (seconds(40), seconds(50)));
        run.nested.clear();
        assert_eq!(
            super::simulate(&run, &cluster(1, 1)).unwrap().makespan,
            seconds(20)
        );
    }

    #[test]
    fn tasks_over_several_nodes_have_all_of_them_at_one_moment() {
        // The large one comes first when `a` has ended. `c` ends in time beside it, `d` would not.
        let text = "TASK a -p 9 -e 10 x\nTASK b -p 9 -e 50 x\nTASK big -N 2 -p 5 x\nTASK c -e 40 x\nTASK d -e 45 x\nEDGE a big\n";
        let times = |task: TaskId| seconds([10, 50, 100, 40, 45][task.index()]);
        let ran = simulate(&dag(text), &cluster(2, 1), &times).unwrap();
        assert_eq!(ran.makespan, seconds(195), "a, c and b; then big; then d");
        assert_eq!(ran.busy, seconds(345), "`big` holds both nodes");
        let refused = simulate(&dag("TASK big -N 3 x\n"), &cluster(2, 1), &|_| seconds(1));
        let message = refused.unwrap_err().to_string();
        assert_eq!(message, "Task big needs 3 nodes, 2 are there");
    }

    #[test]
    fn requests_limit_what_runs_at_a_time() {
        let dag = dag("TASK a -m 600 x\nTASK b -m 600 x\nTASK c -m 300 x\n");
        let ran = simulate(&dag, &cluster(1, 4), &|_| seconds(10)).unwrap();
        assert_eq!(ran.makespan, seconds(20));
        let refused = simulate(&dag, &cluster(0, 4), &|_| seconds(10));
        assert!(refused.is_err());
    }

    #[test]
    fn runs_that_cannot_end_are_refused() {
        let circle = dag("TASK a x\nTASK b x\nEDGE a b\nEDGE b a\n");
        let error = simulate(&circle, &cluster(1, 1), &|_| seconds(1)).unwrap_err();
        assert_eq!(error, SimulationError::Incomplete { left: 2, tasks: 2 });
        let large = dag("TASK a -m 1001 x\n");
        let error = simulate(&large, &cluster(1, 1), &|_| seconds(1)).unwrap_err();
        assert!(matches!(error, SimulationError::Refused(_)));
        let losing = |per_hour| Cluster {
            losses: Some(Losses {
                per_hour,
                replacement: seconds(1),
                seed: 1,
            }),
            ..cluster(2, 1)
        };
        let error = simulate(&large, &losing(0.1), &|_| seconds(1)).unwrap_err();
        assert_eq!(error, SimulationError::Incomplete { left: 1, tasks: 1 });
        let error = simulate(&dag("TASK a x\n"), &losing(1e6), &|_| seconds(3600)).unwrap_err();
        assert!(matches!(error, SimulationError::Endless(_)));
    }

    #[test]
    fn losses_cost_time() {
        let text: String = (0..400).map(|n| format!("TASK t{n} x\n")).collect();
        let dag = dag(&text);
        let mut four = cluster(4, 1);
        let calm = simulate(&dag, &four, &|_| seconds(60)).unwrap();
        assert_eq!((calm.makespan, calm.lost_attempts), (seconds(6000), 0));
        let mut makespans = Duration::ZERO;
        let mut lost = 0;
        for seed in 0..50 {
            four.losses = Some(Losses {
                per_hour: 6.0,
                replacement: seconds(30),
                seed,
            });
            let ran = simulate(&dag, &four, &|_| seconds(60)).unwrap();
            assert_eq!(
                ran,
                simulate(&dag, &four, &|_| seconds(60)).unwrap(),
                "the seed decides"
            );
            assert_eq!(ran.busy, calm.busy, "each task ends once");
            makespans += ran.makespan;
            lost += ran.lost_attempts;
        }
        // Each node loses about 10 tasks of 30 s on average, and 30 s until its replacement, in 100 minutes.
        let mean = makespans.as_secs_f64() / 50.0;
        assert!((6500.0..6900.0).contains(&mean), "{mean}");
        assert!((1900..2500).contains(&lost), "{lost}");
    }
}
