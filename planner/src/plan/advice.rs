//! Warnings and notes about a finished plan: what has no effect here, and what stays where.

use crate::exec::{Exec, ExecJob};
use crate::input::SPLIT_ARGUMENTS;
use crate::keys::BYPASS;
use crate::model::{Arguments, TransferFlag, Workflow};
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

/// Returns a warning about arguments that contain blanks or quotes.
///
/// Pegasus joins the arguments of a job and splits the result at blanks. Here an argument stays one word
/// unless the property says otherwise. With the property set, the user has decided, so there is no warning.
pub(super) fn arguments_with_blanks(workflow: &Workflow, properties: &Properties) -> Option<String> {
    if properties.get(SPLIT_ARGUMENTS).is_some() {
        return None;
    }
    let is_special = |word: &&str| word.contains([' ', '\t', '"', '\'']);
    let (job, word) = workflow.jobs.iter().find_map(|job| match &job.arguments {
        Arguments::Words(words) => Some((job, words.iter().find(is_special)?)),
        Arguments::Raw(_) => None,
    })?;
    Some(format!(
        "arguments with blanks or quotes, such as {word:?} of the job {}, reach their program as they are, each as one \
         word; Pegasus splits them at blanks: set the property {SPLIT_ARGUMENTS} to true for that, or to false if all is \
         well",
        job.id
    ))
}

/// Returns a warning about inputs that bypass the work directory: here all jobs share that directory.
pub(super) fn bypass(workflow: &Workflow) -> Option<String> {
    let uses = || workflow.jobs.iter().flat_map(|job| &job.uses);
    let first = uses().find(|u| u.bypass)?;
    Some(format!(
        "bypass, as {} inputs have it, for example {}, has no effect: {BYPASS}",
        uses().filter(|u| u.bypass).count(),
        workflow.files.name(first.file)
    ))
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
