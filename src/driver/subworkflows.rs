//! Sub-workflows: tasks that are DAGs, which join the run.
//!
//! When the command that makes the DAG of a sub-workflow has succeeded, the driver has the files of that
//! DAG opened and read (`loader`), as for a run of its own: lock, rescue file, logs. Then its tasks join
//! the scheduler. When nothing of it is left, the files are closed, and the task that it is ends. Whatever
//! is wrong with the DAG fails this attempt of the task, never the run. Another attempt goes on where the
//! rescue file ends.

mod earlier;
mod ending;
mod loader;
mod monitoring;
mod refusal;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmc_dag::{Dag, TaskId};
use pmc_files::OFlags;
use pmc_system::clock;
use pmc_system::planted::{Planted, is_planted};
use signal_hook::consts::SIGKILL;

use self::earlier::EarlierRescue;
use self::loader::{Loaded, Loader};
pub(super) use self::loader::{Order, Origin};
use self::monitoring::MonitoringFiles;
pub(super) use self::refusal::Refusal;
use super::dag_run::DagRun;
use super::guests::Guest;
use super::{Run, RunError};
use crate::control::Control;
use crate::options::{Options, Stdio, folder, is_device, with_suffix};
use crate::protocol::{EXECUTOR_FAILURE, EarlierAttempt, Outcome, Rank, SubmitId, TaskResult};
use crate::scheduler::{Event, Joining, Record, Role};
use crate::transport::MasterTransport;
use crate::worker;

/// Maximum number of sub-workflows around a task.
pub(super) const MAX_DEPTH: u32 = 32;

/// Depth of guests: those of sub-workflows come after it.
pub(super) const GUEST_DEPTH: u32 = 1;

/// Files of a sub-workflow that are open while it runs, at most: lock, rescue file twice, journal, logs, and
/// targets of forwarded data.
const OPEN_FILES: u64 = 16;

/// A DAG that has joined.
pub(super) struct Joined {
    pub(super) run: DagRun,
    /// Path of the rescue file, and the file, for the thread that syncs it.
    pub(super) rescue: (PathBuf, Arc<File>),
    /// It has lines that are not written.
    pub(super) is_dirty: bool,
    /// The task that it is, and its attempt. `None` for a guest.
    parent: Option<(TaskId, SubmitId)>,
    /// What it has as a guest.
    pub(super) guest: Option<Guest>,
    /// Number of sub-workflows around its tasks.
    pub(super) depth: u32,
    since: Instant,
}

/// What the loop knows of sub-workflows that do not run yet, or any more.
pub(super) struct Subworkflows {
    /// DAGs may join: the run's own DAG has sub-workflows, or a guest has come.
    pub(super) may_join: bool,
    /// Requests of other processes, for the sockets of guests.
    pub(super) control: Control,
    loader: Option<Loader>,
    /// Those that wait for files, or for attempts of an earlier master to end.
    waiting: VecDeque<Order>,
    /// Number of those that are read or run, by depth.
    open: BTreeMap<u32, u64>,
    /// Their DAG files, without links, each with the name of its task.
    files: BTreeMap<PathBuf, String>,
    /// Number of guests that are read.
    guests_opening: usize,
    /// DAG files that were opened before in this run.
    seen: BTreeMap<PathBuf, ()>,
    /// How many there may be at a time.
    max_open: u64,
    /// Attempts of an earlier master that were killed, and members of gangs that leave.
    killed: BTreeMap<(Rank, SubmitId), Killed>,
    /// Rescue files of their DAGs, while results may come; `None` if nothing can be noted there.
    earlier: BTreeMap<Vec<u8>, Option<EarlierRescue>>,
}

/// An attempt of an earlier master that was killed, unless it has ended already, on one of its hosts.
struct Killed {
    /// The DAG file.
    dag: Vec<u8>,
    task: Vec<u8>,
}

impl Joined {
    /// Its DAG file.
    fn dag(&self) -> &Path {
        let place = self.run.place.as_ref();
        place.map_or(Path::new(""), |place| Path::new(OsStr::from_bytes(&place.dag)))
    }
}

