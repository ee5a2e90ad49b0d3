//! The command line of `pmc-plan`, and what it means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::builder::styling::Styles;

use crate::output::batch::{parse_megabytes, parse_minutes};
use crate::request::{BatchOptions, CleanupStrategy, Environment, Request};
use crate::request::{Format, Picture, Subject};
use crate::scheduler::Scheduler;

mod options;
mod tell;

use options::Typed;
pub use tell::{tell, tell_json, tell_preview, tell_submitted};

/// What the command line asks for.
#[derive(Clone, Debug)]
pub enum Wish {
    /// A plan.
    Plan(Box<Request>, Voice),
    /// A look at a plan that is not written; jobs to tell about.
    Look(Box<Request>, Voice, Vec<String>),
    /// Telling about jobs of a plan in a submit directory.
    Explain(PathBuf, Vec<String>),
    /// A text, printed with exit code 0.
    Text(String),
}

/// What is done with the result, and how it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Voice {
    /// As JSON.
    pub json: bool,
    /// Hand the batch script to the scheduler.
    pub submit: bool,
    /// -1: errors only, 0: result and warnings, more: what was decided too.
    pub level: i16,
}

/// Reads a command line; `arguments` begin with the name of the program.
///
/// # Errors
/// The message for a line that means nothing, with a hint to `--help`.
pub fn parse(arguments: &[String], environment: Environment) -> Result<Wish, String> {
    if arguments.get(1).is_some_and(|word| word == "explain") {
        return explain(&arguments[1..], &environment);
    }
    let typed = match Typed::try_parse_from(arguments) {
        Ok(typed) => typed,
        Err(e) if e.kind() == clap::error::ErrorKind::DisplayHelp => return Ok(Wish::Text(e.to_string())),
        Err(e) => return Err(e.to_string().trim_end().to_owned()),
    };
    if typed.version {
        return Ok(Wish::Text(format!(
            "pmc-plan {} (plans like Pegasus Release Version {})\n",
            env!("CARGO_PKG_VERSION"),
            crate::output::records::COMPATIBLE_VERSION
        )));
    }
    let voice = Voice {
        json: typed.json,
        submit: typed.submit,
        level: i16::from(typed.verbose) - i16::from(typed.quiet),
    };
    let (dry_run, jobs) = (typed.dry_run, typed.explain.clone());
    if (dry_run || !jobs.is_empty()) && typed.submit {
        return Err("--submit needs a plan that is written: leave out --dry-run and --explain".into());
    }
    let request = Box::new(resolve(typed, arguments, environment)?);
    if dry_run || !jobs.is_empty() {
        Ok(Wish::Look(request, voice, jobs))
    } else {
        Ok(Wish::Plan(request, voice))
    }
}

/// The command `explain`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "pmc-plan explain",
    styles = Styles::plain(),
    about = "Tells why jobs of a plan are as they are",
    after_help = "The plan is made again in memory, with the command line that made it. Before there is a plan: \
                  pmc-plan --explain JOB …"
)]
struct TypedExplain {
    /// Names of jobs in the plan or ids in the workflow, then the submit directory, if it is not the working
    /// directory
    #[arg(value_name = "JOB… [DIR]", required = true)]
    words: Vec<String>,
}

fn explain(arguments: &[String], environment: &Environment) -> Result<Wish, String> {
    let typed = match TypedExplain::try_parse_from(arguments) {
        Ok(typed) => typed,
        Err(e) if e.kind() == clap::error::ErrorKind::DisplayHelp => return Ok(Wish::Text(e.to_string())),
        Err(e) => return Err(e.to_string().trim_end().to_owned()),
    };
    let mut jobs = typed.words;
    let directory = |word: &String| environment.working_dir.join(word);
    match jobs.last().map(directory) {
        Some(dir) if jobs.len() > 1 && dir.is_dir() => {
            jobs.pop();
            Ok(Wish::Explain(dir.components().collect(), jobs))
        }
        _ => Ok(Wish::Explain(environment.working_dir.clone(), jobs)),
    }
}

