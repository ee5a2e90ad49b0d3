//! One DAGMan file: its names, what is said of its nodes, and their jobs.

mod processes;

use std::path::Path;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use self::processes::Several;
use super::{FileDescription, Level, MAX_EDGES, Place, Reader};
use crate::commands::{Command, Entry, Setting, Submit};
use crate::error::{DagmanError, ErrorKind};
use crate::job::{self, Macros, NodeView};
use crate::model::{IgnoredCommand, Node, Script, Word, Work};
use crate::queue::Process;
use crate::submit::Description;

/// What a name in a file stands for.
enum Target {
    Node(u32),
    /// Nodes without parents and nodes without children of a splice or sub-DAG.
    Group(Vec<u32>, Vec<u32>),
}

/// A node of the file that is read, until all commands about it are known.
struct Pending {
    node: u32,
    /// Its full name.
    name: String,
    place: Place,
    submit: Submit,
    noop: bool,
    pre: Option<Vec<String>>,
    post: Option<Vec<String>>,
    prepended: Macros,
    appended: Macros,
}

impl Pending {
    /// Returns the node as its submit description sees it.
    fn view<'v>(
        &'v self,
        reader: &'v Reader<'_>,
        description: &'v Description,
        process: &'v Process,
    ) -> NodeView<'v> {
        let node = &reader.dag.nodes[self.node as usize];
        NodeView {
            name: &self.name,
            number: self.node.saturating_add(1),
            directory: &node.directory,
            is_retried: node.retries.unwrap_or(0) > 0,
            prepended: &self.prepended,
            appended: &self.appended,
            description,
            process,
            environment: reader.context.environment,
            budget: &reader.budget,
        }
    }

    /// Locates a problem: in the submit description in `file`, or in the line of the node.
    fn problem(&self, file: &Rc<Path>, (line, kind): job::Problem) -> DagmanError {
        let file = Rc::clone(if line.is_some() { file } else { &self.place.file });
        let line = line.unwrap_or(self.place.line);
        Place { file, line }.error(kind)
    }
}

/// Reads one DAGMan file.
pub(super) struct FileReader<'l> {
    level: &'l Level,
    /// Nodes, splices and sub-DAGs of the file by their names in it.
    targets: FxHashMap<String, Target>,
    pending: Vec<Pending>,
    /// `SUBMIT-DESCRIPTION`.
    named: FxHashMap<String, FileDescription>,
}

impl<'l> FileReader<'l> {
    pub(super) fn new(level: &'l Level) -> Self {
        FileReader {
            level,
            targets: FxHashMap::default(),
            pending: Vec::new(),
            named: FxHashMap::default(),
        }
    }

    /// Adds a shared submit description.
    pub(super) fn describe(
        &mut self,
        place: &Place,
        name: String,
        description: Description,
    ) -> Result<(), DagmanError> {
        let located = (Rc::clone(&place.file), Rc::new(description));
        match self.named.insert(name.clone(), located) {
            None => Ok(()),
            Some(_) => Err(place.error(ErrorKind::RepeatedName(name))),
        }
    }

    fn name(&mut self, place: &Place, name: String, target: Target) -> Result<(), DagmanError> {
        match self.targets.insert(name.clone(), target) {
            None => Ok(()),
            Some(_) => Err(place.error(ErrorKind::RepeatedName(name))),
        }
    }

    pub(super) fn job(
        &mut self,
        reader: &mut Reader<'_>,
        place: Place,
        entry: Entry<Submit>,
    ) -> Result<(), DagmanError> {
        let node = reader.node(self.level, &place, &entry.name, entry.directory.as_deref())?;
        reader.done[node as usize] = entry.done;
        self.name(&place, entry.name, Target::Node(node))?;
        self.pending.push(Pending {
            node,
            name: reader.dag.nodes[node as usize].name.clone(),
            place,
            submit: entry.content,
            noop: entry.noop,
            pre: None,
            post: None,
            prepended: Macros::default(),
            appended: Macros::default(),
        });
        Ok(())
    }

