//! The DAG for pegasus-mpi-cluster.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use pmc_dag::trailer;
use pmc_dag::write::{self, SubdagLine, TaskLine, WriteError};

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::JobId;
use crate::graph::Lists;

use crate::model::JobKind;
use crate::output::Writing;
use crate::output::common::clusters::comment;
use crate::output::common::events::{JobEvents, Prefixes};
use crate::output::common::fingerprints::{self, FingerprintWriter};
use crate::output::common::in_order::in_order;
use crate::output::common::job_problems::{JobProblems, MAX_SHOWN};
use crate::output::common::task_line::Line;
use crate::tasks::nested::NestedJob;
use crate::tasks::{Invocation, Invocations, Plan, PlannedJob, lite};

use super::batch::NodeSize;
use super::max_jobs;

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
    problems: Vec<Vec<Diagnostic>>,
    /// Failed write of an argument file.
    failed: Option<PlanError>,
    invocation: Invocation,
    line: Line,
    scratch: String,
    prints: String,
    print_scratch: fingerprints::Scratch,
}

/// Fingerprints of the tasks, and the file for them.
pub(super) struct PrintsFile<'a> {
    pub(super) prints: &'a FingerprintWriter,
    pub(super) file: File,
    pub(super) path: &'a Path,
}

/// Writes the DAG, argument files, fingerprints, and the events of jobs, in one pass over the jobs.
///
/// # Errors
/// Jobs that the DAG cannot express, failed writes.
pub(super) fn write(to: &Writing<'_>, prints: PrintsFile<'_>) -> Result<(), PlanError> {
    let (plan, dir, node) = (to.plan, to.dir, to.resources.node);
    let dag = &dir.join(format!("{}.dag", plan.base));
    let PrintsFile {
        prints,
        file: mut print_file,
        path: print_path,
    } = prints;
    let failed = |source| PlanError::io("write", dag, source);
    let mut file = File::create(dag).map_err(failed)?;
    file.write_all(trailer::FIRST_LINE.as_bytes()).map_err(failed)?;
    let mut problems = JobProblems::default();
    let (event_file, event_path, heads) = to.events.parts();
    in_order(
        plan.order.len(),
        JOB_CHUNK,
        || (Invocations::new(plan, to.lists), Rendered::default()),
        |(invocations, rendered), range| jobs(invocations, (dir, node), (heads, prints), range, rendered),
        |(_, rendered)| {
            problems.take(&mut rendered.problems, &mut rendered.failed)?;
            file.write_all(rendered.dag.as_bytes()).map_err(failed)?;
            rendered.dag.clear();
            let written = print_file.write_all(rendered.prints.as_bytes());
            written.map_err(|source| PlanError::io("write", print_path, source))?;
            rendered.prints.clear();
            JobEvents::append(event_file, event_path, &mut rendered.events)
        },
    )?;
    problems.finish()?;
    let mut limits = String::new();
    max_jobs::push_limits(&plan.workflow.max_jobs, &plan.settings.profiles, &mut limits)?;
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
                return Err(PlanError::code(problem));
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

/// Renders a chunk of jobs and writes their argument files.
fn jobs(
    invocations: &mut Invocations<'_>,
    (dir, node): (&Path, NodeSize),
    (heads, prints): (&Prefixes, &FingerprintWriter),
    range: Range<usize>,
    rendered: &mut Rendered,
) {
    let Rendered {
        dag,
        events,
        problems,
        failed,
        invocation,
        line,
        scratch,
        prints: print_text,
        print_scratch,
    } = rendered;
    let plan = invocations.plan();
    for n in range {
        let id = plan.order[n];
        let job = plan.at(id);
        if let Err(more) = invocations.fill(id, invocation) {
            problems.push(more);
            if problems.len() > MAX_SHOWN {
                break;
            }
            continue;
        }
        line.fill(invocation);
        let requests = &invocation.shared.requests;
        let too_large = node.problem(&job.name, requests.memory_mb, requests.cpus);
        problems.extend(too_large.map(|problem| vec![Diagnostic::error(problem)]));
        if let Err(problem) = task(job, n as u64 + 1, line, scratch, dag) {
            problems.push(vec![Diagnostic::error(problem.to_string())]);
        }
        if problems.len() > MAX_SHOWN {
            break;
        }
        if let Some(content) = &invocation.argument_file {
            let path = dir.join(format!("{}.arg", job.name));
            if let Err(error) = plan.secrets.put(&path, content) {
                failed.get_or_insert(error);
            }
        }
        prints.task((invocations, id), (invocation, line), print_scratch, print_text);
        heads.job(job, line, scratch, events);
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

fn task(
    job: PlannedJob<'_>,
    n: u64,
    line: &Line,
    scratch: &mut String,
    text: &mut String,
) -> Result<(), WriteError> {
    const BLANKS: [char; 2] = [' ', '\t'];
    let start = text.len();
    write::inputs(text, lite::cached_inputs(job));
    comment(job, n, scratch, text)?;
    let arguments = line.arguments().trim_end_matches(BLANKS);
    let rest: [&str; 3] = if arguments.is_empty() {
        [line.program().trim_end_matches(BLANKS), "", ""]
    } else {
        [line.program(), " ", arguments]
    };
    let task = line.task(&job.name, line.environment());
    let written = match NestedJob::new(job).filter(|_| job.is_nested()) {
        Some(nested) => push_nested(nested, &task, &rest.concat(), text),
        None => write::task_in_parts(text, &task, &rest),
    };
    written.inspect_err(|_| text.truncate(start))
}

/// Appends the lines of a nested sub-workflow. The command is that of `line`, then `more`.
fn push_nested(
    nested: NestedJob<'_>,
    line: &TaskLine<'_>,
    more: &str,
    text: &mut String,
) -> Result<(), WriteError> {
    let layout = &nested.planned.plan.layout;
    let description = format!("{}/{}.sub", layout.of(nested.planned.id), line.name);
    let (dag, directory) = (nested.dag(), nested.directory().display().to_string());
    let subdag = SubdagLine {
        name: line.name,
        dag: &dag,
        directory: &directory,
        // Pegasus' monitoring follows no other jobs.
        description: (nested.job.kind == JobKind::SubWorkflow).then_some(&description),
    };
    write::subdag(text, &subdag)?;
    if nested.nested.is_ready {
        return Ok(());
    }
    let command = format!("{}{more}", line.command);
    write::pre_script(
        text,
        &TaskLine {
            command: &command,
            ..*line
        },
    )
}
