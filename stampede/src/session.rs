//! Loads a submit directory: all of a finished run at once, or a running one as it goes on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::Local;
use monitord_compat::dagman_out_reader::{self, What};

use crate::clock::LogClock;
use crate::dashboard;
use crate::error::{LoadError, Notice};
use crate::holder::{Holder, NotHeld, is_locked};
use crate::loader::{Loader, Workflow};
use crate::log_reader::LogReader;
use crate::markers::{Markers, rotate, stamp};
use crate::run::Run;
use crate::state_log::StateLog;
use crate::static_part;
use crate::store::{Position, Purpose, Store, WorkflowState};

/// Lines between two commits.
const BATCH: u64 = 5000;
/// Time between two commits while lines keep coming.
const COMMIT: Duration = Duration::from_secs(1);
/// Shortest and longest pause between two looks at the log.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long to wait for a next run when the last one is loaded already.
const NEXT_RUN: Duration = Duration::from_secs(60);
/// A log that does not grow for this long is given up, as Pegasus' monitoring does.
const IDLE: Duration = Duration::from_secs(48 * 3600);

/// Where the rows go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// Into the database beside the log.
    #[default]
    BesideLog,
    /// Into this database.
    File(PathBuf),
    /// Nowhere; only the log of states is written.
    Nowhere,
}

/// What to load and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The log, `SUBMIT_DIR/NAME.dag.dagman.out`.
    pub log: PathBuf,
    /// Seconds to add to the times of the log.
    pub adjust: i64,
    /// Directory for the small files beside the database.
    pub output_dir: Option<PathBuf>,
    /// The log of states, if not `jobstate.log`.
    pub state_log: Option<PathBuf>,
    /// The database.
    pub destination: Destination,
    /// The list of all workflows of the user.
    pub dashboard: Option<PathBuf>,
    /// Whether to leave out what jobs printed.
    pub skip_output: bool,
    /// Pause after each line, to follow a finished log slowly.
    pub slowly: Duration,
}

/// How loading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run has ended and all of it is in the database.
    Complete,
    /// The log ends without an end of the run.
    NoEnd,
    /// There was nothing that was not loaded before.
    NothingNew,
    /// The caller wanted an end; loading can go on there.
    Interrupted,
}

/// What was loaded.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// How it ended.
    pub end: End,
    /// Tries of jobs that ended.
    pub jobs: u64,
    /// Time spent.
    pub elapsed: Duration,
}

/// Tells the caller what costs a record only.
pub type Notices<'n> = &'n mut dyn FnMut(Notice);

struct Session<'o> {
    options: &'o Options,
    run: Run,
    markers: Markers,
    began: Instant,
    clock: LogClock,
    master: String,
    _holder: Holder,
}

impl<'o> Session<'o> {
    fn new(options: &'o Options, run: Run, notice: Notices<'_>) -> Result<Self, LoadError> {
        if let Some(notify) = &run.notify {
            let what = format!("notifications ({notify}) are not sent; use pegasus-monitord for them");
            notice(Notice::Unsupported { what });
        }
        let path = run.dir.join("monitord.pid");
        let holder = match Holder::acquire(&path, &stamp(Local::now())) {
            Ok((holder, locked)) => {
                if let Err(error) = locked {
                    notice(Notice::NoLock {
                        path,
                        source: error.into(),
                    });
                }
                holder
            }
            Err(NotHeld::By(holder)) => return Err(LoadError::Held { dir: run.dir, holder }),
            Err(NotHeld::Io(source)) => return Err(LoadError::Write { path, source }),
        };
        Ok(Self {
            options,
            markers: Markers::new(&run.dir, options.output_dir.as_deref(), &run.workflow.wf_uuid),
            run,
            began: Instant::now(),
            clock: LogClock::new(options.adjust),
            master: "0.0".to_owned(),
            _holder: holder,
        })
    }

    fn state_log_path(&self) -> PathBuf {
        match &self.options.state_log {
            Some(path) => self.run.dir.join(path),
            None => self.markers.path("jobstate.log"),
        }
    }

    fn database(&self) -> PathBuf {
        match &self.options.destination {
            Destination::BesideLog => self.run.database.clone(),
            Destination::File(path) => path.clone(),
            Destination::Nowhere => PathBuf::from(":memory:"),
        }
    }

    fn workflow(&self) -> Workflow {
        Workflow {
            dir: self.run.dir.clone(),
            submit_dir: self.run.workflow.submit_dir.clone(),
            user: self.run.workflow.user.clone(),
            keep_output: !self.options.skip_output,
        }
    }

    fn started(&self, notice: Notices<'_>) {
        Self::marked(self.markers.started(Local::now()), notice);
    }

    fn planned(&self, store: &mut Store, notice: Notices<'_>) -> Result<(), LoadError> {
        store.workflow(&self.run.workflow)?;
        static_part::load(&self.run.static_events, store, notice)
    }

