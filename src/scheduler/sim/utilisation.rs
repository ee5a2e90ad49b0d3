//! What reservations cost: mixed loads of small tasks and gangs, in virtual time, beside greedy scheduling.
//!
//! Greedy scheduling starts whatever fits, in the order of the queue. It keeps hosts as busy as they can be,
//! and lets a large gang wait as long as small tasks are left.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};
use testutils::Random;

use crate::protocol::{Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker};
use crate::scheduler::{Event, GangParts, Master, MasterConfig, Outbox, Record, Start, Workers};

const HOSTS: usize = 32;
const CPUS: u32 = 4;

#[derive(Clone, Copy)]
struct Job {
    hosts: usize,
    /// Of each host.
    cpus: u32,
    seconds: u64,
}

/// When a job ran.
#[derive(Clone, Copy)]
struct Ran {
    job: Job,
    begin: u64,
}

impl Ran {
    /// Its CPU-seconds before a moment.
    fn before(&self, moment: u64) -> u64 {
        let end = (self.begin + self.job.seconds).min(moment);
        end.saturating_sub(self.begin) * u64::from(self.job.cpus) * self.job.hosts as u64
    }
}

/// A load: one task in 4 to 30 is a gang.
fn jobs(random: &mut Random) -> Vec<Job> {
    let one_in = random.pick(&[4, 10, 30]);
    let most_hosts = random.pick(&[4, 16, 32]);
    let job = |_| match random.one_in(one_in) {
        true => Job {
            hosts: 2 + random.below(most_hosts - 1) as usize,
            cpus: random.pick(&[1, 2, 4]),
            seconds: 50 + random.below(400),
        },
        false => Job {
            hosts: 1,
            cpus: random.pick(&[1, 1, 2, 4]),
            seconds: 10 + random.below(200),
        },
    };
    (0..500).map(job).collect()
}

/// Starts whatever fits, in order. Also returns when the last job for one host has begun: until then, there
/// was always something to start.
fn greedy(jobs: &[Job]) -> (Vec<Ran>, u64) {
    let mut free = [CPUS; HOSTS];
    let mut waiting: Vec<Job> = jobs.to_vec();
    let mut running: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut held: Vec<(u32, Vec<usize>)> = Vec::new();
    let (mut ran, mut now, mut last_single) = (Vec::new(), 0, 0);
    loop {
        waiting.retain(|job| {
            let mut able: Vec<usize> = (0..HOSTS).filter(|host| free[*host] >= job.cpus).collect();
            if able.len() < job.hosts {
                return true;
            }
            // The fullest ones first.
            able.sort_by_key(|host| free[*host]);
            able.truncate(job.hosts);
            able.iter().for_each(|host| free[*host] -= job.cpus);
            running.push(Reverse((now + job.seconds, held.len())));
            held.push((job.cpus, able));
            ran.push(Ran {
                job: *job,
                begin: now,
            });
            if job.hosts == 1 {
                last_single = now;
            }
            false
        });
        let Some(Reverse((end, number))) = running.pop() else {
            return (ran, last_single);
        };
        now = end;
        let (cpus, hosts) = &held[number];
        hosts.iter().for_each(|host| free[*host] += cpus);
    }
}

/// What the scheduler has decided and nobody has done.
#[derive(Default)]
struct Decided {
    starts: Vec<Start>,
    joins: Vec<(SubmitId, Vec<Rank>)>,
    leaves: VecDeque<(Rank, SubmitId)>,
}

impl Outbox for Decided {
    fn start(&mut self, start: Start) {
        self.starts.push(start);
    }

    fn join(&mut self, gang: GangParts) {
        let members = gang.parts.iter().skip(1).map(|part| part.rank);
        self.joins.push((gang.submit, members.collect()));
    }

    fn leave(&mut self, rank: Rank, submit: SubmitId) {
        self.leaves.push_back((rank, submit));
    }

    fn send(&mut self, _: Rank, _: ToWorker) {}

