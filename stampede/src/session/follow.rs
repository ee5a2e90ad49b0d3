//! Loads a run while it goes on.

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

use super::context::{MAX_BATCH, Session, report_truncated, write_error};
use super::nested::Nested;
use super::{End, Live, Notices, Options, Summary};
use crate::error::{LoadError, Notice};
use crate::loader::Loader;
use crate::log_reader::LogReader;
use crate::run::Run;
use crate::state_log::StateLog;
use crate::store::Position;

/// Maximum time between two commits while lines arrive.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest and longest pause between two polls of the log.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long to wait for another run if the last one is loaded already, or its executor is gone.
const NEXT_RUN: Duration = Duration::from_secs(60);
/// Longest pause between two attempts to reach a database.
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(30);
/// A log that does not grow for this long is given up, as in Pegasus' monitoring.
const IDLE_TIMEOUT: Duration = Duration::from_secs(48 * 3600);

/// Loads a run while it goes on, to its end. Waits for the files of a run that has not begun. `stop` ends
/// the session; the next one continues.
///
/// # Errors
/// As [`replay`](super::replay()); committed rows stay in the database.
pub fn follow(options: &Options, stop: &AtomicBool, notice: Notices<'_>) -> Result<Summary, LoadError> {
    let start = Instant::now();
    let stopped = || Summary {
        end: End::Interrupted,
        jobs: 0,
        elapsed: start.elapsed(),
    };
    let Some(run) = wait_for(stop, || find_run(&options.log))? else {
        return Ok(stopped());
    };
    let (session, loader, position) = begin(options, run, None, notice)?;
    let was_done = session.markers.path("monitord.done").exists();
    session.mark_started(notice);
    let log_path = session.run.log.clone();
    let reader = wait_for(stop, || match LogReader::open(&log_path) {
        Ok(reader) => Ok(Some(reader)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(session.read_error(error)),
    })?;
    let Some(reader) = reader else {
        return Ok(stopped());
    };
    let mut follower = Follower::new(session, loader, reader);
    follower.resume(position, notice)?;
    let end = follower.complete(stop, notice, |this, notice| this.run(stop, was_done, notice))?;
    follower.finish(end, stop, notice)
}

/// Loads a run whose log this program writes, in a separate thread. `dag` is the path of the DAG, and the
/// DAG.
///
/// The log is the queue between writer and loader: it takes no memory, a slow database delays no task, and
/// the next loader finds there what a killed program has not loaded.
///
/// # Errors
/// As [`replay`](super::replay()); committed rows stay in the database.
pub fn follow_own(
    options: &Options,
    live: &Live,
    dag: (&Path, Arc<Dag>),
    notice: Notices<'_>,
) -> Result<Summary, LoadError> {
    let run = Run::find(&options.log)?;
    let (path, dag) = dag;
    let is_same = fs::canonicalize(path).is_ok_and(|path| path == run.dag);
    let dag = (is_same && !run.planned).then_some(&*dag);
    let (session, loader, position) = begin(options, run, dag, notice)?;
    session.mark_started(notice);
    let reader = LogReader::open(&session.run.log).map_err(|source| session.read_error(source))?;
    let mut follower = Follower::new(session, loader, reader);
    follower.resume(position, notice)?;
    let end = follower.complete(live.stop(), notice, |this, notice| this.run_live(live, notice))?;
    follower.finish(end, live.stop(), notice)
}

/// Returns the run of a log once its files exist.
fn find_run(log: &Path) -> Result<Option<Run>, LoadError> {
    match Run::locate(log) {
        Ok(run) => Ok(run.static_events.exists().then_some(run)),
        // The files of a planner exist before a run begins. So a log without them was not planned.
        Err(LoadError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            match log.exists() {
                true => Run::find(log).map(Some),
                false => Ok(None),
            }
        }
        Err(error) => Err(error),
    }
}

/// Locks the directory and opens or creates the database.
fn begin<'o>(
    options: &'o Options,
    run: Run,
    dag: Option<&Dag>,
    notice: Notices<'_>,
) -> Result<(Session<'o>, Loader, Position), LoadError> {
    start(Session::new(options, run, notice)?, dag, notice)
}

