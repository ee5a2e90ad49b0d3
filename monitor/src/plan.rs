//! The tasks of a DAG, kept small: a name, what it is for, what it asks for, and where its line is.
//!
//! The executor's own reader (`pmc_dag`) keeps the text of the whole file, which may be half a gigabyte for a
//! million tasks, and refuses a file that is not complete. This one passes over what it does not
//! understand, and finds commands in the file again when somebody asks.

mod index;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pmc_dag::words::Words;
use rustc_hash::FxHashMap;

use crate::kinds::Kind;
use crate::lines::{LineReader, word};
pub(crate) use index::hash;
use index::{Added, Index};

/// A task, by its place in the DAG.
pub type TaskNumber = u32;

/// No line of the DAG.
const NO_LINE: u64 = u64::MAX;
/// Most tasks take more of the file: what room is made for in advance is needed.
const BYTES_OF_A_TASK: u64 = 512;
/// Names that are looked up at a time.
pub(crate) const TOGETHER: usize = 256;
/// A command is not longer, or is cut off.
const COMMAND: usize = 1 << 20;

/// What a number of tasks have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Name of what they run.
    pub transformation: String,
    /// What they are for.
    pub kind: Kind,
}

/// What a task asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// CPUs.
    pub cpus: u32,
    /// Memory in MB; 0 if it does not matter.
    pub memory_mb: u64,
}

/// What a task asks for that says nothing.
const ANY: Request = Request {
    cpus: 1,
    memory_mb: 0,
};

/// All tasks of a workflow.
#[derive(Debug, Default)]
pub struct Plan {
    path: PathBuf,
    names: Vec<u8>,
    /// Where each name ends in `names`.
    ends: Vec<u32>,
    index: Index,
    classes: Vec<Class>,
    known_classes: FxHashMap<(Vec<u8>, Kind), u16>,
    class: Vec<u16>,
    requests: Vec<Request>,
    known_requests: FxHashMap<Request, u16>,
    request: Vec<u16>,
    line: Vec<u64>,
    edges: Vec<(TaskNumber, TaskNumber)>,
}

