//! Reads a job file of HyperQueue: TOML with tasks and arrays of tasks. Each task is a command for the shell.
//!
//! Source: HyperQueue's documentation of its job definition file (version 0.27). What has no meaning outside
//! of HyperQueue is left out with a warning.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use pmc_calls::shell::shell_quote;
use serde::Deserialize;
use toml::Spanned;

use super::DAG_VERSION;
use super::ReadOptions;
use super::builder::Builder;
use super::commands::{ShellCommand, is_name, name_of};
use super::executor_dag::{Whole, set_options};
use crate::diagnostic::{Diagnostic, position_of};
use crate::error::InputErrors;
use crate::model::{Origin, Position, Workflow};
use crate::profiles::{Namespace, Profiles};

/// Maximum tasks of a file.
const MAX_TASKS: usize = 10_000_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobFile {
    name: Option<String>,
    stream: Option<toml::Value>,
    stream_log: Option<toml::Value>,
    max_fails: Option<toml::Value>,
    #[serde(default)]
    task: Vec<Spanned<Task>>,
    #[serde(default)]
    array: Vec<Spanned<Task>>,
}

/// A task, or an array of tasks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    /// Not of an array.
    id: Option<u32>,
    /// Not of an array.
    #[serde(default)]
    deps: Vec<u32>,
    /// Of an array only.
    ids: Option<Ids>,
    /// Of an array only.
    entries: Option<Vec<String>>,
    command: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    stdin: Option<String>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    cwd: Option<String>,
    #[serde(default)]
    task_dir: bool,
    time_limit: Option<String>,
    priority: Option<i32>,
    crash_limit: Option<toml::Value>,
    #[serde(default)]
    request: Vec<Request>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Ranges(String),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Stream {
    Path(String),
    Mode {
        path: Option<String>,
        mode: Option<String>,
    },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    n_nodes: Option<u32>,
    #[serde(default)]
    resources: BTreeMap<String, toml::Value>,
    time_request: Option<String>,
    min_time: Option<String>,
    weight: Option<toml::Value>,
}

/// Returns whether a file is one of HyperQueue, by its name.
pub(super) fn is_job_file(path: &Path) -> bool {
    path.extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("toml"))
}

/// Reads a job file. Its tasks run in `directory`, unless they name another.
///
/// # Errors
/// A syntax error, or all tasks that cannot be understood.
pub(super) fn read(
    path: &Path,
    content: &str,
    directory: &Path,
    options: &ReadOptions,
) -> Result<Workflow, InputErrors> {
    let file: JobFile = toml::from_str(content).map_err(|error| {
        let message = error.message().to_owned();
        match error.span() {
            Some(span) => Diagnostic::at(path, position_of(content, span.start), message),
            None => Diagnostic::in_file(path, message),
        }
    })?;
    if file.task.is_empty() && file.array.is_empty() {
        let message = "a job file of HyperQueue needs [[task]] or [[array]]";
        return Err(Diagnostic::in_file(path, message).into());
    }
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = file.name.as_deref().unwrap_or(&stem);
    let mut reader = Reader {
        content,
        name,
        directory: directory.display().to_string(),
        builder: Builder::new(path),
        used: BTreeSet::new(),
        ignored: BTreeMap::new(),
    };
    reader.builder.set_label(name, Position::default(), &[]);
    reader.builder.workflow.version = DAG_VERSION.to_owned();
    reader.builder.workflow.origin = Origin::Commands;
    for (given, key) in [
        (&file.stream, "stream"),
        (&file.stream_log, "stream_log"),
        (&file.max_fails, "max_fails"),
    ] {
        if given.is_some() {
            reader.ignore(key);
        }
    }
    let mut dependencies = Vec::new();
    for task in &file.task {
        reader.task(task, &mut dependencies);
    }
    for array in &file.array {
        reader.array(array);
    }
    for (parent, child, position) in dependencies {
        if reader.used.contains(&parent) {
            let (parent, child) = (parent.to_string(), child.to_string());
            reader.builder.add_dependency(&parent, &child, position);
        } else {
            let message = format!("deps of the task {child}: no task has the id {parent}");
            reader.builder.problem(position, message);
        }
    }
    for (key, count) in reader.ignored {
        let times = if count == 1 {
            String::new()
        } else {
            format!(" ({count} times)")
        };
        let warning = Diagnostic::in_file(path, format!("{key} has no effect here{times}"));
        reader.builder.workflow.warnings.push(warning);
    }
    reader.builder.finish(options)
}

