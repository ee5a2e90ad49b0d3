//! Lists and DAGs of the jobs of clusters, which the aggregators read.

use std::borrow::Cow;

use pmc_dag::list;
use pmc_dag::write::{self, TaskLine, WriteError};

use crate::diagnostic::Diagnostic;
use crate::exec::{Aggregator, JobId};
use crate::tasks::{Invocation, Invocations, PlannedJob};

use super::task_line::Line;

/// Appends the input of the aggregator of a cluster.
///
/// # Errors
/// Jobs that the list cannot express.
pub(crate) fn list(
    invocations: &mut Invocations<'_>,
    id: JobId,
    text: &mut String,
) -> Result<(), Vec<Diagnostic>> {
    let plan = invocations.plan();
    let Some(cluster) = plan.at(id).cluster() else {
        return Ok(());
    };
    let mut problems = Vec::new();
    let (mut invocation, mut line) = (Invocation::default(), Line::default());
    for (k, position) in cluster.members.clone().enumerate() {
        let member = plan.member(position);
        match invocations.fill(member, &mut invocation) {
            Ok(()) => {
                line.fill(&invocation);
                let entry = entry(plan.at(member), cluster.aggregator, k as u64 + 1, &line, text);
                problems.extend(entry.err().map(|problem| Diagnostic::error(problem.to_string())));
            }
            Err(more) => problems.extend(more),
        }
    }
    if cluster.aggregator == Aggregator::MpiExec {
        text.push('\n');
        for &(parent, child) in &cluster.edges {
            let name = |position: usize| &plan.job(plan.member(position)).name;
            if let Err(problem) = write::edge(text, name(parent), name(child)) {
                problems.push(Diagnostic::error(problem.to_string()));
            }
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

fn entry(
    member: PlannedJob<'_>,
    aggregator: Aggregator,
    number: u64,
    line: &Line,
    text: &mut String,
) -> Result<(), WriteError> {
    comment(member, number, &mut String::new(), text)?;
    let command = format!("{}{} {}", line.environment(), line.program(), line.arguments());
    let command = command.trim_end_matches([' ', '\t']);
    match aggregator {
        Aggregator::SeqExec => {
            if command.contains(['\n', '\r']) {
                return Err(WriteError::LineBreak {
                    what: "command",
                    task: member.name.to_string(),
                });
            }
            list::translate(command, text);
            Ok(())
        }
        Aggregator::MpiExec => {
            // The retries are those of the cluster as a whole.
            let task = TaskLine {
                tries: None,
                ..line.task(&member.name, command)
            };
            write::task(text, &task)
        }
    }
}

/// Appends the line with transformation and identifier of a job. `scratch` is a buffer.
///
/// # Errors
/// A name that the line cannot express.
pub(crate) fn comment(
    job: PlannedJob<'_>,
    number: u64,
    scratch: &mut String,
    text: &mut String,
) -> Result<(), WriteError> {
    scratch.clear();
    job.plan.push_transformation(&job, scratch);
    let id = job.plan.logical_id(&job);
    write::comment(text, number, &replace_spaces(scratch), &replace_spaces(id))
}

/// Replaces white space in a name.
fn replace_spaces(name: &str) -> Cow<'_, str> {
    if name.contains(char::is_whitespace) {
        Cow::Owned(name.replace(char::is_whitespace, "_"))
    } else {
        Cow::Borrowed(name)
    }
}