impl Subworkflows {
    /// `spare_files`: open files that the system allows beside those of the run.
    pub(super) fn new(dag: &Dag, control: Control, spare_files: u64) -> Self {
        Self {
            may_join: dag.subdag_ids().len() > 0,
            control,
            loader: None,
            waiting: VecDeque::new(),
            open: BTreeMap::new(),
            files: BTreeMap::new(),
            guests_opening: 0,
            seen: BTreeMap::new(),
            max_open: spare_files / OPEN_FILES,
            killed: BTreeMap::new(),
            earlier: BTreeMap::new(),
        }
    }

    /// True if another one of this depth may be opened. Each depth has its share, half of what those above
    /// have left, and at least one: so a sub-workflow never waits for one that waits for it.
    pub(super) fn has_room(&self, depth: u32) -> bool {
        let share = self.max_open.checked_shr(depth).unwrap_or(0).max(1);
        self.open.get(&depth).is_none_or(|open| *open < share)
    }

    /// Adds one that is to be opened.
    pub(super) fn push(&mut self, order: Order) {
        self.guests_opening += usize::from(order.is_guest());
        self.waiting.push_back(order);
    }

    /// True if guests are about to join.
    pub(super) fn awaits_guests(&self) -> bool {
        self.guests_opening > 0
    }

    /// Takes the next one that may be opened.
    fn next(&mut self) -> Option<Order> {
        let is_free = |order: &Order| {
            let dag = order.options.dag.as_os_str().as_bytes();
            let mut killed = self.killed.values();
            let awaits_earlier = killed.any(|killed| killed.dag == dag) && !is_planted(Planted::EarlyJoin);
            self.has_room(order.depth) && !awaits_earlier
        };
        let at = self.waiting.iter().position(is_free)?;
        self.waiting.remove(at)
    }

    fn forget(&mut self, dag: &Path, depth: u32) {
        self.files.remove(dag);
        if let Some(open) = self.open.get_mut(&depth) {
            *open = open.saturating_sub(1);
        }
    }

    /// A member of a gang leaves, whose sub-workflow has not begun. Its task is not started before.
    pub(super) fn await_member(&mut self, from: Rank, submit: SubmitId, dag: &[u8]) {
        let (dag, task) = (dag.to_vec(), Vec::new());
        self.killed.insert((from, submit), Killed { dag, task });
    }

    /// Notes that an attempt of an earlier master has ended, or its worker, or that a member has left.
    pub(super) fn note_end(&mut self, from: Rank, submit: Option<SubmitId>) {
        self.killed
            .retain(|(rank, attempt), _| *rank != from || submit.is_some_and(|submit| submit != *attempt));
        let killed = &self.killed;
        self.earlier
            .retain(|dag, _| killed.values().any(|killed| killed.dag == *dag));
    }
}

/// Where a sub-workflow is, by the line of its task and the DAG file with this line.
pub(super) fn place_of(around: &Path, subdag: pmc_dag::Subdag<'_>) -> (PathBuf, PathBuf) {
    let beside = |path: &[u8]| {
        let path = Path::new(OsStr::from_bytes(path));
        match around.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.join(path),
            _ => path.to_owned(),
        }
    };
    let dag = beside(subdag.dag);
    let directory = subdag.directory.map_or_else(|| folder(&dag).to_owned(), beside);
    (dag, directory)
}

/// Options for a sub-workflow: those of the run, with its own files.
pub(super) fn options_for(options: &Options, dag: &Path, skips_rescue: bool) -> Options {
    let rescue = if is_device(&options.rescue) {
        options.rescue.clone()
    } else {
        with_suffix(dag, ".rescue")
    };
    let with = |wanted: &Option<PathBuf>, path: PathBuf| wanted.is_some().then_some(path);
    Options {
        dag: dag.to_owned(),
        rescue,
        skip_rescue: skips_rescue,
        dagman_log: with(&options.dagman_log, with_suffix(dag, ".dagman.out")),
        jobstate_log: with(&options.jobstate_log, folder(dag).join("jobstate.log")),
        resource_log: with(&options.resource_log, with_suffix(dag, ".resource")),
        stampede: None,
        stdio: match &options.stdio {
            Stdio::PerTask | Stdio::Packed => Stdio::PerTask,
            merged @ Stdio::Merged { .. } => merged.clone(),
        },
        console: false,
        ..options.clone()
    }
}

