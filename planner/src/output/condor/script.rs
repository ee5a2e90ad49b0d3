//! Job scripts for the tools of Pegasus, which get the worker package and the functions of
//! `pegasus-lite-common.sh`. Variables and functions in them are those of Pegasus.

mod container;

use std::borrow::Cow;
use std::fmt::Write as _;

use pmc_calls::shell::shell_quote;
use pmc_job_files::{Description, Entry, Verified};

use crate::catalog::transformation::Container;
use crate::diagnostic::Diagnostic;
use crate::exec::{JobId, Task};
use crate::profiles::Namespace;
use crate::refine::settings::Mode;
use crate::tasks::lite::describe;
use crate::tasks::{Invocation, Invocations, PlannedJob, Words};

use super::super::common::clusters;
use super::context::{Context, VERSION};

/// Tools of the worker package, which scripts call by name.
const TOOLS: [&str; 3] = ["pegasus-kickstart", "pegasus-transfer", "pegasus-cluster"];

/// Makes the script the program of a job.
pub(super) fn replace(context: &Context<'_>, job: PlannedJob<'_>, invocation: &mut Invocation) {
    invocation.program = format!("{}/{}", context.plan.submit, context.relative(job, ".sh"));
    invocation.arguments = Words::default();
    if job.has_description() {
        invocation.stdin = None;
    }
}

/// Returns the name of the image of a container in the directory of its job.
pub(super) fn image_name(job: PlannedJob<'_>, container: &Container) -> String {
    let files = &job.plan.exec.files;
    let is_own = |file: &crate::model::FileId| {
        files
            .image(*file)
            .is_some_and(|image| image.name == container.name)
    };
    let mut uses = job.uses().iter().map(|u| u.file);
    uses.find(is_own).map_or_else(
        || container.name.clone(),
        |file| job.plan.workflow.files.name(file).to_owned(),
    )
}

/// Returns the script of a job. The invocation is what runs in it.
///
/// # Errors
/// Jobs of a cluster that its list cannot express.
pub(super) fn script(
    context: &Context<'_>,
    invocations: &mut Invocations<'_>,
    id: JobId,
    invocation: &Invocation,
) -> Result<String, Vec<Diagnostic>> {
    let plan = context.plan;
    let job = plan.at(id);
    let description = match job.has_description() {
        true => describe(invocations, id).unwrap_or_default(),
        false => Description::default(),
    };
    let mut text = head(context, job, &description);
    if let Some(container) = &description.container
        && container.transfers_inside
    {
        return Err(vec![Diagnostic::error(format!(
            "job {}: job scripts transfer files outside of containers: remove pegasus.transfer.container.onhost",
            job.name
        ))]);
    }
    text.push_str("\npegasus_lite_section_start stage_in\n");
    if let Some(container) = description
        .container
        .as_ref()
        .filter(|_| !context.has_container_universe(job))
    {
        transfer(&description, &container.fetch, &mut text);
        verify(&container.verify, &mut text);
    }
    transfer(&description, &description.stage_in, &mut text);
    for program in &description.executables {
        let _ = writeln!(
            text,
            "/bin/chmod +x {}",
            shell_quote(&program.display().to_string())
        );
    }
    checkpoints(&description, &description.checkpoint_in, &mut text);
    verify(&description.verify, &mut text);
    text.push_str(
        "pegasus_lite_section_end stage_in\n\nset +e\njob_ec=0\npegasus_lite_section_start task_execute\n",
    );
    let command = command(context, job, invocation);
    match (job.cluster(), &description.container) {
        (None, Some(container)) if context.has_container_universe(job) => {
            text.push_str("# setting environment variables for job\n");
            container::variables(container, &mut text);
            let _ = writeln!(text, "{command}");
        }
        (None, Some(container)) => {
            container::call(&job.name, container, &settings(context), &command, &mut text)
        }
        (Some(_), _) => {
            let mut list = String::new();
            clusters::list(invocations, id, &mut list)?;
            let list = without_paths(context, job, &list);
            let _ = writeln!(text, "{command} << 'EOF'\n{}EOF", list);
        }
        (None, None) => {
            let _ = writeln!(text, "{command}");
        }
    }
    if description.container.is_none() || context.has_container_universe(job) {
        text.push_str("job_ec=$?\n");
    }
    text.push_str("pegasus_lite_section_end task_execute\nset -e\n\npegasus_lite_section_start stage_out\n");
    checkpoints(&description, &description.checkpoint_out, &mut text);
    transfer(&description, &description.stage_out, &mut text);
    text.push_str("pegasus_lite_section_end stage_out\n\nset -e\ntrap - EXIT\npegasus_lite_final_exit\n");
    Ok(text)
}