    /// One line of the log.
    fn line(
        &mut self,
        loader: &mut Loader,
        line: &[u8],
        number: u64,
        notice: Notices<'_>,
    ) -> Result<(), LoadError> {
        let Some(line) = dagman_out_reader::read(line) else {
            if !line.trim_ascii().is_empty() {
                let path = self.run.log.clone();
                notice(Notice::LogLine { path, line: number });
            }
            return Ok(());
        };
        let text = String::from_utf8_lossy;
        let time = self.clock.epoch(line.time);
        match line.what {
            What::StartingUp { id } => self.master = text(id).into_owned(),
            What::Start => loader.start(time, &self.master)?,
            What::Finish { status } => loader.finish(time, status)?,
            What::Event {
                state: b"SUBMIT",
                job,
                number,
            } => {
                loader.submitted(time, &text(job), &text(number), notice)?;
            }
            What::Event { state, job, number } => {
                loader.state(time, &text(job), &text(state), &text(number), notice)?;
            }
            What::Ended { job, number, status } => {
                loader.ended(time, &text(job), &text(number), status, notice)?
            }
            What::Pid(_) | What::Other => {}
        }
        Ok(())
    }

    fn list(&self, states: &[WorkflowState], anew: bool, notice: Notices<'_>) {
        let (Some(path), Destination::BesideLog | Destination::File(_)) =
            (&self.options.dashboard, &self.options.destination)
        else {
            return;
        };
        let now = Local::now().timestamp();
        let workflow = &self.run.workflow;
        if let Err(reason) = dashboard::update(path, workflow, &self.database(), states, anew, now) {
            notice(Notice::Dashboard { reason });
        }
    }

    fn marked(result: Result<(), (PathBuf, std::io::Error)>, notice: Notices<'_>) {
        if let Err((path, source)) = result {
            notice(Notice::Marker { path, source });
        }
    }

    /// The database is complete. Readers that find this file trust in that.
    fn done(&self, notice: Notices<'_>) {
        let seconds = self.began.elapsed().as_secs_f64();
        Self::marked(self.markers.done(Local::now(), seconds), notice);
    }

    fn read_error(&self, source: std::io::Error) -> LoadError {
        LoadError::Read {
            path: self.run.log.clone(),
            source,
        }
    }

    fn summary(&self, loader: &Loader, end: End) -> Summary {
        Summary {
            end,
            jobs: loader.jobs_ended(),
            elapsed: self.began.elapsed(),
        }
    }
}

fn write_error(path: &Path) -> impl FnOnce(std::io::Error) -> LoadError + '_ {
    |source| LoadError::Write {
        path: path.to_owned(),
        source,
    }
}

/// Loads what is there, anew. A database, log of states and log of an earlier loader are renamed. The
/// new database appears when it is complete.
///
/// # Errors
/// A file that is needed is missing, another loader is at work, or the disk is full.
pub fn replay(options: &Options, notice: Notices<'_>) -> Result<Summary, LoadError> {
    let run = Run::locate(&options.log)?;
    let mut reader = LogReader::open(&run.log).map_err(|source| LoadError::Read {
        path: run.log.clone(),
        source,
    })?;
    let mut session = Session::new(options, run, notice)?;
    let state_log = session.state_log_path();
    for path in [&state_log, &session.markers.path("monitord.log")] {
        rotate(path).map_err(write_error(path))?;
    }
    session.started(notice);
    let database = session.database();
    let part = if options.destination == Destination::Nowhere {
        database.clone()
    } else {
        let part = database.with_extension("db.part");
        let _ = fs::remove_file(&part);
        part
    };
    let loaded = replay_into(&mut session, &mut reader, &part, &state_log, notice);
    let (loader, end) = loaded.inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })?;
    Session::marked(session.markers.info(&loader, reader.line_number()), notice);
    let summary = session.summary(&loader, end);
    let states = loader.states().to_vec();
    loader.into_store().close()?;
    if options.destination != Destination::Nowhere {
        let publish = || {
            File::open(&part)?.sync_all()?;
            rotate(&database)?;
            fs::rename(&part, &database)
        };
        publish().map_err(write_error(&database))?;
    }
    session.list(&states, true, notice);
    session.done(notice);
    Ok(summary)
}