impl Plan {
    /// Reads a DAG. A file that is not there yet has no tasks.
    ///
    /// # Errors
    /// The file is there but cannot be read.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut plan = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        let mut reader = match LineReader::open(path) {
            Ok(reader) => reader,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(plan),
            Err(error) => return Err(error),
        };
        let bytes = path.metadata().map_or(0, |data| data.len());
        let tasks = usize::try_from(bytes / BYTES_OF_A_TASK).unwrap_or(0);
        plan.index = Index::for_tasks(tasks);
        let mut edges = Vec::new();
        let mut children = Names::default();
        let mut parents = Vec::with_capacity(TOGETHER);
        let mut transformation = Vec::new();
        let mut known = false;
        reader.read(|at, line| {
            if line.starts_with(b"TASK") {
                let (name, rest) = word(word(line).1);
                if name.is_empty() || rest.is_empty() {
                    return;
                }
                plan.connect(&mut edges, &mut parents, &mut children);
                let hash = hash(name);
                plan.index.touch(hash);
                let name_only = !known;
                let of = if name_only {
                    program(rest)
                } else {
                    &transformation[..]
                };
                let request = if rest.first() == Some(&b'-') {
                    request(rest)
                } else {
                    ANY
                };
                plan.add(hash, name, of, request, at);
                known = false;
            } else if line.starts_with(b"EDGE") {
                let (parent, child) = word(word(line).1);
                // Edges of a parent stand together.
                let last = parents.last().copied();
                let parent = last
                    .filter(|last| plan.name(*last) == parent)
                    .or_else(|| plan.find(parent));
                if let Some(parent) = parent {
                    parents.push(parent);
                    children.push(child.trim_ascii_end());
                }
                if children.len() == TOGETHER {
                    plan.connect(&mut edges, &mut parents, &mut children);
                }
            } else if let Some(rest) = line.strip_prefix(b"#@ ") {
                // `#@ 3 transformation id`
                transformation.clear();
                transformation.extend_from_slice(word(word(rest).1).0);
                known = !transformation.is_empty();
            }
        })?;
        plan.connect(&mut edges, &mut parents, &mut children);
        plan.edges = edges;
        Ok(plan)
    }

    /// Adds the edges to these children.
    fn connect(
        &self,
        edges: &mut Vec<(TaskNumber, TaskNumber)>,
        parents: &mut Vec<TaskNumber>,
        children: &mut Names,
    ) {
        let mut parent = parents.drain(..);
        self.find_all(children, |child| {
            if let (Some(parent), Some(child)) = (parent.next(), child) {
                edges.push((parent, child));
            }
        });
    }

    fn add(
        &mut self,
        hash: u64,
        name: &[u8],
        transformation: &[u8],
        request: Request,
        line: u64,
    ) -> Option<TaskNumber> {
        let number = TaskNumber::try_from(self.ends.len())
            .ok()
            .filter(|n| *n < TaskNumber::MAX)?;
        let end = u32::try_from(self.names.len() + name.len()).ok()?;
        loop {
            let same = |task| slice(&self.names, &self.ends, task) == name;
            match self.index.add(hash, same) {
                Added::Yes => break,
                Added::Known => return None,
                Added::Full => self.index.grow(hashes(&self.names, &self.ends)),
            }
        }
        self.names.extend_from_slice(name);
        self.ends.push(end);
        let kind = Kind::of_task(transformation, name);
        let class = self.class_number(transformation, kind);
        self.class.push(class);
        let request = self.request_number(request);
        self.request.push(request);
        self.line.push(line);
        Some(number)
    }

    fn class_number(&mut self, transformation: &[u8], kind: Kind) -> u16 {
        // Most tasks are like the one before.
        if let Some(&last) = self.class.last()
            && let class = &self.classes[usize::from(last)]
            && class.kind == kind
            && class.transformation.as_bytes() == transformation
        {
            return last;
        }
        let key = (transformation.to_owned(), kind);
        if let Some(&number) = self.known_classes.get(&key) {
            return number;
        }
        // More than can be numbered are counted with the first.
        let Some(number) = u16::try_from(self.classes.len()).ok() else {
            return 0;
        };
        self.classes.push(Class {
            transformation: String::from_utf8_lossy(transformation).into_owned(),
            kind,
        });
        self.known_classes.insert(key, number);
        number
    }

    fn request_number(&mut self, request: Request) -> u16 {
        if let Some(&last) = self.request.last()
            && self.requests[usize::from(last)] == request
        {
            return last;
        }
        if let Some(&number) = self.known_requests.get(&request) {
            return number;
        }
        let Some(number) = u16::try_from(self.requests.len()).ok() else {
            return 0;
        };
        self.requests.push(request);
        self.known_requests.insert(request, number);
        number
    }

    /// The task of a name that a log mentions, with its hash. One that the DAG does not have, because it is not
    /// complete or gone, is added.
    pub(crate) fn find_or_add(&mut self, hash: u64, name: &[u8]) -> Option<TaskNumber> {
        if let Some(number) = self.find_hashed(hash, name) {
            return Some(number);
        }
        self.add(hash, name, b"unknown", ANY, NO_LINE)
    }

    /// The task of this name.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<TaskNumber> {
        self.find_hashed(hash(name), name)
    }

    fn find_hashed(&self, hash: u64, name: &[u8]) -> Option<TaskNumber> {
        self.index.find(hash, |task| self.name(task) == name)
    }

    /// Brings into the cache what finding names with these hashes takes.
    pub(crate) fn look_ahead(&self, hashes: impl Iterator<Item = u64>) {
        hashes.for_each(|hash| self.index.touch(hash));
    }

    /// Looks all names up, and leaves none.
    pub(crate) fn find_all(&self, names: &mut Names, mut take: impl FnMut(Option<TaskNumber>)) {
        self.look_ahead(names.hashes.iter().copied());
        let mut start = 0;
        for (hash, end) in names.hashes.iter().zip(&names.ends) {
            take(self.find_hashed(*hash, &names.text[start..*end]));
            start = *end;
        }
        names.hashes.clear();
        names.ends.clear();
        names.text.clear();
    }

    /// Number of tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// There are no tasks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Name of a task.
    #[must_use]
    pub fn name(&self, task: TaskNumber) -> &[u8] {
        slice(&self.names, &self.ends, task)
    }

    /// Name of a task as text.
    #[must_use]
    pub fn text_name(&self, task: TaskNumber) -> String {
        String::from_utf8_lossy(self.name(task)).into_owned()
    }

    /// Index into [`Plan::classes`].
    #[must_use]
    pub fn class_index(&self, task: TaskNumber) -> usize {
        usize::from(self.class[task as usize])
    }

    /// What the task is.
    #[must_use]
    pub fn class(&self, task: TaskNumber) -> &Class {
        &self.classes[self.class_index(task)]
    }

    /// All that tasks may be.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// What the task asks for.
    #[must_use]
    pub fn request(&self, task: TaskNumber) -> Request {
        self.requests[usize::from(self.request[task as usize])]
    }

    /// Parents and children, in the order of the DAG; a pair may be there twice.
    #[must_use]
    pub fn edges(&self) -> &[(TaskNumber, TaskNumber)] {
        &self.edges
    }

    /// Program and arguments of a task with its options before them, as in the DAG. `None` if the DAG does not have it any more.
    #[must_use]
    pub fn command(&self, task: TaskNumber) -> Option<Vec<Vec<u8>>> {
        let at = self
            .line
            .get(task as usize)
            .copied()
            .filter(|at| *at != NO_LINE)?;
        let file = File::open(&self.path).ok()?;
        let mut text = Vec::new();
        loop {
            let mut chunk = [0; 4096];
            let count = file.read_at(&mut chunk, at + text.len() as u64).ok()?;
            let part = &chunk[..count];
            if let Some(end) = memchr::memchr(b'\n', part) {
                text.extend_from_slice(&part[..end]);
                break;
            }
            text.extend_from_slice(part);
            if count == 0 || text.len() > COMMAND {
                break;
            }
        }
        let (name, rest) = word(word(&text).1);
        (name == self.name(task)).then(|| pmc_dag::words::split(skip_options(rest)))
    }
}

