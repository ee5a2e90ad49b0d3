//! `pmc attach --redirect`: the tool gets what tasks write, and their files do not.
//!
//! Each task has a thread and a connection. If what is printed goes unchanged to a pipe or a file, the run
//! itself writes there: what it has written counts as delivered, even if this program is killed. Otherwise
//! each chunk is printed before the next one is asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use pmc_control::{
    Answer, ControlError, OutputChunk, Overflow, Redirect, RedirectEnd, RedirectHandle, RedirectOptions,
    RedirectRequest, TailRequest, Tool, takes_output,
};
use pmc_monitor::history::{History, Phase};
use pmc_terminal::{escape, message};

use super::arrivals::Arrivals;
use super::format::{Origin, Printer};
use super::lines::Lines;
use super::select::Selection;
use super::{QUEUE_LENGTH, TICK};
use crate::cli::{self, OnOverflow, Timestamp};
use crate::commands::log::Stream;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::reach;

/// Maximum tasks at a time.
const MAX_TASKS: usize = 100;
/// Wait for a task that is about to start.
const START: Duration = Duration::from_millis(20);

/// What a thread reports.
enum Note {
    /// The run writes to the files of this program.
    Begun(u64, RedirectHandle),
    /// Something to print. The answer says that it is printed.
    Chunks(u64, [OutputChunk; 2], SyncSender<()>),
    /// Nothing comes any more.
    Ended(u64, Ended),
}

/// How a redirect has ended.
enum Ended {
    /// Number of bytes of each stream that are lost.
    Redirect(RedirectEnd, [u64; 2]),
    Refused(Answer),
    Failed(ControlError),
}

/// A task that is redirected.
struct Work {
    index: usize,
    origin: Origin,
    lines: [Lines; 2],
    dropped: [u64; 2],
    has_begun: bool,
    stop: Arc<AtomicBool>,
    handle: Option<RedirectHandle>,
}

impl Work {
    /// Reports how many more bytes of a stream are lost.
    fn report_lost(&mut self, at: usize, dropped: u64) {
        let lost = dropped.saturating_sub(self.dropped[at]);
        if lost > 0 {
            let task = escape(&self.origin.task);
            message(format!(
                "pmc: {lost} bytes of the output of {task} are lost: pmc was too slow"
            ));
            self.dropped[at] = dropped;
        }
    }
}

/// Redirects tasks until they, the run or this program end.
struct Redirector {
    history: History,
    selection: Selection,
    arrivals: Arrivals,
    printer: Printer,
    options: RedirectOptions,
    /// Tasks that start from now on are redirected.
    waiting: Option<Waiting>,
    /// The run writes the output itself.
    is_direct: bool,
    only_err: bool,
    is_source_time: bool,
    /// A task that cannot be redirected ends this program.
    is_strict: bool,
    works: BTreeMap<u64, Work>,
    next: u64,
    sender: SyncSender<Note>,
    notes: Receiver<Note>,
    /// The exit code, once the redirects are being ended.
    ending: Option<Result<u8, Failure>>,
    has_reported_limit: bool,
}

/// Reminds the run at each tick that this program waits for tasks. The run forgets a program that is stopped.
struct Waiting {
    tool: Option<Tool>,
    request: TailRequest,
}

impl Waiting {
    fn begin(dag: &Path, request: TailRequest) -> Result<Self, Failure> {
        let mut tool = Tool::connect(dag).or_code(exit::NOT_RUN)?;
        match tool.tail(request.clone()).or_code(exit::NOT_RUN)? {
            refusal @ Answer::Refused(_) => Err(reach::refused(refusal)),
            _ => Ok(Self {
                tool: Some(tool),
                request,
            }),
        }
    }

    fn go_on(&mut self, dag: &Path) {
        let tool = self.tool.as_mut();
        if tool.is_none_or(|tool| tool.tail(self.request.clone()).is_err()) {
            // This program was stopped for a while. Or the run has ended, as the log says soon.
            let waiting = Self::begin(dag, self.request.clone()).ok();
            self.tool = waiting.and_then(|waiting| waiting.tool);
        }
    }
}

/// Redirects output as the command line asks for. Returns the exit code.
pub fn redirect(
    arguments: &cli::Attach,
    history: History,
    selection: Selection,
    signal: &AtomicUsize,
) -> Result<u8, Failure> {
    let printer = Printer::new(arguments, &history.dir.dir);
    let options = options(arguments, printer.wanted());
    let (sender, notes) = sync_channel(QUEUE_LENGTH);
    let dag = history.dir.dag.clone();
    // The run knows of this program before it looks for tasks, so that none starts in between.
    let waiting = match arguments.tail.is_empty() {
        true => None,
        false => Some(Waiting::begin(
            &dag,
            TailRequest {
                patterns: arguments.tail.clone(),
                options: options.clone(),
            },
        )?),
    };
    let mut redirector = Redirector {
        is_direct: !printer.has_lines() && are_suitable(arguments),
        only_err: arguments.stderr && !arguments.stdout,
        is_source_time: arguments.timestamp == Some(Timestamp::Source),
        is_strict: matches!(selection, Selection::Named(_)) && arguments.tail.is_empty(),
        history,
        selection,
        arrivals: Arrivals::default(),
        printer,
        options,
        waiting,
        works: BTreeMap::new(),
        next: 0,
        sender,
        notes,
        ending: None,
        has_reported_limit: false,
    };
    let code = redirector.run(signal);
    redirector.printer.end();
    code
}