/// Parent, child, and where the child is.
type Dependency = (u32, u32, Position);

struct Reader<'a> {
    content: &'a str,
    name: &'a str,
    directory: String,
    builder: Builder,
    /// Identifiers of the tasks so far.
    used: BTreeSet<u32>,
    /// Keys without effect, and how often they are there.
    ignored: BTreeMap<&'static str, usize>,
}

impl Reader<'_> {
    fn ignore(&mut self, key: &'static str) {
        *self.ignored.entry(key).or_default() += 1;
    }

    fn position(&self, span: Range<usize>) -> Position {
        position_of(self.content, span.start)
    }

    fn next_id(&self) -> u32 {
        self.used.last().map_or(0, |last| last.saturating_add(1))
    }

    fn task(&mut self, task: &Spanned<Task>, dependencies: &mut Vec<Dependency>) {
        let position = self.position(task.span());
        let task = task.get_ref();
        if task.ids.is_some() || task.entries.is_some() {
            let problem = "ids and entries are keys of [[array]], not of [[task]]";
            return self.builder.problem(position, problem);
        }
        let id = task.id.unwrap_or_else(|| self.next_id());
        if task.crash_limit.is_some() {
            self.ignore("crash_limit");
        }
        dependencies.extend(task.deps.iter().map(|&parent| (parent, id, position)));
        if let Err(problem) = self.add(id, None, task, position) {
            self.builder.problem(position, format!("task {id}: {problem}"));
        }
    }

    fn array(&mut self, array: &Spanned<Task>) {
        let position = self.position(array.span());
        let array = array.get_ref();
        if array.id.is_some() || !array.deps.is_empty() {
            let problem = "id and deps are keys of [[task]], not of [[array]]";
            return self.builder.problem(position, problem);
        }
        if array.crash_limit.is_some() {
            self.ignore("crash_limit");
        }
        let ids = match self.ids_of(array) {
            Ok(ids) => ids,
            Err(problem) => return self.builder.problem(position, format!("array: {problem}")),
        };
        for (at, id) in ids.into_iter().enumerate() {
            let entry = array.entries.as_ref().map(|entries| entries[at].as_str());
            if let Err(problem) = self.add(id, entry, array, position) {
                return self.builder.problem(position, format!("task {id}: {problem}"));
            }
        }
    }

    fn ids_of(&self, array: &Task) -> Result<Vec<u32>, String> {
        let ids = match (&array.ids, &array.entries) {
            (Some(Ids::One(id)), _) => vec![*id],
            (Some(Ids::Ranges(text)), _) => ids(text)?,
            (None, Some(entries)) => {
                let first = self.next_id();
                let count = u32::try_from(entries.len()).map_err(|_| "too many entries")?;
                (first..first.saturating_add(count)).collect()
            }
            (None, None) => return Err("ids or entries are needed".to_owned()),
        };
        match &array.entries {
            Some(entries) if entries.len() != ids.len() => {
                Err(format!("{} ids for {} entries", ids.len(), entries.len()))
            }
            _ => Ok(ids),
        }
    }

    fn add(&mut self, id: u32, entry: Option<&str>, task: &Task, position: Position) -> Result<(), String> {
        if !self.used.insert(id) {
            return Err("another task has this id".to_owned());
        }
        if self.used.len() > MAX_TASKS {
            return Err(format!("more than {MAX_TASKS} tasks"));
        }
        let Some(program) = task.command.first() else {
            return Err("the command is empty".to_owned());
        };
        let program = name_of(program).to_owned();
        let profiles = self.profiles(task)?;
        let text = self.text(id, entry, task)?;
        let directory = self.directory.clone();
        let command = ShellCommand {
            id: id.to_string(),
            name: program,
            directory: &directory,
            text: &text,
            profiles,
            position,
        };
        command.add(&mut self.builder).map_err(|error| error.to_string())
    }

    /// Returns what a task requests.
    fn profiles(&mut self, task: &Task) -> Result<Profiles, String> {
        let mut profiles = Profiles::default();
        let mut task_options = String::new();
        if let Some(limit) = &task.time_limit {
            let _ = write!(task_options, "-T {} ", seconds(limit)?.max(1));
        }
        if let Some(priority) = task.priority {
            let _ = write!(task_options, "-p {priority} ");
        }
        set_options(task_options.as_bytes(), Whole::Run, &mut profiles).map_err(|error| error.to_string())?;
        // The first of several variants is what the author prefers.
        if task.request.len() > 1 {
            self.ignore("each [[task.request]] after the first");
        }
        let Some(request) = task.request.first() else {
            return Ok(profiles);
        };
        if request.n_nodes.is_some_and(|nodes| nodes > 1) {
            return Err("tasks over several nodes (n_nodes) cannot be run".to_owned());
        }
        if request.weight.is_some() {
            self.ignore("weight");
        }
        let mut gpus = 0;
        for (name, amount) in &request.resources {
            match name.as_str() {
                "cpus" => profiles.set(Namespace::Pegasus, "cores", &number(name, amount)?.to_string()),
                "mem" => profiles.set(Namespace::Pegasus, "memory", &number(name, amount)?.to_string()),
                "gpus" | "gpus/nvidia" | "gpus/amd" => gpus += number(name, amount)?,
                _ => self.ignore("a resource that is neither cpus, mem nor gpus"),
            }
        }
        if gpus > 0 {
            profiles.set(Namespace::Pegasus, "gpus", &gpus.to_string());
        }
        if let Some(time) = request.time_request.as_deref().or(request.min_time.as_deref()) {
            profiles.set(Namespace::Pegasus, "runtime", &seconds(time)?.to_string());
        }
        Ok(profiles)
    }

    /// Returns the command of a task for the shell.
    fn text(&mut self, id: u32, entry: Option<&str>, task: &Task) -> Result<String, String> {
        let directory = self.directory.clone();
        let filled = |text: &str, cwd: &str| {
            text.replace("%{TASK_ID}", &id.to_string())
                .replace("%{JOB_ID}", "1")
                .replace("%{INSTANCE_ID}", "0")
                .replace("%{JOB_NAME}", self.name)
                .replace("%{SUBMIT_DIR}", &directory)
                .replace("%{CWD}", cwd)
        };
        let mut text = String::new();
        let cwd = task
            .cwd
            .as_deref()
            .map_or_else(|| directory.clone(), |cwd| filled(cwd, &directory));
        if task.cwd.is_some() {
            let cwd = shell_quote(&cwd);
            let _ = write!(text, "mkdir -p {cwd} && cd {cwd} && ");
        }
        let mut redirections = String::new();
        for (stream, operator) in [&task.stdout, &task.stderr].into_iter().zip([" > ", " 2> "]) {
            let Some(stream) = stream else { continue };
            let (path, mode) = match stream {
                Stream::Path(path) => (Some(path), None),
                Stream::Mode { path, mode } => (path.as_ref(), mode.as_ref()),
            };
            if mode.is_some() {
                self.ignored
                    .entry("mode of stdout and stderr")
                    .and_modify(|count| *count += 1)
                    .or_insert(1);
            }
            let Some(path) = path else { continue };
            let path = if path == "none" {
                "/dev/null".to_owned()
            } else {
                filled(path, &cwd)
            };
            if let Some((parent, _)) = path
                .rsplit_once('/')
                .filter(|(parent, _)| !parent.is_empty() && *parent != "/dev")
            {
                let _ = write!(text, "mkdir -p {} && ", shell_quote(parent));
            }
            let _ = write!(redirections, "{operator}{}", shell_quote(&path));
        }
        let own = [
            ("HQ_JOB_ID", "1"),
            ("HQ_TASK_ID", &id.to_string()),
            ("HQ_INSTANCE_ID", "0"),
            ("HQ_SUBMIT_DIR", &directory),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let entry = entry.map(|entry| ("HQ_ENTRY".to_owned(), entry.to_owned()));
        text.push_str("export");
        for (name, value) in own.into_iter().chain(entry).chain(task.env.clone()) {
            let is_variable = is_name(&name)
                && !name.contains(['.', '-'])
                && !name.starts_with(|c: char| c.is_ascii_digit());
            if !is_variable {
                return Err(format!(
                    "the variable `{name}` of env has a name that the shell cannot set"
                ));
            }
            let _ = write!(text, " {name}={}", shell_quote(&value));
        }
        text.push_str(" && ");
        if task.task_dir {
            // It goes with the task, as in HyperQueue.
            text.push_str(
                "HQ_TASK_DIR=$(mktemp -d) && export HQ_TASK_DIR && trap 'rm -rf \"$HQ_TASK_DIR\"' EXIT && ",
            );
        }
        if let Some(stdin) = &task.stdin {
            let _ = write!(text, "printf %s {} | ", shell_quote(stdin));
        } else if !task.task_dir {
            text.push_str("exec ");
        }
        let words: Vec<_> = task.command.iter().map(|word| shell_quote(word)).collect();
        text.push_str(&words.join(" "));
        text.push_str(&redirections);
        Ok(text)
    }
}

