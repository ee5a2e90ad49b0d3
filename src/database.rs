//! `--stampede`: writes the database of the run while it goes on.
//!
//! A thread reads the log that the master writes (`.dagman.out`) and the output of tasks, and writes rows
//! once a second. The log is the queue between the two. So master and workers never wait for the database,
//! the queue takes no memory, and a killed run loses nothing: the next loader, a later run or `pmc-monitord`,
//! continues at the same place of the log. The run goes on whatever happens to the database.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pmc_dag::Dag;
use pmc_stampede::client::ClientSettings;
use pmc_stampede::error::Notice;
use pmc_stampede::notifications::Limits;
use pmc_stampede::run::Run;
use pmc_stampede::session::{self, End, Live};

use crate::options::Options;

/// Maximum wait for the last rows at the end of a run.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);
/// The same after a signal: SIGKILL may follow soon.
const HURRIED_FINISH_TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum number of logged notices about damaged records.
const MAX_NOTICES: u64 = 20;

/// The thread that writes the database.
#[derive(Debug)]
pub(crate) struct Database {
    live: Arc<Live>,
    thread: JoinHandle<Option<String>>,
}

/// Why there is no database.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {
    /// Files that describe the workflow are missing or damaged.
    #[error("--stampede: {0}")]
    Run(#[from] pmc_stampede::error::LoadError),
    /// The thread cannot be started.
    #[error("--stampede: cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Returns what to load, if a database is requested.
fn requested(options: &Options) -> Option<session::Options> {
    let stampede = options.stampede.as_ref()?;
    let home = stampede.home.as_deref();
    Some(session::Options {
        log: options.dagman_log.clone()?,
        // The executor may write a state log itself, with the default name.
        state_log: Some("monitord.jobstate.log".into()).filter(|_| options.jobstate_log.is_some()),
        dashboard: home.map(|home| home.join(".pegasus/workflow.db")),
        client: ClientSettings::of_pairs(home, &stampede.variables),
        notifications: Some(Limits::default()),
        ..session::Options::default()
    })
}

/// Checks that the database can be written. To be called before anything is written.
///
/// # Errors
/// A database is requested, but files that describe the workflow are missing or damaged.
pub(crate) fn check(options: &Options) -> Result<(), DatabaseError> {
    if let Some(requested) = requested(options) {
        Run::find(&requested.log)?;
    }
    Ok(())
}

impl Database {
    /// Starts the thread, if a database is requested. The log must exist.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(options: &Options, dag: &Arc<Dag>) -> Result<Option<Self>, DatabaseError> {
        let Some(requested) = requested(options) else {
            return Ok(None);
        };
        allocate_in_large_pieces();
        let live = Arc::new(Live::new());
        let thread_live = Arc::clone(&live);
        let dag = (options.dag.clone(), Arc::clone(dag));
        let load = move || {
            let problem = load(&requested, &thread_live, dag);
            thread_live.ended();
            problem
        };
        let thread = thread::Builder::new()
            .name("database".to_owned())
            .spawn(load)
            .map_err(DatabaseError::Thread)?;
        Ok(Some(Self { live, thread }))
    }

    /// Waits for the last rows after the log is complete; only briefly if `hurried`. Returns why the database
    /// is incomplete, if it is. The reason has been logged.
    pub fn finish(self, hurried: bool) -> Option<String> {
        self.live.complete();
        let timeout = if hurried {
            HURRIED_FINISH_TIMEOUT
        } else {
            FINISH_TIMEOUT
        };
        if self.live.wait(timeout) {
            self.thread.join().ok().flatten()
        } else {
            tracing::warn!("The database is behind the run: pmc-monitord loads the rest from the log");
            Some("the database is not whole: pmc-monitord loads the rest from the log".to_owned())
        }
    }
}

/// Memory to request from the system at a time, and to keep although it is free, in bytes.
#[cfg(target_env = "gnu")]
const HEAP_SIZES: (libc::c_int, libc::c_int) = (32 << 20, 512 << 20);

/// Makes the C library allocate in large pieces. Each new piece changes the address space, which must wait
/// while local workers start processes. Without this call, that happened about once per eleven tasks and took
/// 0.8 ms.
fn allocate_in_large_pieces() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the C library offers no other way")]
    // SAFETY: the function takes two numbers and ignores those that it does not know.
    unsafe {
        libc::mallopt(libc::M_TOP_PAD, HEAP_SIZES.0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_SIZES.1);
    }
}

fn load(requested: &session::Options, live: &Live, (path, dag): (PathBuf, Arc<Dag>)) -> Option<String> {
    let mut notices = 0;
    let mut notice = |notice: Notice| {
        notices += 1;
        if notices <= MAX_NOTICES {
            tracing::warn!("Database: {notice}");
        }
    };
    let problem = match session::follow_own(requested, live, (&path, dag), &mut notice) {
        Ok(summary) if summary.end != End::Interrupted => {
            tracing::debug!("Database: {} attempts loaded", summary.jobs);
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
    if notices > MAX_NOTICES {
        tracing::warn!("Database: {} more notices", notices - MAX_NOTICES);
    }
    problem
}