fn resolve(typed: Typed, arguments: &[String], environment: Environment) -> Result<Request, String> {
    refuse(&typed)?;
    let warnings = without_effect(&typed);
    let here = environment.working_dir.clone();
    let absolute = |path: &Path| -> PathBuf { here.join(path).components().collect() };
    let all = |paths: &[PathBuf]| -> Vec<PathBuf> { paths.iter().map(|p| absolute(p)).collect() };
    let workflow = match (typed.workflow.as_slice(), &typed.dax) {
        ([], None) => Path::new("workflow.yml"),
        ([one], None) | ([], Some(one)) => one,
        ([_], Some(_)) => return Err("the workflow is given twice, as an argument and with --dax".into()),
        ([first, second, ..], _) => {
            return Err(format!(
                "there can be one workflow only, not {} and {}",
                first.display(),
                second.display()
            ));
        }
    };
    let cleanup = match typed.cleanup.as_deref().map(str::to_ascii_lowercase).as_deref() {
        _ if typed.nocleanup => Some(CleanupStrategy::None),
        None => None,
        Some("none") => Some(CleanupStrategy::None),
        Some("leaf") => Some(CleanupStrategy::Leaf),
        Some("inplace") => Some(CleanupStrategy::InPlace),
        Some("constraint") => Some(CleanupStrategy::Constraint),
        Some(other) => {
            return Err(format!(
                "--cleanup: there is no strategy {other}; known are none, leaf, inplace, constraint"
            ));
        }
    };
    let walltime = match &typed.walltime {
        None => None,
        Some(text) => match parse_minutes(text).filter(|&minutes| minutes > 0) {
            None => {
                return Err(format!(
                    "--walltime: {text} is neither minutes nor [D-]HH:MM[:SS]"
                ));
            }
            minutes => minutes,
        },
    };
    let mut schedulers = Vec::new();
    for name in names(&typed.batch) {
        schedulers
            .push(Scheduler::parse(&name).ok_or_else(|| format!("--batch: {}", Scheduler::unknown(&name)))?);
    }
    let drain = typed
        .drain
        .map(|text| {
            parse_minutes(&text)
                .ok_or_else(|| format!("--drain: {text} is neither minutes nor [D-]HH:MM[:SS]"))
        })
        .transpose()?;
    let node_memory = typed
        .node_memory
        .map(|text| {
            parse_megabytes(&text)
                .filter(|&mb| mb > 0)
                .ok_or_else(|| format!("--node-memory: {text} is no number of MB, nor one with M, G or T"))
        })
        .transpose()?;
    let staging_sites: BTreeMap<String, String> = typed
        .staging_site
        .iter()
        .map(|text| match text.split_once('=') {
            Some((site, staging)) => (site.trim().to_owned(), staging.trim().to_owned()),
            None => (String::new(), text.trim().to_owned()),
        })
        .collect();
    let pictures = [
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
    .collect();
    let mut defines = typed.define;
    if let Some(map) = typed.output_map.as_deref() {
        // The workflow around this one wants what is in the map; all else stays in the work directory.
        let map = absolute(map);
        defines.extend([
            "pegasus.dir.storage.mapper=Replica".to_owned(),
            "pegasus.dir.storage.mapper.replica=File".to_owned(),
            format!("pegasus.dir.storage.mapper.replica.file={}", map.display()),
            "pegasus.dir.storage.mapper.replica.disable.exceptions=true".to_owned(),
        ]);
    }
    Ok(Request {
        workflow: absolute(workflow),
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
        batch: BatchOptions {
            schedulers,
            detected: None,
            drain,
            node_cpus: typed.node_cpus,
            node_memory,
            nodes: typed.nodes,
            tasks_per_node: typed.ntasks_per_node,
            walltime,
            queue: typed.queue,
            account: typed.account,
            launcher: typed.launcher,
            template_dir: typed.template_dir.as_deref().map(absolute),
        },
        arguments: arguments.get(1..).unwrap_or_default().join(" "),
        line: arguments.get(1..).unwrap_or_default().to_vec(),
        pictures,
        warnings,
        environment,
    })
}

/// What the arguments of a job that stands for a workflow ask of its planner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlannerOptions {
    pub(crate) conf: Option<PathBuf>,
    pub(crate) defines: Vec<String>,
    pub(crate) sites: Vec<String>,
    pub(crate) output_sites: Vec<String>,
    pub(crate) output_dir: Option<String>,
    pub(crate) cache: Vec<PathBuf>,
    pub(crate) inherited: Vec<PathBuf>,
    pub(crate) input_dirs: Vec<PathBuf>,
    pub(crate) transformations_dir: Option<PathBuf>,
    /// Options that change where things are put or when they are removed, not what comes out.
    pub(crate) without_effect: Vec<&'static str>,
}

impl PlannerOptions {
    /// Reads options, without the name of a program.
    ///
    /// # Errors
    /// The message for options that mean nothing.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let line = std::iter::once("pegasus-plan").chain(words.iter().map(String::as_str));
        let typed = Typed::try_parse_from(line).map_err(|e| e.to_string())?;
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
        Ok(PlannerOptions {
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
        })
    }
}

/// Names without blanks around them, empty ones left out.
fn names(list: &[String]) -> Vec<String> {
    list.iter()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Refuses values that cannot be used.
fn refuse(typed: &Typed) -> Result<(), String> {
    if typed.output_map.is_some() && !typed.deferred {
        return Err(
            "--output-map belongs to the planning of a sub-workflow, and needs --deferred; properties \
             pegasus.dir.storage.mapper say where the outputs of a workflow go"
                .into(),
        );
    }
    for (name, value) in [
        ("--basename", &typed.basename),
        ("--job-prefix", &typed.job_prefix),
    ] {
        if let Some(value) = value
            && (value.contains('/') || value.chars().any(|c| c.is_whitespace() || c.is_control()))
        {
            return Err(format!("{name}: {value:?} must not contain blanks or slashes"));
        }
    }
    Ok(())
}

/// A warning for each option that is taken, but changes nothing here.
fn without_effect(typed: &Typed) -> Vec<String> {
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
    if typed.force_replan {
        warnings.push(
            "--force-replan has no effect: sub-workflows are part of the plan and are not planned again when it runs"
                .into(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests;
