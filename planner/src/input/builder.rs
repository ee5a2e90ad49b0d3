//! Builds a workflow from the elements that a reader of either syntax finds, and checks its consistency.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Embedded, ReadOptions, graph};
use crate::diagnostic::Diagnostic;
use crate::error::{InputErrors, near_spelling};
use crate::keys::Checker;
use crate::model::{
    FileId, FileKind, FileUse, Job, JobIndex, Link, Position, TransferFlag, TransformationName, Workflow,
};
use crate::profiles::Namespace;
use crate::syntax::interner::Interner;

/// Maximum problems that get a spelling hint: each hint costs a walk over all ids.
const MAX_HINTS: usize = 10;

/// Maximum bytes of the name of a workflow or job: file names add up to fifty bytes to it.
const MAX_NAME: usize = 200;
/// Maximum bytes between two slashes of a file name.
const MAX_COMPONENT: usize = 255;
/// Maximum bytes of a file name; leaves room for the directory before it.
const MAX_PATH: usize = 3500;

/// A dependency with a job that was unknown when the dependency was read.
#[derive(Debug)]
struct Pending {
    parent: Box<str>,
    child: Box<str>,
    position: Position,
}

/// A value is no size of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoSize;

/// A workflow under construction.
pub(crate) struct Builder {
    file: PathBuf,
    pub(crate) workflow: Workflow,
    /// Catalogs inside the file.
    pub(crate) embedded: Embedded,
    pub(crate) problems: Vec<Diagnostic>,
    pub(crate) checker: Checker,
    ids: Interner,
    /// Job of each id. The two numbers differ after a repeated id.
    jobs_of_ids: Vec<JobIndex>,
    transformations: FxHashMap<TransformationName, Arc<TransformationName>>,
    pending: Vec<Pending>,
    last_uses: LastUses,
    /// Number of negative sizes, and the position of the first.
    negative_sizes: (u32, Position),
    /// Data files used by every job of a transformation (DAX only).
    pub(crate) uses_of_transformations: Vec<(TransformationName, FileUse)>,
}

/// Detects repeated uses of a file by one job.
#[derive(Debug, Default)]
struct LastUses {
    /// For each file: number of the last job that used it, counted from 1, and the index in its uses.
    of: Vec<(u32, u32)>,
}

impl LastUses {
    /// Makes room for one more file.
    fn enter(&mut self) {
        self.of.push((0, 0));
    }

    /// Adds a file use to a job, given the number of the job, counted from 1. A second use in the same
    /// direction is ignored; one in the other direction makes the file input and output.
    fn add(&mut self, number: u32, uses: &mut Vec<FileUse>, new: FileUse) {
        let last = &mut self.of[new.file];
        if last.0 != number {
            *last = (number, u32::try_from(uses.len()).unwrap_or(u32::MAX));
            uses.push(new);
            return;
        }
        let first = &mut uses[last.1 as usize];
        let covered =
            (first.link.reads() || !new.link.reads()) && (first.link.writes() || !new.link.writes());
        if covered {
            return;
        }
        if new.link.writes() {
            first.transfer = new.transfer;
            first.register = new.register;
        }
        first.link = if first.link == Link::None {
            new.link
        } else {
            Link::InOut
        };
        if first.kind == FileKind::Data {
            first.kind = new.kind;
        }
        first.size = first.size.or(new.size);
        if first.metadata.is_empty() {
            first.metadata = new.metadata;
        }
    }
}

impl Builder {
    pub(crate) fn new(file: &Path) -> Self {
        Builder {
            file: file.to_owned(),
            workflow: Workflow {
                index: "0".into(),
                path: std::path::absolute(file).unwrap_or_else(|_| file.to_owned()),
                mtime: std::fs::metadata(file).and_then(|m| m.modified()).ok(),
                ..Workflow::default()
            },
            embedded: Embedded::default(),
            problems: Vec::new(),
            checker: Checker::default(),
            ids: Interner::default(),
            jobs_of_ids: Vec::new(),
            transformations: FxHashMap::default(),
            pending: Vec::new(),
            last_uses: LastUses::default(),
            negative_sizes: (0, Position::default()),
            uses_of_transformations: Vec::new(),
        }
    }

