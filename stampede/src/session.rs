//! Loads a submit directory: all of a finished run at once, or a running one as it goes on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::Local;
use monitord_compat::dagman_out_reader::{self, What};
use monitord_compat::log_clock::LogClock;
use monitord_compat::run_lock::{LOADER_LOCK, LoaderLock, LoaderLockError};
use nix::unistd::{User, getuid};
use pmc_dag::Dag;

use crate::client::ClientSettings;
use crate::dashboard;
use crate::destination;
use crate::error::{LoadError, Notice};
use crate::loader::{Loader, Workflow};
use crate::log_reader::LogReader;
use crate::markers::{Markers, rotate, stamp};
use crate::rows::WorkflowState;
use crate::run::Run;
use crate::state_log::StateLog;
use crate::static_part;
use crate::store::{Position, Purpose, Sqlite, Store};
use crate::text;

#[cfg(feature = "postgresql")]
use crate::store::Postgresql;

mod follow;
mod live;

pub use crate::destination::Destination;
pub use follow::{follow, follow_own};
pub use live::Live;

/// Lines between two commits.
const BATCH: u64 = 20_000;

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
    /// File of settings that counts instead of that of the run.
    pub conf: Option<PathBuf>,
    /// What the URL of a PostgreSQL server leaves open.
    pub client: ClientSettings,
    /// The list of all workflows of the user, if the settings of the run name no other.
    pub dashboard: Option<PathBuf>,
    /// Whether to leave out what jobs printed.
    pub skip_output: bool,
    /// Pause after each line, to follow a finished log slowly.
    pub slowly: Duration,
    /// The file to lock, if not `monitord.pid` of the submit directory: for who writes nothing into it.
    pub lock: Option<PathBuf>,
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
    /// Where the rows go; never [`Destination::AsPlanned`].
    destination: Destination,
    dashboard: Option<PathBuf>,
    markers: Markers,
    began: Instant,
    clock: LogClock,
    master: String,
    _lock: LoaderLock,
}

impl<'o> Session<'o> {
    fn new(options: &'o Options, run: Run, notice: Notices<'_>) -> Result<Self, LoadError> {
        if let Some(notify) = &run.notify
            && has_notifications(&run.dir.join(notify))
        {
            let what = format!("notifications ({notify}) are not sent; use pegasus-monitord for them");
            notice(Notice::Unsupported { what });
        }
        let path = match &options.lock {
            Some(path) => path.clone(),
            None => run.dir.join(LOADER_LOCK),
        };
        let lock = match LoaderLock::acquire(&path, &stamp(Local::now())) {
            Ok((lock, locked)) => {
                if let Err(error) = locked {
                    notice(Notice::NoLock {
                        path,
                        source: error.into(),
                    });
                }
                lock
            }
            Err(LoaderLockError::Held { holder }) => return Err(LoadError::Held { dir: run.dir, holder }),
            Err(LoaderLockError::Io(source)) => return Err(LoadError::Write { path, source }),
        };
        let mut destination = run.destination(&options.destination, options.conf.as_deref())?;
        if let Destination::Server(server) = &mut destination {
            let me = User::from_uid(getuid()).ok().flatten();
            let me = me.as_ref().map_or("", |me| &me.name);
            let warn = |reason| notice(Notice::Passwords { reason });
            options
                .client
                .complete(server, me, warn)
                .map_err(LoadError::Client)?;
        }
        let dashboard = match &options.dashboard {
            Some(usual) => run.dashboard(usual, options.conf.as_deref(), notice),
            None => None,
        };
        Ok(Self {
            options,
            destination,
            dashboard,
            markers: Markers::new(&run.dir, options.output_dir.as_deref(), &run.workflow.wf_uuid),
            run,
            began: Instant::now(),
            clock: LogClock::new(options.adjust),
            master: "0.0".to_owned(),
            _lock: lock,
        })
    }

    fn state_log_path(&self) -> PathBuf {
        match &self.options.state_log {
            Some(path) => self.run.dir.join(path),
            None => self.markers.path("jobstate.log"),
        }
    }

    /// The file of the database, if it is one.
    fn database(&self) -> Option<&Path> {
        match &self.destination {
            Destination::BesideLog | Destination::AsPlanned => Some(&self.run.database),
            Destination::File(path) => Some(path),
            Destination::Server(_) | Destination::Nowhere => None,
        }
    }

