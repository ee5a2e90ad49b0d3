//! The submit description of a job.

use std::borrow::Cow;

use crate::exec::Task;
use crate::profiles::Namespace;
use crate::tasks::{Invocation, PlannedJob};

use super::ad::Ad;
use super::context::{Context, log_name};
use super::ranks::priority;
use super::transfers::Transfers;
use super::{arguments, credentials, environment, style};

/// Commands that the planner writes itself. Those of the user are dropped, as in Pegasus.
const OWN_COMMANDS: [&str; 12] = [
    "arguments",
    "encrypt_input_files",
    "environment",
    "executable",
    "globusrsl",
    "globusscheduler",
    "initialdir",
    "log",
    "preserve_relative_paths",
    "queue",
    "remote_initialdir",
    "transfer_input_files",
];

/// Removes jobs that HTCondor has held for half an hour.
const PERIODIC_REMOVE: &str = "(JobStatus == 5) && ((CurrentTime - EnteredCurrentStatus) > 1800)";

/// Returns what the submit description of a job says. The invocation gets what its style wraps around it.
///
/// # Errors
/// Why the job cannot be submitted; the message names it.
pub(super) fn ad<'a>(
    context: &'a Context<'a>,
    job: PlannedJob<'a>,
    invocation: &mut Invocation,
) -> Result<Ad<'a>, String> {
    let mut ad = Ad::default();
    add_common(context, job, &mut ad);
    let profiles = &job.setup.profiles;
    ad.set("priority", priority(context, job).to_string());
    if let Task::NoOp = job.task {
        ad.set("noop_job", "true");
        ad.set("noop_job_exit_code", "0");
    }
    let is_shipped = context.is_script(job) || job.has_description();
    ad.set("transfer_executable", is_shipped.to_string());
    if let Some(stdin) = &invocation.stdin {
        ad.set_literal("input", stdin);
    }
    let mut transfers = Transfers::of(context, job, invocation);
    if let Some(more) = profiles.get(Namespace::Condor, "transfer_input_files") {
        let more = more.split(',').map(str::trim).filter(|file| !file.is_empty());
        transfers.inputs.extend(more.map(str::to_owned));
    }
    credentials::add(context, job, &mut transfers, &mut ad)?;
    if !transfers.lists.is_empty() {
        let names = transfers.lists.join(" ");
        ad.set_variable("GRIDSTART_CLEANUP", format!("/bin/rm -rf {names} "));
    }
    style::add(context, job, invocation, &transfers, &mut ad)?;
    let of_job = |problem: String| format!("job {}: {problem}", job.name);
    arguments::add(job, invocation, &mut ad).map_err(of_job)?;
    Ok(ad)
}

/// Adds what all jobs have: variables, commands of the user, logs, and defaults.
pub(super) fn add_common<'a>(context: &'a Context<'a>, job: PlannedJob<'a>, ad: &mut Ad<'a>) {
    let plan = context.plan;
    environment::add(context, job, ad);
    let profiles = &job.setup.profiles;
    for (key, value) in profiles.of(Namespace::Condor) {
        if !OWN_COMMANDS.contains(&key) && !value.trim().is_empty() && !is_old_period(key, value) {
            let value = match key.starts_with("stream_") {
                true => Cow::Owned(value.trim().to_lowercase()),
                false => Cow::Borrowed(value.trim()),
            };
            ad.commands.insert(Cow::Borrowed(key), value);
        }
    }
    let file = |suffix: &str| {
        let relative = context.relative(job, suffix);
        format!("{}/{}", plan.submit, relative.trim_start_matches("./"))
    };
    ad.set_literal("error", &file(".err"));
    ad.set_literal("output", &file(".out"));
    ad.set_literal("log", &format!("{}/{}", plan.submit, log_name(plan)));
    ad.set_literal("wf_submit_dir", &plan.submit);
    ad.set(
        "submit_event_user_notes",
        format!("pool:{}", plan.sites.get(job.site).name),
    );
    ad.or_set("notification", "NEVER");
    ad.or_set("periodic_release", "False");
    let of_mode = plan.settings.mode.properties().into_iter();
    let mut of_mode = of_mode.filter(|(key, _)| *key == "condor.periodic_remove");
    ad.or_set(
        "periodic_remove",
        of_mode.next().map_or(PERIODIC_REMOVE, |(_, value)| value),
    );
    ad.or_set("stream_error", "false");
    ad.or_set("stream_output", "false");
    if plan.settings.condor.limits_concurrency
        && let Some(limit) = concurrency_limit(job)
    {
        ad.set("concurrency_limits", limit);
    }
}

/// Returns whether a command had the form of a number of seconds in older versions of Pegasus. It is an
/// expression now.
fn is_old_period(key: &str, value: &str) -> bool {
    matches!(key, "periodic_release" | "periodic_remove") && value.trim().parse::<i64>().is_ok()
}

/// Returns the limit of the pool for jobs of this kind. The names are those of Pegasus.
fn concurrency_limit(job: PlannedJob<'_>) -> Option<&'static str> {
    match job.task {
        Task::StageIn(_) => Some("pegasus_transfer.stagein"),
        Task::StageOut(_) => Some("pegasus_transfer.stageout"),
        Task::InterSite(_) => Some("pegasus_transfer.inter"),
        Task::CreateDir => Some("pegasus_auxillary.createdir"),
        Task::CleanUp(_) | Task::RemoveDir => Some("pegasus_auxillary.cleanup"),
        Task::Register(_) => Some("pegasus_auxillary.registration"),
        Task::Chmod(_) => Some("pegasus_auxillary.chmod"),
        Task::Compute(_) | Task::Cluster(..) if !job.is_nested() => Some("pegasus_compute"),
        Task::Compute(_) | Task::Cluster(..) | Task::NoOp => None,
    }
}
