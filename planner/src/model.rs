//! The abstract workflow, as every input syntax is mapped onto it, in document order.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

pub use crate::hook::Hook;
pub use crate::ids::{FileId, JobIndex};

use crate::diagnostic::Diagnostic;
pub use crate::diagnostic::Position;
use crate::profiles::Profiles;
use crate::request::SubworkflowOptions;
use crate::syntax::interner::Interner;

/// Version of Pegasus with which plans are compatible.
pub const COMPATIBLE_VERSION: &str = "5.1.3";

/// A workflow as its author wrote it. Ids, references and cycles are checked, catalogs are not.
#[derive(Clone, Debug, Default)]
pub struct Workflow {
    /// Name, sanitised for use in paths and names.
    pub label: String,
    /// Index of the workflow among those of one label, normally `0`.
    pub index: String,
    /// Version of the format.
    pub version: String,
    /// File that it was read from, absolute.
    pub path: PathBuf,
    /// Modification time of that file.
    pub mtime: Option<SystemTime>,
    /// Metadata in document order, `wf.api` included.
    pub metadata: Vec<(String, String)>,
    /// Hooks of the workflow.
    pub hooks: Vec<Hook>,
    /// Jobs in document order.
    pub jobs: Vec<Job>,
    /// Names of logical files.
    pub files: Files,
    /// Parent, child: explicit and inferred edges, no duplicates, sorted.
    pub edges: Vec<(JobIndex, JobIndex)>,
    /// Maximum of running jobs by category, in lower case. DAGMan files have such limits.
    pub max_jobs: BTreeMap<String, u32>,
    /// Warnings, for example about unknown profile keys.
    pub warnings: Vec<Diagnostic>,
    /// What it was made of.
    pub origin: Origin,
}

/// What a workflow was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Jobs, files and catalogs.
    #[default]
    Workflow,
    /// Commands that have a directory of their own and use no logical files. The plan makes no work
    /// directory, and their output goes into packs.
    Commands,
}

/// Interned logical file names (LFN).
#[derive(Clone, Debug, Default)]
pub struct Files {
    names: Interner,
}

impl Files {
    /// Returns the number of a name, which is added if it is new.
    pub fn intern(&mut self, name: &str) -> FileId {
        FileId::new(self.names.intern(name).0 as usize)
    }
    /// Returns the number of a known name.
    pub fn find(&self, name: &str) -> Option<FileId> {
        let number = self.names.find(name)?;
        Some(FileId::new(number as usize))
    }
    /// The name.
    pub fn name(&self, id: FileId) -> &str {
        self.names.name(id.index() as u32)
    }
    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.len() == 0
    }
}

/// Name of a transformation: namespace, name, version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransformationName {
    /// Namespace, may be absent.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Version, may be absent.
    pub version: Option<String>,
}

impl TransformationName {
    /// From `namespace::name:version`, where only the name must be there.
    pub fn parse(text: &str) -> Self {
        let given = |part: &str| Some(part.to_owned()).filter(|p| !p.is_empty());
        let (namespace, rest) = match text.split_once("::") {
            Some((namespace, rest)) => (given(namespace), rest),
            None => (None, text),
        };
        let (name, version) = match rest.split_once(':') {
            Some((name, version)) => (name, given(version)),
            None => (rest, None),
        };
        TransformationName {
            namespace,
            name: name.to_owned(),
            version,
        }
    }
}

impl TransformationName {
    /// The parts of the name as it is written, with their separators; missing ones are empty.
    fn parts(&self) -> [&str; 5] {
        let (namespace, colons) = self.namespace.as_deref().map_or(("", ""), |n| (n, "::"));
        let (colon, version) = self.version.as_deref().map_or(("", ""), |v| (":", v));
        [namespace, colons, &self.name, colon, version]
    }
    /// Appends the name as it is written.
    pub fn push_to(&self, text: &mut String) {
        for part in self.parts() {
            text.push_str(part);
        }
    }
}

impl std::fmt::Display for TransformationName {
    /// `namespace::name:version`; missing parts vanish with their separator.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts().iter().try_for_each(|part| f.write_str(part))
    }
}

/// Kind of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobKind {
    /// Runs a program.
    #[default]
    Compute,
    /// Runs a workflow that has to be planned (`pegasusWorkflow`, `dax`).
    SubWorkflow,
    /// Runs a DAGMan file (`condorWorkflow`, `dag`).
    SubDag,
}

impl JobKind {
    /// Name under which a sub-workflow appears among transformations, and thereby in the name of its node.
    pub fn planner_name(self) -> TransformationName {
        let (namespace, name, version) = match self {
            JobKind::Compute => (None, "", None),
            JobKind::SubWorkflow => (Some("pegasus"), "pegasus-plan", Some(COMPATIBLE_VERSION)),
            JobKind::SubDag => (Some("condor"), "dagman", None),
        };
        TransformationName {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            version: version.map(str::to_owned),
        }
    }
    /// Type and its description in the event file.
    pub(crate) fn event_type(self) -> (u8, &'static str) {
        match self {
            JobKind::Compute => (1, "compute"),
            JobKind::SubWorkflow => (10, "dax"),
            JobKind::SubDag => (11, "dag"),
        }
    }
}

