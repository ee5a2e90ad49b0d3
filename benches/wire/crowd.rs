//! A process that holds many agents.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use pegasus_mpi_cluster::internals::{SubmitId, TaskResult, ToMaster, ToWorker, agent_messages as messages};
use pegasus_mpi_cluster::{Outcome, Rank, Registration};
use pmc_link::{Agent, CrowdAgent, Endpoint, Link, Member, Timing, run_crowd};

/// How long to wait for the file of the master.
const PATIENCE: Duration = Duration::from_secs(60);

/// What tasks that end at once say of their run time.
const SHORT: Duration = Duration::from_millis(1);

/// Variable with the order of such a process.
const VARIABLE: &str = "PMC_BENCH_CROWD";

/// Which agents a process holds.
#[derive(Clone, Debug)]
pub struct Order {
    /// File of the endpoint.
    pub endpoint: PathBuf,
    /// Number of the first agent.
    pub first: u32,
    /// Number after the last one.
    pub end: u32,
    /// Slots of each.
    pub slots: u32,
    /// How long a task takes.
    pub time: Duration,
}

impl Order {
    /// Gives the order to a process.
    pub fn tell(&self, command: &mut Command) {
        let Self {
            first,
            end,
            slots,
            time,
            ..
        } = self;
        let words = format!(
            "{first} {end} {slots} {} {}",
            time.as_millis(),
            self.endpoint.display()
        );
        command.env(VARIABLE, words);
    }

    /// The order of this process.
    pub fn of_environment() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let mut words = text.splitn(5, ' ');
        let mut number = || words.next()?.parse::<u32>().ok();
        let (first, end, slots, millis) = (number()?, number()?, number()?, number()?);
        Some(Self {
            endpoint: words.next()?.into(),
            first,
            end,
            slots,
            time: Duration::from_millis(millis.into()),
        })
    }
}

/// What slots have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// CPU time of their processes, in seconds.
    pub user: f64,
    /// The same in the kernel.
    pub system: f64,
    /// Seconds in which they had a task.
    pub busy: f64,
    /// Seconds between two tasks.
    pub idle: f64,
}

impl Sums {
    /// Adds what a process has printed.
    pub fn add(&mut self, printed: &str) {
        let mut words = printed.split_whitespace().map(|word| word.parse::<f64>());
        let sums = [&mut self.user, &mut self.system, &mut self.busy, &mut self.idle];
        for sum in sums {
            *sum += words
                .next()
                .and_then(Result::ok)
                .expect("the process says what it has done");
        }
    }
}

/// Runs agents until their run ends, and prints what they have done.
pub fn run(order: &Order) {
    pmc_spawn::open_files::raise();
    let endpoint = endpoint(order);
    let timer = Arc::new(Timer::default());
    let members = (order.first..order.end).map(|number| {
        let host = format!("node{number:05}");
        let link = Link::new(Timing::with_lease(endpoint.lease));
        let hello = messages::encode(&messages::AgentHello {
            max_slots: u32::MAX,
            host: host.clone(),
            slots: order.slots,
            number: Some(number),
            before: None,
            first_rank: None,
        });
        let agent = InstantAgent {
            link: Arc::clone(&link),
            host,
            slots: Vec::new(),
            first_rank: 0,
            left: order.slots,
            time: order.time,
            timer: Arc::clone(&timer),
        };
        Member {
            link,
            hello,
            agent: Box::new(agent),
        }
    });
    let members = members.collect();
    if !order.time.is_zero() {
        let timer = Arc::clone(&timer);
        std::thread::spawn(move || timer.run());
    }
    run_crowd(&endpoint, members).expect("all agents can join");
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the system counts");
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let (user, system) = (seconds(usage.user_time()), seconds(usage.system_time()));
    let (busy, idle) = {
        let due = timer.due();
        (due.busy, due.idle)
    };
    println!("{user} {system} {} {}", busy.as_secs_f64(), idle.as_secs_f64());
}

