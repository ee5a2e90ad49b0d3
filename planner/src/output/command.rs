//! Command lines: kickstart around the program, resources of the task (sections 7.1 and 7.2 of the
//! planner's specification).

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::model::{Arguments, JobIndex};
use crate::profiles::{Namespace, Profiles, parse_bool};
use crate::refine::exec::{JobId, Setup, Task};
use crate::refine::settings::{Generator, Mode};

use super::lists::Orders;
use super::{PROPERTIES, Plan, limits};

/// What a TASK line says about one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    /// What precedes the program on the TASK line: the environment.
    pub(crate) environment: String,
    /// First program: kickstart, a launcher, or the program itself.
    pub(crate) program: String,
    /// Its arguments as one text, quoted for the DAG.
    pub(crate) arguments: String,
    /// `-m`.
    pub(crate) memory_mb: Option<u64>,
    /// `-c`.
    pub(crate) cpus: Option<u32>,
    pub(crate) gpus: Option<u32>,
    /// `-p`.
    pub(crate) priority: Option<i64>,
    /// More task options.
    pub(crate) options: String,
    /// Content of the argument file, if the job has one.
    pub(crate) argument_file: Option<String>,
    /// Standard input that whoever starts the program connects; with PMC kickstart does it.
    pub(crate) stdin: Option<String>,
}

/// Work directory of jobs that do not depend on the one of the run.
const ELSEWHERE: &str = "/tmp";

/// A word quoted for the DAG; plain words stay as they are.
pub(crate) fn quote(word: &str) -> Cow<'_, str> {
    match pmc_dag::words::quote(word.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(word),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// The command of a job.
///
/// # Errors
/// Profiles that make no sense; each message names the job.
pub(crate) fn command(plan: &Plan<'_>, id: JobId) -> Result<Command, Vec<String>> {
    let job = plan.job(id);
    if let Task::Cluster(..) = job.task {
        return super::cluster::command(plan, id);
    }
    let setup = &plan.exec.setups[job.setup as usize];
    let mut problems = Vec::new();
    let mut command = Command::default();
    limits::resources(plan, id, &mut command, &mut problems);
    if !super::cluster::inherits_environment(plan, id) {
        command.environment = environment(&setup.profiles);
    }
    let wrapped = is_wrapped(plan, id);
    let arguments = arguments(plan, id, wrapped, &mut problems);
    let launcher = setup
        .profiles
        .pegasus("gridstart.launcher")
        .map(str::trim)
        .filter(|l| !l.is_empty());
    let launcher_arguments = setup
        .profiles
        .pegasus("gridstart.launcher.arguments")
        .map(str::trim);
    if wrapped {
        let kickstart = kickstart(plan, id, setup);
        let mut line = kickstart_options(plan, id, setup, &mut command, &mut problems);
        append_program(plan, id, setup, &arguments, &mut line, &mut command);
        match launcher {
            Some(launcher) => {
                command.program = quote(launcher).into_owned();
                command.arguments = match launcher_arguments {
                    Some(more) => format!("{more} {kickstart}{}", spaced(&line)),
                    None => format!("{kickstart}{}", spaced(&line)),
                };
            }
            None => {
                command.program = kickstart;
                command.arguments = line;
            }
        }
    } else if matches!(job.task, Task::NoOp) {
        command.program = quote(&setup.executable).into_owned();
    } else if is_called_by_script(plan, id) && launcher.is_none() && !has_outputs(plan, job.task) {
        command.stdin = input(plan, id);
        command.program = quote(&setup.executable).into_owned();
        command.arguments = arguments.text;
    } else {
        bare(
            plan,
            id,
            setup,
            &arguments,
            launcher,
            launcher_arguments,
            &mut command,
        );
    }
    if problems.is_empty() {
        Ok(command)
    } else {
        Err(problems)
    }
}

/// A text that begins with a blank.
fn spaced(text: &str) -> Cow<'_, str> {
    if text.starts_with(' ') {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!(" {text}"))
    }
}

