//! One round.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::network::{Direction, Network, Node};
use super::{Damage, FAULTS, Fault, Outcome, Settings, check, monitoring};
use crate::Random;

/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Time for agents to end after their run.
const END_LIMIT: Duration = Duration::from_secs(40);

/// Number of nodes, each with [`SLOTS`].
const NODES: usize = 3;

/// Slots of a node.
const SLOTS: &str = "2";

/// What the master adds to the lease.
const GRACE: Duration = Duration::from_secs(2);

/// Faults in a round, at most.
const MAX_FAULTS: u64 = 3;

/// A task: it notes its begin and its end, and an attempt that runs at the same time, for which it holds a
/// lock until its last process has ended. It forwards a line.
const TASK: &str = r#"#!/bin/sh
exec 9>>lock.$1
flock -n 9 || echo "overlap $1 $(hostname) $(date +%s.%N)" >>log
echo "begin $1 $(hostname) $(date +%s.%N)" >>log
sleep $2
echo "$1 data" >/proc/self/fd/$DATA
echo "end $1 $(hostname) $(date +%s.%N)" >>log
"#;

/// What is to happen.
#[derive(Clone, Copy, Debug)]
enum Action {
    Begin(Fault, usize),
    Plug(usize),
    Join(usize, Direction),
    Continue(usize),
    SwitchOn(usize),
    StartMaster,
    ContinueMaster,
}

struct Round<'a> {
    settings: &'a Settings,
    random: Random,
    directory: &'a Path,
    outcome: &'a mut Outcome,
    // Nodes before their network.
    nodes: Vec<Option<Node>>,
    master: Option<Child>,
    network: Network,
    begun: Instant,
    /// Sorted by time, the last one first.
    plan: Vec<(Duration, Action)>,
}

/// Plays one round.
pub(super) fn run(
    settings: &Settings,
    mut random: Random,
    seed: u64,
    directory: &Path,
    outcome: &mut Outcome,
) {
    let network = match Network::new() {
        Ok(network) => network,
        Err(error) => {
            outcome.skipped.push(format!("all: no namespaces: {error}"));
            return;
        }
    };
    let tasks = write_dag(settings, &mut random, directory);
    if settings.monitord.is_some() {
        monitoring::write_plan(directory, &tasks);
    }
    let mut round = Round {
        settings,
        random,
        directory,
        outcome,
        nodes: (0..NODES).map(|_| None).collect(),
        master: None,
        network,
        begun: Instant::now(),
        plan: Vec::new(),
    };
    match round.play(seed) {
        Ok(true) => {
            round.end();
            drop(round);
            check::run(directory, &tasks, settings.master_kills > 0, outcome);
            if let Some(monitord) = &settings.monitord {
                monitoring::check(monitord, directory, &tasks, outcome);
            }
        }
        Ok(false) => {}
        Err(error) => round.outcome.find(Damage::Wrong, format!("the harness: {error}")),
    }
}

/// Writes a DAG and its task. Returns the names of its tasks.
fn write_dag(settings: &Settings, random: &mut Random, directory: &Path) -> BTreeSet<String> {
    fs::write(directory.join("task.sh"), TASK).expect("a file");
    let mut dag = String::new();
    let mut names = BTreeSet::new();
    let long = settings.master_kills > 0;
    let tasks = if long { 12 } else { 10 + random.below(10) };
    for n in 0..tasks {
        let name = format!("t{n:02}");
        let tenths = match long {
            true => 20 + u64::from(settings.master_kills) * 2 + random.below(20),
            false => 1 + random.below(8),
        };
        let (whole, tenth) = (tenths / 10, tenths % 10);
        dag += &format!("TASK {name} -f DATA=data /bin/sh task.sh {name} {whole}.{tenth}\n");
        if n > 2 && random.one_in(3) && !long {
            dag += &format!("EDGE t{:02} {name}\n", random.below(n));
        }
        names.insert(name);
    }
    fs::write(directory.join("x.dag"), dag).expect("a file");
    names
}

