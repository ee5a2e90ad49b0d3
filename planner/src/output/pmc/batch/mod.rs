//! Batch scripts from templates. Files of the same names in a template directory replace the built-in
//! templates.

mod demand;
mod estimate;
mod resources;
mod settings;
mod size;
mod task_files;
mod transport;
mod warnings;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, context};

use crate::error::PlanError;
use pmc_batch::{Scheduler, Script};
use pmc_calls::shell::shell_quote;

use crate::tasks::Plan;

pub(crate) use demand::Demand;
pub use estimate::Estimate;
pub(crate) use estimate::{duration, estimate};
pub(crate) use resources::{NodeSize, Resources};
pub(crate) use settings::{parse_megabytes, parse_minutes};
pub(crate) use size::describe;
pub(crate) use transport::lacks_mpi;

/// Template included by all others: it starts the run.
const RUN: (&str, &str) = ("run.j2", include_str!("../../../../templates/run.j2"));

/// Returns name and text of the built-in template of a scheduler.
fn template(scheduler: Scheduler) -> (&'static str, &'static str) {
    match scheduler {
        Scheduler::Torque => ("pbs.j2", include_str!("../../../../templates/pbs.j2")),
        Scheduler::PbsPro => ("pbspro.j2", include_str!("../../../../templates/pbspro.j2")),
        Scheduler::Slurm => ("sbatch.j2", include_str!("../../../../templates/sbatch.j2")),
        Scheduler::Lsf => ("lsf.j2", include_str!("../../../../templates/lsf.j2")),
        Scheduler::Flux => ("flux.j2", include_str!("../../../../templates/flux.j2")),
        Scheduler::Cobalt => ("cobalt.j2", include_str!("../../../../templates/cobalt.j2")),
    }
}

/// Maximum bytes of a job name that all schedulers accept.
const MAX_NAME: usize = 200;

/// Writes the scripts into `dir` and returns their schedulers and names.
///
/// # Errors
/// An invalid template, a failed write.
pub(crate) fn write(
    plan: &Plan<'_>,
    resources: &Resources,
    executor: &str,
    dir: &Path,
) -> Result<Vec<Script>, PlanError> {
    if plan.submit.contains(char::is_control) {
        return Err(PlanError::code(format!(
            "the name of the submit directory {:?} has a character that is not allowed in batch scripts",
            plan.submit
        )));
    }
    let mut environment = environment()?;
    let mut texts = Vec::new();
    for (name, built_in) in resources
        .schedulers
        .iter()
        .map(|&scheduler| template(scheduler))
        .chain([RUN])
    {
        let own = resources.templates.as_ref().map(|dir| dir.join(name));
        texts.push(match own.filter(|path| path.exists()) {
            Some(path) => {
                let text = fs::read_to_string(&path).map_err(|e| PlanError::io("read", &path, e))?;
                (name, text, path.display().to_string())
            }
            None => (name, built_in.to_owned(), name.to_owned()),
        });
    }
    let invalid = |origin: &str, e: &minijinja::Error| PlanError::Template {
        name: origin.to_owned(),
        message: describe_error(e),
    };
    for (name, text, origin) in &texts {
        environment
            .add_template(name, text)
            .map_err(|e| invalid(origin, &e))?;
    }
    let mut scripts = Vec::new();
    for (&scheduler, (name, _, origin)) in resources.schedulers.iter().zip(&texts) {
        let script = environment
            .get_template(name)
            .and_then(|template| template.render(values(plan, resources, executor, scheduler)))
            .map_err(|e| invalid(origin, &e))?;
        let name = format!("{}.{}", plan.base, scheduler.suffix());
        let path = dir.join(&name);
        fs::write(&path, script).map_err(|e| PlanError::io("write", &path, e))?;
        if scheduler == Scheduler::Cobalt {
            // Cobalt requires executable scripts.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .map_err(|e| PlanError::io("make executable", &path, e))?;
        }
        scripts.push(Script {
            scheduler,
            path: name.into(),
        });
    }
    Ok(scripts)
}

