//! The common part of replay and follow: the lock, the destination, and the lines of the log.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use chrono::Local;
use monitord_compat::dagman_out_reader::{self, What};
use monitord_compat::log_clock::LogClock;
use monitord_compat::run_lock::{LOADER_LOCK, LoaderLock, LoaderLockError};
#[cfg(feature = "postgresql")]
use nix::unistd::{User, getuid};
use pmc_dag::Dag;

use super::{End, Notices, Options, Summary};
use crate::dashboard;
use pmc_files::Folder;

use crate::destination::{self, Destination};
use crate::error::{LoadError, Notice};
use crate::loader::{Loader, Workflow};
use crate::markers::{MarkerError, Markers, rotate, timestamp};
use crate::notifications::{About, Notifier};
use crate::rows::{Around, WorkflowState};
use crate::run::Run;
use crate::static_part;
#[cfg(feature = "postgresql")]
use crate::store::Postgresql;
use crate::store::{Position, Purpose, Sqlite, Store};

/// Maximum lines between two commits.
pub(super) const MAX_BATCH: u64 = 20_000;

/// A submit directory that this loader holds locked.
pub(super) struct Session<'o> {
    pub options: &'o Options,
    pub run: Run,
    /// Never [`Destination::AsPlanned`].
    pub destination: Destination,
    pub markers: Markers,
    dashboard: Option<PathBuf>,
    start: Instant,
    clock: LogClock,
    /// HTCondor id of the master.
    master: String,
    /// Sends the notifications of the lines after the one with the number `notified`.
    notifier: Option<Notifier>,
    notified: u64,
    /// That of the outermost workflow is held for those nested in it.
    _lock: Option<LoaderLock>,
}

