//! Follows a run while it goes on.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::Local;
use monitord_compat::dagman_out_reader::{self, What};
use monitord_compat::run_lock::is_locked;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use pmc_dag::Dag;

use super::{BATCH, End, Live, Notices, Options, Session, Summary, cut, pause, write_error};
use crate::destination::Destination;
use crate::error::{LoadError, Notice};
use crate::loader::Loader;
use crate::log_reader::LogReader;
use crate::run::Run;
use crate::state_log::StateLog;
use crate::store::Position;

/// Time between two commits while lines keep coming.
const COMMIT: Duration = Duration::from_secs(1);
/// Shortest pause between two looks at a log that this program writes.
const LOOK: Duration = Duration::from_millis(100);
/// Shortest and longest pause between two looks at the log.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long to wait for a next run when the last one is loaded already, or its executor is gone.
const NEXT_RUN: Duration = Duration::from_secs(60);
/// Longest pause between two attempts to reach a database.
const RECONNECT: Duration = Duration::from_secs(30);
/// A log that does not grow for this long is given up, as Pegasus' monitoring does.
const IDLE: Duration = Duration::from_secs(48 * 3600);

/// Loads a run while it goes on, to its end. Waits for the files of a run that has not begun. `stop`
/// ends it before; the next call goes on there.
///
/// # Errors
/// As [`replay`]; what is in the database stays.
pub fn follow(options: &Options, stop: &AtomicBool, notice: Notices<'_>) -> Result<Summary, LoadError> {
    let began = Instant::now();
    let stopped = Summary {
        end: End::Interrupted,
        jobs: 0,
        elapsed: began.elapsed(),
    };
    let Some(run) = wait_for(stop, || match Run::locate(&options.log) {
        Ok(run) => Ok(run.static_events.exists().then_some(run)),
        Err(LoadError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            // A planner's files are there before a run begins.
            match options.log.exists() {
                true => Run::find(&options.log).map(Some),
                false => Ok(None),
            }
        }
        Err(error) => Err(error),
    })?
    else {
        return Ok(stopped);
    };
    let (session, loader, position) = begin(options, run, None, notice)?;
    let was_done = session.markers.path("monitord.done").exists();
    session.started(notice);
    let log_path = session.run.log.clone();
    let reader = wait_for(stop, || match LogReader::open(&log_path) {
        Ok(reader) => Ok(Some(reader)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(session.read_error(error)),
    })?;
    let Some(reader) = reader else {
        return Ok(stopped);
    };
    let mut follower = Follower::new(session, loader, reader);
    follower.resume(position, notice)?;
    let end = follower.complete(stop, notice, |this, notice| this.run(stop, was_done, notice))?;
    follower.finish(end, notice)
}

/// Loads a run whose log this program writes, in a thread of its own. `live` tells when the log is
/// complete.
///
/// The log is the queue between the two: what is not loaded yet, if the program is killed, the next
/// loader finds there. It takes no memory, and a slow database holds nobody up. `dag` is the file of the DAG, and the DAG in
/// it.
///
/// # Errors
/// As [`replay`]; what is in the database stays.
pub fn follow_own(
    options: &Options,
    live: &Live,
    dag: (&Path, Arc<Dag>),
    notice: Notices<'_>,
) -> Result<Summary, LoadError> {
    let run = Run::find(&options.log)?;
    let (path, dag) = dag;
    let same = fs::canonicalize(path).is_ok_and(|path| path == run.dag);
    let dag = (same && !run.planned).then_some(dag);
    let (session, mut loader, position) = begin(options, run, dag.as_ref(), notice)?;
    loader.use_hints(Arc::clone(live.hints()));
    session.started(notice);
    let reader = LogReader::open(&session.run.log).map_err(|source| session.read_error(source))?;
    let mut follower = Follower::new(session, loader, reader);
    follower.resume(position, notice)?;
    let end = follower.complete(live.stop(), notice, |this, notice| this.run_beside(live, notice))?;
    follower.finish(end, notice)
}

/// Takes the directory and goes on with the database, or begins it.
fn begin<'o>(
    options: &'o Options,
    run: Run,
    dag: Option<&Arc<Dag>>,
    notice: Notices<'_>,
) -> Result<(Session<'o>, Loader, Position), LoadError> {
    let session = Session::new(options, run, notice)?;
    let (store, position) = session.open(dag.map(|dag| &**dag), notice)?;
    let state_log = session.state_log_path();
    let log =
        StateLog::open(&state_log, position.map(|at| at.jobstate_bytes)).map_err(write_error(&state_log))?;
    let mut loader = Loader::new(store, log, session.workflow())?;
    loader
        .log()
        .internal(Local::now().timestamp(), "MONITORD_STARTED", "");
    // A server numbers the jobs of several workflows.
    let of_its_own = !matches!(session.destination, Destination::Server(_));
    if let (Some(dag), None, true) = (dag, position, of_its_own) {
        loader.know(Arc::clone(dag));
    }
    let position = position.unwrap_or_default();
    loader.commit(position)?;
    session.list(loader.states(), false, notice);
    Ok((session, loader, position))
}