    /// Parses the size of a file in bytes. A negative size is unknown.
    pub(crate) fn size(&mut self, value: &str, position: Position) -> Result<Option<u64>, NoSize> {
        if let Some(size) = parse_size(value) {
            return Ok(Some(size));
        }
        let positive = value.trim().strip_prefix('-').ok_or(NoSize)?;
        parse_size(positive).ok_or(NoSize)?;
        if self.negative_sizes.0 == 0 {
            self.negative_sizes.1 = position;
        }
        self.negative_sizes.0 = self.negative_sizes.0.saturating_add(1);
        Ok(None)
    }

    pub(crate) fn problem(&mut self, position: Position, message: impl Into<String>) {
        self.problems.push(Diagnostic::at(&self.file, position, message));
    }

    /// Sets the label. Characters unsuitable for paths and names become `_`.
    pub(crate) fn set_label(&mut self, name: &str, position: Position, replaced: &[char]) {
        let label: String = name
            .chars()
            .map(|c| {
                let unsafe_in_paths = c == '/' || c.is_whitespace() || c.is_control();
                if unsafe_in_paths || replaced.contains(&c) {
                    '_'
                } else {
                    c
                }
            })
            .collect();
        if label.is_empty() || label == "." || label == ".." {
            self.problem(position, format!("`{name}` cannot be the name of a workflow"));
        }
        self.check_length("the name of the workflow", &label, MAX_NAME, position);
        self.workflow.label = label;
    }

    /// Reports a name that is too long to be part of a file name.
    fn check_length(&mut self, what: &str, name: &str, longest: usize, position: Position) {
        if name.len() > longest {
            let beginning: String = name.chars().take(40).collect();
            self.problem(
                position,
                format!(
                    "{what}, `{beginning}…`, has {} bytes; file names contain it, so the maximum is {longest}",
                    name.len()
                ),
            );
        }
    }

    /// Returns the number of a logical file. Reports names that leave the work directory or contain control
    /// characters.
    pub(crate) fn file(&mut self, name: &str, position: Position) -> FileId {
        let known = self.workflow.files.len();
        let id = self.workflow.files.intern(name);
        if self.workflow.files.len() > known {
            self.last_uses.enter();
            if name.len() > MAX_COMPONENT {
                self.check_length("the file name", name, MAX_PATH, position);
                let longest = name.split('/').max_by_key(|part| part.len()).unwrap_or_default();
                self.check_length("a part of a file name", longest, MAX_COMPONENT, position);
            }
            if is_harmless(name) {
            } else if name.is_empty() {
                self.problem(position, "a file name is empty");
            } else if name.contains(|c: char| c.is_control()) {
                self.problem(
                    position,
                    format!(
                        "the file name `{}` contains a control character",
                        name.escape_debug()
                    ),
                );
            } else if name.starts_with('/')
                || (name.contains("..") && name.split('/').any(|part| part == ".."))
            {
                self.problem(
                    position,
                    format!("the file name `{name}` leads out of the work directory"),
                );
            }
        }
        id
    }

    /// Returns the number of a logical file with a harmless name.
    pub(crate) fn harmless_file(&mut self, name: &str) -> Option<FileId> {
        is_harmless(name).then(|| self.enter_file(name))
    }

    /// Returns the number of a logical file whose name was found harmless.
    fn enter_file(&mut self, name: &str) -> FileId {
        let known = self.workflow.files.len();
        let id = self.workflow.files.intern(name);
        if self.workflow.files.len() > known {
            self.last_uses.enter();
        }
        id
    }

