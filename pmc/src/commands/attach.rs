//! `pmc attach`: the output of several tasks as it comes.
//!
//! What a task writes goes where it went without the tool: the tool reads the files. So a slow tool
//! falls behind in the files, and delays neither tasks nor other tools. The log has the starts and ends of
//! tasks. What kickstart captures in files without names comes from the run, as for `pmc log -f`.

mod arrivals;
mod asker;
mod changes;
mod follower;
pub(super) mod format;
pub(super) mod lines;
pub(super) mod push;
mod redirect;
pub(super) mod select;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use nix::sys::inotify::WatchDescriptor;
use pmc_monitor::dir::RunDir;
use pmc_monitor::history::{History, Phase, State};
use pmc_monitor::plan::TaskNumber;
use pmc_monitor::task_output::AttemptFiles;
use pmc_packed::TaskOutput;
use pmc_terminal::{escape, message};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::log::captured;
use super::log::decode::Decoder;
use super::log::find::{Reader, unreadable};
use crate::cli::{self, From};
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::reach;

use arrivals::Arrivals;
pub(super) use arrivals::has_ended;
use asker::{Answer, Asker};
use changes::Changes;
use follower::Follower;
use format::{Origin, Printer};
use push::Targets;
use select::Selection;

/// Time between two looks at the log, and at files whose changes the system does not tell.
const TICK: Duration = Duration::from_millis(100);
/// The same for the log if it could only tell the end of the run.
const SLOW_TICK: Duration = Duration::from_secs(5);
/// Time at the end for the answer about input that was not taken: more than the run has for it.
const LAST_INPUT: Duration = Duration::from_secs(16);
/// Maximum messages that wait. Who sends more waits, too.
const QUEUE_LENGTH: usize = 64;

/// What `--to` says for all tasks that take input.
const ALL: &str = "all";

/// What the threads of the tool tell.
pub enum Message {
    /// Files have grown: those with these watches. Without any, perhaps all.
    Changed(Vec<WatchDescriptor>),
    /// An answer of the run.
    Answer(Box<Answer>),
    /// Not all input was taken.
    NotPushed(Box<Failure>),
}

/// Shows the output of tasks. Returns the exit code.
pub fn attach(arguments: &cli::Attach) -> Result<u8, Failure> {
    let arguments = &with_targets(with_run(arguments.clone())?)?;
    let dir = layout::given_or_latest(arguments.run.as_deref(), false);
    let history = History::open(layout::find_run(&dir)?).or_code(exit::NOT_RUN)?;
    check(&history)?;
    if let Some(place) = reach::elsewhere(&history.dir.dag) {
        return reach::run_there(&place, arguments.stdin);
    }
    let selection = Selection::new(arguments, &history)?;
    check_named(arguments, &selection, &history)?;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM] {
        // The second one ends the program at once.
        let armed = flag::register_conditional_default(number, Arc::new(false.into()));
        let number_of = usize::try_from(number).unwrap_or_default();
        let noted = flag::register_usize(number, Arc::clone(&signal), number_of);
        armed.and(noted).or_code(exit::NOT_RUN)?;
    }
    if arguments.redirect {
        return redirect::redirect(arguments, history, selection, &signal);
    }
    let (sender, messages) = sync_channel(QUEUE_LENGTH);
    let mut has_input = Arc::default();
    if arguments.stdin {
        let targets = if arguments.to.iter().any(|to| to == ALL) {
            Targets::All
        } else {
            let names = arguments.to.iter().map(|name| select::one(name, &history));
            Targets::Named(names.collect::<Result<_, _>>()?)
        };
        let started = push::start(&history.dir.dag, targets, arguments.complete, sender.clone());
        has_input = started.or_code(exit::NOT_RUN)?;
    }
    let printer = Printer::new(arguments, &history.dir.dir);
    let mut attach = Attach::new(printer, history, selection, (sender, messages));
    attach.join(arguments.from, false);
    if attach.followers.is_empty() {
        message(match &attach.selection {
            Selection::Named(tasks) if tasks.is_empty() => "pmc: no task runs now",
            _ => "pmc: none of these tasks runs now; waiting",
        });
    }
    attach.has_input = has_input;
    let code = attach.run(&signal);
    attach.printer.end();
    code
}