/// Reads ids such as `1,2,50-100` and `0-10:2`.
fn ids(text: &str) -> Result<Vec<u32>, String> {
    let wrong = || format!("ids `{text}` make no sense: write numbers and ranges, such as 1,2,50-100");
    let number = |text: &str| text.trim().replace('_', "").parse::<u32>().map_err(|_| wrong());
    let mut all = Vec::new();
    for part in text.split(',') {
        let (range, step) = match part.split_once(':') {
            Some((range, step)) => (range, number(step)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(range)?, number(range)?),
        };
        if step == 0 || last < first {
            return Err(wrong());
        }
        if ((last - first) / step) as usize >= MAX_TASKS {
            return Err(format!("ids `{text}` are more than {MAX_TASKS} tasks"));
        }
        all.extend((first..=last).step_by(step as usize));
    }
    Ok(all)
}

/// Reads an amount of a resource: a number, or a text that begins with one, as in `4 compact!`. Parts of one
/// count as a whole.
fn number(name: &str, amount: &toml::Value) -> Result<u64, String> {
    let text = match amount {
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::String(text) => text.clone(),
        other => format!("a {}", other.type_str()),
    };
    let first = text
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .replace('_', "");
    let value = first
        .parse::<f64>()
        .ok()
        .filter(|value| (0.0..1e12).contains(value));
    value
        .map(|value| value.ceil() as u64)
        .ok_or_else(|| format!("{name} = {text}: a number is needed"))
}

