//! Simulated runs with tasks over several hosts.
//!
//! Workers are lost, fall silent and retire, members refuse to join, connections are cut, masters have died
//! before. A model follows who holds what: nothing is given to two tasks, nothing starts on a host before a
//! gang has left it, and everything ends. `PMC_GANG_SEEDS=<first>..<last>` runs other seeds.

mod model;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};
use testutils::Random;

use model::{Amount, Held, Model, Report, amount};

use crate::protocol::{Outcome, Rank, Registration, SubmitId, TaskResult};
use crate::scheduler::{Event, LeadAdoption, Master, MasterConfig, MasterError, MemberAdoption, Workers};

struct Run {
    master: Master,
    model: Model,
    last_rank: u32,
    joins_left: u32,
    /// A gang whose parts are not chosen anew, their hosts, and what ran there then and still runs.
    last_choice: Option<(TaskId, Vec<String>, BTreeSet<SubmitId>)>,
}

fn random_dag(random: &mut Random) -> Dag {
    let mut text = String::new();
    let tasks = random.pick(&[3, 12, 40]);
    for task in 0..tasks {
        let _ = write!(text, "TASK t{task} ");
        if random.one_in(3) {
            text.push_str(random.pick(&[
                "-N 2 ",
                "-N 3 -c 2 ",
                "--ranks 6 ",
                "--ranks 5 --ranks-per-node 2 -m 100 ",
                "-N 2 --ranks 5 -c 2 -m 50 ",
                "-N 2 --exclusive ",
                "-N 1 -c 4 ",
                "--on h[0-2] -N 2 ",
                "-N 2 -g 1 ",
            ]));
        } else {
            text.push_str(random.pick(&["", "-c 2 ", "-m 300 ", "-c 4 -m 100 ", "-g 1 ", "-c 0 "]));
        }
        if random.one_in(2) {
            let _ = write!(text, "-p {} ", random.below(3));
        }
        if random.one_in(2) {
            let _ = write!(text, "-T {} ", 1 + random.below(200));
        }
        if random.one_in(4) {
            let _ = write!(text, "--category c{} ", random.below(2));
        }
        let _ = writeln!(text, "-t {} /bin/true", 1 + random.below(3));
    }
    if random.one_in(2) {
        text.push_str("MAXJOBS c0 2\n");
    }
    for child in 1..tasks {
        if random.one_in(3) {
            let _ = writeln!(text, "EDGE t{} t{child}", random.below(child));
        }
    }
    Dag::parse(text.into_bytes()).unwrap()
}

fn registration(host: u64) -> Registration {
    Registration {
        host: format!("h{host}"),
        memory_mb: 1000,
        threads: 8,
        cores: 8,
        sockets: 1,
        gpus: 2,
        away: false,
    }
}

impl Run {
    fn new(seed: u64) -> Result<Self, MasterError> {
        let mut random = Random(seed);
        let dag = Arc::new(random_dag(&mut random));
        let config = MasterConfig {
            max_attempts: 1,
            max_failures: 0,
            crash_limit: random.pick(&[0, 4]),
        };
        let times = dag.ids().map(|_| random.below(100)).collect();
        let mut run = Self {
            master: Master::new(Arc::clone(&dag), DoneSet::new(), Workers::Dynamic, config),
            model: Model {
                dag,
                hosts: BTreeMap::new(),
                capacity: (0..5)
                    .map(|host| (format!("h{host}"), registration(host)))
                    .collect(),
                held: BTreeMap::new(),
                gone: BTreeSet::new(),
                arriving: BinaryHeap::new(),
                now: 0,
                random,
                done: BTreeSet::new(),
                failed: BTreeSet::new(),
                active: BTreeMap::new(),
                times,
                gangs_started: 0,
                mistake: None,
            },
            last_rank: 0,
            joins_left: 40,
            last_choice: None,
        };
        // Enough for each task, and these are not lost.
        for host in 0..3 {
            for _ in 0..2 + run.model.random.below(3) {
                run.join(host)?;
            }
        }
        run.master.start(&mut run.model)?;
        if run.model.random.one_in(3) {
            run.adopt()?;
        }
        Ok(run)
    }

    fn join(&mut self, host: u64) -> Result<Rank, MasterError> {
        self.last_rank += 1;
        let rank = Rank(self.last_rank);
        self.model.hosts.insert(rank, format!("h{host}"));
        self.master
            .handle(Event::Registered(rank, registration(host)), &mut self.model)?;
        Ok(rank)
    }