impl<'o> Session<'o> {
    /// Takes the lock of the directory and finds the destination.
    pub fn new(options: &'o Options, run: Run, notice: Notices<'_>) -> Result<Self, LoadError> {
        let lock = take_lock(options, &run, notice)?;
        #[cfg_attr(
            not(feature = "postgresql"),
            expect(unused_mut, reason = "only servers need it")
        )]
        let mut destination = run.destination(&options.destination, options.conf.as_deref())?;
        #[cfg(feature = "postgresql")]
        if let Destination::Server(server) = &mut destination {
            let account = User::from_uid(getuid()).ok().flatten();
            let account = account.as_ref().map_or("", |account| &account.name);
            let warn = |reason| notice(Notice::Passwords { reason });
            server.complete(&options.client, account, warn)?;
        }
        let dashboard = match &options.dashboard {
            Some(default) => run.dashboard(default, options.conf.as_deref(), notice),
            None => None,
        };
        Ok(Self {
            dashboard,
            _lock: Some(lock),
            ..Self::begin(options, run, destination)
        })
    }

    /// Makes the session of a sub-workflow of the workflow `parent`. Its rows go where those of `outer` go,
    /// the outermost workflow.
    pub fn nested(outer: &Session<'o>, log: &Path, parent: &str) -> Result<Self, LoadError> {
        let mut run = Run::locate(log)?;
        // The files of a run say where its sub-workflows are. Those of another user must not have runs of
        // this user copied into a database that others read, nor the commands of such runs started.
        let user = |dir: &Path| Folder::open(dir).and_then(|folder| folder.user()).ok();
        if user(&run.dir).is_none_or(|nested| Some(nested) != user(&outer.run.dir)) {
            return Err(LoadError::OtherUser { dir: run.dir });
        }
        let root = &outer.run.workflow.wf_uuid;
        let uuid = &run.workflow.wf_uuid;
        if uuid == root || uuid == parent {
            return Err(LoadError::Uuid {
                uuid: uuid.clone(),
                dir: run.dir,
            });
        }
        run.workflow.around = Some(Around {
            parent: parent.to_owned(),
            root: root.clone(),
        });
        let destination = match outer.database() {
            Some(path) => Destination::File(path.to_owned()),
            None => outer.destination.clone(),
        };
        Ok(Self::begin(outer.options, run, destination))
    }

    /// A session without a dashboard and without a lock.
    fn begin(options: &'o Options, run: Run, destination: Destination) -> Self {
        Self {
            options,
            destination,
            dashboard: None,
            markers: Markers::new(&run.dir, options.output_dir.as_deref(), &run.workflow.wf_uuid),
            run,
            start: Instant::now(),
            clock: LogClock::new(options.adjust),
            master: "0.0".to_owned(),
            notifier: None,
            notified: 0,
            _lock: None,
        }
    }

    /// Returns whether it is that of a nested sub-workflow.
    pub fn is_nested(&self) -> bool {
        self.run.workflow.around.is_some()
    }

    /// Returns whether nested sub-workflows are left out.
    pub fn is_flat(&self) -> bool {
        self.options.flat
    }

    /// Sends the notifications of the run from now on, if the options ask for it.
    pub fn send_notifications(&mut self, notice: Notices<'_>) {
        let (Some(limits), Some(file)) = (self.options.notifications, &self.run.notify) else {
            return;
        };
        let workflow = &self.run.workflow;
        let part = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
        let about = About {
            dir: &self.run.dir,
            submit_dir: workflow.submit_dir.as_deref(),
            uuid: &workflow.wf_uuid,
            label: format!("{}-{}", part(&workflow.dax_label), part(&self.run.index)),
            log: &self.run.log,
            is_nested: self.is_nested(),
        };
        self.notifier = Notifier::open(
            &self.run.dir.join(file),
            limits,
            &self.run.properties(self.options.conf.as_deref()),
            &about,
            |name| self.markers.path(name),
            notice,
        );
    }

    /// Returns whether notifications are sent.
    pub fn notifies(&self) -> bool {
        self.notifier.is_some()
    }

    /// Starts commands of notifications, and notes which have ended.
    pub fn poll_notifications(&mut self, notice: Notices<'_>) {
        if let Some(notifier) = &mut self.notifier {
            notifier.poll(notice);
        }
    }

    /// Waits for the last commands of notifications, unless `stop` is set.
    pub fn finish_notifications(&mut self, stop: &AtomicBool, notice: Notices<'_>) {
        if let Some(notifier) = &mut self.notifier {
            notifier.finish(stop, notice);
        }
    }

    /// The log is read again from its beginning, and its lines are new.
    pub fn expect_new_lines(&mut self) {
        self.notified = 0;
    }

    /// Notes what a line means for notifications, once.
    fn notify(&mut self, loader: &mut Loader, time: i64, what: &What<'_>, number: u64) {
        let end = loader.take_end();
        let Some(notifier) = self.notifier.as_mut().filter(|_| number > self.notified) else {
            return;
        };
        self.notified = number;
        let text = String::from_utf8_lossy;
        match *what {
            What::Start => notifier.workflow(time, None),
            What::Finish { status } => notifier.workflow(time, Some(status)),
            What::Event {
                state: b"EXECUTE",
                job,
                ..
            } => notifier.job_started(time, &text(job)),
            What::Ended { job, .. } => {
                if let Some(end) = end {
                    notifier.job_ended(time, &text(job), &end);
                }
            }
            _ => {}
        }
    }

    pub fn state_log_path(&self) -> PathBuf {
        match &self.options.state_log {
            Some(path) => self.run.dir.join(path),
            None => self.markers.path("jobstate.log"),
        }
    }

    /// Returns the file of the database, if it is in a file.
    pub fn database(&self) -> Option<&Path> {
        match &self.destination {
            Destination::BesideLog | Destination::AsPlanned => Some(&self.run.database),
            Destination::File(path) => Some(path),
            #[cfg(feature = "postgresql")]
            Destination::Server(_) => None,
            Destination::Nowhere => None,
        }
    }

    /// Opens the database to continue it, or creates it with the plan. `dag` is the DAG, if it is in memory.
    pub fn open(
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
                    let opened = Sqlite::open(path, uuid)?;
                    if let Some((store, position)) = opened {
                        let store = if self.is_nested() { store.joined() } else { store };
                        return Ok((Box::new(store), Some(position)));
                    }
                    if self.is_nested() {
                        Box::new(Sqlite::join(path, Purpose::Live)?)
                    } else {
                        retire(path)?;
                        // A replay that was killed left it.
                        let _ = fs::remove_file(path.with_extension("db.part"));
                        Box::new(Sqlite::create(path, Purpose::Live, now)?)
                    }
                }
                None => Box::new(Sqlite::create(Path::new(":memory:"), Purpose::Live, now)?),
            },
        };
        self.load_plan(&mut *store, dag, notice)?;
        Ok((store, None))
    }

    /// Creates a database for a whole run with the plan. A database in a file is created as `part`.
    pub fn create(&self, part: Option<&Path>, notice: Notices<'_>) -> Result<Box<dyn Store>, LoadError> {
        let now = Local::now().timestamp();
        let mut store: Box<dyn Store> = match &self.destination {
            #[cfg(feature = "postgresql")]
            Destination::Server(server) => {
                let uuid = &self.run.workflow.wf_uuid;
                Box::new(Postgresql::open(server, uuid, Purpose::Bulk, &self.name(), now)?.0)
            }
            _ => match part {
                Some(path) if self.is_nested() => Box::new(Sqlite::join(path, Purpose::Bulk)?),
                part => {
                    let path = part.unwrap_or(Path::new(":memory:"));
                    Box::new(Sqlite::create(path, Purpose::Bulk, now)?)
                }
            },
        };
        self.load_plan(&mut *store, None, notice)?;
        Ok(store)
    }

    /// Returns the name of this loader on a server.
    #[cfg(feature = "postgresql")]
    fn name(&self) -> String {
        let host = gethostname::gethostname();
        format!(
            "pmc-monitord process {} on {}",
            std::process::id(),
            host.display()
        )
    }

    pub fn workflow(&self) -> Workflow {
        Workflow {
            dir: self.run.dir.clone(),
            submit_dir: self.run.workflow.submit_dir.clone(),
            user: self.run.workflow.user.clone(),
            keep_output: !self.options.skip_output,
        }
    }

    /// Inserts the plan. `dag` is the DAG of a workflow that was not planned, if it is in memory.
    fn load_plan(
        &self,
        store: &mut dyn Store,
        dag: Option<&Dag>,
        notice: Notices<'_>,
    ) -> Result<(), LoadError> {
        store.insert_workflow(&self.run.workflow)?;
        match dag {
            _ if self.run.planned => static_part::load(&self.run.static_events, store, notice)?,
            Some(dag) => static_part::load_dag(dag, store)?,
            None => static_part::load_dag(&static_part::open_dag(&self.run.dag)?, store)?,
        }
        Ok(store.finish_plan()?)
    }

    /// Loads one line of the log.
    pub fn load_line(
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
            What::ScriptStarted { job } => loader.script_started(time, &text(job), notice)?,
            What::ScriptEnded { job, status } => loader.script_ended(time, &text(job), status, notice)?,
            What::Pid(_) | What::Reason { .. } | What::Other => {}
        }
        self.notify(loader, time, &line.what, number);
        if !self.options.pause.is_zero() {
            std::thread::sleep(self.options.pause);
        }
        Ok(())
    }

    /// Updates the list of all workflows. With `replace`, the old entry of the workflow is removed first.
    pub fn update_dashboard(&self, states: &[WorkflowState], replace: bool, notice: Notices<'_>) {
        let Some(path) = &self.dashboard else {
            return;
        };
        let database_url = match &self.destination {
            #[cfg(feature = "postgresql")]
            Destination::Server(server) => server.url.clone(),
            _ => match self.database() {
                Some(path) => destination::url_of(path),
                None => return,
            },
        };
        let entry = dashboard::Entry {
            workflow: &self.run.workflow,
            database_url: &database_url,
            states,
        };
        let now = Local::now().timestamp();
        if let Err(error) = dashboard::update(path, &entry, replace, now) {
            notice(Notice::Dashboard {
                reason: error.to_string(),
            });
        }
    }

    /// Writes the files that say that a loader is at work.
    pub fn mark_started(&self, notice: Notices<'_>) {
        report(self.markers.started(Local::now()), notice);
    }

    /// Writes the file that says that the database is complete. Readers trust it.
    pub fn mark_done(&self, notice: Notices<'_>) {
        let seconds = self.start.elapsed().as_secs_f64();
        report(self.markers.done(Local::now(), seconds), notice);
    }

    /// Writes `monitord.info`. `lines` is the number of lines of the log.
    pub fn write_info(&self, loader: &Loader, lines: u64, notice: Notices<'_>) {
        report(self.markers.info(loader, lines), notice);
    }

    pub fn read_error(&self, source: std::io::Error) -> LoadError {
        LoadError::Read {
            path: self.run.log.clone(),
            source,
        }
    }

    pub fn summary(&self, loader: &Loader, end: End) -> Summary {
        Summary {
            end,
            jobs: loader.jobs_ended(),
            elapsed: self.start.elapsed(),
        }
    }
}

