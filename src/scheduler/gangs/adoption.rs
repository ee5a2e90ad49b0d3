//! Gangs of an earlier master.
//!
//! Lead and members come one by one and say what they hold, before anything else gets it. When all are back,
//! the gang goes on. If one does not come, or the task must not run any more, those that have come leave.

use pmc_dag::{Request, TaskId};
use pmc_system::planted::{Planted, is_planted};

use crate::protocol::{Rank, SubmitId};
use crate::scheduler::gangs::{Next, Part, RunningGang, Stage};
use crate::scheduler::hosts::PartRequest;
use crate::scheduler::nodes::MAX_SUBMIT;
use crate::scheduler::run::Master;
use crate::scheduler::tasks::{NO_TASK, State};
use crate::scheduler::{MasterError, Outbox, Record};

/// What the lead of a gang of an earlier master holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeadAdoption {
    /// What it holds of its own host.
    pub part: MemberAdoption,
    /// Hosts of the members.
    pub members: Vec<String>,
}

/// What a member of a gang of an earlier master holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAdoption {
    /// Which task; `None` if the run has no such task.
    pub task: Option<TaskId>,
    /// Which attempt. New attempts get higher numbers.
    pub submit: SubmitId,
    /// Number of ranks on the host.
    pub ranks: u32,
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory in MB.
    pub memory_mb: u64,
    /// Numbers of its CPUs, if it has a block of CPUs.
    pub cpu_set: Vec<u32>,
    /// Numbers of its GPUs.
    pub gpu_set: Vec<u32>,
}

impl Master {
    /// Handles [`Event::AdoptLead`](crate::scheduler::Event::AdoptLead).
    pub(in crate::scheduler) fn adopt_lead(
        &mut self,
        rank: Rank,
        adoption: LeadAdoption,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        let LeadAdoption { part, members } = adoption;
        let submit = part.submit;
        self.adopt_part(rank, &part, out)?;
        if let Some(gang) = self.gangs.running.get_mut(&submit)
            && gang.stage == Stage::Adopting(None)
        {
            gang.lead = Some(rank);
            gang.stage = Stage::Adopting(Some(members));
        }
        self.go_on_if_complete(submit, out);
        Ok(())
    }

    /// Handles [`Event::AdoptMember`](crate::scheduler::Event::AdoptMember).
    pub(in crate::scheduler) fn adopt_member(
        &mut self,
        rank: Rank,
        adoption: &MemberAdoption,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        self.adopt_part(rank, adoption, out)?;
        self.go_on_if_complete(adoption.submit, out);
        Ok(())
    }

    /// Gives a worker what it holds. If the gang cannot go on, it leaves.
    fn adopt_part(
        &mut self,
        rank: Rank,
        adoption: &MemberAdoption,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        let &MemberAdoption { task, submit, .. } = adoption;
        let slot = self.known_slot(rank)?;
        let (host, is_free) = (slot.host, slot.member.is_there() && slot.running.is_none());
        if !is_free || self.gangs.has_part(rank) || submit.0 > MAX_SUBMIT {
            return Err(MasterError::NotAdopted { rank, submit });
        }
        let gang = task.and_then(|task| {
            let chain = self.nodes.get(task.index())?.chain;
            let gang = self.queue.shape(self.queue.shape_of(chain)).gang?;
            Some((task, self.gangs.kind(gang).exclusive))
        });
        let state = gang.map(|(task, _)| self.nodes[task.index()].state);
        let waits = matches!(state, Some(State::Ready | State::Expected | State::Queued));
        let known = self.gangs.running.get(&submit);
        let is_known =
            known.is_some_and(|gang| matches!(gang.stage, Stage::Adopting(_)) && Some(gang.task) == task);
        let goes_on = is_known || (known.is_none() && waits);
        let mut request = PartRequest {
            ranks: adoption.ranks,
            request: Request {
                anywhere: false,
                gpus: u32::try_from(adoption.gpu_set.len()).unwrap_or(u32::MAX),
                cpus: adoption.cpus,
                memory_mb: adoption.memory_mb,
            },
            is_whole: gang.is_some_and(|(_, exclusive)| exclusive),
        };
        let held = (adoption.cpu_set.as_slice(), adoption.gpu_set.as_slice());
        let grant = self.hosts.adopt_part(host, rank, &mut request, held);
        let mut part = Part::new(host, request, grant);
        part.has_joined = true;
        self.note_number(submit);
        if let (true, false, Some((task, _))) = (goes_on, is_known, gang) {
            self.begin_adoption(task, submit);
        }
        let unknown = || RunningGang {
            task: TaskId(NO_TASK),
            lead: None,
            stage: Stage::Leaving(Next::Nothing),
            parts: Vec::new(),
            counts: false,
            is_quiet: false,
        };
        self.gangs
            .running
            .entry(submit)
            .or_insert_with(unknown)
            .parts
            .push(part);
        self.gangs.part_of.insert(rank, submit);
        let task = self.gangs.running.get(&submit).map(|gang| gang.task);
        self.record_beside(task.unwrap_or(TaskId(NO_TASK)), host, out);
        if !goes_on && !is_planted(Planted::NoLeaveOnAdoption) {
            out.leave(rank, submit);
        }
        Ok(())
    }

    fn begin_adoption(&mut self, task: TaskId, submit: SubmitId) {
        match self.nodes[task.index()].state {
            State::Expected => self.no_longer_expected(task),
            State::Queued => self.queue.remove(&mut self.nodes, task),
            _ => {}
        }
        let node = &mut self.nodes[task.index()];
        (node.submit, node.state) = (submit.0, State::Joining);
        self.take_place(task);
        self.count_gang(task);
        let gang = RunningGang {
            task,
            lead: None,
            stage: Stage::Adopting(None),
            parts: Vec::new(),
            counts: true,
            is_quiet: false,
        };
        self.gangs.running.insert(submit, gang);
    }

    /// Lets a gang go on once all of its hosts are back.
    fn go_on_if_complete(&mut self, submit: SubmitId, out: &mut impl Outbox) {
        let Some(gang) = self.gangs.running.get_mut(&submit) else {
            return;
        };
        let (Stage::Adopting(Some(members)), Some(rank)) = (&gang.stage, gang.lead) else {
            return;
        };
        let others = || gang.parts.iter().filter(|part| part.rank != rank);
        let names = |part: &Part| self.hosts.get(part.host).name.as_str();
        let has_come = |member: &String| others().any(|part| names(part) == member);
        let is_complete = others().count() == members.len() && members.iter().all(has_come);
        if !is_complete && !is_planted(Planted::IncompleteAdoption) {
            return;
        }
        gang.stage = Stage::Running;
        let task = gang.task;
        let host = self.slots[rank.0 as usize - 1].host;
        out.record(Record::Adopted(task, submit));
        self.gang_started(task, submit, (rank, host), out);
    }

    /// Ends what has come of a gang that does not come back as a whole.
    pub(in crate::scheduler) fn stop_adoption(&mut self, task: TaskId, out: &mut impl Outbox) {
        let gangs = self.gangs.running.iter();
        let mut own = gangs.filter(|(_, gang)| gang.task == task && matches!(gang.stage, Stage::Adopting(_)));
        if let Some(submit) = own.next().map(|(submit, _)| *submit) {
            self.disband(submit, Next::Ready, out);
            self.end_if_all_left(submit, out);
        }
    }
}
