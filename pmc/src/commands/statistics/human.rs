//! Statistics as text.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use chrono::DateTime;
use pmc_control::memory;
use pmc_monitor::statistics::{Counts, JobAttempt, OverTime, Spread, Step};

use super::table::number;
use super::{Figures, Problem, accounting, checkpoints, data};
use crate::cli::Section;
use crate::table::{Align, Table, thousands};
use crate::text;

use Align::{Left, Right};

/// Writes a section.
pub fn write(figures: &Figures<'_>, section: Section, out: &mut impl Write) -> Result<(), Problem> {
    let text = match section {
        Section::Summary | Section::All => summary(figures),
        Section::Workflow => workflow(figures),
        Section::Breakdown => breakdown(figures),
        Section::Time => time(figures),
        Section::Integrity => integrity(figures),
        Section::Hosts => hosts(figures),
        Section::Checkpoints => checkpoints::human(&figures.checkpoints),
        Section::Jobs => return jobs(figures, out),
        Section::Data => return data::human(figures, out),
        Section::Accounting => accounting::human(&figures.costs),
    };
    out.write_all(text.as_bytes()).map_err(Problem::Write)
}

fn figure(count: u64) -> String {
    thousands(usize::try_from(count).unwrap_or(usize::MAX))
}

fn counts(rows: &[(&str, Counts)]) -> String {
    let mut table = Table::new(&[
        ("", Left),
        ("succeeded", Right),
        ("failed", Right),
        ("incomplete", Right),
        ("total", Right),
        ("retries", Right),
        ("total+retries", Right),
    ]);
    for (name, counts) in rows {
        table.row(std::iter::once((*name).to_owned()).chain(counts.figures().map(figure)));
    }
    table.render("  ")
}

fn summary(figures: &Figures<'_>) -> String {
    let statistics = &figures.statistics;
    let mut out = format!("Summary of {}\n\n", statistics.label);
    out.push_str(&counts(&[
        ("tasks", statistics.tasks),
        ("jobs", statistics.jobs),
        ("sub-workflows", statistics.sub_workflows),
    ]));
    out.push('\n');
    let mut table = Table::new(&[("", Left), ("time", Right), ("seconds", Right)]);
    let mut line = |name: &str, value: Option<f64>| {
        let words = value.map_or("-".to_owned(), span);
        let seconds = value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        table.row([name.to_owned(), words, seconds]);
    };
    line("wall time of the workflow", statistics.wall_seconds);
    line("all jobs, from their records", Some(statistics.job_seconds));
    line(
        "all jobs, as seen by the executor",
        Some(statistics.submit_side_seconds),
    );
    line("failed jobs, from their records", Some(statistics.badput_seconds));
    line(
        "failed jobs, as seen by the executor",
        Some(statistics.submit_side_badput_seconds),
    );
    out.push_str(table.render("  ").split_once('\n').map_or("", |(_, rows)| rows));
    if let Some(wall) = statistics.wall_seconds.filter(|wall| *wall >= 1.0) {
        let _ = writeln!(
            out,
            "\n  {:.1} jobs running on average",
            statistics.job_seconds / wall
        );
    }
    if statistics.lost_attempts > 0 {
        let lost = usize::try_from(statistics.lost_attempts).unwrap_or(usize::MAX);
        let _ = writeln!(
            out,
            "  {} lost with workers or the batch job, which is no failure",
            text::count(lost, "attempt")
        );
    }
    if statistics.integrity_failures > 0 {
        let _ = writeln!(
            out,
            "  {} failed with a wrong checksum",
            text::count(
                usize::try_from(statistics.integrity_failures).unwrap_or(usize::MAX),
                "job"
            )
        );
    }
    out
}

fn workflow(figures: &Figures<'_>) -> String {
    let statistics = &figures.statistics;
    let mut out = String::new();
    for level in &statistics.workflows {
        let _ = write!(
            out,
            "Workflow {} ({}), restarts: {}\n\n{}\n",
            level.uuid,
            level.label,
            level.restarts,
            counts(&[
                ("tasks", level.tasks),
                ("jobs", level.jobs),
                ("sub-workflows", level.sub_workflows),
            ])
        );
    }
    if statistics.workflows.len() > 1 {
        let _ = write!(
            out,
            "All workflows, restarts: {}\n\n{}\n",
            statistics.restarts,
            counts(&[
                ("tasks", statistics.tasks),
                ("jobs", statistics.jobs),
                ("sub-workflows", statistics.sub_workflows),
            ])
        );
    }
    out.pop();
    out
}

