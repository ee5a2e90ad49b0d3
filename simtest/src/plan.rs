//! What a seed determines: the workflow, the hosts, the options, and the faults. A plan can be cut down.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use pmc_system::simulated::Random;
use serde::{Deserialize, Serialize};

use crate::kinds::Part;

/// Exit code of a task that has saved itself.
pub(crate) const SAVED: i32 = 85;

/// Seconds before the end of the run at which such a task gets its signal.
const SAVE_LEAD: u64 = 5;

/// A task of the workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its number in the plan that the seed gave; its name is `t` and this.
    pub number: u32,
    /// Numbers of tasks before it.
    pub parents: Vec<u32>,
    /// Requested CPUs.
    pub cpus: u32,
    /// Requested memory in MB.
    pub memory: u64,
    /// Priority.
    pub priority: i32,
    /// Attempts.
    pub tries: u32,
    /// The first attempts that fail; all of them if this is not less than `tries`.
    pub failures: u32,
    /// Mean run time in milliseconds.
    pub millis: u64,
    /// It forwards a line to one of the shared files.
    pub forwards: Option<u32>,
    /// It does nothing at SIGTERM.
    pub ignores_term: bool,
    /// Set if it runs over several hosts. Requests are for each of its ranks.
    #[serde(default)]
    pub gang: Option<GangPlan>,
    /// It saves itself, and ends, at SIGUSR1.
    #[serde(default)]
    pub saves: bool,
    /// It says how long it runs: it does not start if the time of the run is over before.
    #[serde(default)]
    pub is_expected: bool,
    /// The number of the part in which it is; 0 for the DAG file of the run.
    #[serde(default)]
    pub part: u32,
    /// Numbers of the files that it needs.
    #[serde(default)]
    pub inputs: Vec<u32>,
}

/// The key of the file with a number; its name for the scheduler is `f` and this.
pub(crate) fn file_key(file: u32) -> String {
    format!("a{file}")
}

/// What a task over several hosts needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangPlan {
    /// Hosts.
    pub nodes: u32,
    /// Ranks on each of them.
    pub ranks: u32,
    /// It has them for itself.
    pub exclusive: bool,
}

