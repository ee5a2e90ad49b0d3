//! DAGs that join a run: sub-workflows.
//!
//! A DAG that joins is a *segment*: its tasks get the next numbers of the scheduler, and compete with all
//! others for slots. The task that the DAG is, its *parent*, is nested meanwhile: it holds no slot, and
//! ends when the driver says so. A parent that is tried again gets a new segment. A *guest* has no parent:
//! it shares the run with the workflow that was first (`shares`). The numbers of a segment are never used
//! again.

use std::sync::Arc;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{CategoryId, Dag, GangId, OptionSet, TaskId};
use thiserror::Error;

use crate::protocol::{Outcome, Rank, SubmitId};
use crate::scheduler::cache_index::InputSet;
use crate::scheduler::categories::Category;
use crate::scheduler::run::{Master, Summary};
use crate::scheduler::shares::ShareId;
use crate::scheduler::tasks::{Kind, NO_TASK, Node, State};
use crate::scheduler::{MasterError, Outbox, Record};

/// Number of a DAG that has joined, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

impl SegmentId {
    /// Returns the number as an index into arrays over all segments.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a DAG is that joins a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This task, which is nested.
    Nested(TaskId),
    /// A workflow of its own.
    Guest {
        /// Its weight; the first workflow has [`FIRST_WEIGHT`](pmc_status::FIRST_WEIGHT).
        weight: u32,
    },
}

/// A DAG that joins a run.
#[derive(Debug)]
pub struct Joining {
    /// The DAG.
    pub dag: Arc<Dag>,
    /// Its tasks that are not run.
    pub done: DoneSet,
    /// What it is.
    pub role: Role,
}

/// A DAG that has joined.
#[derive(Debug)]
pub(super) struct Segment {
    dag: Arc<Dag>,
    /// Number of its first task.
    base: u32,
    /// The share that its tasks take from.
    pub(super) share: ShareId,
    /// Its tasks that run, or will without the end of another one.
    active: usize,
    /// It is a nested task, and is not closed.
    is_nested: bool,
    summary: Summary,
}

impl Segment {
    /// Its DAG; an empty one after its end.
    pub(super) fn dag(&self) -> &Dag {
        &self.dag
    }

    /// Number of its first task.
    pub(super) fn base(&self) -> u32 {
        self.base
    }

    /// Its tasks; none after its end.
    pub(super) fn tasks(&self) -> impl Iterator<Item = TaskId> + use<> {
        let end = self.base + self.dag.len() as u32;
        (self.base..end).map(TaskId)
    }
}

/// Why a DAG cannot join.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// There are no more numbers.
    #[error("with the {0} tasks of this DAG, the run would have too many tasks")]
    TooManyTasks(usize),
}

impl Master {
    /// Adds a DAG to the run. If nothing of it can run, it has ended at once: see [`Master::take_ended`].
    ///
    /// # Errors
    /// There are too many tasks. The state is unchanged.
    pub fn grow(&mut self, joining: Joining) -> Result<SegmentId, JoinError> {
        let Joining { dag, done, role } = joining;
        let id = SegmentId(self.segments.len() as u32);
        let end = self.nodes.len().checked_add(dag.len());
        if end.is_none_or(|end| end >= NO_TASK as usize) {
            return Err(JoinError::TooManyTasks(dag.len()));
        }
        let base = self.nodes.len() as u32;
        let share = match role {
            Role::Nested(parent) => self.share_of(parent),
            Role::Guest { weight } => self.add_share(weight),
        };
        self.run_times.learn(&dag);
        let sets = self.add_categories(&dag);
        let cpus: Vec<u32> = sets.iter().map(|set| set.request.cpus).collect();
        self.hosts.grow(&cpus);
        let chain_of = self.chains(&sets, share);
        let inputs_of = self.cache_index.add_sets(&dag);
        let (mut ready, done_before) = add_nodes(&mut self.nodes, &dag, &chain_of, &inputs_of, &done);
        self.set_up_subdags(&dag, base, share);
        ready.iter_mut().for_each(|task| task.0 += base);
        let active = ready.len();
        self.ready.append(&mut ready);
        let summary = Summary {
            tasks: dag.len(),
            done_before,
            done: done_before,
            success: done_before == dag.len(),
            ..Summary::default()
        };
        self.segments.push(Segment {
            dag,
            base,
            share,
            active,
            is_nested: matches!(role, Role::Nested(_)),
            summary,
        });
        self.name_transformations();
        self.nested_open += usize::from(matches!(role, Role::Nested(_)));
        if active == 0 {
            self.ended.push(id);
        }
        Ok(id)
    }