/// Whether the script of the generator Shell starts a job, and not what runs the cluster that it is in.
fn is_called_by_script(plan: &Plan<'_>, id: JobId) -> bool {
    plan.settings.generator == Generator::Shell && !plan.is_member(id)
}

/// Whether kickstart is put around the program.
pub(crate) fn is_wrapped(plan: &Plan<'_>, id: JobId) -> bool {
    let job = plan.job(id);
    let gridstart = plan.exec.setups[job.setup as usize].profiles.pegasus("gridstart");
    !matches!(job.task, Task::NoOp | Task::Cluster(..))
        && !gridstart.is_some_and(|g| g.trim().eq_ignore_ascii_case("none"))
}

fn kickstart(plan: &Plan<'_>, id: JobId, setup: &Setup) -> String {
    let job = plan.job(id);
    match setup.profiles.pegasus("gridstart.path").map(str::trim) {
        Some(path) if !path.is_empty() => quote(path).into_owned(),
        _ => quote(&format!("{}/pegasus-kickstart", plan.sites.get(job.site).tools)).into_owned(),
    }
}

/// Whether a job wants its output in files of the work directory.
fn has_outputs(plan: &Plan<'_>, task: Task) -> bool {
    match task {
        Task::Compute(JobIndex(n)) => {
            let of = &plan.workflow.jobs[n as usize];
            of.stdout.is_some() || of.stderr.is_some()
        }
        _ => false,
    }
}

/// File that is the standard input of a job.
fn input(plan: &Plan<'_>, id: JobId) -> Option<String> {
    let job = plan.job(id);
    match job.task {
        Task::Compute(JobIndex(n)) => {
            let file = plan.workflow.jobs[n as usize].stdin?;
            let name = plan.workflow.files.name(file);
            Some(plan.sites.scratch_path(job.staging, name))
        }
        task if has_input_file(task) && part(plan, id).is_none() => Some(plan.job_file(id, ".in")),
        _ => None,
    }
}

/// Directory that a job works in.
pub(crate) fn work_dir<'p>(plan: &'p Plan<'_>, id: JobId) -> &'p str {
    let job = plan.job(id);
    let setup = &plan.exec.setups[job.setup as usize];
    // A delivered output of a deleted job moves from elsewhere to elsewhere, and nothing makes sure that
    // there is a work directory: such jobs have no parents but each other.
    if matches!(job.task, Task::CreateDir | Task::NoOp) || is_delivery(plan, id) {
        return ELSEWHERE;
    }
    // Registration needs no file of the work directory, which may be removed before it, or before it is tried again.
    // Small plans are as those of Pegasus.
    if matches!(job.task, Task::Register(_)) && !plan.files_apart {
        return ELSEWHERE;
    }
    match setup.profiles.get(Namespace::Globus, "directory") {
        Some(directory) if !directory.trim().is_empty() => directory.trim(),
        _ => plan
            .sites
            .get(job.staging)
            .scratch
            .as_ref()
            .map_or(ELSEWHERE, |scratch| scratch.path.as_str()),
    }
}

/// Whether a job delivers outputs of deleted jobs.
fn is_delivery(plan: &Plan<'_>, id: JobId) -> bool {
    match plan.job(id).task {
        Task::StageOut(n) => plan.exec.transfers[n as usize].files.iter().all(|file| {
            file.sources
                .iter()
                .all(|(place, _)| matches!(place, crate::refine::exec::Place::Url(..)))
        }),
        Task::Register(n) => plan.exec.registrations[n as usize].producers.is_empty(),
        _ => false,
    }
}

/// Whether kickstart makes the directory that a job works in.
pub(crate) fn makes_dir(plan: &Plan<'_>, id: JobId) -> bool {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup as usize].profiles;
    let makes = profiles.pegasus("create.dir").and_then(parse_bool) == Some(true);
    makes && matches!(job.task, Task::Compute(_)) && is_wrapped(plan, id)
}

