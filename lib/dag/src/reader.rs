//! Reads the text of a DAG file in one pass.

use std::hint::black_box;
use std::mem;
use std::path::Path;

use rustc_hash::FxHashMap;

use crate::TaskId;
use crate::dag::{Dag, Entry, NO_ID, SubdagEntry};
use crate::error::{DagError, DagErrorKind};
use crate::gang::{Gang, GangId, GangOptions};
use crate::growth;
use crate::names::{self, NameIndex};
use crate::options::{self, ALL_TASKS, CategoryId, Options};
use crate::record::{Record, TaskRecord};
use crate::text::lossy;
use crate::trailer;

/// Number of names that are looked up together: first the slots of the index are read, then the tasks, then
/// the texts. In a large DAG each of these reads misses the cache, and independent misses overlap.
const BLOCK_SIZE: usize = 64;

impl Dag {
    /// Reads a DAG file.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn open(path: &Path) -> Result<Self, DagError> {
        Self::open_within(path, u64::MAX)
    }

    /// Reads a DAG file of at most `max` bytes, a regular file.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn open_within(path: &Path, max: u64) -> Result<Self, DagError> {
        Self::parse(read_file(path, max)?)
    }

    /// Reads a DAG file, even if its last lines are missing. Returns whether they are: the file announces a
    /// [last line](crate::trailer) and has none, or one with other numbers. A line that ends in its middle
    /// is left out, because its command would be another one.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn open_incomplete(path: &Path) -> Result<(Self, bool), DagError> {
        let mut text = read_file(path, u64::MAX)?;
        trailer::remove_torn_line(&mut text);
        let (dag, refusal) = read(text)?;
        Ok((dag, refusal.is_some()))
    }

    /// Reads a DAG from the content of its file.
    ///
    /// # Errors
    /// The content is invalid; the error names the line.
    pub fn parse(text: Vec<u8>) -> Result<Self, DagError> {
        match read(text)? {
            (dag, None) => Ok(dag),
            (_, Some(refusal)) => Err(refusal),
        }
    }
}

fn read_file(path: &Path, max: u64) -> Result<Vec<u8>, DagError> {
    let read = pmc_files::open(path).and_then(|file| pmc_files::read_rest(&file, max));
    let read = read.map_err(|source| DagErrorKind::Read {
        path: path.display().to_string(),
        source,
    });
    Ok(read?)
}

/// Returns the DAG, and what is wrong with it if the last line that it announces is missing or wrong.
fn read(mut text: Vec<u8>) -> Result<(Dag, Option<DagError>), DagError> {
    growth::remove_torn_addition(&mut text);
    let mut reader = Reader::new(&text);
    let mut start = 0;
    while start < text.len() {
        reader.number += 1;
        let end = memchr::memchr(b'\n', &text[start..]).map_or(text.len(), |len| start + len);
        if let Err(error) = reader.line(&text[start..end]) {
            // The first error is reported, and an earlier line may have one.
            reader.flush()?;
            return Err(error);
        }
        start = end + 1;
    }
    reader.flush()?;
    let complete = trailer::check(&text, reader.entries.len(), reader.edges.len());
    let refusal = complete.err().map(|kind| reader.error(kind));
    reader.set_categories();
    let gangs = intern_gangs(&mut reader.option_sets);
    let Reader {
        entries,
        option_sets,
        category_limits,
        max_jobs,
        names,
        edges,
        subdags,
        input_sets,
        inputs_of,
        ..
    } = reader;
    let Edges {
        first_child,
        children,
        parent_counts,
    } = collect(&edges, entries.len());
    let dag = Dag {
        text,
        entries,
        options: option_sets,
        gangs,
        category_limits,
        max_jobs,
        names,
        first_child,
        children,
        parent_counts,
        subdags,
        input_sets,
        inputs_of,
        growth: None,
    };
    Ok((dag, refusal))
}