/// Opens or creates the database.
pub(super) fn start<'o>(
    mut session: Session<'o>,
    dag: Option<&Dag>,
    notice: Notices<'_>,
) -> Result<(Session<'o>, Loader, Position), LoadError> {
    session.send_notifications(notice);
    let (store, position) = session.open(dag, notice)?;
    let state_log = session.state_log_path();
    let log =
        StateLog::open(&state_log, position.map(|at| at.jobstate_bytes)).map_err(write_error(&state_log))?;
    let mut loader = Loader::new(store, log, session.workflow())?;
    if session.notifies() {
        loader.note_ends();
    }
    // A nested sub-workflow may be opened each time that its log grows.
    if !session.is_nested() || position.is_none() {
        loader
            .log()
            .internal(Local::now().timestamp(), "MONITORD_STARTED", "");
    }
    let position = position.unwrap_or_default();
    loader.commit(position)?;
    session.update_dashboard(loader.states(), false, notice);
    Ok((session, loader, position))
}

/// Polls until there is a value or `stop` is set.
fn wait_for<T>(
    stop: &AtomicBool,
    mut poll: impl FnMut() -> Result<Option<T>, LoadError>,
) -> Result<Option<T>, LoadError> {
    let mut pause = POLL_INTERVAL.0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(value) = poll()? {
            return Ok(Some(value));
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(POLL_INTERVAL.1);
    }
    Ok(None)
}

pub(super) struct Follower<'o> {
    pub(super) session: Session<'o>,
    pub(super) loader: Loader,
    pub(super) reader: LogReader,
    /// Number of workflow states in the dashboard.
    listed: usize,
    committed: Instant,
    /// Lines since the last commit.
    lines: u64,
    /// How long to wait for another run.
    next_run: Duration,
    nested: Nested<'o>,
}

impl<'o> Follower<'o> {
    pub(super) fn new(session: Session<'o>, loader: Loader, reader: LogReader) -> Self {
        Self {
            listed: loader.states().len(),
            session,
            loader,
            reader,
            committed: Instant::now(),
            lines: 0,
            next_run: NEXT_RUN,
            nested: Nested::default(),
        }
    }