/// Separates the run from the tasks, which are one way to select.
fn with_run(mut arguments: cli::Attach) -> Result<cli::Attach, Failure> {
    (arguments.tasks, arguments.run) = layout::tasks_and_run(arguments.tasks);
    let selects = [
        ("--all", arguments.all),
        ("--running", arguments.running),
        ("--transformation", arguments.transformation.is_some()),
        ("--host", arguments.host.is_some()),
    ];
    match (arguments.tasks.first(), selects.iter().find(|(_, given)| *given)) {
        (Some(task), Some((option, _))) => {
            let error =
                anyhow!("{task} is not the directory of a run, and {option} goes without names of tasks");
            Err(Failure::new(exit::USAGE, error))
        }
        _ => Ok(arguments),
    }
}

/// Adds what the command line means: tasks of `--tail` are shown, input goes to the tasks that are shown, and
/// the tasks are shown that get it.
fn with_targets(mut arguments: cli::Attach) -> Result<cli::Attach, Failure> {
    arguments.tasks.extend_from_slice(&arguments.tail);
    if !arguments.stdin {
        return Ok(arguments);
    }
    if arguments.to.is_empty() {
        arguments.to.clone_from(&arguments.tasks);
    }
    if arguments.to.is_empty() {
        let error = anyhow!("--stdin needs the name of a task, or --to");
        return Err(Failure::new(exit::USAGE, error));
    }
    let has_selection = arguments.all
        || arguments.running
        || !arguments.tasks.is_empty()
        || arguments.transformation.is_some()
        || arguments.host.is_some();
    if !has_selection && !arguments.to.iter().any(|to| to == ALL) {
        arguments.tasks.clone_from(&arguments.to);
    }
    Ok(arguments)
}

/// Refuses if all named tasks are done.
fn check_named(arguments: &cli::Attach, selection: &Selection, history: &History) -> Result<(), Failure> {
    let Selection::Named(tasks) = selection else {
        return Ok(());
    };
    let are_done = tasks.iter().all(|task| history.state(*task) == State::Done);
    if arguments.running || !are_done {
        return Ok(());
    }
    let name = &arguments.tasks[0];
    let error = match &*arguments.tasks {
        [_] if tasks.len() == 1 => anyhow!("the task {name} has ended"),
        _ => anyhow!("the {} tasks have ended", tasks.len()),
    };
    Err(Failure::new(exit::NOT_RUN, error).hint("`pmc log` prints the output of a task that has run"))
}

/// Returns why there is nothing to attach to.
pub(super) fn check(history: &History) -> Result<(), Failure> {
    let refuse = |code, error| Err(Failure::new(code, error));
    let dag = &history.dir.dag;
    let own = nix::unistd::geteuid().as_raw();
    if let Ok(data) = dag.metadata()
        && own != 0
        && data.uid() != own
    {
        let owner = data.uid();
        let error = anyhow!(
            "the run of {} belongs to another user (number {owner})",
            dag.display()
        );
        return refuse(exit::NOT_RUN, error);
    }
    let phase = match history.phase() {
        Phase::Running => {
            let has_own_files = !history.dir.beside_dag(".out.1").exists();
            return check_files(dag, !history.runs.is_empty(), has_own_files);
        }
        Phase::NotStarted => "has not started",
        Phase::Ended(_) => "has ended",
        Phase::CutOff => "was killed",
    };
    let error = anyhow!("the run of {} {phase}", dag.display());
    refuse(exit::NOT_RUN, error).map_err(|failure| match history.phase() {
        Phase::NotStarted => failure.hint("start it first, or wait until the batch system has"),
        _ => failure.hint("`pmc log` prints the output of a task that has run"),
    })
}

/// Refuses a run without the files that are read. Names all options that it lacks, since it has to be started
/// again.
fn check_files(dag: &Path, has_log: bool, has_own_files: bool) -> Result<(), Failure> {
    let options = [(has_log, "--jobstate-log"), (has_own_files, "--per-task-stdio")];
    let missing = options.iter().filter(|(is_given, _)| !is_given);
    let missing: Vec<&str> = missing.map(|(_, option)| *option).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let error = anyhow!(
        "the run of {} does not write the files that this tool reads",
        dag.display()
    );
    let code = if has_own_files {
        exit::NOT_RUN
    } else {
        exit::NOT_SUPPORTED
    };
    let hint = format!("start it with {}, as plans of pmc-plan do", missing.join(" and "));
    Err(Failure::new(code, error).hint(hint))
}

