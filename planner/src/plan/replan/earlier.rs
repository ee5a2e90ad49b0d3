//! Jobs of earlier plans that have run. The logs name them, and monitoring stops at a job that it does not
//! know. So the new plan keeps them as tasks that are done: in the DAG, in the rescue file and in the event
//! file.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use pmc_dag::{EARLIER_PLAN, trailer};
use pmc_files::{LineReader, with_suffix};

use crate::error::PlanError;
use crate::output::common::private_files::put;

/// Returns the names in the log of the executor that `is_known` does not hold for.
pub(super) fn jobs_in_log(
    dag: &Path,
    is_known: impl Fn(&str) -> bool,
) -> Result<BTreeSet<String>, PlanError> {
    let path = with_suffix(dag, ".dagman.out");
    let failed = |e| PlanError::io("read", &path, e);
    let mut lines = match LineReader::open(&path) {
        Ok(lines) => lines,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = BTreeSet::new();
    let mut take = |line: &[u8]| {
        let text = String::from_utf8_lossy(line);
        let submitted = text.split_once(" Submitting Condor Node ");
        if let Some(name) = submitted.and_then(|(_, rest)| rest.split(' ').next())
            && !is_known(name)
        {
            names.insert(name.to_owned());
        }
    };
    lines.read(|_, line| take(line)).map_err(failed)?;
    lines.take_rest().map(take);
    Ok(names)
}

/// Adds jobs of earlier plans to the DAG, the rescue file and the event file in `staging`. `old_events` is
/// the event file of the plan that is replaced.
pub(super) fn keep(jobs: &BTreeSet<String>, dag: &Path, old_events: &Path) -> Result<(), PlanError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let (mut tasks, mut records) = (String::new(), String::new());
    for name in jobs {
        tasks.push_str(&format!(
            "#@ {EARLIER_PLAN} {EARLIER_PLAN} null \nTASK {name} /bin/true\n"
        ));
        records.push_str(&format!("\nDONE {name}"));
    }
    trailer::append(dag, &tasks, (jobs.len(), 0)).map_err(|e| PlanError::io("write", dag, e))?;
    append(&with_suffix(dag, ".rescue"), &records)?;
    let events = dag.with_extension("static.bp");
    let read = |path: &Path| fs::read_to_string(path).map_err(|e| PlanError::io("read", path, e));
    let new = read(&events)?;
    let old = read(old_events).unwrap_or_default();
    let kept = events_of(jobs, &old, &new);
    // The last line says that there are no more events.
    let end = new.trim_end().rfind('\n').map_or(0, |at| at + 1);
    let text = format!("{}{kept}{}", &new[..end], &new[end..]);
    put(&events, &text)
}

/// Returns the events of jobs and of their tasks of the workflow, as far as the new plan does not have these.
fn events_of(jobs: &BTreeSet<String>, old: &str, new: &str) -> String {
    let value = |line: &'_ str, key: &str| -> Option<String> {
        let (_, rest) = line.split_once(&format!(" {key}=\""))?;
        Some(rest.split('"').next()?.to_owned())
    };
    let of_kind = |line: &str, kind: &str| line.contains(&format!(" event={kind} "));
    let of_jobs = |line: &str| value(line, "job.id").is_some_and(|job| jobs.contains(&job));
    let planned = new.lines().filter(|line| of_kind(line, "task.info"));
    let planned: BTreeSet<String> = planned.filter_map(|line| value(line, "task.id")).collect();
    let maps = old
        .lines()
        .filter(|line| of_kind(line, "wf.map.task_job") && of_jobs(line));
    let mut tasks: BTreeSet<String> = maps.filter_map(|line| value(line, "task.id")).collect();
    tasks.retain(|task| !planned.contains(task));
    let of_tasks = |line: &str| value(line, "task.id").is_some_and(|task| tasks.contains(&task));
    let is_kept = |line: &&str| {
        of_kind(line, "task.info") && of_tasks(line)
            || of_kind(line, "job.info") && of_jobs(line)
            || of_kind(line, "wf.map.task_job") && of_jobs(line) && of_tasks(line)
    };
    old.lines()
        .filter(is_kept)
        .map(|line| format!("{line}\n"))
        .collect()
}

fn append(path: &Path, text: &str) -> Result<(), PlanError> {
    let file = OpenOptions::new().append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|e| PlanError::io("write", path, e))
}
