//! Tasks over several hosts: what their members are told and say.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pmc_dag::{Dag, TaskId};
use pmc_system::clock;

use super::{Driver, Run, RunError};
use crate::protocol::{
    EarlierAttempt, EarlierMember, GangStart, GangToken, Part, Rank, SubmitId, ToMaster, ToWorker,
};
use crate::scheduler::{Event, LeadAdoption, MasterError, MemberAdoption};
use crate::transport::MasterTransport;

/// How long a member may take to join, and how long the next master waits for all hosts of a gang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gangs that come together or run.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    all: BTreeMap<SubmitId, Gang>,
    /// Since when those that have not come together are known.
    since: BTreeMap<SubmitId, Instant>,
}

#[derive(Debug)]
struct Gang {
    start: GangStart,
    /// The worker of each host.
    ranks: Vec<Rank>,
}

impl Gangs {
    /// Returns what the lead is told, once all members have joined.
    pub(super) fn start(&self, submit: SubmitId) -> Option<Box<GangStart>> {
        self.all.get(&submit).map(|gang| Box::new(gang.start.clone()))
    }

    /// Notes a gang whose members are asked to join. `ranks` are the workers of its hosts.
    pub(super) fn begin(&mut self, submit: SubmitId, start: GangStart, ranks: Vec<Rank>) {
        self.all.insert(submit, Gang { start, ranks });
        self.since.insert(submit, clock::now());
    }

    /// Forgets a gang that has ended.
    pub(super) fn forget(&mut self, submit: SubmitId) {
        self.all.remove(&submit);
    }

    /// Notes where the agent of a member takes commands.
    fn note_addresses(&mut self, rank: Rank, submit: SubmitId, addresses: Vec<String>) {
        if let Some(gang) = self.all.get_mut(&submit) {
            let mut hosts = gang.ranks.iter().zip(&mut gang.start.hosts);
            if let Some((_, host)) = hosts.find(|(known, _)| **known == rank) {
                host.addresses = addresses;
            }
        }
    }
}

/// Returns a token that nobody can guess. That of a simulated run depends on its seed.
pub(super) fn token() -> Result<GangToken, getrandom::Error> {
    #[cfg(feature = "simulated")]
    if let Some(number) = pmc_system::simulated::random(pmc_system::simulated::Random::number) {
        return Ok(GangToken(number.into()));
    }
    let (high, low) = (getrandom::u64()?, getrandom::u64()?);
    Ok(GangToken(u128::from(high) << 64 | u128::from(low)))
}

