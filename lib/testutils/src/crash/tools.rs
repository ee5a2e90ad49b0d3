//! Rounds with one program: it is killed a few times, then runs to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use super::Damage;
use super::check;
use super::place::{Place, Victim};
use super::run::write_workflow;

/// Maximum kills of a program.
const MAX_KILLS: u64 = 4;

/// The planner is killed while it makes the first, second … plan.
pub(super) fn plan(place: &mut Place) {
    write_workflow(place);
    let arguments = ["-q", "--dir", "runs", "--relative-dir", "crash", "workflow.yml"];
    let submit = "runs/crash";
    let dag = format!("{submit}/crash-0.dag");
    let mut kills = 0;
    while kills < 3 * MAX_KILLS {
        kills += 1;
        let mut command = place.command("pmc-plan", arguments);
        if place.run_and_kill(&mut command, 60, Victim::First) {
            break;
        }
        // A plan is there as a whole or not at all.
        if !check::files_below(&place.path(submit)).is_empty() {
            if let Err(error) = pmc_dag::Dag::open(&place.path(&dag)) {
                place.find(Damage::Torn, format!("the plan: {error}"));
            }
            break;
        }
    }
    if !place.path(&dag).exists() {
        let mut command = place.command("pmc-plan", arguments);
        if !place.run(&mut command) {
            place.find(Damage::Lost, "the plan cannot be made");
            return;
        }
    }
    // The next plan beside it sweeps, once the rest is old enough.
    place.age(&place.path("runs"));
    let other = ["-q", "--dir", "runs", "--relative-dir", "other", "workflow.yml"];
    let mut command = place.command("pmc-plan", other);
    if !place.run(&mut command) {
        place.find(Damage::Wrong, "the next plan fails");
    }
    for entry in place.path("runs").read_dir().into_iter().flatten().flatten() {
        if !matches!(entry.file_name().to_str(), Some("crash" | "other")) {
            place.find(Damage::LeftOver, entry.path().display().to_string());
        }
    }
    if pmc_dag::Dag::open(&place.path(&dag)).is_err() {
        place.find(Damage::Torn, "the DAG");
    }
}

/// Tasks of a round with forwarded data.
const TASKS: u64 = 24;

const FORWARDING_TASK: &str = r#"#!/bin/sh
set -e
name=$1 lines=$2
n=0 rest=$(printf '%2000s' end)
{ while [ $n -lt $lines ]; do echo "$name $n $rest"; n=$((n + 1)); done; echo "$name end"; } >/proc/self/fd/$PIPE
printf '%s begin\n%s end\n' $name $name >part.$name
sleep 0.0$3
"#;

/// The executor is killed while tasks forward data to files of the master.
pub(super) fn forward(place: &mut Place) {
    place.write("task.sh", FORWARDING_TASK);
    let mut dag = String::new();
    let mut expected: BTreeMap<&str, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for n in 0..TASKS {
        let name = format!("t{n:02}");
        let lines = if place.random.one_in(4) {
            600
        } else {
            place.random.below(30)
        };
        let pause = place.random.below(4);
        dag += &format!(
            "TASK {name} -t 3 -f PIPE=pipe.txt -F part.{name}=file.txt /bin/sh task.sh {name} {lines} {pause}\n"
        );
        if n > 2 && place.random.one_in(2) {
            dag += &format!("EDGE t{:02} {name}\n", place.random.below(n));
        }
        let rest = format!("{:>2000}", "end");
        let pipe = (0..lines)
            .map(|n| format!("{name} {n} {rest}"))
            .chain([format!("{name} end")]);
        expected
            .entry("pipe.txt")
            .or_default()
            .insert(name.clone(), pipe.collect());
        let file = vec![format!("{name} begin"), format!("{name} end")];
        expected.entry("file.txt").or_default().insert(name, file);
    }
    place.write("x.dag", &dag);
    let arguments = [
        "--workers",
        "3",
        "--jobstate-log",
        "--monitord-hack",
        "--sync-interval",
        "50",
        "x.dag",
    ];
    let mut done = BTreeSet::new();
    for _ in 0..=place.random.below(MAX_KILLS) {
        let victim = place.random.pick(&[Victim::First, Victim::Below, Victim::All]);
        let mut command = place.command("pegasus-mpi-cluster", arguments);
        let ended = place.run_and_kill(&mut command, 700, victim);
        let now = done_tasks(place);
        for name in done.difference(&now) {
            place.find(Damage::Lost, format!("{name} is no longer done"));
        }
        done = now;
        check_forwarded(place, &expected, &done);
        if ended {
            break;
        }
    }
    let mut command = place.command("pegasus-mpi-cluster", arguments);
    if !place.run(&mut command) {
        place.find(Damage::Lost, "the DAG cannot be completed");
    }
    let done = done_tasks(place);
    if done.len() as u64 != TASKS {
        place.find(Damage::Lost, format!("only {} tasks are done", done.len()));
    }
    check_forwarded(place, &expected, &done);
    if place.path("x.dag.rescue.journal").exists() {
        place.find(Damage::LeftOver, "the journal");
    }
}

