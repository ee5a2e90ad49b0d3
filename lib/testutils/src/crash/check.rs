//! Checks a run that is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::Damage;
use super::place::Place;

/// Number of chains in the workflow.
pub(super) const CHAINS: usize = 4;

/// Files of a run directory, without the number of an attempt.
const FILES: &[&str] = &[
    "braindump.yml",
    "crash-0.cache",
    "crash-0.dag",
    "crash-0.dag.dagman.out",
    "crash-0.dag.end",
    "crash-0.dag.rescue",
    "crash-0.dag.resource",
    "crash-0.fingerprints",
    "crash-0.metrics",
    "crash-0.notify",
    "crash-0.pbs",
    "crash-0.replica.store",
    "crash-0.replicas.db",
    "crash-0.sbatch",
    "crash-0.stampede.db",
    "crash-0.static.bp",
    "jobstate.log",
    "monitord.done",
    "monitord.info",
    "monitord.jobstate.log",
    "monitord.started",
    "pegasus.1.properties",
    "register_local_1_0.in",
    "workflow.yml",
];

/// Checks the last run of the workflow.
pub(super) fn run(place: &mut Place, run: &Path) {
    let submit = run.join("submit");
    let tasks = tasks(place, &submit);
    outputs(place, run);
    rescue(place, &submit, &tasks);
    logs(place, &submit, &tasks);
    database(place, &submit, &tasks);
    catalog(place, &submit);
    files(place, run, &tasks);
}

/// Returns the names of the tasks.
fn tasks(place: &mut Place, submit: &Path) -> BTreeSet<String> {
    match pmc_dag::Dag::open(&submit.join("crash-0.dag")) {
        Ok(dag) => dag
            .ids()
            .map(|task| String::from_utf8_lossy(dag.name(task)).into_owned())
            .collect(),
        Err(error) => {
            place.find(Damage::Torn, format!("the DAG: {error}"));
            BTreeSet::new()
        }
    }
}

/// Checks the outputs of the workflow.
pub(super) fn outputs(place: &mut Place, run: &Path) {
    for n in 0..CHAINS {
        let expected = format!("input {n}\nA{n}\nB{n}\n");
        match fs::read_to_string(run.join(format!("output/out{n}"))) {
            Ok(text) if text == expected => {}
            Ok(text) => place.find(Damage::Torn, format!("out{n}: {text:?}")),
            Err(error) => place.find(Damage::Lost, format!("out{n}: {error}")),
        }
    }
}

/// Each task has to be there once.
fn expect_once<'a>(
    place: &mut Place,
    what: &str,
    expected: &BTreeSet<String>,
    found: impl IntoIterator<Item = &'a str>,
) {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for name in found {
        *counts.entry(name).or_default() += 1;
    }
    for name in expected {
        match counts.remove(name.as_str()) {
            None => place.find(Damage::Lost, format!("{what}: {name}")),
            Some(1) => {}
            Some(count) => place.find(Damage::Doubled, format!("{what}: {name}: {count} times")),
        }
    }
    for name in counts.keys() {
        place.find(Damage::Wrong, format!("{what}: {name:?}"));
    }
}

fn rescue(place: &mut Place, submit: &Path, tasks: &BTreeSet<String>) {
    let text = fs::read_to_string(submit.join("crash-0.dag.rescue")).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("DONE "));
    // A line that was cut off is written again. Both are there until the next start.
    let whole: Vec<&str> = names.filter(|name| tasks.contains(*name)).collect();
    expect_once(place, "rescue file", tasks, whole);
}