struct Reader<'a> {
    text: &'a [u8],
    /// Number of the current line, from 1.
    number: u64,
    entries: Vec<Entry>,
    names: NameIndex,
    /// Hashes and line numbers of the latest tasks, whose names are not in the index yet.
    new_names: Vec<(u32, u64)>,
    edges: Vec<(TaskId, TaskId)>,
    /// Edges whose tasks have not been looked up yet.
    new_edges: Vec<NewEdge<'a>>,
    /// Identifier of the last `#@` line, for the next task.
    id: Option<&'a [u8]>,
    /// Names of the last `#inputs` line, for the next task.
    inputs: Option<&'a [u8]>,
    /// Position and length of the names of each set.
    input_sets: Vec<(usize, u32)>,
    known_inputs: FxHashMap<&'a [u8], u32>,
    inputs_of: Vec<u32>,
    option_sets: Vec<Options>,
    known_sets: FxHashMap<Options, u32>,
    /// Maximum running tasks of each category.
    category_limits: Vec<u32>,
    /// Maximum running tasks of all categories and without one.
    max_jobs: Option<u32>,
    /// Numbers of these categories by name.
    categories: FxHashMap<Vec<u8>, CategoryId>,
    subdags: Vec<(TaskId, SubdagEntry)>,
}

struct NewEdge<'a> {
    line: u64,
    /// Parent and child, each with the hash of its name.
    ends: [(u32, &'a [u8]); 2],
}

impl<'a> Reader<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self {
            text,
            number: 0,
            entries: Vec::new(),
            names: NameIndex::default(),
            new_names: Vec::with_capacity(BLOCK_SIZE),
            edges: Vec::new(),
            new_edges: Vec::with_capacity(BLOCK_SIZE),
            id: None,
            inputs: None,
            input_sets: Vec::new(),
            known_inputs: FxHashMap::default(),
            inputs_of: Vec::new(),
            option_sets: vec![Options::default()],
            known_sets: FxHashMap::from_iter([(Options::default(), 0)]),
            category_limits: Vec::new(),
            max_jobs: None,
            categories: FxHashMap::default(),
            subdags: Vec::new(),
        }
    }

    fn line(&mut self, line: &'a [u8]) -> Result<(), DagError> {
        if line.len() >= u32::MAX as usize {
            return Err(self.error(DagErrorKind::LineTooLong));
        }
        match Record::parse(line).map_err(|kind| self.error(kind))? {
            Record::Task(TaskRecord { name, rest }) => self.task(name, rest),
            Record::Edge { parent, child } => self.edge([parent, child]),
            Record::Label { id, .. } => {
                self.id = Some(id);
                Ok(())
            }
            Record::MaxJobs { category, limit } => self.max_jobs(category.into_owned(), limit),
            Record::Subdag { name, dag, directory } => {
                let entry = SubdagEntry {
                    dag: dag.into_owned(),
                    directory: directory.map(std::borrow::Cow::into_owned),
                    description: None,
                    is_prepared: false,
                };
                self.add(name, Options::default(), &name[name.len()..])?;
                // Fits, because the number was checked.
                let task = TaskId(self.entries.len() as u32 - 1);
                self.subdags.push((task, entry));
                Ok(())
            }
            Record::PreScript(TaskRecord { name, rest }) => self.pre_script(name, rest),
            Record::Job { name, description } => {
                let last = TaskId((self.entries.len() as u32).wrapping_sub(1));
                let is_last = self.subdags.last().is_some_and(|(task, _)| *task == last);
                match is_last && self.name(last) == name {
                    true => {
                        if let Some((_, entry)) = self.subdags.last_mut() {
                            entry.description = Some(description.to_owned());
                        }
                        Ok(())
                    }
                    // A DAG file of DAGMan.
                    false => Err(self.error(DagErrorKind::Record(lossy(line.trim_ascii())))),
                }
            }
            Record::Inputs { names } => {
                self.inputs = Some(names);
                Ok(())
            }
            Record::Nothing => Ok(()),
        }
    }

    fn error(&self, kind: DagErrorKind) -> DagError {
        DagError::at(self.number, kind)
    }

    fn task(&mut self, name: &'a [u8], rest: &'a [u8]) -> Result<(), DagError> {
        let (options, command) = match options::parse(name, rest) {
            Ok(parsed) => parsed,
            Err(kind) => {
                self.flush()?;
                let known = self
                    .names
                    .find(names::hash(name), |task| self.name(task) == name)
                    .is_some();
                let kind = if known {
                    DagErrorKind::DuplicateTask(lossy(name))
                } else {
                    kind
                };
                return Err(self.error(kind));
            }
        };
        self.add(name, options, command)
    }

    /// Adds a task. Its name is looked up later, with others.
    fn add(&mut self, name: &'a [u8], options: Options, command: &'a [u8]) -> Result<(), DagError> {
        if !self.new_edges.is_empty() || self.new_names.len() == BLOCK_SIZE {
            self.flush()?;
        }
        let hash = names::hash(name);
        let id = self.id.take();
        let start = self.offset(name);
        let id_before = id.map_or(0, |id| start - self.offset(id));
        let id_before = u32::try_from(id_before).map_err(|_| self.error(DagErrorKind::LineTooLong))?;
        let options = self.option_set(options).map_err(|kind| self.error(kind))?;
        new_number(self.entries.len(), "tasks").map_err(|kind| self.error(kind))?;
        let entry = Entry {
            name: start,
            name_len: name.len() as u32,
            id_before,
            id_len: id.map_or(NO_ID, |id| id.len() as u32),
            command: (self.offset(command) - start) as u32,
            command_len: command.len() as u32,
            options,
        };
        self.entries.push(entry);
        self.new_names.push((hash, self.number));
        if let Some(names) = self.inputs.take() {
            self.set_inputs(names);
        }
        Ok(())
    }

    /// Gives the last task its set of inputs.
    fn set_inputs(&mut self, names: &'a [u8]) {
        let offset = self.offset(names);
        // There are no more sets than tasks, whose number was checked.
        let next = self.input_sets.len() as u32 + 1;
        let set = *self.known_inputs.entry(names).or_insert(next);
        if set == next {
            self.input_sets.push((offset, names.len() as u32));
        }
        self.inputs_of.resize(self.entries.len(), 0);
        if let Some(last) = self.inputs_of.last_mut() {
            *last = set;
        }
    }

    /// Gives a sub-workflow the options and the command that make its DAG file.
    fn pre_script(&mut self, name: &'a [u8], rest: &'a [u8]) -> Result<(), DagError> {
        self.flush()?;
        let failed = |kind| DagError::at(self.number, kind);
        let (mut options, command) = options::parse(name, rest).map_err(failed)?;
        // What it makes must be where the DAG file is, even if `pegasus-lite` runs it.
        options.anywhere = false;
        let has_category = options
            .rare
            .as_ref()
            .is_some_and(|rare| !rare.category.is_empty());
        if has_category {
            return Err(failed(DagErrorKind::ScriptCategory(lossy(name))));
        }
        if options
            .rare
            .as_ref()
            .is_some_and(|rare| rare.gang != GangOptions::default())
        {
            return Err(failed(DagErrorKind::ScriptGang(
                lossy(name),
                "-N, --ranks, --exclusive or --on",
            )));
        }
        let task = self.names.find(names::hash(name), |task| self.name(task) == name);
        let place = task.and_then(|task| self.subdags.binary_search_by_key(&task, |(task, _)| *task).ok());
        let Some(place) = place else {
            return Err(failed(DagErrorKind::NoSuchSubdag(lossy(name))));
        };
        if self.subdags[place].1.is_prepared {
            return Err(failed(DagErrorKind::SecondScript(lossy(name))));
        }
        let task = self.subdags[place].0;
        let distance = self.offset(command) - self.entries[task.index()].name;
        let distance = u32::try_from(distance).map_err(|_| failed(DagErrorKind::LineTooLong))?;
        let options = self.option_set(options).map_err(|kind| self.error(kind))?;
        self.subdags[place].1.is_prepared = true;
        let entry = &mut self.entries[task.index()];
        (entry.command, entry.command_len, entry.options) = (distance, command.len() as u32, options);
        Ok(())
    }

    fn edge(&mut self, ends: [&'a [u8]; 2]) -> Result<(), DagError> {
        if !self.new_names.is_empty() || self.new_edges.len() == BLOCK_SIZE {
            self.flush()?;
        }
        let ends = ends.map(|name| (names::hash(name), name));
        self.new_edges.push(NewEdge {
            line: self.number,
            ends,
        });
        Ok(())
    }

    /// Handles the pending names or edges; there are never both.
    fn flush(&mut self) -> Result<(), DagError> {
        self.flush_names()?;
        self.flush_edges()
    }

    fn flush_names(&mut self) -> Result<(), DagError> {
        let mut new = mem::take(&mut self.new_names);
        self.names.reserve(new.len());
        for (hash, _) in &new {
            self.names.touch(*hash);
        }
        let first = self.entries.len() - new.len();
        for (at, (hash, line)) in (first..).zip(new.drain(..)) {
            // Fits, because the number was checked when the entry was added.
            let task = TaskId(at as u32);
            let name = self.name(task);
            if self.names.find(hash, |other| self.name(other) == name).is_some() {
                return Err(DagError::at(line, DagErrorKind::DuplicateTask(lossy(name))));
            }
            self.names.insert(hash, task);
        }
        self.new_names = new;
        Ok(())
    }

    fn flush_edges(&mut self) -> Result<(), DagError> {
        let mut new = mem::take(&mut self.new_edges);
        let ends = || new.iter().flat_map(|edge| &edge.ends);
        for (hash, _) in ends() {
            self.names.touch(*hash);
        }
        let mut guesses = [0; 2 * BLOCK_SIZE];
        for ((hash, _), guess) in ends().zip(&mut guesses) {
            *guess = self
                .names
                .guess(*hash)
                .map_or(0, |task| self.entries[task.index()].name);
        }
        for guess in guesses {
            black_box(self.text.get(guess).copied());
        }
        for edge in new.drain(..) {
            let [parent, child] = edge.ends.map(|(hash, name)| {
                self.names
                    .find(hash, |task| self.name(task) == name)
                    .ok_or_else(|| DagError::at(edge.line, DagErrorKind::NoSuchTask(lossy(name))))
            });
            let (parent, child) = (parent?, child?);
            new_number(self.edges.len(), "edges").map_err(|kind| DagError::at(edge.line, kind))?;
            self.edges.push((parent, child));
        }
        self.new_edges = new;
        Ok(())
    }

    fn name(&self, task: TaskId) -> &'a [u8] {
        self.entries[task.index()].name(self.text)
    }

    /// Sets the limit of a category. The last line of a category counts.
    fn max_jobs(&mut self, name: Vec<u8>, limit: u32) -> Result<(), DagError> {
        if name == ALL_TASKS {
            self.max_jobs = Some(limit);
            return Ok(());
        }
        let limits = &mut self.category_limits;
        let number =
            new_number(limits.len(), "categories").map_err(|kind| DagError::at(self.number, kind))?;
        let category = *self.categories.entry(name).or_insert(CategoryId(number));
        if category.index() == limits.len() {
            limits.push(limit);
        } else {
            limits[category.index()] = limit;
        }
        Ok(())
    }

    /// Sets the categories of the sets of options. A category without a limit is as good as none.
    fn set_categories(&mut self) {
        for set in &mut self.option_sets {
            let rare = set.rare.as_ref();
            let category = rare.and_then(|rare| self.categories.get(rare.category.as_slice()));
            set.category = category.copied();
        }
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

    /// Returns the position of a part of the text.
    fn offset(&self, part: &[u8]) -> usize {
        part.as_ptr() as usize - self.text.as_ptr() as usize
    }
}

/// Returns the different gangs of all sets of options, and notes the number of each set's own.
fn intern_gangs(sets: &mut [Options]) -> Vec<Gang> {
    let mut gangs = Vec::new();
    let mut known: FxHashMap<GangOptions, GangId> = FxHashMap::default();
    for rare in sets.iter_mut().filter_map(|set| set.rare.as_mut()) {
        // Each line was checked.
        let Ok(Some(gang)) = rare.gang.gang() else {
            continue;
        };
        // There are no more gangs than sets, whose number was checked.
        let next = GangId(gangs.len() as u32);
        let id = *known.entry(rare.gang.clone()).or_insert(next);
        if id == next {
            gangs.push(gang);
        }
        rare.gang_id = Some(id);
    }
    gangs
}

/// Returns the next number. Numbers stay below `u32::MAX`, which stands for none.
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

/// Sorts edges by parent, keeping their order, and removes duplicates.
fn collect(edges: &[(TaskId, TaskId)], tasks: usize) -> Edges {
    // A counting sort. Afterwards `end[p + 1]` is where the children of p end and those of p + 1 begin.
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
    // Reuses the array for the latest parent of each child.
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
