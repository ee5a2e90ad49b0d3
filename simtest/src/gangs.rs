//! Gangs on the hosts of a round: how hosts join and leave them, and their processes.
//!
//! The command of a lead starts a process on each member. That one ends when its host leaves the gang, and
//! not before: the worst that programs do. If a member is gone, or a connection is cut, the lead fails after
//! a while, or hangs.

use std::time::Duration;

use pegasus_mpi_cluster::internals::{Assignment, SubmitId};
use pegasus_mpi_cluster::simulated::{GangToken, Membership};
use pmc_system::simulated as system;

use crate::memberships::{Member, NEVER, number_of};
use crate::plan::Way;
use crate::world::{SIGKILL, TaskProcess, World, find, host_name, note, now, with};

/// The longest time until the command of a lead starts a process elsewhere, in milliseconds.
const CALL_MILLIS: u64 = 40;

/// The longest time until a lead fails, in milliseconds.
const FAIL_MILLIS: u64 = 2_000;

/// A host becomes a member.
pub(crate) fn join(host: usize, membership: &Membership) {
    let shown = String::from_utf8_lossy(&membership.task).into_owned();
    let number = membership.submit.0;
    note(|| format!("{} joins {shown} ({number})", host_name(host)));
    let now = now();
    let wrong = with(|world| {
        world.end_all_due(now);
        let (task, token) = (world.plan.task(&membership.task).cloned(), membership.token);
        let mut wrong = world.overlaps(host, &membership.task, Some(token));
        let part = (membership.part.cpus, membership.part.memory_mb);
        match task {
            Some(task) => {
                let ranks = task.gang.map_or(0, |gang| gang.ranks);
                let all = (task.cpus * ranks, task.memory * u64::from(ranks));
                // A whole host may have more.
                let is_exclusive = task.gang.is_some_and(|gang| gang.exclusive);
                let has_all = part == all || (is_exclusive && part.0 >= all.0 && part.1 >= all.1);
                if membership.part.ranks != ranks || !has_all {
                    wrong.push(format!("{shown} gets {part:?} instead of {all:?}"));
                }
                wrong.extend(world.oversubscribed(host, part, &task));
            }
            None => wrong.push(format!("there is no task {shown}")),
        }
        world.gangs.joined.insert((host, token));
        world.gangs.members.push(Member {
            host,
            token,
            submit: membership.submit,
            name: membership.task.clone(),
            cpus: part.0,
            memory: part.1,
            is_ending: false,
            is_cut: false,
            is_doomed: false,
        });
        wrong
    });
    wrong.into_iter().flatten().for_each(find);
}

/// Nothing more of a gang starts on a host. False if it is no member.
pub(crate) fn begin_to_leave(host: usize, submit: SubmitId) -> bool {
    let found = with(|world| {
        let mut members = world.gangs.members.iter_mut();
        let member = members.find(|member| member.host == host && member.submit == submit)?;
        member.is_ending = true;
        Some(())
    });
    found.flatten().is_some()
}

/// Kills what a gang has on a host. Returns whether a connection of it was cut.
pub(crate) fn leave(host: usize, submit: SubmitId) -> bool {
    note(|| format!("{} leaves ({})", host_name(host), submit.0));
    let is_cut = with(|world| {
        let members = &mut world.gangs.members;
        let at = members
            .iter()
            .position(|member| member.host == host && member.submit == submit)?;
        let member = members.remove(at);
        world.end_all_due(now());
        let here = world.tasks.values_mut();
        let mut has_process = false;
        for task in here.filter(|task| task.is_member && task.host == host && task.gang == Some(member.token))
        {
            has_process |= task.ended.is_none();
            task.ended.get_or_insert(SIGKILL);
        }
        if has_process {
            // If it still runs, it fails.
            let lead = world.leads_of(&[member.token]).first().copied();
            lead.into_iter()
                .for_each(|lead| world.break_lead(lead, false, true));
        }
        Some(member.is_cut)
    });
    is_cut.flatten().unwrap_or(false)
}

/// Attempts of which a host is a member.
pub(crate) fn memberships(host: usize) -> Vec<SubmitId> {
    let all = with(|world| {
        let members = world.gangs.members.iter();
        let here = members.filter(|member| member.host == host);
        here.map(|member| member.submit).collect()
    });
    all.unwrap_or_default()
}