    /// Adds the categories and gangs of a DAG, and returns its sets of options with their new numbers. A
    /// limit of the whole DAG is a category around all of them.
    fn add_categories(&mut self, dag: &Dag) -> Vec<OptionSet> {
        let whole = dag.max_jobs().map(|limit| self.add_category(limit, None));
        let first = self.categories.len() as u32;
        for limit in dag.category_limits() {
            self.add_category(*limit, whole);
        }
        if let Some(whole) = whole {
            self.categories[whole.index()].parts = first..self.categories.len() as u32;
        }
        let first_gang = self.gangs.add(dag);
        if !dag.gangs().is_empty() {
            self.learn_run_times();
        }
        let moved = |set: OptionSet| OptionSet {
            category: set.category.map(|id| CategoryId(id.0 + first)).or(whole),
            gang: set.gang.map(|id| GangId(id.0 + first_gang)),
            ..set
        };
        dag.option_sets().map(moved).collect()
    }

    fn add_category(&mut self, limit: u32, within: Option<CategoryId>) -> CategoryId {
        let id = CategoryId(self.categories.len() as u32);
        self.categories.push(Category::new(limit, within));
        self.queue.add_category();
        id
    }

    /// Returns the chains for these sets of options, also those that the run has not had so far.
    pub(super) fn chains(&mut self, sets: &[OptionSet], share: ShareId) -> Vec<u32> {
        let categories = &self.categories;
        let is_open = |id: CategoryId| !Category::is_blocked(categories, id);
        self.queue.grow(&self.nodes, sets, share, is_open)
    }

    /// Marks the tasks of a DAG that are sub-workflows. Their preparations share a limit.
    pub(super) fn set_up_subdags(&mut self, dag: &Dag, base: u32, share: ShareId) {
        for task in dag.subdag_ids() {
            let is_prepared = dag.subdag(task).is_some_and(|subdag| subdag.is_prepared);
            let mut kind = Kind::Subdag;
            if is_prepared {
                kind = Kind::Prepared;
                let plans = match self.plans {
                    Some(plans) => plans,
                    None => self.add_category(self.max_plans, None),
                };
                self.plans = Some(plans);
                let set = OptionSet {
                    request: dag.request(task),
                    category: Some(plans),
                    priority: dag.priority(task),
                    gang: None,
                };
                self.nodes[(base + task.0) as usize].chain = self.chains(&[set], share)[0];
            }
            self.nodes[(base + task.0) as usize].kind = kind;
        }
    }

    /// Sets how many preparations of sub-workflows run at a time; at least 1.
    #[must_use]
    pub fn with_max_plans(mut self, limit: u32) -> Self {
        self.max_plans = limit.max(1);
        if let Some(plans) = self.plans {
            self.categories[plans.index()].set_limit(self.max_plans);
        }
        self
    }

    /// Returns the DAG of a task, and its number there.
    pub(super) fn locate(&self, task: TaskId) -> (&Dag, TaskId) {
        if task.index() < self.dag.len() {
            return (&self.dag, task);
        }
        let segment = &self.segments[self.segment_of(task).index()];
        (&segment.dag, TaskId(task.0 - segment.base))
    }

