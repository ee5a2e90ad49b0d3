//! Nested sub-workflows: a script plans one before its job, and the job runs DAGMan.

use std::borrow::Cow;
use std::fmt::Write as _;

use pmc_calls::shell::shell_quote;

use crate::tasks::nested::NestedJob;
use crate::tasks::{Invocation, PlannedJob};

use super::ad::Ad;
use super::context::Context;
use super::dagman_job::{GETENV, ON_EXIT_REMOVE, REMOVED_WITH_IT, arguments, limits};
use super::job::add_common;

/// Suffix of the script that plans a sub-workflow.
pub(super) const SCRIPT: &str = ".pre.sh";

/// Returns the sub-workflow that a job runs.
pub(super) fn of(job: PlannedJob<'_>) -> Option<NestedJob<'_>> {
    NestedJob::new(job).filter(|_| job.is_nested())
}

/// Returns the script that plans a sub-workflow. DAGMan starts it in the submit directory, before the job.
/// After a failure, the planner keeps a plan of the same inputs, and DAGMan goes on from its rescue file.
pub(super) fn script(job: PlannedJob<'_>, invocation: &Invocation) -> String {
    let environment = &invocation.shared.environment;
    let mut text = format!(
        "#!/bin/sh\n# Plans the sub-workflow of the job {} of {}.\nexec 2>>{}\n",
        job.name,
        job.plan.base.replace(char::is_control, " "),
        shell_quote(&format!("{}/{}.pre.err", job.plan.submit, job.name)),
    );
    for (name, value) in &environment.set {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{name}={}\nexport {name}", shell_quote(value));
    }
    let _ = writeln!(text, "cd {} || exit 1", shell_quote(job.work_dir()));
    let secrets = environment
        .script
        .iter()
        .flat_map(|path| ["/bin/sh", path.as_str()]);
    let words = secrets.map(Cow::Borrowed).chain(invocation.command());
    let quoted: Vec<String> = words.map(|word| shell_quote(&word).into_owned()).collect();
    let _ = writeln!(text, "exec {}", quoted.join(" "));
    text
}

/// Returns what the submit description of the job says.
pub(super) fn ad<'a>(context: &'a Context<'a>, nested: NestedJob<'a>) -> Ad<'a> {
    let job = nested.planned;
    let mut ad = Ad::default();
    add_common(context, job, &mut ad);
    let path = nested.dag();
    let name = path.rsplit('/').next().unwrap_or_default();
    ad.set_variable("_CONDOR_DAGMAN_LOG", format!("{path}.dagman.out"));
    ad.set_variable("_CONDOR_MAX_DAGMAN_LOG", "0");
    ad.set_variable("PEGASUS_METRICS", "true");
    ad.set("universe", "scheduler");
    let limits = limits(&[&job.setup.profiles, &job.plan.settings.profiles], false);
    let words = arguments(name, &limits);
    match &context.dagman {
        Some(program) => {
            ad.set_literal("executable", program);
            ad.set("arguments", format!("\"{words}\""));
        }
        // The machine of the planner has none.
        None => {
            ad.set("executable", "/usr/bin/env");
            ad.set("arguments", format!("\"condor_dagman {words}\""));
        }
    }
    ad.set_literal("initialdir", &nested.directory().display().to_string());
    for (name, value) in [
        ("getenv", GETENV),
        ("remove_kill_sig", "SIGUSR1"),
        ("+OtherJobRemoveRequirements", REMOVED_WITH_IT),
        ("on_exit_remove", ON_EXIT_REMOVE),
        ("transfer_executable", "false"),
    ] {
        ad.set(name, value);
    }
    let macros = [
        ("pegasus_job_runtime", "0"),
        ("pegasus_cores", "1"),
        ("pegasus_gpus", "0"),
    ];
    ad.macros
        .extend(macros.map(|(name, value)| (name.into(), value.to_owned())));
    ad
}
