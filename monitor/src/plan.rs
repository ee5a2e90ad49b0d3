//! Tasks of a DAG: name, class, request, edges and the position of the line in the file.
//!
//! The executor's [`pmc_dag::Dag`] keeps the text of the file, half a gigabyte for a million tasks, and
//! rejects an incomplete file. A [`Plan`] keeps less: it ignores lines that are no records, and reads
//! commands from the file on demand.

mod children;
mod names;
mod reader;

use std::hash::Hash;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pmc_dag::record::Record;
use pmc_dag::{Gang, Request};
use rustc_hash::FxHashMap;

use crate::kinds::Kind;

pub use children::Children;
use names::NameTable;

/// Number of a task: its place in the DAG.
pub type TaskNumber = u32;

/// Position of a task that is not in the DAG.
const NO_POSITION: u64 = u64::MAX;
/// What a task gets that requests nothing.
const NO_REQUEST: Request = Request {
    anywhere: false,
    gpus: 0,
    cpus: 1,
    memory_mb: 0,
};
/// Maximum length of a command in bytes; longer ones are truncated.
const MAX_COMMAND: usize = 1 << 20;

/// What a group of tasks runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// Name of the transformation.
    pub transformation: String,
    /// Purpose of the tasks.
    pub kind: Kind,
}

/// All tasks of a workflow.
#[derive(Debug, Default)]
pub struct Plan {
    path: PathBuf,
    names: NameTable,
    classes: ValueTable<Class>,
    requests: ValueTable<Request>,
    tasks: Vec<Task>,
    edges: Vec<(TaskNumber, TaskNumber)>,
    /// Tasks that are sub-workflows, in their order, with their DAG files.
    subdags: Vec<(TaskNumber, PathBuf)>,
    /// What tasks need that may have several hosts.
    gangs: FxHashMap<TaskNumber, Gang>,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    /// Position of the line in the file.
    position: u64,
    class: u16,
    request: u16,
}

impl Plan {
    /// Reads a DAG. Ignores lines that it does not understand. A missing file has no tasks.
    ///
    /// # Errors
    /// The file exists but cannot be read.
    pub fn read(path: &Path) -> io::Result<Self> {
        reader::read(path)
    }

    fn add(&mut self, name: &[u8], class: Class, request: Request, position: u64) -> Option<TaskNumber> {
        let number = self.names.add(name)?;
        self.tasks.push(Task {
            position,
            class: self.classes.number(class),
            request: self.requests.number(request),
        });
        Some(number)
    }

    /// Adds a task of a sub-workflow, which is `around`, as `AROUND/NAME`. `None` if a task has this name.
    pub(crate) fn adopt(&mut self, around: TaskNumber, other: &Self, task: TaskNumber) -> Option<TaskNumber> {
        let name = [self.name(around), b"/", other.name(task)].concat();
        let class = other.class(task).clone();
        let number = self.add(&name, class, other.request(task), NO_POSITION)?;
        self.gangs
            .extend(other.gang(task).map(|gang| (number, gang.clone())));
        Some(number)
    }

    /// Returns the index of a class in [`Plan::classes`]. Adds it if it is missing.
    pub(crate) fn class_number(&mut self, class: &Class) -> usize {
        usize::from(self.classes.number(class.clone()))
    }

    /// Takes all edges out.
    pub(crate) fn take_edges(&mut self) -> Vec<(TaskNumber, TaskNumber)> {
        std::mem::take(&mut self.edges)
    }

    /// Adds an edge.
    pub(crate) fn add_edge(&mut self, parent: TaskNumber, child: TaskNumber) {
        self.edges.push((parent, child));
    }

    /// Returns the task of a name in a log. Adds tasks that are missing in an incomplete or removed DAG.
    pub(crate) fn find_or_add(&mut self, name: &[u8]) -> Option<TaskNumber> {
        if let Some(task) = self.find(name) {
            return Some(task);
        }
        let class = Class {
            transformation: "unknown".to_owned(),
            kind: Kind::Compute,
        };
        self.add(name, class, NO_REQUEST, NO_POSITION)
    }

