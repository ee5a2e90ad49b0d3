//! The DAG for pegasus-mpi-cluster.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use pmc_dag::{trailer, write};

use crate::error::PlanError;
use crate::exec::JobId;
use crate::graph::Lists;

use super::Plan;
use super::batch::NodeSize;
use super::command::{Command, Commands};
use super::dagman;
use super::events::{JobEvents, Prefixes};
use super::fingerprints::{self, Prints};
use super::in_order::in_order;

/// Maximum jobs whose problems are shown.
const MAX_SHOWN: usize = 20;
/// Jobs in one chunk.
const JOB_CHUNK: usize = 512;
/// Jobs whose edges are in one chunk.
const EDGE_CHUNK: usize = 1024;

/// Buffers of one thread.
#[derive(Default)]
struct Rendered {
    dag: String,
    events: String,
    /// Problems of each job.
    problems: Vec<Vec<String>>,
    /// Failed write of an argument file.
    failed: Option<PlanError>,
    commands: Commands,
    command: Command,
    scratch: String,
    prints: String,
    print_scratch: fingerprints::Scratch,
}

/// Fingerprints of the tasks, and the file for them.
pub(crate) struct PrintsFile<'a> {
    pub(crate) prints: &'a Prints,
    pub(crate) file: File,
    pub(crate) path: &'a Path,
}

/// Writes the DAG, argument files, fingerprints, and the events of jobs, in one pass over the jobs.
///
/// # Errors
/// Jobs that the DAG cannot express, failed writes.
pub(crate) fn write(
    plan: &Plan<'_>,
    dir: &Path,
    dag: &Path,
    node: NodeSize,
    events: &mut JobEvents<'_>,
    to: PrintsFile<'_>,
) -> Result<(), PlanError> {
    let PrintsFile {
        prints,
        file: mut print_file,
        path: print_path,
    } = to;
    let failed = |source| PlanError::io("write", dag, source);
    let mut file = File::create(dag).map_err(failed)?;
    file.write_all(trailer::FIRST_LINE.as_bytes()).map_err(failed)?;
    let mut problems = Vec::new();
    let (event_file, event_path, heads) = events.parts();
    in_order(
        plan.order.len(),
        JOB_CHUNK,
        Rendered::default,
        |rendered, range| jobs(plan, (dir, node), (heads, prints), range, rendered),
        |rendered| {
            problems.append(&mut rendered.problems);
            if problems.iter().map(Vec::len).sum::<usize>() > MAX_SHOWN {
                return Err(PlanError::Code(shown(&mut problems)));
            }
            if let Some(error) = rendered.failed.take() {
                return Err(error);
            }
            file.write_all(rendered.dag.as_bytes()).map_err(failed)?;
            rendered.dag.clear();
            let written = print_file.write_all(rendered.prints.as_bytes());
            written.map_err(|source| PlanError::io("write", print_path, source))?;
            rendered.prints.clear();
            JobEvents::append(event_file, event_path, &mut rendered.events)
        },
    )?;
    if !problems.is_empty() {
        return Err(PlanError::Code(shown(&mut problems)));
    }
    let mut limits = String::new();
    dagman::push_limits(&plan.workflow.max_jobs, &plan.settings.profiles, &mut limits)?;
    limits.push('\n');
    file.write_all(limits.as_bytes()).map_err(failed)?;
    let place = positions(plan);
    let mut edges = 0;
    let children = Lists::grouped(plan.order.len(), plan.exec.edges.iter().copied());
    in_order(
        plan.order.len(),
        EDGE_CHUNK,
        || (String::new(), Vec::new(), None),
        |(text, sorted, problem), range| {
            for &parent in &plan.order[range] {
                sorted.clear();
                sorted.extend_from_slice(children.of(parent));
                sorted.sort_unstable_by_key(|&c: &JobId| place[c]);
                let children = sorted.iter().map(|&child| &*plan.job(child).name);
                if let Err(error) = write::edges(text, &plan.job(parent).name, children) {
                    problem.get_or_insert_with(|| error.to_string());
                }
            }
        },
        |(text, _, problem)| {
            if let Some(problem) = problem.take() {
                return Err(PlanError::Code(vec![problem]));
            }
            file.write_all(text.as_bytes()).map_err(failed)?;
            edges += text.lines().count();
            text.clear();
            Ok(())
        },
    )?;
    let last = trailer::last_line(plan.order.len(), edges);
    file.write_all(last.as_bytes()).map_err(failed)
}

