//! The code generator Condor: a DAG for HTCondor's DAGMan, and a submit description for each job.
//!
//! An [`Ad`](ad::Ad) has what the submit description of a job says, as values; `job` fills it in, a style
//! adds how the job comes to its site. No program of HTCondor is needed to plan.

mod ad;
mod arguments;
mod check;
mod context;
mod credentials;
mod dag;
mod dagman_job;
mod environment;
mod job;
mod metadata;
mod nested;
mod programs;
mod ranks;
mod requests;
mod script;
mod stage_in;
mod style;
mod transfers;

use std::fs;
use std::path::Path;

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::JobId;
use crate::tasks::nested::NestedJob;
use crate::tasks::{Invocation, Invocations, Plan, PlannedJob};

use super::common::events::JobEvents;
use super::common::fingerprints::{self, FingerprintWriter};
use super::common::in_order::in_order;
use super::common::job_problems::{JobProblems, MAX_SHOWN};
use super::common::private_files::{put, put_private};
use super::common::task_line::Line;
use super::{Code, Generator, Writing};
use context::Context;

/// Returns the name of the submit description of the run of DAGMan.
pub(super) fn dagman_file(plan: &Plan<'_>) -> String {
    format!("{}{}", plan.base, dagman_job::SUFFIX)
}

/// Jobs whose files are written in one chunk.
const JOB_CHUNK: usize = 256;

/// The code generator.
pub(super) struct Condor;

impl Generator for Condor {
    fn braindump(&self, plan: &Plan<'_>) -> Vec<(&'static str, Option<String>)> {
        let mut lines = vec![
            ("condor_log", Some(context::log_name(plan))),
            ("dag", Some(format!("{}.dag", plan.base))),
            ("type", Some("dag".to_owned())),
        ];
        if let Some(application) = &plan.settings.condor.application {
            lines.push(("app", Some(application.to_string())));
        }
        lines
    }

    fn write(&self, to: &mut Writing<'_>) -> Result<Code, PlanError> {
        let Writing { plan, dir, .. } = *to;
        let context = Context::new(plan, to.request)?;
        check::check(&context)?;
        context.write_files(dir)?;
        write_jobs(&context, to)?;
        let file = |suffix: &str| dir.join(format!("{}{suffix}", plan.base));
        let dag = dag::dag(&context)?;
        put(&file(".dag"), &dag)?;
        let job = dagman_job::description(&context).map_err(PlanError::code)?;
        plan.secrets.put(&dir.join(dagman_file(plan)), &job)?;
        plan.secrets.put(&file(".metadata"), &metadata::metadata(plan))?;
        if to.request.deferred {
            // By it, a later planner sees whether its inputs have changed.
            fingerprints::write_head(&FingerprintWriter::new(plan), plan, to)?;
        }
        Ok(Code::default())
    }
}

/// What one thread writes.
#[derive(Default)]
struct Rendered {
    invocation: Invocation,
    line: Line,
    events: String,
    scratch: String,
    problems: Vec<Vec<Diagnostic>>,
    failed: Option<PlanError>,
}

/// Writes the submit descriptions and scripts of all jobs, and their events.
fn write_jobs(context: &Context<'_>, to: &Writing<'_>) -> Result<(), PlanError> {
    let plan = context.plan;
    let (file, path, heads) = to.events.parts();
    let mut problems = JobProblems::default();
    in_order::<_, PlanError>(
        plan.order.len(),
        JOB_CHUNK,
        || (Invocations::new(plan, to.lists), Rendered::default()),
        |(invocations, rendered), range| {
            for n in range {
                let id = plan.order[n];
                match write_job(context, invocations, id, to.dir, rendered) {
                    Ok(()) => heads.job(
                        plan.at(id),
                        &rendered.line,
                        &mut rendered.scratch,
                        &mut rendered.events,
                    ),
                    Err(Failure::Job(found)) => rendered.problems.push(found),
                    Err(Failure::Plan(error)) => rendered.failed = Some(error),
                }
                if rendered.failed.is_some() || rendered.problems.len() > MAX_SHOWN {
                    break;
                }
            }
        },
        |(_, rendered)| {
            problems.take(&mut rendered.problems, &mut rendered.failed)?;
            JobEvents::append(file, path, &mut rendered.events)
        },
    )?;
    problems.finish()
}

/// Why a job is not written.
enum Failure {
    /// Problems of the job.
    Job(Vec<Diagnostic>),
    Plan(PlanError),
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Failure::Plan(error)
    }
}

/// Writes submit description, script and argument file of a job.
fn write_job(
    context: &Context<'_>,
    invocations: &mut Invocations<'_>,
    id: JobId,
    dir: &Path,
    rendered: &mut Rendered,
) -> Result<(), Failure> {
    let plan = context.plan;
    let job = plan.at(id);
    let Rendered { invocation, line, .. } = rendered;
    if let Some(nested) = nested::of(job) {
        invocations.fill(id, invocation).map_err(Failure::Job)?;
        line.fill(invocation);
        return match nested.nested.is_ready {
            true => Ok(()),
            false => write_nested(context, nested, invocation, dir),
        };
    }
    if context.is_script(job) {
        invocations.fill_inside(id, invocation).map_err(Failure::Job)?;
        let text = script::script(context, invocations, id, invocation).map_err(Failure::Job)?;
        let path = context.path_in(dir, job, ".sh");
        put(&path, &text)?;
        set_executable(&path)?;
        if let Some(known) = metadata::of_inputs(context, job) {
            put(&context.path_in(dir, job, metadata::OF_INPUTS), &known)?;
        }
        script::replace(context, job, invocation);
    } else {
        invocations.fill(id, invocation).map_err(Failure::Job)?;
    }
    line.fill(invocation);
    if let Some(content) = &invocation.argument_file {
        plan.secrets
            .put(&dir.join(format!("{}.arg", job.name)), content)?;
    }
    let ad = job::ad(context, job, invocation)
        .map_err(|problem| Failure::Job(vec![Diagnostic::error(problem)]))?;
    write_description(context, job, &ad, dir)
}

/// Writes script and submit description of a nested sub-workflow.
fn write_nested(
    context: &Context<'_>,
    nested: NestedJob<'_>,
    invocation: &Invocation,
    dir: &Path,
) -> Result<(), Failure> {
    let job = nested.planned;
    let path = context.path_in(dir, job, nested::SCRIPT);
    context
        .plan
        .secrets
        .put(&path, &nested::script(job, invocation))?;
    set_executable(&path)?;
    write_description(context, job, &nested::ad(context, nested), dir)
}

/// Writes the submit description of a job.
fn write_description(
    context: &Context<'_>,
    job: PlannedJob<'_>,
    ad: &ad::Ad<'_>,
    dir: &Path,
) -> Result<(), Failure> {
    let text = ad
        .render(context, job)
        .map_err(|error| Failure::Job(vec![Diagnostic::error(format!("job {}: {error}", job.name))]))?;
    let path = context.path_in(dir, job, ".sub");
    // The values of variables are in it.
    match context.plan.secrets.script(job.setup_id()).is_some() {
        true => put_private(&path, &text)?,
        false => put(&path, &text)?,
    }
    Ok(())
}

fn set_executable(path: &Path) -> Result<(), PlanError> {
    use std::os::unix::fs::PermissionsExt as _;
    let changed = fs::metadata(path).and_then(|status| {
        let mode = status.permissions().mode();
        // Who may read it may run it.
        fs::set_permissions(path, fs::Permissions::from_mode(mode | (mode & 0o444) >> 2))
    });
    changed.map_err(|e| PlanError::io("write", path, e))
}
