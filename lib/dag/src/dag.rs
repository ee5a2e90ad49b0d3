//! The DAG in memory.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::TaskId;
use crate::checkpoint::Checkpoint;
use crate::gang::{Gang, GangId};
use crate::names::{self, NameIndex};
use crate::options::{
    ALL_TASKS, AbortOn, CategoryId, Forward, OptionSet, Options, RareOptions, Request, Stdin, is_code,
};
use crate::retry_delay::RetryDelay;
use crate::text::{cut, trim};
use crate::words::Words;

/// A DAG, as read from its file.
///
/// Names and commands are ranges of the file's text, options are numbers of distinct sets of options, and
/// children are one array with offsets. A task needs 60 to 70 bytes besides its text, an edge 4.
///
/// The file is read into memory, not mapped: truncating a mapped file during the run would kill the master
/// with SIGBUS, and a copy needs no more memory than the pages of the mapping.
pub struct Dag {
    pub(crate) text: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) options: Vec<Options>,
    /// Different needs of tasks over several hosts.
    pub(crate) gangs: Vec<Gang>,
    /// By category.
    pub(crate) category_limits: Vec<u32>,
    /// Maximum running tasks.
    pub(crate) max_jobs: Option<u32>,
    pub(crate) names: NameIndex,
    pub(crate) first_child: Vec<u32>,
    pub(crate) children: Vec<TaskId>,
    pub(crate) parent_counts: Vec<u32>,
    /// In the order of their tasks.
    pub(crate) subdags: Vec<(TaskId, SubdagEntry)>,
    /// Position and length of the names of each set of inputs, from set 1.
    pub(crate) input_sets: Vec<(usize, u32)>,
    /// Set of inputs by task. The last tasks may be missing: they have none.
    pub(crate) inputs_of: Vec<u32>,
    /// Set once tasks were added.
    pub(crate) growth: Option<Box<Growth>>,
}

/// What a DAG that grows has beside its arrays.
#[derive(Default)]
pub(crate) struct Growth {
    /// Numbers of the sets of options, by their content as it is in the lines.
    pub(crate) known_sets: FxHashMap<Options, u32>,
    /// All children of tasks that have got more of them.
    pub(crate) children: FxHashMap<TaskId, Vec<TaskId>>,
    /// Number of edges that were added.
    pub(crate) edges: usize,
}

impl Growth {
    /// Returns the children of a task that has got more of them.
    fn children(&self, task: TaskId) -> Option<&[TaskId]> {
        self.children.get(&task).map(Vec::as_slice)
    }
}

/// What a SUBDAG line says of its task.
pub(crate) struct SubdagEntry {
    pub(crate) dag: Vec<u8>,
    pub(crate) directory: Option<Vec<u8>>,
    pub(crate) description: Option<Vec<u8>>,
    /// There is a SCRIPT PRE; its options and command are those of the task.
    pub(crate) is_prepared: bool,
}

/// A task that is a DAG of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subdag<'a> {
    /// Its DAG file, relative to the directory of the DAG file that names it.
    pub dag: &'a [u8],
    /// Where its tasks run, relative to the same directory; if there is none, in the directory of its DAG
    /// file.
    pub directory: Option<&'a [u8]>,
    /// File by which Pegasus' monitoring finds its logs, relative to the same directory.
    pub description: Option<&'a [u8]>,
    /// The command of the task makes the DAG file. Otherwise, the task has no command, and the file is there.
    pub is_prepared: bool,
}

/// Positions of a task's parts in the text, in half a cache line.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Entry {
    pub(crate) name: usize,
    /// Distance from the start of the identifier to the start of the name.
    pub(crate) id_before: u32,
    pub(crate) name_len: u32,
    /// [`NO_ID`] if there is no `#@` line.
    pub(crate) id_len: u32,
    /// Distance from the start of the name.
    pub(crate) command: u32,
    pub(crate) command_len: u32,
    /// Index into the sets of options; 0 is the set without options.
    pub(crate) options: u32,
}

/// `id_len` of a task without identifier.
pub(crate) const NO_ID: u32 = u32::MAX;