/// Everything between kickstart and the program.
fn kickstart_options(
    plan: &Plan<'_>,
    id: JobId,
    setup: &Setup,
    command: &mut Command,
    problems: &mut Vec<String>,
) -> String {
    let job = plan.job(id);
    let by_script = is_called_by_script(plan, id);
    let mut line = String::with_capacity(512);
    // Writing into a String cannot fail.
    if !by_script && let Some(path) = input(plan, id) {
        let _ = write!(line, "-i {} ", quote(&path));
    }
    let (mut stdout, mut stderr) = (None, None);
    if let Task::Compute(JobIndex(n)) = job.task {
        let of = &plan.workflow.jobs[n as usize];
        (stdout, stderr) = (of.stdout, of.stderr);
    }
    if super::cluster::is_later_member(plan, id) {
        line.push_str(" -H");
    }
    let transformation = plan.transformation(job);
    let _ = write!(
        line,
        " -n {} -N {} ",
        quote(&transformation),
        quote(plan.logical_id(job))
    );
    if by_script && let Some(path) = input(plan, id) {
        if has_input_file(job.task) {
            line.push_str("-i - ");
            command.stdin = Some(path);
        } else {
            let _ = write!(line, "-i {} ", quote(&path));
        }
    }
    for (option, file) in [("-o", stdout), ("-e", stderr)] {
        if let Some(file) = file {
            let _ = write!(line, "{option} {} ", quote(plan.workflow.files.name(file)));
        }
    }
    let _ = write!(line, "-R {} ", quote(&plan.sites.get(job.site).name));
    let option = if makes_dir(plan, id) { "-W" } else { "-w" };
    // The script of the generator Shell changes into the directory itself, if it is there.
    if option == "-W" || !by_script {
        let _ = write!(line, " {option} {} ", quote(work_dir(plan, id)));
    }
    if plan.settings.set_xbit && setup.staged {
        line.push_str(" -X ");
    }
    if plan.settings.stat {
        super::stat::options(plan, id, &mut line);
    }
    if let Some(more) = setup.profiles.pegasus("gridstart.arguments").map(str::trim)
        && !more.is_empty()
    {
        let _ = write!(line, "{more} ");
    }
    if plan.settings.gridstart_label {
        let _ = write!(line, "-L {} -T {} ", quote(&plan.run_label), plan.stamp);
    }
    if let Task::Compute(_) = job.task {
        match limits::timeouts(&setup.profiles) {
            Ok(Some((term, kill))) => {
                let _ = write!(line, "-k {term} ");
                if let Some(kill) = kill {
                    let _ = write!(line, "-K {kill} ");
                }
            }
            Ok(None) => {}
            Err(problem) => problems.push(format!("job {}: {problem}", job.name)),
        }
    }
    line
}

/// First byte and length of a job's orders, if they are in the one file of a large plan.
fn part(plan: &Plan<'_>, id: JobId) -> Option<(u64, u32)> {
    plan.orders.get()?.part(id)
}

/// File with what a job registers.
fn registration_orders(plan: &Plan<'_>, id: JobId) -> String {
    match plan.orders.get() {
        Some(orders) => orders.file(plan, id),
        None => plan.job_file(id, ".in"),
    }
}

/// Jobs that read their orders from a file.
fn has_input_file(task: Task) -> bool {
    matches!(
        task,
        Task::StageIn(_)
            | Task::StageOut(_)
            | Task::InterSite(_)
            | Task::CreateDir
            | Task::CleanUp(_)
            | Task::RemoveDir
    )
}

/// Arguments of the program: as one text quoted for the DAG, and as words for an argument file.
struct ProgramArguments {
    text: String,
    /// `None` where the text cannot be split safely.
    words: Option<Vec<String>>,
}