impl Task {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("t{}", self.number)
    }

    /// How long it says that it runs, at most, in seconds.
    #[must_use]
    pub fn expected_seconds(&self) -> u64 {
        self.millis * 3 / 2_000 + 1
    }

    /// How long before the end of the run it does not start any more, in seconds.
    #[must_use]
    pub fn needed_seconds(&self) -> u64 {
        // It uses the tail of the run, if it has as much time to work as it has to save itself.
        let most = if self.saves { 2 * SAVE_LEAD } else { u64::MAX };
        self.expected_seconds().min(most)
    }

    /// Its options in the DAG file of a folder.
    #[must_use]
    pub fn options(&self, folder: &Path) -> String {
        let mut text = format!("-t {} -c {}", self.tries, self.cpus);
        if self.memory > 0 {
            let _ = write!(text, " -m {}", self.memory);
        }
        if self.priority != 0 {
            let _ = write!(text, " -p {}", self.priority);
        }
        if let Some(gang) = self.gang {
            let _ = write!(text, " -N {} --ranks-per-node {}", gang.nodes, gang.ranks);
            text += if gang.exclusive { " --exclusive" } else { "" };
        }
        if self.saves {
            let _ = write!(
                text,
                " --checkpoint-signal USR1@{SAVE_LEAD} --checkpoint-exit {SAVED}"
            );
        }
        if self.is_expected {
            let _ = write!(text, " -e {}", self.expected_seconds());
        }
        if let Some(file) = self.forwards {
            let _ = write!(text, " -f OUT={}/forward{file}", folder.display());
        }
        text
    }

    /// Returns whether a gang of this task fits on these hosts.
    fn fits(&self, gang: GangPlan, hosts: &[HostPlan]) -> bool {
        let fits = |host: &&HostPlan| {
            self.cpus * gang.ranks <= host.cpus && self.memory * u64::from(gang.ranks) <= host.memory
        };
        hosts.iter().filter(fits).count() >= gang.nodes as usize
    }

    /// True if it can succeed.
    #[must_use]
    pub fn can_succeed(&self) -> bool {
        self.failures < self.tries
    }
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlan {
    /// CPUs.
    pub cpus: u32,
    /// Memory in MB.
    pub memory: u64,
    /// When its agent is started at first, in milliseconds.
    pub starts_at: u64,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// SIGKILL to the agent of a host.
    KillAgent(usize),
    /// SIGKILL to the guard of a host.
    KillGuard(usize),
    /// SIGSTOP to the agent of a host, for some milliseconds.
    StopAgent(usize, u64),
    /// The host loses its power, for some milliseconds.
    Off(usize, u64),
    /// The host is cut off for some milliseconds: what it sends, what is sent to it, or both.
    Cut(usize, Way, u64),
    /// The connections of the host are reset.
    Reset(usize),
    /// SIGKILL to the master, which is started again after some milliseconds.
    KillMaster(u64),
    /// SIGSTOP to the master, for some milliseconds.
    StopMaster(u64),
    /// SIGKILL to the master in the middle of its next write of a file, and the same time.
    KillMasterInWrite(u64),
    /// The host of the master loses its power for some milliseconds: what was not synced may be lost.
    MasterOff(u64),
    /// Writes of the master fail for some milliseconds, because the disk is full.
    DiskFull(u64),
    /// One write of the master fails.
    WriteError,
    /// SIGTERM to the agent of a host, as of a batch system that wants the host back.
    DrainAgent(usize),
    /// This signal to the master. It is started again after its end.
    DrainMaster(i32),
    /// The connections between two hosts are reset. These sides of the first one's gangs notice it.
    ResetBetween(usize, usize, Way),
    /// The host stands still for some milliseconds, as a virtual machine can: agent, guard and tasks.
    Suspend(usize, u64),
    /// The host is cut off: what is sent to it comes again after the first number of milliseconds, what it
    /// sends after the second.
    Uneven(usize, u64, u64),
    /// What is sent to the host waits for the first number of milliseconds. After a third of that, the host
    /// is not heard any more, for the second number.
    LateAnswers(usize, u64, u64),
    /// A tool asks that no more tasks start on the host.
    DrainHost(usize),
    /// A tool asks the master to drain, after some seconds.
    DrainByTool(u64),
    /// A tool says that the host is lost, which may live.
    GiveUp(usize),
    /// A tool reserves the host, for some milliseconds.
    Reserve(usize, u64),
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// To the master.
    Out,
    /// From the master.
    In,
    /// Both.
    Both,
}

/// What goes wrong, and when, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// When.
    pub at: u64,
    /// What.
    pub kind: FaultKind,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The seed: it also decides about everything that is not written here.
    pub seed: u64,
    /// The workflow.
    pub tasks: Vec<Task>,
    /// The hosts.
    pub hosts: Vec<HostPlan>,
    /// Slots of each agent.
    pub slots: u32,
    /// The lease, in milliseconds.
    pub lease: u64,
    /// The longest delay of a frame, in microseconds.
    pub delay: u64,
    /// Agents that must be there before the first task.
    pub start_with: u32,
    /// Limit of lost attempts of a task; 0 means none.
    pub crash_limit: u32,
    /// Milliseconds between syncs; 0 means no syncs.
    pub sync: u64,
    /// Wall time of each master, in milliseconds; 0 means no limit.
    #[serde(default)]
    pub wall: u64,
    /// The faults, by time.
    pub faults: Vec<Fault>,
    /// What comes to the DAG file of the run.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// A run that takes tasks ends when it has had nothing to do for this number of milliseconds; 0 means
    /// that it is asked to.
    #[serde(default)]
    pub idle: u64,
    /// Agents start the next master if the host of the present one is lost.
    #[serde(default)]
    pub succession: bool,
}