/// Names that are looked up together, which takes less time than one after the other.
#[derive(Debug, Default)]
pub(crate) struct Names {
    hashes: Vec<u64>,
    /// Where each ends in `text`.
    ends: Vec<usize>,
    text: Vec<u8>,
}

impl Names {
    /// One more.
    pub(crate) fn push(&mut self, name: &[u8]) {
        self.hashes.push(hash(name));
        self.text.extend_from_slice(name);
        self.ends.push(self.text.len());
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }
}

/// Children of each task.
#[derive(Debug)]
pub struct Children {
    first: Vec<u32>,
    children: Vec<TaskNumber>,
}

impl Children {
    /// Sorts the edges by parent.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let mut first = vec![0_u32; plan.len() + 1];
        for (parent, _) in plan.edges() {
            first[*parent as usize + 1] += 1;
        }
        for at in 1..first.len() {
            first[at] += first[at - 1];
        }
        let mut next = first.clone();
        let mut children = vec![0; plan.edges().len()];
        for (parent, child) in plan.edges() {
            let at = &mut next[*parent as usize];
            children[*at as usize] = *child;
            *at += 1;
        }
        Self { first, children }
    }

    /// Children of a task.
    #[must_use]
    pub fn of(&self, task: TaskNumber) -> &[TaskNumber] {
        let at = task as usize;
        &self.children[self.first[at] as usize..self.first[at + 1] as usize]
    }

    /// All tasks, parents before children. Tasks that wait for each other are left out.
    #[must_use]
    pub fn order(&self) -> Vec<TaskNumber> {
        let tasks = self.first.len() - 1;
        let mut parents = vec![0_u32; tasks];
        self.children
            .iter()
            .for_each(|child| parents[*child as usize] += 1);
        #[expect(clippy::cast_possible_truncation, reason = "tasks are numbered in 32 bits")]
        let mut order: Vec<TaskNumber> = (0..tasks as u32)
            .filter(|task| parents[*task as usize] == 0)
            .collect();
        let mut at = 0;
        while let Some(&task) = order.get(at) {
            for child in self.of(task) {
                let left = &mut parents[*child as usize];
                *left -= 1;
                if *left == 0 {
                    order.push(*child);
                }
            }
            at += 1;
        }
        order
    }
}

fn slice<'a>(names: &'a [u8], ends: &[u32], task: TaskNumber) -> &'a [u8] {
    let at = task as usize;
    let start = at.checked_sub(1).map_or(0, |before| ends[before]);
    &names[start as usize..ends[at] as usize]
}

/// Hashes of all names.
fn hashes(names: &[u8], ends: &[u32]) -> impl Iterator<Item = u64> {
    let mut start = 0;
    ends.iter().map(move |end| {
        let name = &names[start..*end as usize];
        start = *end as usize;
        hash(name)
    })
}

/// The command behind the options of a task.
fn skip_options(rest: &[u8]) -> &[u8] {
    let mut words = Words::new(rest);
    loop {
        let command = words.rest();
        match words.next() {
            Some(word) if word.first() == Some(&b'-') => {
                let _ = words.next();
            }
            _ => return command,
        }
    }
}

fn request(rest: &[u8]) -> Request {
    plain_request(rest).unwrap_or_else(|| quoted_request(rest))
}

