//! The command line of `pmc-plan`, and what it means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::builder::styling::Styles;
use clap::{ArgAction, Parser};

use crate::output::batch::{parse_megabytes, parse_minutes};
use crate::picture::{Format, Picture, Subject};
use crate::plan::{BatchOptions, CleanupStrategy, Looked, Planned, Request, Surroundings};
use crate::scheduler::Scheduler;
use crate::submit::{Submitted, command_line};

/// Plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "pmc-plan",
    disable_version_flag = true,
    infer_long_args = true,
    args_override_self = false,
    styles = Styles::plain(),
    after_help = "Properties are read from etc/pegasus.properties of PEGASUS_HOME, ~/.pegasusrc, \
                  pegasus.properties in the working directory, the file of --conf, variables \
                  _PEGASUS__A__B=value, and -D; later ones win."
)]
struct Typed {
    /// Abstract workflow: Pegasus YAML 5.0 or DAX XML [default: workflow.yml]
    #[arg(value_name = "WORKFLOW")]
    workflow: Vec<PathBuf>,
    /// The workflow, under the option's old name
    #[arg(short = 'd', long, value_name = "FILE")]
    dax: Option<PathBuf>,
    /// Properties file
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Sets a property; may stand anywhere
    #[arg(short = 'D', value_name = "KEY=VALUE")]
    define: Vec<String>,
    /// Accepted and ignored: an option of the Java machine
    #[arg(short = 'X', value_name = "OPTION", hide = true)]
    java: Vec<String>,
    /// Candidate execution sites, best first; * for all but local
    #[arg(short = 's', long, value_name = "SITE,…", value_delimiter = ',')]
    sites: Vec<String>,
    /// Where the site selectors Random and Group begin; other numbers give other plans, `random` each time another
    #[arg(long, value_name = "N|random")]
    seed: Option<String>,
    /// Staging site; with a shared file system it must be the execution site
    #[arg(long, value_name = "SITE=SITE,…", value_delimiter = ',')]
    staging_site: Vec<String>,
    /// Sites that receive outputs; without any and without --output-dir, outputs stay in the work directory
    #[arg(short = 'o', long, value_name = "SITE,…", value_delimiter = ',')]
    output_sites: Vec<String>,
    /// Directory for outputs
    #[arg(short = 'O', long, value_name = "DIR")]
    output_dir: Option<String>,
    /// Directories whose files are inputs
    #[arg(short = 'I', long, value_name = "DIR,…", value_delimiter = ',')]
    input_dir: Vec<PathBuf>,
    /// Directory whose files are programs to be staged
    #[arg(short = 't', long, value_name = "DIR")]
    transformations_dir: Option<PathBuf>,
    /// Replica files that override all other locations
    #[arg(short = 'c', long, value_name = "FILE,…", value_delimiter = ',')]
    cache: Vec<PathBuf>,
    /// Replica files that yield to locations inside the workflow
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    inherited_rc_files: Vec<PathBuf>,
    /// Submit directories of earlier runs: what they have registered need not be made again
    #[arg(short = 'R', long, value_name = "DIR,…", value_delimiter = ',')]
    reuse: Vec<PathBuf>,
    /// Runs every job, even if its outputs exist
    #[arg(short = 'f', long)]
    force: bool,
    /// For sub-workflows; no effect
    #[arg(long, hide = true)]
    force_replan: bool,
    /// Clustering techniques: horizontal, label, whole
    #[arg(short = 'C', long, value_name = "TECHNIQUE,…", value_delimiter = ',')]
    cluster: Vec<String>,
    /// When files are removed from the work directory
    #[arg(long, value_name = "none|leaf|inplace|constraint")]
    cleanup: Option<String>,
    /// The same as --cleanup none
    #[arg(short = 'n', long)]
    nocleanup: bool,
    /// Base of submit directories [default: the working directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Replaces USER/pegasus/LABEL/runNNNN below the base directories of submit and work files
    #[arg(long, value_name = "DIR")]
    relative_dir: Option<String>,
    /// The same for the submit directory only
    #[arg(long, value_name = "DIR")]
    relative_submit_dir: Option<String>,
    /// Name of the work directory; without a value, one that is new each time
    #[arg(short = 'r', long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    randomdir: Option<Option<String>>,
    /// Prefix of the workflow's files [default: LABEL-INDEX]
    #[arg(short = 'b', long, value_name = "NAME")]
    basename: Option<String>,
    /// Prefix of job names
    #[arg(short = 'j', long, value_name = "PREFIX")]
    job_prefix: Option<String>,
    /// Hands the batch script to the scheduler: that of --batch, else the one whose program is on PATH
    #[arg(short = 'S', long)]
    submit: bool,
    /// Not offered yet
    #[arg(short = 'F', long, value_name = "OPTION", hide = true)]
    forward: Vec<String>,
    /// For sub-workflows; no effect
    #[arg(long, value_name = "N", hide = true)]
    rescue: Option<u32>,
    /// Not offered: internal to Pegasus
    #[arg(short = 'z', long, hide = true)]
    deferred: bool,
    /// Not offered: internal to Pegasus
    #[arg(short = 'm', long, value_name = "FILE", hide = true)]
    output_map: Option<PathBuf>,
    /// Plans without writing; prints jobs by kind, levels, files to be staged, and the estimated time
    #[arg(long, help_heading = "Looking at plans")]
    dry_run: bool,
    /// Plans without writing; tells why a job is as it is. For a plan that is there: pmc-plan explain JOB DIR
    #[arg(long, value_name = "JOB", help_heading = "Looking at plans")]
    explain: Vec<String>,
    /// Draws the executable workflow for graphviz
    #[arg(long, value_name = "FILE", help_heading = "Looking at plans")]
    dot: Option<PathBuf>,
    /// Draws the executable workflow as SVG; more than 300 jobs are drawn in groups
    #[arg(long, value_name = "FILE", help_heading = "Looking at plans")]
    svg: Option<PathBuf>,
    /// Draws the abstract workflow for graphviz
    #[arg(long, value_name = "FILE", help_heading = "Looking at plans")]
    abstract_dot: Option<PathBuf>,
    /// Draws the abstract workflow as SVG
    #[arg(long, value_name = "FILE", help_heading = "Looking at plans")]
    abstract_svg: Option<PathBuf>,
    /// Prints the result as JSON
    #[arg(short = 'J', long)]
    json: bool,
    /// Says more; repeat for more still
    #[arg(short = 'v', long, action = ArgAction::Count)]
    verbose: u8,
    /// Says less: errors only
    #[arg(short = 'q', long, action = ArgAction::Count)]
    quiet: u8,
    /// Prints the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Schedulers to write scripts for beside the .pbs for Torque and the .sbatch for Slurm, the preferred one
    /// first: torque, slurm, pbspro (replaces the .pbs), lsf, flux, cobalt
    #[arg(
        long,
        value_name = "SCHEDULER,…",
        value_delimiter = ',',
        help_heading = "Batch scripts"
    )]
    batch: Vec<String>,
    /// Batch scripts: nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batch scripts")]
    nodes: Option<u32>,
    /// Batch scripts: processes per node
    #[arg(
        long,
        alias = "ppn",
        visible_alias = "ppn",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Batch scripts"
    )]
    ntasks_per_node: Option<u32>,
    /// Batch scripts: wall time, minutes or [D-]HH:MM[:SS]
    #[arg(long, value_name = "TIME", help_heading = "Batch scripts")]
    walltime: Option<String>,
    /// Batch scripts: time at the end in which no task is started, minutes or HH:MM; 0 for none
    #[arg(long, value_name = "TIME", help_heading = "Batch scripts")]
    drain: Option<String>,
    /// Batch scripts: CPUs of a node; tasks that ask for more are refused
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batch scripts")]
    node_cpus: Option<u32>,
    /// Batch scripts: memory of a node, MB or with a unit as in 64G; tasks that ask for more are refused
    #[arg(long, value_name = "SIZE", help_heading = "Batch scripts")]
    node_memory: Option<String>,
    /// Batch scripts: queue or partition
    #[arg(
        long,
        visible_alias = "partition",
        value_name = "NAME",
        help_heading = "Batch scripts"
    )]
    queue: Option<String>,
    /// Batch scripts: account or project
    #[arg(
        long,
        visible_alias = "project",
        value_name = "NAME",
        help_heading = "Batch scripts"
    )]
    account: Option<String>,
    /// Batch scripts: mpiexec, mpirun, srun, a command of your own, or none for a run on one node without MPI
    #[arg(long, value_name = "COMMAND", help_heading = "Batch scripts")]
    launcher: Option<String>,
    /// Batch scripts: directory with templates (pbs.j2, sbatch.j2, run.j2, …) to be used instead of the built-in ones
    #[arg(long, value_name = "DIR", help_heading = "Batch scripts")]
    template_dir: Option<PathBuf>,
}

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
pub fn parse(arguments: &[String], surroundings: Surroundings) -> Result<Wish, String> {
    if arguments.get(1).is_some_and(|word| word == "explain") {
        return explain(&arguments[1..], &surroundings);
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
    let request = Box::new(resolve(typed, arguments, surroundings)?);
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

fn explain(arguments: &[String], surroundings: &Surroundings) -> Result<Wish, String> {
    let typed = match TypedExplain::try_parse_from(arguments) {
        Ok(typed) => typed,
        Err(e) if e.kind() == clap::error::ErrorKind::DisplayHelp => return Ok(Wish::Text(e.to_string())),
        Err(e) => return Err(e.to_string().trim_end().to_owned()),
    };
    let mut jobs = typed.words;
    let directory = |word: &String| surroundings.working_dir.join(word);
    match jobs.last().map(directory) {
        Some(dir) if jobs.len() > 1 && dir.is_dir() => {
            jobs.pop();
            Ok(Wish::Explain(dir.components().collect(), jobs))
        }
        _ => Ok(Wish::Explain(surroundings.working_dir.clone(), jobs)),
    }
}

fn resolve(typed: Typed, arguments: &[String], surroundings: Surroundings) -> Result<Request, String> {
    refuse(&typed)?;
    let here = surroundings.working_dir.clone();
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
    Ok(Request {
        workflow: absolute(workflow),
        conf: typed.conf.as_deref().map(absolute),
        defines: typed.define,
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
        surroundings,
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

/// Options that are known but not offered.
fn refuse(typed: &Typed) -> Result<(), String> {
    let refused = [
        (
            !typed.forward.is_empty(),
            "--forward is not offered: there is no pegasus-run to hand options to",
        ),
        (
            typed.deferred || typed.output_map.is_some(),
            "--deferred and --output-map are for sub-workflows, which are not offered",
        ),
    ];
    match refused.iter().find(|(given, _)| *given) {
        Some((_, message)) => Err((*message).to_owned()),
        None => {
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
    }
}

/// The result for people.
pub fn tell(planned: &Planned) -> String {
    let counts = &planned.counts;
    let kinds: Vec<String> = counts
        .kinds()
        .into_iter()
        .enumerate()
        .filter(|(at, (_, number))| *at == 0 || *number > 0)
        .map(|(_, (kind, number))| format!("{number} {kind}"))
        .collect();
    let mut text = format!(
        "Planned {}: {} tasks ({}), {} dependencies.\nSubmit directory: {}\n",
        planned.label,
        counts.total,
        kinds.join(", "),
        counts.edges,
        planned.submit_dir.display()
    );
    for script in &planned.scripts {
        let command = command_line(script.scheduler, &script.path);
        text.push_str(&format!("To run it:        {command}\n"));
    }
    match &planned.shell {
        Some(script) => text.push_str(&format!("To run it:        {}\n", script.display())),
        None => text.push_str(&format!(
            "On this machine:  pegasus-mpi-cluster --per-task-stdio {}\n",
            planned.dag.display()
        )),
    }
    text
}

/// What became of `--submit`, for people.
pub fn tell_submitted(submitted: &Submitted) -> String {
    match &submitted.job_id {
        Some(id) => format!("Submitted:        {} job {id}\n", submitted.scheduler),
        None => format!(
            "Submitted:        to {}, which did not say the job's number\n",
            submitted.scheduler
        ),
    }
}

/// A look at a plan, for people or as a JSON object.
pub fn tell_looked(looked: &Looked, json: bool) -> String {
    if json {
        let mut value = looked.summary.json();
        if let Some(object) = value.as_object_mut() {
            object.insert("explanations".into(), looked.explanations.clone().into());
            object.insert("warnings".into(), looked.warnings.clone().into());
        }
        // A tree of strings and numbers always has a text.
        return format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default());
    }
    if looked.explanations.is_empty() {
        looked.summary.tell()
    } else {
        looked.explanations.join("\n")
    }
}

/// The result as a JSON object: the braindump, and what to do next.
pub fn tell_json(planned: &Planned, submitted: Option<&Submitted>) -> String {
    let mut object = serde_json::Map::new();
    for (key, value) in &planned.braindump {
        object.insert(key.clone(), value.clone().into());
    }
    object.insert("message".into(), tell(planned).into());
    let scripts: Vec<String> = planned
        .scripts
        .iter()
        .map(|s| s.path.display().to_string())
        .collect();
    object.insert("scripts".into(), scripts.into());
    if let Some(script) = &planned.shell {
        object.insert("run".into(), script.display().to_string().into());
    }
    if let Some(submitted) = submitted {
        object.insert("scheduler".into(), submitted.scheduler.name().into());
        object.insert("job_id".into(), submitted.job_id.clone().into());
    }
    object.insert("warnings".into(), planned.warnings.clone().into());
    let value = serde_json::Value::Object(object);
    // A tree of strings always has a text.
    format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings() -> Surroundings {
        Surroundings {
            environment: BTreeMap::new(),
            working_dir: "/w".into(),
            user: "tester".into(),
            host: "here".into(),
            own_bin: None,
            now: chrono::DateTime::UNIX_EPOCH.fixed_offset(),
            uuid: "u".into(),
        }
    }

    fn request(line: &str) -> Result<Request, String> {
        let arguments: Vec<String> = std::iter::once("pmc-plan")
            .chain(line.split_whitespace())
            .map(str::to_owned)
            .collect();
        match parse(&arguments, surroundings())? {
            Wish::Plan(request, _) => Ok(*request),
            Wish::Text(text) => Err(text),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn options_and_the_workflow_may_be_mixed() {
        let r = request(
            "-Dpegasus.a=1 --conf p --sites a,b w.yml -D env.X=y --dir ./submit/ --output-sites=local -Xmx1g -r",
        )
        .expect("a good line");
        assert_eq!(r.workflow, Path::new("/w/w.yml"));
        assert_eq!(r.defines, ["pegasus.a=1", "env.X=y"]);
        assert_eq!(r.sites, ["a", "b"]);
        assert_eq!(r.output_sites, ["local"]);
        assert_eq!(r.dir, Path::new("/w/submit"));
        assert_eq!(r.random_dir, Some(None));
        assert_eq!(
            request("").expect("defaults").workflow,
            Path::new("/w/workflow.yml")
        );
    }

    #[test]
    fn batch_options_have_the_names_of_both_schedulers() {
        let r = request("--nodes 4 --ppn 16 --walltime 2:30:00 --partition fast --project p1")
            .expect("a good line");
        assert_eq!(
            r.batch,
            BatchOptions {
                nodes: Some(4),
                tasks_per_node: Some(16),
                walltime: Some(150),
                queue: Some("fast".into()),
                account: Some("p1".into()),
                ..BatchOptions::default()
            }
        );
        assert_eq!(
            request("--ntasks-per-node 8 --queue q")
                .expect("a good line")
                .batch
                .tasks_per_node,
            Some(8)
        );
        for bad in ["--nodes 0", "--walltime never", "--walltime 0"] {
            assert!(request(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_that_mean_nothing_are_refused() {
        for (line, word) in [
            ("a.yml b.yml", "one workflow"),
            ("a.yml --dax b.yml", "twice"),
            ("--cleanup sometimes", "sometimes"),
            ("--batch sge", "known are torque, slurm"),
            ("--drain soon", "--drain"),
            ("--node-memory 3K", "--node-memory"),
            ("--frobnicate", "frobnicate"),
            ("--basename a/b", "slashes"),
        ] {
            let message = request(line).expect_err(line);
            assert!(message.contains(word), "{line}: {message}");
        }
    }

    #[test]
    fn clean_up_can_be_switched_off_both_ways() {
        for line in ["--cleanup none", "--nocleanup", "-n"] {
            assert_eq!(request(line).expect(line).cleanup, Some(CleanupStrategy::None));
        }
        assert_eq!(
            request("--cleanup leaf").expect("leaf").cleanup,
            Some(CleanupStrategy::Leaf)
        );
    }
}
