//! The proxy: starts the ranks of a host, and carries all that is theirs.
//!
//! One thread does everything. It has to be the one that starts the ranks: it is their tracer until all have
//! stopped at their `execve`.

mod environment;
mod pmix;
pub(crate) mod program;
mod rank;
mod service;
mod spread;
mod strace;
mod tracer;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmc_spawn::Spawner;

use crate::frames::{FrameReader, Input, Load, PmiEnd, ToFront, ToProxy, send};
use crate::{NAME, NOT_STARTED};
use pmix::Pmix;
use rank::{Rank, Setting};
use service::Pmi;
use spread::{Places, Spread};
use tracer::Tracer;

/// When ranks that have said nothing by PMI are looked at, after their start: what they have loaded.
const LOOKS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(1)];

/// Says something to the front end, which always reads.
///
/// # Errors
/// It has gone.
fn say(message: &ToFront) -> io::Result<()> {
    let mut front = io::stdout().lock();
    send(&mut front, message)?;
    front.flush()
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Front,
    /// The end of a rank, by its place.
    End(usize),
    Output(usize, usize),
    Input(usize),
    Pmi(usize),
    Pmix,
    /// A rank that is traced has stopped.
    Stop,
}

/// The ranks of this host.
#[derive(Default)]
struct Proxy {
    ranks: Vec<Rank>,
    pmi: Option<Pmi>,
    pmix: Option<Pmix>,
    /// A frame of the input was not taken by all ranks.
    has_input: bool,
    tracer: Option<Tracer>,
    /// Ranks go on stopped.
    holds: bool,
    /// When to look at silent ranks: the last one is next.
    looks: Vec<Instant>,
    /// What the front end has sent.
    spread: Option<Spread>,
}

/// The program, as a proxy of a front end of this version.
pub(crate) fn main(version: Option<&OsString>) -> ExitCode {
    if version.is_none_or(|version| version != env!("CARGO_PKG_VERSION")) {
        let shown = version.map(|version| version.to_string_lossy().into_owned());
        pmc_terminal::message(format_args!(
            "{NAME}: the front end has version {}, and this host has {}",
            shown.as_deref().unwrap_or("unknown"),
            env!("CARGO_PKG_VERSION")
        ));
        return ExitCode::from(NOT_STARTED);
    }
    let mut proxy = Proxy::default();
    let ended = proxy.run();
    proxy.kill_all();
    match proxy.spread.take() {
        Some(spread) => spread.end(),
        None => spread::clear_left(),
    }
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        // Who would hear more of it?
        Err(_) => ExitCode::FAILURE,
    }
}

impl Proxy {
    /// Does what the front end says until that ends.
    fn run(&mut self) -> io::Result<()> {
        let groups = nix::unistd::getgroups().map_err(io::Error::from)?;
        let mut groups: Vec<u32> = groups.iter().map(|group| group.as_raw()).collect();
        groups.sort_unstable();
        say(&ToFront::Here { groups })?;
        let (input, mut frames) = (io::stdin(), FrameReader::default());
        loop {
            for source in self.wait(input.as_fd())? {
                match source {
                    Source::Front => {
                        if !frames.read(input.lock())? {
                            return Ok(());
                        }
                        while let Some(message) = frames.next()? {
                            if message == ToProxy::Done {
                                return Ok(());
                            }
                            self.handle(message)?;
                        }
                    }
                    other => self.carry(other)?,
                }
            }
            self.look_at_silent_ones()?;
            self.report_ends()?;
        }
    }

