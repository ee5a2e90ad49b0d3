//! Reads the text of a DAG file in one pass.

use rustc_hash::FxHashMap;

use crate::TaskId;
use crate::dag::{Dag, Entry, NO_ID};
use crate::error::{DagError, DagErrorKind};
use crate::names::{self, NameIndex};
use crate::options::{self, Options};
use crate::text::{cut, lossy, trim};

pub(crate) fn read(text: Vec<u8>) -> Result<Dag, DagError> {
    let mut reader = Reader::new(&text);
    let mut start = 0;
    let mut number = 0;
    while start < text.len() {
        number += 1;
        let end = memchr::memchr(b'\n', &text[start..]).map_or(text.len(), |len| start + len);
        reader
            .line(trim(&text[start..end]))
            .map_err(|kind| DagError::at(number, kind))?;
        start = end + 1;
    }
    let Reader {
        entries,
        option_sets,
        names,
        edges,
        ..
    } = reader;
    let Edges {
        first_child,
        children,
        parent_counts,
    } = collect(&edges, entries.len());
    Ok(Dag {
        text,
        entries,
        options: option_sets,
        names,
        first_child,
        children,
        parent_counts,
    })
}

struct Reader<'a> {
    text: &'a [u8],
    entries: Vec<Entry>,
    names: NameIndex,
    edges: Vec<(TaskId, TaskId)>,
    /// Identifier of the last `#@` line, for the next task.
    id: Option<&'a [u8]>,
    option_sets: Vec<Options>,
    known_sets: FxHashMap<Options, u32>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self {
            text,
            entries: Vec::new(),
            names: NameIndex::default(),
            edges: Vec::new(),
            id: None,
            option_sets: vec![Options::default()],
            known_sets: FxHashMap::from_iter([(Options::default(), 0)]),
        }
    }

    fn line(&mut self, line: &'a [u8]) -> Result<(), DagErrorKind> {
        if line.len() >= u32::MAX as usize {
            return Err(DagErrorKind::LineTooLong);
        }
        // The keyword is only a prefix, as in the original: `TASKS a cmd` is a task.
        if line.starts_with(b"TASK") {
            self.task(line)
        } else if line.starts_with(b"EDGE") {
            self.edge(line)
        } else if line.starts_with(b"#@") {
            self.pegasus_id(line)
        } else if line.is_empty() || line.starts_with(b"#") {
            Ok(())
        } else {
            Err(DagErrorKind::Record(lossy(line)))
        }
    }

    fn task(&mut self, line: &'a [u8]) -> Result<(), DagErrorKind> {
        let (name, rest) = cut(cut(line).1);
        if rest.is_empty() {
            return Err(DagErrorKind::TaskRecord(lossy(line)));
        }
        let hash = names::hash(name);
        if self.names.find(hash, |task| self.name(task) == name).is_some() {
            return Err(DagErrorKind::DuplicateTask(lossy(name)));
        }
        let (options, command) = options::parse(name, rest)?;
        let id = self.id.take();
        let start = self.offset(name);
        let entry = Entry {
            name: start,
            name_len: name.len() as u32,
            id: id.map_or(0, |id| self.offset(id)),
            id_len: id.map_or(NO_ID, |id| id.len() as u32),
            command: (self.offset(command) - start) as u32,
            command_len: command.len() as u32,
            options: self.option_set(options)?,
        };
        let task = new_number(self.entries.len(), "tasks").map(TaskId)?;
        self.entries.push(entry);
        self.names.insert(hash, task);
        Ok(())
    }

    fn edge(&mut self, line: &'a [u8]) -> Result<(), DagErrorKind> {
        let (parent, child) = cut(cut(line).1);
        if child.is_empty() {
            return Err(DagErrorKind::EdgeRecord(lossy(line)));
        }
        // Neighbours in the file tend to be neighbours in the graph: a guess that is right saves
        // the way through the index, which for large DAGs is one cache miss after another.
        let last = self.edges.last().copied();
        let parent = self.find(parent, last.map(|(parent, _)| parent))?;
        let child = self.find(child, last.map(|(_, child)| child))?;
        new_number(self.edges.len(), "edges")?;
        self.edges.push((parent, child));
        Ok(())
    }

    fn pegasus_id(&mut self, line: &'a [u8]) -> Result<(), DagErrorKind> {
        let (id, rest) = cut(cut(line).1);
        if cut(rest).1.is_empty() {
            return Err(DagErrorKind::PegasusRecord(lossy(line)));
        }
        self.id = Some(id);
        Ok(())
    }

    fn name(&self, task: TaskId) -> &'a [u8] {
        self.entries[task.index()].name(self.text)
    }

    fn find(&self, name: &[u8], last: Option<TaskId>) -> Result<TaskId, DagErrorKind> {
        if let Some(last) = last {
            for guess in [last, TaskId(last.0 + 1)] {
                if guess.index() < self.entries.len() && self.name(guess) == name {
                    return Ok(guess);
                }
            }
        }
        self.names
            .find(names::hash(name), |task| self.name(task) == name)
            .ok_or_else(|| DagErrorKind::NoSuchTask(lossy(name)))
    }

    fn option_set(&mut self, options: Options) -> Result<u32, DagErrorKind> {
        if options == self.option_sets[0] {
            return Ok(0);
        }
        if let Some(known) = self.known_sets.get(&options) {
            return Ok(*known);
        }
        let number = new_number(self.option_sets.len(), "sets of options")?;
        self.option_sets.push(options.clone());
        self.known_sets.insert(options, number);
        Ok(number)
    }

    /// Where in the text a part of it begins.
    fn offset(&self, part: &[u8]) -> usize {
        part.as_ptr() as usize - self.text.as_ptr() as usize
    }
}

/// Numbers stay below `u32::MAX`, which is used for "none".
fn new_number(count: usize, what: &'static str) -> Result<u32, DagErrorKind> {
    u32::try_from(count)
        .ok()
        .filter(|n| *n < u32::MAX - 1)
        .ok_or(DagErrorKind::TooMany(what))
}

struct Edges {
    first_child: Vec<u32>,
    children: Vec<TaskId>,
    parent_counts: Vec<u32>,
}

/// Sorts edges by parent, keeping their order, and drops repeated ones.
fn collect(edges: &[(TaskId, TaskId)], tasks: usize) -> Edges {
    // A counting sort: afterwards `first_child[p]` is where the children of p end, which is where
    // those of p + 1 begin.
    let mut end = vec![0_u32; tasks + 1];
    for (parent, _) in edges {
        end[parent.index() + 1] += 1;
    }
    for task in 0..tasks {
        end[task + 1] += end[task];
    }
    let mut children = vec![TaskId(0); edges.len()];
    let mut next = end.clone();
    for (parent, child) in edges {
        let place = &mut next[parent.index()];
        children[*place as usize] = *child;
        *place += 1;
    }

    let mut parent_counts = vec![0_u32; tasks];
    // The array is no longer needed as cursor: now it holds the last parent seen of each child.
    let mut last_parent = next;
    last_parent.fill(u32::MAX);
    let mut kept = 0;
    let mut start = 0;
    for parent in 0..tasks {
        let stop = end[parent + 1] as usize;
        for at in start..stop {
            let child = children[at];
            if last_parent[child.index()] != parent as u32 {
                last_parent[child.index()] = parent as u32;
                parent_counts[child.index()] += 1;
                children[kept] = child;
                kept += 1;
            }
        }
        start = stop;
        end[parent + 1] = kept as u32;
    }
    children.truncate(kept);
    children.shrink_to_fit();
    Edges {
        first_child: end,
        children,
        parent_counts,
    }
}