    /// Adds a splice, or a sub-DAG with its priority.
    pub(super) fn group(
        &mut self,
        reader: &mut Reader<'_>,
        place: &Place,
        entry: Entry<String>,
        sub_dag: Option<i64>,
    ) -> Result<(), DagmanError> {
        if entry.noop || entry.done {
            let node = reader.node(self.level, place, &entry.name, None)?;
            reader.done[node as usize] = entry.done;
            return self.name(place, entry.name, Target::Node(node));
        }
        let directory = match &entry.directory {
            Some(directory) => self.level.directory.join(directory),
            None => self.level.directory.clone(),
        };
        let path = directory.join(&entry.content);
        let prefix = format!("{}{}+", self.level.prefix, entry.name);
        let level = Level {
            directory,
            category_prefix: match sub_dag {
                Some(_) => prefix.clone(),
                None => self.level.category_prefix.clone(),
            },
            prefix,
            priority: self.level.priority.saturating_add(sub_dag.unwrap_or(0)),
            is_sub_dag: sub_dag.is_some() || self.level.is_sub_dag,
        };
        let before = reader.dag.edges.len();
        let nodes = reader.part(&path, &level, place)?;
        let mut has_parents = vec![false; nodes.len()];
        let mut has_children = vec![false; nodes.len()];
        for &(parent, child) in &reader.dag.edges[before..] {
            has_children[(parent - nodes.start) as usize] = true;
            has_parents[(child - nodes.start) as usize] = true;
        }
        let without = |has: &[bool]| {
            let all = nodes.clone().zip(has);
            all.filter(|(_, has)| !**has).map(|(node, _)| node).collect()
        };
        let group = Target::Group(without(&has_parents), without(&has_children));
        self.name(place, entry.name, group)
    }

