//! `--stampede`: the database of the run, written while it goes on.
//!
//! A thread of the master's process reads the log that the master writes (`.dagman.out`) and the output
//! files of tasks that have printed something, and puts the rows into the database once a second. The log is the
//! queue between the two, so that master and workers never wait for the database, it takes no memory,
//! and a run that is killed loses nothing: the next loader, a later run or `pmc-monitord`, goes on in
//! the log where this one was. Whatever the database does, the run goes on.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use monitord_compat::cluster_record::TaskRecord;
use pmc_dag::words::Words;
use pmc_dag::{Dag, Task};
use pmc_stampede::client::ClientSettings;
use pmc_stampede::error::Notice;
use pmc_stampede::run::Run;
use pmc_stampede::session::{self, End, Live};
use pmc_stampede::told::{SilentTry, Told};

use crate::options::Options;
use crate::protocol::{Rank, Silent, SubmitId};

/// How long the end of a run may wait for the last rows.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same after a signal: SIGKILL may come soon.
const HURRIED: Duration = Duration::from_millis(300);
/// So many remarks on damaged records are of use.
const MOST_NOTICES: u64 = 20;

/// The thread that writes the database.
#[derive(Debug)]
pub(crate) struct Database {
    live: Arc<Live>,
    thread: JoinHandle<Option<String>>,
}

/// Why there will be no database.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {
    /// The run has not what it needs.
    #[error("--stampede: {0}")]
    Run(#[from] pmc_stampede::error::LoadError),
    /// No thread.
    #[error("--stampede: cannot start a thread: {0}")]
    Thread(io::Error),
}

/// What to load, if the database is wanted.
fn wanted(options: &Options) -> Option<session::Options> {
    let stampede = options.stampede.as_ref()?;
    let home = stampede.home.as_deref();
    Some(session::Options {
        log: options.dagman_log.clone()?,
        // The executor may write one itself, with the same name.
        state_log: Some("monitord.jobstate.log".into()).filter(|_| options.jobstate_log.is_some()),
        dashboard: home.map(|home| home.join(".pegasus/workflow.db")),
        client: ClientSettings::of_pairs(home, &stampede.variables),
        ..session::Options::default()
    })
}

/// Whether the database can be written, before anything else is.
///
/// # Errors
/// It is wanted, but the files that describe the workflow are missing or damaged.
pub(crate) fn check(options: &Options) -> Result<(), DatabaseError> {
    if let Some(wanted) = wanted(options) {
        Run::find(&wanted.log)?;
    }
    Ok(())
}

impl Database {
    /// Starts the thread, if the database is wanted. The log must be there.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(options: &Options, dag: &Arc<Dag>) -> Result<Option<Self>, DatabaseError> {
        let Some(wanted) = wanted(options) else {
            return Ok(None);
        };
        keep_memory();
        let live = Arc::new(Live::new());
        let mine = Arc::clone(&live);
        let dag = (options.dag.clone(), Arc::clone(dag));
        let work = move || {
            let problem = write(&wanted, &mine, dag);
            mine.ended();
            problem
        };
        let thread = thread::Builder::new()
            .name("database".to_owned())
            .spawn(work)
            .map_err(DatabaseError::Thread)?;
        Ok(Some(Self { live, thread }))
    }

    /// Who is to be told of ends before the log is.
    pub fn listener(&self) -> Listener {
        Listener {
            told: Arc::clone(self.live.told()),
            hosts: Vec::new(),
            program: "".into(),
        }
    }

    /// The log is complete; waits for the last rows, if need be for a minute, or only a moment if there
    /// is no time. What kept it from being whole, which has been logged, too.
    pub fn finish(self, hurried: bool) -> Option<String> {
        self.live.complete();
        if self.live.wait(if hurried { HURRIED } else { PATIENCE }) {
            // It cannot fail, and has ended.
            self.thread.join().ok().flatten()
        } else {
            tracing::warn!("The database is behind the run: pmc-monitord loads the rest from the log");
            Some("the database is not whole: pmc-monitord loads the rest from the log".to_owned())
        }
    }
}

/// Takes the ends of silent tries to the thread, which then need not read their files.
#[derive(Debug)]
pub(crate) struct Listener {
    told: Arc<Told>,
    /// By rank.
    hosts: Vec<Option<Arc<str>>>,
    /// Program of the last try; the next has the same more often than not.
    program: Arc<str>,
}

impl Listener {
    /// Where the worker of this number runs.
    pub fn registered(&mut self, rank: Rank, host: &str) {
        let at = rank.0 as usize;
        let known = self.hosts.iter().flatten().find(|known| ***known == *host);
        let host = known.cloned().unwrap_or_else(|| host.into());
        if self.hosts.len() <= at {
            self.hosts.resize(at + 1, None);
        }
        self.hosts[at] = Some(host);
    }

    /// A try that printed nothing has ended.
    pub fn ended(
        &mut self,
        rank: Rank,
        submit: SubmitId,
        task: Task<'_>,
        status: i32,
        runtime: Duration,
        silent: Silent,
    ) {
        let mut tried = || {
            let program = Words::new(task.command).next()?;
            if *self.program.as_bytes() != *program {
                self.program = std::str::from_utf8(&program).ok()?.into();
            }
            Some(SilentTry {
                job: SilentTry::job(task.name),
                file: silent.file,
                start_ms: silent.start_ms.try_into().ok()?,
                duration_ms: TaskRecord::duration_ms(runtime).try_into().ok()?,
                status,
                program: Arc::clone(&self.program),
                host: Arc::clone(self.hosts.get(rank.0 as usize)?.as_ref()?),
            })
        };
        if let Some(tried) = tried() {
            self.told.tell(submit.0, tried);
        }
    }
}

/// Memory to get from the system at a time, and to keep although it is free.
#[cfg(target_env = "gnu")]
const MEMORY: (libc::c_int, libc::c_int) = (32 << 20, 512 << 20);

/// Has the memory that the thread needs come in large pieces. Each piece changes the address space, which
/// local workers share with the processes that they start, and waits for them: before, once for eleven
/// tasks and 0.8 ms each time.
fn keep_memory() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the C library offers no other way")]
    // SAFETY: the function takes two numbers; with numbers that it does not know, it does nothing.
    unsafe {
        libc::mallopt(libc::M_TOP_PAD, MEMORY.0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MEMORY.1);
    }
}

fn write(wanted: &session::Options, live: &Live, (path, dag): (PathBuf, Arc<Dag>)) -> Option<String> {
    let mut notices = 0;
    let mut notice = |notice: Notice| {
        notices += 1;
        if notices <= MOST_NOTICES {
            tracing::warn!("Database: {notice}");
        }
    };
    let problem = match session::follow_own(wanted, live, (&path, dag), &mut notice) {
        Ok(summary) if summary.end != End::Interrupted => {
            tracing::debug!("Database: {} tries loaded", summary.jobs);
            None
        }
        Ok(_) => None,
        Err(error) => {
            tracing::error!("The database is not written any more: {error}; the run goes on");
            Some(format!(
                "the database is not whole: {error}; pmc-monitord -r loads it from the log"
            ))
        }
    };
    if notices > MOST_NOTICES {
        tracing::warn!("Database: {} more remarks", notices - MOST_NOTICES);
    }
    problem
}
