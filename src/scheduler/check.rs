//! Consistency checks of the whole state.

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
            if !listed && (slot.running.is_some() || !slot.prefilled.is_empty()) {
                return Err(format!(
                    "worker {rank} has tasks although it is {:?}",
                    slot.member
                ));
            }
        }
        Ok(())
    }

    fn check_tasks(&self) -> Result<(), String> {
        let is = |state| move |task: &&pmc_dag::TaskId| self.nodes[task.index()].state == state;
        let mut parents_left: Vec<u32> = self.dag.ids().map(|task| self.dag.parent_count(task)).collect();
        let ids: Vec<_> = self.dag.ids().collect();
        for task in ids.iter().filter(is(State::Done)) {
            for child in self.dag.children(*task) {
                parents_left[child.index()] -= 1;
            }
        }
        if !self
            .nodes
            .iter()
            .map(|node| node.parents_left)
            .eq(parents_left.iter().copied())
        {
            return Err("the number of unfinished parents of some task is wrong".to_owned());
        }
        for task in &ids {
            let released = parents_left[task.index()] == 0;
            match self.nodes[task.index()].state {
                State::Waiting if released => return Err(format!("{task:?} should be ready")),
                State::Ready
                | State::Expected
                | State::Queued
                | State::Prefilled
                | State::Running
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
        if ready != expected(State::Ready) {
            return Err("the list of ready tasks does not hold exactly the ready ones".to_owned());
        }
        if sorted(self.queue.check(&self.nodes)?) != expected(State::Queued) {
            return Err("the queue does not hold exactly the queued tasks".to_owned());
        }
        let running = sorted(self.assignments().map(|(_, task, _)| task).collect());
        if running != expected(State::Running) || running.len() != self.running {
            return Err("the workers do not run exactly the running tasks".to_owned());
        }
        if sorted(self.check_prefill()?) != expected(State::Prefilled) {
            return Err("the workers do not hold exactly the prefilled tasks".to_owned());
        }
        let summary = &self.summary;
        let ended = summary.succeeded + summary.failed + summary.evicted;
        let started = ended + self.running as u64;
        if summary.done != expected(State::Done).len()
            || summary.failed_tasks != expected(State::Failed).len()
            || summary.success != (summary.done == self.dag.len())
            || summary.submitted != started
        {
            return Err(format!("the summary is wrong: {summary:?}"));
        }
        Ok(())
    }

    fn check_hosts(&self) -> Result<(), String> {
        self.hosts.check()?;
        for (index, host) in (0..).zip(self.hosts.all()) {
            let (mut memory_mb, mut cpus, mut numbers, mut busy, mut withheld) = (0, 0, 0, 0, 0);
            let mut gpus = host.free_gpus;
            for rank in &host.ranks {
                let slot = &self.slots[rank.0 as usize - 1];
                if slot.host != index {
                    return Err(format!("{rank:?} is a slot of two hosts"));
                }
                let is_free = slot.running.is_none() && slot.member.takes_tasks();
                if is_free != host.free_slots.contains(rank) {
                    return Err(format!("{rank:?} is both free and busy, or neither"));
                }
                let Some(running) = &slot.running else {
                    withheld += usize::from(!is_free);
                    continue;
                };
                busy += 1;
                memory_mb += self.request(running.task).memory_mb;
                cpus += u64::from(self.dag.cpus(running.task));
                if running.gpus.overlaps(gpus) || running.gpus.len() != self.dag.request(running.task).gpus {
                    return Err(format!("{:?} has the wrong GPUs", running.task));
                }
                gpus.put_back(running.gpus);
                if let Some(block) = &running.block {
                    numbers += block.len();
                    if block.len() != self.dag.cpus(running.task) as usize || !host.cpu_set.is_taken(block) {
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