fn take_lock(options: &Options, run: &Run, notice: Notices<'_>) -> Result<LoaderLock, LoadError> {
    let path = match &options.lock {
        Some(path) => path.clone(),
        None => run.dir.join(LOADER_LOCK),
    };
    match LoaderLock::acquire(&path, &timestamp(Local::now())) {
        Ok((lock, locked)) => {
            if let Err(error) = locked {
                let source = error.into();
                notice(Notice::NoLock { path, source });
            }
            Ok(lock)
        }
        Err(LoaderLockError::Held { holder }) => Err(LoadError::Held {
            dir: run.dir.clone(),
            holder,
        }),
        Err(LoaderLockError::Io(source)) => Err(LoadError::Write { path, source }),
    }
}

fn report(written: Result<(), MarkerError>, notice: Notices<'_>) {
    if let Err(MarkerError { path, source }) = written {
        notice(Notice::Marker { path, source });
    }
}

/// Reports texts that did not fit into their columns.
pub(super) fn report_truncated(loader: &Loader, notice: Notices<'_>) {
    match loader.store().take_truncated() {
        0 => {}
        count => notice(Notice::Truncated { count }),
    }
}

pub(super) fn write_error(path: &Path) -> impl FnOnce(std::io::Error) -> LoadError + '_ {
    |source| LoadError::Write {
        path: path.to_owned(),
        source,
    }
}

/// Renames a database that this loader cannot continue. One without tables is removed: its loader was killed
/// before the first commit.
fn retire(database: &Path) -> Result<(), LoadError> {
    let removed = if Sqlite::is_empty(database) {
        fs::remove_file(database)
    } else {
        rotate(database)
    };
    removed.map_err(write_error(database))
}