    /// Does the same as [`Builder::transformation`] with the parts of the name.
    pub(crate) fn transformation_of(
        &mut self,
        namespace: Option<&str>,
        name: &str,
        version: Option<&str>,
    ) -> Arc<TransformationName> {
        let last = self.workflow.jobs.last().map(|job| &job.transformation);
        if let Some(last) = last
            && last.name == name
            && last.namespace.as_deref() == namespace
            && last.version.as_deref() == version
        {
            return Arc::clone(last);
        }
        self.transformation(TransformationName {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            version: version.map(str::to_owned),
        })
    }

    /// Returns one shared name for all jobs that run the same transformation.
    pub(crate) fn transformation(&mut self, name: TransformationName) -> Arc<TransformationName> {
        if let Some(known) = self.transformations.get(&name) {
            return Arc::clone(known);
        }
        let shared = Arc::new(name);
        self.transformations
            .insert(shared.as_ref().clone(), Arc::clone(&shared));
        shared
    }

    /// Adds a file use to a job that is not yet added, see [`LastUses::add`].
    pub(crate) fn add_use(&mut self, job: &mut Job, new: FileUse) {
        let number = u32::try_from(self.workflow.jobs.len() + 1).unwrap_or(u32::MAX);
        self.last_uses.add(number, &mut job.uses, new);
    }

    /// Adds a job; its id must be new.
    pub(crate) fn add_job(&mut self, mut job: Job, position: Position) {
        job.uses.shrink_to_fit();
        if !job.profiles.is_empty() {
            move_metadata_profiles(&mut job);
        }
        let index = JobIndex::new(self.workflow.jobs.len());
        if job.id.is_empty() {
            self.problem(position, format!("job {} has no id", job.transformation));
        } else if job.id.len() + job.transformation.name.len() > MAX_NAME {
            let name = format!("{}_{}", job.transformation.name, job.id);
            self.check_length("the name of the job", &name, MAX_NAME, position);
        } else {
            let (id, new) = self.ids.intern(&job.id);
            if new {
                self.jobs_of_ids.push(index);
            } else {
                let first = self.jobs_of_ids[id as usize];
                let line = self.workflow.jobs[first].position.line;
                self.problem(
                    position,
                    format!("the job id {} is used twice, first in line {line}", job.id),
                );
            }
        }
        self.workflow.jobs.push(job);
    }

    /// Returns the job with an id.
    pub(crate) fn job(&self, id: &str) -> Option<JobIndex> {
        self.ids.find(id).map(|n| self.jobs_of_ids[n as usize])
    }

    /// Adds an edge between jobs by id. The jobs may come later in the file.
    pub(crate) fn add_dependency(&mut self, parent: &str, child: &str, position: Position) {
        match (self.job(parent), self.job(child)) {
            (Some(first), Some(second)) if first == second => self.report_self_dependency(parent, position),
            (Some(parent), Some(child)) => self.workflow.edges.push((parent, child)),
            _ => self.pending.push(Pending {
                parent: parent.into(),
                child: child.into(),
                position,
            }),
        }
    }

    /// Gives each job the data files of its transformation.
    fn share_uses(&mut self) {
        let mut shared: FxHashMap<TransformationName, Vec<FileUse>> = FxHashMap::default();
        for (name, file_use) in self.uses_of_transformations.drain(..) {
            let uses = shared.entry(name).or_default();
            if uses.iter().all(|u| u.file != file_use.file) {
                uses.push(file_use);
            }
        }
        if shared.is_empty() {
            return;
        }
        for job in &mut self.workflow.jobs {
            for file_use in shared.get(&*job.transformation).into_iter().flatten() {
                if job.uses.iter().all(|u| u.file != file_use.file) {
                    job.uses.push(file_use.clone());
                }
            }
        }
    }

    fn report_self_dependency(&mut self, id: &str, position: Position) {
        let message = format!("the dependency {id} -> {id} makes the job depend on itself");
        self.problems
            .push(Diagnostic::at(&self.file, position, message).with_hint("take it out"));
    }

