//! Gangs: tasks that hold several hosts at once.
//!
//! The command of a gang runs on its *lead*; the other hosts are its *members*. What it holds of a host is a
//! *part*, and takes a slot. All parts are taken at one moment, and given back one by one.
//!
//! ```text
//! queued ──fits──> joining ──all have joined──> running ──lead has ended──> leaving ──all have left──> ended
//!   ^ └─ first, does not fit ─> reserved ─┘        └─ lead or member lost ─────^
//!   └── a member refuses: the others leave, its host is avoided; after the third time the attempt has failed
//! ```
//!
//! A gang that has succeeded is done when its command has ended, and one that was lost or has failed is ready
//! again when all have left: no process of an attempt runs beside the next one. If a connection between its
//! hosts was cut, an attempt that failed was lost.
//!
//! Whether a gang fits is known from `fits`, which hosts it gets is decided in `choice`, and what is kept for
//! one that does not fit in `reservation`. After the death of a master, the next one puts the parts together
//! again (`adoption`).

mod adoption;
mod choice;
mod fits;
mod life;
mod reservation;
mod status;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use pmc_dag::{Dag, Gang, GangId, TaskId};
use rustc_hash::FxHashMap;

pub use self::adoption::{LeadAdoption, MemberAdoption};
use self::fits::Fits;
use self::reservation::Reservation;
pub(super) use self::status::of_person;
use crate::protocol::{Outcome, Rank, SubmitId};
use crate::scheduler::Granted;
use crate::scheduler::gpus::GpuSet;
use crate::scheduler::hosts::{Grant, PartRequest};
#[cfg(test)]
use crate::scheduler::run::Master;

/// How often hosts may refuse a gang before its attempt has failed.
const MAX_REFUSALS: u32 = 3;

/// The hosts that a gang gets, its lead first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangParts {
    /// Which task.
    pub task: TaskId,
    /// Number of the attempt.
    pub submit: SubmitId,
    /// It has whole hosts.
    pub is_exclusive: bool,
    /// What it gets of each host.
    pub parts: Vec<GangPart>,
}

/// What a gang gets of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangPart {
    /// The worker that holds it.
    pub rank: Rank,
    /// Name of the host.
    pub host: String,
    /// Number of ranks.
    pub ranks: u32,
    /// What all of these ranks may use.
    pub grant: Granted,
}

/// The gangs of a run.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    /// What tasks need, of all DAGs of the run.
    kinds: Vec<Gang>,
    /// Gangs may have several hosts.
    over_hosts: bool,
    running: BTreeMap<SubmitId, RunningGang>,
    /// Workers that hold a part.
    part_of: FxHashMap<Rank, SubmitId>,
    /// The last gang that each worker has left.
    left: FxHashMap<Rank, SubmitId>,
    /// How often hosts have refused each task.
    refusals: FxHashMap<TaskId, u32>,
    reservation: Option<Reservation>,
    fits: Fits,
    /// When the latest attempt of each worker began, by rank.
    began: Vec<Option<Duration>>,
}

/// A gang that holds hosts.
#[derive(Debug)]
struct RunningGang {
    task: TaskId,
    /// Where its command runs, or will run.
    lead: Option<Rank>,
    stage: Stage,
    /// Those that have not left.
    parts: Vec<Part>,
    /// It counts for limits, and as running.
    counts: bool,
    /// The end of its command was not recorded as a slot that is free.
    is_quiet: bool,
}

/// A part that a gang holds.
#[derive(Debug)]
struct Part {
    rank: Rank,
    host: u32,
    request: PartRequest,
    block: Option<Range<u32>>,
    gpus: GpuSet,
    /// It is the lead's, or has joined.
    has_joined: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    Joining,
    /// An earlier master started it. The members that must come, once the lead has said it.
    Adopting(Option<Vec<String>>),
    Running,
    /// All are to leave.
    Leaving(Next),
}

/// What follows when all have left.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    /// Nothing: the task is done.
    Nothing,
    /// It has failed, or has saved itself. A connection was cut or not.
    Judge {
        rank: Rank,
        outcome: Outcome,
        is_cut: bool,
    },
    /// It was lost.
    Lost,
    /// It waits again, as before.
    Queue,
    /// It waits again, or fails if hosts have refused it too often.
    Refused,
    /// The task of an earlier master is ready.
    Ready,
}

impl Gangs {
    /// Adds the gangs of a DAG. Returns the number of the first one.
    pub(super) fn add(&mut self, dag: &Dag) -> u32 {
        let first = self.kinds.len() as u32;
        self.kinds.extend_from_slice(dag.gangs());
        first
    }

    /// Learns the kinds that the first DAG, the only one of the run, has got. Returns whether there are any.
    pub(super) fn learn(&mut self, dag: &Dag) -> bool {
        let known = self.kinds.len();
        self.kinds.extend(dag.gangs().iter().skip(known).cloned());
        self.kinds.len() > known
    }