    /// Waits until something can be done, and returns what.
    fn wait(&self, front: BorrowedFd<'_>) -> io::Result<Vec<Source>> {
        let mut sources = vec![(Source::Front, front, PollFlags::POLLIN)];
        for (place, rank) in self.ranks.iter().enumerate() {
            if let Some(file) = rank.unended() {
                sources.push((Source::End(place), file, PollFlags::POLLIN));
            }
            let outputs = rank.readable_outputs();
            sources.extend(
                outputs.map(|(number, file)| (Source::Output(place, number), file, PollFlags::POLLIN)),
            );
            if let Some(file) = rank.unwritten_input() {
                sources.push((Source::Input(place), file, PollFlags::POLLOUT));
            }
            if let Some(file) = rank.pmi_socket() {
                sources.push((Source::Pmi(place), file, PollFlags::POLLIN));
            }
        }
        if let Some(pmix) = &self.pmix {
            sources.push((Source::Pmix, pmix.socket(), PollFlags::POLLIN));
        }
        if let Some(tracer) = &self.tracer {
            sources.push((Source::Stop, tracer.bell(), PollFlags::POLLIN));
        }
        let files = sources.iter().map(|(_, file, flags)| PollFd::new(*file, *flags));
        let mut files: Vec<PollFd<'_>> = files.collect();
        let timeout = self.looks.last().map_or(PollTimeout::NONE, |moment| {
            let left = moment.saturating_duration_since(Instant::now());
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut files, timeout) {
            Err(nix::errno::Errno::EINTR) => return Ok(Vec::new()),
            polled => polled?,
        };
        let is_ready = |file: &PollFd<'_>| file.revents().is_some_and(|events| !events.is_empty());
        let ready = sources.iter().zip(&files).filter(|(_, file)| is_ready(file));
        Ok(ready.map(|((source, ..), _)| *source).collect())
    }

    fn handle(&mut self, message: ToProxy) -> io::Result<()> {
        match message {
            ToProxy::Load(load) => self.load(&load),
            ToProxy::Go => {
                for rank in &mut self.ranks {
                    rank.go(self.tracer.as_mut(), self.holds);
                }
                Ok(())
            }
            ToProxy::Signal(signal) => {
                self.ranks.iter().for_each(|rank| rank.signal(signal));
                Ok(())
            }
            ToProxy::Pairs(pairs) => {
                match (&mut self.pmi, &mut self.pmix) {
                    (Some(pmi), _) => pmi.learn(pairs),
                    (None, Some(pmix)) => pmix.learn(pairs),
                    (None, None) => {}
                }
                Ok(())
            }
            ToProxy::PastBarrier => match &mut self.pmix {
                Some(pmix) => pmix.pass_barrier(),
                None => self.with_pmi(Pmi::pass_barrier),
            },
            ToProxy::Named { rank, port } => {
                self.with_pmi(|pmi, ranks| pmi.named(rank, port.as_deref(), ranks))
            }
            ToProxy::Input(bytes) => {
                self.has_input = true;
                self.ranks.iter_mut().for_each(|rank| rank.push_input(&bytes.0));
                self.report_input()
            }
            ToProxy::Taken { rank, stream } => {
                let found = self.ranks.iter_mut().find(|known| known.number() == rank);
                found.into_iter().for_each(|rank| rank.output_taken(stream));
                Ok(())
            }
            ToProxy::Done => Ok(()),
            ToProxy::Offer(offer) => {
                self.spread = Some(Spread::start(*offer)?);
                Ok(())
            }
            ToProxy::Sources(sources) => {
                self.spread.iter().for_each(|spread| spread.get(&sources));
                Ok(())
            }
        }
    }

    fn with_pmi(&mut self, call: impl FnOnce(&mut Pmi, &mut [Rank]) -> io::Result<()>) -> io::Result<()> {
        match &mut self.pmi {
            Some(pmi) => call(pmi, &mut self.ranks),
            None => Ok(()),
        }
    }

    fn carry(&mut self, source: Source) -> io::Result<()> {
        match source {
            Source::Front => Ok(()),
            Source::End(place) => {
                self.rank(place).into_iter().for_each(Rank::note_end);
                Ok(())
            }
            Source::Output(place, number) => match self.rank(place) {
                Some(rank) => rank.send_output(number),
                None => Ok(()),
            },
            Source::Input(place) => {
                self.rank(place).into_iter().for_each(Rank::write_input);
                self.report_input()
            }
            Source::Pmi(place) => self.with_pmi(|pmi, ranks| pmi.hear(place, ranks)),
            Source::Pmix => self.hear_pmix(),
            Source::Stop => {
                let stacks = self.tracer.as_mut().map(Tracer::look).unwrap_or_default();
                stacks
                    .into_iter()
                    .try_for_each(|stacks| say(&ToFront::Trace(stacks)))
            }
        }
    }

    /// Without their server, ranks would wait for ever.
    fn hear_pmix(&mut self) -> io::Result<()> {
        let Some(pmix) = &mut self.pmix else { return Ok(()) };
        if pmix.hear()? {
            return Ok(());
        }
        self.pmix = None;
        let left = self.ranks.iter().find(|rank| rank.unended().is_some());
        let Some(rank) = left.map(Rank::number) else {
            return Ok(());
        };
        pmc_terminal::message(format_args!("{NAME}: the PMIx server of this host has ended"));
        say(&ToFront::Abort { rank, code: 1 })
    }

    /// Says if ranks that have said nothing by PMI have an MPI that does not speak it.
    fn look_at_silent_ones(&mut self) -> io::Result<()> {
        let Some(pmi) = &self.pmi else { return Ok(()) };
        if self.looks.pop_if(|moment| *moment <= Instant::now()).is_none() {
            return Ok(());
        }
        let is_silent = |rank: &&Rank| pmi.end_of(rank.number()) == PmiEnd::Silent;
        let mut alone = self
            .ranks
            .iter()
            .filter(is_silent)
            .filter(|rank| rank.has_open_mpi());
        if let Some(rank) = alone.next() {
            self.looks.clear();
            say(&ToFront::Alone { rank: rank.number() })?;
        }
        Ok(())
    }

    fn rank(&mut self, place: usize) -> Option<&mut Rank> {
        self.ranks.get_mut(place)
    }

    /// Asks for more input once all ranks have taken what there was.
    fn report_input(&mut self) -> io::Result<()> {
        if !self.has_input || self.ranks.iter().any(|rank| rank.unwritten_input().is_some()) {
            return Ok(());
        }
        self.has_input = false;
        say(&ToFront::InputTaken)
    }

    /// Reports ranks that have ended, and whose output was sent.
    fn report_ends(&mut self) -> io::Result<()> {
        for rank in &mut self.ranks {
            rank.send_rest()?;
            if let Some(status) = rank.take_end() {
                let number = rank.number();
                let end = match (&self.pmi, &self.pmix) {
                    (Some(pmi), _) => pmi.end_of(number),
                    (None, Some(pmix)) => pmix.end_of(number),
                    (None, None) => PmiEnd::default(),
                };
                say(&ToFront::Ended {
                    rank: number,
                    status,
                    end,
                })?;
            }
        }
        Ok(())
    }

    /// Starts the ranks. All stop before their first instruction.
    fn load(&mut self, load: &Load) -> io::Result<()> {
        if let Err((what, why)) = self.start_ranks(load) {
            self.kill_all();
            return say(&ToFront::Failed { what, why });
        }
        let is_held = self.ranks.iter().all(Rank::is_held);
        let processes = self.ranks.iter().map(|rank| (rank.number(), rank.pid().as_raw()));
        say(&ToFront::Stopped {
            processes: processes.collect(),
            is_held,
        })
    }

    /// On failure, says what failed, and why.
    fn start_ranks(&mut self, load: &Load) -> Result<(), (String, String)> {
        let places = self.spread.as_ref().map_or_else(Places::new, Spread::complete);
        let setting = Setting::new(load, places)?;
        self.holds = load.holds;
        if load.has_pmi {
            self.pmi = Some(Pmi::new(load));
            if load.size > 1 {
                self.looks = LOOKS.map(|wait| Instant::now() + wait).into();
            }
        }
        if let Some(hosts) = &load.pmix {
            let pmix = Pmix::start(load, hosts).map_err(|why| ("PMIx".to_owned(), why))?;
            self.pmix = Some(pmix);
        }
        if load.traces {
            let tracer =
                Tracer::new().map_err(|error| ("-g".to_owned(), pmc_dag::reason(&error).to_string()))?;
            self.tracer = Some(tracer);
        }
        let mut spawner = Spawner::new();
        for (number, local) in (0..).zip(&load.ranks) {
            let has_input = match load.input {
                Input::First => local.rank == 0,
                Input::All => true,
                Input::None => false,
            };
            let pmix = self.pmix.as_ref().map(|pmix| pmix.variables_of(local.rank));
            let rank = setting.start(&mut spawner, (local, number), has_input, pmix.unwrap_or_default())?;
            self.ranks.push(rank);
        }
        for rank in &mut self.ranks {
            rank.wait_for_stop()
                .map_err(|why| (setting.shown(rank.number()), why))?;
        }
        Ok(())
    }

    /// Nothing of the ranks is left.
    fn kill_all(&mut self) {
        self.ranks.iter().for_each(|rank| rank.signal(libc::SIGKILL));
        for rank in self.ranks.drain(..) {
            rank.reap(self.tracer.as_mut());
        }
        self.pmix = None;
    }
}