fn environment<'a>() -> Result<Environment<'a>, PlanError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .keep_trailing_newline(true)
        .build()
        .map_err(|e| PlanError::Template {
            name: "syntax".into(),
            message: e.to_string(),
        })?;
    environment.set_syntax(syntax);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("sh", |text: String| shell_quote(&text).into_owned());
    environment.add_filter("quoted", |text: String| double_quoted(&text));
    environment.add_filter("pattern", |text: String| text.replace('%', "%%"));
    environment.add_filter("job_name", |text: String| job_name(&text));
    Ok(environment)
}

/// Describes the files that a run of the plan makes for the output of its tasks.
pub(crate) fn describe_files(plan: &Plan<'_>, resources: &Resources) -> String {
    let tasks = plan.exec.jobs.len();
    task_files::sentence(tasks, resources.is_packed(tasks))
}

/// Returns the options of the executor for its logs and the output of tasks, as `run.j2` has them.
pub(crate) fn log_options(plan: &Plan<'_>, resources: &Resources) -> Vec<&'static str> {
    let options = [
        ("--monitord-hack", true),
        ("--per-task-stdio", true),
        ("--packed-output", resources.is_packed(plan.exec.jobs.len())),
        ("--stampede", resources.stampede),
    ];
    let given = options.into_iter().filter(|(_, is_given)| *is_given);
    given.map(|(option, _)| option).collect()
}

/// Returns the variables for templates.
fn values(plan: &Plan<'_>, resources: &Resources, executor: &str, scheduler: Scheduler) -> minijinja::Value {
    let minutes = resources.minutes(scheduler);
    context! {
        scheduler => scheduler.name(),
        name => plan.base.as_str(),
        label => plan.workflow.label.as_str(),
        submit_dir => plan.submit.as_str(),
        dag => format!("{}.dag", plan.base),
        executor => executor,
        pmc => Path::new(executor).with_file_name("pmc").display().to_string(),
        resubmit => resources.resubmit,
        launcher => resources.launcher(scheduler),
        agents => resources.agents(scheduler),
        agent_count => resources.agent_count(scheduler),
        slots => resources.slots(),
        nodes => resources.nodes,
        tasks_per_node => resources.tasks_per_node,
        ranks => resources.ranks(),
        all_cores => resources.uses_all_cores(scheduler),
        all_memory => resources.uses_all_memory(scheduler),
        cpus_per_node => resources.node.cpus,
        cpus_asked => resources.cpus_asked(scheduler),
        cpus_per_task => resources.cpus_per_task(),
        host_cpus => resources.host_cpus(scheduler),
        host_memory => resources.host_memory(scheduler),
        memory_per_node => resources.node.memory_mb,
        own_memory => resources.own_memory_directive().is_some(),
        walltime => size::clock(minutes),
        walltime_hm => format!("{}:{:02}", minutes / 60, minutes % 60),
        walltime_minutes => minutes,
        max_wall_time => resources.max_wall_time(scheduler),
        drain_after => resources.drain_after(scheduler),
        queue => resources.queue.as_deref(),
        account => resources.account.as_deref(),
        setup => resources.setup.as_deref(),
        directives => resources.directives.clone(),
        stampede => resources.stampede,
        packed_output => resources.is_packed(plan.exec.jobs.len()),
        as_pegasus => resources.is_default,
    }
}

/// Formats an error and its causes on one line.
fn describe_error(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}

/// Quotes a word for a scheduler that splits directives like a shell. Plain words are unchanged.
fn double_quoted(word: &str) -> String {
    if shell_quote(word) == word {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns a name that every scheduler accepts: it starts with a letter.
fn job_name(name: &str) -> String {
    let mut text: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect();
    if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        text.insert(0, 'w');
    }
    text.truncate(MAX_NAME);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_and_directives_are_quoted() {
        assert_eq!(job_name("diamond-0.pbs"), "diamond-0.pbs");
        assert_eq!(job_name("2mass (x)"), "w2mass__x_");
        assert_eq!(job_name(&"ä".repeat(300)).len(), MAX_NAME);
        assert_eq!(double_quoted("/a/b-c"), "/a/b-c");
        assert_eq!(double_quoted(r#"/a b/"c\"#), r#""/a b/\"c\\""#);
    }
}