/// Asks again and again, until there is an answer or `stop`.
fn wait_for<T>(
    stop: &AtomicBool,
    mut ask: impl FnMut() -> Result<Option<T>, LoadError>,
) -> Result<Option<T>, LoadError> {
    let mut wait = PAUSE.0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(answer) = ask()? {
            return Ok(Some(answer));
        }
        std::thread::sleep(wait);
        wait = (wait * 3 / 2).min(PAUSE.1);
    }
    Ok(None)
}

struct Follower<'o> {
    session: Session<'o>,
    loader: Loader,
    reader: LogReader,
    /// States that the list of workflows has.
    listed: usize,
    committed: Instant,
    /// Lines since the last commit.
    lines: u64,
    /// How long to wait for a next run.
    next_run: Duration,
}

impl<'o> Follower<'o> {
    fn new(session: Session<'o>, loader: Loader, reader: LogReader) -> Self {
        Self {
            listed: loader.states().len(),
            session,
            loader,
            reader,
            committed: Instant::now(),
            lines: 0,
            next_run: NEXT_RUN,
        }
    }

    fn resume(&mut self, position: Position, notice: Notices<'_>) -> Result<(), LoadError> {
        let same = self
            .reader
            .resume(position)
            .map_err(|source| self.session.read_error(source))?;
        if !same {
            notice(Notice::NewLog {
                path: self.session.run.log.clone(),
            });
        }
        Ok(())
    }

