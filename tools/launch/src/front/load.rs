//! How a launch begins: all ranks stand before their first instruction, then all go. If some hosts cannot do
//! that, the launch is tried on others.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use super::hosts::AvailableHosts;
use super::report::Ends;
use super::{Event, Launch, Proxies, torch};
use crate::arguments::{Bind, Pmi, Set};
use crate::error::LaunchError;
use crate::frames::{Bytes, Load, LocalRank, ToFront, ToProxy};
use crate::inherited::Inherited;
use crate::loadfile::Line;
use crate::proxy::program;
use crate::world::{World, words_for};

/// Longest time until all ranks stand before their first instruction.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// What a host could not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The program; empty if it is the host itself.
    pub(super) what: String,
    pub(super) why: String,
    pub(super) host: usize,
}

/// Why ranks do not go.
pub(super) enum NotLoaded {
    /// It is of no use to try again.
    Error(LaunchError),
    /// Some hosts have failed.
    Hosts(Vec<Failure>),
}

impl From<LaunchError> for NotLoaded {
    fn from(error: LaunchError) -> Self {
        Self::Error(error)
    }
}

impl Launch<'_> {
    /// Lets all ranks go, on these hosts, or without those that cannot start them.
    pub(super) fn load_somewhere(
        &mut self,
        hosts: &mut AvailableHosts,
        (lines, is_file): &(Vec<Line>, bool),
    ) -> Result<(), LaunchError> {
        for number in 2.. {
            let failures = match self.load(hosts) {
                Ok(()) => break,
                Err(NotLoaded::Error(error)) => return Err(error),
                Err(NotLoaded::Hosts(failures)) => failures,
            };
            let why = self.describe(&failures);
            let failed = |at: usize| failures.iter().any(|failure| failure.host == at);
            let names = self.names_of(failed);
            let is_of_all = (0..self.world.hosts.len()).all(failed)
                && failures.iter().all(|failure| !failure.what.is_empty());
            if is_of_all || number > self.options.load_tries {
                return Err(LaunchError::Failed(why));
            }
            let avoided: Vec<String> = (0..self.world.hosts.len())
                .filter(|at| failed(*at))
                .map(|at| self.name(at).to_owned())
                .collect();
            hosts.hosts.retain(|host| !avoided.contains(&host.name));
            let world = World::new(&hosts.hosts, &self.options.wanted(), lines.clone(), *is_file);
            let Ok(world) = world else {
                return Err(LaunchError::Failed(why));
            };
            let tries = self.options.load_tries;
            pmc_terminal::message(format_args!("{why}: try {number} of {tries}, without {names}"));
            self.proxies.end(true);
            // What they have said meanwhile; a signal still counts.
            while let Ok(event) = self.events.try_recv() {
                if let Event::Signal(signal) = event {
                    return Err(interrupted(signal));
                }
            }
            self.proxies = Proxies::start(&world, hosts, &self.sender)?;
            self.ends = Ends::new(&world);
            self.world = world;
        }
        Ok(())
    }

    /// Lets all ranks stop before their first instruction, then lets them go.
    fn load(&mut self, hosts: &AvailableHosts) -> Result<(), NotLoaded> {
        self.send_programs()?;
        let common = self.common(hosts)?;
        for (number, ranks) in self.ranks_by_host().into_iter().enumerate() {
            let load = self.load_of(&common, number as u32, ranks);
            self.proxies.say(number, &ToProxy::Load(Box::new(load)));
        }
        let is_held = self.wait_for_stops()?;
        if !is_held {
            let stacks = match (self.options.trace, self.options.hold) {
                (true, _) => ", and -g shows no stacks",
                (_, true) => ", and --hold does nothing",
                _ => "",
            };
            pmc_terminal::message(format_args!(
                "This system forbids to hold processes: ranks begin as they start{stacks}."
            ));
        }
        if let Some(report) = &mut self.report {
            report.begins(&self.world, &self.ends)?;
        }
        self.proxies.say_all(&ToProxy::Go);
        self.log_usage();
        self.say_what_follows(is_held, common.strace.as_ref());
        Ok(())
    }

    /// Waits until all ranks have stopped. Returns whether they have, or run already, since the system
    /// forbids to hold them.
    fn wait_for_stops(&mut self) -> Result<bool, NotLoaded> {
        let until = Instant::now() + START_TIMEOUT;
        let mut missing: Vec<bool> = vec![true; self.world.hosts.len()];
        let mut failures: Vec<Failure> = Vec::new();
        let mut is_held = true;
        while missing.contains(&true) {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(left) else {
                let seconds = START_TIMEOUT.as_secs();
                let late = missing.iter().enumerate().filter(|(_, missing)| **missing);
                failures.extend(late.map(|(host, _)| Failure {
                    what: String::new(),
                    why: format!("it did not start its ranks in {seconds} s"),
                    host,
                }));
                break;
            };
            let (number, message) = match event {
                Event::Proxy(number, message) => (number, message),
                Event::Signal(signal) => return Err(interrupted(signal).into()),
                Event::Written { .. } | Event::Input(_) => continue,
            };
            let mut fail = |what: String, why: String| {
                failures.push(Failure {
                    what,
                    why,
                    host: number,
                });
            };
            match message {
                Some(ToFront::Here { groups }) => {
                    self.proxies.note_groups(number, &groups, &self.world);
                    continue;
                }
                Some(ToFront::Stopped {
                    processes,
                    is_held: held,
                }) => {
                    is_held &= held;
                    self.ends.started(number as u32, &processes);
                }
                Some(ToFront::Failed { what, why }) => fail(what, why),
                // One that has failed goes then.
                None if missing.get(number) == Some(&false) => continue,
                None => fail(String::new(), "its proxy has gone".to_owned()),
                Some(other) => {
                    let why = format!("{} says {other:?}", self.name(number));
                    return Err(LaunchError::Failed(why).into());
                }
            }
            if let Some(missing) = missing.get_mut(number) {
                *missing = false;
            }
        }
        match failures.is_empty() {
            true => Ok(is_held),
            false => Err(NotLoaded::Hosts(failures)),
        }
    }

    /// What all proxies get.
    fn common(&self, hosts: &AvailableHosts) -> Result<Load, LaunchError> {
        let Inherited {
            mut environment,
            directory,
            umask,
        } = Inherited::of_this_process()?;
        let sets_torch = self.options.set == Some(Set::Torch);
        if sets_torch {
            let first = self.world.ranks.first().map_or(0, |place| place.host);
            let first = self.name(first as usize);
            torch::set_address(&mut environment, hosts.is_task.then_some(first))?;
        }
        let pmi = self.pmi();
        let words = |words: &Vec<Vec<u8>>| words.iter().cloned().map(Bytes).collect();
        Ok(Load {
            node: 0,
            ranks: Vec::new(),
            programs: self.world.programs.iter().map(words).collect(),
            size: u32::try_from(self.world.ranks.len()).unwrap_or(u32::MAX),
            mapping: self.world.mapping(),
            name: format!("launch_{}", std::process::id()),
            environment,
            directory,
            umask,
            has_pmi: pmi == Pmi::One,
            pmix: (pmi == Pmi::Pmix).then(|| {
                let names: Vec<&str> = self.world.hosts.iter().map(|host| &*host.name).collect();
                names.join(",")
            }),
            binds: match self.options.bind {
                Bind::Auto => hosts.has_cpus,
                Bind::Cpus => true,
                Bind::None => false,
            },
            input: self.options.input,
            traces: self.options.trace,
            sets_torch,
            holds: self.options.hold,
            strace: self.options.strace.of_launch()?,
        })
    }

    /// How ranks find each other.
    fn pmi(&self) -> Pmi {
        if self.options.pmi != Pmi::Auto {
            return self.options.pmi;
        }
        let path = std::env::var_os("PATH");
        let path = path.as_deref().map(OsStr::as_bytes);
        let needs_pmix = |words: &Vec<Vec<u8>>| {
            let file = program::find(words.first()?, path).ok()?;
            program::open_mpi_of(&file)
        };
        let is_open_mpi = self.world.ranks.len() > 1
            && self
                .world
                .programs
                .iter()
                .any(|words| needs_pmix(words).is_some());
        match is_open_mpi {
            true => Pmi::Pmix,
            false => Pmi::One,
        }
    }

    /// The ranks of each host.
    fn ranks_by_host(&self) -> Vec<Vec<LocalRank>> {
        let mut all: Vec<Vec<LocalRank>> = vec![Vec::new(); self.world.hosts.len()];
        for (rank, place) in (0..).zip(&self.world.ranks) {
            let words = self.world.programs.get(place.program as usize);
            let own = words.and_then(|words| words_for(words, rank, place.offset));
            if let Some(ranks) = all.get_mut(place.host as usize) {
                ranks.push(LocalRank {
                    rank,
                    program: place.program,
                    words: own.map(|words| words.into_iter().map(Bytes).collect()),
                });
            }
        }
        all
    }

    fn load_of(&self, common: &Load, node: u32, ranks: Vec<LocalRank>) -> Load {
        let mut load = Load {
            node,
            ranks,
            ..common.clone()
        };
        if let Some(strace) = &mut load.strace {
            let ranks = load.ranks.iter().map(|rank| rank.rank);
            strace.ranks = ranks.filter(|rank| self.options.strace.has(*rank)).collect();
        }
        load
    }

    /// Says what has failed, and on how many hosts: the same failure once.
    fn describe(&self, failures: &[Failure]) -> String {
        let Some(first) = failures.first() else {
            return String::new();
        };
        let is_same = |failure: &&Failure| (&failure.what, &failure.why) == (&first.what, &first.why);
        let same: Vec<usize> = failures
            .iter()
            .filter(is_same)
            .map(|failure| failure.host)
            .collect();
        let on = self.names_of(|number| same.contains(&number));
        let said = self.proxies.said(first.host);
        let detail = match said.is_empty() {
            true => String::new(),
            false => format!(": {said}"),
        };
        let Failure { what, why, .. } = first;
        match what.is_empty() {
            true => format!("{on}: {why}{detail}"),
            false if same.len() == self.world.hosts.len() && same.len() > 1 => {
                format!("{what}: {why} ({} hosts)", same.len())
            }
            false => format!("{what}: {why} ({on})"),
        }
    }
}

pub(super) fn interrupted(signal: i32) -> LaunchError {
    LaunchError::Failed(format!("signal {signal} before it began"))
}