/// A sub-workflow that is planned, or whose DAG is read, when its turn comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nested {
    /// The workflow or DAG file. `None` if it will be in the work directory under its logical name.
    pub path: Option<PathBuf>,
    /// The file is a DAG for pegasus-mpi-cluster, so there is nothing to plan.
    pub is_ready: bool,
    /// Name of its directory below that of the job's files; unique in a workflow.
    pub name: String,
    /// Base name of the files of its plan.
    pub base: String,
    /// Directory of relative paths in a DAG file.
    pub directory: Option<PathBuf>,
    /// Planner options of its own. Paths of files that exist are absolute.
    pub options: SubworkflowOptions,
    /// Why it is not part of the plan; empty if the user wants it so.
    pub reason: String,
}

/// A job of the abstract workflow.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Identifier in the workflow file.
    pub id: String,
    /// Kind.
    pub kind: JobKind,
    /// Its transformation. Equal names are shared.
    pub transformation: Arc<TransformationName>,
    /// Workflow or DAG file of a sub-workflow.
    pub file: Option<FileId>,
    /// How a sub-workflow runs that is not part of the plan.
    pub nested: Option<Box<Nested>>,
    /// Arguments.
    pub arguments: Arguments,
    /// Standard input, output, error as logical files.
    pub stdin: Option<FileId>,
    /// See `stdin`.
    pub stdout: Option<FileId>,
    /// See `stdin`.
    pub stderr: Option<FileId>,
    /// Files it uses, in document order, one entry per file (first mention wins; input and output of
    /// one file are merged into `Link::InOut`).
    pub uses: Vec<FileUse>,
    /// Profiles.
    pub profiles: Profiles,
    /// Metadata in document order.
    pub metadata: Vec<(String, String)>,
    /// Hooks.
    pub hooks: Vec<Hook>,
    /// Position of the job in the workflow file.
    pub position: Position,
}

/// Arguments of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// One line of text, which goes into the DAG unchanged. The executor splits it.
    Raw(String),
    /// One word for each argument, source text kept (`1.50` stays `1.50`).
    Words(Words),
    /// One word for each argument, which the program gets as it is: nothing is expanded.
    Exact(Words),
}

impl Default for Arguments {
    fn default() -> Self {
        Arguments::Words(Words::default())
    }
}

/// A list of words in one allocation. No word contains a NUL, since no program can receive one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Each word followed by a NUL.
    text: String,
}

impl Words {
    /// Appends a word; what follows a NUL in it is dropped (readers refuse such words before).
    pub fn push(&mut self, word: &str) {
        self.text.push_str(word.split('\0').next().unwrap_or_default());
        self.text.push('\0');
    }
    /// The words.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.text.split_terminator('\0')
    }
    /// Returns the number of words.
    pub fn len(&self) -> usize {
        self.iter().count()
    }
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
    /// Returns the words with spaces between them, without blanks at both ends, as Pegasus joins arguments.
    pub fn join(&self) -> String {
        self.text
            .replace('\0', " ")
            .trim_matches(|c: char| c <= ' ')
            .to_owned()
    }
    /// Frees unused capacity.
    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
    }
}

impl<S: AsRef<str>> FromIterator<S> for Words {
    fn from_iter<I: IntoIterator<Item = S>>(words: I) -> Self {
        let mut all = Words::default();
        for word in words {
            all.push(word.as_ref());
        }
        all
    }
}

/// How a job uses a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUse {
    /// The file.
    pub file: FileId,
    /// Direction.
    pub link: Link,
    /// Kind of the file.
    pub kind: FileKind,
    /// Whether an output is copied to the output sites.
    pub transfer: TransferFlag,
    /// Whether an output is registered.
    pub register: bool,
    /// May be missing.
    pub optional: bool,
    /// May be read from its source (worker-node modes).
    pub bypass: bool,
    /// Needed by the planner of a sub-workflow.
    pub for_planning: bool,
    /// Bytes.
    pub size: Option<u64>,
    /// Metadata in document order.
    pub metadata: Vec<(String, String)>,
}

impl FileUse {
    /// Returns whether the file may be missing when the job has ended, or need not be delivered then.
    pub(crate) fn may_be_missing(&self) -> bool {
        self.optional || self.link == Link::Checkpoint || self.transfer == TransferFlag::Optional
    }
}

/// Direction of a file use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Read.
    Input,
    /// Written.
    Output,
    /// Read and written.
    InOut,
    /// A checkpoint file: read if there, written.
    Checkpoint,
    /// Mentioned only (XML `link="none"`).
    None,
}

impl Link {
    /// The job reads the file.
    pub fn reads(self) -> bool {
        matches!(self, Link::Input | Link::InOut | Link::Checkpoint)
    }
    /// The job writes the file.
    pub fn writes(self) -> bool {
        matches!(self, Link::Output | Link::InOut | Link::Checkpoint)
    }
}

/// Kind of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileKind {
    /// Data.
    #[default]
    Data,
    /// A program to stage.
    Executable,
    /// A checkpoint.
    Checkpoint,
    /// An image of a container.
    Image,
}

/// Whether an output is copied to the output sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferFlag {
    /// Always.
    #[default]
    Mandatory,
    /// If it exists.
    Optional,
    /// Never.
    Not,
}

/// A map with a stable order, as metadata of catalogs have it.
pub type Metadata = BTreeMap<String, String>;
