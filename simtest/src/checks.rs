//! What must always hold, and what must be there in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pmc_monitor::events::{Event, EventLog, TaskRef};

use crate::kinds::PartKind;
use crate::plan::{Plan, Task};

/// Names of the tasks in a rescue file. The last record may be torn.
pub(crate) fn rescued(folder: &Path) -> BTreeSet<Vec<u8>> {
    let text = std::fs::read(folder.join("x.dag.rescue")).unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| line.strip_prefix(b"DONE "))
        .map(<[u8]>::to_vec)
        .collect()
}

/// Names of tasks whose success these lines of `jobstate.log` tell.
pub(crate) fn successes(bytes: &[u8]) -> Vec<Vec<u8>> {
    let lines = bytes.split(|byte| *byte == b'\n');
    let words = lines.map(|line| line.split(|byte| *byte == b' ').collect::<Vec<_>>());
    let is_success = |words: &Vec<&[u8]>| words.get(2) == Some(&&b"JOB_SUCCESS"[..]);
    words.filter(is_success).map(|words| words[1].to_vec()).collect()
}

/// Returns whether a log in a folder names the submission of an attempt, or the preparation of a
/// sub-workflow. `None` if there is no log.
pub(crate) fn is_submitted(folder: &Path, task: &[u8], submit: u64) -> Option<bool> {
    let log = std::fs::read(folder.join("jobstate.log")).ok()?;
    let number = submit.to_string();
    let mut lines = log.split(|byte| *byte == b'\n');
    Some(lines.any(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(1);
        words.next() == Some(task)
            && matches!(words.next(), Some(b"SUBMIT" | b"PRE_SCRIPT_STARTED"))
            && words.last() == Some(number.as_bytes())
    }))
}

/// Returns whether the last line of the log in a folder ends a run.
pub(crate) fn has_ended(folder: &Path) -> bool {
    let log = std::fs::read(folder.join("jobstate.log")).unwrap_or_default();
    let last = log.trim_ascii_end().split(|byte| *byte == b'\n').next_back();
    let words = last.map(<[u8]>::trim_ascii_end).unwrap_or_default();
    words
        .split(|byte| *byte == b' ')
        .any(|word| word == b"PMC_FINISHED" || word == b"MONITORD_FINISHED")
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

/// A DAG at the end of a round.
struct Ended<'a> {
    folder: PathBuf,
    tasks: Vec<&'a Task>,
    /// Those that can be done.
    feasible: BTreeSet<u32>,
    /// All that can be done must be.
    is_complete: bool,
    allowed: Allowed,
}