/// Shows the output of tasks.
pub(super) struct Attach {
    /// The run.
    pub(super) history: History,
    output: TaskOutput,
    selection: Selection,
    printer: Printer,
    messages: Receiver<Message>,
    changes: Changes,
    asker: Asker,
    followers: BTreeMap<u64, Follower>,
    next_follower: u64,
    by_watch: HashMap<WatchDescriptor, u64>,
    /// Followers that may have something to read.
    due: BTreeSet<u64>,
    arrivals: Arrivals,
    next_look: Instant,
    next_tick: Instant,
    /// A task has not taken yet all input that was read.
    has_input: Arc<AtomicBool>,
    has_reported_asker: bool,
    has_reported_output: bool,
    /// Attempts have packs instead of files.
    has_packs: bool,
}

impl Attach {
    pub(super) fn new(
        printer: Printer,
        history: History,
        selection: Selection,
        (sender, messages): (SyncSender<Message>, Receiver<Message>),
    ) -> Self {
        Self {
            output: TaskOutput::new(&history.dir.dir),
            printer,
            messages,
            changes: Changes::new(sender.clone()),
            asker: Asker::new(&history.dir.dag, sender),
            followers: BTreeMap::new(),
            next_follower: 0,
            by_watch: HashMap::new(),
            due: BTreeSet::new(),
            arrivals: Arrivals::default(),
            next_look: Instant::now(),
            next_tick: Instant::now(),
            has_input: Arc::default(),
            has_reported_asker: false,
            has_reported_output: false,
            has_packs: false,
            history,
            selection,
        }
    }

    /// Joins the attempts that the log has since the last call, also those that have ended if `with_ended`.
    pub(super) fn join(&mut self, from: From, with_ended: bool) {
        for (index, number) in self.arrivals.next(&self.selection, &self.history, with_ended) {
            self.follow(index, number, from);
        }
    }

    /// Joins the attempts that run, and were chosen after the log had shown them.
    #[cfg(feature = "pmix")]
    pub(super) fn join_chosen(&mut self) {
        let followed: BTreeSet<usize> = self.followers.values().map(|follower| follower.index).collect();
        for (index, number) in self.arrivals.running(&self.selection, &self.history) {
            if !followed.contains(&index) {
                self.follow(index, number, From::Start);
            }
        }
    }

    /// Follows nothing any more.
    #[cfg(feature = "pmix")]
    pub(super) fn leave(&mut self) {
        for follower in std::mem::take(&mut self.followers).into_values() {
            for watch in follower.watches() {
                self.changes.end(*watch);
            }
        }
        self.by_watch.clear();
        self.due.clear();
    }

    fn follow(&mut self, index: usize, number: u32, from: From) {
        let attempt = self.history.attempts[index];
        let origin = Origin {
            task: self.history.plan.text_name(attempt.task),
            attempt: number + 1,
            host: String::new(),
            submit_number: self.history.submit_number(index),
        };
        let decoder = Decoder::new(captured(&self.history, attempt.task), self.printer.wanted());
        let follower = Follower::new(attempt.task, index, number, origin, decoder, from);
        self.followers.insert(self.next_follower, follower);
        self.due.insert(self.next_follower);
        self.next_follower += 1;
    }

    fn run(&mut self, signal: &AtomicUsize) -> Result<u8, Failure> {
        loop {
            let is_over = self.turn()?;
            if self.printer.is_closed() {
                return Ok(exit::SUCCESS);
            }
            let signal = signal.load(Ordering::Relaxed);
            if let Ok(signal @ 1..) = u8::try_from(signal) {
                return Ok(exit::SIGNAL_BASE + signal);
            }
            if is_over {
                return self.conclusion();
            }
        }
    }

    /// Waits for something to show, or for the next look at the log, and shows it. Returns whether there is
    /// nothing more.
    pub(super) fn turn(&mut self) -> Result<bool, Failure> {
        let timeout = if self.due.is_empty() {
            self.next_tick.saturating_duration_since(Instant::now())
        } else {
            Duration::ZERO
        };
        let mut next = self.messages.recv_timeout(timeout).ok();
        while let Some(message) = next {
            self.take(message)?;
            next = self.messages.try_recv().ok();
        }
        let mut is_over = false;
        if self.next_tick <= Instant::now() {
            is_over = self.tick()?;
            self.next_tick = Instant::now() + TICK;
        }
        self.read_due()?;
        self.ask();
        self.printer.flush();
        Ok(is_over)
    }

