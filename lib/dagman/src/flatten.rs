//! Follows the files that a DAGMan file names, and makes one DAG of them.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::budget::Budget;
use crate::commands::{self, Command, Located, Setting};
use crate::error::{DagmanError, ErrorKind};
use crate::model::{Dag, IgnoredCommand, Node, Work};
use crate::submit::Description;
use file::FileReader;

mod file;

/// Maximum depth of files within each other.
const MAX_DEPTH: usize = 32;
/// Maximum nodes.
const MAX_NODES: usize = 1 << 24;
/// Maximum edges.
const MAX_EDGES: usize = 1 << 26;

/// What a DAGMan file is read with.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Directory to which the paths in the file are relative, absolute.
    pub directory: &'a Path,
    /// Loads a file.
    pub load: &'a dyn Fn(&Path) -> io::Result<String>,
    /// Returns a variable of the environment, for `$ENV(name)`.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

/// Reads a DAGMan file and all files that it names.
///
/// # Errors
/// The first problem, with its file and line.
pub fn read(path: &Path, context: Context<'_>) -> Result<Dag, DagmanError> {
    let mut reader = Reader {
        context,
        budget: Budget::default(),
        dag: Dag::default(),
        done: Vec::new(),
        by_name: FxHashMap::default(),
        descriptions: FxHashMap::default(),
        several: FxHashMap::default(),
        processes: 0,
        chain: Vec::new(),
        top_line: 1,
    };
    let start = Place {
        file: Rc::from(path),
        line: 1,
    };
    let level = Level {
        directory: context.directory.to_owned(),
        prefix: String::new(),
        category_prefix: String::new(),
        priority: 0,
        is_sub_dag: false,
    };
    reader.part(path, &level, &start)?;
    Ok(reader.finish())
}

/// A line of a file.
#[derive(Clone)]
struct Place {
    file: Rc<Path>,
    line: u32,
}

impl Place {
    fn error(&self, kind: ErrorKind) -> DagmanError {
        DagmanError {
            file: self.file.to_path_buf(),
            line: self.line,
            kind,
        }
    }
}

/// What holds for all nodes of a file.
struct Level {
    directory: PathBuf,
    /// Before the names of its nodes: splices and sub-DAGs around it.
    prefix: String,
    /// Before the names of categories that splices share: sub-DAGs around it.
    category_prefix: String,
    /// Added to the priorities of its nodes.
    priority: i64,
    is_sub_dag: bool,
}

impl Level {
    /// Returns the full name of a category.
    fn category(&self, name: &str) -> String {
        match name.starts_with('+') {
            true => format!("{}{name}", self.category_prefix),
            false => format!("{}{name}", self.prefix),
        }
    }
}

/// A submit description and the file that it is in.
type FileDescription = (Rc<Path>, Rc<Description>);

struct Reader<'a> {
    context: Context<'a>,
    budget: Budget,
    dag: Dag,
    done: Vec<bool>,
    /// Nodes by their full names.
    by_name: FxHashMap<String, u32>,
    /// All nodes that a node with several jobs has become, by its number.
    several: FxHashMap<u32, Vec<u32>>,
    /// Number of these nodes.
    processes: u32,
    /// Submit descriptions by their files.
    descriptions: FxHashMap<PathBuf, FileDescription>,
    /// DAGMan files that are being read, the outermost first.
    chain: Vec<PathBuf>,
    top_line: u32,
}

