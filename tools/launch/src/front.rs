//! The front end: what a person or a task starts.

mod hosts;
mod inputs;
mod output;
mod proxies;
mod report;
mod signals;

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::arguments::{Bind, Options, Pmi};
use crate::error::LaunchError;
use crate::frames::{Bytes, Input, Load, LocalRank, Stream, ToFront, ToProxy};
use crate::loadfile::{self, Line, Ranks};
use crate::pmi::Names;
use crate::world::{World, words_for};
use inputs::InputReader;
use output::Outputs;
use proxies::Proxies;
use report::{Ends, Report};
use signals::{Interrupts, Step};

/// Longest time until all ranks stand before their first instruction.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Most bytes of a load file.
const MAX_LOAD_FILE: u64 = 64 << 20;

/// What comes to the loop.
#[derive(Debug)]
enum Event {
    /// A proxy says something; `None` if it has gone.
    Proxy(usize, Option<ToFront>),
    Signal(i32),
    /// A part of an output was written.
    Written {
        proxy: usize,
        rank: u32,
        stream: Stream,
    },
    Input(Vec<u8>),
}

/// A launch.
struct Launch<'a> {
    options: &'a Options,
    world: &'a World,
    proxies: Proxies,
    events: Receiver<Event>,
    report: Option<Report>,
    ends: Ends,
    outputs: Outputs,
    names: Names,
    input: Option<InputReader>,
    interrupts: Interrupts,
    /// Proxies whose ranks are at the barrier.
    at_barrier: usize,
    fresh: Vec<crate::frames::Pair>,
    /// Proxies that have not taken the last input.
    input_left: usize,
    /// When the ranks that are left are killed.
    kill_at: Option<Instant>,
}

/// Runs a launch. Returns its exit code.
pub(crate) fn run(options: &Options) -> Result<u8, LaunchError> {
    let begun = Instant::now();
    let hosts = hosts::of_surroundings(&mut |name| std::env::var_os(name))?;
    let (lines, is_file) = lines_of(options)?;
    let world = World::new(&hosts.hosts, &options.wanted(), lines, is_file)?;
    if options.dry_run {
        pmc_terminal::print(&report::placement(&world));
        return Ok(0);
    }
    let report = options.report.as_deref().map(Report::create).transpose()?;
    let (sender, events) = channel();
    // Signals that come from now on reach the ranks.
    signals::listen(&sender)?;
    let outputs = Outputs::start(options, sender.clone())?;
    let proxies = Proxies::start(&world, &hosts, &sender)?;
    let mut launch = Launch {
        options,
        world: &world,
        proxies,
        events,
        report,
        ends: Ends::new(&world),
        outputs,
        names: Names::default(),
        input: None,
        interrupts: Interrupts::default(),
        at_barrier: 0,
        fresh: Vec::new(),
        input_left: 0,
        kill_at: None,
    };
    let started = launch.load(hosts.has_cpus);
    let loaded = begun.elapsed();
    let code = match started {
        Ok(()) => launch.carry(sender),
        Err(error) => Err(error),
    };
    launch.proxies.end();
    launch.outputs.finish();
    let code = code?;
    for line in launch.ends.lines(&world, options.quiet) {
        pmc_terminal::message(line);
    }
    if let Some(report) = &mut launch.report {
        report.ends(&launch.ends)?;
    }
    if options.timing {
        let all = begun.elapsed();
        pmc_terminal::message(format_args!(
            "loaded in {:.3} s, ran for {:.3} s",
            loaded.as_secs_f64(),
            all.saturating_sub(loaded).as_secs_f64()
        ));
    }
    Ok(code)
}

/// The programs: one on the command line, or those of a load file.
fn lines_of(options: &Options) -> Result<(Vec<Line>, bool), LaunchError> {
    let first = options.words.first().map(Path::new).unwrap_or(Path::new(""));
    let is_load_file = options.words.len() == 1
        && fs::metadata(first).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 == 0);
    if !is_load_file {
        let words = options.words.iter().map(|word| word.as_bytes().to_vec());
        let line = Line {
            ranks: Ranks::Others,
            words: words.collect(),
            hosts: Vec::new(),
        };
        return Ok((vec![line], false));
    }
    let text = pmc_files::read(first, MAX_LOAD_FILE).map_err(|error| LaunchError::File {
        path: first.to_owned(),
        why: pmc_dag::reason(&error).to_string(),
    })?;
    let lines = loadfile::parse(&text).map_err(|error| LaunchError::LoadFile {
        path: first.to_owned(),
        line: error.line,
        why: error.why,
    })?;
    Ok((lines, true))
}