    /// Opens the database to go on with it, or begins it with what was planned.
    fn open(
        &self,
        dag: Option<&Dag>,
        notice: Notices<'_>,
    ) -> Result<(Box<dyn Store>, Option<Position>), LoadError> {
        let uuid = &self.run.workflow.wf_uuid;
        let now = Local::now().timestamp();
        let mut store: Box<dyn Store> = match &self.destination {
            #[cfg(feature = "postgresql")]
            Destination::Server(server) => {
                let (store, position) = Postgresql::open(server, uuid, Purpose::Live, &self.name(), now)?;
                if position.is_some() {
                    return Ok((Box::new(store), position));
                }
                Box::new(store)
            }
            _ => match self.database() {
                Some(path) => {
                    if let Some((store, position)) = Sqlite::open(path, uuid)? {
                        return Ok((Box::new(store), Some(position)));
                    }
                    retire(path)?;
                    Box::new(Sqlite::create(path, Purpose::Live, now)?)
                }
                None => Box::new(Sqlite::create(Path::new(":memory:"), Purpose::Live, now)?),
            },
        };
        self.planned(&mut *store, dag, notice)?;
        Ok((store, None))
    }

    /// Makes a database for all of a run at once; one in a file is made as `part`.
    fn create(&self, part: Option<&Path>, notice: Notices<'_>) -> Result<Box<dyn Store>, LoadError> {
        let now = Local::now().timestamp();
        let mut store: Box<dyn Store> = match &self.destination {
            #[cfg(feature = "postgresql")]
            Destination::Server(server) => {
                let uuid = &self.run.workflow.wf_uuid;
                Box::new(Postgresql::open(server, uuid, Purpose::Bulk, &self.name(), now)?.0)
            }
            _ => {
                let path = part.unwrap_or(Path::new(":memory:"));
                Box::new(Sqlite::create(path, Purpose::Bulk, now)?)
            }
        };
        self.planned(&mut *store, None, notice)?;
        Ok(store)
    }

    /// The name by which others know this loader.
    #[cfg(feature = "postgresql")]
    fn name(&self) -> String {
        let host = gethostname::gethostname();
        format!(
            "pmc-monitord process {} on {}",
            std::process::id(),
            host.display()
        )
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

    /// Writes what was planned; `dag` is the DAG of a workflow that was not, if it is in memory.
    fn planned(
        &self,
        store: &mut dyn Store,
        dag: Option<&Dag>,
        notice: Notices<'_>,
    ) -> Result<(), LoadError> {
        store.workflow(&self.run.workflow)?;
        match dag {
            _ if self.run.planned => static_part::load(&self.run.static_events, store, notice)?,
            Some(dag) => static_part::load_dag(dag, store)?,
            None => static_part::load_dag(&static_part::open_dag(&self.run.dag)?, store)?,
        }
        Ok(store.plan_complete()?)
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
        let text = text::lossy;
        let time = self.clock.epoch(line.time);
        match line.what {
            What::StartingUp { id } => self.master = text(id).into_owned(),
            What::Start => loader.start(time, &self.master, notice)?,
            What::Finish { status } => loader.finish(time, status, notice)?,
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
        let Some(path) = &self.dashboard else {
            return;
        };
        let database = match &self.destination {
            Destination::Server(server) => server.url.clone(),
            _ => match self.database() {
                Some(path) => destination::url_of(path),
                None => return,
            },
        };
        let now = Local::now().timestamp();
        let workflow = &self.run.workflow;
        if let Err(reason) = dashboard::update(path, workflow, &database, states, anew, now) {
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
    let run = Run::find(&options.log)?;
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
    let database = session.database().map(Path::to_owned);
    let part = database
        .as_ref()
        .map(|database| database.with_extension("db.part"));
    let remove = || {
        if let Some(part) = &part {
            let _ = fs::remove_file(part);
        }
    };
    remove();
    let loaded = replay_into(&mut session, &mut reader, part.as_deref(), &state_log, notice);
    let (loader, end) = loaded.inspect_err(|_| remove())?;
    Session::marked(session.markers.info(&loader, reader.line_number()), notice);
    let summary = session.summary(&loader, end);
    let states = loader.states().to_vec();
    loader.into_store().close()?;
    if let (Some(database), Some(part)) = (&database, &part) {
        let publish = || {
            File::open(part)?.sync_all()?;
            rotate(database)?;
            fs::rename(part, database)
        };
        publish().map_err(write_error(database))?;
    }
    session.list(&states, true, notice);
    session.done(notice);
    Ok(summary)
}

fn replay_into(
    session: &mut Session<'_>,
    reader: &mut LogReader,
    part: Option<&Path>,
    state_log: &Path,
    notice: Notices<'_>,
) -> Result<(Loader, End), LoadError> {
    let store = session.create(part, notice)?;
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
    loader.settle(notice)?;
    loader
        .log()
        .internal(Local::now().timestamp(), "MONITORD_FINISHED", "0");
    let position = reader.position().map_err(|source| session.read_error(source))?;
    loader.commit(position)?;
    cut(&loader, notice);
    Ok((loader, end))
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

/// Tells of texts that did not fit.
fn cut(loader: &Loader, notice: Notices<'_>) {
    match loader.store().texts_cut() {
        0 => {}
        count => notice(Notice::Cut { count }),
    }
}

/// Whether a file of notifications has any. The planner always writes one.
fn has_notifications(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .any(|line| !line.trim().is_empty() && !line.starts_with('#'))
}

fn pause(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}