/// What options without quotation marks and with whole numbers say, as almost all are.
fn plain_request(rest: &[u8]) -> Option<Request> {
    let mut request = ANY;
    let mut left = rest;
    while left.first() == Some(&b'-') {
        let (option, after) = word(left);
        let (value, after) = word(after);
        left = after;
        let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'\'' | b'"' | b'\\');
        if value.is_empty() || !option.iter().chain(value).all(plain) {
            return None;
        }
        match option {
            b"-c" | b"--request-cpus" => request.cpus = u32::try_from(digits(value)?).ok()?,
            b"-m" | b"--request-memory" => request.memory_mb = digits(value)?,
            _ => {}
        }
    }
    Some(request)
}

/// Up to nine digits.
fn digits(text: &[u8]) -> Option<u64> {
    if text.len() > 9 {
        return None;
    }
    text.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + u64::from(byte - b'0'))
    })
}

fn quoted_request(rest: &[u8]) -> Request {
    let mut request = ANY;
    let mut words = Words::new(rest);
    while let Some(word) = words.next().filter(|word| word.first() == Some(&b'-')) {
        let Some(value) = words.next() else { break };
        let number = || {
            let number: f64 = pmc_dag::number::decimal_text(&value)?.parse().ok()?;
            (0.0..4e9).contains(&number).then(|| number.ceil())
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range was checked"
        )]
        match &*word {
            b"-c" | b"--request-cpus" => request.cpus = number().map_or(1, |number| number as u32),
            b"-m" | b"--request-memory" => request.memory_mb = number().map_or(0, |number| number as u64),
            _ => {}
        }
    }
    request
}

/// Last part of the program's path, for tasks whose transformation nobody wrote down.
fn program(rest: &[u8]) -> &[u8] {
    let program = word(skip_options(rest)).0;
    let program = program.rsplit(|byte| *byte == b'/').next().unwrap_or(program);
    if program.is_empty() { b"unknown" } else { program }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        // Commands are looked up in the file; keep it.
        let _ = file.keep();
        plan
    }

    #[test]
    fn tasks_and_what_they_ask_for() {
        let plan = plan(DAG);
        assert_eq!(plan.len(), 3);
        let kinds: Vec<_> = (0..3).map(|task| plan.class(task).kind).collect();
        assert_eq!(kinds, [Kind::CreateDir, Kind::Compute, Kind::Compute]);
        assert_eq!(plan.class(1).transformation, "work");
        assert_eq!(plan.class(2).transformation, "sh");
        assert_eq!(
            plan.request(1),
            Request {
                cpus: 4,
                memory_mb: 2
            }
        );
        assert_eq!(plan.edges(), [(0, 1), (1, 2)]);
        assert_eq!(plan.find(b"plain"), Some(2));
        let command = plan.command(1).unwrap();
        assert_eq!(command, [&b"/bin/kickstart"[..], b"a b", b"-n", b"work"]);
        let _ = std::fs::remove_file(&plan.path);
    }

    #[test]
    fn orders() {
        let plan = plan("TASK a x\nTASK b x\nTASK c x\nEDGE c b\nEDGE b a\nEDGE c a\n");
        let children = Children::new(&plan);
        assert_eq!(children.order(), [2, 1, 0]);
        assert_eq!(children.of(2), [1, 0]);
        let _ = std::fs::remove_file(&plan.path);
    }

    #[test]
    fn names_of_logs_are_added() {
        let mut plan = Plan::read(Path::new("/nonexistent.dag")).unwrap();
        assert!(plan.is_empty());
        assert_eq!(plan.find_or_add(hash(b"a"), b"a"), Some(0));
        assert_eq!(plan.find_or_add(hash(b"a"), b"a"), Some(0));
        assert_eq!((plan.text_name(0), plan.command(0)), ("a".to_owned(), None));
    }

    proptest! {
        #[test]
        fn plain_options_say_what_quoted_ones_say(text in "((-c|-m|--request-cpus|-x) ?([0-9.]{0,12}|'1'| )? ){0,4}t?") {
            if let Some(plain) = plain_request(text.as_bytes()) {
                prop_assert_eq!(plain, quoted_request(text.as_bytes()));
            }
        }

        #[test]
        fn never_panics(text in "(TASK|EDGE|#@|\n| |a|b|-c|-m|1|'|\"|\\\\){0,60}") {
            let plan = plan(&text);
            let order = Children::new(&plan).order();
            prop_assert!(order.len() <= plan.len());
            let _ = std::fs::remove_file(&plan.path);
        }
    }
}
