//! The status as text.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Local};
use pmc_monitor::ending::Ending;
use pmc_monitor::events::{Micros, SECOND};
use pmc_monitor::history::{History, Phase, State, Try, seconds};
use pmc_monitor::progress::{Estimate, Progress};

use crate::table::{Align, Table, thousands};
use crate::text;

/// Width of the bar.
const BAR: usize = 40;
/// A log that says nothing for so long, with tasks running, is worth a word.
const SILENT: f64 = 600.0;

/// What is shown besides the progress.
pub struct Shown<'a> {
    /// The directory as the user named it.
    pub dir: &'a Path,
    /// Tasks to list.
    pub lines: usize,
    /// The time.
    pub now: Micros,
    /// Whether to say what other commands tell.
    pub hints: bool,
}

/// All that there is to tell.
pub fn render(history: &History, progress: &Progress, shown: &Shown<'_>) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} {}", history.dir.label, verdict(progress));
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
    failed(&mut out, history, progress, shown);
    if shown.hints {
        hints(&mut out, progress, shown);
    }
    out
}

/// Progress in one line, for logs.
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
    if let Some(estimate) = &progress.estimate {
        let _ = write!(line, ", end in about {}", span(estimate.seconds));
    }
    line
}

/// A try that did not succeed, in one line.
pub fn failure(history: &History, one: &Try) -> String {
    let ending = if one.lost {
        "its run ended before it did".to_owned()
    } else {
        Ending::from_wait_status(one.status).to_string()
    };
    let mut line = format!("failed: {} ({ending})", history.plan.text_name(one.task));
    if let Some(host) = history.hosts.name(one.host) {
        let _ = write!(line, " on {host}");
    }
    if matches!(history.state(one.task), State::Ready | State::Running) {
        line.push_str(", will be tried again");
    }
    line
}

fn word(progress: &Progress) -> &'static str {
    let done = progress.all.get(State::Done) == progress.all.total();
    match progress.phase {
        Phase::Running => "runs",
        _ if done && progress.all.total() > 0 => "succeeded",
        Phase::NotStarted => "has not started",
        Phase::Ended(_) => "ended",
        Phase::Cut if progress.missing_dag.is_some() => "goes on or was cut off",
        Phase::Cut => "was cut off",
    }
}

fn verdict(progress: &Progress) -> String {
    let mut text = word(progress).to_owned();
    // A log that counts seconds only.
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
            if !text.starts_with("succeeded") {
                text.push_str(" with tasks that are not done");
            }
        }
        Phase::Cut => {
            let _ = match &progress.missing_dag {
                Some(dag) => write!(
                    text,
                    " after {time}: its log has no end, and {}, whose lock would tell, is missing",
                    dag.display()
                ),
                None => write!(text, " after {time}: the executor is gone, its log has no end"),
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
    let part = |state| progress.all.get(state) * BAR / total;
    let (done, failed) = (part(State::Done), part(State::Failed));
    let running = part(State::Running).min(BAR - done - failed);
    let rest = BAR - done - failed - running;
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
            "  rate     {} tasks a minute in the last {} ({} in the whole run), {:.1} running at a time",
            figure(rate.per_minute),
            span(rate.window_seconds),
            figure(rate.per_minute_of_run),
            rate.parallel
        );
    }
    match &progress.estimate {
        Some(estimate) => end(out, estimate, shown.now),
        None if progress.phase == Phase::Running => {
            out.push_str("  end      not known before the first tasks have succeeded\n");
        }
        None => {}
    }
    if progress.phase == Phase::Running
        && let Some(silent) = progress.silent_seconds.filter(|silent| *silent > SILENT)
    {
        let _ = writeln!(out, "  log      nothing new for {}", span(silent));
    }
    if progress.blocked > 0 {
        let _ = writeln!(
            out,
            "  blocked  {} that {} for failed ones",
            text::count(progress.blocked, "task"),
            if progress.blocked == 1 { "waits" } else { "wait" }
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
        let _ = write!(out, ", not before {}", clock(now, estimate.at_least));
    }
    let left = text::count(estimate.tasks, "task");
    if estimate.by_chain {
        let _ = write!(
            out,
            "\n           {left} left; the longest chain of them takes that long, more hosts would not help"
        );
    } else {
        let _ = write!(
            out,
            "\n           {left} left with {} of work, by the mean time of each transformation",
            span(estimate.work)
        );
    }
    if estimate.guessed > 0 {
        let _ = write!(
            out,
            "; {} of them of kinds that have not succeeded yet",
            thousands(estimate.guessed)
        );
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
    for one in progress.running.iter().take(shown.lines) {
        table.row([
            history.plan.text_name(one.task),
            history.plan.class(one.task).transformation.clone(),
            one.host.clone().unwrap_or_else(|| "?".to_owned()),
            span(one.seconds),
        ]);
    }
    let _ = write!(out, "\n{}", table.render("  "));
    more(out, progress.running.len(), shown.lines);
}

fn failed(out: &mut String, history: &History, progress: &Progress, shown: &Shown<'_>) {
    if progress.failed.is_empty() || shown.lines == 0 {
        return;
    }
    let mut table = Table::new(&[
        ("failed", Align::Left),
        ("how", Align::Left),
        ("tries", Align::Right),
        ("host", Align::Left),
        ("ago", Align::Right),
    ]);
    for one in progress.failed.iter().take(shown.lines) {
        table.row([
            history.plan.text_name(one.task),
            one.ending.to_string(),
            one.tries.to_string(),
            one.host.clone().unwrap_or_else(|| "?".to_owned()),
            span(seconds(shown.now - one.time)),
        ]);
    }
    let _ = write!(out, "\n{}", table.render("  "));
    more(out, progress.failed.len(), shown.lines);
}

fn more(out: &mut String, all: usize, shown: usize) {
    if all > shown {
        let _ = writeln!(out, "  and {} more", thousands(all - shown));
    }
}

fn hints(out: &mut String, progress: &Progress, shown: &Shown<'_>) {
    let dir = text::shell_word(&shown.dir.display().to_string());
    let over = matches!(progress.phase, Phase::Ended(_) | Phase::Cut);
    let left = progress.all.get(State::Done) < progress.all.total();
    if !progress.failed.is_empty() {
        let _ = writeln!(out, "\n  why      pmc analyzer {dir}");
    }
    // Without a DAG there is nothing to go on with.
    if over && left && progress.missing_dag.is_none() {
        let first = if progress.failed.is_empty() { "\n" } else { "" };
        let _ = writeln!(out, "{first}  go on    pmc resume {dir}");
    }
}

/// A time of day, with the date if it is another day.
fn clock(now: Micros, in_seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "to the second is enough, and casts saturate"
    )]
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

/// Three digits.
fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