/// Returns the problems of the first jobs that have any.
pub(super) fn shown(problems: &mut Vec<Vec<String>>) -> Vec<String> {
    let mut all = Vec::new();
    for of_job in problems.drain(..) {
        all.extend(of_job);
        if all.len() > MAX_SHOWN {
            break;
        }
    }
    all
}

/// Renders a chunk of jobs and writes their argument files.
fn jobs(
    plan: &Plan<'_>,
    (dir, node): (&Path, NodeSize),
    (heads, prints): (&Prefixes, &Prints),
    range: Range<usize>,
    rendered: &mut Rendered,
) {
    let Rendered {
        dag,
        events,
        problems,
        failed,
        commands,
        command,
        scratch,
        prints: print_text,
        print_scratch,
    } = rendered;
    for n in range {
        let id = plan.order[n];
        let job = plan.job(id);
        if let Err(more) = commands.fill(plan, id, command) {
            problems.push(more);
            if problems.len() > MAX_SHOWN {
                break;
            }
            continue;
        }
        problems.extend(
            node.problem(&job.name, command.memory_mb, command.cpus)
                .map(|problem| vec![problem]),
        );
        if let Err(problem) = task(plan, id, n as u64 + 1, command, scratch, dag) {
            problems.push(vec![problem.to_string()]);
        }
        if problems.len() > MAX_SHOWN {
            break;
        }
        if let Some(content) = &command.argument_file {
            let path = dir.join(format!("{}.arg", job.name));
            if let Err(error) = plan.secrets.put(&path, content) {
                failed.get_or_insert(error);
            }
        }
        prints.task(plan, id, command, print_scratch, print_text);
        heads.job(plan, id, command, scratch, events);
    }
}

/// Returns the position of each job in the order.
pub(crate) fn positions(plan: &Plan<'_>) -> Vec<u32> {
    let mut place = vec![0; plan.order.len()];
    for (n, &id) in plan.order.iter().enumerate() {
        place[id] = n as u32;
    }
    place
}

/// Replaces white space in a name.
pub(super) fn replace_spaces(name: &str) -> Cow<'_, str> {
    if name.contains(char::is_whitespace) {
        Cow::Owned(name.replace(char::is_whitespace, "_"))
    } else {
        Cow::Borrowed(name)
    }
}

fn task(
    plan: &Plan<'_>,
    id: JobId,
    n: u64,
    command: &Command,
    scratch: &mut String,
    text: &mut String,
) -> Result<(), write::WriteError> {
    const BLANKS: [char; 2] = [' ', '\t'];
    let job = plan.job(id);
    scratch.clear();
    plan.push_transformation(job, scratch);
    let start = text.len();
    super::lite::push_inputs(plan, id, text);
    write::comment(
        text,
        n,
        &replace_spaces(scratch),
        &replace_spaces(plan.logical_id(job)),
    )?;
    let arguments = command.arguments.trim_end_matches(BLANKS);
    let rest: [&str; 3] = if arguments.is_empty() {
        [command.program.trim_end_matches(BLANKS), "", ""]
    } else {
        [&command.program, " ", arguments]
    };
    let line = command.task_line(&job.name, &command.environment);
    if plan.exec.is_nested(job) {
        let written = super::nested::push_lines(plan, id, &line, &rest.concat(), text);
        return written.inspect_err(|_| text.truncate(start));
    }
    write::task_in_parts(text, &line, &rest).inspect_err(|_| text.truncate(start))
}