fn arguments(plan: &Plan<'_>, id: JobId, wrapped: bool, problems: &mut Vec<String>) -> ProgramArguments {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup as usize].profiles;
    let mut text = match job.task {
        Task::Compute(JobIndex(n)) => return compute_arguments(plan, n, wrapped, problems),
        Task::StageIn(_) | Task::StageOut(_) | Task::InterSite(_) => {
            let threads = profiles.pegasus("transfer.threads").map_or("2", str::trim);
            let mut text = format!(" --threads {threads} ");
            match profiles.pegasus("transfer.arguments").map(str::trim) {
                Some(more) if !more.is_empty() => text.push_str(more),
                _ => text.push_str(plan.settings.mode.transfer_arguments()),
            }
            text
        }
        Task::Register(n) => {
            let mut text = format!(
                "--prefix pegasus.catalog.replica.output --conf {} {}",
                quote(&format!("{}/{PROPERTIES}", plan.submit)),
                if plan.settings.mode == Mode::Debug {
                    "-vvv"
                } else {
                    "-v"
                }
            );
            let producers = &plan.exec.registrations[n as usize].producers;
            let with_metadata = plan.settings.integrity != crate::refine::settings::Integrity::None;
            if with_metadata && !producers.is_empty() {
                let files: Vec<String> = producers.iter().map(|&p| plan.job_file(p, ".meta")).collect();
                let _ = write!(text, " --meta {}", quote(&files.join(",")));
            }
            let _ = write!(text, " --insert {}", quote(&registration_orders(plan, id)));
            text
        }
        Task::Chmod(n) => {
            let mut text = " +x ".to_owned();
            for &file in &plan.exec.chmods[n as usize] {
                let path = plan
                    .sites
                    .scratch_path(job.staging, plan.workflow.files.name(file));
                let _ = write!(text, " {}", quote(&path));
            }
            text
        }
        Task::CreateDir | Task::CleanUp(_) | Task::RemoveDir | Task::NoOp | Task::Cluster(..) => {
            String::new()
        }
    };
    if let Some((at, length)) = part(plan, id) {
        let file = format!("{}/{}", plan.submit, Orders::file_name(&plan.base));
        let _ = write!(text, " --file {} --part {at}:{length}", quote(&file));
    }
    ProgramArguments { text, words: None }
}

/// Bytes of one argument that Linux takes, with the NUL behind it.
const LONGEST_ARGUMENT: usize = 128 * 1024;

fn compute_arguments(plan: &Plan<'_>, n: u32, wrapped: bool, problems: &mut Vec<String>) -> ProgramArguments {
    let job = &plan.workflow.jobs[n as usize];
    match &job.arguments {
        Arguments::Raw(text) => {
            let words = text.split_whitespace().map(str::to_owned).collect();
            if text.contains('\n') {
                problems.push(format!(
                    "job {}: its arguments contain a line break, which a DAG cannot express",
                    job.id
                ));
            }
            ProgramArguments {
                text: text.clone(),
                words: Some(words),
            }
        }
        Arguments::Words(list) => {
            let mut text = String::new();
            let mut words = Some(Vec::new());
            for (k, word) in list.iter().enumerate() {
                if word.contains(['\n', '\r']) {
                    problems.push(format!(
                        "job {}: argument {} contains a line break, which a DAG cannot express",
                        job.id,
                        k + 1
                    ));
                }
                if word.len() >= LONGEST_ARGUMENT {
                    problems.push(format!(
                        "job {}: argument {} has {} bytes, and no program can be given more than {} in one: write it into \
                         a file",
                        job.id,
                        k + 1,
                        word.len(),
                        LONGEST_ARGUMENT - 1
                    ));
                }
                let word = if wrapped {
                    for_kickstart(word)
                } else {
                    Cow::Borrowed(word)
                };
                if k > 0 {
                    text.push(' ');
                }
                text.push_str(&quote(&word));
                // An argument file drops empty lines.
                match &mut words {
                    Some(list) if !word.is_empty() => list.push(word.into_owned()),
                    _ => words = None,
                }
            }
            ProgramArguments { text, words }
        }
    }
}

