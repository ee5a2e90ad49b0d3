//! Status as text.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Local};
use monitord_compat::reason::Reason;
use monitord_compat::run_end::RunEnd;
use pmc_calls::shell::shell_quote;
use pmc_control::RunLimits;
use pmc_monitor::batch_output::unexplained;
use pmc_monitor::ending::Ending;
use pmc_monitor::events::{Micros, SECOND};
use pmc_monitor::history::{Attempt, History, Phase, State, seconds};
use pmc_monitor::progress::{Estimate, FailedTask, Progress};

use super::{checkpoints, guests, unfinished};
use crate::resume_command::resume_command;
use crate::table::{Align, Table, thousands};
use crate::text;

/// Width of the bar in characters.
const BAR_WIDTH: usize = 40;
/// Seconds without a new log line after which the status mentions it.
const MAX_SILENCE: f64 = 600.0;

/// What to show, and when.
pub struct Shown<'a> {
    /// The directory as the user named it.
    pub dir: &'a Path,
    /// Maximum running and failed tasks to list.
    pub lines: usize,
    /// Current time.
    pub now: Micros,
    /// Name the commands to call next.
    pub hints: bool,
    /// No agent that could take tasks is there.
    pub waits_for_agents: bool,
    /// What ends the run although tasks are left.
    pub limits: RunLimits,
}

/// Renders the whole status.
pub fn render(history: &History, progress: &Progress, shown: &Shown<'_>) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} {}", history.dir.label, verdict(progress));
    if let Some(message) = progress.run_end.as_ref().and_then(RunEnd::message) {
        let _ = writeln!(out, "  error    {}", text::printable(message));
    }
    let done = progress.all.get(State::Done);
    let total = progress.all.total();
    if total == 0 {
        out.push_str("\n  The plan has no tasks yet.\n");
        return out;
    }
    let _ = writeln!(
        out,
        "{} {} of {} tasks done",
        bar(progress),
        thousands(done),
        thousands(total)
    );
    out.push('\n');
    out.push_str(&kinds(progress));
    out.push('\n');
    pace(&mut out, progress, shown);
    running(&mut out, history, progress, shown);
    failed(&mut out, history, ("failed", "attempts"), &progress.failed, shown);
    failed(
        &mut out,
        history,
        ("tried again", "failed"),
        &progress.retried,
        shown,
    );
    out.push_str(&nested(history, shown.lines));
    out.push_str(&handed_over(history, shown.lines));
    if shown.hints {
        batch_output(&mut out, history);
        hints(&mut out, history, progress, shown);
    }
    out
}

/// Renders the progress in one line, for logs.
pub fn line(history: &History, progress: &Progress) -> String {
    let count = |state| progress.all.get(state);
    let mut line = format!(
        "{} {}: {} of {} tasks done, {} running",
        history.dir.label,
        word(progress),
        count(State::Done),
        progress.all.total(),
        count(State::Running)
    );
    if count(State::Failed) > 0 {
        let _ = write!(line, ", {} failed", count(State::Failed));
    }
    if let Some(failed) = failed_attempts(progress) {
        let _ = write!(line, ", {failed}");
    }
    if let Some(estimate) = &progress.estimate {
        let _ = write!(line, ", end in about {}", span(estimate.seconds));
    }
    line
}

/// Returns how an attempt failed: the reason, or else the ending.
fn how(ending: Ending, reason: Option<Reason>) -> String {
    reason.map_or_else(|| ending.to_string(), |reason| reason.to_string())
}

/// Returns how many attempts have failed of tasks that are tried again; `None` for none.
fn failed_attempts(progress: &Progress) -> Option<String> {
    let count: usize = progress.retried.iter().map(|task| task.attempts).sum();
    (count > 0).then(|| format!("{} failed", text::count(count, "attempt")))
}

/// Renders a failed attempt in one line.
pub fn failure(history: &History, attempt: &Attempt, number: usize) -> String {
    if attempt.was_evicted() {
        let name = history.plan.text_name(attempt.task);
        let host = history.hosts.name(attempt.host);
        let host = host.map_or(String::new(), |host| format!(" on {host}"));
        return format!("lost: {name} with its worker or the batch job{host}, will run again");
    }
    let how = how(Ending::from_wait_status(attempt.status), history.reason(number));
    let mut line = format!("failed: {} ({how})", history.plan.text_name(attempt.task));
    if let Some(host) = history.hosts.name(attempt.host) {
        let _ = write!(line, " on {host}");
    }
    if matches!(history.state(attempt.task), State::Ready | State::Running) {
        line.push_str(", will be retried");
    }
    line
}

