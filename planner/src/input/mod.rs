//! Reads an abstract workflow: Pegasus YAML 5.0 or DAX XML, a DAGMan file of HTCondor, a DAG for
//! pegasus-mpi-cluster, a file of commands, or a job file of HyperQueue.

mod builder;
mod commands;
mod dagman;
mod dax;
mod executor_dag;
mod graph;
mod hyperqueue;
mod workflow_yaml;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use builder::Builder;
pub use commands::{MAX_COMMAND, is_name, name_of, shell_words};
use pmc_dag::words::on_one_line;

use crate::catalog::replica::ReplicaCatalog;
use crate::catalog::site::SiteCatalog;
use crate::catalog::transformation::TransformationCatalog;
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::expand::{ExpandEnv, expand};
use crate::model::{Arguments, Workflow};
use crate::syntax::{text, xml, yaml};

/// Version of the workflow format that a workflow of another format has in the records of a plan.
const DAG_VERSION: &str = "5.0";

/// Options for reading a workflow.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Derive edges from files (`pegasus.parser.dax.data.dependencies`).
    pub data_dependencies: bool,
    /// Keep line breaks in XML arguments (`pegasus.parser.dax.preserve.linebreaks`). Since a DAG cannot
    /// express them, they become spaces in the end, like those of YAML arguments.
    pub preserve_linebreaks: bool,
    /// Join the arguments of a YAML job with spaces to one text, which the executor splits, as in Pegasus.
    /// Otherwise each is one word (`pegasus.parser.arguments.split`).
    pub split_arguments: bool,
    /// Largest YAML file in MB (`pegasus.parser.document.size`).
    pub document_megabytes: u64,
    /// Where relative paths in a DAGMan file, a DAG or commands begin (`pmc.dag.directory`); otherwise at the
    /// directory of the file.
    pub dag_directory: Option<PathBuf>,
}

/// Property for [`ReadOptions::split_arguments`].
const SPLIT_ARGUMENTS: &str = "pegasus.parser.arguments.split";

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            data_dependencies: true,
            preserve_linebreaks: false,
            split_arguments: true,
            document_megabytes: 500,
            dag_directory: None,
        }
    }
}

impl ReadOptions {
    /// Reads the options from properties.
    ///
    /// # Errors
    /// A value that is no boolean or no number.
    pub fn from_properties(properties: &crate::properties::Properties) -> Result<Self, InputErrors> {
        let default = ReadOptions::default();
        Ok(ReadOptions {
            data_dependencies: properties.get_bool("pegasus.parser.dax.data.dependencies", true)?,
            preserve_linebreaks: properties.get_bool("pegasus.parser.dax.preserve.linebreaks", false)?,
            split_arguments: properties.get_bool(SPLIT_ARGUMENTS, true)?,
            document_megabytes: properties
                .get_number("pegasus.parser.document.size")?
                .unwrap_or(default.document_megabytes),
            dag_directory: properties
                .get("pmc.dag.directory")
                .map(str::trim)
                .filter(|directory| !directory.is_empty())
                .map(PathBuf::from),
        })
    }
}

/// What a workflow file holds.
#[derive(Clone, Debug)]
pub struct ParsedWorkflow {
    /// The workflow.
    pub workflow: Workflow,
    /// Catalogs inside the file.
    pub embedded: Embedded,
}

impl From<Workflow> for ParsedWorkflow {
    fn from(workflow: Workflow) -> Self {
        ParsedWorkflow {
            workflow,
            embedded: Embedded::default(),
        }
    }
}

/// Catalog entries in the workflow file itself.
#[derive(Clone, Debug, Default)]
pub struct Embedded {
    /// Sites, which override those of the site catalog file.
    pub sites: Option<SiteCatalog>,
    /// Transformations.
    pub transformations: Option<TransformationCatalog>,
    /// Replicas.
    pub replicas: Option<ReplicaCatalog>,
}