/// A word that kickstart, which rewrites the arguments of its program, gives to it unchanged. Variables
/// stay variables: `$NAME` is expanded when the job runs, `\$` is a dollar sign.
fn for_kickstart(word: &str) -> Cow<'_, str> {
    if !word.contains(['\\', '"', '\'']) {
        return Cow::Borrowed(word);
    }
    let mut out = String::with_capacity(word.len() + 8);
    let mut letters = word.chars().peekable();
    while let Some(c) = letters.next() {
        let is_dollar_escape = c == '\\' && letters.peek() == Some(&'$');
        if matches!(c, '\\' | '"' | '\'') && !is_dollar_escape {
            out.push('\\');
        }
        out.push(c);
        if is_dollar_escape && let Some(dollar) = letters.next() {
            out.push(dollar);
        }
    }
    Cow::Owned(out)
}

/// The program and its arguments at the end of kickstart's line, or an argument file that has them.
fn append_program(
    plan: &Plan<'_>,
    id: JobId,
    setup: &Setup,
    arguments: &ProgramArguments,
    line: &mut String,
    command: &mut Command,
) {
    let job = plan.job(id);
    let settings = plan.settings;
    let is_long = line.len() + setup.executable.len() + arguments.text.len() > settings.invoke_length;
    let wants_file = matches!(job.task, Task::Compute(_))
        && !plan.is_member(id)
        && !settings.invoke_disable
        && (settings.invoke_always || is_long);
    if wants_file && let Some(words) = &arguments.words {
        let _ = write!(
            line,
            " -I {} ",
            quote(&format!("{}/{}.arg", plan.submit, job.name))
        );
        let mut text = format!("{}\n", setup.executable);
        for word in words {
            text.push_str(word);
            text.push('\n');
        }
        command.argument_file = Some(text);
        return;
    }
    let _ = write!(line, "{} {}", quote(&setup.executable), arguments.text);
}

/// A program without kickstart: a shell changes into the work directory and connects the streams.
fn bare(
    plan: &Plan<'_>,
    id: JobId,
    setup: &Setup,
    arguments: &ProgramArguments,
    launcher: Option<&str>,
    launcher_arguments: Option<&str>,
    command: &mut Command,
) {
    let job = plan.job(id);
    let mut script = String::from("cd \"$0\" && exec \"$@\"");
    if has_input_file(job.task) && part(plan, id).is_none() {
        let _ = write!(script, " <{}", shell_quote(&plan.job_file(id, ".in")));
    }
    if let Task::Compute(JobIndex(n)) = job.task {
        let of = &plan.workflow.jobs[n as usize];
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
    command.program = "/bin/sh".into();
    let mut line = format!("-c {} {} ", quote(&script), quote(work_dir(plan, id)));
    if let Some(launcher) = launcher {
        let _ = write!(line, "{} ", quote(launcher));
        if let Some(more) = launcher_arguments {
            let _ = write!(line, "{more} ");
        }
    }
    let _ = write!(line, "{} {}", quote(&setup.executable), arguments.text);
    command.arguments = line;
}

/// A word for a shell.
pub(crate) fn shell_quote(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(format!("'{}'", word.replace('\'', "'\\''")))
    }
}

/// `/usr/bin/env K=V … `, or nothing. It stands before kickstart, which listens to some variables itself.
pub(crate) fn environment(profiles: &Profiles) -> String {
    let mut text = String::new();
    for (key, value) in profiles.of(Namespace::Env) {
        if text.is_empty() {
            text.push_str("/usr/bin/env ");
        }
        let _ = write!(text, "{} ", quote(&format!("{key}={value}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kickstart_gets_words_that_it_leaves_alone() {
        assert_eq!(for_kickstart("plain $HOME"), "plain $HOME");
        assert_eq!(for_kickstart(r#"it's a\b "q""#), r#"it\'s a\\b \"q\""#);
        assert_eq!(for_kickstart(r"\$HOME"), r"\$HOME");
    }

    #[test]
    fn shell_words() {
        assert_eq!(shell_quote("/a/b-c"), "/a/b-c");
        assert_eq!(shell_quote("it's"), r"'it'\''s'");
        assert_eq!(shell_quote(""), "''");
    }
}
