//! `pmc checkpoint`: checkpoints for the scripts of tasks, and a look at those of a run.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use monitord_compat::run_lock;
use pmc_checkpoint::{AllSeries, Prefix, Store, TaskStore, task_name};
use pmc_files::Destination;
use pmc_tcsio::{Connection, Process, Writing};
use pmc_terminal::{message, print};
use pmc_wire::checkpoint::VARIABLE;
use serde_json::json;

use crate::cli::{Checkpoint, CheckpointAction};
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::table::{Align, Table};
use crate::text;

/// The answer is no.
const NO: u8 = 1;

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// Permissions of files that are made, before the umask.
const FILE_MODE: u32 = 0o666;

/// Does what was asked. Returns the exit code.
pub fn checkpoint(arguments: &Checkpoint) -> Result<u8, Failure> {
    match &arguments.action {
        CheckpointAction::Put { files } => put(files),
        CheckpointAction::Get { prefix, file } => get(prefix, file.as_deref()),
        CheckpointAction::Due => Ok(answer(connect()?.is_due().or_code(exit::NOT_RUN)?)),
        CheckpointAction::Drain => Ok(answer(connect()?.is_draining().or_code(exit::NOT_RUN)?)),
        CheckpointAction::Ls { run, json } => list(run.as_deref(), *json),
        CheckpointAction::Verify { run } => verify(run.as_deref()),
        CheckpointAction::Recover { run } => recover(run.as_deref()),
        CheckpointAction::Rm { run, tasks } => remove(run, tasks),
    }
}

fn answer(is_so: bool) -> u8 {
    if is_so { exit::SUCCESS } else { NO }
}

/// Connects with the run of this task.
pub fn connect() -> Result<Connection, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    let process = Process::find(variable);
    Connection::open(variable(VARIABLE).as_deref(), process).or_code(exit::NOT_RUN)
}

/// Saves files as one series.
fn put(words: &[PathBuf]) -> Result<u8, Failure> {
    let mut pairs = Vec::new();
    for pair in words.chunks(2) {
        let [prefix, file] = pair else {
            return Err(Failure::new(exit::USAGE, anyhow!("the last prefix has no file")));
        };
        let prefix = prefix.to_string_lossy().into_owned();
        let prefix = Prefix::try_from(prefix).or_code(exit::USAGE)?;
        pairs.push((prefix, file));
    }
    // Inputs first: a file that is missing begins no series.
    let mut inputs = Vec::new();
    for (prefix, file) in pairs {
        inputs.push((prefix, file, open_input(file)?));
    }
    let connection = connect()?;
    let mut written = Vec::new();
    for (prefix, _, _) in &inputs {
        let file = connection.create(prefix.as_str());
        written.push(file.with_context(|| failed(prefix)).or_code(exit::NOT_RUN)?);
    }
    for (file, (prefix, path, input)) in written.iter_mut().zip(&mut inputs) {
        copy(input, path, file)
            .with_context(|| failed(prefix))
            .or_code(exit::NOT_RUN)?;
    }
    for (file, (prefix, _, _)) in written.into_iter().zip(&inputs) {
        let closed = connection.close(file);
        closed.with_context(|| failed(prefix)).or_code(exit::NOT_RUN)?;
    }
    Ok(exit::SUCCESS)
}

fn failed(prefix: &Prefix) -> String {
    format!("the checkpoint {prefix} was not saved")
}

fn open_input(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let file = pmc_files::open_input(path).and_then(|file| match file.metadata()?.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => Ok(file),
    });
    let file = file
        .with_context(|| format!("cannot read {}", path.display()))
        .or_code(exit::NOT_RUN)?;
    Ok(Box::new(file))
}

fn copy(input: &mut impl Read, path: &Path, file: &mut Writing) -> anyhow::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => file.append(buffer.get(..length).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

/// Gets a file of the series from which the task goes on.
fn get(prefix: &str, path: Option<&Path>) -> Result<u8, Failure> {
    let prefix = Prefix::try_from(prefix).or_code(exit::USAGE)?;
    let connection = connect()?;
    if connection.given().is_none() {
        return Ok(NO);
    }
    let mut file = connection.open_given(prefix.as_str()).or_code(exit::NOT_RUN)?;
    let copied = match path.filter(|path| *path != Path::new("-")) {
        None => {
            let mut output = io::stdout().lock();
            file.copy_to(&mut output).and_then(|_| output.flush())
        }
        Some(path) => Destination::new(path).and_then(|destination| {
            // An old file stays as it is until the new one is whole.
            let new = destination.replacement(".checkpoint-", FILE_MODE)?;
            file.copy_to(&mut new.file())?;
            new.publish()
        }),
    };
    copied
        .with_context(|| {
            let name = path.map_or("standard output".into(), Path::to_string_lossy);
            format!("cannot write {name}")
        })
        .or_code(exit::NOT_RUN)?;
    // The statistics of a file that was read are no reason to fail.
    let _ = connection.end_reading(file);
    Ok(exit::SUCCESS)
}

/// A run and its store, if it has one.
fn open_run(run: Option<&Path>, quiet: bool) -> Result<(PathBuf, Option<Store>), Failure> {
    let run = layout::given_or_latest(run, quiet);
    let dag = layout::find_run(&run)?.dag;
    let store = Store::open(&dag).or_code(exit::NOT_RUN)?;
    Ok((dag, store))
}

/// Returns the tasks of a store with what they have saved. Files that do not count are reported.
fn scan(store: &Store) -> Result<Vec<(String, TaskStore, AllSeries, usize)>, Failure> {
    let mut tasks = Vec::new();
    for task in store.tasks().or_code(exit::NOT_RUN)? {
        let (all, problems) = task.scan().or_code(exit::NOT_RUN)?;
        for problem in &problems {
            message(format!("pmc: warning: a file does not count: {problem}"));
        }
        let name = task_name(task.directory()).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).into_owned();
        tasks.push((name, task, all, problems.len()));
    }
    Ok(tasks)
}