/// Returns the beginning: settings, functions, and the directory of the job.
fn head(context: &Context<'_>, job: PlannedJob<'_>, description: &Description) -> String {
    let plan = context.plan;
    let mut text = format!(
        "#!/bin/bash\n# The job {} of {}.\nset -e\n",
        job.name,
        context.workflow_name().replace(char::is_control, " ")
    );
    if plan.settings.mode == Mode::Debug {
        text.push_str("set -x\n");
    }
    text.push_str(&settings(context));
    if let Some(log) = job.setup.profiles.get(Namespace::Env, "pegasus_lite_log_file") {
        let _ = writeln!(text, "pegasus_lite_log_file={}", shell_quote(log));
    }
    if context.env_source(job).is_some() || description.env_source.is_some() {
        text.push_str("\n. $PEGASUS_LITE_ENV_SOURCE\n");
    }
    text.push_str(
        "\n. pegasus-lite-common.sh\npegasus_lite_init\n\n\
         # What is done if the job ends early.\n\
         trap pegasus_lite_signal_int INT\ntrap pegasus_lite_signal_term TERM\ntrap pegasus_lite_unexpected_exit EXIT\n\n",
    );
    if context.is_moved(job) || matches!(job.task, Task::CreateDir | Task::RemoveDir) {
        // HTCondor looks for outputs where it starts the job.
        text.push_str("export pegasus_lite_work_dir=$PWD\n");
    } else if let Some(scratch) = &description.scratch {
        let _ = writeln!(
            text,
            "export PEGASUS_WN_TMP={}",
            shell_quote(&scratch.display().to_string())
        );
    }
    text.push_str("pegasus_lite_setup_work_dir\npegasus_lite_worker_package\n");
    text
}

/// Returns the settings of the functions.
fn settings(context: &Context<'_>) -> String {
    let settings = &context.plan.settings.condor;
    let mut parts = VERSION.split('.');
    let mut part = || parts.next().unwrap_or("0");
    format!(
        "pegasus_lite_version_major=\"{}\"\npegasus_lite_version_minor=\"{}\"\npegasus_lite_version_patch=\"{}\"\n\
         pegasus_lite_enforce_strict_wp_check=\"{}\"\npegasus_lite_version_allow_wp_auto_download=\"{}\"\n\
         pegasus_metrics=\"true\"\n",
        part(),
        part(),
        part(),
        settings.package_is_strict,
        settings.package_is_downloaded,
    )
}

/// Adds the comparison of files with their checksums.
fn verify(files: &[Verified], text: &mut String) {
    let names: Vec<&str> = files.iter().map(|file| file.lfn.as_str()).collect();
    if !names.is_empty() {
        let _ = writeln!(
            text,
            "pegasus-integrity --print-timings --verify=stdin 1>&2 << 'eof'\n{}\neof",
            names.join(";;;")
        );
    }
}

/// Adds transfers, if there are any.
fn transfer(description: &Description, entries: &[Entry], text: &mut String) {
    if entries.is_empty() {
        return;
    }
    let options: Vec<Cow<'_, str>> = description
        .transfer_arguments
        .iter()
        .map(|word| shell_quote(word))
        .collect();
    let _ = writeln!(text, "pegasus-transfer {} 1>&2 << 'eof'", options.join(" "));
    let list = entries.iter().zip(1..).map(|(entry, id)| {
        // Texts of a plan are UTF-8.
        let mut value = serde_json::to_value(entry).unwrap_or_default();
        value["id"] = serde_json::Value::from(id);
        value
    });
    let list: Vec<_> = list.collect();
    text.push_str(&serde_json::to_string_pretty(&list).unwrap_or_default());
    text.push_str("\neof\n");
}

/// Adds transfers that may fail.
fn checkpoints(description: &Description, entries: &[Entry], text: &mut String) {
    if entries.is_empty() {
        return;
    }
    text.push_str("set +e\n");
    transfer(description, entries, text);
    text.push_str(
        "ec=$?\nset -e\n[ $ec = 0 ] || echo \"checkpoint files: pegasus-transfer ended with $ec\" 1>&2\n",
    );
}

/// Returns a command for a shell. Tools of the worker package are called by name.
fn command(context: &Context<'_>, job: PlannedJob<'_>, invocation: &Invocation) -> String {
    let mut words: Vec<Cow<'_, str>> = invocation.command().collect();
    if job.cluster().is_some() {
        // The list comes as standard input.
        words.pop();
    }
    let quoted = words.iter().map(|word| match bare(context, job, word) {
        Some(tool) => tool.to_owned(),
        // The shell finds the directory, as kickstart would.
        None if word.starts_with("@$_CONDOR_SCRATCH_DIR/") => word.to_string(),
        None => shell_quote(word).into_owned(),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Returns the name of a tool of the worker package, if that is the program.
fn bare<'w>(context: &Context<'_>, job: PlannedJob<'_>, word: &'w str) -> Option<&'w str> {
    let tools = &context.plan.sites.get(job.site).tools;
    let name = word.strip_prefix(tools.as_str())?.strip_prefix('/')?;
    TOOLS.contains(&name).then_some(name)
}

/// Replaces the paths of tools at the beginning of the lines of a list by their names.
fn without_paths(context: &Context<'_>, job: PlannedJob<'_>, list: &str) -> String {
    let tools = format!("{}/", context.plan.sites.get(job.site).tools);
    let lines = list.lines().map(|line| {
        let line = line
            .strip_prefix(tools.as_str())
            .filter(|rest| TOOLS.iter().any(|tool| rest.starts_with(tool)))
            .unwrap_or(line);
        format!("{line}\n")
    });
    lines.collect()
}