/// Which faults a plan may have.
fn kinds(random: &mut Random, hosts: usize) -> Vec<FaultKind> {
    let host = random.below(hosts as u64) as usize;
    let lease_like = |random: &mut Random| 500 + random.below(40_000);
    let short = |random: &mut Random| 100 + random.below(5_000);
    let way = random.pick(&[Way::Out, Way::In, Way::Both]);
    vec![
        FaultKind::KillAgent(host),
        FaultKind::KillGuard(host),
        FaultKind::StopAgent(host, lease_like(random)),
        FaultKind::Off(host, lease_like(random)),
        FaultKind::Cut(host, way, lease_like(random)),
        FaultKind::Reset(host),
        FaultKind::KillMaster(short(random)),
        FaultKind::StopMaster(lease_like(random)),
        FaultKind::KillMasterInWrite(short(random)),
        FaultKind::MasterOff(lease_like(random)),
        FaultKind::DiskFull(short(random)),
        FaultKind::WriteError,
        FaultKind::DrainAgent(host),
        FaultKind::DrainMaster(random.pick(&[10, 15])),
        FaultKind::ResetBetween(host, random.below(hosts as u64) as usize, way),
        FaultKind::Suspend(host, lease_like(random)),
        FaultKind::Uneven(host, 500 + random.below(6_000), 20_000 + random.below(30_000)),
    ]
}

/// Number of kinds of faults.
const KINDS: u64 = 17;