fn logs(place: &mut Place, submit: &Path, tasks: &BTreeSet<String>) {
    let text = fs::read_to_string(submit.join("jobstate.log")).unwrap_or_default();
    let ends = text.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let task = words.next()?;
        (words.next()? == "JOB_SUCCESS").then_some(task)
    });
    expect_once(place, "jobstate.log", tasks, ends);
    let text = fs::read_to_string(submit.join("crash-0.dag.dagman.out")).unwrap_or_default();
    let ends = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" Node ")?;
        let (task, rest) = rest.split_once(' ')?;
        rest.ends_with("completed successfully.").then_some(task)
    });
    expect_once(place, ".dagman.out", tasks, ends);
    let starts = text.matches("STARTING UP").count();
    let finishes = text.matches("EXITING WITH STATUS").count();
    if starts != finishes {
        place.find(
            Damage::Wrong,
            format!(".dagman.out: {starts} starts, {finishes} ends"),
        );
    }
}

/// Opens a database. `None` is a finding.
fn open(place: &mut Place, path: &Path) -> Option<Connection> {
    let opened = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let checked = opened.and_then(|database| {
        let sound: String = database.query_row("PRAGMA integrity_check", (), |row| row.get(0))?;
        Ok((database, sound))
    });
    match checked {
        Ok((database, sound)) if sound == "ok" => Some(database),
        Ok((_, sound)) => {
            place.find(Damage::Torn, format!("{}: {sound}", path.display()));
            None
        }
        Err(error) => {
            place.find(Damage::Lost, format!("{}: {error}", path.display()));
            None
        }
    }
}

/// Returns the first column of all rows as text.
fn column(place: &mut Place, database: &Connection, sql: &str) -> Vec<String> {
    let read = || {
        let mut statement = database.prepare(sql)?;
        let rows = statement.query_map((), |row| row.get::<_, rusqlite::types::Value>(0))?;
        rows.map(|value| Ok(text_of(&value?)))
            .collect::<rusqlite::Result<Vec<_>>>()
    };
    read().unwrap_or_else(|error| {
        place.find(Damage::Wrong, format!("{sql}: {error}"));
        Vec::new()
    })
}

fn text_of(value: &rusqlite::types::Value) -> String {
    use rusqlite::types::Value;
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Text(text) => text.clone(),
        other => format!("{other:?}"),
    }
}

/// Checks the rows of the STAMPEDE database of a complete run.
pub(super) fn database(place: &mut Place, submit: &Path, tasks: &BTreeSet<String>) {
    let Some(database) = open(place, &submit.join("crash-0.stampede.db")) else {
        return;
    };
    let mut once = |what: &str, sql: &str, expected: &BTreeSet<String>| {
        let found = column(place, &database, sql);
        expect_once(place, what, expected, found.iter().map(String::as_str));
    };
    once("job", "SELECT exec_job_id FROM job", tasks);
    once(
        "job_instance",
        "SELECT exec_job_id FROM job_instance JOIN job USING (job_id) WHERE exitcode = 0",
        tasks,
    );
    once(
        "jobstate",
        "SELECT exec_job_id FROM jobstate JOIN job_instance USING (job_instance_id) JOIN job USING (job_id)
         WHERE state = 'JOB_SUCCESS'",
        tasks,
    );
    let jobs: BTreeSet<String> = (0..CHAINS)
        .flat_map(|n| [format!("A{n}"), format!("B{n}")])
        .collect();
    once("task", "SELECT abs_task_id FROM task", &jobs);
    once(
        "invocation",
        "SELECT i.abs_task_id FROM invocation i JOIN job_instance j USING (job_instance_id)
         WHERE j.exitcode = 0 AND i.exitcode = 0 AND i.abs_task_id IS NOT NULL",
        &jobs,
    );
    let states = column(
        place,
        &database,
        "SELECT state || ' ' || coalesce(status, '-') FROM workflowstate ORDER BY timestamp, restart_count",
    );
    let alternates = states.iter().enumerate().all(|(n, state)| {
        let word = if n % 2 == 0 {
            "WORKFLOW_STARTED"
        } else {
            "WORKFLOW_TERMINATED"
        };
        state.starts_with(word)
    });
    if !alternates || states.last().map(String::as_str) != Some("WORKFLOW_TERMINATED 0") {
        place.find(Damage::Wrong, format!("workflowstate: {states:?}"));
    }
}