impl Subworkflows {
    /// Opens, begins and ends sub-workflows as far as it is their time. Returns whether anything has
    /// changed that the scheduler must know.
    pub(super) fn advance<T: MasterTransport>(&mut self, run: &mut Run<'_, T>) -> Result<bool, RunError> {
        let mut has_changed = false;
        loop {
            for (task, submit) in std::mem::take(&mut run.out.nested) {
                has_changed |= self.order(run, (task, submit))?;
            }
            while let Some(order) = self.next() {
                has_changed |= self.load(run, order)?;
            }
            let loaded = self.loader.as_ref().and_then(Loader::take);
            if let Some((order, loaded)) = loaded {
                self.take_loaded(run, order, loaded)?;
                has_changed = true;
                continue;
            }
            let ended = run.master.take_ended();
            if ended.is_empty() {
                return Ok(has_changed);
            }
            has_changed = true;
            for segment in ended {
                self.end_joined(run, segment)?;
            }
        }
    }

    /// Asks for the DAG of a sub-workflow. Returns whether its attempt has ended.
    fn order<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        (task, submit): (TaskId, SubmitId),
    ) -> Result<bool, RunError> {
        let (segment, local) = run.out.dags.locate(task);
        let depth = run.out.dags.depth(segment) + 1;
        let around = run.dag_file(segment);
        let Some(dag_run) = run.out.dags.get(segment) else {
            return Ok(false);
        };
        let Some(subdag) = dag_run.dag.subdag(local) else {
            return Ok(false);
        };
        let (dag, directory) = place_of(&around, subdag);
        let is_prepared = subdag.is_prepared;
        let label = format!("{}/", dag_run.name(local));
        let skips_rescue = run.options.skip_rescue && !self.seen.contains_key(&dag);
        let order = Order {
            origin: Origin::Task(task, submit),
            directory,
            depth,
            label,
            options: options_for(run.options, &dag, skips_rescue),
            may_lose: run.out.transport.is_dynamic(),
            is_prepared,
            host: PathBuf::new(),
        };
        if depth > MAX_DEPTH {
            run.refuse(&order, &Refusal::TooDeep)?;
            return Ok(true);
        }
        self.push(order);
        Ok(false)
    }

    /// Has a DAG opened and read, unless it is known to run. Returns whether the attempt has ended.
    fn load<T: MasterTransport>(&mut self, run: &mut Run<'_, T>, order: Order) -> Result<bool, RunError> {
        let dag = &order.options.dag;
        let file = real_path(dag);
        let mut around = order.task().and_then(|task| run.out.dags.locate(task).0);
        let is_around = loop {
            if real_path(&run.dag_file(around)) == file {
                break true;
            }
            let joined = around.and_then(|at| run.out.dags.joined[at].as_ref());
            let Some((parent, _)) = joined.and_then(|joined| joined.parent) else {
                break false;
            };
            around = run.out.dags.locate(parent).0;
        };
        let refusal = if is_around && order.is_guest() {
            Some(Refusal::First(dag.display().to_string()))
        } else if is_around {
            Some(Refusal::Cycle(dag.display().to_string()))
        } else {
            self.files.get(&file).map(|task| Refusal::Runs {
                dag: dag.display().to_string(),
                task: task.clone(),
            })
        };
        if let Some(refusal) = refusal {
            self.guests_opening -= usize::from(order.is_guest());
            run.refuse(&order, &refusal)?;
            return Ok(true);
        }
        let task = order.label.trim_end_matches('/').to_owned();
        self.files.insert(file, task);
        self.seen.insert(dag.clone(), ());
        *self.open.entry(order.depth).or_insert(0) += 1;
        let loader = match self.loader.take() {
            Some(loader) => loader,
            None => Loader::start(run.interrupt.waker())
                .map_err(|error| RunError::system("Unable to start a thread for sub-workflows", error))?,
        };
        self.loader.insert(loader).load(order);
        Ok(false)
    }

    /// Lets a DAG that was read join the run.
    fn take_loaded<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        order: Order,
        loaded: Result<Box<Loaded>, Refusal>,
    ) -> Result<(), RunError> {
        let dag = real_path(&order.options.dag);
        self.guests_opening -= usize::from(order.is_guest());
        let loaded = loaded.and_then(|loaded| match run.cannot_begin(&order, &loaded) {
            None => Ok(loaded),
            Some(refusal) => {
                // Its logs have begun.
                run.close_loaded(*loaded)?;
                Err(refusal)
            }
        });
        let loaded = match loaded {
            Ok(loaded) => *loaded,
            Err(refusal) => {
                self.forget(&dag, order.depth);
                return run.refuse(&order, &refusal);
            }
        };
        let (role, parent) = run.role_of(&order.origin);
        let Loaded {
            run: mut dag_run,
            done,
            rescue,
            plan,
        } = loaded;
        if let Some(syncer) = run.syncer.as_ref().filter(|_| !plan.is_empty()) {
            syncer.note_plan(&rescue.0, &rescue.1, plan)?;
        }
        run.log_free_hosts(&mut dag_run);
        let joining = Joining {
            dag: Arc::clone(&dag_run.dag),
            done,
            role,
        };
        if parent.is_some() {
            tracing::info!(
                "Sub-workflow {} begins: {} tasks of {}",
                dag_run.shown(),
                dag_run.dag.len(),
                order.options.dag.display()
            );
        }
        run.notices.learn(&dag_run.dag);
        let at = run.out.dags.joined.len();
        run.out.dags.bases.push(run.master.next_base());
        run.out.dags.joined.push(Some(Box::new(Joined {
            run: dag_run,
            rescue,
            is_dirty: false,
            parent,
            guest: None,
            depth: order.depth,
            since: clock::now(),
        })));
        run.out.dags.touch(Some(at));
        if let Err(source) = run.master.grow(joining) {
            run.out.dags.bases.pop();
            if let Some(Some(joined)) = run.out.dags.joined.pop() {
                run.close_run(joined.run, false)?;
            }
            self.forget(&dag, order.depth);
            let dag = order.options.dag.display().to_string();
            return run.fail_nested(&order, &Refusal::Join { dag, source });
        }
        if let Origin::Tool(submission) = &order.origin {
            self.joined(run, at, &order, submission);
        }
        Ok(())
    }

    /// Ends an attempt of an earlier master whose sub-workflow has not begun. Its task is not started before.
    pub(super) fn kill_earlier<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        from: Rank,
        attempt: EarlierAttempt,
    ) {
        let EarlierAttempt {
            submit, dag, task, ..
        } = attempt;
        tracing::debug!(
            "Attempt {} of a sub-workflow of an earlier master is ended",
            submit.0
        );
        let dag = dag.unwrap_or_default();
        if is_planted(Planted::EarlierGoesOn) {
            return;
        }
        self.killed.insert((from, submit), Killed { dag, task });
        run.signal(from, submit, SIGKILL);
    }

    /// Notes what such an attempt has done if it had ended before: its task does not run again.
    pub(super) fn keep_earlier(&mut self, options: &Options, from: Rank, result: &TaskResult) {
        let Some(Killed { dag, task }) = self.killed.get(&(from, result.submit)) else {
            return;
        };
        let file = PathBuf::from(OsStr::from_bytes(dag));
        // What has come with the result would have to be written, too.
        let is_whole = result.forwards.is_empty() && result.returned.is_none();
        if !result.outcome.succeeded() || !is_whole || self.seen.contains_key(&file) {
            return;
        }
        let open = || {
            EarlierRescue::open(&options_for(options, &file, false)).unwrap_or_else(|error| {
                tracing::debug!("Tasks of {} that have ended run again: {error}", file.display());
                None
            })
        };
        let rescue = self.earlier.entry(dag.clone()).or_insert_with(open);
        let noted = rescue.as_mut().map_or(Ok(false), |rescue| rescue.note(task));
        let name = String::from_utf8_lossy(task);
        match noted {
            Ok(true) => tracing::info!("Task {name} of {} has ended meanwhile", file.display()),
            Ok(false) => {}
            Err(error) => tracing::warn!("Task {name} of {} runs again: {error}", file.display()),
        }
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Returns the path of a DAG of the run; of the run's own after its end.
    fn dag_file(&self, segment: Option<usize>) -> PathBuf {
        let joined = segment.and_then(|at| self.out.dags.joined[at].as_ref());
        joined.map_or_else(|| self.options.dag.clone(), |joined| joined.dag().to_owned())
    }

    /// Logs the hosts for a DAG of which nothing runs on any of them.
    fn log_free_hosts(&self, run: &mut DagRun) {
        for node in self.master.node_statuses().iter().filter(|node| node.slots > 0) {
            run.logs.record(&Record::Resources {
                host: &node.host,
                slots: node.slots,
                cpus: node.cpus,
                memory_mb: node.memory_mib,
            });
        }
    }

    /// Returns what a DAG is in the run, and the attempt that it is; logs that this begins.
    fn role_of(&mut self, origin: &Origin) -> (Role, Option<(TaskId, SubmitId)>) {
        match origin {
            Origin::Task(task, submit) => {
                self.log_nested(*task, *submit);
                (Role::Nested(*task), Some((*task, *submit)))
            }
            Origin::Tool(submission) => {
                let weight = submission.weight;
                (Role::Guest { weight }, None)
            }
        }
    }

    /// Returns why a DAG that was read cannot begin.
    fn cannot_begin(&self, order: &Order, loaded: &Loaded) -> Option<Refusal> {
        if order.is_guest() && self.is_ending() {
            return Some(Refusal::Ending);
        }
        let dag = || order.options.dag.display().to_string();
        let task = self.no_host(loaded)?;
        Some(Refusal::NoHost { task, dag: dag() })
    }

    /// Returns the first task of a DAG that fits on no host, if no other hosts may come.
    fn no_host(&self, loaded: &Loaded) -> Option<String> {
        if self.may_others_come() {
            return None;
        }
        let task = self.master.unfit_task(&loaded.run.dag, &loaded.done)?;
        Some(loaded.run.name(task).into_owned())
    }

    /// Logs that the attempt of a sub-workflow itself begins.
    fn log_nested(&mut self, task: TaskId, submit: SubmitId) {
        if let Some((_, Some(files))) = self.files_of(task)
            && let Err(error) = files.create()
        {
            tracing::debug!("No files for Pegasus' monitoring: {error}: {files:?}");
        }
        let (segment, local) = self.out.dags.locate(task);
        self.out.dags.touch(segment);
        if let Some(run) = self.out.dags.get(segment) {
            run.logs.nested(local, submit);
        }
    }

    /// Fails the attempt of a sub-workflow whose DAG cannot begin.
    fn refuse(&mut self, order: &Order, refusal: &Refusal) -> Result<(), RunError> {
        if let Origin::Task(task, submit) = order.origin {
            self.log_nested(task, submit);
        }
        self.fail_nested(order, refusal)
    }

    fn fail_nested(&mut self, order: &Order, refusal: &Refusal) -> Result<(), RunError> {
        let task = match &order.origin {
            Origin::Task(task, _) => *task,
            Origin::Tool(submission) => {
                submission.refuse(refusal);
                return Ok(());
            }
        };
        let name = order.label.trim_end_matches('/');
        let text = format!("Sub-workflow {name} cannot run: {}", refusal.describe());
        tracing::error!("{text}");
        self.tell_task(task, &text);
        self.end_nested(task, EXECUTOR_FAILURE, Duration::ZERO)
    }

    /// Adds a line to the standard error of the latest attempt of a task, if that has a file.
    fn tell_task(&mut self, task: TaskId, text: &str) {
        if let Some((path, files)) = self.files_of(task) {
            // If this fails, the log still has the message.
            let file = pmc_files::open_output(&path, OFlags::WRONLY | OFlags::APPEND, 0);
            let _ = file.and_then(|mut file| writeln!(file, "{text}"));
            let _ = files.map_or(Ok(()), |files| files.tell(text));
        }
    }

    /// Returns the standard error of the latest attempt of a task, if that has a file, and the files of this
    /// attempt for Pegasus' monitoring.
    fn files_of(&mut self, task: TaskId) -> Option<(PathBuf, Option<MonitoringFiles>)> {
        if matches!(self.options.stdio, Stdio::Merged { .. }) {
            return None;
        }
        let (segment, local) = self.out.dags.locate(task);
        let around = self.dag_file(segment);
        let run = self.out.dags.get(segment)?;
        let (out, err) = worker::latest_task_files(&around, run.dag.name(local))?;
        let description = run.dag.subdag(local).and_then(|subdag| subdag.description);
        let files = description.and_then(|file| MonitoringFiles::new(&around, file, &out));
        Some((err, files))
    }

    fn end_nested(&mut self, task: TaskId, status: i32, runtime: Duration) -> Result<(), RunError> {
        self.handle(Event::SubdagEnded(task, Outcome::new(status, runtime)))
    }
}

/// Returns the path without links, or as it is if it does not exist.
pub(super) fn real_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
