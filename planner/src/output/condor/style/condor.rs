//! The style condor: the pool of the submit host, or the submit host itself.

use crate::exec::Task;
use crate::tasks::{Invocation, PlannedJob};

use super::super::ad::{Ad, literal};
use super::super::context::Context;
use super::super::transfers::Transfers;
use super::super::{arguments, requests};

/// Directory of jobs that make directories, which have none yet.
const ANYWHERE: &str = "/tmp";

/// Adds universe, files and directories.
pub(super) fn add<'a>(
    context: &'a Context<'a>,
    job: PlannedJob<'a>,
    invocation: &mut Invocation,
    transfers: &Transfers,
    ad: &mut Ad<'a>,
) -> Result<(), String> {
    let is_local = job.site == context.plan.sites.local();
    ad.or_set("universe", if is_local { "local" } else { "vanilla" });
    let is_auxiliary = !matches!(job.task, Task::Compute(_) | Task::Cluster(..));
    if is_auxiliary && ad.universe().eq_ignore_ascii_case("standard") {
        ad.set("universe", if is_local { "local" } else { "vanilla" });
    }
    if ad.universe().eq_ignore_ascii_case("container") && !context.has_container_universe(job) {
        ad.set("universe", "vanilla");
    }
    requests::add(job, true, ad)?;
    match ad.universe().to_ascii_lowercase().as_str() {
        "local" | "scheduler" => on_submit_host(context, job, invocation, transfers, ad),
        "vanilla" | "standard" | "container" | "parallel" => in_pool(context, job, transfers, ad),
        other => {
            return Err(format!(
                "job {}: (style,universe,site) mismatch: the style condor of the site {} has no universe {other}; it has \
                 vanilla, local, scheduler, container, parallel",
                job.name,
                context.plan.sites.get(job.site).name
            ));
        }
    }
    Ok(())
}

/// Directory in which the job works, if it shares one with others.
fn shared_directory<'a>(job: PlannedJob<'a>, invocation: &Invocation) -> Option<&'a str> {
    let is_compute = matches!(job.task, Task::Compute(_) | Task::Cluster(..));
    // With an argument file, kickstart changes into it.
    (is_compute && !job.is_lite() && invocation.argument_file.is_none()).then(|| job.work_dir())
}

/// The universes local and scheduler: nothing is transferred. What must be where the job starts, a script
/// brings there.
fn on_submit_host<'a>(
    context: &'a Context<'a>,
    job: PlannedJob<'a>,
    invocation: &mut Invocation,
    transfers: &Transfers,
    ad: &mut Ad<'a>,
) {
    let plan = context.plan;
    let directory = shared_directory(job, invocation);
    ad.set_variable("_PEGASUS_WF_SUBMIT_DIR", plan.submit.as_str());
    if let Some(directory) = directory {
        ad.set_literal("initialdir", directory);
    }
    let is_moved = context.is_moved(job);
    if is_moved && let Some(directory) = context.staging_directory(job) {
        ad.set_variable("_PEGASUS_INITIAL_DIR", directory);
    }
    for name in ["should_transfer_files", "when_to_transfer_output"] {
        ad.commands.remove(name);
    }
    ad.set("transfer_executable", "false");
    if transfers.inputs.is_empty() && !is_moved {
        return;
    }
    if let Some(directory) = directory {
        ad.set_variable("_PEGASUS_INITIAL_DIR", directory);
        ad.set_variable("_PEGASUS_EXECUTE_IN_INITIAL_DIR", "true");
    }
    ad.set_expanded(
        "_PEGASUS_TRANSFER_INPUT_FILES",
        format!("{},", transfers.input_files()),
    );
    if is_moved && !transfers.outputs.is_empty() {
        ad.set_expanded("_PEGASUS_TRANSFER_OUTPUT_FILES", transfers.outputs.join(","));
        if let Some(remaps) = transfers.output_remaps() {
            ad.set_expanded("_PEGASUS_TRANSFER_OUTPUT_REMAPS", remaps);
        }
    }
    ad.set_variable("PEGASUS_BIN_DIR", context.tools.as_str());
    if invocation.stdin.is_some() {
        ad.set_variable("_PEGASUS_CONNECT_STDIN", "true");
    }
    arguments::wrap(
        invocation,
        format!("{}/share/pegasus/sh/pegasus-lite-local.sh", context.home),
    );
}

/// Other universes: HTCondor transfers the files.
fn in_pool<'a>(context: &'a Context<'a>, job: PlannedJob<'a>, transfers: &Transfers, ad: &mut Ad<'a>) {
    ad.or_set("+WantIOProxy", "True");
    set_files(context, job, transfers, ad);
    let has_files = !transfers.inputs.is_empty() || !transfers.outputs.is_empty();
    if has_files || context.is_script(job) {
        // A user's own value would leave files behind.
        ad.set("should_transfer_files", "YES");
        ad.set("when_to_transfer_output", "ON_EXIT");
    }
    if context.has_container_universe(job)
        && let Some(container) = &job.setup.container
    {
        let image = super::super::script::image_name(job, container);
        ad.or_set(
            "container_image",
            literal(&format!("{}/{image}", context.plan.submit)),
        );
    }
    set_remote_directory(context, job, ad);
}

/// Sets the directory on the machine of the job, if it shares that with others.
pub(super) fn set_remote_directory<'a>(context: &Context<'_>, job: PlannedJob<'a>, ad: &mut Ad<'a>) {
    if context.is_script(job) || job.is_lite() {
        return;
    }
    let directory = match job.task {
        Task::Compute(_) | Task::Cluster(..) => job.work_dir(),
        Task::CreateDir => ANYWHERE,
        _ => return,
    };
    ad.set_literal("remote_initialdir", directory);
    ad.set_variable("PEGASUS_SCRATCH_DIR", directory);
}

/// Sets the lists of files that HTCondor transfers.
pub(super) fn set_files<'a>(
    context: &'a Context<'a>,
    job: PlannedJob<'a>,
    transfers: &Transfers,
    ad: &mut Ad<'a>,
) {
    if !transfers.inputs.is_empty() {
        ad.set("transfer_input_files", transfers.input_files());
    }
    if !transfers.encrypted.is_empty() {
        ad.set("encrypt_input_files", transfers.encrypted.join(","));
    }
    if context.is_moved(job) {
        if let Some(directory) = context.staging_directory(job) {
            ad.set_literal("initialdir", &directory);
        }
        if !transfers.outputs.is_empty() {
            ad.set("transfer_output_files", transfers.outputs.join(","));
            if let Some(remaps) = transfers.output_remaps() {
                ad.set("transfer_output_remaps", remaps);
            }
        }
    }
    if transfers.outputs.is_empty() && !transfers.inputs.is_empty() {
        ad.or_set("+TransferOutput", "\"\"");
    }
}