    /// Lets gangs have several hosts, or not.
    pub(super) fn set_over_hosts(&mut self, over_hosts: bool) {
        self.over_hosts = over_hosts;
    }

    /// What the tasks with this number need.
    pub(super) fn kind(&self, id: GangId) -> &Gang {
        &self.kinds[id.index()]
    }

    /// True if no task of the run is a gang.
    pub(super) fn are_none(&self) -> bool {
        self.kinds.is_empty() && self.running.is_empty()
    }

    /// True if no gang holds a host.
    pub(super) fn hold_nothing(&self) -> bool {
        self.running.is_empty()
    }

    /// True if a worker holds a part.
    pub(super) fn has_part(&self, rank: Rank) -> bool {
        !self.part_of.is_empty() && self.part_of.contains_key(&rank)
    }

    /// Returns the gang of a worker.
    fn of_mut(&mut self, rank: Rank) -> Option<(SubmitId, &mut RunningGang)> {
        let submit = *self.part_of.get(&rank)?;
        self.running.get_mut(&submit).map(|gang| (submit, gang))
    }

    /// True if a worker has left this gang: what it still says of it does not count.
    pub(super) fn has_left(&self, rank: Rank, submit: SubmitId) -> bool {
        self.left.get(&rank) == Some(&submit)
    }

    /// Looks again whether gangs fit: something else than what is free has changed.
    pub(super) fn try_again(&mut self) {
        self.fits.clear();
    }

    /// Notes when a worker begins an attempt.
    pub(super) fn note_begin(&mut self, rank: Rank, now: Duration) {
        let index = rank.0 as usize;
        if self.began.len() <= index {
            self.began.resize(index + 1, None);
        }
        self.began[index] = Some(now);
    }
}

impl RunningGang {
    fn part_mut(&mut self, rank: Rank) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.rank == rank)
    }

    /// True if its attempt counts as one that runs.
    fn is_active(&self) -> bool {
        !matches!(self.stage, Stage::Leaving(_))
    }
}

impl Part {
    fn new(host: u32, request: PartRequest, grant: Grant) -> Self {
        Self {
            rank: grant.rank,
            host,
            request,
            block: grant.block,
            gpus: grant.gpus,
            has_joined: false,
        }
    }

    /// What its ranks may use.
    fn granted(&self) -> Granted {
        let request = self.request.request;
        Granted {
            memory_mb: request.memory_mb,
            cpus: request.cpus,
            cpu_set: self.block.clone().map_or_else(Vec::new, Iterator::collect),
            gpu_set: self.gpus.numbers().collect(),
        }
    }
}

#[cfg(test)]
impl Master {
    /// True if a worker holds a part.
    pub(super) fn holds_part(&self, rank: Rank) -> bool {
        self.gangs.has_part(rank)
    }

    /// Tasks of gangs that count as running, and whose command does not run yet.
    pub(super) fn gathering(&self) -> impl Iterator<Item = TaskId> + '_ {
        let gangs = self.gangs.running.values();
        let joining = |gang: &&RunningGang| matches!(gang.stage, Stage::Joining | Stage::Adopting(_));
        gangs.filter(joining).map(|gang| gang.task)
    }

    /// The gang whose parts are not chosen anew any more, and their hosts.
    pub(super) fn last_choice(&self) -> Option<(TaskId, Vec<String>)> {
        let kept = self.gangs.reservation.as_ref()?;
        let hosts = kept
            .parts
            .iter()
            .map(|(host, _)| self.hosts.get(*host).name.clone());
        kept.is_last().then(|| (kept.task, hosts.collect()))
    }

    /// True if a worker of a host takes tasks.
    pub(super) fn takes_tasks_on(&self, host: &str) -> bool {
        let mut ranks = self.workers_of(host).into_iter();
        ranks.any(|rank| self.slots[rank.0 as usize - 1].member.takes_tasks())
    }

    /// Parts that gangs hold of a host: memory, CPUs, numbers of CPUs, GPUs, and how many.
    pub(super) fn held_by_gangs(&self, host: u32) -> (u64, u64, usize, GpuSet, usize) {
        let mut sum = (0, 0, 0, GpuSet::default(), 0);
        let parts = self.gangs.running.values().flat_map(|gang| &gang.parts);
        for part in parts.filter(|part| part.host == host) {
            sum.0 += part.request.request.memory_mb;
            sum.1 += u64::from(part.request.request.cpus);
            sum.2 += part.block.as_ref().map_or(0, ExactSizeIterator::len);
            assert!(!sum.3.overlaps(part.gpus), "two parts have the same GPU");
            sum.3.put_back(part.gpus);
            sum.4 += 1;
        }
        sum
    }
}