/// The command of a gang has begun: it starts processes on the other hosts.
pub(crate) fn lead_begins(lead: u64, assignment: &Assignment) {
    let Some(gang) = &assignment.gang else { return };
    let token = gang.token;
    let members = gang.hosts.iter().skip(1);
    let members: Vec<usize> = members.filter_map(|host| number_of(&host.name)).collect();
    if members.is_empty() {
        return;
    }
    let begun = now() + Duration::from_millis(CALL_MILLIS);
    with(|world| {
        if let Some(lead) = world.tasks.get_mut(&lead) {
            lead.ends_at = lead.ends_at.max(begun);
        }
    });
    for host in members {
        let millis = system::random(|random| random.below(CALL_MILLIS)).unwrap_or(0);
        system::at(now() + Duration::from_millis(millis), move || {
            with(|world| world.call(lead, host, token));
        });
    }
}

/// The connections between two hosts are reset. These sides notice it; those of the first host are `Out`.
pub(crate) fn reset_between(a: usize, b: usize, way: Way) {
    let now = now();
    with(|world| {
        world.end_all_due(now);
        let mut cut = Vec::new();
        for (number, lead) in &world.tasks {
            let is_lead = lead.ended.is_none() && !lead.is_member && [a, b].contains(&lead.host);
            let other = if lead.host == a { b } else { a };
            let mut processes = world.tasks.values();
            let has_process = processes.any(|task| {
                task.is_member && task.ended.is_none() && task.host == other && task.gang == lead.gang
            });
            if is_lead && has_process && a != b {
                cut.push((*number, lead.gang, other));
            }
        }
        for (lead, token, host) in cut {
            if way != Way::Out {
                let mut members = world.gangs.members.iter_mut();
                let member = members.find(|member| member.host == host && Some(member.token) == token);
                member.into_iter().for_each(|member| member.is_cut = true);
            }
            world.break_lead(lead, way != Way::In, false);
        }
    });
}

impl World {
    /// The command of a lead starts a process on a member.
    fn call(&mut self, lead: u64, host: usize, token: GangToken) {
        self.end_if_due(lead, now());
        let Some(process) = self.tasks.get(&lead).filter(|lead| lead.ended.is_none()) else {
            return;
        };
        let (name, submit) = (process.name.clone(), process.submit);
        let mut members = self.gangs.members.iter();
        if !members.any(|member| member.host == host && member.token == token && !member.is_ending) {
            // Its agent is gone, and there may be another one, which knows nothing of this gang.
            self.break_lead(lead, false, true);
            return;
        }
        let process = TaskProcess {
            host,
            name,
            submit,
            cpus: 0,
            memory: 0,
            ends_at: NEVER,
            status: 0,
            ended: None,
            ignores_term: true,
            forwards: Vec::new(),
            gang: Some(token),
            is_member: true,
            is_cut: false,
            is_broken: true,
            is_doomed: false,
            begun: now(),
            lacks: 0,
            thread: None,
        };
        self.add(process);
    }

    /// The leads of these gangs have lost a member.
    pub(crate) fn break_leads(&mut self, gangs: &[GangToken]) {
        for lead in self.leads_of(gangs) {
            self.break_lead(lead, true, true);
        }
    }

    /// The leads of these gangs that run.
    fn leads_of(&self, gangs: &[GangToken]) -> Vec<u64> {
        let leads = self.tasks.iter();
        let leads = leads.filter(|(_, task)| {
            task.ended.is_none() && !task.is_member && task.gang.is_some_and(|gang| gangs.contains(&gang))
        });
        leads.map(|(number, _)| *number).collect()
    }

    /// Lets a lead fail after a moment, or hang.
    fn break_lead(&mut self, number: u64, is_cut: bool, may_hang: bool) {
        let Some(lead) = self.tasks.get_mut(&number).filter(|lead| lead.ended.is_none()) else {
            return;
        };
        let (hangs, millis) =
            system::random(|random| (may_hang && random.one_in(4), random.below(FAIL_MILLIS)))
                .unwrap_or_default();
        lead.is_cut |= is_cut;
        lead.is_broken = true;
        lead.status = 256;
        lead.ends_at = match hangs {
            true => NEVER,
            false => lead.ends_at.min(now() + Duration::from_millis(millis)),
        };
        lead.thread.into_iter().for_each(system::unpark);
    }
}