fn breakdown(figures: &Figures<'_>) -> String {
    // Fits a terminal; CSV and JSON have more columns.
    let mut table = Table::new(&[
        ("", Left),
        ("count", Right),
        ("min s", Right),
        ("mean s", Right),
        ("max s", Right),
        ("total", Right),
        ("max memory", Right),
        ("CPU", Right),
    ]);
    for ((name, well), sums) in &figures.statistics.breakdown {
        let known = |spread: &Spread, text: String| {
            if spread.count == 0 { "-".to_owned() } else { text }
        };
        table.row([
            format!("{name}{}", if *well { "" } else { ", failed" }),
            figure(sums.seconds.count),
            format!("{:.3}", sums.seconds.min),
            format!("{:.3}", sums.seconds.mean()),
            format!("{:.3}", sums.seconds.max),
            span(sums.seconds.total),
            known(&sums.memory_mb, memory(sums.memory_mb.max.ceil() as u64)),
            known(&sums.cpu, format!("{:.0} %", sums.cpu.mean() * 100.0)),
        ]);
    }
    format!("Invocations by transformation\n\n{}", table.render("  "))
}

/// Returns the name of a time unit.
pub fn unit(step: Step) -> &'static str {
    match step {
        Step::Day => "day",
        Step::Hour => "hour",
    }
}

/// Formats a day or an hour, UTC.
pub fn date(step: Step, piece: i64) -> String {
    let time = DateTime::from_timestamp(piece.saturating_mul(step.seconds()), 0).unwrap_or_default();
    match step {
        Step::Day => time.format("%Y-%m-%d").to_string(),
        Step::Hour => time.format("%Y-%m-%d : %H").to_string(),
    }
}

fn time(figures: &Figures<'_>) -> String {
    let mut out = String::new();
    let add = |out: &mut String, what: &str, over_time: &OverTime| {
        let mut table = Table::new(&[("", Left), ("host", Left), ("count", Right), ("time", Right)]);
        for (piece, (sum, hosts)) in over_time {
            let date = date(figures.step, *piece);
            table.row([date, "all".to_owned(), figure(sum.count), span(sum.seconds)]);
            for (host, sum) in hosts {
                table.row([String::new(), host.clone(), figure(sum.count), span(sum.seconds)]);
            }
        }
        let _ = write!(
            out,
            "{what} by {}, UTC\n\n{}",
            unit(figures.step),
            table.render("  ")
        );
    };
    add(&mut out, "Attempts of jobs", &figures.statistics.jobs_over_time);
    out.push('\n');
    add(&mut out, "Invocations", &figures.statistics.invocations_over_time);
    out
}

fn integrity(figures: &Figures<'_>) -> String {
    let mut table = Table::new(&[("", Left), ("files", Left), ("count", Right), ("time", Right)]);
    for ((kind, file), sum) in &figures.statistics.integrity {
        table.row([kind.clone(), file.clone(), figure(sum.count), span(sum.seconds)]);
    }
    format!("Checksums\n\n{}", table.render("  "))
}

fn hosts(figures: &Figures<'_>) -> String {
    let hosts = &figures.statistics.hosts;
    if hosts.is_empty() {
        return "Hosts\n\n  There is no log of free resources (.resource) beside the DAG.\n".to_owned();
    }
    let mut table = Table::new(&[
        ("", Left),
        ("slots", Right),
        ("in use", Right),
        ("CPUs", Right),
        ("in use", Right),
        ("memory", Right),
        ("requested", Right),
        ("peak", Right),
        ("tasks", Right),
        ("time", Right),
    ]);
    let percent = |used: f64, there: f64| match there > 0.0 {
        true => format!("{:.0} %", used * 100.0 / there),
        false => "-".to_owned(),
    };
    for host in hosts {
        table.row([
            host.name.clone(),
            host.capacity.slots.to_string(),
            percent(host.slot_seconds, host.slot_seconds_there),
            host.capacity.cpus.to_string(),
            percent(host.cpu_seconds, host.cpu_seconds_there),
            memory(host.capacity.memory_mb),
            percent(host.memory_seconds, host.memory_seconds_there),
            memory(host.peak_memory_mb),
            figure(host.started),
            span(host.seconds),
        ]);
    }
    if hosts.len() > 1 {
        let sum = |part: fn(&pmc_monitor::resources::Host) -> f64| hosts.iter().map(part).sum::<f64>();
        table.row([
            "all".to_owned(),
            String::new(),
            percent(sum(|host| host.slot_seconds), sum(|host| host.slot_seconds_there)),
            String::new(),
            percent(sum(|host| host.cpu_seconds), sum(|host| host.cpu_seconds_there)),
            String::new(),
            percent(
                sum(|host| host.memory_seconds),
                sum(|host| host.memory_seconds_there),
            ),
            String::new(),
            figure(hosts.iter().map(|host| host.started).sum()),
            String::new(),
        ]);
    }
    format!("Use of hosts\n\n{}", table.render("  "))
}