fn word(progress: &Progress) -> String {
    progress
        .run_end
        .as_ref()
        .map_or_else(|| phase_word(progress).to_owned(), RunEnd::to_string)
}

fn phase_word(progress: &Progress) -> &'static str {
    let done = progress.all.get(State::Done) == progress.all.total();
    match progress.phase {
        Phase::Running => "is running",
        _ if done && progress.all.total() > 0 => "succeeded",
        Phase::NotStarted if progress.without_log => "has left no log",
        Phase::NotStarted => "has not started",
        Phase::Ended(_) => "stopped, incomplete,",
        Phase::CutOff if progress.missing_dag.is_some() => "is running or was cut off",
        Phase::CutOff => "was cut off",
    }
}

fn verdict(progress: &Progress) -> String {
    let mut text = word(progress);
    // The log may have whole seconds only.
    let time = match progress.wall_seconds {
        none if none <= 0.0 => "less than a second".to_owned(),
        long => span(long),
    };
    match progress.phase {
        Phase::NotStarted => {}
        Phase::Running => {
            let _ = write!(text, " for {time}");
        }
        Phase::Ended(_) => {
            let _ = write!(text, " after {time}");
        }
        Phase::CutOff => {
            let _ = match &progress.missing_dag {
                Some(dag) => write!(
                    text,
                    " after {time}: its log has no end, and the DAG {} with its lock is missing",
                    dag.display()
                ),
                None => write!(text, " after {time}: the executor is gone and its log has no end"),
            };
        }
    }
    if progress.runs > 1 {
        let _ = write!(text, " ({} runs)", progress.runs);
    }
    text
}

fn bar(progress: &Progress) -> String {
    let total = progress.all.total().max(1);
    let part = |state| progress.all.get(state) * BAR_WIDTH / total;
    let (done, failed) = (part(State::Done), part(State::Failed));
    let running = part(State::Running).min(BAR_WIDTH - done - failed);
    let rest = BAR_WIDTH - done - failed - running;
    format!(
        "[{}{}{}{}] {} %",
        "#".repeat(done),
        ">".repeat(running),
        "!".repeat(failed),
        "-".repeat(rest),
        progress.all.get(State::Done) * 100 / total
    )
}

fn kinds(progress: &Progress) -> String {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("total", Align::Right),
        ("done", Align::Right),
        ("running", Align::Right),
        ("ready", Align::Right),
        ("waiting", Align::Right),
        ("failed", Align::Right),
    ]);
    let all = [("all", progress.all)];
    let kinds = progress.kinds.iter().map(|(kind, tally)| (kind.name(), *tally));
    let sum = all.into_iter().filter(|_| progress.kinds.len() > 1);
    for (name, tally) in kinds.chain(sum) {
        let states = [
            State::Done,
            State::Running,
            State::Ready,
            State::Waiting,
            State::Failed,
        ];
        let counts = states.map(|state| match tally.get(state) {
            0 => "-".to_owned(),
            count => thousands(count),
        });
        let mut row = vec![name.to_owned(), thousands(tally.total())];
        row.extend(counts);
        table.row(row);
    }
    table.render("  ")
}