impl Round<'_> {
    /// Plays to the end of the run. False if it does not end well.
    fn play(&mut self, seed: u64) -> io::Result<bool> {
        self.plan_faults(seed);
        self.start_master()?;
        for number in 0..NODES {
            self.switch_on(number)?;
        }
        let start = Instant::now();
        while fs::metadata(self.directory.join("log")).is_err() {
            if start.elapsed() > LIMIT || self.master_ended().is_some() {
                self.outcome.find(Damage::Wrong, "no task begins");
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.begun = Instant::now();
        loop {
            while let Some((at, action)) = self.plan.last().copied() {
                if at > self.begun.elapsed() {
                    break;
                }
                self.plan.pop();
                self.act(action)?;
            }
            if let Some(code) = self.master_ended() {
                self.tell(&format!("the master ends with {code}"));
                if code != 0 {
                    let what = format!("the master ends with exit code {code}");
                    self.outcome.find(Damage::Lost, what);
                }
                return Ok(code == 0);
            }
            if self.begun.elapsed() > LIMIT {
                self.outcome.find(Damage::Wrong, "the run does not end");
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    fn tell(&mut self, what: &str) {
        let time = self.begun.elapsed().as_millis();
        self.outcome.story.push(format!("{time:>6} ms {what}"));
    }

    /// Chooses what happens when.
    fn plan_faults(&mut self, seed: u64) {
        if self.settings.master_kills > 0 {
            let mut at = 0;
            for _ in 0..self.settings.master_kills {
                at += 50 + self.random.below(500);
                self.at(at, Action::Begin(Fault::MasterKilled, 0));
                // It comes again before it can be killed again.
                at += 250;
            }
            return;
        }
        let first = FAULTS[(seed % FAULTS.len() as u64) as usize].0;
        let mut fault = self.settings.only.unwrap_or(first);
        for _ in 0..=self.random.below(MAX_FAULTS) {
            let at = self.random.below(2500);
            let node = self.random.index(NODES);
            self.at(at, Action::Begin(fault, node));
            fault = self.random.pick(&FAULTS).0;
        }
    }

    /// Adds an action that many milliseconds after the begin.
    fn at(&mut self, at: u64, action: Action) {
        self.plan.push((Duration::from_millis(at), action));
        self.plan.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    }

    /// Adds an action after a random time.
    fn later(&mut self, least: Duration, spread: Duration, action: Action) {
        let spread = u64::try_from(spread.as_millis()).unwrap_or(0);
        let at = self.begun.elapsed() + least + Duration::from_millis(self.random.below(spread.max(1)));
        self.at(u64::try_from(at.as_millis()).unwrap_or(0), action);
    }

    fn act(&mut self, action: Action) -> io::Result<()> {
        match action {
            Action::Begin(fault, node) => return self.begin(fault, node),
            Action::Plug(node) => {
                if let Some(node) = &self.nodes[node] {
                    // It may have ended since.
                    let _ = self.network.cut(node, false);
                }
            }
            Action::Join(node, direction) => {
                if let Some(node) = &self.nodes[node] {
                    let _ = self.network.half_open(node, direction, false);
                }
            }
            Action::Continue(node) => {
                if let Some(node) = &self.nodes[node] {
                    // Its guard may have killed it.
                    let _ = node.signal_agent(Signal::SIGCONT);
                }
            }
            Action::SwitchOn(node) => self.switch_on(node)?,
            Action::StartMaster => self.start_master()?,
            Action::ContinueMaster => self.signal_master(Signal::SIGCONT),
        }
        self.tell(&format!("{action:?}"));
        Ok(())
    }

    /// Begins a fault and plans its end.
    fn begin(&mut self, fault: Fault, number: usize) -> io::Result<()> {
        // A node that is off cannot break.
        if self.is_off(number) {
            return Ok(());
        }
        match self.strike(fault, number) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // The run has just ended, and the node with it.
            Err(_) if self.is_off(number) => return Ok(()),
            Err(error) => return Err(error),
        }
        *self.outcome.faults.entry(fault).or_default() += 1;
        self.tell(&format!("{fault} n{}", number + 1));
        Ok(())
    }

    /// True if a node is switched off, or its agent has ended.
    fn is_off(&mut self, number: usize) -> bool {
        self.nodes[number].as_mut().is_none_or(Node::has_ended)
    }

    /// Makes a fault happen. False if it cannot.
    fn strike(&mut self, fault: Fault, number: usize) -> io::Result<bool> {
        let lease = Duration::from_secs(self.settings.lease);
        let until_lost = lease + GRACE;
        let ms = Duration::from_millis;
        let Some(node) = &self.nodes[number] else {
            return Ok(false);
        };
        match fault {
            Fault::Off | Fault::Killed => {
                if fault == Fault::Off {
                    self.network.cut(node, true)?;
                }
                self.nodes[number] = None;
                self.later(ms(0), ms(2000), Action::SwitchOn(number));
            }
            Fault::Cut => {
                self.network.cut(node, true)?;
                self.later(ms(0), until_lost * 3 / 2, Action::Plug(number));
            }
            Fault::HalfOpen => {
                let direction = self.random.pick(&[Direction::ToMaster, Direction::ToNode]);
                self.network.half_open(node, direction, true)?;
                self.later(ms(0), until_lost * 3 / 2, Action::Join(number, direction));
            }
            Fault::Loss => {
                if self.network.lose_packets(node, 5).is_err() {
                    if !self.is_off(number) {
                        let what = "packet loss: nft is missing";
                        self.outcome.skipped.push(what.to_owned());
                    }
                    return Ok(false);
                }
            }
            Fault::ShortStop | Fault::LongStop => {
                if node.signal_agent(Signal::SIGSTOP) {
                    let (least, spread) = match fault {
                        Fault::ShortStop => (ms(0), lease / 2),
                        _ => (lease * 2, ms(500)),
                    };
                    self.later(least, spread, Action::Continue(number));
                }
            }
            Fault::AgentKilled => _ = node.signal_agent(Signal::SIGKILL),
            Fault::GuardKilled => {
                if node.kill_guard() {
                    self.later(ms(500), ms(1500), Action::SwitchOn(number));
                }
            }
            Fault::MasterKilled => {
                let Some(mut master) = self.master.take() else {
                    return Ok(false);
                };
                master.kill()?;
                master.wait()?;
                let pause = if self.settings.master_kills > 0 { 200 } else { 1500 };
                self.later(ms(0), ms(pause), Action::StartMaster);
            }
            Fault::MasterStopped => {
                self.signal_master(Signal::SIGSTOP);
                self.later(ms(0), until_lost * 3 / 2, Action::ContinueMaster);
            }
        }
        Ok(true)
    }

    /// Switches a node on. What may be left of it is switched off before.
    fn switch_on(&mut self, number: usize) -> io::Result<()> {
        self.nodes[number] = None;
        let program = self.settings.programs.join("pegasus-mpi-cluster");
        let words = [
            program.as_os_str(),
            OsStr::new("--agent"),
            OsStr::new("x.dag.endpoint"),
            OsStr::new("--slots"),
            OsStr::new(SLOTS),
            OsStr::new("--join-timeout"),
            OsStr::new("6"),
        ];
        let name = format!("n{}", number + 1);
        let node = self.network.start_node(&name, self.directory, &name, &words)?;
        self.nodes[number] = Some(node);
        Ok(())
    }

    fn start_master(&mut self) -> io::Result<()> {
        if self.master.is_some() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        let log = options
            .append(true)
            .create(true)
            .open(self.directory.join("master"))?;
        let lease = self.settings.lease.to_string();
        let mut command = self.network.on_master();
        command
            .arg(self.settings.programs.join("pegasus-mpi-cluster"))
            .args(["--agents", "3", "--agent-timeout", &lease])
            .args(["--master-timeout", "60", "--join-timeout", "30"])
            .args(["--crash-limit", "0", "--jobstate-log", "--monitord-hack"])
            .args(self.settings.monitord.iter().map(|_| "--per-task-stdio"))
            .arg("x.dag")
            .current_dir(self.directory)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.master = Some(command.spawn()?);
        Ok(())
    }

    fn signal_master(&self, signal: Signal) {
        if let Some(master) = &self.master {
            // It is not reaped yet.
            let _ = kill(Pid::from_raw(master.id().cast_signed()), signal);
        }
    }

    /// The exit code of the master, if it has ended by itself.
    fn master_ended(&mut self) -> Option<i32> {
        let status = self.master.as_mut()?.try_wait().ok()??;
        Some(status.code().unwrap_or(-1))
    }

    /// Ends all faults, and waits for the agents to end.
    fn end(&mut self) {
        let left = std::mem::take(&mut self.plan);
        let is_end =
            |action: &Action| matches!(action, Action::Plug(_) | Action::Join(..) | Action::Continue(_));
        for (_, action) in left.into_iter().filter(|(_, action)| is_end(action)) {
            if let Err(error) = self.act(action) {
                self.outcome.find(Damage::Wrong, format!("the harness: {error}"));
            }
        }
        let start = Instant::now();
        let ended = |nodes: &mut Vec<Option<Node>>| nodes.iter_mut().flatten().all(Node::has_ended);
        while !ended(&mut self.nodes) {
            if start.elapsed() > END_LIMIT {
                self.outcome.find(Damage::LeftOver, "an agent");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if let Some(master) = &mut self.master {
            let _ = master.kill();
            let _ = master.wait();
        }
    }
}