    /// The segment of a task that is not of the first DAG.
    pub(super) fn segment_of(&self, task: TaskId) -> SegmentId {
        let after = self.segments.partition_point(|segment| segment.base <= task.0);
        // A segment without tasks has the base of the next one, which comes after it.
        SegmentId(after as u32 - 1)
    }

    /// The figures of the DAG of a task.
    pub(super) fn summary_of(&mut self, task: TaskId) -> &mut Summary {
        if task.index() < self.dag.len() {
            &mut self.summary
        } else {
            let segment = self.segment_of(task);
            &mut self.segments[segment.index()].summary
        }
    }

    /// Counts tasks of a segment that became ready, and one that is done or has failed.
    pub(super) fn settle_joined(&mut self, task: TaskId, ready: usize) {
        if task.index() < self.dag.len() {
            return;
        }
        let id = self.segment_of(task);
        let segment = &mut self.segments[id.index()];
        segment.active = segment.active + ready - 1;
        if segment.active == 0 {
            self.ended.push(id);
        }
    }

    /// Returns the record for the end of an attempt. That of a preparation does not end its task.
    pub(super) fn end_record(
        &self,
        task: TaskId,
        submit: SubmitId,
        rank: Rank,
        outcome: Outcome,
    ) -> Record<'static> {
        if self.nodes[task.index()].kind == Kind::Prepared {
            Record::Prepared {
                task,
                submit,
                rank,
                outcome,
            }
        } else {
            Record::Ended {
                task,
                submit,
                rank,
                outcome,
            }
        }
    }

    /// Notes that a task is nested now: it ends with [`Event::SubdagEnded`](super::Event::SubdagEnded).
    pub(super) fn nest(&mut self, task: TaskId, submit: SubmitId, out: &mut impl Outbox) {
        let node = &mut self.nodes[task.index()];
        (node.state, node.submit) = (State::Nested, submit.0);
        self.nested += 1;
        out.record(Record::Nested(task, submit));
    }

    /// Handles [`Event::SubdagEnded`](super::Event::SubdagEnded).
    pub(super) fn subdag_ended(
        &mut self,
        task: TaskId,
        outcome: Outcome,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        let node = self.nodes.get(task.index());
        let node = node.filter(|node| node.state == State::Nested);
        let submit = SubmitId(node.ok_or(MasterError::NotNested(task))?.submit);
        self.nested -= 1;
        out.record(Record::Ended {
            task,
            submit,
            rank: Rank(0),
            outcome,
        });
        if outcome.succeeded() {
            self.succeeded(task);
        } else {
            self.failed(task, &outcome, out);
        }
        Ok(())
    }

    /// Handles [`Event::SubdagStopped`](super::Event::SubdagStopped).
    pub(super) fn subdag_stopped(&mut self, task: TaskId) -> Result<(), MasterError> {
        let node = self.nodes.get(task.index());
        node.filter(|node| node.state == State::Nested)
            .ok_or(MasterError::NotNested(task))?;
        self.nested -= 1;
        self.summary_of(task).evicted += 1;
        self.withdraw(task);
        Ok(())
    }

    /// Number of the first task of the next DAG that joins.
    #[must_use]
    pub fn next_base(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Takes the segments of which nothing is left to run. Each is taken once.
    pub fn take_ended(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the figures of a segment.
    #[must_use]
    pub fn segment_summary(&self, id: SegmentId) -> Summary {
        self.segments[id.index()].summary.clone()
    }

    /// Frees the DAG of a segment that has ended.
    pub fn close_segment(&mut self, id: SegmentId) {
        let empty = self.empty_dag.get_or_insert_with(Arc::default);
        let segment = &mut self.segments[id.index()];
        segment.dag = Arc::clone(empty);
        self.nested_open -= usize::from(std::mem::take(&mut segment.is_nested));
    }

    /// Returns the first task in byte order that requests more than any host that is there has, and is not
    /// done. Linear in hosts and tasks.
    #[must_use]
    pub fn unfit_task(&self, dag: &Dag, done: &DoneSet) -> Option<TaskId> {
        let unfit: Vec<bool> = dag
            .option_sets()
            .map(|set| match set.gang.and_then(|id| dag.gangs().get(id.index())) {
                Some(gang) => !self.has_hosts_for_gang(gang, set.request, &[]),
                None => !self.has_host_for(set.request),
            })
            .collect();
        if !unfit.contains(&true) {
            return None;
        }
        let is_unfit = |task: &TaskId| {
            let has_command = dag.subdag(*task).is_none_or(|subdag| subdag.is_prepared);
            has_command && unfit[dag.option_set(*task)] && !done.contains(*task)
        };
        dag.ids().filter(is_unfit).min_by_key(|task| dag.name(*task))
    }

    /// All DAGs that have not been closed, each with the number of its first task and its figures.
    #[cfg(test)]
    pub(super) fn parts(&self) -> impl Iterator<Item = (&Dag, u32, &Summary)> {
        let joined = self.segments.iter().filter(|segment| !segment.dag.is_empty());
        let joined = joined.map(|segment| (&*segment.dag, segment.base, &segment.summary));
        std::iter::once((&*self.dag, 0, &self.summary)).chain(joined)
    }

    /// Checks that the number of active tasks of each segment is right.
    #[cfg(test)]
    pub(super) fn check_segments(&self) -> Result<(), String> {
        let open = self.segments.iter().filter(|segment| segment.is_nested).count();
        if open != self.nested_open {
            return Err(format!(
                "{open} segments are nested tasks, but {} count",
                self.nested_open
            ));
        }
        for (number, segment) in self.segments.iter().enumerate() {
            let nodes = self
                .nodes
                .iter()
                .skip(segment.base as usize)
                .take(segment.dag.len());
            let waits = |node: &&Node| matches!(node.state, State::Waiting | State::Done | State::Failed);
            let active = nodes.filter(|node| !waits(node)).count();
            if active != segment.active {
                return Err(format!(
                    "segment {number} has {active} active tasks, but counts {}",
                    segment.active
                ));
            }
        }
        Ok(())
    }
}

/// A task of which no parent is known to be done.
pub(super) fn new_node(dag: &Dag, task: TaskId, chain: u32, inputs: InputSet) -> Node {
    Node {
        submit: 0,
        place: 0,
        next: NO_TASK,
        chain,
        parents_left: dag.parent_count(task),
        inputs,
        state: State::Waiting,
        kind: Kind::Task,
    }
}

/// Adds a node for each task of a DAG. Returns its tasks that are ready, by name and with their numbers in
/// the DAG, and the number of those that are done.
pub(super) fn add_nodes(
    nodes: &mut Vec<Node>,
    dag: &Dag,
    chain_of: &[u32],
    inputs_of: &[InputSet],
    done: &DoneSet,
) -> (Vec<TaskId>, usize) {
    let base = nodes.len();
    nodes.extend(dag.ids().map(|task| {
        let inputs = inputs_of[dag.inputs(task) as usize];
        new_node(dag, task, chain_of[dag.option_set(task)], inputs)
    }));
    let nodes = &mut nodes[base..];
    let mut done_before = 0;
    for task in done.ids().filter(|task| task.index() < dag.len()) {
        nodes[task.index()].state = State::Done;
        done_before += 1;
        for child in dag.children(task) {
            nodes[child.index()].parents_left -= 1;
        }
    }
    // A done task stays done even if its parents are not done.
    let is_ready = |node: &Node| node.state == State::Waiting && node.parents_left == 0;
    let mut ready: Vec<TaskId> = dag.ids().filter(|task| is_ready(&nodes[task.index()])).collect();
    dag.sort_by_name(&mut ready);
    for task in &ready {
        nodes[task.index()].state = State::Ready;
    }
    (ready, done_before)
}