fn pace(out: &mut String, progress: &Progress, shown: &Shown<'_>) {
    if let Some(rate) = &progress.rate {
        let _ = writeln!(
            out,
            "  rate     {} tasks per minute in the last {} ({} over the whole run), {:.1} running on average",
            figure(rate.per_minute),
            span(rate.window_seconds),
            figure(rate.per_minute_of_run),
            rate.parallel
        );
    }
    match &progress.estimate {
        _ if shown.waits_for_agents => {
            out.push_str(
                "  end      unknown: the run waits for agents, none that could take tasks is there\n",
            );
        }
        _ if shown.limits.drains => {
            out.push_str(
                "  end      when the tasks that run have ended: the run was asked to start no more\n",
            );
        }
        Some(estimate) => end(out, estimate, shown.now),
        None if progress.phase == Phase::Running && !progress.without_log => {
            out.push_str("  end      unknown until the first tasks have succeeded\n");
        }
        None => {}
    }
    limit(out, progress, shown);
    if progress.without_log {
        out.push_str(
            "  log      none: only tasks that are done are known. The executor writes it with --jobstate-log\n",
        );
    }
    if progress.phase == Phase::Running
        && let Some(silent) = progress.silent_seconds.filter(|silent| *silent > MAX_SILENCE)
    {
        let _ = writeln!(out, "  log      no new line for {}", span(silent));
    }
    if progress.lost_attempts > 0 {
        let _ = writeln!(
            out,
            "  lost     {}, with workers or the batch job; they count as no failures",
            text::count(progress.lost_attempts, "attempt"),
        );
    }
    if let Some(failed) = failed_attempts(progress) {
        let tasks = text::count(progress.retried.len(), "task");
        let _ = writeln!(out, "  retried  {failed}; {tasks} tried again");
    }
    if progress.blocked > 0 {
        let _ = writeln!(
            out,
            "  blocked  {} by failed tasks",
            text::count(progress.blocked, "task"),
        );
    }
}

/// Says when the wall time ends the run, if tasks will be left then.
fn limit(out: &mut String, progress: &Progress, shown: &Shown<'_>) {
    let Some(left) = shown.limits.wall_seconds_left.map(|left| left as f64) else {
        return;
    };
    if progress.estimate.is_none_or(|estimate| estimate.seconds > left) {
        let _ = writeln!(
            out,
            "  limit    the wall time of the run is over in {} ({}); tasks that are left then are for the next run",
            span(left),
            clock(shown.now, left)
        );
    }
}

fn end(out: &mut String, estimate: &Estimate, now: Micros) {
    let _ = write!(
        out,
        "  end      in about {} ({})",
        span(estimate.seconds),
        clock(now, estimate.seconds)
    );
    if estimate.seconds - estimate.at_least > 0.1 * estimate.seconds + 1.0 {
        let _ = write!(out, ", {} at the earliest", clock(now, estimate.at_least));
    }
    let left = text::count(estimate.tasks, "task");
    if estimate.by_chain {
        let _ = write!(
            out,
            "\n           {left} left; limited by the longest chain of tasks, more hosts would not help"
        );
    } else {
        let _ = write!(
            out,
            "\n           {left} left with {} of work, estimated from the mean time per transformation",
            span(estimate.work)
        );
    }
    if estimate.guessed > 0 {
        let _ = write!(out, "; {} without a finished sample", thousands(estimate.guessed));
    }
    out.push('\n');
}

fn running(out: &mut String, history: &History, progress: &Progress, shown: &Shown<'_>) {
    if progress.running.is_empty() || shown.lines == 0 {
        return;
    }
    let mut table = Table::new(&[
        ("running", Align::Left),
        ("transformation", Align::Left),
        ("host", Align::Left),
        ("for", Align::Right),
    ]);
    for task in progress.running.iter().take(shown.lines) {
        table.row([
            history.plan.text_name(task.task),
            history.plan.class(task.task).transformation.clone(),
            task.host.clone().unwrap_or_else(|| "?".to_owned()),
            span(task.seconds),
        ]);
    }
    let _ = write!(out, "\n{}", table.render("  "));
    more(out, progress.running.len(), shown.lines);
    let tasks = progress.running.iter().take(shown.lines);
    let saved = checkpoints::of(&history.dir.dag, tasks.map(|task| history.plan.name(task.task)));
    checkpoints::human(out, &saved, seconds(shown.now));
}

/// Lists tasks that have failed. `titles` are those of the names and of the number of attempts.
fn failed(
    out: &mut String,
    history: &History,
    titles: (&str, &str),
    tasks: &[FailedTask],
    shown: &Shown<'_>,
) {
    if tasks.is_empty() || shown.lines == 0 {
        return;
    }
    let mut table = Table::new(&[
        (titles.0, Align::Left),
        ("ending", Align::Left),
        (titles.1, Align::Right),
        ("host", Align::Left),
        ("ago", Align::Right),
    ]);
    for task in tasks.iter().take(shown.lines) {
        table.row([
            history.plan.text_name(task.task),
            how(task.ending, task.reason),
            task.attempts.to_string(),
            task.host.clone().unwrap_or_else(|| "?".to_owned()),
            span(seconds(shown.now - task.time)),
        ]);
    }
    let _ = write!(out, "\n{}", table.render("  "));
    more(out, tasks.len(), shown.lines);
}