/// Reads a log as our views do. Returns what is wrong.
fn check_log(dag: &Ended<'_>, name: &str) -> Result<(), String> {
    let (folder, allowed) = (&dag.folder, dag.allowed);
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
                let before = open.insert(task.name.to_vec(), (task.submit_number, false));
                // What makes the DAG of a sub-workflow has no number.
                if let Some((before, _)) = before.filter(|(before, _)| *before != 0) {
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
    for task in dag.can_be_done().filter(|_| dag.is_complete) {
        let task = task.name();
        let times = succeeded.get(task.as_bytes()).copied().unwrap_or(0);
        if times != 1 && !allowed.power_loss && !allowed.disk_errors {
            return Err(format!("{name}: {task} succeeds {times} times"));
        }
    }
    Ok(())
}

/// Checks the files after the last run, which has done all that can be done. `is_complete` says so of guests,
/// by the numbers of their parts.
pub(crate) fn check_end(
    folder: &Path,
    plan: &Plan,
    allowed: Allowed,
    is_complete: impl Fn(u32) -> bool,
) -> Result<(), String> {
    let feasible = plan.feasible();
    for home in plan.homes() {
        let is_guest = matches!(plan.kind(home), Some(PartKind::Guest { .. }));
        let is_subworkflow = matches!(plan.kind(home), Some(PartKind::Subworkflow { .. }));
        let around = plan.guest_around(home);
        let dag = Ended {
            folder: Plan::folder(folder, home),
            tasks: plan.tasks.iter().filter(|task| plan.home(task) == home).collect(),
            feasible: feasible.clone(),
            // If a sub-workflow is done, a loss of power may have taken what its own rescue file said.
            is_complete: around.is_none_or(&is_complete) && !(is_subworkflow && allowed.power_loss),
            allowed,
        };
        let shown = |wrong: String| match home {
            0 => wrong,
            home => format!("d{home}: {wrong}"),
        };
        let has_begun = dag.folder.join("x.dag.rescue").exists();
        if has_begun || (dag.is_complete && dag.can_be_done().next().is_some()) {
            dag.check(plan).map_err(shown)?;
        }
        let left = if home == 0 {
            &["x.dag.rescue.journal", "x.dag.endpoint", "x.dag.agents"][..]
        } else if is_guest {
            &["x.dag.rescue.journal", "x.dag.host"][..]
        } else {
            &["x.dag.rescue.journal"][..]
        };
        for left in left.iter().filter(|_| dag.is_complete) {
            if dag.folder.join(left).exists() && !(*left == "x.dag.agents" && allowed.leaves_agents) {
                return Err(shown(format!("{left} is left over")));
            }
        }
    }
    Ok(())
}

impl Ended<'_> {
    fn can_be_done(&self) -> impl Iterator<Item = &Task> {
        let tasks = self.tasks.iter().copied();
        tasks.filter(|task| self.feasible.contains(&task.number))
    }

    fn check(&self, plan: &Plan) -> Result<(), String> {
        let done = rescued(&self.folder);
        for task in &self.tasks {
            let (is_done, is_feasible) = (
                done.contains(task.name().as_bytes()),
                self.feasible.contains(&task.number),
            );
            if is_done && !is_feasible {
                return Err(format!(
                    "the rescue file names {}, which cannot be done",
                    task.name()
                ));
            }
            if is_feasible && !is_done && self.is_complete {
                return Err(format!("the rescue file lacks {}", task.name()));
            }
        }
        self.check_lines()?;
        check_log(self, "jobstate.log")?;
        check_log(self, "x.dag.dagman.out")?;
        if self.is_complete && (!self.allowed.power_loss || plan.sync > 0) {
            self.check_forwarded()?;
        }
        self.check_dag_file()
    }

    /// No line of a log continues a torn one: it would be lost with it.
    fn check_lines(&self) -> Result<(), String> {
        let text = std::fs::read_to_string(self.folder.join("x.dag.dagman.out")).unwrap_or_default();
        match text.lines().find(|line| line.matches("/26 ").count() > 1) {
            Some(line) => Err(format!("a line of the log continues a torn one: {line}")),
            None => Ok(()),
        }
    }

    /// Each task is in the DAG file once.
    fn check_dag_file(&self) -> Result<(), String> {
        let text = std::fs::read_to_string(self.folder.join("x.dag")).unwrap_or_default();
        for task in &self.tasks {
            let name = task.name();
            let is_of = |line: &&str| {
                let mut words = line.split(' ');
                match words.next() {
                    Some("TASK") => words.next() == Some(&*name),
                    Some("SUBDAG") => words.nth(1) == Some(&*name),
                    _ => false,
                }
            };
            let times = text.lines().filter(is_of).count();
            // A tool need not have come to add what cannot be done.
            let is_needed = task.part == 0 || self.feasible.contains(&task.number);
            if times > 1 || (is_needed && times == 0) {
                return Err(format!("the DAG file has {name} {times} times"));
            }
        }
        Ok(())
    }

    /// Each line that a task forwards is there once.
    fn check_forwarded(&self) -> Result<(), String> {
        for file in 0..2 {
            let path = self.folder.join(format!("forward{file}"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let mut lines: BTreeMap<&str, u32> = BTreeMap::new();
            text.lines().for_each(|line| *lines.entry(line).or_default() += 1);
            for task in self.tasks.iter().filter(|task| task.forwards == Some(file)) {
                let times = lines.remove(&*task.name()).unwrap_or(0);
                let expected = u32::from(self.feasible.contains(&task.number));
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
}