    /// Lets hosts of a gang of an earlier master come, or some of them.
    fn adopt(&mut self) -> Result<(), MasterError> {
        let dag = Arc::clone(&self.model.dag);
        let first = |task: &TaskId| dag.gang(*task).is_some_and(|gang| gang.layout.nodes() == Some(2));
        let Some(task) = dag.ids().filter(first).find(|task| dag.parent_count(*task) == 0) else {
            return Ok(());
        };
        let submit = SubmitId(500);
        let request = dag.request(task);
        let is_whole = dag.gang(task).unwrap().exclusive;
        let layout = dag.gang(task).unwrap().layout;
        let comes = [!self.model.random.one_in(4), !self.model.random.one_in(4)];
        let mut order = [0, 1];
        if self.model.random.one_in(2) {
            order.swap(0, 1);
        }
        for number in order {
            if !comes[number as usize] {
                continue;
            }
            let host = 3 + u64::from(number);
            let rank = self.join(host)?;
            let ranks = layout.ranks_of(number).unwrap();
            let granted = match is_whole {
                true => Amount {
                    memory_mb: 1000,
                    cpus: 8,
                    gpus: 2,
                },
                false => amount(request, ranks),
            };
            let part = MemberAdoption {
                task: Some(task),
                submit,
                ranks,
                cpus: granted.cpus,
                memory_mb: granted.memory_mb,
                cpu_set: (0..granted.cpus).collect(),
                gpu_set: (0..granted.gpus).collect(),
            };
            let held = Held {
                submit,
                task,
                amount: granted,
                cpus: part.cpu_set.clone(),
                gpus: part.gpu_set.clone(),
                is_pending: false,
                runs: number == 0,
                is_member: number > 0,
            };
            self.model.hold(rank, held);
            self.model.active.insert(task, submit);
            let event = match number {
                0 => {
                    let time = self.model.times[task.index()];
                    self.model.later(rank, time, Report::Ended(submit));
                    let members = vec!["h4".to_owned()];
                    Event::AdoptLead(rank, LeadAdoption { part, members })
                }
                _ => Event::AdoptMember(rank, part),
            };
            self.master.handle(event, &mut self.model)?;
            self.master.sanity_check().unwrap();
        }
        if comes != [true, true] {
            self.master.handle(Event::Forget(task), &mut self.model)?;
        }
        Ok(())
    }