fn endpoint(order: &Order) -> Endpoint {
    let begun = Instant::now();
    while !order.endpoint.exists() {
        assert!(begun.elapsed() < PATIENCE, "the master must begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    Endpoint::read(&order.endpoint).expect("the master has written it")
}

/// An agent whose tasks are no processes.
struct InstantAgent {
    link: Arc<Link>,
    host: String,
    slots: Vec<Arc<Mutex<Slot>>>,
    first_rank: u32,
    /// Slots that were not asked to end.
    left: u32,
    time: Duration,
    timer: Arc<Timer>,
}

/// A slot of an agent.
#[derive(Default)]
struct Slot {
    /// The task that runs, and those that it starts next.
    given: VecDeque<SubmitId>,
    idle_since: Option<Instant>,
}

/// Ends tasks that take their time.
#[derive(Default)]
struct Timer {
    due: Mutex<Due>,
    wake: Condvar,
}

#[derive(Default)]
struct Due {
    tasks: BinaryHeap<Reverse<(Instant, Rank)>>,
    slots: BTreeMap<Rank, (Arc<Link>, Arc<Mutex<Slot>>)>,
    time: Duration,
    busy: Duration,
    idle: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timer {
    fn due(&self) -> MutexGuard<'_, Due> {
        lock(&self.due)
    }

    /// Lets a slot begin its next task.
    fn begin(&self, rank: Rank, idle: Duration) {
        let mut due = self.due();
        due.idle += idle;
        let end = Instant::now() + due.time;
        due.tasks.push(Reverse((end, rank)));
        drop(due);
        self.wake.notify_one();
    }

    fn run(&self) {
        let mut due = self.due();
        loop {
            let now = Instant::now();
            let next = due.tasks.peek().map(|Reverse((at, _))| *at);
            match next {
                None => due = self.wake.wait(due).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    let waited = self.wake.wait_timeout(due, at - now);
                    due = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => {
                    let Some(Reverse((_, rank))) = due.tasks.pop() else {
                        continue;
                    };
                    let (link, slot) = due.slots[&rank].clone();
                    let time = due.time;
                    due.busy += time;
                    let mut slot = lock(&slot);
                    if let Some(submit) = slot.given.pop_front() {
                        say(&link, rank, &finished(submit, due.time));
                    }
                    if slot.given.is_empty() {
                        slot.idle_since = Some(Instant::now());
                    } else {
                        let end = Instant::now() + due.time;
                        due.tasks.push(Reverse((end, rank)));
                    }
                }
            }
        }
    }
}

impl CrowdAgent for InstantAgent {
    fn joined(&mut self, welcome: &[u8]) {
        let welcome: messages::AgentWelcome = messages::decode(welcome).expect("the welcome is right");
        self.first_rank = welcome.first_rank;
        for rank in (0..welcome.slots).map(|slot| Rank(welcome.first_rank + slot)) {
            let slot = Arc::new(Mutex::new(Slot::default()));
            let mut due = self.timer.due();
            due.time = self.time;
            due.slots
                .insert(rank, (Arc::clone(&self.link), Arc::clone(&slot)));
            self.slots.push(slot);
            say(&self.link, rank, &ToMaster::Register(self.registration()));
        }
    }
}

impl Agent for InstantAgent {
    fn message(&mut self, body: &[u8]) {
        let Some((rank, messages::Content::Message(message))) = messages::addressed(body) else {
            return;
        };
        match ToWorker::decode(message) {
            Ok(ToWorker::Run(task)) if self.time.is_zero() => {
                say(&self.link, rank, &finished(task.submit, SHORT));
            }
            Ok(ToWorker::Run(task)) => self.begin(rank, task.submit),
            Ok(ToWorker::Retract) => {
                let slot = self.slot(rank);
                // The first one runs.
                let from = lock(slot).given.len().min(1);
                let submits = lock(slot).given.split_off(from).into();
                say(&self.link, rank, &ToMaster::Retracted { submits });
            }
            Ok(ToWorker::Shutdown | ToWorker::Abort) => {
                self.left -= 1;
                if self.left == 0 {
                    self.link.goodbye();
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self) -> bool {
        false
    }
}

impl InstantAgent {
    fn slot(&self, rank: Rank) -> &Mutex<Slot> {
        &self.slots[(rank.0 - self.first_rank) as usize]
    }

    fn begin(&self, rank: Rank, submit: SubmitId) {
        let mut slot = lock(self.slot(rank));
        slot.given.push_back(submit);
        if slot.given.len() == 1 {
            let idle = slot
                .idle_since
                .take()
                .map_or(Duration::ZERO, |since| since.elapsed());
            drop(slot);
            self.timer.begin(rank, idle);
        }
    }

    fn registration(&self) -> Registration {
        Registration {
            host: self.host.clone(),
            memory_mb: 64_000,
            threads: self.left,
            cores: self.left,
            gpus: 0,
            sockets: 1,
            away: false,
        }
    }
}

fn finished(submit: SubmitId, runtime: Duration) -> ToMaster {
    ToMaster::Finished(TaskResult {
        submit,
        outcome: Outcome::new(0, runtime),
        forwards: Vec::new(),
        returned: None,
    })
}

fn say(link: &Link, rank: Rank, message: &ToMaster) {
    link.send(messages::address(rank, |body| message.encode(body)));
}