/// Each output is registered once.
fn catalog(place: &mut Place, submit: &Path) {
    let Some(database) = open(place, &submit.join("crash-0.replicas.db")) else {
        return;
    };
    let found = column(
        place,
        &database,
        "SELECT lfn FROM rc_pfn JOIN rc_lfn USING (lfn_id)",
    );
    let expected = (0..CHAINS).map(|n| format!("out{n}")).collect();
    expect_once(
        place,
        "replica catalog",
        &expected,
        found.iter().map(String::as_str),
    );
}

/// Returns all files below a directory, relative to it.
pub(super) fn files_below(directory: &Path) -> Vec<String> {
    let mut found = entries_below(directory);
    found.retain(|path| !directory.join(path).is_dir() || directory.join(path).is_symlink());
    found
}

/// Returns all files and directories below a directory, relative to it.
pub(super) fn entries_below(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in next.read_dir().into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(entry.path());
            }
            if let Ok(path) = entry.path().strip_prefix(directory) {
                found.push(path.display().to_string());
            }
        }
    }
    found.sort();
    found
}

fn is_chain(number: &str) -> bool {
    number.parse::<usize>().is_ok_and(|number| number < CHAINS)
}

/// Checks that no file is left over.
fn files(place: &mut Place, run: &Path, tasks: &BTreeSet<String>) {
    for file in files_below(run) {
        let is_known = match file.split_once('/') {
            Some(("output", name)) => name.strip_prefix("out").is_some_and(is_chain),
            // The work directory stays with --cleanup none.
            Some(("scratch", name)) => {
                let number = ["in", "mid", "out"]
                    .iter()
                    .find_map(|prefix| name.strip_prefix(prefix));
                number.is_some_and(is_chain)
            }
            Some(("submit", name)) => match name.strip_prefix("00/00/") {
                Some(name) => name.split_once('.').is_some_and(|(task, suffix)| {
                    tasks.contains(task) && matches!(suffix, "in" | "in.lof" | "out.lof" | "meta")
                }),
                None => {
                    // SQLite keeps the file of its journal and empties it.
                    let is_empty = || fs::metadata(run.join(&file)).is_ok_and(|data| data.len() == 0);
                    FILES.contains(&name)
                        || is_output(name, tasks)
                        || (name == "crash-0.replicas.db-journal" && is_empty())
                }
            },
            _ => false,
        };
        if !is_known {
            place.find(Damage::LeftOver, format!("{}/{file}", run.display()));
        }
    }
}

/// Returns whether a file is that of a stream of an attempt: `TASK.out.000`.
fn is_output(name: &str, tasks: &BTreeSet<String>) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    matches!(parts[..], [task, "out" | "err", number] if tasks.contains(task) && number.parse::<u32>().is_ok())
}

/// Checks the database of a run that was loaded after its end.
pub(super) fn loaded(place: &mut Place, submit: &Path, replayed: bool) {
    let tasks = tasks(place, submit);
    database(place, submit, &tasks);
    for file in files_below(submit) {
        let is_known = FILES.contains(&file.as_str())
            || file.contains('/')
            || is_output(&file, &tasks)
            // A replay keeps the results of the one before.
            || (replayed && file.starts_with("monitord.jobstate.log."))
            || (replayed && file.starts_with("crash-0.stampede.db.0"));
        if !is_known {
            place.find(Damage::LeftOver, format!("{}/{file}", submit.display()));
        }
    }
}

/// Beside the runs there is nothing.
pub(super) fn runs(place: &mut Place, directory: &Path) {
    for entry in directory.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_run = name.strip_prefix("run").is_some_and(|n| n.parse::<u32>().is_ok());
        // A link that was never renamed is removed by the next new run, when it is a minute old.
        let is_link = name == "latest" || name.starts_with(".latest.");
        if !is_run && !is_link {
            place.find(Damage::LeftOver, entry.path().display().to_string());
        } else if is_run && !entry.path().join("submit/crash-0.dag").exists() {
            place.find(
                Damage::LeftOver,
                format!("half a run: {}", entry.path().display()),
            );
        }
    }
}