/// Wall time, in milliseconds, in which each task has time to run, and hosts to come.
const WALL: u64 = 150_000;

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let (mut plan, span) = Self::begun(seed);
        plan.add_parts(&mut Random::new(seed ^ 0xda65));
        plan.add_inputs(&mut Random::new(seed ^ 0xf11e));
        plan.add_requests(&mut Random::new(seed ^ 0x7001), span);
        plan.add_late_answers(&mut Random::new(seed ^ 0x1ea5e));
        plan.add_hosts_of_tools(&mut Random::new(seed ^ 0x90e5), span);
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }

    /// The part of a plan to which [`Plan::of_seed`] adds, and the time in which faults happen.
    fn begun(seed: u64) -> (Self, u64) {
        let random = &mut Random::new(seed ^ 0x7e57);
        let hosts = 1 + random.below(4);
        let slots = 1 + random.below(4) as u32;
        let hosts: Vec<HostPlan> = (0..hosts)
            .map(|_| HostPlan {
                cpus: random.pick(&[1, 2, 4, 8]).max(2),
                memory: random.pick(&[1000, 2000, 4000]),
                starts_at: if random.one_in(3) {
                    random.below(20_000)
                } else {
                    random.below(200)
                },
            })
            .collect();
        let tasks = Self::tasks(random, 0);
        let lease = random.pick(&[2_000, 10_000, 30_000, 30_000]);
        let span = 3_000 + random.below(60_000);
        let mut plan = Self {
            seed,
            tasks,
            slots,
            lease,
            delay: random.pick(&[50, 2_000, 200_000]),
            start_with: 1 + random.below(hosts.len() as u64) as u32,
            crash_limit: 0,
            sync: random.pick(&[0, 1_000, 1_000]),
            wall: if random.one_in(6) {
                WALL + random.below(WALL)
            } else {
                0
            },
            hosts,
            faults: Vec::new(),
            parts: Vec::new(),
            idle: 0,
            succession: false,
        };
        Self::add_gangs(&mut plan.tasks, &plan.hosts, random);
        plan.add_faults(random, span);
        (plan, span)
    }

    /// Lets tasks need files.
    fn add_inputs(&mut self, random: &mut Random) {
        if !random.one_in(4) {
            return;
        }
        let files = 1 + random.below(4);
        for at in 0..self.tasks.len() {
            let is_plain = self.tasks[at].gang.is_none() && self.subworkflow(self.tasks[at].number).is_none();
            if is_plain && random.one_in(2) {
                let wanted = (0..1 + random.below(2)).map(|_| random.below(files) as u32);
                let wanted: BTreeSet<u32> = wanted.collect();
                self.tasks[at].inputs = wanted.into_iter().collect();
            }
        }
    }

    /// Lets agents start the next master, and tools drain hosts, or the run.
    fn add_requests(&mut self, random: &mut Random, span: u64) {
        self.succession = random.one_in(4);
        if self.succession && self.wall == 0 {
            for _ in 0..1 + random.below(2) {
                let (at, kind) = (
                    random.below(span),
                    FaultKind::MasterOff(500 + random.below(100_000)),
                );
                self.faults.push(Fault { at, kind });
            }
        }
        if !random.one_in(8) {
            return;
        }
        for _ in 0..1 + random.below(2) {
            let kind = match random.one_in(3) {
                true => FaultKind::DrainByTool(random.below(20)),
                false => FaultKind::DrainHost(random.below(self.hosts.len() as u64) as usize),
            };
            let at = random.below(span);
            self.faults.push(Fault { at, kind });
        }
    }

    /// Lets the answers of the master come so late to a host with a long task that nothing is left of the
    /// lease that they renew.
    fn add_late_answers(&mut self, random: &mut Random) {
        if !random.one_in(12) || self.wall > 0 {
            return;
        }
        self.lease = 30_000;
        for _ in 0..1 + random.below(2) {
            let task = random.below(self.tasks.len() as u64) as usize;
            self.tasks[task].millis = 40_000 + random.below(60_000);
            let host = random.below(self.hosts.len() as u64) as usize;
            let (held, silent) = (4_500 + random.below(1_400), 35_000 + random.below(30_000));
            self.faults.push(Fault {
                at: random.below(30_000),
                kind: FaultKind::LateAnswers(host, held, silent),
            });
        }
    }

    /// Lets tools give up hosts, or reserve them.
    fn add_hosts_of_tools(&mut self, random: &mut Random, span: u64) {
        if !random.one_in(6) {
            return;
        }
        for _ in 0..1 + random.below(2) {
            let host = random.below(self.hosts.len() as u64) as usize;
            let kind = match random.one_in(3) {
                true => FaultKind::Reserve(host, 1_000 + random.below(30_000)),
                false => FaultKind::GiveUp(host),
            };
            let at = random.below(span);
            self.faults.push(Fault { at, kind });
        }
    }

    /// Lets some tasks run over several hosts.
    pub(crate) fn add_gangs(tasks: &mut [Task], hosts: &[HostPlan], random: &mut Random) {
        if random.one_in(2) {
            return;
        }
        for task in tasks {
            let gang = GangPlan {
                nodes: 1 + random.below(hosts.len() as u64) as u32,
                ranks: 1 + random.below(2) as u32,
                exclusive: random.one_in(4),
            };
            if random.one_in(2) && task.fits(gang, hosts) {
                task.gang = Some(gang);
            }
        }
    }

    /// Tasks with numbers from this one on.
    pub(crate) fn tasks(random: &mut Random, first: u32) -> Vec<Task> {
        let count = random.pick(&[1, 4, 12, 12, 30]);
        let edges = random.below(3);
        let (fails, always) = (random.one_in(2), random.one_in(4));
        let (forwards, is_long) = (random.one_in(2), random.one_in(3));
        let (saves, is_expected) = (random.one_in(3), random.one_in(3));
        let count = 1 + random.below(count) as u32;
        let task = |number: u32, random: &mut Random| {
            let earlier = u64::from(number - first);
            let parents = (0..edges).map(|_| first + random.below(earlier.max(1)) as u32);
            let mut parents: Vec<u32> = parents.filter(|parent| *parent < number).collect();
            parents.sort_unstable();
            parents.dedup();
            let tries = 1 + random.below(3) as u32;
            Task {
                number,
                parents,
                cpus: 1 + random.below(2) as u32,
                memory: random.pick(&[0, 100, 500, 1000]),
                priority: random.below(3) as i32,
                tries,
                failures: match () {
                    () if always && random.one_in(12) => tries,
                    () if fails && random.one_in(3) => random.below(u64::from(tries)) as u32,
                    () => 0,
                },
                millis: match is_long {
                    true => 1_000 + random.below(30_000),
                    false => random.pick(&[5, 200, 2_000, 5_000]),
                },
                forwards: (forwards && random.one_in(3)).then(|| random.below(2) as u32),
                ignores_term: random.one_in(8),
                gang: None,
                saves: saves && random.one_in(2),
                is_expected: is_expected && random.one_in(2),
                part: 0,
                inputs: Vec::new(),
            }
        };
        (first..first + count)
            .map(|number| task(number, random))
            .collect()
    }

    fn add_faults(&mut self, random: &mut Random, span: u64) {
        let enabled: Vec<u64> = (0..KINDS).filter(|_| random.one_in(3)).collect();
        if enabled.is_empty() || random.one_in(8) {
            return;
        }
        for _ in 0..random.below(8) {
            let kind = random.pick(&enabled) as usize;
            let all = kinds(random, self.hosts.len());
            let at = random.below(span);
            self.faults.push(Fault { at, kind: all[kind] });
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// The task of this name.
    #[must_use]
    pub fn task(&self, name: &[u8]) -> Option<&Task> {
        let number: u32 = std::str::from_utf8(name.strip_prefix(b"t")?).ok()?.parse().ok()?;
        self.tasks.iter().find(|task| task.number == number)
    }

    /// True if nothing goes wrong but that masters are killed: no attempt is lost.
    #[must_use]
    pub fn costs_no_attempt(&self) -> bool {
        let is_kill = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::KillMaster(_) | FaultKind::KillMasterInWrite(_)
            )
        };
        self.wall == 0 && self.faults.iter().all(is_kill)
    }

    /// Without one of its tasks.
    #[must_use]
    pub fn without_task(&self, at: usize) -> Self {
        let mut plan = self.clone();
        plan.tasks.remove(at);
        plan.remove_empty_parts();
        let left: Vec<u32> = plan.tasks.iter().map(|task| task.number).collect();
        for task in &mut plan.tasks {
            task.parents.retain(|parent| left.contains(parent));
        }
        plan
    }

    /// Without one of its faults.
    #[must_use]
    pub fn without_fault(&self, at: usize) -> Self {
        let mut plan = self.clone();
        plan.faults.remove(at);
        plan
    }

    /// The same with less in it, but for tasks and faults: one change each.
    #[must_use]
    pub fn simpler(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                all.push(plan);
            }
        };
        add(&|plan| plan.wall = 0);
        add(&|plan| plan.idle = 0);
        add(&|plan| plan.succession = false);
        for at in 0..self.tasks.len() {
            add(&|plan| plan.tasks[at].gang = None);
            add(&|plan| plan.tasks[at].saves = false);
            add(&|plan| plan.tasks[at].is_expected = false);
            add(&|plan| plan.tasks[at].forwards = None);
            add(&|plan| plan.tasks[at].inputs.clear());
            add(&|plan| plan.tasks[at].parents.clear());
        }
        all
    }

    /// How long an attempt of a task runs, in milliseconds: the same in each run of the plan.
    #[must_use]
    pub fn run_time(&self, task: &Task, attempt: u32) -> Duration {
        let key = u64::from(task.number) << 32 | u64::from(attempt);
        let mut random = Random::new(self.seed ^ key);
        Duration::from_micros(task.millis * (500 + random.below(1_000)))
    }
}