    /// Returns the exit code, now that there is nothing more to show.
    fn conclusion(&mut self) -> Result<u8, Failure> {
        // A task that ends before it has taken all input must be reported.
        let end = Instant::now() + LAST_INPUT;
        while self.has_input.load(Ordering::Acquire) && Instant::now() < end {
            if let Ok(message) = self.messages.recv_timeout(TICK) {
                self.take(message)?;
            }
        }
        if self.has_input.load(Ordering::Acquire) {
            let error = anyhow!("the tasks have not taken all input");
            return Err(Failure::new(exit::NOT_RUN, error));
        }
        if self.history.phase() == Phase::CutOff {
            // The run may have ended since the last look.
            self.look()?;
        }
        if self.history.phase() == Phase::CutOff {
            let error = anyhow!("the run of {} was killed", self.history.dir.dag.display());
            return Err(Failure::new(exit::NOT_RUN, error));
        }
        Ok(exit::SUCCESS)
    }

    fn take(&mut self, message: Message) -> Result<(), Failure> {
        match message {
            Message::NotPushed(failure) => return Err(*failure),
            Message::Changed(watches) if watches.is_empty() => self.due.extend(self.followers.keys()),
            Message::Changed(watches) => {
                let changed = watches.iter().filter_map(|watch| self.by_watch.get(watch));
                self.due.extend(changed);
            }
            Message::Answer(answer) => self.take_answer(*answer),
        }
        Ok(())
    }

    fn take_answer(&mut self, answer: Answer) {
        self.asker.note_answer();
        let count = self.followers.len();
        let Some(follower) = self.followers.get_mut(&answer.follower) else {
            return;
        };
        match answer.output {
            Ok(output) => {
                follower.accept(output, answer.time, count, &mut self.printer);
                let watches = follower.watch_captures(&self.changes);
                let by_watch = watches.into_iter().map(|watch| (watch, answer.follower));
                self.by_watch.extend(by_watch);
                self.due.insert(answer.follower);
            }
            Err(error) => {
                follower.note_failure();
                if follower.is_captured() && !std::mem::replace(&mut self.has_reported_asker, true) {
                    message(format!(
                        "pmc: kickstart hands the output over when a task has ended: {error}"
                    ));
                }
            }
        }
    }

    /// Sends the requests that are due, the longest waiting one first.
    fn ask(&mut self) {
        let now = Instant::now();
        let may_wait = self.followers.len() <= asker::MAX_REQUESTS;
        while self.asker.is_free() {
            let waiting = self.followers.iter_mut();
            let waiting = waiting.filter(|(_, follower)| {
                !follower.is_asked
                    && (follower.is_open() || follower.is_unpacked())
                    && follower.next_ask <= now
            });
            let Some((number, follower)) = waiting.min_by_key(|(_, follower)| follower.next_ask) else {
                break;
            };
            // A request that waits for a task which captures nothing would keep a thread from the others.
            let may_wait = may_wait && follower.is_tapped();
            let request = follower.request(may_wait);
            self.asker.ask(*number, request);
        }
    }

    /// Prints what has come.
    fn read_due(&mut self) -> Result<(), Failure> {
        for number in std::mem::take(&mut self.due) {
            let Some(follower) = self.followers.get_mut(&number) else {
                continue;
            };
            let read = follower.read(&mut self.printer);
            if read.map_err(|error| unreadable(&self.history.dir, error))? {
                self.due.insert(number);
            }
        }
        Ok(())
    }

    /// Looks at the log and at all files. Returns whether there is nothing more to show.
    fn tick(&mut self) -> Result<bool, Failure> {
        if self.next_look <= Instant::now() {
            self.look()?;
        }
        let mut is_over = self.history.phase() != Phase::Running;
        if is_over {
            // The log was complete before the run gave its lock back.
            self.look()?;
            is_over = self.history.phase() != Phase::Running;
        }
        self.open_files()?;
        self.end_followers(is_over)?;
        self.due.extend(self.followers.keys());
        Ok(is_over
            || self.followers.is_empty() && self.arrivals.have_named_ended(&self.selection, &self.history))
    }