/// Reads a time such as `1h 10m 5s`, `90` (seconds), or `01:10:05`.
fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("the time `{text}` makes no sense: write 1h 10m 5s, or HH:MM:SS");
    if text.contains(':') {
        let parts: Vec<u64> = text
            .split(':')
            .map(|part| part.trim().parse().map_err(|_| wrong()))
            .collect::<Result<_, _>>()?;
        let [hours, minutes, seconds] = parts[..] else {
            return Err(wrong());
        };
        return Ok(hours
            .saturating_mul(3600)
            .saturating_add(minutes.saturating_mul(60))
            .saturating_add(seconds));
    }
    let mut sum = 0.0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let value: f64 = rest[..end].parse().map_err(|_| wrong())?;
        rest = rest[end..].trim_start();
        let end = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        sum += value
            * match &rest[..end] {
                "ms" => 0.001,
                "" | "s" | "sec" | "second" | "seconds" => 1.0,
                "m" | "min" | "minute" | "minutes" => 60.0,
                "h" | "hr" | "hour" | "hours" => 3600.0,
                "d" | "day" | "days" => 86_400.0,
                _ => return Err(wrong()),
            };
        rest = rest[end..].trim_start();
    }
    Ok(sum.ceil() as u64)
}

#[cfg(test)]
mod tests;
