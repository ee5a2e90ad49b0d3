//! Diagnosis as text.

use std::fmt::Write as _;
use std::path::Path;

use pmc_calls::shell::shell_quote;
use pmc_monitor::causes::{Cause, Diagnosis};
use pmc_monitor::failure::{FailedTask, Tail};
use pmc_monitor::history::{History, Phase, State};

use crate::cli;
use crate::resume_command::resume_command;
use crate::table::thousands;
use crate::text::{self, printable};

/// Runs a job in a directory of its own.
const LITE: &str = "pegasus-lite";
/// Maximum tasks and hosts to name.
const MAX_NAMED: usize = 5;

/// Renders the diagnosis. `dir` is what the user calls the run, if it can be resumed by itself. Paths below
/// `cwd` are shown relative to it.
pub fn render(
    history: &History,
    diagnosis: &Diagnosis,
    arguments: &cli::Analyzer,
    dir: Option<&Path>,
    cwd: &Path,
) -> String {
    let mut out = String::new();
    headline(&mut out, history, diagnosis);
    for (number, cause) in (1..).zip(diagnosis.causes.iter().take(arguments.causes)) {
        out.push('\n');
        render_cause(&mut out, history, cause, number, cwd);
    }
    let rest = diagnosis.causes.get(arguments.causes..).unwrap_or_default();
    if !rest.is_empty() {
        let tasks: usize = rest.iter().map(|cause| cause.tasks.len()).sum();
        let _ = writeln!(
            out,
            "\nand {} with {} (-n {} shows all)",
            count(rest.len(), "more cause"),
            count(tasks, "task"),
            diagnosis.causes.len()
        );
    }
    if !diagnosis.retried.is_empty() {
        out.push_str("\nFailed attempts of tasks that are tried again:\n");
    }
    let first = diagnosis.causes.len() + 1;
    for (number, cause) in (first..).zip(diagnosis.retried.iter().take(arguments.causes)) {
        out.push('\n');
        render_cause(&mut out, history, cause, number, cwd);
    }
    out.push('\n');
    never_ran(&mut out, diagnosis);
    if !diagnosis.lost.is_empty() {
        line(
            &mut out,
            "cut off",
            &format!(
                "{} at the end of the run: {}",
                count(diagnosis.lost.len(), "task"),
                join_first(&diagnosis.lost, diagnosis.lost.len())
            ),
        );
    }
    for remark in &diagnosis.remarks {
        line(&mut out, "note", remark);
    }
    for output in &diagnosis.batch_output {
        line(&mut out, "batch job", &text::path(&output.path, cwd));
        tail(&mut out, "", &output.tail);
    }
    let all = history.all();
    if let Some(dir) = dir.filter(|_| diagnosis.phase != Phase::Running && all.get(State::Done) < all.total())
        && let Some(command) = resume_command(&history.dir.dag, dir)
    {
        line(&mut out, "resume", &command);
    }
    if out.ends_with("\n\n") {
        out.pop();
    }
    out
}

fn headline(out: &mut String, history: &History, diagnosis: &Diagnosis) {
    let all = history.all();
    let (done, total) = (all.get(State::Done), all.total());
    let what = match (&diagnosis.run_end, diagnosis.phase) {
        (Some(end), _) => end.to_string(),
        (None, Phase::NotStarted) if history.has_no_log() => "has left no log".to_owned(),
        (None, Phase::NotStarted) => "has not started".to_owned(),
        (None, Phase::Running) => "is running".to_owned(),
        _ if done == total => "succeeded".to_owned(),
        (None, Phase::Ended(_)) => "failed".to_owned(),
        (None, Phase::CutOff) => "was cut off".to_owned(),
    };
    let _ = write!(
        out,
        "{} {what}: {} of {} tasks done",
        history.dir.label,
        thousands(done),
        thousands(total)
    );
    let failed = all.get(State::Failed);
    if failed > 0 {
        let _ = write!(
            out,
            ", {} failed from {}",
            thousands(failed),
            count(diagnosis.causes.len(), "cause")
        );
    }
    out.push('\n');
}

