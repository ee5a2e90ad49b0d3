//! Command lines of tasks: kickstart, program, resources.

mod arguments;
mod places;
mod quoting;

use std::borrow::Cow;
use std::fmt::Write as _;

use pmc_dag::write::TaskLine;

use crate::exec::{JobId, Setup, SetupId, SiteId, Task};
use crate::refine::programs::default_program;
use crate::refine::settings::Generator;

use super::lists::suffix;
use super::secrets::environment;
use super::{Plan, limits};

use arguments::{argument_words, arguments};
use places::{has_input_file, has_outputs, has_streams, input, needs_no_work_dir, part};
use pmc_calls::shell::shell_quote;
use quoting::spaced;

pub(crate) use arguments::doubt;
pub(crate) use places::{creates_work_dir, work_dir};
pub(super) use quoting::push_word;
pub(crate) use quoting::quote;

/// Parts of the TASK line of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    /// Environment, before the program.
    pub(crate) environment: String,
    /// First program: kickstart, a launcher, or the program itself.
    pub(crate) program: String,
    /// Arguments as one text, quoted for the DAG.
    pub(crate) arguments: String,
    /// `-m`.
    pub(crate) memory_mb: Option<u64>,
    /// `-c`.
    pub(crate) cpus: Option<u32>,
    pub(crate) gpus: Option<u32>,
    /// `-p`.
    pub(crate) priority: Option<i64>,
    /// `-t`.
    pub(crate) tries: Option<u32>,
    /// Additional task options.
    pub(crate) options: String,
    /// Content of the argument file, if there is one.
    pub(crate) argument_file: Option<String>,
    /// Standard input that the script of the generator Shell redirects; in a DAG, kickstart does it.
    pub(crate) stdin: Option<String>,
}

/// Returns the command of a job.
///
/// # Errors
/// Invalid profiles; each message names the job.
pub(crate) fn command(plan: &Plan<'_>, id: JobId) -> Result<Command, Vec<String>> {
    let mut command = Command::default();
    Commands::default().fill(plan, id, &mut command)?;
    Ok(command)
}

impl Command {
    /// Returns a TASK line that starts with this part of the command.
    pub(crate) fn task_line<'a>(&'a self, name: &'a str, command: &'a str) -> TaskLine<'a> {
        TaskLine {
            name,
            memory_mb: self.memory_mb,
            cpus: self.cpus,
            gpus: self.gpus,
            priority: self.priority,
            tries: self.tries,
            options: &self.options,
            command,
        }
    }

    /// Clears the command and keeps its memory.
    fn clear(&mut self) {
        for text in [
            &mut self.environment,
            &mut self.program,
            &mut self.arguments,
            &mut self.options,
        ] {
            text.clear();
        }
        (self.memory_mb, self.cpus, self.gpus) = (None, None, None);
        (self.priority, self.tries) = (None, None);
        (self.argument_file, self.stdin) = (None, None);
    }
}

/// The first program of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// Kickstart.
    Kickstart,
    /// A launcher, or the program itself.
    Program,
}

/// Parts shared by the commands of jobs with the same key.
#[derive(Debug)]
struct CommonParts {
    key: Key,
    /// Resources and options.
    resources: Command,
    environment: String,
    /// Path of kickstart, quoted.
    kickstart: String,
    /// Options of kickstart about site and directory, before those about files.
    place: String,
    /// Options of kickstart after those about files.
    limits: String,
}

/// Setup, site, staging site; whether it is a compute job, needs no work directory, is called by a shell
/// script.
type Key = (SetupId, SiteId, SiteId, bool, bool, bool);

/// Size of the cache. It can be small, since similar jobs are adjacent.
const CACHE_SIZE: usize = 16;

/// Builder of commands with a cache of common parts and a buffer.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    common: Vec<CommonParts>,
    /// Index of the next entry to be replaced.
    oldest: usize,
    text: String,
}

