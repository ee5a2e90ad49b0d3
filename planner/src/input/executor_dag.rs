//! Reads a DAG for pegasus-mpi-cluster as a workflow, for a job of the type `condorWorkflow`: each task
//! becomes a compute job with the same command and options.

use std::path::Path;

use pmc_dag::record::{Record, TaskRecord};
use pmc_dag::words::{Words as DagWords, quote};
use pmc_dag::{DagErrorKind, number};

use super::ReadOptions;
use super::builder::Builder;
use crate::error::InputErrors;
use crate::model::{Arguments, Job, Origin, Position, TransformationName, Words, Workflow};
use crate::profiles::{Namespace, Profiles};

/// Finds a program without a slash in its name.
const ENV: &str = "/usr/bin/env";

/// What a file of tasks is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// The workflow of a run.
    Run,
    /// A part of another workflow.
    Part,
}

/// Why a line cannot become a job.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error(transparent)]
    Record(#[from] DagErrorKind),
    #[error("MAXJOBS * would limit the tasks that the plan adds, too: limit a category")]
    MaxJobs,
    #[error("a sub-workflow cannot be planned: run this DAG with pegasus-mpi-cluster")]
    Subdag,
    #[error(transparent)]
    Option(#[from] OptionError),
}

/// Why a task option has no meaning in a plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum OptionError {
    #[error("--abort-on would end the whole workflow: take it out")]
    AbortOn,
    #[error("{0}: forwarded data would go into another directory: let the task write the file")]
    Forward(String),
}