fn options(arguments: &cli::Attach, streams: [bool; 2]) -> RedirectOptions {
    let host = nix::unistd::gethostname().unwrap_or_default();
    RedirectOptions {
        // Each state of this kind begins with other random numbers.
        token: RandomState::new().build_hasher().finish(),
        tool: format!(
            "pmc attach, process {} on {}",
            process::id(),
            host.to_string_lossy()
        ),
        streams,
        buffer: arguments.buffer_size,
        patience_ms: arguments.buffer_time,
        overflow: match arguments.on_overflow {
            OnOverflow::File => Overflow::File,
            OnOverflow::DropOldest => Overflow::DropOldest,
            OnOverflow::DropNewest => Overflow::DropNewest,
        },
    }
}

/// Returns whether the run can write to the streams of this program.
fn are_suitable(arguments: &cli::Attach) -> bool {
    let is_suitable = |stream: BorrowedFd<'_>| {
        stream
            .try_clone_to_owned()
            .is_ok_and(|stream| takes_output(&File::from(stream)))
    };
    let has_err = arguments.stdout == arguments.stderr;
    is_suitable(io::stdout().as_fd()) && (!has_err || is_suitable(io::stderr().as_fd()))
}

impl Redirector {
    fn run(&mut self, signal: &AtomicUsize) -> Result<u8, Failure> {
        self.join(false);
        if self.works.is_empty() {
            message("pmc: none of these tasks runs now; waiting");
        }
        let mut next_tick = Instant::now() + TICK;
        loop {
            let timeout = next_tick.saturating_duration_since(Instant::now());
            let mut next = self.notes.recv_timeout(timeout).ok();
            while let Some(note) = next {
                self.take(note);
                next = self.notes.try_recv().ok();
            }
            if let Ok(signal @ 1..) = u8::try_from(signal.load(Ordering::Relaxed)) {
                self.end(Ok(exit::SIGNAL_BASE + signal));
            }
            if self.printer.is_closed() {
                self.end(Ok(exit::SUCCESS));
            }
            if self.works.is_empty()
                && let Some(ending) = self.ending.take()
            {
                return ending;
            }
            if next_tick <= Instant::now() {
                next_tick = Instant::now() + TICK;
                self.tick()?;
            }
        }
    }

    /// Looks at the log.
    fn tick(&mut self) -> Result<(), Failure> {
        self.history.update().or_code(exit::NOT_RUN)?;
        if self.ending.is_some() {
            self.waiting = None;
            return Ok(());
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.go_on(&self.history.dir.dag);
        }
        self.join(true);
        match self.history.phase() {
            Phase::Running => {
                let have_ended = self.arrivals.have_named_ended(&self.selection, &self.history);
                if self.works.is_empty() && have_ended {
                    self.end(Ok(exit::SUCCESS));
                }
            }
            Phase::CutOff => {
                let dag = self.history.dir.dag.display();
                self.end(Err(Failure::new(
                    exit::NOT_RUN,
                    anyhow!("the run of {dag} was killed"),
                )));
            }
            _ => self.end(Ok(exit::SUCCESS)),
        }
        Ok(())
    }

    /// Redirects the attempts that the log has since the last call.
    fn join(&mut self, with_host: bool) {
        for (index, number) in self.arrivals.next(&self.selection, &self.history, false) {
            if self.works.len() >= MAX_TASKS {
                if !std::mem::replace(&mut self.has_reported_limit, true) {
                    message(format!("pmc: only {MAX_TASKS} tasks are redirected at a time"));
                }
                continue;
            }
            self.begin(index, number);
        }
        if with_host {
            for work in self.works.values_mut().filter(|work| work.origin.host.is_empty()) {
                let host = self.history.attempts[work.index].host;
                if let Some(host) = self.history.hosts.name(host) {
                    host.clone_into(&mut work.origin.host);
                }
            }
        }
    }

