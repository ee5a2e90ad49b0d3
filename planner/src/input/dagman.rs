//! Reads a DAGMan file of HTCondor as a workflow: each node becomes a compute job that runs in the directory
//! of its submit description. Such jobs use no logical files, so the plan moves none.

mod node;

use std::io;
use std::path::Path;

use pmc_dagman::{Context, DagmanError};

use super::builder::Builder;
use super::{DAG_VERSION, ReadOptions, executor_dag};
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::expand::ExpandEnv;
use crate::model::{JobIndex, Position, Workflow};
use crate::syntax::text;

/// Returns whether a workflow file is a DAGMan file, by its first command. A file named `*.dag` is one also
/// if its first command is unknown, so that the message names the command.
pub(super) fn is_dagman(path: &Path, text: &str) -> bool {
    if pmc_dagman::is_dagman(text) {
        return true;
    }
    if path.extension().is_none_or(|extension| extension != "dag") || executor_dag::is_executor_dag(text) {
        return false;
    }
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'));
    let word = first.and_then(|line| line.split_whitespace().next());
    word.is_some_and(|word| !word.starts_with(['<', '%', '{', '"', '-']) && !word.contains(':'))
}

/// Reads a DAGMan file. Relative paths in it begin at `directory`.
///
/// # Errors
/// The first problem of the file and of those that it names; all cycles and repeated names.
pub(super) fn read(
    path: &Path,
    directory: &Path,
    env: &ExpandEnv,
    options: &ReadOptions,
) -> Result<Workflow, InputErrors> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let load = |path: &Path| text::load(path).map_err(|error| io::Error::other(error.message));
    let context = Context {
        directory: &directory,
        load: &load,
        environment: &|name| env.get(name).map(str::to_owned),
    };
    let dag = pmc_dagman::read(path, context).map_err(input_error)?;
    let mut builder = Builder::new(path);
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    builder.set_label(&name, Position::default(), &[]);
    builder.workflow.version = DAG_VERSION.to_owned();
    for (lower, name) in dag.max_jobs.keys().map(|name| (name.to_lowercase(), name)) {
        let limit = dag.max_jobs[name];
        if builder.workflow.max_jobs.insert(lower, limit).is_some() {
            let message = format!("MAXJOBS limits two categories that differ from {name} only in case");
            builder.problem(Position::default(), message);
        }
    }
    for node in &dag.nodes {
        let position = Position {
            line: node.line,
            column: 0,
        };
        let job = node::job(node, &mut builder, position);
        builder.add_job(job, position);
    }
    let edges = dag.edges.iter();
    let edges = edges.map(|&(parent, child)| (JobIndex::new(parent as usize), JobIndex::new(child as usize)));
    builder.workflow.edges.extend(edges);
    builder.workflow.warnings.extend(dag.ignored.iter().map(warning));
    if dag.nodes.is_empty() {
        builder.problem(Position::default(), "all nodes are marked as done");
    }
    builder.finish(options)
}

fn input_error(error: DagmanError) -> InputErrors {
    let position = Position {
        line: error.line,
        column: 0,
    };
    Diagnostic::at(&error.file, position, error.kind.to_string()).into()
}

fn warning(of: &pmc_dagman::IgnoredCommand) -> Diagnostic {
    let position = Position {
        line: of.line,
        column: 0,
    };
    Diagnostic::at(&of.file, position, of.to_string())
}