    /// Returns the first or last nodes of a node or group.
    fn ends<'t>(
        &'t self,
        reader: &'t Reader<'_>,
        name: &str,
        last: bool,
        one: &'t mut [u32; 1],
    ) -> Result<&'t [u32], ErrorKind> {
        match self.targets.get(name) {
            Some(Target::Group(_, terminal)) if last => Ok(terminal),
            Some(Target::Group(initial, _)) => Ok(initial),
            Some(Target::Node(node)) => {
                *one = [*node];
                Ok(one)
            }
            // A node within a splice.
            None => {
                let full = format!("{}{name}", self.level.prefix);
                let node = reader.by_name.get(&full);
                let node = *node.ok_or_else(|| ErrorKind::UnknownNode(name.to_owned()))?;
                if let Some(nodes) = reader.several.get(&node) {
                    return Ok(nodes);
                }
                *one = [node];
                Ok(one)
            }
        }
    }

    pub(super) fn apply(
        &mut self,
        reader: &mut Reader<'_>,
        place: &Place,
        command: Command,
    ) -> Result<(), DagmanError> {
        match command {
            Command::Edges(parents, children) => {
                let edges = self.edges(reader, &parents, &children);
                edges.map_err(|kind| place.error(kind))
            }
            Command::MaxJobs(category, limit) => {
                let category = self.level.category(&category);
                match limit {
                    // As in DAGMan, 0 is no limit.
                    0 => reader.dag.max_jobs.remove(&category),
                    limit => reader.dag.max_jobs.insert(category, limit),
                };
                Ok(())
            }
            Command::Set(node, setting) => self.set(reader, place, node.as_deref(), &setting),
            // The others are done already.
            _ => Ok(()),
        }
    }

    fn edges(
        &self,
        reader: &mut Reader<'_>,
        parents: &[String],
        children: &[String],
    ) -> Result<(), ErrorKind> {
        for parent in parents {
            let mut one = [0];
            let parents = self.ends(reader, parent, true, &mut one)?.to_vec();
            for child in children {
                let mut one = [0];
                let children = self.ends(reader, child, false, &mut one)?.to_vec();
                let new = parents.len().saturating_mul(children.len());
                if reader.dag.edges.len().saturating_add(new) > MAX_EDGES {
                    let (what, limit) = ("edges", MAX_EDGES);
                    return Err(ErrorKind::TooLarge { what, limit });
                }
                for &parent in &parents {
                    reader
                        .dag
                        .edges
                        .extend(children.iter().map(|&child| (parent, child)));
                }
            }
        }
        Ok(())
    }

    /// Applies a setting to a node, or to all nodes of the file.
    fn set(
        &mut self,
        reader: &mut Reader<'_>,
        place: &Place,
        name: Option<&str>,
        setting: &Setting,
    ) -> Result<(), DagmanError> {
        let Some(name) = name else {
            for n in 0..self.pending.len() {
                self.set_one(reader, place, n, setting)?;
            }
            return Ok(());
        };
        match self.targets.get(name) {
            Some(Target::Node(node)) => match self.pending.binary_search_by_key(node, |pending| pending.node)
            {
                Ok(n) => self.set_one(reader, place, n, setting),
                // A sub-DAG without work: DONE or NOOP.
                Err(_) if matches!(setting, Setting::Done) => {
                    reader.done[*node as usize] = true;
                    Ok(())
                }
                Err(_) => Ok(()),
            },
            // It was added to the priorities of its nodes.
            Some(Target::Group(..)) if matches!(setting, Setting::Priority(_) | Setting::Retry(0, _)) => {
                Ok(())
            }
            Some(Target::Group(..)) => Err(place.error(ErrorKind::unsupported(
                format!("this command for {name}"),
                "the nodes of splices and sub-DAGs become nodes of this DAG; write it into the inner file",
            ))),
            None => Err(place.error(ErrorKind::UnknownNode(name.to_owned()))),
        }
    }

    fn set_one(
        &mut self,
        reader: &mut Reader<'_>,
        place: &Place,
        n: usize,
        setting: &Setting,
    ) -> Result<(), DagmanError> {
        let pending = &mut self.pending[n];
        let node = &mut reader.dag.nodes[pending.node as usize];
        match setting {
            Setting::Pre(words) => pending.pre = Some(words.clone()),
            Setting::Post(words) => pending.post = Some(words.clone()),
            Setting::Hold => {}
            Setting::PreSkip(code) => node.pre_skip = Some(*code),
            Setting::Retry(retries, unless_exit) => {
                (node.retries, node.unless_exit) = (Some(*retries), *unless_exit);
            }
            Setting::Priority(priority) => {
                node.priority = Some(priority.saturating_add(self.level.priority));
            }
            Setting::Category(category) => node.category = Some(self.level.category(category)),
            Setting::AbortOn(_) if self.level.is_sub_dag => {
                return Err(place.error(ErrorKind::unsupported(
                    "ABORT-DAG-ON in a sub-DAG",
                    "its nodes become nodes of the DAG around it, which would end",
                )));
            }
            Setting::AbortOn(abort_on) => node.abort_on = Some(*abort_on),
            Setting::Vars(pairs, append) => {
                let (into, other) = match append {
                    true => (&mut pending.appended, &mut pending.prepended),
                    false => (&mut pending.prepended, &mut pending.appended),
                };
                for (name, value) in pairs {
                    other.remove(name);
                    into.insert(name.clone(), value.clone());
                }
            }
            Setting::Done => reader.done[pending.node as usize] = true,
        }
        Ok(())
    }

    /// Completes the nodes of the file. `edges` is the position of its first edge.
    pub(super) fn finish(mut self, reader: &mut Reader<'_>, edges: usize) -> Result<(), DagmanError> {
        let mut several = Several::default();
        for pending in std::mem::take(&mut self.pending) {
            if reader.done[pending.node as usize] {
                continue;
            }
            let node = &reader.dag.nodes[pending.node as usize];
            let script = |words: &Option<Vec<String>>, is_post: bool| {
                let script = words.as_ref().map(|words| self::script(words, node, is_post));
                script.transpose().map_err(|kind| pending.place.error(kind))
            };
            let (pre, post) = (script(&pending.pre, false)?, script(&pending.post, true)?);
            let node = &mut reader.dag.nodes[pending.node as usize];
            (node.pre, node.post) = (pre, post);
            if pending.noop {
                continue;
            }
            let described = self.description(reader, &pending)?;
            let processes = processes::of(reader, &pending, &described)?;
            let nodes = processes::nodes(reader, &pending, processes.len(), &mut several)?;
            for (process, node) in processes.iter().zip(nodes) {
                describe(reader, &pending, &described, (node, process))?;
            }
        }
        processes::connect(reader, edges, several)
    }

    /// Returns the submit description of a node, and the file that it is in.
    fn description(
        &self,
        reader: &mut Reader<'_>,
        pending: &Pending,
    ) -> Result<FileDescription, DagmanError> {
        match &pending.submit {
            Submit::Inline(description) => Ok((Rc::clone(&pending.place.file), Rc::clone(description))),
            Submit::Named(name) => match self.named.get(name) {
                Some(known) => Ok(known.clone()),
                None => {
                    let path = reader.dag.nodes[pending.node as usize].directory.join(name);
                    reader.description(path, &pending.place)
                }
            },
        }
    }
}