    pub(super) fn resume(&mut self, position: Position, notice: Notices<'_>) -> Result<(), LoadError> {
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

    /// Loads lines until the run has ended, its executor is gone, or `stop` is set.
    fn run(&mut self, stop: &AtomicBool, was_done: bool, notice: Notices<'_>) -> Result<End, LoadError> {
        let mut nothing_new = was_done;
        let mut executor_seen = false;
        let mut pause = POLL_INTERVAL.0;
        let mut last_growth = Instant::now();
        let mut process = None;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            self.session.poll_notifications(notice);
            // Before reading, so that lines written in between are read. The original executor holds its lock
            // only until it has read the DAG, before it writes the log.
            let is_running = self.loader.is_running();
            let locked = is_running.then(|| is_locked(&self.session.run.dag)).flatten();
            let read = self.read(stop, notice)? + self.visit_nested(false, stop, notice)?;
            if read > 0 {
                (pause, last_growth, nothing_new, process) = (POLL_INTERVAL.0, Instant::now(), false, None);
                continue;
            }
            if self.loader.was_started() && !self.loader.is_running() && !nothing_new {
                return Ok(End::Complete);
            }
            let idle = last_growth.elapsed();
            let is_gone = executor_seen
                // It was killed before this loader began, unless it is one that has released its lock.
                || (locked == Some(false) && idle > self.next_run && !self.has_executor(&mut process)?);
            if locked == Some(true) {
                executor_seen = true;
            } else if is_gone {
                // A network file system shows the last lines when the log is opened again.
                self.reopen()?;
                if self.read(stop, notice)? == 0 {
                    return self.load_last_line(notice);
                }
                continue;
            }
            if nothing_new && !executor_seen && idle > self.next_run {
                return Ok(End::NothingNew);
            }
            if idle > IDLE_TIMEOUT {
                return self.load_last_line(notice);
            }
            if self.reader.was_replaced() {
                let path = self.session.run.log.clone();
                self.reader = LogReader::open(&path).map_err(|source| self.session.read_error(source))?;
                self.session.expect_new_lines();
                notice(Notice::NewLog { path });
                continue;
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(POLL_INTERVAL.1);
        }
    }

    /// Returns whether the process that the log names exists on this host, or the log names none. `known`
    /// keeps the process of earlier calls.
    fn has_executor(&self, known: &mut Option<Option<u32>>) -> Result<bool, LoadError> {
        let last_process = || {
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
            None => *known.insert(last_process().map_err(|source| self.session.read_error(source))?),
        };
        let process = process.and_then(|process| i32::try_from(process).ok());
        Ok(process.is_none_or(|process| kill(Pid::from_raw(process), None) != Err(Errno::ESRCH)))
    }

    /// Like [`Follower::run`], for a log of this program.
    fn run_live(&mut self, live: &Live, notice: Notices<'_>) -> Result<End, LoadError> {
        let mut pause = POLL_INTERVAL.0;
        loop {
            // Before reading, so that lines written in between are read.
            let is_complete = live.is_complete();
            self.session.poll_notifications(notice);
            // Frequent reads leave little to do at the end.
            pause = match self.read_lines(live.stop(), notice)? {
                0 => (pause * 3 / 2).min(COMMIT_INTERVAL),
                _ => POLL_INTERVAL.0,
            };
            if live.stop().load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            if is_complete {
                return self.load_last_line(notice);
            }
            if self.committed.elapsed() >= COMMIT_INTERVAL {
                self.commit(notice)?;
                self.visit_nested(false, live.stop(), notice)?;
            } else {
                self.loader.store().write_ended()?;
            }
            live.pause(pause);
        }
    }

    /// Opens the log again at the same position.
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

    /// Loads what nested sub-workflows have logged. Returns the number of lines.
    fn visit_nested(
        &mut self,
        is_last: bool,
        stop: &AtomicBool,
        notice: Notices<'_>,
    ) -> Result<u64, LoadError> {
        let links = self.take_links(notice);
        self.nested.visit(&self.session, links, is_last, stop, notice)
    }

    /// Loads all complete lines and commits them. Returns the number of lines.
    pub(super) fn read(&mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<u64, LoadError> {
        let read = self.read_lines(stop, notice)?;
        self.commit(notice)?;
        Ok(read)
    }

    /// Loads all complete lines, with commits in between. Returns the number of lines.
    fn read_lines(&mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<u64, LoadError> {
        let mut read = 0;
        while !stop.load(Ordering::Relaxed) {
            let number = self.reader.line_number() + 1;
            let line = self
                .reader
                .next_line()
                .map_err(|source| self.session.read_error(source))?;
            let Some(line) = line else { break };
            self.session.load_line(&mut self.loader, line, number, notice)?;
            read += 1;
            self.lines += 1;
            if self.lines >= MAX_BATCH || self.committed.elapsed() >= COMMIT_INTERVAL {
                self.commit(notice)?;
            }
        }
        Ok(read)
    }

    fn commit(&mut self, notice: Notices<'_>) -> Result<(), LoadError> {
        self.committed = Instant::now();
        if self.lines == 0 {
            return Ok(());
        }
        self.lines = 0;
        // Before the commit: if the loader is killed in between, the next one writes the same again.
        if self.listed != self.loader.states().len() {
            self.session.update_dashboard(self.loader.states(), false, notice);
            self.listed = self.loader.states().len();
        }
        let position = self
            .reader
            .position()
            .map_err(|source| self.session.read_error(source))?;
        self.loader.commit(position)
    }

    /// Loads the last line, which may lack its line feed, as nothing more will be written.
    pub(super) fn load_last_line(&mut self, notice: Notices<'_>) -> Result<End, LoadError> {
        let number = self.reader.line_number() + 1;
        if let Some(line) = self.reader.last_line() {
            self.session.load_line(&mut self.loader, line, number, notice)?;
            self.lines += 1;
        }
        self.commit(notice)?;
        if self.loader.was_started() && !self.loader.is_running() {
            return Ok(End::Complete);
        }
        let path = self.session.run.log.clone();
        notice(Notice::NoEnd { path });
        Ok(End::NoEnd)
    }

    /// Calls `load` and commits its end. Reconnects and calls it again if the database is lost in between.
    fn complete(
        &mut self,
        stop: &AtomicBool,
        notice: Notices<'_>,
        mut load: impl FnMut(&mut Self, Notices<'_>) -> Result<End, LoadError>,
    ) -> Result<End, LoadError> {
        loop {
            let ended = load(self, notice).and_then(|end| {
                self.commit_end(end, notice)?;
                self.visit_nested(end != End::Interrupted, stop, notice)?;
                Ok(end)
            });
            match ended {
                Err(LoadError::Store(error)) if error.is_transient() => {
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

    /// Opens the database again as soon as possible, and resumes at its position. Returns false if `stop` is
    /// set before.
    fn reconnect(&mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<bool, LoadError> {
        let mut pause = POLL_INTERVAL.0;
        while !stop.load(Ordering::Relaxed) {
            match self.reopen_database(notice) {
                // The server may still count the lost connection, which holds the lock.
                Err(LoadError::Store(error)) if error.is_transient() || error.is_held() => {}
                done => return done.map(|()| true),
            }
            let deadline = Instant::now() + pause;
            while Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(POLL_INTERVAL.0);
            }
            pause = (pause * 2).min(MAX_RECONNECT_PAUSE);
        }
        Ok(false)
    }

    fn reopen_database(&mut self, notice: Notices<'_>) -> Result<(), LoadError> {
        self.nested.close();
        let (store, position) = self.session.open(None, notice)?;
        let position = position.unwrap_or_default();
        let path = self.session.state_log_path();
        let log = StateLog::open(&path, Some(position.jobstate_bytes)).map_err(write_error(&path))?;
        self.loader = Loader::new(store, log, self.session.workflow())?;
        if self.session.notifies() {
            self.loader.note_ends();
        }
        self.reader =
            LogReader::open(&self.session.run.log).map_err(|source| self.session.read_error(source))?;
        self.lines = 0;
        self.resume(position, notice)
    }

    pub(super) fn commit_end(&mut self, end: End, notice: Notices<'_>) -> Result<(), LoadError> {
        if end != End::Interrupted {
            self.loader.insert_queued(notice)?;
        }
        let code = match end {
            End::Complete | End::NothingNew => "0",
            // The code of Pegasus' monitoring for a run that disappeared.
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

    fn finish(mut self, end: End, stop: &AtomicBool, notice: Notices<'_>) -> Result<Summary, LoadError> {
        report_truncated(&self.loader, notice);
        self.session.finish_notifications(stop, notice);
        let mut summary = self.session.summary(&self.loader, end);
        summary.jobs += self.nested.jobs();
        if end == End::Interrupted {
            // All complete lines are committed.
            let _ = self.loader.into_store().close();
            return Ok(summary);
        }
        let lines = self.reader.line_number();
        self.session.write_info(&self.loader, lines, notice);
        self.loader.into_store().close()?;
        self.session.mark_done(notice);
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows a log that names this process as its executor, for at most `limit`. Returns the end and all
    /// notices.
    fn follow_log(process: u32, limit: Duration) -> (End, Vec<String>) {
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
        let mut notices = Vec::new();
        let mut notice = |notice: Notice| notices.push(notice.to_string());
        let run = Run::find(&options.log).unwrap();
        let (session, loader, position) = begin(&options, run, None, &mut notice).unwrap();
        let reader = LogReader::open(&options.log).unwrap();
        let mut follower = Follower::new(session, loader, reader);
        follower.next_run = Duration::from_millis(300);
        follower.resume(position, &mut notice).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopper = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(limit);
            stopper.store(true, Ordering::Relaxed);
        });
        let end = follower.run(&stop, false, &mut notice).unwrap();
        drop(follower);
        (end, notices)
    }

    #[test]
    fn an_executor_killed_before_is_noticed() {
        // No process has such a large id.
        let (end, notices) = follow_log(1 << 30, Duration::from_secs(60));
        assert_eq!(end, End::NoEnd);
        assert!(
            notices
                .iter()
                .any(|line| line.contains("the log ends before the end of the run")),
            "{notices:?}"
        );
        // The original executor releases its lock.
        let (end, notices) = follow_log(std::process::id(), Duration::from_secs(1));
        assert_eq!((end, notices.len()), (End::Interrupted, 0), "{notices:?}");
    }
}
