//! The DAG file.

use std::collections::BTreeMap;

use pmc_dagman::write::{DagFile, ScriptKind, WriteError};

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::Task;
use crate::profiles::{Namespace, Profiles};
use crate::refine::settings::Integrity;
use crate::tasks::PlannedJob;
use crate::tasks::nested::NestedJob;
use crate::tasks::requests::{Kind, MAX_JOBS, dagman, messages};

use super::context::Context;
use super::nested;
use super::ranks::{category, priority};

/// Limits of running jobs, by category, unless properties say otherwise.
const LIMITS: [(&str, u32); 4] = [
    ("cleanup", 4),
    ("registration", 1),
    ("stageout", 10),
    ("stagein", 10),
];

/// What a job with a directory of its own prints at its end, if all went well.
const LITE_SUCCESS: &str = "PegasusLite: exitcode 0";

/// Returns the DAG file.
///
/// # Errors
/// Jobs that the file cannot express.
pub(super) fn dag(context: &Context<'_>) -> Result<String, PlanError> {
    let plan = context.plan;
    let mut dag = DagFile::default();
    dag.comment(&format!("The workflow {}", context.workflow_name()));
    let mut problems = Vec::new();
    for (category, limit) in limits(&plan.settings.profiles, &mut problems) {
        let refused = dag.max_jobs(&category, limit).err();
        problems.extend(refused.map(|error| Diagnostic::error(error.to_string())));
    }
    for &id in &plan.order {
        let job = plan.at(id);
        dag.blank();
        if let Err(problem) = node(context, job, &mut dag) {
            problems.push(Diagnostic::error(format!("job {}: {problem}", job.name)));
        }
    }
    dag.blank();
    for &(parent, child) in &plan.exec.edges {
        dag.edge(&plan.job(parent).name, &plan.job(child).name);
    }
    PlanError::check_code(problems).map(|()| dag.finish())
}

/// Returns the limits of categories.
fn limits(properties: &Profiles, problems: &mut Vec<Diagnostic>) -> BTreeMap<String, u32> {
    let mut all: BTreeMap<String, u32> = LIMITS.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    for (key, value) in properties.of(Namespace::Dagman) {
        let category = match key.strip_suffix(MAX_JOBS) {
            None => continue,
            // Old names.
            Some("stage-in") => "stagein",
            Some("stage-out") => "stageout",
            Some("stage-inter") => "stageinter",
            Some(category) => category,
        };
        match value.trim().parse() {
            Ok(limit) => {
                all.insert(category.to_owned(), limit);
            }
            Err(_) => problems.push(Diagnostic::error(format!(
                "the property dagman.{key} must be a whole number, not {value}"
            ))),
        }
    }
    all
}

/// Adds the records of a job.
fn node(context: &Context<'_>, job: PlannedJob<'_>, dag: &mut DagFile) -> Result<(), String> {
    let text = |error: WriteError| error.to_string();
    let profiles = &job.setup.profiles;
    let name = &*job.name;
    if let Some(of) = nested::of(job) {
        sub_workflow(context, of, dag).map_err(text)?;
        return settings(context, job, dag);
    }
    let is_noop = matches!(job.task, Task::NoOp);
    let is_noop = is_noop || dagman(profiles, "noop").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    dag.job(name, &context.relative(job, ".sub"), is_noop)
        .map_err(text)?;
    if !matches!(job.task, Task::NoOp) {
        if let Some(command) = post(context, job)? {
            dag.script(ScriptKind::Post, name, &command).map_err(text)?;
        }
        if let Some(program) = dagman(profiles, "pre") {
            let arguments = profiles
                .get(Namespace::Dagman, "pre.arguments")
                .unwrap_or_default();
            dag.script(ScriptKind::Pre, name, &format!("{program} {arguments}"))
                .map_err(text)?;
        }
    }
    settings(context, job, dag)
}

/// Adds a sub-workflow: a DAG for DAGMan as it is, or a job with the script that plans it.
fn sub_workflow(context: &Context<'_>, of: NestedJob<'_>, dag: &mut DagFile) -> Result<(), WriteError> {
    let job = of.planned;
    if of.nested.is_ready {
        let directory = of
            .nested
            .directory
            .as_ref()
            .map(|path| path.display().to_string());
        return dag.subdag(&job.name, &of.dag(), directory.as_deref());
    }
    dag.job(&job.name, &context.relative(job, ".sub"), false)?;
    dag.script(ScriptKind::Pre, &job.name, &context.relative(job, nested::SCRIPT))
}