fn done_tasks(place: &Place) -> BTreeSet<String> {
    let text = place.read("x.dag.rescue");
    let names = text.lines().filter_map(|line| line.strip_prefix("DONE "));
    // A name that was not written completely does not count.
    names.filter(|name| name.len() == 3).map(str::to_owned).collect()
}

/// Data of a task that is done is there once, in one piece. When all are done, nothing else is there.
fn check_forwarded(
    place: &mut Place,
    expected: &BTreeMap<&str, BTreeMap<String, Vec<String>>>,
    done: &BTreeSet<String>,
) {
    for (target, records) in expected {
        let text = place.read(target);
        let lines: Vec<&str> = text.lines().collect();
        for (name, record) in records.iter().filter(|(name, _)| done.contains(*name)) {
            let Some(first) = lines.iter().position(|line| *line == record[0]) else {
                place.find(Damage::Lost, format!("{target}: data of {name}"));
                continue;
            };
            let found = lines.get(first..first + record.len());
            if found.is_none_or(|found| found != record.as_slice()) {
                place.find(Damage::Torn, format!("{target}: data of {name}"));
            }
            if lines.iter().filter(|line| **line == record[0]).count() > 1 {
                place.find(Damage::Doubled, format!("{target}: data of {name}"));
            }
        }
        let all: usize = records.values().map(Vec::len).sum();
        if done.len() == records.len() && lines.len() != all {
            place.find(
                Damage::Wrong,
                format!("{target}: {} lines instead of {all}", lines.len()),
            );
        }
    }
}

/// Transfers are killed: a destination is there as a whole or not at all.
pub(super) fn transfer(place: &mut Place) {
    const FILES: usize = 6;
    fs::create_dir(place.path("from")).expect("a directory");
    let mut list = Vec::new();
    let mut contents = Vec::new();
    for n in 0..FILES {
        let size = 1 + place.random.index(6 << 20);
        let content: Vec<u8> = (0..size).map(|at| (at * (n + 3) / 7) as u8).collect();
        fs::write(place.path(&format!("from/f{n}")), &content).expect("a file");
        contents.push(content);
        let url = |folder: &str| format!("file://{}", place.path(&format!("{folder}/f{n}")).display());
        list.push(serde_json::json!({
            "type": "transfer", "id": n + 1, "lfn": format!("f{n}"),
            "src_urls": [{"site_label": "local", "url": url("from")}],
            "dest_urls": [{"site_label": "local", "url": url("to/deep")}],
        }));
    }
    place.write("list", &serde_json::Value::from(list).to_string());
    // Hard links and clones would take no time.
    let arguments = ["--file", "list", "--threads", "2"];
    for _ in 0..=place.random.below(MAX_KILLS) {
        let mut command = place.command("pegasus-transfer", arguments);
        let ended = place.run_and_kill(&mut command, 60, Victim::First);
        check_transferred(place, &contents, false);
        if ended {
            break;
        }
    }
    let mut command = place.command("pegasus-transfer", arguments);
    if !place.run(&mut command) {
        place.find(Damage::Lost, "the transfer fails");
    }
    check_transferred(place, &contents, true);
    let left = check::files_below(&place.path("to"));
    for file in left.iter().filter(|file| !file.starts_with("deep/f")) {
        place.find(Damage::LeftOver, format!("to/{file}"));
    }
}

fn check_transferred(place: &mut Place, contents: &[Vec<u8>], is_complete: bool) {
    for (n, content) in contents.iter().enumerate() {
        match fs::read(place.path(&format!("to/deep/f{n}"))) {
            Ok(found) if found == *content => {}
            Ok(found) => {
                let lengths = format!("{} of {} bytes", found.len(), content.len());
                place.find(Damage::Torn, format!("f{n}: {lengths}"));
            }
            Err(_) if !is_complete => {}
            Err(error) => place.find(Damage::Lost, format!("f{n}: {error}")),
        }
    }
}

