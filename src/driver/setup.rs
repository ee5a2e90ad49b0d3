//! Everything that is opened and read before the first message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, FixedOffset, Local};
use pmc_batch::BatchJob;
use pmc_control::Place;
use pmc_dag::Dag;
use pmc_spawn::open_files;
use pmc_system::clock;

use super::dag_run::DagRun;
use super::numbers::AttemptNumbers;
use super::restarts::Restarts;
use super::serving::Serving;
use super::{MemoryExcess, RunError, durability, run_end};
use crate::control::{Control, Server};
use crate::database;
use crate::durability::lock::DagLock;
use crate::durability::shared_files;
use crate::durability::sync::Syncer;
use crate::host;
use crate::interrupt::Interrupt;
use crate::logs::Logs;
use crate::merge;
use crate::open_files::{OF_RUN, OF_WORKER};
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
    pub(super) root: DagRun,
    pub(super) master: Master,
    pub(super) syncer: Option<Syncer>,
    pub(super) serving: Option<Serving>,
    /// Descriptors that the run leaves to sub-workflows.
    pub(super) spare_files: u64,
}

impl Setup {
    /// Opens everything in the order of the original, so that the first failure leaves the same files behind.
    pub(super) fn new(options: &Options, transport: &impl MasterTransport) -> Result<Self, RunError> {
        let begin = Begin {
            at: clock::now(),
            time: Local::now().fixed_offset(),
        };
        database::check(options)?;
        if let (true, Stdio::Merged { stdout, stderr }) = (options.console, &options.stdio) {
            merge::check(stdout, stderr)?;
        }
        let lock = lock(options)?;
        run_end::forget(&options.dag);
        let dag = Arc::new(read_dag(options, u64::MAX, true)?);
        let (done, recovered) = durability::read_done(options, &dag)?;
        let mut logs = Logs::open(options, &dag, &done)?;
        let limit = open_files::raise();
        tracing::debug!("Open files limit = {limit}");
        // Workers that are threads of this process have files, too.
        let others = OF_WORKER.saturating_mul(u64::from(transport.workers()));
        let max_open = shared_files::max_open(options.max_fds, limit, others)?;
        tracing::info!("Setting max cached files = {max_open}");
        tracing::info!("Master starting with {} workers", transport.workers());
        let numbers = AttemptNumbers::new(options, &dag, transport.is_dynamic())?;
        let is_packed = numbers.as_ref().is_some_and(AttemptNumbers::is_packed);
        let restarts = Restarts::of_earlier_runs(options, &dag);
        logs.start(options, &done, is_packed)?;
        logs.flush()?;
        durability::end_recovery(recovered, &mut logs)?;
        let syncer = durability::start_syncer(options, &logs)?;
        let serving = Serving::open(options, &dag, done.len())?;
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
        master = master
            .with_more_memory(options.more_memory_percent)
            .with_user(options.user.clone())
            .with_max_plans(options.max_plans);
        if options.host_script && transport.is_dynamic() {
            master = master.with_host_scripts();
        }
        if transport.supports_prefill() {
            master = master.with_prefill();
        }
        let used = others.saturating_add(max_open as u64).saturating_add(OF_RUN);
        Ok(Self {
            begin,
            root: DagRun {
                dag,
                place: None,
                logs,
                forwarding: durability::forwarding(options, max_open),
                synced_rescue_len: 0,
                numbers,
                restarts,
                failed: BTreeMap::new(),
                memory_excess: MemoryExcess::default(),
                changed: BTreeMap::new(),
                label: String::new(),
                lock,
            },
            master,
            syncer,
            serving,
            spare_files: limit.saturating_sub(used),
        })
    }
}

/// Listens for requests, if the run has the lock of its DAG: two runs cannot share a socket.
pub(super) fn serve(
    control: &Control,
    has_lock: bool,
    (options, batch_job): (&Options, Option<&BatchJob>),
    interrupt: &Interrupt,
) -> Option<Server> {
    #[cfg(feature = "simulated")]
    if pmc_system::is_simulated() {
        crate::control::simulated::open(control, interrupt);
        return None;
    }
    if !has_lock {
        return None;
    }
    let place = Place {
        host: host::name(),
        job: batch_job.cloned(),
        stops_at: None,
        drains: false,
    };
    let started = Server::start(&options.dag, control.clone(), interrupt, place);
    let failed = |error: &std::io::Error| {
        tracing::debug!(
            "The run cannot be controlled from outside: {}",
            pmc_dag::reason(error)
        );
    };
    started.inspect_err(failed).ok()
}

/// Locks the DAG file, if the options ask for it.
pub(super) fn lock(options: &Options) -> Result<Option<DagLock>, RunError> {
    if !options.lock {
        return Ok(None);
    }
    tracing::debug!("Locking DAG file...");
    Ok(Some(DagLock::acquire(&options.dag)?))
}

/// Longest DAG file of a sub-workflow or guest, in bytes: that of some million tasks.
pub(super) const MAX_JOINING_DAG: u64 = 1 << 30;

/// Reads the DAG file of at most `max` bytes. `warns` about limits for categories that it does not have.
pub(super) fn read_dag(options: &Options, max: u64, warns: bool) -> Result<Dag, RunError> {
    let read = match options.accept_incomplete {
        true => Dag::open_incomplete(&options.dag),
        false => Dag::open_within(&options.dag, max).map(|dag| (dag, false)),
    };
    let (mut dag, is_incomplete) = read.map_err(|error| RunError::dag(&options.dag, error))?;
    if is_incomplete {
        let (file, tasks) = (options.dag.display(), dag.len());
        tracing::warn!("{file}: the end is missing. --accept-incomplete: this run is of {tasks} tasks only");
    }
    if let Some(cpus) = options.one_host {
        dag.gather_on_one_host(cpus);
    }
    for (category, limit) in &options.max_jobs {
        if !dag.limit_category(category, *limit) && warns {
            let category = String::from_utf8_lossy(category);
            tracing::warn!("--max-jobs: no task has the category {category}");
        }
    }
    Ok(dag)
}