/// Shows what the batch job wrote, if the log does not explain its end.
fn batch_output(out: &mut String, history: &History) {
    for output in unexplained(history) {
        let _ = writeln!(out, "\n  batch job wrote {}", output.path.display());
        for line in &output.tail.lines {
            let _ = writeln!(out, "    | {}", text::printable(line));
        }
    }
}

/// Renders the progress of sub-workflows that run or have failed.
fn nested(history: &History, lines: usize) -> String {
    let all = unfinished(history).map(|(task, run)| (history.plan.text_name(task), run));
    others("sub-workflow", all, lines)
}

/// Renders the progress of workflows that were handed to the run.
fn handed_over(history: &History, lines: usize) -> String {
    let cwd = std::env::current_dir().unwrap_or_default();
    let all = guests(history).map(|guest| (text::path(&guest.history.dir.dir, &cwd), guest.history));
    others("also in this run", all, lines)
}

fn others(title: &str, mut all: impl Iterator<Item = (String, History)>, lines: usize) -> String {
    let mut table = Table::new(&[
        (title, Align::Left),
        ("total", Align::Right),
        ("done", Align::Right),
        ("running", Align::Right),
        ("failed", Align::Right),
    ]);
    let mut is_empty = true;
    for (name, run) in all.by_ref().take(lines) {
        is_empty = false;
        let counts = run.all();
        let states = [State::Done, State::Running, State::Failed];
        let counts = std::iter::once(counts.total()).chain(states.map(|state| counts.get(state)));
        table.row(std::iter::once(name).chain(counts.map(thousands)));
    }
    if is_empty {
        return String::new();
    }
    let mut out = format!("\n{}", table.render("  "));
    if all.next().is_some() {
        out.push_str("  and more\n");
    }
    out
}

fn more(out: &mut String, all: usize, shown: usize) {
    if all > shown {
        let _ = writeln!(out, "  and {} more", thousands(all - shown));
    }
}

fn hints(out: &mut String, history: &History, progress: &Progress, shown: &Shown<'_>) {
    let dir = shown.dir.display().to_string();
    let dir = shell_quote(&dir);
    let over = matches!(progress.phase, Phase::Ended(_) | Phase::CutOff);
    let left = progress.all.get(State::Done) < progress.all.total();
    if !(progress.failed.is_empty() && progress.retried.is_empty()) {
        let _ = writeln!(out, "\n  why      pmc analyzer {dir}");
    }
    // Without a DAG there is nothing to resume.
    if over && left && progress.missing_dag.is_none() {
        let first = if progress.failed.is_empty() && progress.retried.is_empty() {
            "\n"
        } else {
            ""
        };
        if let Some(command) = resume_command(&history.dir.dag, shown.dir) {
            let _ = writeln!(out, "{first}  resume   {command}");
        }
    }
    if progress.phase == Phase::NotStarted
        && let Some(command) = resume_command(&history.dir.dag, shown.dir)
    {
        let _ = writeln!(out, "\n  start    {command}");
    }
}

/// Formats a time of day, with the date if it is another day.
fn clock(now: Micros, in_seconds: f64) -> String {
    let later = (now / SECOND).saturating_add(in_seconds as i64);
    let local = |epoch| DateTime::from_timestamp(epoch, 0).map(|time| time.with_timezone(&Local));
    match (local(now / SECOND), local(later)) {
        (Some(now), Some(later)) if now.date_naive() == later.date_naive() => {
            later.format("%H:%M").to_string()
        }
        (_, Some(later)) => later.format("%Y-%m-%d %H:%M").to_string(),
        _ => "?".to_owned(),
    }
}

fn span(seconds: f64) -> String {
    let duration = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    text::duration(duration)
}

/// Formats a number with three digits.
fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