/// Sets what a node runs: one of the jobs of a submit description.
fn describe(
    reader: &mut Reader<'_>,
    pending: &Pending,
    described: &FileDescription,
    (number, process): (u32, &Process),
) -> Result<(), DagmanError> {
    let (file, description) = described;
    let number = number as usize;
    let found = job::describe(&pending.view(reader, description, process));
    let found = found.map_err(|problem| pending.problem(file, problem))?;
    if process.number == 0 {
        for (line, command) in found.ignored {
            let file = file.to_path_buf();
            reader.dag.ignored.push(IgnoredCommand {
                file,
                line,
                command,
                reason: "it chooses machines, or acts on jobs in the queue of HTCondor",
            });
        }
    }
    let node = &mut reader.dag.nodes[number];
    node.work = Work::Job(Box::new(found.job));
    // As in HTCondor, a submit description in a file overrides the priority of the node.
    if description.is_file || node.priority.is_none() {
        node.priority = found.priority.or(node.priority);
    }
    Ok(())
}

/// Replaces the macros in the arguments of a script.
fn script(words: &[String], node: &Node, is_post: bool) -> Result<Script, ErrorKind> {
    let retries = node.retries.unwrap_or(0);
    let word = |word: &String| {
        // A macro is a whole word.
        let name = match word.strip_prefix('$') {
            Some(name) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_') => {
                name
            }
            _ => return Ok(Word::Text(word.clone())),
        };
        Ok(match name {
            "NODE" | "JOB" => Word::Text(node.name.clone()),
            "MAX_RETRIES" => Word::Text(retries.to_string()),
            "RETRY" if retries == 0 => Word::Text("0".to_owned()),
            "RETRY" => Word::Retry,
            "JOB_COUNT" => Word::Text("1".to_owned()),
            "RETURN" if is_post => Word::Return,
            "SUCCESS" if is_post => Word::Success,
            "PRE_SCRIPT_RETURN" if is_post => Word::PreScriptReturn,
            _ if MACROS_OF_DAGMAN.contains(&name) => {
                return Err(ErrorKind::Macro {
                    text: word.clone(),
                    problem: "only DAGMan knows it during the run",
                });
            }
            _ => Word::Text(word.clone()),
        })
    };
    let (program, arguments) = words
        .split_first()
        .map_or(("", &[][..]), |(p, rest)| (p.as_str(), rest));
    Ok(Script {
        program: program.to_owned(),
        arguments: arguments.iter().map(word).collect::<Result<_, _>>()?,
    })
}

/// Macros of scripts whose values only DAGMan knows.
const MACROS_OF_DAGMAN: &[&str] = &[
    "CLUSTERID",
    "DAGID",
    "DAG_STATUS",
    "DONE_COUNT",
    "EXIT_CODES",
    "EXIT_CODE_COUNTS",
    "EXIT_CODE_LIST",
    "FAILED_COUNT",
    "FUTILE_COUNT",
    "JOBID",
    "JOB_ABORT_COUNT",
    "NODE_COUNT",
    "PRE_SCRIPT_RETURN",
    "QUEUED_COUNT",
    "RETURN",
    "SUCCESS",
];