fn replay_into(
    session: &mut Session<'_>,
    reader: &mut LogReader,
    part: &Path,
    state_log: &Path,
    notice: Notices<'_>,
) -> Result<(Loader, End), LoadError> {
    let mut store = Store::create(part, Purpose::Bulk, Local::now().timestamp())?;
    session.planned(&mut store, notice)?;
    let log = StateLog::open(state_log, None).map_err(write_error(state_log))?;
    let mut loader = Loader::new(store, log, session.workflow())?;
    loader
        .log()
        .internal(Local::now().timestamp(), "MONITORD_STARTED", "");
    let mut number = 0;
    loop {
        let line = reader.next_line().map_err(|source| session.read_error(source))?;
        let Some(line) = line else { break };
        number += 1;
        session.line(&mut loader, line, number, notice)?;
        if number % BATCH == 0 {
            loader.log().flush().map_err(write_error(state_log))?;
        }
        pause(session.options.slowly);
    }
    // Nobody goes on writing a log that is replayed.
    if let Some(line) = reader.last_line() {
        session.line(&mut loader, line, number + 1, notice)?;
    }
    let end = if loader.is_running() || !loader.was_started() {
        End::NoEnd
    } else {
        End::Complete
    };
    if end == End::NoEnd {
        notice(Notice::NoEnd {
            path: session.run.log.clone(),
        });
    }
    loader.store().create_indexes()?;
    loader
        .log()
        .internal(Local::now().timestamp(), "MONITORD_FINISHED", "0");
    let position = reader.position().map_err(|source| session.read_error(source))?;
    loader.commit(position)?;
    Ok((loader, end))
}

fn pause(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

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
        Err(LoadError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    })?
    else {
        return Ok(stopped);
    };
    let session = Session::new(options, run, notice)?;
    let was_done = session.markers.path("monitord.done").exists();
    let database = session.database();
    let opened = match &options.destination {
        Destination::Nowhere => None,
        _ => Store::open(&database, &session.run.workflow.wf_uuid)?,
    };
    let (store, position) = match opened {
        Some((store, position)) => (store, Some(position)),
        None => {
            retire(&database)?;
            let mut store = Store::create(&database, Purpose::Live, Local::now().timestamp())?;
            session.planned(&mut store, notice)?;
            (store, None)
        }
    };
    session.started(notice);
    let state_log = session.state_log_path();
    let log =
        StateLog::open(&state_log, position.map(|at| at.jobstate_bytes)).map_err(write_error(&state_log))?;
    let mut loader = Loader::new(store, log, session.workflow())?;
    loader
        .log()
        .internal(Local::now().timestamp(), "MONITORD_STARTED", "");
    let position = position.unwrap_or_default();
    loader.commit(position)?;
    session.list(loader.states(), false, notice);

    let log_path = session.run.log.clone();
    let reader = wait_for(stop, || match LogReader::open(&log_path) {
        Ok(reader) => Ok(Some(reader)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(session.read_error(error)),
    })?;
    let Some(reader) = reader else {
        return Ok(stopped);
    };
    let mut follower = Follower {
        session,
        loader,
        reader,
        listed: 0,
        committed: Instant::now(),
        lines: 0,
    };
    follower.listed = follower.loader.states().len();
    follower.resume(position, notice)?;
    let end = follower.run(stop, was_done, notice)?;
    follower.finish(end, notice)
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

/// Moves a database that this loader cannot go on with out of the way; one that never came to hold
/// anything is removed.
fn retire(database: &Path) -> Result<(), LoadError> {
    let empty = fs::metadata(database).is_ok_and(|data| data.len() == 0);
    let removed = if empty {
        fs::remove_file(database)
    } else {
        rotate(database)
    };
    removed.map_err(write_error(database))
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
}

impl Follower<'_> {
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
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            // Before reading: what is written between the two is read then.
            let executor = is_locked(&self.session.run.dag);
            let read = self.read(stop, notice)?;
            if read > 0 {
                (wait, grew, nothing_new) = (PAUSE.0, Instant::now(), false);
                continue;
            }
            if self.loader.was_started() && !self.loader.is_running() && !nothing_new {
                return Ok(End::Complete);
            }
            match executor {
                Some(true) => executor_seen = true,
                // It has held its DAG and does so no more.
                Some(false) if executor_seen => return self.last_line(notice),
                _ => {}
            }
            if nothing_new && !executor_seen && grew.elapsed() > NEXT_RUN {
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

    /// Reads to the end of what is there; the number of lines.
    fn read(&mut self, stop: &AtomicBool, notice: Notices<'_>) -> Result<u64, LoadError> {
        let mut read = 0;
        while !stop.load(Ordering::Relaxed) {
            let number = self.reader.line_number() + 1;
            let line = self
                .reader
                .next_line()
                .map_err(|source| self.session.read_error(source))?;
            let Some(line) = line else { break };
            self.loader.store_begin()?;
            self.session.line(&mut self.loader, line, number, notice)?;
            read += 1;
            self.lines += 1;
            if self.lines >= BATCH || self.committed.elapsed() >= COMMIT {
                self.commit(notice)?;
            }
            pause(self.session.options.slowly);
        }
        self.commit(notice)?;
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
            self.loader.store_begin()?;
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

    fn finish(mut self, end: End, notice: Notices<'_>) -> Result<Summary, LoadError> {
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
        self.loader.commit(position)?;
        let summary = self.session.summary(&self.loader, end);
        if end == End::Interrupted {
            self.loader.into_store().close()?;
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
