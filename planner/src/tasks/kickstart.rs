//! Kickstart around a program.

use crate::exec::Task;

use super::Invocation;
use super::plan::PlannedJob;
use super::requests::timeouts;
use super::words::Words;
use super::work_lists::WorkLists;
use super::{arguments, file_lists};

/// Kickstart for jobs with equal settings.
#[derive(Debug)]
pub(super) struct Kickstart<'p> {
    /// Path of the program.
    path: &'p str,
    /// The program is the one that `pegasus-lite` has inside.
    is_inside: bool,
    /// Launcher from the profiles, and its options.
    launcher: Option<(&'p str, Option<&'p str>)>,
    /// Options about site and directory, before those about files.
    place: Words,
    /// Options after those about files.
    limits: Words,
}

impl<'p> Kickstart<'p> {
    /// Returns the parts that do not depend on the files of a job.
    ///
    /// # Errors
    /// Limits that are none.
    pub(super) fn of(job: PlannedJob<'p>) -> Result<Self, String> {
        let launcher = job.launcher();
        Ok(Kickstart {
            path: job.kickstart(),
            is_inside: launcher.is_none() && !job.names_kickstart(),
            launcher,
            place: place(job),
            limits: limits(job)?,
        })
    }
}

/// Returns the options about site and directory.
fn place(job: PlannedJob<'_>) -> Words {
    let plan = job.plan;
    let mut words = Words::default();
    words.option("-R", &plan.sites.get(job.site).name);
    let makes = job.creates_work_dir();
    if !job.starts_on_node() && (makes || !job.starts_in_work_dir()) {
        let option = if makes { "-W" } else { "-w" };
        words.blanks(" ").option(option, job.work_dir());
    }
    if plan.settings.set_xbit && job.setup.staged {
        words.next("-X").blanks(" ");
    }
    words
}

/// Returns the options about limits, and further ones of the user.
///
/// # Errors
/// Limits that are none.
fn limits(job: PlannedJob<'_>) -> Result<Words, String> {
    let plan = job.plan;
    let mut words = Words::default();
    if let Some(more) = job.pegasus("gridstart.arguments") {
        words.quoted(more).blanks(" ");
    }
    if plan.settings.gridstart_label {
        words.option("-L", &plan.run_label).option("-T", &plan.stamp);
    }
    if job.is_wrapped()
        && let Task::Compute(_) = job.task
        && let Some((term, kill)) = timeouts(job.profiles())?
    {
        words.option("-k", &term.to_string());
        if let Some(kill) = kill {
            words.option("-K", &kill.to_string());
        }
    }
    Ok(words)
}

/// Fills in kickstart, its options, and the program with its arguments.
pub(super) fn wrap(
    job: PlannedJob<'_>,
    kickstart: &Kickstart<'_>,
    lists: &WorkLists,
    arguments: &Words,
    invocation: &mut Invocation,
) {
    let plan = job.plan;
    let is_prepared = job.is_prepared();
    let input = lists.stdin(job);
    let line = &mut invocation.arguments;
    match &input {
        Some(path) if !is_prepared => {
            line.option("-i", path);
        }
        _ if invocation.shared.requests.stdin.is_some() => {
            line.option("-i", "-");
        }
        _ => {}
    }
    if job.is_later_member() && !job.ships_files() {
        line.next("-H");
    }
    line.next("-n").blanks(" ");
    line.with(|text| plan.push_transformation(&job, text));
    line.blanks(" ").option("-N", plan.logical_id(&job));
    if is_prepared && let Some(path) = input {
        if job.reads_list() {
            line.option("-i", "-");
            invocation.stdin = Some(path);
        } else {
            line.option("-i", &path);
        }
    }
    let [_, stdout, stderr] = job.streams();
    for (option, file) in [("-o", stdout), ("-e", stderr)] {
        if let Some(file) = file {
            line.option(option, file);
        }
    }
    line.append(&kickstart.place);
    if plan.settings.stat {
        file_lists::push_options(job, line);
    }
    if job.is_later_member() && job.ships_files() {
        line.word("-H").blanks(" ");
    }
    line.append(&kickstart.limits);
    invocation.argument_file = argument_file(job, line, arguments);
    if invocation.argument_file.is_some() {
        if job.ships_files() {
            // The job starts where its files are.
            if job.starts_in_work_dir() {
                line.option("-w", job.work_dir());
            }
            line.blanks(" ").option("-I", &format!("{}.arg", job.name));
        } else {
            let file = format!("{}/{}.arg", plan.submit, job.name);
            line.blanks(" ").option("-I", &file);
        }
    } else {
        line.word(&job.setup.executable).blanks(" ").append(arguments);
    }
    invocation.is_kickstart = kickstart.is_inside;
    let Some((launcher, options)) = kickstart.launcher else {
        invocation.program.push_str(kickstart.path);
        return;
    };
    invocation.program.push_str(launcher);
    let mut launched = Words::default();
    if let Some(options) = options {
        launched.quoted(options).blanks(" ");
    }
    launched
        .word(kickstart.path)
        .append_after_blank(&invocation.arguments);
    invocation.arguments = launched;
}

/// Returns the file with the program and its arguments, if the command line would be too long.
fn argument_file(job: PlannedJob<'_>, line: &Words, arguments: &Words) -> Option<String> {
    let settings = job.plan.settings;
    let Task::Compute(n) = job.task else { return None };
    if job.is_member() || job.has_description() || job.is_nested() || settings.invoke_disable {
        return None;
    }
    let is_long = || {
        let limit = settings.invoke_length;
        limit.saturating_sub(job.setup.executable.len()) < line.line_length() + arguments.line_length()
    };
    if !settings.invoke_always && !is_long() {
        return None;
    }
    let words = arguments::argument_words(&job.plan.workflow.jobs[n], true)?;
    let mut text = format!("{}\n", job.setup.executable);
    for word in words {
        text.push_str(&word);
        text.push('\n');
    }
    Some(text)
}