/// Registrations are killed.
pub(super) fn register(place: &mut Place) {
    const ENTRIES: usize = 3000;
    fs::create_dir(place.path("catalog")).expect("a directory");
    let in_file = place.random.one_in(2);
    let properties: Vec<String> = if in_file {
        let file = place.path("catalog/replicas.txt");
        fs::write(&file, "old file:///old site=\"local\"\n").expect("a file");
        vec![
            "-Dpegasus.catalog.replica=File".into(),
            format!("-Dpegasus.catalog.replica.file={}", file.display()),
        ]
    } else {
        let file = place.path("catalog/replicas.db");
        vec![
            "-Dpegasus.catalog.replica=JDBCRC".into(),
            "-Dpegasus.catalog.replica.db.driver=sqlite".into(),
            format!("-Dpegasus.catalog.replica.db.url=jdbc:sqlite:{}", file.display()),
        ]
    };
    let lines: String = (0..ENTRIES)
        .map(|n| format!("f{n} file:///there/f{n} site=\"local\"\n"))
        .collect();
    place.write("entries", &lines);
    let arguments: Vec<&str> = properties
        .iter()
        .map(String::as_str)
        .chain(["--insert", "entries"])
        .collect();
    for _ in 0..=place.random.below(MAX_KILLS) {
        let mut command = place.command("pegasus-rc-client", &arguments);
        if place.run_and_kill(&mut command, 150, Victim::First) {
            break;
        }
    }
    let mut command = place.command("pegasus-rc-client", &arguments);
    if !place.run(&mut command) {
        place.find(Damage::Lost, "the registration fails");
    }
    let names = if in_file {
        place
            .read("catalog/replicas.txt")
            .lines()
            .map(first_word)
            .collect()
    } else {
        registered(place)
    };
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let expected = (0..ENTRIES)
        .map(|n| format!("f{n}"))
        .chain(in_file.then(|| "old".to_owned()));
    for name in expected {
        match counts.remove(&name) {
            Some(1) => {}
            Some(count) => place.find(Damage::Doubled, format!("{name}: {count} times")),
            None => place.find(Damage::Lost, name),
        }
    }
    for name in counts.keys() {
        place.find(Damage::Torn, format!("an entry {name:?}"));
    }
    for file in check::files_below(&place.path("catalog")) {
        // The lock stays: removing it could give two programs a lock each.
        if !matches!(
            file.as_str(),
            "replicas.txt" | "replicas.txt.lock" | "replicas.db"
        ) {
            place.find(Damage::LeftOver, format!("catalog/{file}"));
        }
    }
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

fn registered(place: &mut Place) -> Vec<String> {
    let read = || {
        let database = rusqlite::Connection::open(place.path("catalog/replicas.db"))?;
        let mut names = database.prepare("SELECT lfn FROM rc_pfn JOIN rc_lfn USING (lfn_id)")?;
        let rows = names.query_map((), |row| row.get(0))?;
        rows.collect::<rusqlite::Result<Vec<String>>>()
    };
    read().unwrap_or_else(|error| {
        place.find(Damage::Torn, format!("the catalog: {error}"));
        Vec::new()
    })
}

/// The loader is killed while it loads a run that has ended.
pub(super) fn load(place: &mut Place) {
    write_workflow(place);
    let mut command = place.command("pmc", ["run", "-q", "--dir", "runs", "workflow.yml"]);
    if !place.run(&mut command) {
        place.find(Damage::Lost, "the workflow fails");
        return;
    }
    let submit: PathBuf = place.path("runs/crash/run0001/submit");
    let log = submit.join("crash-0.dag.dagman.out").display().to_string();
    let replays = place.random.one_in(2);
    let arguments: Vec<&str> = if replays {
        vec!["-r", "-j", "monitord.jobstate.log", &log]
    } else {
        vec!["-j", "monitord.jobstate.log", &log]
    };
    for _ in 0..=place.random.below(MAX_KILLS) {
        let mut command = place.command("pmc-monitord", &arguments);
        if place.run_and_kill(&mut command, 80, Victim::First) {
            break;
        }
    }
    // A loader that was killed when all was loaded leaves its process number to the next one.
    if !submit.join("monitord.done").exists() || submit.join("monitord.pid").exists() {
        let mut command = place.command("pmc-monitord", &arguments);
        if !place.run(&mut command) {
            place.find(Damage::Lost, "the run cannot be loaded");
        }
    }
    check::loaded(place, &submit, replays);
}