fn render_cause(out: &mut String, history: &History, cause: &Cause, number: usize, cwd: &Path) {
    let example = &cause.example;
    let tasks = cause.tasks.len();
    let _ = write!(out, "{number}  {}: {}", cause.transformation, cause.ending);
    let _ = write!(out, ", {}", count(tasks, "task"));
    if cause.blocked > 0 {
        let _ = write!(out, "; {} not run", count(cause.blocked, "dependent"));
    }
    out.push('\n');
    if tasks == 1 {
        line(out, "task", &last_attempt(example));
    } else {
        let names: Vec<String> = cause
            .tasks
            .iter()
            .take(MAX_NAMED)
            .map(|task| history.plan.text_name(*task))
            .collect();
        line(out, "tasks", &join_first(&names, tasks));
        let mut hosts: Vec<_> = cause.hosts.iter().collect();
        hosts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
        let hosts: Vec<String> = hosts
            .iter()
            .map(|(name, count)| format!("{name} ({count})"))
            .collect();
        if !hosts.is_empty() {
            line(out, "hosts", &join_first(&hosts, hosts.len()));
        }
        line(out, "first", &last_attempt(example));
    }
    if let Some(reason) = cause.reason {
        line(out, "reason", &reason.to_string());
    }
    for reason in &cause.reasons {
        line(out, "likely", reason);
    }
    if let Some(peak) = cause.peak_kib {
        let peak = text::bytes(peak.saturating_mul(1024));
        let request = match cause.request_mb {
            0 => "no memory requested".to_owned(),
            mb => format!("{} requested", text::bytes(mb.saturating_mul(1 << 20))),
        };
        line(out, "memory", &format!("peak {peak}, {request}"));
    }
    if let Some(note) = &example.note {
        line(out, "note", note);
    }
    tail(out, "stderr", &example.stderr);
    tail(out, "stdout", &example.stdout);
    if !example.command.is_empty() {
        let text = cannot_repeat(example)
            .map_or_else(|| by_hand(example), |why| format!("not possible here: {why}"));
        line(out, "repeat", &text);
    }
    if let Some(file) = &example.output_file {
        line(out, "record", &text::path(file, cwd));
    }
    if cause.assumed > 0 {
        line(
            out,
            "",
            &format!(
                "(files of {} not read; the endings are equal)",
                count(cause.assumed, "task")
            ),
        );
    }
}

/// Renders the last attempt: `a, on n1, after 0.5 s, 2 attempts`.
fn last_attempt(example: &FailedTask) -> String {
    let mut text = example.task.clone();
    if let Some(host) = &example.host {
        let _ = write!(text, ", on {host}");
    }
    if let Some(duration) = example.duration {
        let _ = write!(text, ", after {}", text::duration(duration));
    }
    if example.attempts > 1 {
        let _ = write!(text, ", {} attempts", example.attempts);
    }
    text
}

/// Returns why [`by_hand`] does not work on this machine, if it does not.
pub fn cannot_repeat(example: &FailedTask) -> Option<String> {
    if example.whole_command.is_empty() {
        let directory = example.directory.as_deref()?;
        let is_gone = !Path::new(directory).exists();
        return is_gone.then(|| format!("its directory {directory} is not on this machine"));
    }
    // Its program, and the description of the job.
    let own = |word: &&String| Path::new(word).file_name().is_some_and(|name| name == LITE);
    let files = example
        .whole_command
        .iter()
        .filter(own)
        .chain(example.whole_command.last());
    let mut absolute = files.filter(|word| word.starts_with('/'));
    let missing = absolute.find(|word| !Path::new(word).exists())?;
    Some(format!("{missing} is not on this machine"))
}

/// Returns a shell command that runs the program again in its directory, with its environment and standard
/// input. If it ran in a directory or a container that is gone, the whole task, which fetches its inputs and
/// delivers its outputs.
pub fn by_hand(example: &FailedTask) -> String {
    if !example.whole_command.is_empty() {
        let words: Vec<String> = example
            .whole_command
            .iter()
            .map(|word| shell_quote(word).into_owned())
            .collect();
        return words.join(" ");
    }
    let mut words: Vec<String> = Vec::new();
    if !example.environment.is_empty() {
        words.push("env".to_owned());
        words.extend(
            example
                .environment
                .iter()
                .map(|word| shell_quote(word).into_owned()),
        );
    }
    if let Some(script) = &example.secrets {
        words.extend(["/bin/sh".to_owned(), shell_quote(script).into_owned()]);
    }
    words.extend(example.command.iter().map(|word| shell_quote(word).into_owned()));
    if let Some(stdin) = &example.stdin {
        words.push(format!("< {}", shell_quote(stdin)));
    }
    match &example.directory {
        Some(directory) => format!("(cd {} && {})", shell_quote(directory), words.join(" ")),
        None => words.join(" "),
    }
}

fn never_ran(out: &mut String, diagnosis: &Diagnosis) {
    let all: usize = diagnosis.never_ran.values().sum();
    if all == 0 {
        return;
    }
    let kinds: Vec<String> = diagnosis
        .never_ran
        .iter()
        .map(|(kind, count)| format!("{} {}", thousands(*count), kind.name()))
        .collect();
    line(out, "not run", &kinds.join(", "));
    let names = diagnosis
        .never_ran_names
        .get(..MAX_NAMED)
        .unwrap_or(&diagnosis.never_ran_names);
    line(out, "", &join_first(names, all));
}

/// Joins the first names and counts the rest.
fn join_first(names: &[String], all: usize) -> String {
    let shown = names.get(..MAX_NAMED).unwrap_or(names);
    let mut text = shown.join(", ");
    if all > shown.len() {
        let _ = write!(text, " and {} more", thousands(all - shown.len()));
    }
    text
}

fn tail(out: &mut String, name: &str, tail: &Tail) {
    let mut name = name;
    if tail.omitted > 0 {
        line(out, name, &format!("({} before)", count(tail.omitted, "line")));
        name = "";
    }
    for text in &tail.lines {
        line(out, name, &format!("| {}", printable(text)));
        name = "";
    }
}

fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", thousands(number))
}

fn line(out: &mut String, name: &str, value: &str) {
    let _ = writeln!(out, "   {name:<10}{value}");
}