/// Returns what a lead or member of an earlier master holds, if the run has its task.
fn adoption(dag: &Dag, task: &[u8], submit: SubmitId, part: Part) -> MemberAdoption {
    MemberAdoption {
        task: dag.find(task),
        submit,
        ranks: part.ranks,
        cpus: part.cpus,
        memory_mb: part.memory_mb,
        cpu_set: part.cpu_set,
        gpu_set: part.gpu_set,
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Takes a host of a gang of an earlier master.
    fn adopt_part(&mut self, event: Event) -> Result<(), RunError> {
        match self.master.handle(event, &mut self.out) {
            Err(MasterError::NotAdopted { rank, submit }) => {
                // The worker runs something else: it has left the gang, or is about to.
                self.out.send_message(rank, ToWorker::Leave { submit });
                Ok(())
            }
            handled => Ok(handled?),
        }
    }

    /// Goes on with a gang of an earlier master, whose command runs on this worker.
    pub(super) fn adopt_lead(&mut self, from: Rank, attempt: EarlierAttempt) -> Result<(), RunError> {
        let Some(gang) = attempt.gang else {
            return Ok(());
        };
        let dag = &self.out.dags.root.dag;
        let each = dag.find(&attempt.task).map_or(0, |task| dag.memory_mb(task));
        let part = Part {
            ranks: gang.ranks,
            cpus: gang.cpus,
            memory_mb: each.saturating_mul(gang.ranks.into()),
            cpu_set: attempt.cpu_set,
            gpu_set: attempt.gpu_set,
        };
        let part = adoption(dag, &attempt.task, attempt.submit, part);
        self.notices.note_earlier(attempt.submit);
        let members = gang.members;
        self.adopt_part(Event::AdoptLead(from, LeadAdoption { part, members }))
    }

    fn adopt_member(&mut self, from: Rank, member: EarlierMember) -> Result<(), RunError> {
        let dag = &self.out.dags.root.dag;
        let mut part = adoption(dag, &member.task, member.submit, member.part);
        if member.dag.is_some() {
            // The run's own DAG may have a task of this name.
            part.task = None;
        }
        self.adopt_part(Event::AdoptMember(from, part))
    }

    /// Says what was left on a host when a gang left it.
    fn report_killed(&mut self, from: Rank, task: Option<TaskId>, killed: &[String]) {
        if killed.is_empty() {
            return;
        }
        let host = self.master.host_of(from).unwrap_or_default().to_owned();
        let task = task.map_or_else(|| "a task".to_owned(), |task| self.out.dags.name(task));
        tracing::warn!(
            "Task {task} has left processes on {host}, which were killed: {}",
            killed.join(", ")
        );
    }
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Handles what a member of a gang says.
    pub(super) fn handle_member(&mut self, from: Rank, message: ToMaster) -> Result<(), RunError> {
        let run = &mut self.run;
        let (event, submit) = match message {
            ToMaster::Joined { submit, addresses } => {
                run.out.gangs.note_addresses(from, submit, addresses);
                (Event::Joined(from, submit), submit)
            }
            ToMaster::NotJoined { submit, why } => {
                let host = run.master.host_of(from).unwrap_or_default();
                tracing::warn!("{host} cannot join attempt {}: {why}", submit.0);
                let (rank, is_answer) = (from, true);
                let event = Event::NotJoined {
                    rank,
                    submit,
                    is_answer,
                };
                (event, submit)
            }
            ToMaster::Left { submit, cut, killed } => {
                let task = run.master.task_of_gang(submit);
                run.report_killed(from, task, &killed);
                self.subworkflows.note_end(from, Some(submit));
                let (rank, is_cut) = (from, cut);
                (Event::Left { rank, submit, is_cut }, submit)
            }
            ToMaster::Member(member) => {
                if let Some(dag) = &member.dag {
                    self.subworkflows.await_member(from, member.submit, dag);
                }
                return run.adopt_member(from, *member);
            }
            _ => return Ok(()),
        };
        self.handle_of_gang(submit, event)
    }

    /// Handles an event by which an attempt of a gang may end.
    fn handle_of_gang(&mut self, submit: SubmitId, event: Event) -> Result<(), RunError> {
        let run = &mut self.run;
        let task = run.master.task_of_gang(submit);
        run.handle(event)?;
        if let Some(task) = task.filter(|_| run.master.task_of_gang(submit).is_none()) {
            self.rests.rest(run, task)?;
            self.bad_hosts.judge(run)?;
        }
        Ok(())
    }

    /// Gives up members that do not answer, and gangs of an earlier master that do not come together.
    pub(super) fn check_gangs(&mut self) -> Result<(), RunError> {
        let joining: Vec<_> = self.run.master.joining().collect();
        let since = &mut self.run.out.gangs.since;
        if joining.is_empty() {
            since.clear();
            return Ok(());
        }
        since.retain(|submit, _| joining.iter().any(|(known, ..)| known == submit));
        let now = clock::now();
        let mut overdue = joining;
        overdue.retain(|(submit, ..)| {
            let since = *since.entry(*submit).or_insert(now);
            now.saturating_duration_since(since) >= PATIENCE
        });
        for (submit, task, missing) in overdue {
            self.run.out.gangs.since.remove(&submit);
            if missing.is_empty() {
                let name = self.run.out.dags.name(task);
                tracing::warn!("Task {name} does not go on: hosts on which it ran have not come back");
                self.run.handle(Event::Forget(task))?;
            }
            for rank in missing {
                let host = self.run.master.host_of(rank).unwrap_or_default();
                let name = self.run.out.dags.name(task);
                tracing::warn!("{host} has not joined task {name} in {} s", PATIENCE.as_secs());
                let is_answer = false;
                self.handle_of_gang(
                    submit,
                    Event::NotJoined {
                        rank,
                        submit,
                        is_answer,
                    },
                )?;
            }
        }
        Ok(())
    }

    /// When to look at gangs that come together.
    pub(super) fn next_gang_check(&self) -> Option<Instant> {
        let first = self.run.out.gangs.since.values().min()?;
        first.checked_add(PATIENCE)
    }
}