/// Reads a workflow: expands its variables, checks its consistency, derives edges from files. DAGMan files,
/// DAGs for pegasus-mpi-cluster and files of commands are known by their content, job files of HyperQueue by
/// the ending `.toml`; relative paths in them begin at their directory.
///
/// # Errors
/// All problems of the file.
pub fn read_workflow(
    path: &Path,
    env: &ExpandEnv,
    options: &ReadOptions,
) -> Result<ParsedWorkflow, InputErrors> {
    let text = text::load(path)?;
    let own = path.parent().unwrap_or(Path::new("/"));
    let directory = match &options.dag_directory {
        Some(directory) => own.join(directory),
        None => own.to_owned(),
    };
    if dagman::is_dagman(path, &text) {
        return dagman::read(path, &directory, env, options).map(ParsedWorkflow::from);
    }
    if executor_dag::is_executor_dag(&text) {
        let whole = executor_dag::Whole::Run;
        return executor_dag::read(path, &text, &directory, whole, options).map(ParsedWorkflow::from);
    }
    if hyperqueue::is_job_file(path) {
        return hyperqueue::read(path, &text, &directory, options).map(ParsedWorkflow::from);
    }
    if commands::is_commands(path, &text) {
        return commands::read(path, &text, &directory, options).map(ParsedWorkflow::from);
    }
    let text = expand(path, &text, env)?;
    read_text(path, &text, options)
}

/// Reads the file of a job of the type `condorWorkflow`: a DAGMan file, or a DAG for pegasus-mpi-cluster.
/// Relative paths in it begin at `directory`.
///
/// # Errors
/// The first problem of a DAGMan file; all problems of a DAG.
pub(crate) fn read_dag(
    path: &Path,
    directory: &Path,
    env: &ExpandEnv,
    options: &ReadOptions,
) -> Result<Workflow, InputErrors> {
    let text = text::load(path)?;
    match executor_dag::is_executor_dag(&text) {
        true => executor_dag::read(path, &text, directory, executor_dag::Whole::Part, options),
        false => dagman::read(path, directory, env, options),
    }
}

/// Returns whether a file is a DAG for pegasus-mpi-cluster.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn is_executor_dag(path: &Path) -> Result<bool, InputErrors> {
    Ok(executor_dag::is_executor_dag(&text::load(path)?))
}

/// Reads a workflow from text with variables already expanded. `path` is for messages and the model.
///
/// # Errors
/// All problems of the text.
pub fn read_text(path: &Path, text: &str, options: &ReadOptions) -> Result<ParsedWorkflow, InputErrors> {
    read_in(path, text, options, dax::ReaderMode::Fast)
}

fn read_in(
    path: &Path,
    text: &str,
    options: &ReadOptions,
    mode: dax::ReaderMode,
) -> Result<ParsedWorkflow, InputErrors> {
    let mut builder = Builder::new(path);
    let stop = if text::is_xml(text) {
        let mut xml = xml::Xml::new(path, text);
        let stop = dax::read(&mut xml, &mut builder, options, mode).err();
        builder.problems.append(&mut xml.problems);
        stop
    } else {
        let limit = options.document_megabytes.saturating_mul(1_000_000);
        if text.len() as u64 > limit {
            let message = format!(
                "the workflow has {} MB, more than {} MB",
                text.len() / 1_000_000,
                options.document_megabytes
            );
            let hint = "set the property pegasus.parser.document.size to more MB";
            return Err(Diagnostic::in_file(path, message).with_hint(hint).into());
        }
        let mut yaml = yaml::Yaml::new(path, text);
        let stop = workflow_yaml::read(&mut yaml, &mut builder).err();
        builder.problems.append(&mut yaml.problems);
        stop.map(|stop| Box::new(stop.into_error()))
    };
    if let Some(error) = stop {
        // Earlier problems may be consequences of the syntax error.
        return Err((*error).into());
    }
    builder
        .problems
        .sort_by_key(|p| p.position.map(|p| (p.line, p.column)));
    let embedded = std::mem::take(&mut builder.embedded);
    let mut workflow = builder.finish(options)?;
    settle_arguments(path, &mut workflow, options)?;
    Ok(ParsedWorkflow { workflow, embedded })
}

/// Joins the arguments of each job if they are to be split, and makes each text one line.
fn settle_arguments(path: &Path, workflow: &mut Workflow, options: &ReadOptions) -> Result<(), InputErrors> {
    let mut problems = Vec::new();
    for job in &mut workflow.jobs {
        if let Arguments::Words(words) = &job.arguments
            && options.split_arguments
        {
            job.arguments = Arguments::Raw(words.join());
        }
        let Arguments::Raw(text) = &mut job.arguments else {
            continue;
        };
        match on_one_line(text) {
            Some(Cow::Borrowed(_)) => {}
            Some(Cow::Owned(line)) => *text = line,
            None => problems.push(
                Diagnostic::at(
                    path,
                    job.position,
                    format!(
                        "the arguments of the job {} contain a line break inside quotes or after a backslash, which a \
                         DAG cannot express",
                        job.id
                    ),
                )
                .with_hint("write the text to a file that the job reads"),
            ),
        }
    }
    InputErrors::check(problems)
}

#[cfg(test)]
mod tests;