impl Reader<'_> {
    fn load(&self, path: &Path, place: &Place) -> Result<String, DagmanError> {
        let failed = |reason: String| {
            let path = path.to_owned();
            place.error(ErrorKind::Load { path, reason })
        };
        let text = (self.context.load)(path).map_err(|error| failed(error.to_string()))?;
        self.budget.bytes(text.len()).map_err(|kind| place.error(kind))?;
        match text.contains('\0') {
            true => Err(failed("it contains a zero byte".to_owned())),
            false => Ok(text),
        }
    }

    /// Reads a file and what it includes.
    fn commands(
        &mut self,
        path: &Path,
        directory: &Path,
        from: &Place,
    ) -> Result<Vec<(Place, Command)>, DagmanError> {
        if self.chain.len() >= MAX_DEPTH || self.chain.iter().any(|file| file == path) {
            return Err(from.error(ErrorKind::Circle(path.to_owned())));
        }
        self.budget.file().map_err(|kind| from.error(kind))?;
        let text = self.load(path, from)?;
        let file: Rc<Path> = Rc::from(path);
        let at = |line| Place {
            file: Rc::clone(&file),
            line,
        };
        let parsed = commands::parse(&text).map_err(|(line, kind)| at(line).error(kind))?;
        self.chain.push(path.to_owned());
        let mut all = Vec::with_capacity(parsed.len());
        for Located { line, command } in parsed {
            match command {
                Command::Include(file) => {
                    all.extend(self.commands(&directory.join(file), directory, &at(line))?);
                }
                command => all.push((at(line), command)),
            }
            if all.len() > MAX_NODES + MAX_EDGES {
                let (what, limit) = ("commands", MAX_NODES + MAX_EDGES);
                return Err(at(line).error(ErrorKind::TooLarge { what, limit }));
            }
        }
        self.chain.pop();
        Ok(all)
    }

    /// Adds the nodes and edges of a DAGMan file. Returns the numbers of the nodes.
    fn part(&mut self, path: &Path, level: &Level, from: &Place) -> Result<Range<u32>, DagmanError> {
        let commands = self.commands(path, &level.directory, from)?;
        self.chain.push(path.to_owned());
        let first = self.dag.nodes.len() as u32;
        let edges = self.dag.edges.len();
        let mut file = FileReader::new(level);
        let priorities = sub_dag_priorities(&commands);
        let mut rest = Vec::new();
        for (place, command) in commands {
            if level.prefix.is_empty() {
                self.top_line = place.line;
            }
            match command {
                Command::Job(entry) => file.job(self, place, entry)?,
                Command::SubDag(entry) => {
                    let priority = priorities.get(&entry.name).copied().unwrap_or(0);
                    file.group(self, &place, entry, Some(priority))?;
                }
                Command::Splice(entry) => file.group(self, &place, entry, None)?,
                Command::Describe(name, description) => file.describe(&place, name, description)?,
                Command::Ignored(command, reason) => self.dag.ignored.push(IgnoredCommand {
                    file: place.file.to_path_buf(),
                    line: place.line,
                    command,
                    reason,
                }),
                command => rest.push((place, command)),
            }
        }
        for (place, command) in rest {
            file.apply(self, &place, command)?;
        }
        file.finish(self, edges)?;
        self.chain.pop();
        let last = self.dag.nodes.len() as u32;
        if first == last {
            return Err(from.error(ErrorKind::Empty(path.to_owned())));
        }
        Ok(first..last)
    }

    /// Adds a node without its job. Returns its number.
    fn node(
        &mut self,
        level: &Level,
        place: &Place,
        name: &str,
        directory: Option<&str>,
    ) -> Result<u32, DagmanError> {
        let full = format!("{}{name}", level.prefix);
        let node = Node {
            name: full.clone(),
            line: self.top_line,
            directory: directory.map_or_else(|| level.directory.clone(), |d| level.directory.join(d)),
            work: Work::Nothing,
            pre: None,
            post: None,
            pre_skip: None,
            retries: None,
            unless_exit: None,
            priority: (level.priority != 0).then_some(level.priority),
            category: None,
            abort_on: None,
        };
        let number = self.add(node, place)?;
        self.by_name.insert(full, number);
        Ok(number)
    }

    /// Adds a node. Returns its number.
    fn add(&mut self, node: Node, place: &Place) -> Result<u32, DagmanError> {
        if self.dag.nodes.len() >= MAX_NODES {
            let (what, limit) = ("nodes", MAX_NODES);
            return Err(place.error(ErrorKind::TooLarge { what, limit }));
        }
        let bytes = node.name.len() + node.directory.as_os_str().len();
        self.budget.bytes(bytes).map_err(|kind| place.error(kind))?;
        self.done.push(false);
        self.dag.nodes.push(node);
        Ok(self.dag.nodes.len() as u32 - 1)
    }

    /// Returns a submit description in a file.
    fn description(&mut self, path: PathBuf, place: &Place) -> Result<FileDescription, DagmanError> {
        if let Some(known) = self.descriptions.get(&path) {
            return Ok(known.clone());
        }
        let text = self.load(&path, place)?;
        let file: Rc<Path> = Rc::from(path.as_path());
        let parsed = Description::parse(&text).map_err(|(line, kind)| {
            let file = Rc::clone(&file);
            Place { file, line }.error(kind)
        })?;
        let located = (file, Rc::new(parsed));
        self.descriptions.insert(path, located.clone());
        Ok(located)
    }

    /// Leaves out nodes that are done, and repeated edges.
    fn finish(self) -> Dag {
        let Reader { mut dag, done, .. } = self;
        dag.ignored.sort_unstable();
        dag.ignored.dedup();
        let mut numbers = Vec::with_capacity(done.len());
        let mut kept = 0;
        for &is_done in &done {
            numbers.push(kept);
            kept += u32::from(!is_done);
        }
        dag.done = done.len() - kept as usize;
        if dag.done > 0 {
            let mut n = 0;
            dag.nodes.retain(|_| {
                n += 1;
                !done[n - 1]
            });
            dag.edges
                .retain(|&(parent, child)| !done[parent as usize] && !done[child as usize]);
            for (parent, child) in &mut dag.edges {
                *parent = numbers[*parent as usize];
                *child = numbers[*child as usize];
            }
        }
        dag.edges.sort_unstable();
        dag.edges.dedup();
        dag
    }
}

/// Returns the priorities of nodes, of which sub-DAGs need theirs before their own nodes are read.
fn sub_dag_priorities(commands: &[(Place, Command)]) -> FxHashMap<String, i64> {
    let has_any = commands
        .iter()
        .any(|(_, command)| matches!(command, Command::SubDag(_)));
    let mut priorities = FxHashMap::default();
    if !has_any {
        return priorities;
    }
    let mut all = 0;
    for (_, command) in commands {
        match command {
            Command::Set(Some(node), Setting::Priority(priority)) => {
                priorities.insert(node.clone(), *priority);
            }
            Command::Set(None, Setting::Priority(priority)) => {
                all = *priority;
                priorities.clear();
            }
            Command::SubDag(entry) => {
                priorities.entry(entry.name.clone()).or_insert(all);
            }
            _ => {}
        }
    }
    priorities
}

#[cfg(test)]
mod tests;