/// Says whether a series is used.
fn state(all: &AllSeries, number: u64) -> &'static str {
    let series = all.get(number);
    if series.is_some_and(|series| series.withheld().is_some()) {
        "withheld"
    } else if all.complete().contains(&number) {
        "complete"
    } else {
        "incomplete"
    }
}

fn list(run: Option<&Path>, as_json: bool) -> Result<u8, Failure> {
    let (_, store) = open_run(run, as_json)?;
    let tasks = store.as_ref().map_or_else(|| Ok(Vec::new()), scan)?;
    if as_json {
        let rows = tasks.iter().flat_map(|(name, _, all, _)| {
            all.iter().map(move |(number, series)| {
                json!({
                    "task": name,
                    "series": number,
                    "state": state(all, number),
                    "reason": series.withheld(),
                    "files": series.count(),
                    "bytes": series.bytes(),
                    "closed": series.closed(),
                })
            })
        });
        print(&format!("{:#}\n", json!(rows.collect::<Vec<_>>())));
        return Ok(exit::SUCCESS);
    }
    let mut table = Table::new(&[
        ("TASK", Align::Left),
        ("SERIES", Align::Right),
        ("STATE", Align::Left),
        ("FILES", Align::Right),
        ("SIZE", Align::Right),
        ("CLOSED", Align::Left),
    ]);
    let mut is_empty = true;
    for (name, _, all, _) in &tasks {
        for (number, series) in all.iter() {
            is_empty = false;
            table.row([
                pmc_terminal::escape(name).into_owned(),
                number.to_string(),
                state(all, number).to_owned(),
                series.count().to_string(),
                text::bytes(series.bytes()),
                time(series.closed()),
            ]);
        }
    }
    match is_empty {
        true => print("No task has a checkpoint.\n"),
        false => print(&table.render("")),
    }
    Ok(exit::SUCCESS)
}

/// Returns a time in the time zone of the user.
fn time(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a time that is too large is shown as a dash"
    )]
    let time = chrono::DateTime::from_timestamp(seconds as i64, 0);
    time.filter(|_| seconds > 0.0).map_or("-".to_owned(), |time| {
        time.with_timezone(&chrono::Local)
            .format("%Y-%m-%d %H:%M:%S")
            .to_string()
    })
}

fn verify(run: Option<&Path>) -> Result<u8, Failure> {
    let (_, store) = open_run(run, false)?;
    let tasks = store.as_ref().map_or_else(|| Ok(Vec::new()), scan)?;
    let (mut good, mut bad) = (0, 0);
    for (name, task, all, problems) in &tasks {
        bad += problems;
        for (number, series) in all.iter().filter(|(_, series)| series.withheld().is_none()) {
            match task.damage(number, series) {
                None => good += series.count(),
                // The run has removed it meanwhile.
                Some(_) if task.scan().is_ok_and(|(now, _)| now.get(number).is_none()) => {}
                Some(damage) => {
                    bad += 1;
                    message(format!(
                        "pmc: checkpoint {number} of {name} is not used any more: {damage}"
                    ));
                    task.withhold(number, &damage).or_code(exit::NOT_RUN)?;
                }
            }
        }
    }
    print(&format!("{} as they were saved\n", text::count(good, "file")));
    Ok(answer(bad == 0))
}

fn recover(run: Option<&Path>) -> Result<u8, Failure> {
    let (_, store) = open_run(run, false)?;
    for (name, task, mut all, _) in store.as_ref().map_or_else(|| Ok(Vec::new()), scan)? {
        let chosen = task.choose(&mut all);
        for (number, problem) in chosen.problems {
            message(format!(
                "pmc: checkpoint {number} of {name} is not used any more: {problem}"
            ));
        }
        let name = pmc_terminal::escape(&name).into_owned();
        match chosen.given {
            Some(number) => print(&format!("{name} goes on from checkpoint {number}\n")),
            None => print(&format!("{name} begins again\n")),
        }
    }
    Ok(exit::SUCCESS)
}

fn remove(run: &Path, names: &[String]) -> Result<u8, Failure> {
    let (dag, store) = open_run(Some(run), false)?;
    let lock = run_lock::lock_dag(&dag);
    let _lock = lock
        .context("its tasks may need their checkpoints")
        .or_code(exit::NOT_RUN)?;
    let Some(store) = store else {
        return match names.is_empty() {
            true => Ok(exit::SUCCESS),
            false => Err(Failure::new(NO, anyhow!("no task has a checkpoint"))),
        };
    };
    if names.is_empty() {
        store.remove().or_code(exit::NOT_RUN)?;
        return Ok(exit::SUCCESS);
    }
    let tasks = store.tasks().or_code(exit::NOT_RUN)?;
    let mut chosen = Vec::new();
    for name in names {
        let is_it = |task: &&TaskStore| task_name(task.directory()).as_deref() == Some(name.as_bytes());
        let task = tasks.iter().find(is_it);
        chosen.push(task.ok_or_else(|| Failure::new(NO, anyhow!("{name} has no checkpoint")))?);
    }
    for task in chosen {
        task.remove().or_code(exit::NOT_RUN)?;
    }
    Ok(exit::SUCCESS)
}
