//! A file of commands that behave like the tasks of an instance.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use pmc_calls::shell::shell_quote;

use super::{Instance, Names, Task};

/// What runs in place of the programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StandIn<'a> {
    /// `sleep`, for the run time of the task times this factor.
    Sleep(f64),
    /// The program pmc with this path: it reads the inputs, computes for the run time, and writes outputs of
    /// the right sizes, as WfBench does.
    Work(&'a str),
}

/// Returns a file of commands, one for each task. They read and write files in their working directory.
pub fn commands(instance: &Instance, stand_in: StandIn<'_>) -> String {
    let names = instance.task_names();
    let files = Files::new(instance);
    let executed = instance.executed();
    let parents = instance.parents();
    let mut text = format!("# {}\n", instance.name.escape_debug());
    for (number, task) in instance.tasks().iter().enumerate() {
        let ran = executed[number];
        let seconds = ran.map_or(0.0, |task| task.runtime_in_seconds);
        let _ = write!(text, "#@ label={} name={}", names[number], kind(&task.name));
        let mut separator = " after=";
        for &parent in &parents[number] {
            let _ = write!(text, "{separator}{}", names[parent]);
            separator = ",";
        }
        let cpus = ran.map_or(1, super::ExecutedTask::cpus);
        if cpus > 1 {
            let _ = write!(text, " -c {cpus}");
        }
        text.push('\n');
        match stand_in {
            StandIn::Sleep(factor) => {
                let _ = writeln!(text, "exec sleep {:.3}", seconds * factor);
            }
            StandIn::Work(program) => files.work(task, seconds, program, &mut text),
        }
    }
    text
}

/// Returns the kind of program of a task, from its name: without a number at its end.
fn kind(name: &str) -> String {
    let is_number = |part: &str| {
        let digits = part.strip_prefix("ID").unwrap_or(part);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let kind = match name.rsplit_once('_') {
        Some((kind, end)) if !kind.is_empty() && is_number(end) => kind,
        _ => name,
    };
    Names::default().make(kind)
}

/// The files of an instance.
struct Files<'a> {
    /// Name in the working directory, and size.
    by_id: HashMap<&'a str, (String, u64)>,
    /// Those that a task writes.
    written: HashSet<&'a str>,
}

impl<'a> Files<'a> {
    fn new(instance: &'a Instance) -> Self {
        let mut names = Names::default();
        let mut by_id = HashMap::default();
        for file in &instance.workflow.specification.files {
            let name = names.make(&file.id);
            by_id.insert(file.id.as_str(), (name, file.size_in_bytes));
        }
        let tasks = instance.tasks().iter();
        for id in tasks
            .clone()
            .flat_map(|task| task.input_files.iter().chain(&task.output_files))
        {
            by_id.entry(id.as_str()).or_insert_with(|| (names.make(id), 0));
        }
        let written = tasks.flat_map(|task| &task.output_files).map(String::as_str);
        Files {
            written: written.collect(),
            by_id,
        }
    }

    fn of(&self, ids: &[String]) -> impl Iterator<Item = &(String, u64)> {
        ids.iter().filter_map(|id| self.by_id.get(id.as_str()))
    }

    /// Adds the command of a task that works.
    fn work(&self, task: &Task, seconds: f64, program: &str, text: &mut String) {
        for id in task
            .input_files
            .iter()
            .filter(|id| !self.written.contains(id.as_str()))
        {
            if let Some((name, size)) = self.by_id.get(id.as_str()) {
                // Makes a file with a hole of this size. Several tasks may do that at a time.
                let _ = write!(text, "truncate -s '>{size}' {name} && ");
            }
        }
        if !task.input_files.is_empty() {
            text.push_str("cat");
            for (name, _) in self.of(&task.input_files) {
                let _ = write!(text, " {name}");
            }
            text.push_str(" > /dev/null && ");
        }
        let _ = write!(text, "exec {} pegasus keg -T {seconds:.3}", shell_quote(program));
        let mut option = " -o";
        for (name, size) in self.of(&task.output_files) {
            let _ = write!(text, "{option} {name}={size}");
            option = "";
        }
        text.push('\n');
    }
}