    fn begin(&mut self, index: usize, number: u32) {
        let attempt = self.history.attempts[index];
        let host = self.history.hosts.name(attempt.host).unwrap_or_default();
        let origin = Origin {
            task: self.history.plan.text_name(attempt.task),
            attempt: number + 1,
            host: host.to_owned(),
            submit_number: self.history.submit_number(index),
        };
        let id = self.next;
        self.next += 1;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = Thread {
            id,
            dag: self.history.dir.dag.clone(),
            request: RedirectRequest {
                to_files: self.is_direct,
                ..RedirectRequest::first(origin.task.clone(), self.options.clone())
            },
            only_err: self.only_err,
            notes: self.sender.clone(),
            stop: Arc::clone(&stop),
        };
        let work = Work {
            index,
            origin,
            lines: [Lines::default(), Lines::default()],
            dropped: [0, 0],
            has_begun: false,
            stop,
            handle: None,
        };
        match thread::Builder::new()
            .name("redirect".into())
            .spawn(move || thread.run())
        {
            Ok(_) => {
                self.works.insert(id, work);
            }
            Err(error) => self.end(Err(Failure::new(exit::NOT_RUN, error))),
        }
    }

    /// Begins to end all redirects.
    fn end(&mut self, code: Result<u8, Failure>) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(code);
        for work in self.works.values() {
            work.stop.store(true, Ordering::Release);
            work.handle.iter().for_each(RedirectHandle::end);
        }
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Begun(id, handle) => {
                if let Some(work) = self.works.get_mut(&id) {
                    if work.stop.load(Ordering::Acquire) {
                        handle.end();
                    }
                    work.has_begun = true;
                    work.handle = Some(handle);
                }
            }
            Note::Chunks(id, chunks, printed) => {
                self.print(id, &chunks);
                // Without an answer, it counts as not delivered.
                if !self.printer.is_closed() {
                    let _ = printed.send(());
                }
            }
            Note::Ended(id, ended) => self.note_end(id, ended),
        }
    }

    fn print(&mut self, id: u64, chunks: &[OutputChunk; 2]) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        work.has_begun = true;
        for ((at, stream), chunk) in Stream::ALL.into_iter().enumerate().zip(chunks) {
            work.report_lost(at, chunk.dropped);
            if !self.printer.has_lines() {
                self.printer.raw(&work.origin, stream, &chunk.bytes);
                continue;
            }
            for (time, piece) in pieces(chunk) {
                self.printer.set_time(time.filter(|_| self.is_source_time));
                let (origin, printer) = (&work.origin, &mut self.printer);
                work.lines[at].push(piece, |line, is_part| printer.line(origin, stream, line, is_part));
            }
        }
        self.printer.flush();
    }

    fn note_end(&mut self, id: u64, ended: Ended) {
        let Some(mut work) = self.works.remove(&id) else {
            return;
        };
        for (lines, stream) in work.lines.iter_mut().zip(Stream::ALL) {
            let (origin, printer) = (&work.origin, &mut self.printer);
            lines.finish(|line, is_part| printer.line(origin, stream, line, is_part));
        }
        self.printer.flush();
        if let Ended::Redirect(_, dropped) = &ended {
            (0..2).for_each(|at| work.report_lost(at, dropped[at]));
        }
        let task = escape(&work.origin.task).into_owned();
        let is_strict = self.is_strict;
        match ended {
            Ended::Redirect(RedirectEnd::TaskEnded, _) => {}
            // Nobody reads what is printed.
            Ended::Redirect(RedirectEnd::Detached, _) => self.end(Ok(exit::SUCCESS)),
            Ended::Redirect(RedirectEnd::TooSlow, _) => message(format!(
                "pmc: pmc was too slow for {task}: the rest of its output goes to its file (--buffer-size, --buffer-time)"
            )),
            Ended::Redirect(..) => message(format!(
                "pmc: the run has not heard of pmc for too long: the rest of the output of {task} goes to its file"
            )),
            Ended::Refused(Answer::NotSupported(reason)) if !is_strict => {
                message(format!("pmc: {}", escape(&reason)))
            }
            Ended::Refused(refusal @ Answer::NotSupported(_)) => self.end(Err(reach::refused(refusal))),
            // An attempt may end before it is redirected.
            Ended::Refused(Answer::Refused(reason)) if !work.has_begun && reason.ends_with("has ended") => {}
            Ended::Refused(refusal @ Answer::Refused(_)) if work.has_begun || is_strict => {
                self.end(Err(reach::refused(refusal)));
            }
            Ended::Refused(Answer::Refused(reason)) => message(format!("pmc: {}", escape(&reason))),
            Ended::Refused(_) => {}
            // At the end of the run, connections end, too.
            Ended::Failed(_) if self.has_run_ended() => {}
            Ended::Failed(error) => self.end(Err(Failure::new(exit::NOT_RUN, error))),
        }
    }

    fn has_run_ended(&mut self) -> bool {
        self.history.update().is_ok() && self.history.phase() != Phase::Running
    }
}

