//! Warnings and notes about a finished plan: what has no effect here, and what stays where.

use std::path::Path;

use pmc_status::memory;

use crate::exec::{Exec, ExecJob, Setup, Task};
use crate::keys::BYPASS;
use crate::model::{Arguments, TransferFlag, Workflow};
use crate::profiles::Namespace;
use crate::refine::sites::Sites;
use crate::request::Request;
use crate::task_request::{
    CPUS, DEFAULTS, EXPRESSIONS, GPUS, MEMORY, ProfileKey, find, is_no_wrapper, is_number, largest,
};
use crate::tasks::arguments::doubt;

use super::inputs::Inputs;

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

/// Returns a warning about the first hook whose program does not exist.
pub(super) fn missing_hooks(workflow: &Workflow) -> Option<String> {
    let of_jobs = workflow
        .jobs
        .iter()
        .flat_map(|job| job.hooks.iter().map(|hook| (hook, Some(&job.id))));
    let mut all = workflow.hooks.iter().map(|hook| (hook, None)).chain(of_jobs);
    let program = |command: &str| command.split_whitespace().next().unwrap_or_default().to_owned();
    let (hook, job) = all.find(|(hook, _)| {
        let program = program(&hook.command);
        program.starts_with('/') && !Path::new(&program).exists()
    })?;
    let of = job.map_or_else(|| "the workflow".to_owned(), |id| format!("the job {id}"));
    Some(format!(
        "the hook of {of} for {} runs {}, which does not exist on this machine",
        hook.when,
        program(&hook.command)
    ))
}

/// Returns a warning if the kickstart of the jobs of this machine is not there, because `PEGASUS_HOME` is
/// that of another installation.
pub(super) fn missing_kickstart(
    exec: &Exec,
    sites: &Sites,
    kickstarts: &[String],
    request: &Request,
) -> Option<String> {
    let local = sites.local();
    let is_wrapped = |job: &&ExecJob| {
        let gridstart = exec.setups[job.setup].profiles.pegasus("gridstart");
        job.site == local && !gridstart.is_some_and(is_no_wrapper)
    };
    exec.jobs.iter().find(is_wrapped)?;
    let kickstart = kickstarts.get(local.index())?;
    let own = request.environment.own_bin.as_ref();
    let is_own = own.is_some_and(|own| Path::new(kickstart).starts_with(own));
    if is_own || Path::new(kickstart).exists() {
        return None;
    }
    let home = kickstart.strip_suffix("/bin/pegasus-kickstart")?;
    Some(format!(
        "there is no {kickstart}, which starts the jobs of the site local: set PEGASUS_HOME, now {home}, of this site \
         or of the environment to an installation, or remove it"
    ))
}

/// Returns a warning about requests of jobs that only the one batch job of the run can make.
pub(super) fn batch_requests(workflow: &Workflow) -> Option<String> {
    const KEYS: [(Namespace, &str); 3] = [
        (Namespace::Pegasus, "glite.arguments"),
        (Namespace::Pegasus, "queue"),
        (Namespace::Globus, "queue"),
    ];
    workflow.jobs.iter().find_map(|job| {
        let (namespace, key) = KEYS.iter().find(|(of, key)| job.profiles.get(*of, key).is_some())?;
        Some(format!(
            "{}::{key} of the job {} and others like it do not count: all jobs run in one batch job, for which \
             `--queue` and the profiles of the site count",
            namespace.as_str(),
            job.id
        ))
    })
}

/// Returns a warning for each request that is an expression of HTCondor, about the first job that has it.
pub(super) fn htcondor_expressions(workflow: &Workflow, exec: &Exec) -> Vec<String> {
    let text = |setup: &Setup, (namespace, key)| {
        let text = setup.profiles.get(namespace, key).unwrap_or_default().trim();
        (!text.is_empty() && !is_number(key, text)).then(|| text.to_owned())
    };
    let warning = |(namespace, key): ProfileKey| {
        let keys = [MEMORY, CPUS, GPUS]
            .into_iter()
            .find(|keys| keys.contains(&(namespace, key)))?;
        // Few setups have one, and a workflow may have a million jobs.
        let setups = exec.setups.iter();
        setups.clone().find_map(|setup| text(setup, (namespace, key)))?;
        let mut jobs = exec.computing().filter_map(|(job, index)| {
            let setup = &exec.setups[job.setup];
            let text = text(setup, (namespace, key))?;
            let counts = find(&setup.profiles, keys).is_none_or(|(found, value)| {
                found == (namespace, key) || DEFAULTS.contains(&(found.1, &*value.text()))
            });
            counts.then_some((index, text))
        });
        let (first, text) = jobs.next()?;
        let others = match jobs.count() {
            0 => String::new(),
            more => format!(" (and those of {more} more jobs)"),
        };
        let then = match largest(key, &text) {
            Some(mib) if key == "request_memory" => {
                format!("the largest value that it can have is requested, {}", memory(mib))
            }
            Some(number) => format!("the largest value that it can have is requested, {number}"),
            None => "its largest value is not known, so that the job requests what a job without it does"
                .to_owned(),
        };
        Some(format!(
            "condor::{key} of the job {}{others} is an expression, which only HTCondor evaluates, `{text}`: {then}",
            workflow.jobs[first].id
        ))
    };
    EXPRESSIONS.into_iter().filter_map(warning).collect()
}

/// Returns warnings about directories that the catalogs do not give the site `local` and that the plan uses.
pub(super) fn made_directories(
    inputs: &Inputs,
    exec: &Exec,
    sites: &Sites,
    request: &Request,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if !inputs.describes_local {
        return warnings;
    }
    let local = sites.local();
    let scratch = sites.get(local).scratch.as_ref();
    if let Some(scratch) = scratch.filter(|_| inputs.made.scratch)
        && exec.jobs.iter().any(|job| job.staging == local)
    {
        warnings.push(format!(
            "the site catalog gives the site local no directory of type sharedScratch: the work directory is {}",
            scratch.path
        ));
    }
    let mut outputs = sites.outputs.iter().filter(|output| output.name == "local");
    if let Some(path) = outputs.next().and_then(|output| output.path.as_ref())
        && inputs.made.storage
        && request.output_dir.is_none()
    {
        warnings.push(format!(
            "the site catalog gives the site local no directory of type localStorage or sharedStorage: outputs go to \
             {path}, or to that of --output-dir"
        ));
    }
    warnings
}

/// Returns a warning about arguments that do not reach their program as they were meant: quotes and `$` have
/// a meaning when the executor splits them and kickstart expands variables.
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

/// Returns a warning about inputs of jobs that share their work directory and are to bypass it.
pub(super) fn bypass(workflow: &Workflow, exec: &Exec, by_property: bool) -> Option<String> {
    const PROPERTY: &str = "pegasus.transfer.bypass.input.staging";
    if by_property && exec.computing().any(|(job, _)| !exec.is_lite(job)) {
        return Some(format!("the property {PROPERTY} = true has no effect: {BYPASS}"));
    }
    let uses = || {
        let shared = exec.computing().filter(|(job, _)| !exec.is_lite(job));
        shared.flat_map(|(_, n)| workflow.jobs[n].uses.iter().filter(|u| u.bypass))
    };
    let first = uses().next()?;
    Some(format!(
        "bypass, as {} inputs have it, for example {}, has no effect: {BYPASS}",
        uses().count(),
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
