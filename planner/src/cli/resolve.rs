//! From typed options to a request.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use pmc_secrets::SecretNames;

use super::options::Options;
use crate::error::UsageError;
use crate::output::pmc::batch::{parse_megabytes, parse_minutes};
use crate::request::{
    BatchOptions, CleanupStrategy, Environment, Format, Picture, Request, Subject, SubworkflowOptions,
};
use pmc_batch::Scheduler;

/// Returns the words of a command line after the program, for files that others may read: without secrets.
#[must_use]
pub fn shown_arguments(arguments: &[String], environment: &Environment) -> String {
    let more = environment.variables.get(pmc_secrets::VARIABLE);
    let secrets = SecretNames::new(more.map(OsStr::new));
    secrets.hide_all(arguments.get(1..).unwrap_or_default()).join(" ")
}

/// Turns options into a request.
pub(super) fn request(
    typed: Options,
    arguments: &[String],
    environment: Environment,
) -> Result<Request, UsageError> {
    refuse(&typed)?;
    let warnings = without_effect(&typed);
    let here = environment.working_dir.clone();
    let absolute = |path: &Path| -> PathBuf { here.join(path).components().collect() };
    let all = |paths: &[PathBuf]| -> Vec<PathBuf> { paths.iter().map(|p| absolute(p)).collect() };
    let workflow = absolute(workflow(&typed)?);
    let cleanup = cleanup(&typed)?;
    let batch = batch(&typed, &absolute)?;
    let pictures = pictures(&typed, &absolute);
    let staging_sites: BTreeMap<String, String> = typed
        .staging_site
        .iter()
        // The planner of Pegasus ends the list with a comma.
        .filter(|text| !text.trim().is_empty())
        .map(|text| match text.split_once('=') {
            Some((site, staging)) => (site.trim().to_owned(), staging.trim().to_owned()),
            None => (String::new(), text.trim().to_owned()),
        })
        .collect();
    let mut defines = typed.define;
    // The program itself writes the log.
    defines.retain(|define| log_of(define).is_none());
    Ok(Request {
        workflow,
        conf: typed.conf.as_deref().map(absolute),
        defines,
        seed: typed.seed,
        sites: names(&typed.sites),
        staging_sites,
        output_sites: names(&typed.output_sites),
        output_dir: typed.output_dir,
        input_dirs: all(&typed.input_dir),
        transformations_dir: typed.transformations_dir.as_deref().map(absolute),
        cache_files: all(&typed.cache),
        inherited_files: all(&typed.inherited_rc_files),
        reuse_dirs: all(&typed.reuse),
        force: typed.force,
        cleanup,
        dir: absolute(typed.dir.as_deref().unwrap_or(Path::new("."))),
        dir_given: typed.dir.is_some(),
        relative_dir: typed.relative_dir,
        relative_submit_dir: typed.relative_submit_dir,
        random_dir: typed.randomdir,
        basename: typed.basename,
        job_prefix: typed.job_prefix,
        cluster: names(&typed.cluster),
        batch,
        deferred: typed.deferred,
        output_map: typed.output_map.as_deref().map(absolute),
        force_replan: typed.force_replan,
        runs_here: false,
        arguments: shown_arguments(arguments, &environment),
        line: arguments.get(1..).unwrap_or_default().to_vec(),
        pictures,
        check_files: false,
        may_start_programs: true,
        chosen_sites: None,
        warnings,
        parse_options: parse_subworkflow_options,
        environment,
    })
}

/// Returns the file of `pegasus.log.*=FILE`, with which Pegasus names the log of the planning of a
/// sub-workflow.
fn log_of(define: &str) -> Option<&str> {
    define.strip_prefix("pegasus.log.*=")
}

/// Returns the file of `-Dpegasus.log.*=FILE` in a command line. Messages go there, too, with a number
/// behind the name: Pegasus' tools look for the messages of a sub-workflow there.
#[must_use]
pub fn log_file(arguments: &[String]) -> Option<&Path> {
    let mut logs = arguments
        .iter()
        .filter_map(|word| log_of(word.strip_prefix("-D")?));
    logs.next_back().map(Path::new)
}

/// Returns the workflow file.
fn workflow(typed: &Options) -> Result<&Path, UsageError> {
    match (typed.workflow.as_slice(), &typed.dax) {
        ([], None) => Ok(Path::new("workflow.yml")),
        ([one], None) | ([], Some(one)) => Ok(one),
        ([_], Some(_)) => Err(UsageError(
            "the workflow is given twice, as an argument and with --dax".into(),
        )),
        ([first, second, ..], _) => Err(UsageError(format!(
            "there can be one workflow only, not {} and {}",
            first.display(),
            second.display()
        ))),
    }
}

fn cleanup(typed: &Options) -> Result<Option<CleanupStrategy>, UsageError> {
    if typed.nocleanup {
        return Ok(Some(CleanupStrategy::None));
    }
    match typed.cleanup.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None => Ok(None),
        Some("none") => Ok(Some(CleanupStrategy::None)),
        Some("leaf") => Ok(Some(CleanupStrategy::Leaf)),
        Some("inplace") => Ok(Some(CleanupStrategy::InPlace)),
        Some("constraint") => Ok(Some(CleanupStrategy::Constraint)),
        Some(other) => Err(UsageError(format!(
            "--cleanup: there is no strategy {other}; known are none, leaf, inplace, constraint"
        ))),
    }
}

