//! Consistency checks of the whole state.

use rustc_hash::FxHashMap;

use crate::protocol::Rank;
use crate::scheduler::run::{Master, Phase};
use crate::scheduler::tasks::State;

impl Master {
    /// Checks that all parts of the state agree. Linear in tasks and edges. The error names the
    /// contradiction.
    pub(super) fn sanity_check(&self) -> Result<(), String> {
        self.check_tasks()?;
        if self.phase == Phase::Started || self.is_dynamic() {
            self.check_hosts()?;
            self.check_members()?;
            self.check_categories()?;
            self.check_holdings()?;
        }
        Ok(())
    }

    /// Checks that exactly the workers that are there belong to hosts.
    fn check_members(&self) -> Result<(), String> {
        let ranks = self.hosts.all().iter().map(|host| host.ranks.len());
        let there = self.slots.iter().filter(|slot| slot.member.is_there()).count();
        if there != self.present as usize || ranks.sum::<usize>() != there {
            return Err(format!("{there} workers are there, but {} counted", self.present));
        }
        for (rank, slot) in (1..).zip(&self.slots) {
            let host = self.hosts.all().get(slot.host as usize);
            let listed = host.is_some_and(|host| host.ranks.contains(&Rank(rank)));
            if listed != slot.member.is_there() {
                return Err(format!("worker {rank} is {:?} and of a host or not", slot.member));
            }
            let has_part = self.gangs.has_part(Rank(rank));
            if !listed && (slot.running.is_some() || !slot.prefilled.is_empty() || has_part) {
                return Err(format!(
                    "worker {rank} has tasks although it is {:?}",
                    slot.member
                ));
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_lines, reason = "one check after the other")]
    fn check_tasks(&self) -> Result<(), String> {
        let is = |state| move |task: &&pmc_dag::TaskId| self.nodes[task.index()].state == state;
        let ids: Vec<_> = self
            .parts()
            .flat_map(|(dag, base, _)| dag.ids().map(move |task| pmc_dag::TaskId(task.0 + base)))
            .collect();
        let mut parents_left: FxHashMap<_, u32> = FxHashMap::default();
        for (dag, base, _) in self.parts() {
            let number = |task: pmc_dag::TaskId| pmc_dag::TaskId(task.0 + base);
            for task in dag.ids() {
                let left = parents_left.entry(number(task)).or_default();
                *left = left.wrapping_add(dag.parent_count(task));
                if self.nodes[number(task).index()].state == State::Done {
                    for child in dag.children(task) {
                        let left = parents_left.entry(number(*child)).or_default();
                        *left = left.wrapping_sub(1);
                    }
                }
            }
        }
        if ids
            .iter()
            .any(|task| self.nodes[task.index()].parents_left != parents_left[task])
        {
            return Err("the number of unfinished parents of some task is wrong".to_owned());
        }
        for task in &ids {
            let released = parents_left[task] == 0;
            match self.nodes[task.index()].state {
                State::Waiting if released && !self.is_withdrawn(*task) => {
                    return Err(format!("{task:?} should be ready"));
                }
                State::Ready
                | State::Expected
                | State::Resting
                | State::Queued
                | State::Prefilled
                | State::Joining
                | State::Running
                | State::Leaving
                | State::Nested
                | State::Failed
                    if !released =>
                {
                    return Err(format!("{task:?} was released before its parents were done"));
                }
                _ => {}
            }
        }
        let sorted = |mut tasks: Vec<pmc_dag::TaskId>| {
            tasks.sort_unstable();
            tasks
        };
        let expected = |state| ids.iter().filter(is(state)).copied().collect::<Vec<_>>();
        let mut ready = sorted(self.ready.clone());
        ready.dedup();
        ready.retain(|task| self.nodes[task.index()].state == State::Ready);
        if expected(State::Expected).len() != self.expected {
            return Err("the number of expected tasks is wrong".to_owned());
        }
        if expected(State::Resting).len() != self.resting {
            return Err("the number of resting tasks is wrong".to_owned());
        }
        if ready != expected(State::Ready) {
            return Err("the list of ready tasks does not hold exactly the ready ones".to_owned());
        }
        if sorted(self.queue.check(&self.nodes)?) != expected(State::Queued) {
            return Err("the queue does not hold exactly the queued tasks".to_owned());
        }
        let running = sorted(self.assignments().map(|(_, task, _)| task).collect());
        let active = running.len() + self.gathering().count();
        if running != expected(State::Running) || active != self.running {
            return Err("the workers do not run exactly the running tasks".to_owned());
        }
        if sorted(self.check_prefill()?) != expected(State::Prefilled) {
            return Err("the workers do not hold exactly the prefilled tasks".to_owned());
        }
        if expected(State::Nested).len() != self.nested {
            return Err("the number of nested tasks is wrong".to_owned());
        }
        for (dag, base, summary) in self.parts() {
            let own = base..base + dag.len() as u32;
            let count = |state| {
                expected(state)
                    .iter()
                    .filter(|task| own.contains(&task.0))
                    .count()
            };
            let ended = summary.succeeded + summary.failed + summary.evicted;
            let active = [State::Running, State::Leaving, State::Nested];
            let started = ended + active.map(count).into_iter().sum::<usize>() as u64;
            if summary.done != count(State::Done)
                || summary.failed_tasks != count(State::Failed)
                || summary.success != (summary.done == dag.len())
                || summary.submitted != started
            {
                return Err(format!("the summary is wrong: {summary:?}"));
            }
        }
        self.check_segments()?;
        self.check_shares()
    }

    fn check_hosts(&self) -> Result<(), String> {
        self.hosts.check()?;
        for (index, host) in (0..).zip(self.hosts.all()) {
            let (mut memory_mb, mut cpus, mut numbers, of_gangs, mut busy) = self.held_by_gangs(index);
            let mut withheld = 0;
            if of_gangs.overlaps(host.free_gpus) {
                return Err(format!("GPUs of gangs are free on {}", host.name));
            }
            let mut gpus = host.free_gpus;
            gpus.put_back(of_gangs);
            for rank in &host.ranks {
                let slot = &self.slots[rank.0 as usize - 1];
                if slot.host != index {
                    return Err(format!("{rank:?} is a slot of two hosts"));
                }
                let is_of_gang = self.gangs.has_part(*rank);
                let is_free = slot.running.is_none() && slot.member.takes_tasks() && !is_of_gang;
                let is_offered = host.free_slots.contains(rank);
                let is_held_back = is_free && self.preparing.contains_key(&index);
                if is_free != is_offered && !is_held_back {
                    return Err(format!("{rank:?} is both free and busy, or neither"));
                }
                if is_of_gang {
                    continue;
                }
                let Some(running) = &slot.running else {
                    withheld += usize::from(!is_offered);
                    continue;
                };
                busy += 1;
                memory_mb += self.request(running.task).memory_mb;
                let request = self.request(running.task);
                cpus += u64::from(request.cpus);
                if running.gpus.overlaps(gpus) || running.gpus.len() != request.gpus {
                    return Err(format!("{:?} has the wrong GPUs", running.task));
                }
                gpus.put_back(running.gpus);
                if let Some(block) = &running.block {
                    numbers += block.len();
                    if block.len() != request.cpus as usize || !host.cpu_set.is_taken(block) {
                        return Err(format!("{:?} has the wrong CPU numbers", running.task));
                    }
                }
            }
            if memory_mb > host.memory_mb || cpus > u64::from(host.cpus) {
                return Err(format!("host {} is oversubscribed", host.name));
            }
            if host.free_memory_mb + memory_mb != host.memory_mb
                || u64::from(host.free_cpus) + cpus != u64::from(host.cpus)
                || host.free_slots.len() + busy + withheld != host.ranks.len()
                || host.busy as usize != busy
                || host.cpu_set.count_taken() != numbers
                || gpus.len() != host.gpus
            {
                return Err(format!("host {} does not add up", host.name));
            }
        }
        Ok(())
    }
}