/// Returns the cells of a row: job, attempt, site, kickstart, multiplier, their product, CPU time, post
/// script, wait, resource delay, runtime, cluster, its delay, exit code, host.
pub fn job_cells(attempt: &JobAttempt) -> [String; 15] {
    let multiplier = attempt.multiplier as f64;
    let optional = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let delay = attempt
        .cluster
        .zip(attempt.kickstart)
        .map(|(cluster, kickstart)| cluster - kickstart);
    [
        attempt.job.clone(),
        attempt.number.to_string(),
        attempt.site.clone().unwrap_or_else(|| "-".to_owned()),
        optional(attempt.kickstart),
        attempt.multiplier.to_string(),
        optional(attempt.kickstart.map(|seconds| seconds * multiplier)),
        optional(attempt.cpu_seconds),
        "-".to_owned(),
        optional(attempt.queue_seconds),
        "-".to_owned(),
        optional(attempt.runtime),
        optional(attempt.cluster),
        optional(delay),
        attempt.exit.map_or("-".to_owned(), |exit| exit.to_string()),
        attempt.host.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

fn jobs(figures: &Figures<'_>, out: &mut impl Write) -> Result<(), Problem> {
    let head = format!(
        "Attempts of jobs\n\n  {:<40} {:>3} {:<12} {:>10} {:>10} {:>8} {:>9} {:>5} host\n",
        "", "try", "site", "s", "CPU s", "queued", "executor", "exit"
    );
    out.write_all(head.as_bytes()).map_err(Problem::Write)?;
    let mut line = String::new();
    let done = figures.statistics.attempts(figures.database, |attempt| {
        job_line(&mut line, attempt);
        out.write_all(line.as_bytes())
    });
    done.map_err(Problem::Read)?.map_err(Problem::Write)
}

/// Writes a line of the table. `format!` is too slow for millions of lines.
fn job_line(line: &mut String, attempt: &JobAttempt) {
    line.clear();
    line.push_str("  ");
    left(line, &attempt.job, 40);
    right(line, 3, |line| {
        text::push_digits(line, u64::from(attempt.number), 1)
    });
    line.push(' ');
    left(line, attempt.site.as_deref().unwrap_or("-"), 12);
    for (value, width) in [
        (attempt.kickstart, 10),
        (attempt.cpu_seconds, 10),
        (attempt.queue_seconds, 8),
        (attempt.runtime, 9),
    ] {
        right(line, width, |line| match value {
            Some(value) => text::push_thousandths(line, value),
            None => line.push('-'),
        });
        line.push(' ');
    }
    right(line, 5, |line| match attempt.exit {
        Some(exit) => {
            if exit < 0 {
                line.push('-');
            }
            text::push_digits(line, exit.unsigned_abs(), 1);
        }
        None => line.push('-'),
    });
    line.push(' ');
    line.push_str(attempt.host.as_deref().unwrap_or("-"));
    line.push('\n');
}

const BLANKS: &str = "                                        ";

/// Writes a text, left-aligned, and a blank.
fn left(line: &mut String, text: &str, width: usize) {
    line.push_str(text);
    line.push_str(&BLANKS[..width.saturating_sub(text.chars().count()).min(BLANKS.len())]);
    line.push(' ');
}

/// Writes a number, right-aligned.
fn right(line: &mut String, width: usize, write: impl FnOnce(&mut String)) {
    let start = line.len();
    write(line);
    let missing = width.saturating_sub(line.len() - start).min(BLANKS.len());
    line.insert_str(start, &BLANKS[..missing]);
}

fn span(seconds: f64) -> String {
    text::duration(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_attempts_equal_those_of_format() {
        let full = JobAttempt {
            job: "müller_ID1".to_owned(),
            number: 12,
            site: Some("hpc".to_owned()),
            kickstart: Some(1.5),
            multiplier: 1,
            cpu_seconds: Some(0.0004),
            queue_seconds: Some(-3.0),
            runtime: Some(98_765.5),
            cluster: None,
            exit: Some(-128),
            host: Some("n1".to_owned()),
        };
        let long = "x".repeat(50);
        let bare = JobAttempt {
            job: long.clone(),
            site: Some(long),
            number: 12_345,
            ..JobAttempt::default()
        };
        for attempt in [full, bare, JobAttempt::default()] {
            let optional = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
            let expected = format!(
                "  {:<40} {:>3} {:<12} {:>10} {:>10} {:>8} {:>9} {:>5} {}\n",
                attempt.job,
                attempt.number,
                attempt.site.as_deref().unwrap_or("-"),
                optional(attempt.kickstart),
                optional(attempt.cpu_seconds),
                optional(attempt.queue_seconds),
                optional(attempt.runtime),
                attempt.exit.map_or("-".to_owned(), |exit| exit.to_string()),
                attempt.host.as_deref().unwrap_or("-"),
            );
            let mut line = String::from("an old line");
            job_line(&mut line, &attempt);
            assert_eq!(line, expected);
        }
    }
}