impl Launch<'_> {
    /// Lets all ranks stop before their first instruction, then lets them go.
    fn load(&mut self, has_cpus: bool) -> Result<(), LaunchError> {
        let until = Instant::now() + START_TIMEOUT;
        let common = self.common(has_cpus)?;
        for number in 0..self.world.hosts.len() {
            let load = self.load_of(&common, number as u32);
            self.proxies.say(number, &ToProxy::Load(Box::new(load)));
        }
        let mut missing: Vec<bool> = vec![true; self.world.hosts.len()];
        let mut failures: Vec<(String, String, usize)> = Vec::new();
        let mut answers = 0;
        let mut is_held = true;
        while answers < missing.len() {
            let left = until.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).map_err(|_| {
                let names = self.names_of(|number| missing.get(number).copied().unwrap_or(false));
                let seconds = START_TIMEOUT.as_secs();
                LaunchError::Failed(format!("{names} did not start its ranks in {seconds} s"))
            })?;
            match event {
                Event::Proxy(number, message) => {
                    match message {
                        Some(ToFront::Here { groups }) => {
                            self.proxies.note_groups(number, &groups, self.world);
                            continue;
                        }
                        Some(ToFront::Stopped {
                            processes,
                            is_held: held,
                        }) => {
                            is_held &= held;
                            self.ends.started(number as u32, &processes);
                        }
                        Some(ToFront::Failed { what, why }) => failures.push((what, why, number)),
                        Some(other) => {
                            return Err(LaunchError::Failed(format!(
                                "{} says {other:?}",
                                self.name(number)
                            )));
                        }
                        None => failures.push((String::new(), "its proxy has gone".to_owned(), number)),
                    }
                    if let Some(missing) = missing.get_mut(number) {
                        *missing = false;
                    }
                    answers += 1;
                }
                Event::Signal(signal) => {
                    return Err(LaunchError::Failed(format!("signal {signal} before it began")));
                }
                Event::Written { .. } | Event::Input(_) => {}
            }
        }
        if !failures.is_empty() {
            return Err(LaunchError::Failed(self.describe(&failures)));
        }
        if !is_held {
            pmc_terminal::message("This system forbids to hold processes: ranks begin as they start.");
        }
        if let Some(report) = &mut self.report {
            report.begins(self.world, &self.ends)?;
        }
        self.proxies.say_all(&ToProxy::Go);
        Ok(())
    }

    /// What all proxies get.
    fn common(&self, has_cpus: bool) -> Result<Load, LaunchError> {
        let directory = std::env::current_dir()?;
        let variables = std::env::vars_os().map(|(name, value)| {
            let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
            Bytes(text)
        });
        // Only this way tells it.
        let umask = nix::sys::stat::umask(nix::sys::stat::Mode::empty());
        nix::sys::stat::umask(umask);
        let words = |words: &Vec<Vec<u8>>| words.iter().cloned().map(Bytes).collect();
        Ok(Load {
            node: 0,
            ranks: Vec::new(),
            programs: self.world.programs.iter().map(words).collect(),
            size: u32::try_from(self.world.ranks.len()).unwrap_or(u32::MAX),
            mapping: self.world.mapping(),
            name: format!("launch_{}", std::process::id()),
            environment: variables.collect(),
            directory: Bytes(directory.into_os_string().into_vec()),
            umask: umask.bits(),
            has_pmi: self.options.pmi == Pmi::One,
            binds: match self.options.bind {
                Bind::Auto => has_cpus,
                Bind::Cpus => true,
                Bind::None => false,
            },
            input: self.options.input,
        })
    }

    fn load_of(&self, common: &Load, host: u32) -> Load {
        let rank = |(rank, place): (u32, &crate::world::Place)| {
            let words = self.world.programs.get(place.program as usize);
            let own = words.and_then(|words| words_for(words, rank, place.offset));
            LocalRank {
                rank,
                program: place.program,
                words: own.map(|words| words.into_iter().map(Bytes).collect()),
            }
        };
        Load {
            node: host,
            ranks: self.world.ranks_of(host).map(rank).collect(),
            ..common.clone()
        }
    }

    fn name(&self, number: usize) -> &str {
        self.world.hosts.get(number).map_or("", |host| &host.name)
    }

    /// Names of hosts, as an expression.
    fn names_of(&self, is_meant: impl Fn(usize) -> bool) -> String {
        let names: Vec<&str> = (0..self.world.hosts.len())
            .filter(|number| is_meant(*number))
            .map(|number| self.name(number))
            .collect();
        pmc_hosts::compress(&names)
    }

    /// Says what has failed, and on how many hosts: the same failure once.
    fn describe(&self, failures: &[(String, String, usize)]) -> String {
        let Some((what, why, first)) = failures.first() else {
            return String::new();
        };
        let is_same = |number: usize| {
            failures
                .iter()
                .any(|(other, reason, at)| *at == number && (other, reason) == (what, why))
        };
        let count = failures
            .iter()
            .filter(|(other, reason, _)| (other, reason) == (what, why))
            .count();
        let said = self.proxies.said(*first);
        let detail = if said.is_empty() {
            String::new()
        } else {
            format!(": {said}")
        };
        match what.is_empty() {
            true => format!("{}: {why}{detail}", self.names_of(is_same)),
            false if count == self.world.hosts.len() && count > 1 => format!("{what}: {why} ({count} hosts)"),
            false => format!("{what}: {why} ({})", self.names_of(is_same)),
        }
    }

    /// Carries what ranks say until all have ended. Returns the exit code.
    fn carry(&mut self, sender: Sender<Event>) -> Result<u8, LaunchError> {
        if self.options.input != Input::None {
            self.input = Some(InputReader::start(sender)?);
        }
        while self.ends.are_some_left() {
            let event = match self.kill_at {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(moment) => self
                    .events
                    .recv_timeout(moment.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout) => {
                    self.kill_at = None;
                    self.proxies.say_all(&ToProxy::Signal(libc::SIGKILL));
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(self.ends.exit_code())
    }

    fn handle(&mut self, event: Event) -> Result<(), LaunchError> {
        match event {
            Event::Proxy(number, Some(message)) => self.handle_message(number, message),
            Event::Proxy(number, None) => {
                if self.ends.lose(number as u32) {
                    let why = format!("{}: the connection is gone", self.name(number));
                    pmc_terminal::message(why);
                    self.stop_others();
                }
                Ok(())
            }
            Event::Signal(signal) => {
                match self.interrupts.next(signal) {
                    Step::Pass(signal) => self.proxies.say_all(&ToProxy::Signal(signal)),
                    Step::Leave => std::process::exit(128 + signal),
                }
                Ok(())
            }
            Event::Written { proxy, rank, stream } => {
                self.proxies.say(proxy, &ToProxy::Taken { rank, stream });
                Ok(())
            }
            Event::Input(bytes) => {
                self.pass_input(bytes);
                Ok(())
            }
        }
    }

    fn handle_message(&mut self, number: usize, message: ToFront) -> Result<(), LaunchError> {
        match message {
            ToFront::Output { rank, stream, bytes } => self.outputs.write(number, rank, stream, bytes.0),
            ToFront::InputTaken => {
                self.input_left = self.input_left.saturating_sub(1);
                if self.input_left == 0
                    && let Some(input) = &self.input
                {
                    input.read_on();
                }
            }
            ToFront::Put(pairs) => self.fresh.extend(pairs),
            ToFront::AtBarrier => {
                self.at_barrier += 1;
                if self.at_barrier == self.world.hosts.len() {
                    self.pass_barrier();
                }
            }
            ToFront::Name { rank, request } => {
                let port = self.names.handle(request);
                self.proxies.say(number, &ToProxy::Named { rank, port });
            }
            ToFront::Abort { rank, code } => {
                pmc_terminal::message(format_args!("rank {rank} ends the program with exit code {code}"));
                self.ends.aborted(rank, code);
                self.stop_others();
            }
            ToFront::Ended { rank, status, end } => {
                self.outputs.end(rank);
                if self.ends.ended(rank, status, end) && !self.options.keep_going {
                    self.stop_others();
                }
            }
            ToFront::Here { .. } | ToFront::Stopped { .. } | ToFront::Failed { .. } => {}
        }
        Ok(())
    }

    /// Ends the other ranks after a failure, unless that was begun.
    fn stop_others(&mut self) {
        if self.kill_at.is_none() && self.ends.are_some_left() && self.ends.begin_to_stop() {
            self.proxies.say_all(&ToProxy::Signal(libc::SIGTERM));
            self.kill_at = Some(Instant::now() + Duration::from_secs(self.options.wait.into()));
        }
    }

    fn pass_barrier(&mut self) {
        self.at_barrier = 0;
        for part in crate::frames::parts_of(std::mem::take(&mut self.fresh)) {
            self.proxies.say_all(&ToProxy::Pairs(part));
        }
        self.proxies.say_all(&ToProxy::PastBarrier);
    }

    fn pass_input(&mut self, bytes: Vec<u8>) {
        let message = ToProxy::Input(Bytes(bytes));
        match self.options.input {
            Input::First => {
                let first = self.world.ranks.first().map_or(0, |place| place.host);
                self.input_left = 1;
                self.proxies.say(first as usize, &message);
            }
            Input::All => {
                self.input_left = self.world.hosts.len();
                self.proxies.say_all(&message);
            }
            Input::None => {}
        }
    }
}

/// A thread that may wait for ever.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}