/// Returns the pieces of a chunk with the times at which the worker read them.
fn pieces(chunk: &OutputChunk) -> impl Iterator<Item = (Option<u64>, &[u8])> {
    let at = |offset: u64| {
        let at = offset.saturating_sub(chunk.offset);
        usize::try_from(at).unwrap_or(usize::MAX).min(chunk.bytes.len())
    };
    let before = match chunk.times.first() {
        Some((first, _)) => at(*first),
        None => chunk.bytes.len(),
    };
    let rest = chunk
        .times
        .iter()
        .enumerate()
        .map(move |(index, (offset, time))| {
            let end = chunk
                .times
                .get(index + 1)
                .map_or(chunk.bytes.len(), |(next, _)| at(*next));
            (Some(*time), &chunk.bytes[at(*offset)..end])
        });
    std::iter::once((None, &chunk.bytes[..before])).chain(rest)
}

/// Talks to the run about one task.
struct Thread {
    id: u64,
    dag: PathBuf,
    request: RedirectRequest,
    only_err: bool,
    notes: SyncSender<Note>,
    stop: Arc<AtomicBool>,
}

impl Thread {
    fn run(mut self) {
        // The run of another user gets no descriptor.
        self.request.to_files &= Tool::connect(&self.dag).is_ok_and(|tool| tool.is_of_user());
        let ended = match self.request.to_files {
            true => self.to_files(),
            false => self.chunks(),
        };
        let ended = ended.unwrap_or_else(Ended::Failed);
        // Without a receiver, the tool has ended.
        let _ = self.notes.send(Note::Ended(self.id, ended));
    }

    /// Has the run write the output.
    fn to_files(&self) -> Result<Ended, ControlError> {
        let (out, err) = (io::stdout(), io::stderr());
        let files = match self.only_err {
            true => [out.as_fd(), out.as_fd()],
            false => [out.as_fd(), err.as_fd()],
        };
        loop {
            let mut tool = Tool::connect(&self.dag)?;
            match tool.redirect_to(self.request.clone(), files)? {
                Redirect::On { .. } => {
                    let _ = self.notes.send(Note::Begun(self.id, tool.redirect_handle()?));
                    return Ok(match tool.wait()? {
                        Redirect::Ended(over, lost) => Ended::Redirect(over, lost),
                        Redirect::Not(answer) => Ended::Refused(answer),
                        Redirect::On { .. } => Ended::Redirect(RedirectEnd::Detached, [0, 0]),
                    });
                }
                Redirect::Ended(over, lost) => return Ok(Ended::Redirect(over, lost)),
                Redirect::Not(Answer::NotYet(_)) if !self.stop.load(Ordering::Acquire) => {
                    thread::sleep(START)
                }
                Redirect::Not(answer) => return Ok(Ended::Refused(answer)),
            }
        }
    }

    /// Has this program print the output.
    fn chunks(&mut self) -> Result<Ended, ControlError> {
        let mut tool = Tool::connect(&self.dag)?;
        loop {
            self.request.poll.is_end = self.stop.load(Ordering::Acquire);
            match tool.redirect(self.request.clone())? {
                Redirect::On { attempt, chunks } => {
                    self.request.attempt = Some(attempt);
                    self.request.may_wait = true;
                    let delivered = chunks
                        .each_ref()
                        .map(|chunk| chunk.offset.saturating_add(chunk.bytes.len() as u64));
                    if chunks.iter().any(|chunk| !chunk.bytes.is_empty()) {
                        let (printed, wait) = sync_channel(1);
                        let _ = self.notes.send(Note::Chunks(self.id, chunks, printed));
                        if wait.recv().is_err() {
                            self.stop.store(true, Ordering::Release);
                            continue;
                        }
                    }
                    self.request.poll.delivered = delivered;
                }
                Redirect::Ended(over, lost) => return Ok(Ended::Redirect(over, lost)),
                Redirect::Not(Answer::NotYet(_)) if !self.request.poll.is_end => thread::sleep(START),
                Redirect::Not(answer) => return Ok(Ended::Refused(answer)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_is_split_where_the_time_changes() {
        let chunk = |offset, times: &[(u64, u64)]| OutputChunk {
            offset,
            bytes: b"abcdef".to_vec(),
            times: times.to_vec(),
            dropped: 0,
        };
        let split = |chunk: &OutputChunk| -> Vec<(Option<u64>, String)> {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            pieces(chunk).map(|(time, bytes)| (time, text(bytes))).collect()
        };
        let parts = split(&chunk(10, &[(8, 1), (13, 2)]));
        assert_eq!(
            parts,
            [
                (None, String::new()),
                (Some(1), "abc".into()),
                (Some(2), "def".into())
            ]
        );
        assert_eq!(split(&chunk(10, &[])), [(None, "abcdef".into())]);
    }
}