    /// Reads what was added to the log.
    fn look(&mut self) -> Result<(), Failure> {
        self.history.update().or_code(exit::NOT_RUN)?;
        self.join(From::Start, true);
        for follower in self
            .followers
            .values_mut()
            .filter(|follower| follower.shown.origin.host.is_empty())
        {
            let host = self.history.attempts[follower.index].host;
            if let Some(host) = self.history.hosts.name(host) {
                host.clone_into(&mut follower.shown.origin.host);
            }
        }
        // The end of a task that has its own files is in them.
        let is_told = |task: &TaskNumber| {
            self.followers
                .values()
                .any(|follower| follower.task == *task && follower.is_open() && !follower.has_record())
        };
        let has_host = |follower: &Follower| !follower.shown.origin.host.is_empty();
        let is_slow = matches!(&self.selection, Selection::Named(tasks) if tasks.iter().all(is_told))
            && self.followers.values().all(has_host);
        self.next_look = Instant::now() + if is_slow { SLOW_TICK } else { TICK };
        Ok(())
    }

    /// Opens the files that have been made.
    fn open_files(&mut self) -> Result<(), Failure> {
        let is_missing =
            |follower: &Follower| !follower.is_open() && has_ended(&self.history.attempts[follower.index]);
        if self.followers.values().any(is_missing) {
            // An attempt that has ended may be in a pack. If an index cannot be read, opening the output
            // fails.
            let _ = self.output.refresh();
        }
        for (id, follower) in &mut self.followers {
            if follower.is_open() {
                continue;
            }
            let name = self.history.plan.name(follower.task);
            let is_last = self.arrivals.count(follower.task) == follower.number + 1;
            let last = self
                .output
                .last(name)
                .filter(|last| is_last && *last >= follower.number);
            let number = last.unwrap_or(follower.number);
            let files = AttemptFiles::new(&self.history.dir, name, number);
            let reader = if let Some(pack) = self.output.pack(name, number) {
                let pack = pack.to_owned();
                Reader::of_pack(&mut self.output, name, number, &pack)
            } else if files.out.exists()
                && (files.err.exists() || has_ended(&self.history.attempts[follower.index]))
            {
                let watches = [&files.out, &files.err]
                    .into_iter()
                    .filter_map(|path| self.changes.watch(path));
                let watches: Vec<WatchDescriptor> = watches.collect();
                self.by_watch.extend(watches.iter().map(|watch| (*watch, *id)));
                follower.note_watches(&watches);
                Reader::of_files(&files)
            } else {
                let RunDir { dir, dag, .. } = &self.history.dir;
                let dag_name = dag.file_name();
                self.has_packs |= dag_name.is_some_and(|name| pmc_packed::has_packs(dir, name));
                if self.has_packs && !has_ended(&self.history.attempts[follower.index]) {
                    follower.begin_unpacked(dag);
                }
                continue;
            };
            follower.shown.origin.attempt = number + 1;
            follower.open(reader.map_err(|error| unreadable(&self.history.dir, error))?);
        }
        Ok(())
    }

    /// Ends followers whose attempts have ended: all that was written is there.
    fn end_followers(&mut self, is_over: bool) -> Result<(), Failure> {
        let ended = |follower: &Follower| {
            // Standard error may come after the record, while the attempt goes to a pack.
            let has_all = follower.is_open() && follower.has_record();
            is_over || has_all || has_ended(&self.history.attempts[follower.index])
        };
        let numbers = self.followers.iter().filter(|(_, follower)| ended(follower));
        let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(mut follower) = self.followers.remove(&number) else {
                continue;
            };
            // After the end, the log is needed again.
            self.next_look = Instant::now();
            for watch in follower.watches() {
                self.by_watch.remove(watch);
                self.changes.end(*watch);
            }
            if follower.is_unpacked() {
                let task = escape(&follower.shown.origin.task);
                message(format!(
                    "pmc: the worker was killed: the end of the output of {task} is lost"
                ));
            }
            if follower.is_open() || follower.is_unpacked() {
                let finished = follower.finish(&mut self.printer);
                finished.map_err(|error| unreadable(&self.history.dir, error))?;
            } else if !std::mem::replace(&mut self.has_reported_output, true) {
                let task = &follower.shown.origin.task;
                message(format!(
                    "pmc: the output of {task} is not in the directory of the run"
                ));
            }
        }
        Ok(())
    }
}