    /// Returns the task with this name.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<TaskNumber> {
        self.names.find(name)
    }

    /// Number of tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns whether there are no tasks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Name of a task.
    #[must_use]
    pub fn name(&self, task: TaskNumber) -> &[u8] {
        self.names.get(task)
    }

    /// Name of a task as text.
    #[must_use]
    pub fn text_name(&self, task: TaskNumber) -> String {
        String::from_utf8_lossy(self.name(task)).into_owned()
    }

    /// Index of the task's class in [`Plan::classes`].
    #[must_use]
    pub fn class_index(&self, task: TaskNumber) -> usize {
        usize::from(self.tasks[task as usize].class)
    }

    /// Class of a task.
    #[must_use]
    pub fn class(&self, task: TaskNumber) -> &Class {
        &self.classes()[self.class_index(task)]
    }

    /// All classes.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes.values
    }

    /// Request of a task.
    #[must_use]
    pub fn request(&self, task: TaskNumber) -> Request {
        self.requests.values[usize::from(self.tasks[task as usize].request)]
    }

    /// What a task needs, if it may have several hosts.
    #[must_use]
    pub fn gang(&self, task: TaskNumber) -> Option<&Gang> {
        self.gangs.get(&task)
    }

    /// Pairs of parent and child, in the order of the DAG. Pairs may be repeated.
    #[must_use]
    pub fn edges(&self) -> &[(TaskNumber, TaskNumber)] {
        &self.edges
    }

    /// Tasks that are sub-workflows, in their order.
    pub fn subdags(&self) -> impl Iterator<Item = TaskNumber> + '_ {
        self.subdags.iter().map(|(task, _)| *task)
    }

    /// DAG file of a task that is a sub-workflow, as the DAG names it.
    #[must_use]
    pub fn subdag(&self, task: TaskNumber) -> Option<&Path> {
        let at = self.subdags.binary_search_by_key(&task, |(task, _)| *task).ok()?;
        Some(&self.subdags[at].1)
    }

    /// Reads the program and the arguments of a task from the DAG. `None` if they are no longer there.
    #[must_use]
    pub fn command(&self, task: TaskNumber) -> Option<Vec<Vec<u8>>> {
        let position = self.tasks.get(task as usize)?.position;
        if position == NO_POSITION {
            return None;
        }
        let file = pmc_files::open(&self.path).ok()?;
        let mut line = Vec::new();
        loop {
            let mut chunk = [0; 4096];
            let count = file.read_at(&mut chunk, position + line.len() as u64).ok()?;
            let chunk = &chunk[..count];
            if let Some(end) = memchr::memchr(b'\n', chunk) {
                line.extend_from_slice(&chunk[..end]);
                break;
            }
            line.extend_from_slice(chunk);
            if count == 0 || line.len() > MAX_COMMAND {
                break;
            }
        }
        let Ok(Record::Task(record)) = Record::parse(&line) else {
            return None;
        };
        let (_, command) = record.request().ok()?;
        (record.name == self.name(task)).then(|| pmc_dag::words::split(command))
    }
}

/// Distinct values, numbered in the order of their first use.
#[derive(Debug)]
struct ValueTable<T> {
    values: Vec<T>,
    numbers: FxHashMap<T, u16>,
    last: u16,
}

impl<T> Default for ValueTable<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: FxHashMap::default(),
            last: 0,
        }
    }
}

impl<T: Clone + Eq + Hash> ValueTable<T> {
    /// Returns the number of a value; 0 if there are too many values.
    fn number(&mut self, value: T) -> u16 {
        // Most tasks are like the one before.
        if self.values.get(usize::from(self.last)) == Some(&value) {
            return self.last;
        }
        self.last = match (self.numbers.get(&value), u16::try_from(self.values.len())) {
            (Some(number), _) => *number,
            (None, Ok(number)) => {
                self.values.push(value.clone());
                self.numbers.insert(value, number);
                number
            }
            (None, Err(_)) => 0,
        };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_large_file_without_tasks_needs_little_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        assert!(Plan::read(file.path()).is_err(), "it has no lines");
    }

    const DAG: &str = "\
#@ 1 pegasus::dirmanager null \n\
TASK create_dir /bin/kickstart -n x\n\
#@ 2 work ID1 \n\
TASK work_ID1 -m 1.5 -c 4 /bin/kickstart 'a b' -n work\n\
TASK plain /bin/sh -c true\n\
TASK torn\n\
nonsense\n\
EDGE create_dir work_ID1\n\
EDGE work_ID1 plain\n\
EDGE work_ID1 gone\n";

    fn plan(text: &str) -> Plan {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let plan = Plan::read(file.path()).unwrap();
        // Commands are read from the file; keep it.
        let _ = file.keep();
        plan
    }

    #[test]
    fn tasks_and_their_requests() {
        let plan = plan(DAG);
        assert_eq!(plan.len(), 3);
        let kinds: Vec<_> = (0..3).map(|task| plan.class(task).kind).collect();
        assert_eq!(kinds, [Kind::CreateDir, Kind::Compute, Kind::Compute]);
        assert_eq!(plan.class(1).transformation, "work");
        assert_eq!(plan.class(2).transformation, "sh");
        assert_eq!(
            plan.request(1),
            Request {
                gpus: 0,
                cpus: 4,
                memory_mb: 2,
                anywhere: false
            }
        );
        assert_eq!(plan.edges(), [(0, 1), (1, 2)]);
        assert_eq!(plan.find(b"plain"), Some(2));
        let command = plan.command(1).unwrap();
        assert_eq!(command, [&b"/bin/kickstart"[..], b"a b", b"-n", b"work"]);
        let _ = std::fs::remove_file(&plan.path);
    }

    #[test]
    fn parents_come_before_children() {
        let plan = plan("TASK a x\nTASK b x\nTASK c x\nEDGE c b\nEDGE b a\nEDGE c a\n");
        let children = Children::new(&plan);
        assert_eq!(children.topological_order(), [2, 1, 0]);
        assert_eq!(children.of(2), [1, 0]);
        let _ = std::fs::remove_file(&plan.path);
    }

    #[test]
    fn unknown_names_are_added() {
        let mut plan = Plan::read(Path::new("/nonexistent.dag")).unwrap();
        assert!(plan.is_empty());
        assert_eq!(plan.find_or_add(b"a"), Some(0));
        assert_eq!(plan.find_or_add(b"a"), Some(0));
        assert_eq!((plan.text_name(0), plan.command(0)), ("a".to_owned(), None));
    }

    proptest! {
        #[test]
        fn never_panics(text in "(TASK|EDGE|#@|\n| |a|b|-c|-m|1|'|\"|\\\\){0,60}") {
            let plan = plan(&text);
            let order = Children::new(&plan).topological_order();
            prop_assert!(order.len() <= plan.len());
            let _ = std::fs::remove_file(&plan.path);
        }
    }
}