/// Returns whether a text is a DAG for pegasus-mpi-cluster, by its first record.
pub(super) fn is_executor_dag(text: &str) -> bool {
    for line in text.lines() {
        match Record::parse(line.as_bytes()) {
            // DAGMan files and files of commands have such lines, too.
            Ok(
                Record::Nothing
                | Record::Label { .. }
                | Record::Inputs { .. }
                | Record::MaxJobs { .. }
                | Record::Subdag { .. }
                | Record::PreScript(_)
                | Record::Job { .. },
            ) => {}
            Ok(Record::Task(_) | Record::Edge { .. }) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// Reads a DAG, which is a whole workflow or a part of one. Its tasks run in `directory`.
///
/// # Errors
/// Lines that are no records, options that concern the whole run, names that are used twice or not known.
pub(super) fn read(
    path: &Path,
    text: &str,
    directory: &Path,
    whole: Whole,
    options: &ReadOptions,
) -> Result<Workflow, InputErrors> {
    let directory = &std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let mut builder = Builder::new(path);
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    builder.set_label(&name, Position::default(), &[]);
    builder.workflow.version = super::DAG_VERSION.to_owned();
    if whole == Whole::Run {
        builder.workflow.origin = Origin::Commands;
    }
    let mut label = None;
    for (line, n) in text.lines().zip(1..) {
        let position = Position { line: n, column: 0 };
        let added = match Record::parse(line.as_bytes()) {
            Ok(Record::Task(task)) => {
                job(&task, label.take(), directory, whole, &mut builder).map(|mut job| {
                    job.position = position;
                    builder.add_job(job, position);
                })
            }
            Ok(Record::Edge { parent, child }) => {
                builder.add_dependency(&lossy(parent), &lossy(child), position);
                Ok(())
            }
            Ok(Record::Label { transformation, .. }) => {
                label = Some(lossy(transformation));
                Ok(())
            }
            Ok(Record::MaxJobs { category, .. }) if &*category == b"*" => Err(LineError::MaxJobs),
            Ok(Record::MaxJobs { category, limit }) => {
                let category = lossy(&category).to_lowercase();
                builder.workflow.max_jobs.insert(category, limit);
                Ok(())
            }
            Ok(Record::Subdag { .. } | Record::PreScript(_) | Record::Job { .. }) => Err(LineError::Subdag),
            Ok(Record::Inputs { .. } | Record::Nothing) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(problem) = added {
            builder.problem(position, problem.to_string());
        }
    }
    builder.finish(options)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the job of a task.
fn job(
    task: &TaskRecord<'_>,
    label: Option<String>,
    directory: &Path,
    whole: Whole,
    builder: &mut Builder,
) -> Result<Job, LineError> {
    let (request, command) = task.request()?;
    let mut profiles = Profiles::default();
    // What the DAG does not request is not the planner's default.
    let mut pegasus = |key: &str, value: String| profiles.set(Namespace::Pegasus, key, &value);
    pegasus("memory", request.memory_mb.to_string());
    pegasus("cores", request.cpus.to_string());
    if request.gpus > 0 {
        pegasus("gpus", request.gpus.to_string());
    }
    let options = &task.rest[..task.rest.len() - command.len()];
    set_options(options, whole, &mut profiles)?;
    let words: Vec<String> = DagWords::new(command).map(|word| lossy(&word)).collect();
    // It has a record already.
    if pmc_calls::recorder(&words).is_some() {
        profiles.set(Namespace::Pegasus, "gridstart", "none");
    }
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    let transformation = builder.transformation(match label {
        Some(label) => TransformationName::parse(&label),
        None => TransformationName {
            name: name.to_owned(),
            ..TransformationName::default()
        },
    });
    let mut arguments = Words::default();
    let path = if program.contains('/') {
        directory.join(&program).display().to_string()
    } else {
        arguments.push(&program);
        ENV.to_owned()
    };
    words.for_each(|word| arguments.push(&word));
    profiles.set(Namespace::Selector, "pfn", &path);
    profiles.set(Namespace::Globus, "directory", &directory.display().to_string());
    Ok(Job {
        id: lossy(task.name),
        transformation,
        arguments: Arguments::Exact(arguments),
        profiles,
        ..Job::default()
    })
}

/// Sets the options of a task, which are valid, other than its request.
///
/// # Errors
/// An option that has no meaning in a plan.
pub(super) fn set_options(options: &[u8], whole: Whole, profiles: &mut Profiles) -> Result<(), OptionError> {
    let mut words = DagWords::new(options);
    let mut more = String::new();
    while let (Some(option), Some(value)) = (words.next(), words.next()) {
        match &*option {
            b"-m" | b"--request-memory" | b"-c" | b"--request-cpus" | b"-g" | b"--request-gpus" => {}
            b"-t" | b"--tries" => {
                let retries = number::integer(&value).unwrap_or(1).saturating_sub(1).max(0);
                profiles.set(
                    Namespace::Dagman,
                    "retry",
                    &retries.min(i64::from(u32::MAX - 1)).to_string(),
                );
            }
            b"-p" | b"--priority" => {
                let priority = number::integer(&value).unwrap_or(0);
                profiles.set(Namespace::Dagman, "priority", &priority.to_string());
            }
            b"--category" => profiles.set(Namespace::Dagman, "category", &lossy(&value)),
            b"--abort-on" if whole == Whole::Run => {
                let value = lossy(&value).replacen('=', " RETURN ", 1);
                profiles.set(Namespace::Dagman, "abort-dag-on", &value);
            }
            b"--abort-on" => return Err(OptionError::AbortOn),
            b"-f" | b"--pipe-forward" | b"-F" | b"--file-forward" => {
                return Err(OptionError::Forward(lossy(&option)));
            }
            _ => {
                for word in [option, value] {
                    more.push_str(&lossy(&quote(&word)));
                    more.push(' ');
                }
            }
        }
    }
    if !more.is_empty() {
        profiles.set(Namespace::Pegasus, "pmc_task_arguments", more.trim_end());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_with_a_record_gets_no_second_one() {
        let is_wrapped = |command: &str| {
            let line = format!("TASK t {command}");
            let Ok(Record::Task(task)) = Record::parse(line.as_bytes()) else {
                panic!("{line} is a task");
            };
            let job = job(
                &task,
                None,
                Path::new("/w"),
                Whole::Part,
                &mut Builder::new(Path::new("w.dag")),
            );
            let job = job.unwrap_or_else(|error| panic!("{line}: {error}"));
            job.profiles.pegasus("gridstart") != Some("none")
        };
        assert!(!is_wrapped("/o/pegasus-kickstart -n x /bin/sim"));
        assert!(!is_wrapped("/usr/bin/env A=b /o/pegasus-kickstart -n x /bin/sim"));
        assert!(!is_wrapped("/o/pegasus-cluster list"));
        assert!(is_wrapped("/bin/sim pegasus-kickstart"));
    }
}