    fn resolve_pending(&mut self) {
        for Pending {
            parent,
            child,
            position,
        } in std::mem::take(&mut self.pending)
        {
            if let (Some(first), Some(second)) = (self.job(&parent), self.job(&child)) {
                if first == second {
                    self.report_self_dependency(&parent, position);
                } else {
                    self.workflow.edges.push((first, second));
                }
                continue;
            }
            for id in [&parent, &child] {
                if self.job(id).is_some() {
                    continue;
                }
                let mut error = Diagnostic::at(
                    &self.file,
                    position,
                    format!("the dependency {parent} -> {child} names the job {id}, which does not exist"),
                );
                if self.problems.len() < MAX_HINTS
                    && let Some(near) =
                        near_spelling(id, self.workflow.jobs.iter().map(|job| job.id.as_str()))
                {
                    error = error.with_hint(format!("did you mean {near}?"));
                }
                self.problems.push(error);
                if parent == child {
                    break;
                }
            }
        }
    }

    /// Checks the whole workflow and returns it.
    pub(crate) fn finish(mut self, options: &ReadOptions) -> Result<Workflow, InputErrors> {
        self.resolve_pending();
        self.share_uses();
        if self.workflow.jobs.is_empty() && self.problems.is_empty() {
            self.problems.push(Diagnostic::in_file(
                &self.file,
                "the workflow has no jobs to plan",
            ));
        }
        if self.workflow.label.is_empty() && self.problems.is_empty() {
            self.problems
                .push(Diagnostic::in_file(&self.file, "the workflow has no name"));
        }
        self.workflow.warnings.append(&mut self.checker.warnings);
        if let (count @ 1.., first) = self.negative_sizes {
            let message = format!("sizes of files are negative ({count} in all), so they count as unknown");
            self.workflow
                .warnings
                .push(Diagnostic::at(&self.file, first, message));
        }
        let producers = graph::producers(&self.workflow, &self.file, &mut self.problems);
        if options.data_dependencies {
            graph::infer_edges(&mut self.workflow, &producers);
        }
        drop(producers);
        graph::normalize_edges(&mut self.workflow);
        // A cycle in a graph with missing or repeated jobs is misleading.
        if self.problems.is_empty()
            && let Some(error) = graph::find_cycle(&self.workflow, &self.file)
        {
            self.problems.push(error);
        }
        InputErrors::check(self.problems)?;
        Ok(self.workflow)
    }
}

/// Parses a size in bytes. Some generators write decimals.
pub(super) fn parse_size(value: &str) -> Option<u64> {
    let value = value.trim();
    let whole = value.split_once('.').map_or(value, |(whole, decimals)| {
        if decimals.bytes().all(|b| b.is_ascii_digit()) {
            whole
        } else {
            value
        }
    });
    whole.parse().ok()
}

/// Returns whether a file name is certainly valid.
fn is_harmless(name: &str) -> bool {
    let special = |b: u8| b.is_ascii_control() | !b.is_ascii();
    !name.is_empty()
        && name.len() <= MAX_COMPONENT
        && !name.starts_with('/')
        && !name.bytes().fold(false, |found, b| found | special(b))
        && !name.contains("..")
}

/// Turns profiles of the namespace `metadata` into metadata of the job.
fn move_metadata_profiles(job: &mut Job) {
    let pairs: Vec<(String, String)> = job
        .profiles
        .of(Namespace::Metadata)
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    for (key, value) in pairs {
        job.profiles.remove(Namespace::Metadata, &key);
        if !job.metadata.iter().any(|(known, _)| *known == key) {
            job.metadata.push((key, value));
        }
    }
}

/// Returns a file use with the defaults of both syntaxes.
pub(crate) fn default_use(file: FileId, link: Link) -> FileUse {
    FileUse {
        file,
        link,
        kind: FileKind::Data,
        transfer: TransferFlag::Mandatory,
        register: true,
        optional: false,
        bypass: false,
        for_planning: false,
        size: None,
        metadata: Vec::new(),
    }
}