    fn record(&mut self, _: Record<'_>) {}
}

/// A run of the jobs that begins. Tasks know how long they take, but for a fifth.
fn begin(jobs: &[Job], random: &mut Random, decided: &mut Decided) -> Master {
    let mut text = String::new();
    for (number, job) in jobs.iter().enumerate() {
        let said = job.seconds + random.below(1 + job.seconds / 5);
        let _ = write!(text, "TASK t{number} -c {} -e {said} ", job.cpus);
        if job.hosts > 1 {
            let _ = write!(text, "-N {} ", job.hosts);
        }
        text.push_str("x\n");
    }
    let dag = Arc::new(Dag::parse(text.into_bytes()).unwrap());
    let config = MasterConfig {
        max_attempts: 1,
        max_failures: 0,
        crash_limit: 0,
    };
    let ranks = HOSTS as u32 * CPUS;
    let mut master =
        Master::new(Arc::clone(&dag), DoneSet::new(), Workers::Fixed(ranks), config).with_gangs_over_hosts();
    for rank in 0..ranks {
        let registration = Registration {
            host: format!("h{:02}", rank / CPUS),
            memory_mb: 1000,
            threads: CPUS,
            cores: CPUS,
            sockets: 1,
            gpus: 0,
            away: false,
        };
        master
            .handle(Event::Registered(Rank(rank + 1), registration), decided)
            .unwrap();
    }
    master.start(decided).unwrap();
    master
}

/// Lets the scheduler run the jobs.
fn with_reservations(jobs: &[Job], random: &mut Random) -> Vec<Ran> {
    let mut decided = Decided::default();
    let mut master = begin(jobs, random, &mut decided);
    let mut ran = Vec::new();
    let mut running: BinaryHeap<Reverse<(u64, Rank, SubmitId)>> = BinaryHeap::new();
    let mut now = 0;
    loop {
        master.advance(Duration::from_secs(now));
        master.schedule(&mut decided);
        for (submit, members) in std::mem::take(&mut decided.joins) {
            for rank in members {
                master.handle(Event::Joined(rank, submit), &mut decided).unwrap();
            }
        }
        for Start {
            task: TaskId(task),
            submit,
            rank,
            ..
        } in std::mem::take(&mut decided.starts)
        {
            let job = jobs[task as usize];
            ran.push(Ran { job, begin: now });
            running.push(Reverse((now + job.seconds, rank, submit)));
        }
        if master.is_finished() {
            return ran;
        }
        let due = master.next_time().map(|time| time.as_secs() + 1);
        match running.peek() {
            Some(Reverse((end, ..))) if due.is_none_or(|due| *end <= due) => {
                let Some(Reverse((end, rank, submit))) = running.pop() else {
                    return ran;
                };
                now = end;
                let result = TaskResult::new(submit, Outcome::new(0, Duration::from_secs(1)));
                master
                    .handle(Event::Finished(rank, result), &mut decided)
                    .unwrap();
                while let Some((rank, submit)) = decided.leaves.pop_front() {
                    let left = Event::Left {
                        rank,
                        submit,
                        is_cut: false,
                    };
                    master.handle(left, &mut decided).unwrap();
                }
            }
            _ => now = due.expect("something happens, or the run has ended").max(now),
        }
    }
}

/// Of all loads together, and of each one with some allowance.
#[test]
fn reservations_cost_less_than_a_twentieth_of_the_utilisation() {
    let (mut greedy_sum, mut own_sum) = (0.0, 0.0);
    for seed in 0..20 {
        let mut random = Random(seed);
        let jobs = jobs(&mut random);
        let (ran, moment) = greedy(&jobs);
        let busy = |ran: &[Ran]| ran.iter().map(|ran| ran.before(moment)).sum::<u64>() as f64;
        let all = (moment * u64::from(CPUS) * HOSTS as u64) as f64;
        let own = with_reservations(&jobs, &mut random);
        assert_eq!(own.len(), jobs.len(), "all jobs have run");
        let (greedy, own) = (busy(&ran) / all, busy(&own) / all);
        println!("load {seed}: greedy {greedy:.3}, with reservations {own:.3}");
        assert!(
            own >= 0.9 * greedy,
            "load {seed}: {own:.3} instead of {greedy:.3}"
        );
        greedy_sum += greedy;
        own_sum += own;
    }
    let ratio = own_sum / greedy_sum;
    assert!(
        ratio >= 0.95,
        "the utilisation is {ratio:.3} of that of greedy scheduling"
    );
}