/// Adds priority, retries, and further settings of a node.
fn settings(context: &Context<'_>, job: PlannedJob<'_>, dag: &mut DagFile) -> Result<(), String> {
    let text = |error: WriteError| error.to_string();
    let (profiles, name) = (&job.setup.profiles, &*job.name);
    let own = dagman(profiles, "priority").map(str::to_owned);
    let priority = own.unwrap_or_else(|| priority(context, job).to_string());
    dag.record("PRIORITY", name, &priority).map_err(text)?;
    if !matches!(job.task, Task::NoOp) {
        let retries = dagman(profiles, "retry").unwrap_or("1");
        if retries.parse::<u32>().is_err() {
            return Err(format!(
                "the profile dagman::retry must be a whole number, not {retries}"
            ));
        }
        dag.record("RETRY", name, retries).map_err(text)?;
    }
    if let Some(value) = dagman(profiles, "abort-dag-on") {
        dag.record("ABORT-DAG-ON", name, value).map_err(text)?;
    }
    if let Some(category) = category(job) {
        dag.record("CATEGORY", name, category).map_err(text)?;
    }
    dag.vars(name, "My.DAGNodeRetry", "$(RETRY)").map_err(text)?;
    if let Some(vars) = dagman(profiles, "vars") {
        dag.record("VARS", name, vars).map_err(text)?;
    }
    Ok(())
}

/// Returns the command after a job, `None` without one.
///
/// # Errors
/// A script that is not named.
fn post(context: &Context<'_>, job: PlannedJob<'_>) -> Result<Option<String>, String> {
    let profiles = &job.setup.profiles;
    let arguments = profiles
        .get(Namespace::Dagman, "post.arguments")
        .unwrap_or_default();
    let output = format!("./{}", context.relative(job, ".out"));
    let scope = dagman(profiles, "post.scope").unwrap_or("all");
    let is_essential = !matches!(job.task, Task::Register(_));
    match dagman(profiles, "post") {
        _ if scope.eq_ignore_ascii_case("none")
            || (scope.eq_ignore_ascii_case("essential") && !is_essential) =>
        {
            Ok(None)
        }
        Some(word) if word.eq_ignore_ascii_case("none") => Ok(None),
        Some(word)
            if !word.eq_ignore_ascii_case("exitcode") && !word.eq_ignore_ascii_case("pegasus-exitcode") =>
        {
            let path = dagman(profiles, &format!("post.path.{}", word.to_ascii_lowercase()));
            let Some(path) = path else {
                return Err(format!(
                    "Path to user specified postscript not given: the profile dagman::post names {word}, so set \
                     dagman::post.path.{word} to its path"
                ));
            };
            let output = output.trim_start_matches("./");
            Ok(Some(format!(
                "{path}  {arguments} {}/{output}",
                context.plan.submit
            )))
        }
        // Without a record, there is nothing to look at.
        None if !has_output(job) => Ok(None),
        word => {
            let path =
                word.and_then(|word| dagman(profiles, &format!("post.path.{}", word.to_ascii_lowercase())));
            let default = format!("{}/pegasus-exitcode", context.tools);
            let program = path.unwrap_or(&default);
            Ok(Some(format!(
                "{program} {}{arguments} {output}",
                options(context, job)?
            )))
        }
    }
}

/// Returns whether the output of a job says how it has ended.
fn has_output(job: PlannedJob<'_>) -> bool {
    job.is_wrapped() || job.is_lite() || job.cluster().is_some() || job.setup.container.is_some()
}

/// Returns the options of `pegasus-exitcode`.
fn options(context: &Context<'_>, job: PlannedJob<'_>) -> Result<String, String> {
    let plan = context.plan;
    let mut text = String::from("-r $RETURN -R $RETRY ");
    let mut has_success = false;
    for (kind, message) in messages(&job.setup.profiles) {
        let option = match kind {
            Kind::Failure => "-f",
            Kind::Success => "-s",
        };
        has_success |= kind == Kind::Success;
        if message.contains(['\n', '\r', '"']) {
            return Err(format!(
                "the message `{message}` cannot be an argument in a DAG file"
            ));
        }
        // DAGMan splits at blanks. `pegasus-exitcode` takes a plus sign for one.
        text.push_str(&format!("{option} {} ", message.replace(' ', "+")));
    }
    let is_lite = job.has_description() && job.plan.exec.has_own_directory(&job);
    if (is_lite || context.is_script(job)) && !has_success {
        text.push_str(&format!("-s {} ", LITE_SUCCESS.replace(' ', "+")));
    }
    text.push_str(&format!(
        "-l {base}.exitcode.log -M {base}.cache.meta ",
        base = plan.base
    ));
    if plan.settings.integrity == Integrity::None {
        text.push_str("-N ");
    }
    if !plan.has_job_scripts && context.has_expressions(job) {
        text.push_str("-U ");
    }
    let has_records = match job.cluster() {
        Some(_) => !job.has_bare_member(),
        None => job.is_wrapped(),
    };
    if !has_records {
        text.push_str("--no-invocations ");
    }
    Ok(text)
}
