//! What must always hold, and what must be there in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pmc_monitor::events::{Event, EventLog, TaskRef};

use crate::plan::Plan;

/// Names of the tasks in a rescue file. The last record may be torn.
pub(crate) fn rescued(folder: &Path) -> BTreeSet<Vec<u8>> {
    let text = std::fs::read(folder.join("x.dag.rescue")).unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| line.strip_prefix(b"DONE "))
        .map(<[u8]>::to_vec)
        .collect()
}

/// Names of tasks whose success these lines of a log tell.
pub(crate) fn successes(log: &str, bytes: &[u8]) -> Vec<Vec<u8>> {
    let lines = bytes.split(|byte| *byte == b'\n');
    match log {
        "jobstate.log" => {
            let is_success = |words: &Vec<&[u8]>| words.get(2) == Some(&&b"JOB_SUCCESS"[..]);
            let words = lines.map(|line| line.split(|byte| *byte == b' ').collect::<Vec<_>>());
            words.filter(is_success).map(|words| words[1].to_vec()).collect()
        }
        _ => Vec::new(),
    }
}

/// Which checks the faults of a round allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Lines of logs, and records that were not synced, may be missing.
    pub(crate) power_loss: bool,
    /// A task may have failed because its data could not be written.
    pub(crate) disk_errors: bool,
    /// An agent could not say that it has ended.
    pub(crate) leaves_agents: bool,
}

/// Reads a log as our views do. Returns what is wrong.
fn check_log(folder: &Path, name: &str, plan: &Plan, allowed: Allowed) -> Result<(), String> {
    let path = folder.join(name);
    let missing = folder.join("missing");
    let opened = match name {
        "jobstate.log" => EventLog::open(&missing, &path),
        _ => EventLog::open(&path, &missing),
    };
    let mut log = opened
        .map_err(|error| format!("{name}: {error}"))?
        .ok_or_else(|| format!("{name} is missing"))?;
    let mut open: BTreeMap<Vec<u8>, (u32, bool)> = BTreeMap::new();
    let mut succeeded: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut wrong = None;
    let mut last = None;
    let mut is_running = false;
    // Not each line has the number.
    let is_of = |number: u32, task: &TaskRef<'_>| task.submit_number == 0 || number == task.submit_number;
    log.read(|time, event| {
        let mut find = |text: String| {
            // A line may be torn, and the next run adds it once more.
            if allowed.power_loss {
                return;
            }
            wrong.get_or_insert(format!("{name}: {text}"));
        };
        if last.is_some_and(|last| time < last) {
            find("time goes back".to_owned());
        }
        last = Some(time);
        let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        match event {
            Event::RunStart => {
                is_running = true;
                open.clear();
            }
            Event::RunEnd(_) => is_running = false,
            Event::Queued(task) => {
                if let Some((before, _)) = open.insert(task.name.to_vec(), (task.submit_number, false)) {
                    find(format!("{} is queued twice, after {before}", shown(task.name)));
                }
                if succeeded.contains_key(task.name) && !allowed.power_loss {
                    find(format!("{} is queued after its success", shown(task.name)));
                }
            }
            Event::Started(task) => match open.get_mut(task.name) {
                Some((number, started)) if is_of(*number, &task) && !*started => *started = true,
                _ => find(format!("{} starts without a submission", shown(task.name))),
            },
            Event::Ended(task, status) => {
                let known = open.remove(task.name);
                // The next run adds the ends of a killed one.
                if is_running && known.is_none_or(|(number, started)| !is_of(number, &task) || !started) {
                    find(format!("{} ends without a start", shown(task.name)));
                }
                if status == 0 {
                    *succeeded.entry(task.name.to_vec()).or_default() += 1;
                }
            }
            Event::Lost(task) | Event::Abandoned(task) => {
                // A full disk may cut off just the end of the line: then the next run adds it once more.
                let may_repeat = allowed.disk_errors;
                let known = open.remove(task.name);
                if !may_repeat && known.is_none_or(|(number, _)| !is_of(number, &task)) {
                    find(format!("{} is lost without a submission", shown(task.name)));
                }
            }
            Event::Process(_) | Event::Unplanned(..) | Event::Reason(..) => {}
        }
    })
    .map_err(|error| format!("{name}: {error}"))?;
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    for number in plan.feasible() {
        let task = format!("t{number}");
        let times = succeeded.get(task.as_bytes()).copied().unwrap_or(0);
        if times != 1 && !allowed.power_loss && !allowed.disk_errors {
            return Err(format!("{name}: {task} succeeds {times} times"));
        }
    }
    Ok(())
}

/// Checks the files after the last run, which has done all that can be done.
pub(crate) fn check_end(folder: &Path, plan: &Plan, allowed: Allowed) -> Result<(), String> {
    let done = rescued(folder);
    let feasible = plan.feasible();
    for task in &plan.tasks {
        let (is_done, is_feasible) = (
            done.contains(task.name().as_bytes()),
            feasible.contains(&task.number),
        );
        if is_done && !is_feasible {
            return Err(format!(
                "the rescue file names {}, which cannot be done",
                task.name()
            ));
        }
        if is_feasible && !is_done {
            return Err(format!("the rescue file lacks {}", task.name()));
        }
    }
    check_lines(folder)?;
    check_log(folder, "jobstate.log", plan, allowed)?;
    check_log(folder, "x.dag.dagman.out", plan, allowed)?;
    if !allowed.power_loss || plan.sync > 0 {
        check_forwarded(folder, plan)?;
    }
    for left in ["x.dag.rescue.journal", "x.dag.endpoint", "x.dag.agents"] {
        if folder.join(left).exists() && !(left == "x.dag.agents" && allowed.leaves_agents) {
            return Err(format!("{left} is left over"));
        }
    }
    Ok(())
}

/// No line of a log continues a torn one: it would be lost with it.
fn check_lines(folder: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(folder.join("x.dag.dagman.out")).unwrap_or_default();
    match text.lines().find(|line| line.matches("/26 ").count() > 1) {
        Some(line) => Err(format!("a line of the log continues a torn one: {line}")),
        None => Ok(()),
    }
}

/// Each line that a task forwards is there once.
fn check_forwarded(folder: &Path, plan: &Plan) -> Result<(), String> {
    let feasible = plan.feasible();
    for file in 0..2 {
        let text = std::fs::read_to_string(folder.join(format!("forward{file}"))).unwrap_or_default();
        let mut lines: BTreeMap<&str, u32> = BTreeMap::new();
        text.lines().for_each(|line| *lines.entry(line).or_default() += 1);
        for task in plan.tasks.iter().filter(|task| task.forwards == Some(file)) {
            let times = lines.remove(&*task.name()).unwrap_or(0);
            let expected = u32::from(feasible.contains(&task.number));
            if times != expected {
                return Err(format!(
                    "forward{file} has the line of {} {times} times",
                    task.name()
                ));
            }
        }
        if let Some((line, _)) = lines.first_key_value() {
            return Err(format!("forward{file} has a torn line: {line:?}"));
        }
    }
    Ok(())
}
