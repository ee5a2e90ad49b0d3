//! Warnings and notes about a finished plan: what has no effect here, and what stays where.

use crate::error::PlanError;
use crate::exec::{Exec, ExecJob, Task};
use crate::model::{Arguments, TransferFlag, Workflow};
use crate::output::command::{doubt, is_no_wrapper};
use crate::profiles::Namespace;
use crate::properties::Properties;
use crate::refine::sites::Sites;

/// Returns a warning if no output site is set: outputs stay in the work directory then.
pub(super) fn outputs_that_stay(workflow: &Workflow, exec: &Exec, sites: &Sites) -> Option<String> {
    if !sites.outputs.is_empty() {
        return None;
    }
    let has_output = |job: &&ExecJob| {
        let uses = exec.uses(workflow, job.task);
        uses.iter()
            .any(|u| u.link.writes() && u.transfer != TransferFlag::Not)
    };
    let job = exec.jobs.iter().find(has_output)?;
    let directory = sites.get(job.staging).scratch.as_ref()?;
    Some(format!(
        "outputs stay in the work directory {}, which is not removed: neither --output-sites nor --output-dir is given",
        directory.path
    ))
}

/// Returns a warning about arguments that do not reach their program as they were meant: quotes and `$` have a
/// meaning when the executor splits them and kickstart expands variables.
pub(super) fn doubtful_arguments(workflow: &Workflow, exec: &Exec) -> Option<String> {
    let mut jobs = exec.jobs.iter().chain(&exec.members);
    let (job, why) = jobs.find_map(|job| {
        let Task::Compute(n) = job.task else {
            return None;
        };
        let Arguments::Raw(text) = &workflow.jobs[n].arguments else {
            return None;
        };
        let gridstart = exec.setups[job.setup].profiles.pegasus("gridstart");
        let why = doubt(text, !gridstart.is_some_and(is_no_wrapper))?;
        Some((&workflow.jobs[n], why))
    })?;
    let literal = if workflow
        .path
        .extension()
        .is_some_and(|e| e == "xml" || e == "dax")
    {
        ""
    } else {
        ", or set the property pegasus.parser.arguments.split to false: each item of a list is one literal word then"
    };
    Some(format!(
        "the arguments of the job {} {why}: quote such characters for both, like `\\\\\\'` and `\\\\$`{literal}",
        job.id
    ))
}

/// Returns a warning about pre- and post-scripts, which only DAGMan starts.
pub(super) fn dagman_scripts(exec: &Exec) -> Option<String> {
    let is_script = |key: &str| {
        let mut words = ["pre", "post"].iter().filter_map(|word| key.strip_prefix(word));
        words.any(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut setups = exec.setups.iter().enumerate();
    let (setup, key) = setups.find_map(|(n, setup)| {
        let mut keys = setup.profiles.of(Namespace::Dagman).map(|(key, _)| key);
        Some((n, keys.find(|key| is_script(&key.to_ascii_lowercase()))?))
    })?;
    let mut jobs = exec.jobs.iter().chain(&exec.members);
    let name = &jobs.find(|job| job.setup.index() == setup)?.name;
    Some(format!(
        "the profile dagman::{key}, as the job {name} has it, has no effect: there is no DAGMan that starts scripts before \
         and after jobs; the profiles exitcode.failuremsg and exitcode.successmsg of the namespace pegasus are heeded by \
         the code generator Shell"
    ))
}

/// Returns a warning about inputs that bypass the work directory: here all jobs share that directory.
pub(super) fn bypass(workflow: &Workflow, properties: &Properties) -> Result<Option<String>, PlanError> {
    const KEY: &str = "pegasus.transfer.bypass.input.staging";
    let what = if properties.get_bool(KEY, false)? {
        format!("the property {KEY} has")
    } else {
        let uses = || workflow.jobs.iter().flat_map(|job| &job.uses);
        match uses().find(|u| u.bypass) {
            Some(first) => format!(
                "bypass, as {} inputs have it, for example {}, has",
                uses().filter(|u| u.bypass).count(),
                workflow.files.name(first.file)
            ),
            None => return Ok(None),
        }
    };
    Ok(Some(format!(
        "{what} no effect: with a shared file system all inputs come into the work directory; pegasus.transfer.links = true \
         links those that are on the site instead of copying them"
    )))
}

/// Notes the sites on which jobs run. All of them run inside one job of the executor.
pub(super) fn note_sites(exec: &Exec, sites: &Sites, notes: &mut Vec<String>) {
    let mut used: Vec<&str> = exec
        .jobs
        .iter()
        .map(|job| sites.get(job.site).name.as_str())
        .collect();
    used.sort_unstable();
    used.dedup();
    if used.len() > 1 {
        notes.push(format!(
            "jobs of the sites {} run together inside the one job of pegasus-mpi-cluster: their file systems must be \
             visible there",
            used.join(", ")
        ));
    }
    for name in used {
        let Some(site) = sites.find(name).map(|id| sites.get(id)) else {
            continue;
        };
        if let (Some(_), Some(scratch)) = (&site.workdir, &site.scratch) {
            notes.push(format!(
                "the profile pegasus::workdir names the work directory {} on the site {name}: it is not removed at the end",
                scratch.path
            ));
        }
    }
}