/// Everything in the line of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// Name: any bytes except blanks.
    pub name: &'a [u8],
    /// Second word of the `#@` line before the task, if there is one.
    pub id: Option<&'a [u8]>,
    /// Program and arguments, not split into words.
    pub command: &'a [u8],
    /// Requested memory in MB; 0 if not requested.
    pub memory_mb: u64,
    /// Requested CPUs, by default 1.
    pub cpus: u32,
    /// Requested GPUs.
    pub gpus: u32,
    /// Maximum attempts, if set. 0 means one.
    pub tries: Option<u32>,
    /// Priority, by default 0. Larger values first.
    pub priority: i64,
    /// Limit of an attempt's run time, if set; zero means no limit.
    pub runtime_limit: Option<Duration>,
    /// `-f VAR=PATH`, sorted by variable.
    pub pipe_forwards: &'a [Forward],
    /// `-F SRC=DEST`, sorted by source.
    pub file_forwards: &'a [Forward],
    /// Standard input, if it is not empty.
    pub stdin: Option<&'a Stdin>,
    /// The output goes through a relay, so that a tool can redirect it.
    pub relay: bool,
    /// Texts in the output of the task that make it fail.
    pub failure_messages: &'a [Vec<u8>],
    /// Texts that must be in the output of the task, else it has failed.
    pub success_messages: &'a [Vec<u8>],
}

impl Default for Dag {
    /// A DAG without tasks.
    fn default() -> Self {
        Self {
            text: Vec::new(),
            entries: Vec::new(),
            options: vec![Options::default()],
            gangs: Vec::new(),
            category_limits: Vec::new(),
            max_jobs: None,
            names: NameIndex::default(),
            first_child: vec![0],
            children: Vec::new(),
            parent_counts: Vec::new(),
            subdags: Vec::new(),
            input_sets: Vec::new(),
            inputs_of: Vec::new(),
            growth: None,
        }
    }
}