    fn run(&mut self, stop: &AtomicBool, was_done: bool, notice: Notices<'_>) -> Result<End, LoadError> {
        let mut nothing_new = was_done;
        let mut executor_seen = false;
        let mut wait = PAUSE.0;
        let mut grew = Instant::now();
        let mut process = None;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            // Before reading: what is written between the two is read then. The original executor holds
            // its lock only until it has read the DAG, before its log says anything.
            let running = self.loader.is_running();
            let locked = running.then(|| is_locked(&self.session.run.dag)).flatten();
            let read = self.read(stop, notice)?;
            if read > 0 {
                (wait, grew, nothing_new, process) = (PAUSE.0, Instant::now(), false, None);
                continue;
            }
            if self.loader.was_started() && !self.loader.is_running() && !nothing_new {
                return Ok(End::Complete);
            }
            let gone = executor_seen
                // It was killed before this loader began, if it is not one that has given the lock back.
                || (locked == Some(false) && grew.elapsed() > self.next_run && !self.has_executor(&mut process)?);
            if locked == Some(true) {
                executor_seen = true;
            } else if gone {
                // It holds its DAG no more, or never did. A network file system shows what it wrote last
                // when the log is opened again.
                self.reopen()?;
                if self.read(stop, notice)? == 0 {
                    return self.last_line(notice);
                }
                continue;
            }
            if nothing_new && !executor_seen && grew.elapsed() > self.next_run {
                return Ok(End::NothingNew);
            }
            if grew.elapsed() > IDLE {
                return self.last_line(notice);
            }
            if self.reader.was_replaced().unwrap_or(false) {
                let path = self.session.run.log.clone();
                self.reader = LogReader::open(&path).map_err(|source| self.session.read_error(source))?;
                notice(Notice::NewLog { path });
                continue;
            }
            std::thread::sleep(wait);
            wait = (wait * 3 / 2).min(PAUSE.1);
        }
    }

    /// Whether there is, on this host, the process that the log says writes it; also if the log does not say. `known` is
    /// what the log said before.
    fn has_executor(&self, known: &mut Option<Option<u32>>) -> Result<bool, LoadError> {
        let last = || {
            let mut reader = LogReader::open(&self.session.run.log)?;
            let mut last = None;
            while let Some(line) = reader.next_line()? {
                if let Some(What::Pid(pid)) = dagman_out_reader::read(line).map(|line| line.what) {
                    last = Some(pid);
                }
            }
            Ok(last)
        };
        let process = match *known {
            Some(process) => process,
            None => *known.insert(last().map_err(|source| self.session.read_error(source))?),
        };
        let process = process.and_then(|process| i32::try_from(process).ok());
        Ok(process.is_none_or(|process| kill(Pid::from_raw(process), None) != Err(Errno::ESRCH)))
    }

    /// As [`Follower::run`] for a log of this program.
    fn run_beside(&mut self, live: &Live, notice: Notices<'_>) -> Result<End, LoadError> {
        let mut wait = LOOK;
        loop {
            // Before reading: what is written between the two is read then.
            let complete = live.is_complete();
            // Little is left to do at the end if the log is read often.
            match self.read_lines(live.stop(), notice)? {
                0 => wait = (wait * 3 / 2).min(COMMIT),
                _ => wait = LOOK,
            }
            if live.stop().load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            if complete {
                return self.last_line(notice);
            }
            if self.committed.elapsed() >= COMMIT {
                self.commit(notice)?;
            } else {
                self.loader.store().advance()?;
            }
            live.pause(wait);
        }
    }

    /// Opens the log again where the reader is.
    fn reopen(&mut self) -> Result<(), LoadError> {
        let mut reopened = || {
            let mut reader = LogReader::open(&self.session.run.log)?;
            if reader.resume(self.reader.position()?)? {
                self.reader = reader;
            }
            Ok(())
        };
        reopened().map_err(|source| self.session.read_error(source))
    }

    /// Reads to the end of what is there, and commits it; the number of lines.
    fn read(&mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<u64, LoadError> {
        let read = self.read_lines(stop, notice)?;
        self.commit(notice)?;
        Ok(read)
    }

    /// Reads to the end of what is there, and commits when it is time; the number of lines.
    fn read_lines(&mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<u64, LoadError> {
        let mut read = 0;
        while !stop.load(Ordering::Relaxed) {
            let number = self.reader.line_number() + 1;
            let line = self
                .reader
                .next_line()
                .map_err(|source| self.session.read_error(source))?;
            let Some(line) = line else { break };
            self.session.line(&mut self.loader, line, number, notice)?;
            read += 1;
            self.lines += 1;
            if self.lines >= BATCH || self.committed.elapsed() >= COMMIT {
                self.commit(notice)?;
            }
            pause(self.session.options.slowly);
        }
        Ok(read)
    }

    fn commit(&mut self, notice: Notices<'_>) -> Result<(), LoadError> {
        self.committed = Instant::now();
        if self.lines == 0 {
            return Ok(());
        }
        self.lines = 0;
        // First: should the loader be killed in between, it is written again, which changes nothing.
        if self.listed != self.loader.states().len() {
            self.session.list(self.loader.states(), false, notice);
            self.listed = self.loader.states().len();
        }
        let position = self
            .reader
            .position()
            .map_err(|source| self.session.read_error(source))?;
        self.loader.commit(position)
    }

    /// The writer is gone: its last line may lack its line feed.
    fn last_line(&mut self, notice: Notices<'_>) -> Result<End, LoadError> {
        let number = self.reader.line_number() + 1;
        if let Some(line) = self.reader.last_line() {
            self.session.line(&mut self.loader, line, number, notice)?;
            self.lines += 1;
        }
        self.commit(notice)?;
        if self.loader.was_started() && !self.loader.is_running() {
            return Ok(End::Complete);
        }
        notice(Notice::NoEnd {
            path: self.session.run.log.clone(),
        });
        Ok(End::NoEnd)
    }

    /// Does `load` to its end and commits that. If the database is lost in between, goes on when it is
    /// there again.
    fn complete(
        &mut self,
        stop: &AtomicBool,
        notice: Notices<'_>,
        mut load: impl FnMut(&mut Self, Notices<'_>) -> Result<End, LoadError>,
    ) -> Result<End, LoadError> {
        loop {
            let ended = load(self, notice).and_then(|end| self.last_commit(end, notice).map(|()| end));
            match ended {
                Err(LoadError::Store(error)) if error.may_pass() => {
                    notice(Notice::Lost {
                        reason: error.to_string(),
                    });
                    if !self.reconnect(stop, notice)? {
                        return Ok(End::Interrupted);
                    }
                }
                ended => return ended,
            }
        }
    }

    /// Opens the database again, as soon as it can be, and goes to its position. False if it is time to
    /// stop before.
    fn reconnect(&mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<bool, LoadError> {
        let mut wait = PAUSE.0;
        while !stop.load(Ordering::Relaxed) {
            match self.begin_again(notice) {
                // The server may not know yet that the connection before is gone, which has the lock.
                Err(LoadError::Store(error)) if error.may_pass() || error.is_held() => {}
                done => return done.map(|()| true),
            }
            let until = Instant::now() + wait;
            while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE.0);
            }
            wait = (wait * 2).min(RECONNECT);
        }
        Ok(false)
    }

    fn begin_again(&mut self, notice: Notices<'_>) -> Result<(), LoadError> {
        let (store, position) = self.session.open(None, notice)?;
        let position = position.unwrap_or_default();
        let path = self.session.state_log_path();
        let log = StateLog::open(&path, Some(position.jobstate_bytes)).map_err(write_error(&path))?;
        self.loader = Loader::new(store, log, self.session.workflow())?;
        self.reader =
            LogReader::open(&self.session.run.log).map_err(|source| self.session.read_error(source))?;
        self.lines = 0;
        self.resume(position, notice)
    }

    fn last_commit(&mut self, end: End, notice: Notices<'_>) -> Result<(), LoadError> {
        if end != End::Interrupted {
            self.loader.settle(notice)?;
        }
        let code = match end {
            End::Complete | End::NothingNew => "0",
            // As Pegasus' monitoring has it when its run is gone.
            End::NoEnd => "42",
            End::Interrupted => "1",
        };
        self.loader
            .log()
            .internal(Local::now().timestamp(), "MONITORD_FINISHED", code);
        let position = self
            .reader
            .position()
            .map_err(|source| self.session.read_error(source))?;
        self.loader.commit(position)
    }

    fn finish(self, end: End, notice: Notices<'_>) -> Result<Summary, LoadError> {
        cut(&self.loader, notice);
        let summary = self.session.summary(&self.loader, end);
        if end == End::Interrupted {
            // All that can be is committed.
            let _ = self.loader.into_store().close();
            return Ok(summary);
        }
        Session::marked(
            self.session.markers.info(&self.loader, self.reader.line_number()),
            notice,
        );
        self.loader.into_store().close()?;
        self.session.done(notice);
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How following a log ends, at the latest after `longest`, that names this process as that of its executor.
    fn followed(process: u32, longest: Duration) -> (End, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let dag = dir.path().join("x.dag");
        fs::write(&dag, "TASK a /bin/true\n").unwrap();
        let stamp = "03/04/26 05:06:07";
        let log = format!("{stamp} ** PID = 1\n{stamp} ** PID = {process}\n{stamp} Parsing x.dag ...\n");
        let options = Options {
            log: dir.path().join("x.dag.dagman.out"),
            ..Options::default()
        };
        fs::write(&options.log, log).unwrap();
        let mut said = Vec::new();
        let mut notice = |notice: Notice| said.push(notice.to_string());
        let run = Run::find(&options.log).unwrap();
        let (session, loader, position) = begin(&options, run, None, &mut notice).unwrap();
        let reader = LogReader::open(&options.log).unwrap();
        let mut follower = Follower::new(session, loader, reader);
        follower.next_run = Duration::from_millis(300);
        follower.resume(position, &mut notice).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopper = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(longest);
            stopper.store(true, Ordering::Relaxed);
        });
        let end = follower.run(&stop, false, &mut notice).unwrap();
        drop(follower);
        (end, said)
    }

    #[test]
    fn a_run_that_was_killed_before() {
        // No process has a number as large.
        let (end, said) = followed(1 << 30, Duration::from_secs(60));
        assert_eq!(end, End::NoEnd);
        assert!(
            said.iter()
                .any(|line| line.contains("the log ends before the end of the run")),
            "{said:?}"
        );
        // The original executor does not keep its lock.
        let (end, said) = followed(std::process::id(), Duration::from_secs(1));
        assert_eq!((end, said.len()), (End::Interrupted, 0), "{said:?}");
    }
}