    /// Causes something bad.
    fn disturb(&mut self) -> Result<(), MasterError> {
        let rank = Rank(1 + self.model.random.below(u64::from(self.last_rank)) as u32);
        if self.model.gone.contains(&rank) {
            return Ok(());
        }
        match self.model.random.below(6) {
            0 if self.joins_left > 0 => {
                self.joins_left -= 1;
                let host = self.model.random.below(5);
                self.join(host)?;
            }
            1 => self.master.handle(Event::Silent(rank), &mut self.model)?,
            2 | 3 => self.master.handle(Event::Back(rank), &mut self.model)?,
            4 if self.joins_left > 0 => {
                self.joins_left -= 1;
                let host: u64 = self.model.hosts[&rank][1..].parse().unwrap();
                self.lose(rank)?;
                self.join(host)?;
            }
            5 if self.joins_left > 0 => {
                self.joins_left -= 1;
                let host: u64 = self.model.hosts[&rank][1..].parse().unwrap();
                self.master.handle(Event::Retire(rank), &mut self.model)?;
                self.join(host)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn lose(&mut self, rank: Rank) -> Result<(), MasterError> {
        self.model.gone.insert(rank);
        self.model.held.remove(&rank);
        self.master.handle(Event::Lost(rank), &mut self.model)
    }

    fn report(&mut self, rank: Rank, report: Report) -> Result<(), MasterError> {
        let Self { master, model, .. } = self;
        if model.gone.contains(&rank) {
            return Ok(());
        }
        let holds =
            |submit: SubmitId, model: &Model| model.held.get(&rank).is_some_and(|held| held.submit == submit);
        match report {
            Report::Ended(submit) => {
                if !holds(submit, model) {
                    return Ok(());
                }
                model.held.remove(&rank);
                let status = if model.random.one_in(4) { 256 } else { 0 };
                let result = TaskResult::new(submit, Outcome::new(status, Duration::from_millis(1)));
                master.handle(Event::Finished(rank, result), model)
            }
            Report::Left(submit) => {
                if holds(submit, model) {
                    model.held.remove(&rank);
                }
                let is_cut = model.random.one_in(3);
                master.handle(Event::Left { rank, submit, is_cut }, model)
            }
            Report::Joined(submit) => {
                if let Some(held) = model.held.get_mut(&rank).filter(|held| held.submit == submit) {
                    held.is_pending = false;
                }
                master.handle(Event::Joined(rank, submit), model)
            }
            Report::Refused(submit) => {
                let is_answer = model.random.one_in(2);
                if is_answer && holds(submit, model) {
                    model.held.remove(&rank);
                }
                master.handle(
                    Event::NotJoined {
                        rank,
                        submit,
                        is_answer,
                    },
                    model,
                )
            }
        }
    }

    fn step(&mut self) -> Result<(), MasterError> {
        if self.model.random.one_in(5) {
            return self.disturb();
        }
        let next_time = self.master.next_time().map(|time| time.as_millis() as u64);
        match self.model.arriving.peek() {
            Some(Reverse((time, ..))) if next_time.is_none_or(|next| *time <= next) => {
                let Some(Reverse((time, rank, report))) = self.model.arriving.pop() else {
                    return Ok(());
                };
                self.model.now = self.model.now.max(time);
                self.report(rank, report)
            }
            _ => match next_time {
                Some(time) => {
                    self.model.now = self.model.now.max(time);
                    Ok(())
                }
                None => {
                    // Nothing happens any more: all that are silent come back, and more workers come.
                    for rank in 1..=self.last_rank {
                        self.master.handle(Event::Back(Rank(rank)), &mut self.model)?;
                    }
                    let host = self.model.random.below(5);
                    self.join(host).map(|_| ())
                }
            },
        }
    }

    /// Checks that a gang starts when all has ended that ran on its parts when they were chosen last, unless
    /// others come before it or a host takes no tasks.
    fn follow_last_choice(&mut self) -> Result<(), String> {
        let Some((task, hosts)) = self.master.last_choice() else {
            self.last_choice = None;
            return Ok(());
        };
        let on_hosts = |rank: &Rank| hosts.contains(&self.model.hosts[rank]);
        let held: BTreeMap<SubmitId, i64> = self
            .model
            .held
            .iter()
            .filter(|(rank, _)| on_hosts(rank))
            .map(|(_, held)| (held.submit, self.model.dag.priority(held.task)))
            .collect();
        let own = self.model.dag.priority(task);
        match &mut self.last_choice {
            Some((known, same, waits_for)) if *known == task && *same == hosts => {
                let is_before =
                    |(submit, priority): (&SubmitId, &i64)| !waits_for.contains(submit) && *priority >= own;
                if held.iter().any(is_before) || !hosts.iter().all(|host| self.master.takes_tasks_on(host)) {
                    self.last_choice = None;
                    return Ok(());
                }
                waits_for.retain(|submit| held.contains_key(submit));
                if waits_for.is_empty() {
                    return Err(format!(
                        "{task:?} waits for nothing on {hosts:?}, and does not start"
                    ));
                }
            }
            _ => self.last_choice = Some((task, hosts, held.into_keys().collect())),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Model, String> {
        for _ in 0..20_000 {
            self.master.advance(Duration::from_millis(self.model.now));
            self.model.forget_unbegun(&self.master);
            self.master.schedule(&mut self.model);
            self.master.sanity_check()?;
            self.master.check_fits()?;
            self.follow_last_choice()?;
            if let Some(mistake) = self.model.mistake.take() {
                return Err(mistake);
            }
            if self.master.is_finished() {
                return match self.model.held.is_empty() {
                    true => Ok(self.model),
                    false => Err(format!(
                        "the run has ended, and something runs: {:?}",
                        self.model.held
                    )),
                };
            }
            self.step().map_err(|error| error.to_string())?;
            // What a lead that does not run has had of the gang is back at once.
            self.drop_unasked_leads();
        }
        Err("the run does not end".to_owned())
    }

    /// The lead of a gang that did not come together was told nothing.
    fn drop_unasked_leads(&mut self) {
        let holders: Vec<Rank> = self.model.held.keys().copied().collect();
        for rank in holders {
            if !self.master.holds_part(rank) && self.model.held[&rank].is_unasked() {
                self.model.held.remove(&rank);
            }
        }
    }
}

#[test]
fn gangs_hold_what_they_ask_for_and_all_runs_end() {
    let seeds = std::env::var("PMC_GANG_SEEDS").ok();
    let seeds = seeds.and_then(|text| {
        let (first, last) = text.split_once("..")?;
        Some(first.parse().ok()?..last.parse().ok()?)
    });
    let mut started = 0;
    for seed in seeds.clone().unwrap_or(0_u64..300) {
        let run = Run::new(seed).map_err(|error| error.to_string());
        let outcome = run.and_then(Run::finish);
        assert!(
            outcome.is_ok(),
            "seed {seed}: {}",
            outcome.err().unwrap_or_default()
        );
        started += outcome.map_or(0, |model| model.gangs_started);
    }
    assert!(seeds.is_some() || started > 300, "only {started} gangs started");
}