impl Commands {
    /// Replaces a command by that of a job.
    ///
    /// # Errors
    /// Invalid profiles; each message names the job.
    pub(crate) fn fill(
        &mut self,
        plan: &Plan<'_>,
        id: JobId,
        command: &mut Command,
    ) -> Result<(), Vec<String>> {
        self.fill_task(plan, id, command)?;
        if plan.exec.has_description(plan.job(id)) {
            lite(plan, id, command);
        }
        Ok(())
    }

    /// As [`Self::fill`], but the command of a job with a directory of its own is what runs in that
    /// directory.
    ///
    /// # Errors
    /// Invalid profiles; each message names the job.
    pub(super) fn fill_task(
        &mut self,
        plan: &Plan<'_>,
        id: JobId,
        command: &mut Command,
    ) -> Result<Called, Vec<String>> {
        let job = plan.job(id);
        command.clear();
        if let Task::Cluster(..) = job.task {
            *command = super::cluster::command(plan, id)?;
            return Ok(Called::Program);
        }
        let setup = &plan.exec.setups[job.setup];
        let mut problems = Vec::new();
        let at = self.common(plan, id, &mut problems);
        self.text.clear();
        let wrapped = is_wrapped(plan, id);
        let arguments = arguments(plan, id, wrapped, &mut self.text, &mut problems);
        let Some(common) = at.map(|at| &self.common[at]) else {
            return Err(problems);
        };
        let of = &common.resources;
        (command.memory_mb, command.cpus, command.gpus, command.priority) =
            (of.memory_mb, of.cpus, of.gpus, of.priority);
        command.tries = of.tries;
        problems.extend(super::lite::out_of_reach(plan, id));
        if let Err(problem) = super::dagman::push_options(plan, id, &mut command.options) {
            problems.push(problem.to_string());
        }
        if let Err(problem) = limits::push_more_memory(plan, id, &mut command.options) {
            problems.push(problem.to_string());
        }
        if super::nested::is_ready(plan, id) {
            command.program.push_str(&quote(&setup.executable));
            return if problems.is_empty() {
                Ok(Called::Program)
            } else {
                Err(problems)
            };
        }
        super::messages::push_options(&setup.profiles, &mut command.options);
        let has_input = input(plan, id).is_some();
        if let Err(problem) = super::stdin::push_option(plan, id, has_input, &mut command.options) {
            problems.push(problem);
        }
        command.options.push_str(&of.options);
        if !super::cluster::inherits_environment(plan, id) {
            command.environment.push_str(&common.environment);
        }
        let launcher = launcher(setup);
        if wrapped {
            wrap(plan, id, setup, common, arguments, command);
            match launcher {
                Some((launcher, options)) => {
                    command.program.push_str(&quote(launcher));
                    let line = std::mem::take(&mut command.arguments);
                    let kickstart = &common.kickstart;
                    command.arguments = match options {
                        Some(options) => format!("{options} {kickstart}{}", spaced(&line)),
                        None => format!("{kickstart}{}", spaced(&line)),
                    };
                }
                None => command.program.push_str(&common.kickstart),
            }
        } else if matches!(job.task, Task::NoOp) {
            command.program.push_str(&quote(&setup.executable));
        } else if is_called_by_script(plan, id)
            && launcher.is_none()
            && !has_outputs(plan, job.task)
            && super::stat::required_outputs(plan, id).is_empty()
        {
            command.stdin = input(plan, id);
            command.program.push_str(&quote(&setup.executable));
            command.arguments.push_str(arguments);
        } else {
            bare(plan, id, setup, arguments, command);
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(match launcher {
            None if wrapped && !names_kickstart(plan, id) => Called::Kickstart,
            _ => Called::Program,
        })
    }

    /// Returns the index of the common parts of a job's command, `None` if there are problems.
    fn common(&mut self, plan: &Plan<'_>, id: JobId, problems: &mut Vec<String>) -> Option<usize> {
        let job = plan.job(id);
        let key = (
            job.setup,
            job.site,
            job.staging,
            matches!(job.task, Task::Compute(_)),
            needs_no_work_dir(plan, id),
            is_called_by_script(plan, id),
        );
        if let Some(at) = self.common.iter().position(|common| common.key == key) {
            return Some(at);
        }
        let common = CommonParts::new(plan, id, key, problems);
        if !problems.is_empty() {
            return None;
        }
        if self.common.len() < CACHE_SIZE {
            self.common.push(common);
            return Some(self.common.len() - 1);
        }
        let at = self.oldest;
        self.common[at] = common;
        self.oldest = (at + 1) % CACHE_SIZE;
        Some(at)
    }
}

impl CommonParts {
    fn new(plan: &Plan<'_>, id: JobId, key: Key, problems: &mut Vec<String>) -> Self {
        let job = plan.job(id);
        let setup = &plan.exec.setups[job.setup];
        let mut resources = Command::default();
        limits::resources(plan, id, &mut resources, problems);
        if let Some(other) = setup.profiles.pegasus("gridstart").map(str::trim)
            && !WRAPPERS.iter().any(|known| known.eq_ignore_ascii_case(other))
        {
            problems.push(format!(
                "the profile pegasus::gridstart of the job {} must be Kickstart or None, not `{other}`",
                job.name
            ));
        }
        let mut place = String::new();
        // Writing into a String cannot fail.
        let _ = write!(place, "-R {} ", quote(&plan.sites.get(job.site).name));
        let option = if creates_work_dir(plan, id) { "-W" } else { "-w" };
        // The script of the generator Shell changes into an existing directory itself.
        if plan.exec.is_lite(job) || plan.exec.fetches_for_planner(job) {
            // It is there.
        } else if option == "-W" || !is_called_by_script(plan, id) {
            let _ = write!(place, " {option} {} ", quote(work_dir(plan, id)));
        }
        if plan.settings.set_xbit && setup.staged {
            place.push_str(" -X ");
        }
        let mut limits = String::new();
        if let Some(more) = setup.profiles.pegasus("gridstart.arguments").map(str::trim)
            && !more.is_empty()
        {
            let _ = write!(limits, "{more} ");
        }
        if plan.settings.gridstart_label {
            let _ = write!(limits, "-L {} -T {} ", quote(&plan.run_label), plan.stamp);
        }
        if is_wrapped(plan, id)
            && let Task::Compute(_) = job.task
        {
            match limits::timeouts(&setup.profiles) {
                Ok(Some((term, kill))) => {
                    let _ = write!(limits, "-k {term} ");
                    if let Some(kill) = kill {
                        let _ = write!(limits, "-K {kill} ");
                    }
                }
                Ok(None) => {}
                Err(problem) => problems.push(format!("job {}: {problem}", job.name)),
            }
        }
        CommonParts {
            key,
            resources,
            environment: environment(&plan.secrets, job.setup, setup),
            kickstart: kickstart(plan, id, setup),
            place,
            limits,
        }
    }
}

/// Replaces the program of a command by the one that runs it in a directory of its own or in a container.
fn lite(plan: &Plan<'_>, id: JobId, command: &mut Command) {
    command.program = quote(&format!("{}/pegasus-lite", plan.own_tools)).into_owned();
    command.stdin = None;
    command.arguments = match part(plan, id) {
        Some(part) => {
            let file = format!(
                "{}/{}",
                plan.submit,
                super::lists::WorkLists::file_name(&plan.base)
            );
            format!("--part {part} {}", quote(&file))
        }
        None => quote(&plan.job_file(id, suffix(plan, id))).into_owned(),
    };
    if matches!(plan.job(id).task, Task::Cluster(..)) {
        command.arguments.insert_str(0, "--cluster ");
    }
}

/// Returns whether the script of the generator Shell starts a job directly, not through a cluster.
fn is_called_by_script(plan: &Plan<'_>, id: JobId) -> bool {
    plan.settings.generator == Generator::Shell && !plan.is_member(id)
}

/// Known wrappers. PegasusLite is ignored: the data configuration decides about it.
const WRAPPERS: &[&str] = &[
    "",
    "Kickstart",
    "None",
    "NoGridStart",
    "PegasusLite",
    "PegasusLite.None",
];

/// Returns whether kickstart wraps the program.
pub(crate) fn is_wrapped(plan: &Plan<'_>, id: JobId) -> bool {
    let job = plan.job(id);
    let gridstart = plan.exec.setups[job.setup].profiles.pegasus("gridstart");
    !matches!(job.task, Task::NoOp | Task::Cluster(..)) && !gridstart.is_some_and(is_no_wrapper)
}

/// Returns whether a value of the profile `gridstart` means that no kickstart wraps the program.
pub(crate) fn is_no_wrapper(gridstart: &str) -> bool {
    let gridstart = gridstart.trim();
    let words = ["none", "nogridstart", "pegasuslite.none"];
    words.iter().any(|word| gridstart.eq_ignore_ascii_case(word))
}

/// Returns the launcher from the profiles and its options.
fn launcher(setup: &Setup) -> Option<(&str, Option<&str>)> {
    let value = |key: &str| setup.profiles.pegasus(key).map(str::trim);
    let launcher = value("gridstart.launcher").filter(|l| !l.is_empty())?;
    Some((launcher, value("gridstart.launcher.arguments")))
}

/// Returns whether a profile or a catalog names the kickstart of a job.
fn names_kickstart(plan: &Plan<'_>, id: JobId) -> bool {
    let job = plan.job(id);
    let path = plan.exec.setups[job.setup].profiles.pegasus("gridstart.path");
    let default = default_program(
        "pegasus::kickstart",
        &plan.sites.get(job.site).tools,
        &plan.own_tools,
    );
    path.is_some_and(|path| !path.trim().is_empty()) || plan.kickstarts[job.site] != default
}

fn kickstart(plan: &Plan<'_>, id: JobId, setup: &Setup) -> String {
    let job = plan.job(id);
    match setup.profiles.pegasus("gridstart.path").map(str::trim) {
        Some(path) if !path.is_empty() => quote(path).into_owned(),
        _ => quote(&plan.kickstarts[job.site]).into_owned(),
    }
}

/// Appends the options of kickstart and the program.
fn wrap(
    plan: &Plan<'_>,
    id: JobId,
    setup: &Setup,
    common: &CommonParts,
    arguments: &str,
    command: &mut Command,
) {
    let job = plan.job(id);
    let by_script = is_called_by_script(plan, id);
    let mut line = std::mem::take(&mut command.arguments);
    if !by_script && let Some(path) = input(plan, id) {
        push_word(&mut line, "-i ", &path, " ");
    } else if super::stdin::of(plan, id).is_some() {
        line.push_str("-i - ");
    }
    let (mut stdout, mut stderr) = (None, None);
    if let Task::Compute(n) = job.task {
        let of = &plan.workflow.jobs[n];
        (stdout, stderr) = (of.stdout, of.stderr);
    }
    if super::cluster::is_later_member(plan, id) {
        line.push_str(" -H");
    }
    line.push_str(" -n ");
    let at = line.len();
    plan.push_transformation(job, &mut line);
    if let Cow::Owned(quoted) = quote(&line[at..]) {
        line.truncate(at);
        line.push_str(&quoted);
    }
    push_word(&mut line, " -N ", plan.logical_id(job), " ");
    if by_script && let Some(path) = input(plan, id) {
        if has_input_file(job.task) {
            line.push_str("-i - ");
            command.stdin = Some(path);
        } else {
            push_word(&mut line, "-i ", &path, " ");
        }
    }
    for (option, file) in [("-o ", stdout), ("-e ", stderr)] {
        if let Some(file) = file {
            push_word(&mut line, option, plan.workflow.files.name(file), " ");
        }
    }
    line.push_str(&common.place);
    if plan.settings.stat {
        super::stat::options(plan, id, &mut line);
    }
    line.push_str(&common.limits);
    append_program(plan, id, setup, arguments, &mut line, command);
    command.arguments = line;
}

/// Appends the program and its arguments, or an option for an argument file with them.
fn append_program(
    plan: &Plan<'_>,
    id: JobId,
    setup: &Setup,
    arguments: &str,
    line: &mut String,
    command: &mut Command,
) {
    let job = plan.job(id);
    let settings = plan.settings;
    let is_long = line.len() + setup.executable.len() + arguments.len() > settings.invoke_length;
    if let Task::Compute(n) = job.task
        && !plan.is_member(id)
        && !plan.exec.has_description(job)
        && !plan.exec.is_nested(job)
        && !settings.invoke_disable
        && (settings.invoke_always || is_long)
        && let Some(words) = argument_words(&plan.workflow.jobs[n], true)
    {
        let file = format!("{}/{}.arg", plan.submit, job.name);
        push_word(line, " -I ", &file, " ");
        let mut text = format!("{}\n", setup.executable);
        for word in words {
            text.push_str(&word);
            text.push('\n');
        }
        command.argument_file = Some(text);
        return;
    }
    push_word(line, "", &setup.executable, " ");
    line.push_str(arguments);
}

/// Maximum bytes of output names in a shell command that checks them. One argument has at most 128 KiB.
const MAX_CHECKED: usize = 64 * 1024;

/// Makes the command of a program without kickstart: a shell changes into the work directory and redirects
/// streams.
fn bare(plan: &Plan<'_>, id: JobId, setup: &Setup, arguments: &str, command: &mut Command) {
    let job = plan.job(id);
    let mut outputs = super::stat::required_outputs(plan, id);
    if let Task::Compute(n) = job.task {
        // The shell itself makes these files.
        let of = &plan.workflow.jobs[n];
        let streams = [of.stdout, of.stderr].map(|file| file.map(|file| plan.workflow.files.name(file)));
        outputs.retain(|&output| !streams.contains(&Some(output)));
    }
    let checks =
        !outputs.is_empty() && outputs.iter().map(|name| name.len() + 1).sum::<usize>() < MAX_CHECKED;
    let mut line = String::new();
    if let Some((launcher, options)) = launcher(setup) {
        let _ = write!(line, "{} ", quote(launcher));
        if let Some(options) = options {
            let _ = write!(line, "{options} ");
        }
    }
    let _ = write!(line, "{} {arguments}", quote(&setup.executable));
    if setup.container.is_some() && !has_streams(plan, job.task) {
        // The image may have no shell. What starts the container knows the directory and checks outputs.
        let (program, rest) = line.split_once(' ').unwrap_or((&line, ""));
        (command.program, command.arguments) = (program.to_owned(), rest.to_owned());
        return;
    }
    let mut script = String::from(if checks {
        "cd \"$0\" && \"$@\""
    } else {
        "cd \"$0\" && exec \"$@\""
    });
    if has_input_file(job.task) && part(plan, id).is_none() {
        let _ = write!(script, " <{}", shell_quote(&plan.job_file(id, suffix(plan, id))));
    }
    if let Task::Compute(n) = job.task {
        let of = &plan.workflow.jobs[n];
        for (operator, file) in [("<", of.stdin), (">", of.stdout), ("2>", of.stderr)] {
            if let Some(file) = file {
                let _ = write!(
                    script,
                    " {operator}{}",
                    shell_quote(plan.workflow.files.name(file))
                );
            }
        }
    }
    if checks {
        script.push_str(" || exit; m=0; for f in");
        for output in outputs {
            let _ = write!(script, " {}", shell_quote(output));
        }
        script.push_str(
            "; do test -e \"$f\" || { echo \"the program ended with success, but did not write its declared output: $f\" \
             >&2; m=1; }; done; exit $m",
        );
    }
    command.program = "/bin/sh".into();
    let directory = if plan.exec.is_lite(job) || plan.exec.fetches_for_planner(job) {
        "."
    } else {
        work_dir(plan, id)
    };
    command.arguments = format!("-c {} {} {line}", quote(&script), quote(directory));
}
