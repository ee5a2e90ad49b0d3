//! Statistics as CSV, with the columns of pegasus-statistics 5.1, and a table of hosts.

use std::io::Write;

use pmc_monitor::statistics::{Amount, Breakdown, Counts, OverTime, Spread};

use super::table::{line, number, quoted};
use super::{Figures, Problem, data, human};
use crate::cli::Section;

/// Writes a section.
pub fn write(figures: &Figures<'_>, section: Section, out: &mut impl Write) -> Result<(), Problem> {
    let mut rows = |rows: Vec<Vec<String>>| -> Result<(), Problem> {
        for row in rows {
            line(out, &row).map_err(Problem::Write)?;
        }
        Ok(())
    };
    match section {
        Section::Summary | Section::All => rows(summary(figures)),
        Section::Workflow => rows(workflow(figures)),
        Section::Breakdown => rows(breakdown(figures)),
        Section::Time => rows(time(figures)),
        Section::Integrity => rows(integrity(figures)),
        Section::Hosts => rows(hosts(figures)),
        Section::Jobs => jobs(figures, out),
        Section::Data => data::csv(figures, out),
    }
}

fn texts(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn counts(name: &str, counts: Counts) -> Vec<String> {
    std::iter::once(name.to_owned())
        .chain(counts.figures().map(|figure| figure.to_string()))
        .collect()
}

const COUNTS: [&str; 7] = [
    "Type",
    "Succeeded",
    "Failed",
    "Incomplete",
    "Total",
    "Retries",
    "Total+Retries",
];

fn summary(figures: &Figures<'_>) -> Vec<Vec<String>> {
    let statistics = &figures.statistics;
    let mut rows = vec![texts(&COUNTS)];
    rows.push(counts("Tasks", statistics.tasks));
    rows.push(counts("Jobs", statistics.jobs));
    rows.push(counts("Sub-Workflows", statistics.sub_workflows));
    rows.push(Vec::new());
    rows.push(texts(&["stat_type", "time_seconds"]));
    let wall = statistics.wall_seconds.map_or("-".to_owned(), number);
    for (name, value) in [
        ("workflow_wall_time", wall),
        (
            "workflow_cumulative_job_wall_time",
            number(statistics.job_seconds),
        ),
        (
            "cumulative_job_walltime_from_submit_side",
            number(statistics.submit_side_seconds),
        ),
        (
            "workflow_cumulative_badput_time",
            number(statistics.badput_seconds),
        ),
        (
            "cumulative_job_badput_walltime_from_submit_side",
            number(statistics.submit_side_badput_seconds),
        ),
    ] {
        rows.push(vec![name.to_owned(), value]);
    }
    rows
}

fn workflow(figures: &Figures<'_>) -> Vec<Vec<String>> {
    let statistics = &figures.statistics;
    let mut head = texts(&["Workflow_Id", "Dax_Label"]);
    head.extend(texts(&COUNTS));
    head.push("WF_Retries".to_owned());
    let mut rows = vec![head];
    for level in &statistics.workflows {
        for (name, which) in [
            ("Tasks", level.tasks),
            ("Jobs", level.jobs),
            ("Sub-Workflows", level.sub_workflows),
        ] {
            let mut row = vec![level.uuid.clone(), level.label.clone()];
            row.extend(counts(name, which));
            row.push(level.restarts.to_string());
            rows.push(row);
        }
        if statistics.workflows.len() > 1 {
            rows.push(Vec::new());
        }
    }
    if statistics.workflows.len() > 1 {
        for (name, which) in [
            ("Tasks", statistics.tasks),
            ("Jobs", statistics.jobs),
            ("Sub-Workflows", statistics.sub_workflows),
        ] {
            let mut row = vec!["ALL".to_owned(), String::new()];
            row.extend(counts(name, which));
            row.push(statistics.restarts.to_string());
            rows.push(row);
        }
    }
    rows
}

fn breakdown(figures: &Figures<'_>) -> Vec<Vec<String>> {
    let statistics = &figures.statistics;
    let mut rows = vec![texts(&[
        "Workflow_Id",
        "Dax_Label",
        "Transformation",
        "Type",
        "Count",
        "Min (runtime)",
        "Max (runtime)",
        "Mean (runtime)",
        "Total (runtime)",
        "Min (mem)",
        "Max (mem)",
        "Mean (mem)",
        "Min (avg. cpu)",
        "Max (avg. cpu)",
        "Mean (avg. cpu)",
    ])];
    let spread = |spread: &Spread, percent: bool| -> [String; 3] {
        [spread.min, spread.max, spread.mean()].map(|value| match (spread.count, percent) {
            (0, _) => "-".to_owned(),
            (_, true) => format!("{:.2}%", value * 100.0),
            (_, false) => number(value),
        })
    };
    for (
        (name, well),
        Breakdown {
            seconds,
            memory_mb,
            cpu,
        },
    ) in &statistics.breakdown
    {
        let mut row = vec![
            statistics.uuid.clone(),
            statistics.label.clone(),
            name.clone(),
            if *well { "successful" } else { "failed" }.to_owned(),
            seconds.count.to_string(),
        ];
        row.extend(spread(seconds, false));
        row.push(number(seconds.total));
        row.extend(spread(memory_mb, false));
        row.extend(spread(cpu, true));
        rows.push(row);
    }
    rows
}

fn time(figures: &Figures<'_>) -> Vec<Vec<String>> {
    let statistics = &figures.statistics;
    let unit = human::unit(figures.step);
    let mut rows = vec![texts(&["stat_type", "date", "host", "count", "runtime (sec)"])];
    let mut add = |what: &str, over_time: &OverTime| {
        for (piece, (sum, _)) in over_time {
            rows.push(amount(
                &format!("{what}/{unit}"),
                &human::date(figures.step, *piece),
                "",
                sum,
            ));
        }
        for (piece, (_, hosts)) in over_time {
            for (host, sum) in hosts {
                let name = format!("{what}/host/{unit}");
                rows.push(amount(&name, &human::date(figures.step, *piece), host, sum));
            }
        }
    };
    add("jobs", &statistics.jobs_over_time);
    add("invocations", &statistics.invocations_over_time);
    rows
}

fn amount(name: &str, date: &str, host: &str, amount: &Amount) -> Vec<String> {
    vec![
        name.to_owned(),
        date.to_owned(),
        host.to_owned(),
        amount.count.to_string(),
        number(amount.seconds),
    ]
}

fn integrity(figures: &Figures<'_>) -> Vec<Vec<String>> {
    let statistics = &figures.statistics;
    let mut rows = vec![texts(&[
        "Workflow_Id",
        "Dax_Label",
        "Type",
        "File Type",
        "Count",
        "Total Duration",
    ])];
    for ((kind, file), sum) in &statistics.integrity {
        rows.push(vec![
            statistics.uuid.clone(),
            statistics.label.clone(),
            kind.clone(),
            file.clone(),
            sum.count.to_string(),
            number(sum.seconds),
        ]);
    }
    rows
}

fn hosts(figures: &Figures<'_>) -> Vec<Vec<String>> {
    let mut rows = vec![texts(&[
        "host",
        "slots",
        "cpus",
        "memory_mb",
        "seconds",
        "tasks",
        "slot_seconds",
        "cpu_seconds",
        "memory_mb_seconds",
        "slot_use",
        "cpu_use",
        "memory_use",
        "peak_slots",
        "peak_cpus",
        "peak_memory_mb",
    ])];
    for host in &figures.statistics.hosts {
        let share = |used: f64, there: f64| number(if there > 0.0 { used / there } else { 0.0 });
        rows.push(vec![
            host.name.clone(),
            host.capacity.slots.to_string(),
            host.capacity.cpus.to_string(),
            host.capacity.memory_mb.to_string(),
            number(host.seconds),
            host.started.to_string(),
            number(host.slot_seconds),
            number(host.cpu_seconds),
            number(host.memory_seconds),
            share(host.slot_seconds, host.slot_seconds_there),
            share(host.cpu_seconds, host.cpu_seconds_there),
            share(host.memory_seconds, host.memory_seconds_there),
            host.peak_slots.to_string(),
            host.peak_cpus.to_string(),
            host.peak_memory_mb.to_string(),
        ]);
    }
    rows
}

fn jobs(figures: &Figures<'_>, out: &mut impl Write) -> Result<(), Problem> {
    let head = [
        "Workflow_Id",
        "Dax_Label",
        "Job",
        "Try",
        "Site",
        "Kickstart",
        "Mult",
        "Kickstart-Mult",
        "CPU-Time",
        "Post",
        "CondorQTime",
        "Resource",
        "Runtime",
        "Seqexec",
        "Seqexec-Delay",
        "Exitcode",
        "Hostname",
    ];
    line(out, &head).map_err(Problem::Write)?;
    let statistics = &figures.statistics;
    let first = format!("{},{},", quoted(&statistics.uuid), quoted(&statistics.label));
    let done = statistics.attempts(figures.database, |attempt| {
        let cells = human::job_cells(attempt);
        out.write_all(first.as_bytes())?;
        line(out, &cells)
    });
    done.map_err(Problem::Read)?.map_err(Problem::Write)
}