impl Dag {
    /// Number of tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no tasks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All tasks, in the order of their lines.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = TaskId> + use<> {
        // The reader keeps the number of tasks below u32::MAX.
        (0..self.entries.len() as u32).map(TaskId)
    }

    /// Number of edges without duplicates.
    #[must_use]
    pub fn edge_count(&self) -> usize {
        self.children.len() + self.growth.as_ref().map_or(0, |growth| growth.edges)
    }

    /// Name of a task.
    #[must_use]
    pub fn name(&self, task: TaskId) -> &[u8] {
        self.entries[task.index()].name(&self.text)
    }

    /// Finds a task by name.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<TaskId> {
        self.names.find(names::hash(name), |task| self.name(task) == name)
    }

    /// Children of a task, in the order of their EDGE lines, without duplicates.
    #[must_use]
    pub fn children(&self, task: TaskId) -> &[TaskId] {
        if let Some(children) = self.growth.as_ref().and_then(|growth| growth.children(task)) {
            return children;
        }
        let range = self.first_child[task.index()] as usize..self.first_child[task.index() + 1] as usize;
        &self.children[range]
    }

    /// Number of distinct parents of a task.
    #[must_use]
    pub fn parent_count(&self, task: TaskId) -> u32 {
        self.parent_counts[task.index()]
    }

    /// Index of a task's options in [`Dag::option_sets`]. Tasks with equal options share a set.
    #[must_use]
    pub fn option_set(&self, task: TaskId) -> usize {
        self.entries[task.index()].options as usize
    }

    /// All sets of options.
    pub fn option_sets(&self) -> impl ExactSizeIterator<Item = OptionSet> + '_ {
        self.options.iter().map(|set| OptionSet {
            request: set.request(),
            category: set.category,
            priority: set.priority,
            gang: set.rare.as_ref().and_then(|rare| rare.gang_id),
        })
    }

    /// The needs of tasks over several hosts, by number. Tasks with equal needs share one.
    #[must_use]
    pub fn gangs(&self) -> &[Gang] {
        &self.gangs
    }

    /// What a task needs that may have several hosts; `None` for other tasks. Its requests are those of a
    /// rank.
    #[must_use]
    pub fn gang(&self, task: TaskId) -> Option<&Gang> {
        let id: GangId = self.rare(task)?.gang_id?;
        self.gangs.get(id.index())
    }

    /// Maximum running tasks of each category that has a limit, at least 1.
    #[must_use]
    pub fn category_limits(&self) -> &[u32] {
        &self.category_limits
    }

    /// Maximum running tasks of the whole DAG, if it has a limit: `MAXJOBS * N`.
    #[must_use]
    pub fn max_jobs(&self) -> Option<u32> {
        self.max_jobs
    }

    /// Limits the running tasks of a category, or of all tasks (`*`), instead of its MAXJOBS line. Returns
    /// false if no task has the category. Linear in the number of sets of options.
    pub fn limit_category(&mut self, name: &[u8], limit: NonZeroU32) -> bool {
        if name == ALL_TASKS {
            self.max_jobs = Some(limit.get());
            return true;
        }
        let has_name = |set: &&mut Options| set.rare.as_ref().is_some_and(|rare| rare.category == name);
        let mut members = self.options.iter_mut().filter(has_name).peekable();
        let Some(first) = members.peek().filter(|_| !name.is_empty()) else {
            return false;
        };
        if let Some(known) = first.category {
            self.category_limits[known.index()] = limit.get();
        } else {
            let new = CategoryId(self.category_limits.len() as u32);
            self.category_limits.push(limit.get());
            members.for_each(|set| set.category = Some(new));
        }
        true
    }

    /// Category of a task, if it has a limit.
    #[must_use]
    pub fn category(&self, task: TaskId) -> Option<CategoryId> {
        self.options(task).category
    }

    /// Returns the DAG that a task stands for, if it is a sub-workflow.
    #[must_use]
    pub fn subdag(&self, task: TaskId) -> Option<Subdag<'_>> {
        let at = self.subdags.binary_search_by_key(&task, |(task, _)| *task).ok()?;
        let entry = &self.subdags[at].1;
        Some(Subdag {
            dag: &entry.dag,
            directory: entry.directory.as_deref(),
            description: entry.description.as_deref(),
            is_prepared: entry.is_prepared,
        })
    }

    /// Returns the tasks that are sub-workflows, in the order of their lines.
    pub fn subdag_ids(&self) -> impl ExactSizeIterator<Item = TaskId> + '_ {
        self.subdags.iter().map(|(task, _)| *task)
    }

    /// Number of a task's set of inputs; 0 if no `#inputs` line is before it.
    #[must_use]
    pub fn inputs(&self, task: TaskId) -> u32 {
        self.inputs_of.get(task.index()).copied().unwrap_or(0)
    }

    /// All sets of inputs, from number 1, with the names of their files.
    pub fn input_sets(&self) -> impl ExactSizeIterator<Item = Words<'_>> {
        let sets = self.input_sets.iter();
        sets.map(|(start, len)| Words::new(range(&self.text, *start, *len)))
    }

    /// Transformation of a task: the second word of the `#@` line before it, if there is one.
    #[must_use]
    pub fn transformation(&self, task: TaskId) -> Option<&[u8]> {
        let entry = &self.entries[task.index()];
        let id = entry.name - entry.id_before as usize;
        (entry.id_len != NO_ID).then(|| cut(trim(&self.text[id + entry.id_len as usize..entry.name])).0)
    }

    /// How long a task is expected to run, if its option says so.
    #[must_use]
    pub fn expected_time(&self, task: TaskId) -> Option<Duration> {
        self.rare(task)?.expected_time
    }

    /// The longest time that the option of a task says. Linear in the number of sets of options.
    #[must_use]
    pub fn longest_expected_time(&self) -> Option<Duration> {
        let rare = self.options.iter().filter_map(|set| set.rare.as_ref());
        rare.filter_map(|rare| rare.expected_time).max()
    }

    /// How a task ends the run, if it does.
    #[must_use]
    pub fn abort_on(&self, task: TaskId) -> Option<AbortOn> {
        self.rare(task)?.abort_on
    }

    /// How a task saves itself, if it does.
    #[must_use]
    pub fn checkpoint(&self, task: TaskId) -> Option<Checkpoint> {
        self.rare(task)?.checkpoint
    }

    /// Returns whether any task saves itself. Linear in the number of sets of options.
    #[must_use]
    pub fn has_checkpoints(&self) -> bool {
        let mut rare = self.options.iter().filter_map(|set| set.rare.as_ref());
        rare.any(|rare| rare.checkpoint.is_some())
    }

    /// How long before the end of the time tasks get their checkpoint signals: different times, the longest
    /// first. Linear in the number of sets of options.
    #[must_use]
    pub fn checkpoint_leads(&self) -> Vec<Duration> {
        let rare = self.options.iter().filter_map(|set| set.rare.as_ref());
        let signals = rare.filter_map(|rare| rare.checkpoint?.signal);
        let mut leads: Vec<Duration> = signals.map(|signal| signal.lead).collect();
        leads.sort_unstable_by(|a, b| b.cmp(a));
        leads.dedup();
        leads
    }

    /// True if no attempt of a task follows one that ended with this raw wait status (`--unless-exit`).
    #[must_use]
    pub fn is_final(&self, task: TaskId, status: i32) -> bool {
        let code = self.rare(task).and_then(|rare| rare.unless_exit);
        code.is_some_and(|code| is_code(code, status))
    }

    /// Percent of its memory that a task requests after an attempt that ran out of memory, if set.
    #[must_use]
    pub fn more_memory(&self, task: TaskId) -> Option<u32> {
        self.rare(task)?.more_memory
    }

    /// The pause before the next attempt of a task, if set.
    #[must_use]
    pub fn retry_delay(&self, task: TaskId) -> Option<RetryDelay> {
        self.rare(task)?.retry_delay
    }

    /// Expressions that change the requests of a task after an attempt that failed, by request; and the
    /// values of their variables that come from the plan, by name.
    #[must_use]
    pub fn request_expressions(&self, task: TaskId) -> (&[Forward], &[Forward]) {
        let rare = self.rare(task);
        rare.map_or((&[], &[]), |rare| {
            (&rare.request_expressions, &rare.expression_values)
        })
    }

    /// Resources that a task requests.
    #[must_use]
    pub fn request(&self, task: TaskId) -> Request {
        self.options(task).request()
    }

    /// Memory in MB that a task requests; 0 if none.
    #[must_use]
    pub fn memory_mb(&self, task: TaskId) -> u64 {
        u64::from(self.options(task).memory_mb)
    }

    /// CPUs that a task requests.
    #[must_use]
    pub fn cpus(&self, task: TaskId) -> u32 {
        self.options(task).cpus
    }

    /// Priority of a task; larger values first.
    #[must_use]
    pub fn priority(&self, task: TaskId) -> i64 {
        self.options(task).priority
    }

    /// Maximum attempts of a task, if set.
    #[must_use]
    pub fn tries(&self, task: TaskId) -> Option<u32> {
        self.options(task).tries
    }

    /// Returns everything in the line of a task.
    #[must_use]
    pub fn task(&self, task: TaskId) -> Task<'_> {
        let entry = &self.entries[task.index()];
        let options = self.options(task);
        let rare = options.rare.as_deref();
        Task {
            name: entry.name(&self.text),
            id: (entry.id_len != NO_ID)
                .then(|| range(&self.text, entry.name - entry.id_before as usize, entry.id_len)),
            command: range(&self.text, entry.name + entry.command as usize, entry.command_len),
            memory_mb: u64::from(options.memory_mb),
            cpus: options.cpus,
            gpus: options.gpus,
            tries: options.tries,
            priority: options.priority,
            runtime_limit: options.runtime_limit,
            pipe_forwards: rare.map_or(&[], |rare| &rare.pipes),
            file_forwards: rare.map_or(&[], |rare| &rare.files),
            stdin: rare.and_then(|rare| rare.stdin.as_ref()),
            relay: rare.is_some_and(|rare| rare.relay),
            failure_messages: rare.map_or(&[], |rare| &rare.failure_messages),
            success_messages: rare.map_or(&[], |rare| &rare.success_messages),
        }
    }

    /// Sorts tasks by the bytes of their names.
    pub fn sort_by_name(&self, tasks: &mut [TaskId]) {
        if tasks.is_sorted_by(|a, b| self.name(*a) <= self.name(*b)) {
            return;
        }
        // Names of a workflow share a prefix. The eight bytes after it nearly always decide the order, and
        // comparing them does not access the text.
        let shared = self.shared_prefix(tasks);
        let mut keyed: Vec<(u64, TaskId)> = tasks
            .iter()
            .map(|task| (eight_bytes(&self.name(*task)[shared..]), *task))
            .collect();
        keyed.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| self.name(a.1).cmp(self.name(b.1))));
        for (place, (_, task)) in tasks.iter_mut().zip(keyed) {
            *place = task;
        }
    }

    fn shared_prefix(&self, tasks: &[TaskId]) -> usize {
        let Some(first) = tasks.first().map(|task| self.name(*task)) else {
            return 0;
        };
        tasks.iter().fold(first.len(), |shared, task| {
            let name = self.name(*task);
            first[..shared]
                .iter()
                .zip(name)
                .take_while(|(a, b)| a == b)
                .count()
        })
    }

    fn options(&self, task: TaskId) -> &Options {
        &self.options[self.entries[task.index()].options as usize]
    }

    fn rare(&self, task: TaskId) -> Option<&RareOptions> {
        self.options(task).rare.as_deref()
    }
}

impl fmt::Debug for Dag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dag")
            .field("tasks", &self.len())
            .field("edges", &self.edge_count())
            .finish()
    }
}

impl Entry {
    pub(crate) fn name<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        range(text, self.name, self.name_len)
    }
}

fn range(text: &[u8], start: usize, len: u32) -> &[u8] {
    &text[start..start + len as usize]
}

/// Returns the first eight bytes as a number with the same order; missing bytes count as 0.
fn eight_bytes(name: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = name.len().min(8);
    bytes[..len].copy_from_slice(&name[..len]);
    u64::from_be_bytes(bytes)
}
