//! Everything that is opened and read before the first message.

use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, FixedOffset, Local};
use nix::sys::resource::{Resource, getrlimit};
use pmc_dag::Dag;

use super::error::Kind;
use super::numbers::AttemptNumbers;
use super::{RunError, durability};
use crate::database::{self, OutcomeReporter};
use crate::durability::forwarding::Forwarding;
use crate::durability::lock::DagLock;
use crate::durability::shared_files;
use crate::durability::sync::Syncer;
use crate::logs::Logs;
use crate::merge;
use crate::options::{Options, Stdio};
use crate::scheduler::{Master, MasterConfig, Workers};
use crate::transport::MasterTransport;

/// When the run began.
#[derive(Clone, Copy)]
pub(super) struct Begin {
    pub(super) at: Instant,
    pub(super) time: DateTime<FixedOffset>,
}

pub(super) struct Setup {
    pub(super) begin: Begin,
    /// Held until the run ends.
    pub(super) lock: Option<DagLock>,
    pub(super) dag: Arc<Dag>,
    pub(super) master: Master,
    pub(super) logs: Logs,
    /// Set if the output of attempts goes into packs.
    pub(super) numbers: Option<AttemptNumbers>,
    pub(super) forwarding: Forwarding,
    pub(super) syncer: Option<Syncer>,
    pub(super) reporter: Option<OutcomeReporter>,
}

impl Setup {
    /// Opens everything in the order of the original, so that the first failure leaves the same files behind.
    pub(super) fn new(options: &Options, transport: &impl MasterTransport) -> Result<Self, RunError> {
        let begin = Begin {
            at: Instant::now(),
            time: Local::now().fixed_offset(),
        };
        database::check(options)?;
        if let (true, Stdio::Merged { stdout, stderr }) = (options.console, &options.stdio) {
            merge::check(stdout, stderr)?;
        }
        let lock = if options.lock {
            tracing::debug!("Locking DAG file...");
            Some(DagLock::acquire(&options.dag)?)
        } else {
            None
        };
        let mut dag = Dag::open(&options.dag).map_err(|error| RunError::dag(&options.dag, error))?;
        for (category, limit) in &options.max_jobs {
            if !dag.limit_category(category, *limit) {
                let category = String::from_utf8_lossy(category);
                tracing::warn!("--max-jobs: no task has the category {category}");
            }
        }
        if let Some(task) = dag.subdag_ids().next() {
            let task = String::from_utf8_lossy(dag.name(task)).into_owned();
            return Err(Kind::Subdag(task).into());
        }
        let dag = Arc::new(dag);
        let (done, recovered) = durability::read_done(options, &dag)?;
        let mut logs = Logs::open(options, &dag, &done)?;
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)
            .map_err(|error| RunError::system("Unable to get the limit of open files", error))?;
        tracing::debug!("Open files limit = {limit}");
        let max_open = shared_files::max_open(options.max_fds, limit)?;
        tracing::info!("Setting max cached files = {max_open}");
        tracing::info!("Master starting with {} workers", transport.workers());
        let numbers = AttemptNumbers::new(options, &dag)?;
        logs.start(options, &done, numbers.is_some())?;
        logs.flush()?;
        durability::end_recovery(recovered, &mut logs)?;
        let syncer = durability::start_syncer(options, &logs)?;
        let config = MasterConfig {
            max_attempts: options.tries,
            max_failures: options.max_failures,
            crash_limit: options.crash_limit,
        };
        let workers = if transport.is_dynamic() {
            Workers::Dynamic
        } else {
            Workers::Fixed(transport.workers())
        };
        let mut master = Master::new(Arc::clone(&dag), done, workers, config);
        master = master.with_more_memory(options.more_memory_percent);
        if transport.supports_prefill() {
            master = master.with_prefill();
        }
        Ok(Self {
            begin,
            lock,
            dag,
            master,
            logs,
            numbers,
            forwarding: durability::forwarding(options, max_open),
            syncer,
            reporter: None,
        })
    }
}
