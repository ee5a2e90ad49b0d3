//! The front end: what a person or a task starts.

mod hold;
mod hosts;
mod inputs;
mod load;
#[cfg(test)]
mod many;
mod output;
mod proxies;
mod report;
mod signals;
mod spread;
mod torch;
mod usage;

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use pmc_stacks::HostStacks;

use crate::NOT_STARTED;
use crate::arguments::Options;
use crate::error::LaunchError;
use crate::frames::{Bytes, Input, Stream, ToFront, ToProxy};
use crate::lines;
use crate::pmi::Names;
use crate::world::World;
use inputs::InputReader;
use output::Outputs;
use proxies::Proxies;
use report::{Ends, Report};
use signals::{Interrupts, Step};
use usage::UsageLog;

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
    world: World,
    proxies: Proxies,
    sender: Sender<Event>,
    events: Receiver<Event>,
    report: Option<Report>,
    usage: Option<UsageLog>,
    ends: Ends,
    outputs: Outputs,
    names: Names,
    input: Option<InputReader>,
    interrupts: Interrupts,
    /// Ranks are stopped until Enter is pressed.
    is_held: bool,
    /// Proxies whose ranks are at the barrier.
    at_barrier: usize,
    fresh: Vec<crate::frames::Pair>,
    /// Proxies that have not taken the last input.
    input_left: usize,
    /// When the ranks that are left are killed.
    kill_at: Option<Instant>,
    /// Where ranks were that a signal has ended, with their hosts.
    stacks: Vec<(String, HostStacks)>,
    has_warned_of_mpi: bool,
    /// What is sent to the hosts.
    spread: Option<spread::Spread>,
}

/// Runs a launch. Returns its exit code.
pub(crate) fn run(options: &Options) -> Result<u8, LaunchError> {
    let begun = Instant::now();
    let mut hosts = hosts::available(&mut |name| std::env::var_os(name))?;
    let lines = lines::of_words(&options.words)?;
    let world = World::new(&hosts.hosts, &options.wanted(), lines.0.clone(), lines.1)?;
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
    let mut launch = Launch::new(options, (world, proxies), (sender, events), outputs);
    launch.report = report;
    let started = launch.load_somewhere(&mut hosts, &lines);
    let loaded = begun.elapsed();
    let code = started.and_then(|()| launch.carry());
    launch.proxies.end(code.is_err());
    launch.outputs.finish();
    if let Some(usage) = &mut launch.usage {
        usage.end(*code.as_ref().unwrap_or(&NOT_STARTED));
    }
    let code = code?;
    launch.show_ends()?;
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

impl<'a> Launch<'a> {
    fn new(
        options: &'a Options,
        (world, proxies): (World, Proxies),
        (sender, events): (Sender<Event>, Receiver<Event>),
        outputs: Outputs,
    ) -> Self {
        Self {
            options,
            proxies,
            ends: Ends::new(&world),
            world,
            sender,
            events,
            report: None,
            usage: None,
            outputs,
            names: Names::default(),
            input: None,
            interrupts: Interrupts::default(),
            is_held: false,
            at_barrier: 0,
            fresh: Vec::new(),
            input_left: 0,
            kill_at: None,
            stacks: Vec::new(),
            has_warned_of_mpi: false,
            spread: None,
        }
    }
}

impl Launch<'_> {
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

    /// The ranks go: says so to the log of the site.
    fn log_usage(&mut self) {
        let path = std::env::var_os(usage::VARIABLE).filter(|path| !path.is_empty());
        self.usage = path.map(|path| {
            let program = self.options.words.first().map(|word| word.to_string_lossy());
            let mut log = UsageLog::new(Path::new(&path), &program.unwrap_or_default(), &self.world);
            log.begin();
            log
        });
    }

    /// Ends this program at once; the proxies then kill the ranks.
    fn leave(&mut self, code: u8) -> ! {
        if let Some(usage) = &mut self.usage {
            usage.end(code);
        }
        std::process::exit(code.into())
    }

    /// Carries what ranks say until all have ended. Returns the exit code.
    fn carry(&mut self) -> Result<u8, LaunchError> {
        if self.options.input != Input::None || self.is_held {
            self.input = Some(InputReader::start(self.sender.clone())?);
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
                    Step::Pass(signal) => {
                        self.proxies.say_all(&ToProxy::Signal(signal));
                        if ![libc::SIGUSR1, libc::SIGUSR2].contains(&signal) {
                            self.let_go();
                        }
                    }
                    Step::Leave => self.leave(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0))),
                }
                Ok(())
            }
            Event::Written { proxy, rank, stream } => {
                self.proxies.say(proxy, &ToProxy::Taken { rank, stream });
                Ok(())
            }
            Event::Input(bytes) => {
                if let Some(bytes) = self.after_enter(bytes) {
                    self.pass_input(bytes);
                }
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
            ToFront::Trace(stacks) => self.stacks.push((self.name(number).to_owned(), stacks)),
            ToFront::Alone { rank } => {
                if !std::mem::replace(&mut self.has_warned_of_mpi, true) {
                    pmc_terminal::message(format_args!(
                        "Warning: rank {rank} uses Open MPI, whose ranks find each other by PMIx: each rank is \
                         alone. Start the program with --pmi pmix"
                    ));
                }
            }
            ToFront::Here { .. }
            | ToFront::Stopped { .. }
            | ToFront::Failed { .. }
            | ToFront::Room(_)
            | ToFront::Wrong { .. }
            | ToFront::Spread => {}
        }
        Ok(())
    }

    /// Says how all ranks have ended, and where those were that a signal has ended.
    fn show_ends(&mut self) -> Result<(), LaunchError> {
        for line in self.ends.lines(&self.world, self.options.quiet) {
            pmc_terminal::message(line);
        }
        let groups = pmc_stacks::merge(std::mem::take(&mut self.stacks), false);
        for line in pmc_stacks::described(&groups).lines() {
            pmc_terminal::message(pmc_terminal::escape(line));
        }
        match &mut self.report {
            Some(report) => report.ends(&self.ends),
            None => Ok(()),
        }
    }

    /// Ends the other ranks after a failure, unless that was begun.
    fn stop_others(&mut self) {
        if self.kill_at.is_none() && self.ends.are_some_left() && self.ends.begin_to_stop() {
            self.proxies.say_all(&ToProxy::Signal(libc::SIGTERM));
            self.let_go();
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