fn batch(typed: &Options, absolute: &dyn Fn(&Path) -> PathBuf) -> Result<BatchOptions, UsageError> {
    let mut schedulers = Vec::new();
    for name in names(&typed.batch) {
        schedulers
            .push(Scheduler::parse(&name).ok_or_else(|| format!("--batch: {}", Scheduler::unknown(&name)))?);
    }
    let minutes = |option: &str, text: &Option<String>, min: u32| match text {
        None => Ok(None),
        Some(text) => match parse_minutes(text).filter(|&minutes| minutes >= min) {
            None => Err(format!("{option}: {text} is neither minutes nor [D-]HH:MM[:SS]")),
            minutes => Ok(minutes),
        },
    };
    let node_memory = match &typed.node_memory {
        None => None,
        Some(text) => match parse_megabytes(text) {
            None => {
                let message = format!("--node-memory: {text} is no number of MiB, nor one with M, G or T");
                return Err(UsageError(message));
            }
            megabytes => megabytes,
        },
    };
    Ok(BatchOptions {
        schedulers,
        detected: None,
        walltime: minutes("--walltime", &typed.walltime, 1)?,
        drain: minutes("--drain", &typed.drain, 0)?,
        node_cpus: typed.node_cpus,
        node_memory,
        nodes: typed.nodes,
        tasks_per_node: typed.ntasks_per_node,
        queue: typed.queue.clone(),
        account: typed.account.clone(),
        launcher: typed.launcher.clone(),
        template_dir: typed.template_dir.as_deref().map(absolute),
    })
}

fn pictures(typed: &Options, absolute: &dyn Fn(&Path) -> PathBuf) -> Vec<Picture> {
    [
        (&typed.dot, Subject::Executable, Format::Dot),
        (&typed.svg, Subject::Executable, Format::Svg),
        (&typed.abstract_dot, Subject::Abstract, Format::Dot),
        (&typed.abstract_svg, Subject::Abstract, Format::Svg),
    ]
    .into_iter()
    .filter_map(|(path, subject, format)| {
        let path = absolute(path.as_deref()?);
        Some(Picture {
            subject,
            format,
            path,
        })
    })
    .collect()
}

/// Parses the planner options that a sub-workflow job has as its arguments.
///
/// # Errors
/// Options that are not understood.
pub fn parse_subworkflow_options(words: &[String]) -> Result<SubworkflowOptions, UsageError> {
    let line = std::iter::once("pegasus-plan").chain(words.iter().map(String::as_str));
    let typed = Options::try_parse_from(line).map_err(|e| UsageError(e.to_string()))?;
    refuse(&typed)?;
    let without_effect = [
        ("--force", typed.force),
        ("--cluster", !typed.cluster.is_empty()),
        ("--cleanup", typed.cleanup.is_some() || typed.nocleanup),
        ("--staging-site", !typed.staging_site.is_empty()),
        ("--dir", typed.dir.is_some()),
        ("--relative-dir", typed.relative_dir.is_some()),
        ("--relative-submit-dir", typed.relative_submit_dir.is_some()),
        ("--randomdir", typed.randomdir.is_some()),
        ("--basename", typed.basename.is_some()),
        ("--job-prefix", typed.job_prefix.is_some()),
        ("--reuse", !typed.reuse.is_empty()),
    ];
    Ok(SubworkflowOptions {
        conf: typed.conf,
        defines: typed.define,
        sites: names(&typed.sites),
        output_sites: names(&typed.output_sites),
        output_dir: typed.output_dir,
        cache: typed.cache,
        inherited: typed.inherited_rc_files,
        input_dirs: typed.input_dir,
        transformations_dir: typed.transformations_dir,
        without_effect: without_effect
            .into_iter()
            .filter_map(|(name, given)| given.then_some(name))
            .collect(),
        seed: typed.seed,
        staging_sites: names(&typed.staging_site),
        basename: typed.basename,
        job_prefix: typed.job_prefix,
        relative_submit_dir: typed.relative_submit_dir,
        random_dir: typed.randomdir,
        cluster: names(&typed.cluster),
        reuse: typed.reuse,
        force: typed.force,
        force_replan: typed.force_replan,
        cleanup: match typed.nocleanup {
            true => Some("none".to_owned()),
            false => typed.cleanup,
        },
        verbose: typed.verbose,
        quiet: typed.quiet,
        rescue: typed.rescue,
    })
}

/// Trims names and leaves out empty ones.
fn names(list: &[String]) -> Vec<String> {
    list.iter()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Refuses options that contradict each other and names that are not file names.
fn refuse(typed: &Options) -> Result<(), UsageError> {
    if typed.output_map.is_some() && !typed.deferred {
        return Err(UsageError(
            "--output-map belongs to the planning of a sub-workflow, and needs --deferred; properties \
             pegasus.dir.storage.mapper say where the outputs of a workflow go"
                .into(),
        ));
    }
    for (name, value) in [
        ("--basename", &typed.basename),
        ("--job-prefix", &typed.job_prefix),
    ] {
        if let Some(value) = value
            && (value.contains('/') || value.chars().any(|c| c.is_whitespace() || c.is_control()))
        {
            let message = format!("{name}: {value:?} must not contain blanks or slashes");
            return Err(UsageError(message));
        }
    }
    Ok(())
}

/// Returns a warning for each option that is accepted but has no effect.
fn without_effect(typed: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    if !typed.forward.is_empty() {
        warnings.push(format!(
            "--forward {} has no effect: there is no pegasus-run to hand it to; options of pegasus-mpi-cluster and of the \
             batch system go into the batch script, for all plans with --template-dir",
            typed.forward.join(" --forward ")
        ));
    }
    if typed.rescue.is_some() {
        warnings.push(
            "--rescue has no effect: a run that is started again goes on where the rescue file says, as often as it is \
             started"
                .into(),
        );
    }
    if typed.force_replan && !typed.deferred {
        warnings.push(
            "--force-replan has no effect on this plan, which is always a new one; write it into the arguments of a \
             sub-workflow that is planned during the run"
                .into(),
        );
    }
    warnings
}
