//! The job of a node, from its submit description.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::budget::Budget;
use crate::error::ErrorKind;
use crate::macros::{self, Values};
use crate::model::{Job, RETRY};
use crate::queue::{Process, Queue};
use crate::quoting;
use crate::submit::{Description, Value};

/// Commands that make a job another one under HTCondor, the value that does not, and why they are refused.
const REFUSED: &[(&str, &str, &str)] = &[
    ("allowed_execute_duration", "", TIME),
    ("allowed_job_duration", "", TIME),
    (
        "concurrency_limits",
        "",
        "MAXJOBS limits the running jobs of a category",
    ),
    ("container_image", "", CONTAINER),
    ("cron_minute", "", TIME),
    ("deferral_time", "", TIME),
    ("docker_image", "", CONTAINER),
    ("hold", "false", HOLD),
    ("max_retries", "0", RETRIES),
    ("noop_job", "false", "the keyword NOOP of JOB does this"),
    ("on_exit_hold", "false", HOLD),
    ("on_exit_remove", "true", RETRIES),
    ("output_destination", "", "jobs write to their files directly"),
    ("retry_until", "", RETRIES),
    ("skip_if_dataflow", "false", "a job always runs"),
    (
        "success_exit_code",
        "0",
        "a job succeeds with exit code 0; a POST script can decide otherwise",
    ),
    ("transfer_output_remaps", "", "jobs write to their files directly"),
];

const CONTAINER: &str = "programs in containers need a workflow of Pegasus";
const HOLD: &str = "there is no queue in which a job could be held";
const RETRIES: &str = "RETRY repeats a node";
const TIME: &str = "jobs start when their parents are done, and end by themselves";

/// Commands that are ignored with a warning.
const IGNORED: &[&str] = &["periodic_hold", "periodic_remove", "requirements"];

/// Macros whose values DAGMan sets during the run.
const OF_DAGMAN: &[&str] = &["dag_parent_names", "dag_status", "dagmanjobid", "failed_count"];

/// Macros of a node, by their names in lower case.
pub(crate) type Macros = FxHashMap<String, String>;

/// A node, as its submit description sees it.
pub(crate) struct NodeView<'a> {
    pub(crate) name: &'a str,
    /// Number of the node, from 1: the macro `Cluster`.
    pub(crate) number: u32,
    pub(crate) directory: &'a Path,
    /// It has more than one attempt.
    pub(crate) is_retried: bool,
    pub(crate) prepended: &'a Macros,
    pub(crate) appended: &'a Macros,
    pub(crate) description: &'a Description,
    /// Which of its jobs.
    pub(crate) process: &'a Process,
    pub(crate) environment: &'a dyn Fn(&str) -> Option<String>,
    pub(crate) budget: &'a Budget,
}

/// A job, its priority, and commands that are ignored, with their lines.
pub(crate) struct Described {
    pub(crate) job: Job,
    pub(crate) priority: Option<i64>,
    pub(crate) ignored: Vec<(u32, &'static str)>,
}

/// A problem and, if it is in the submit description, its line.
pub(crate) type Problem = (Option<u32>, ErrorKind);

/// Name of a command, its expanded value, and its line in the submit description.
type Found = (&'static str, String, Option<u32>);

struct Scope<'a> {
    node: &'a NodeView<'a>,
    number: String,
    process: String,
    step: String,
    row: String,
}

impl<'a> Scope<'a> {
    fn new(node: &'a NodeView<'a>) -> Self {
        Scope {
            node,
            number: node.number.to_string(),
            process: node.process.number.to_string(),
            step: node.process.step.to_string(),
            row: node.process.row.to_string(),
        }
    }
}

impl Values for Scope<'_> {
    fn get(&self, name: &str, within: &[&str]) -> Result<Option<&str>, &'static str> {
        // Most names are in lower case: a million nodes look up dozens of commands each.
        let lower: Cow<'_, str> = match name.bytes().any(|b| b.is_ascii_uppercase()) {
            true => Cow::Owned(name.to_ascii_lowercase()),
            false => Cow::Borrowed(name),
        };
        let lower = lower.as_ref();
        if OF_DAGMAN.contains(&lower) {
            return Err("only DAGMan knows it");
        }
        let own = match lower {
            "retry" if self.node.is_retried => Some(RETRY_TEXT),
            "job" => Some(self.node.name),
            "cluster" | "clusterid" => Some(self.number.as_str()),
            "process" | "procid" => Some(self.process.as_str()),
            "step" => Some(self.step.as_str()),
            "row" | "itemindex" => Some(self.row.as_str()),
            "retry" => Some("0"),
            _ => None,
        };
        let of_item = self.node.process.values.iter().find(|(name, _)| name == lower);
        let layers = [
            of_item.map(|(_, value)| value.as_str()),
            self.node.appended.get(lower).map(String::as_str),
            self.node.description.get(lower).map(|value| value.text.as_str()),
            self.node.prepended.get(lower).map(String::as_str),
            own,
        ];
        // A macro within itself means the value that it replaces.
        let depth = within
            .iter()
            .filter(|around| around.eq_ignore_ascii_case(name))
            .count();
        Ok(layers.into_iter().flatten().nth(depth))
    }

    fn environment(&self, name: &str) -> Option<String> {
        (self.node.environment)(name)
    }

    fn budget(&self) -> &Budget {
        self.node.budget
    }
}

impl Scope<'_> {
    /// Returns the expanded value of the first of these commands that is set and not empty, with its name and
    /// line.
    fn value(&self, names: &[&'static str]) -> Result<Option<Found>, Problem> {
        for &name in names {
            let line = self.node.description.get(name).map(|value| value.line);
            let Some(text) = self.get(name, &[]).map_err(|problem| {
                let text = name.to_owned();
                (line, ErrorKind::Macro { text, problem })
            })?
            else {
                continue;
            };
            let value = macros::expand(text, name, self).map_err(|kind| (line, kind))?;
            if value.contains(RETRY) && !OF_THE_ATTEMPT.contains(&name) {
                let problem =
                    "the number of the attempt is known only in arguments, shell, input, output and error";
                let text = "$(RETRY)".to_owned();
                return Err((line, ErrorKind::Macro { text, problem }));
            }
            let value = value.trim();
            if !value.is_empty() {
                return Ok(Some((name, value.to_owned(), line)));
            }
        }
        Ok(None)
    }

    /// Returns the path in a command, relative to a directory.
    fn path(&self, names: &[&'static str], directory: &Path) -> Result<Option<PathBuf>, Problem> {
        let value = self.value(names)?;
        Ok(value.map(|(_, path, _)| directory.join(path)))
    }

    /// Returns the number in a command, as this function reads it.
    fn number<T>(
        &self,
        names: &[&'static str],
        read: impl Fn(&str) -> Option<T>,
        problem: &'static str,
    ) -> Result<Option<T>, Problem> {
        let Some((name, value, line)) = self.value(names)? else {
            return Ok(None);
        };
        match read(&value) {
            Some(number) => Ok(Some(number)),
            None => Err((line, invalid(name, value, problem))),
        }
    }
}

/// Text of the macro `RETRY`.
const RETRY_TEXT: &str = "\u{fdd0}";

/// Commands whose values may depend on the attempt.
const OF_THE_ATTEMPT: [&str; 9] = [
    "arguments",
    "args",
    "shell",
    "input",
    "stdin",
    "output",
    "stdout",
    "error",
    "stderr",
];

fn invalid(name: &str, value: String, problem: &'static str) -> ErrorKind {
    ErrorKind::Value {
        name: name.to_owned(),
        value,
        problem,
    }
}

/// Returns the job of a node.
///
/// # Errors
/// Commands and values that only HTCondor knows.
pub(crate) fn describe(node: &NodeView<'_>) -> Result<Described, Problem> {
    let scope = Scope::new(node);
    let ignored = check_commands(&scope)?;
    if let Some((_, universe, line)) = scope.value(&["universe"])?
        && !["vanilla", "local", "scheduler", "5", "7", "12"]
            .contains(&universe.to_ascii_lowercase().as_str())
    {
        let what = format!("universe = {universe}");
        let reason = "jobs run as in the universes vanilla, local and scheduler";
        return Err((line, ErrorKind::unsupported(what, reason)));
    }
    let initial = scope
        .path(&["initialdir", "initial_dir", "job_iwd"], node.directory)?
        .unwrap_or_else(|| node.directory.to_owned());
    let directory = scope
        .path(&["remote_initialdir"], &initial)?
        .unwrap_or_else(|| initial.clone());
    check_transfers(&scope, &initial)?;
    let (program, arguments) = program(&scope)?;
    let environment = match scope.value(&["environment", "env"])? {
        Some((name, value, line)) => quoting::environment(&value)
            .map_err(|quoting::Unreadable(problem)| (line, invalid(name, value, problem)))?,
        None => Default::default(),
    };
    let stream = |names| {
        let path = scope.path(names, &initial)?;
        Ok(path.filter(|path| path != Path::new("/dev/null")))
    };
    const WHOLE: &str = "it must be a whole number";
    let job = Job {
        program,
        arguments,
        environment,
        input: stream(&["input", "stdin"])?,
        output: stream(&["output", "stdout"])?,
        error: stream(&["error", "stderr"])?,
        cpus: scope.number(&["request_cpus", "requestcpus"], |text| text.parse().ok(), WHOLE)?,
        memory_mb: scope.number(
            &["request_memory", "requestmemory"],
            megabytes,
            "it must be a number, in MiB or with the unit K, M, G or T",
        )?,
        gpus: scope.number(&["request_gpus", "requestgpus"], |text| text.parse().ok(), WHOLE)?,
        checkpoint_exit: scope.number(
            &["checkpoint_exit_code"],
            |text| text.parse().ok().filter(|code| *code > 0),
            "it must be a whole number from 1 to 255",
        )?,
        directory,
    };
    Ok(Described {
        job,
        priority: scope.number(&["priority", "prio"], |text| text.parse().ok(), WHOLE)?,
        ignored,
    })
}

/// Returns how many jobs a `queue` makes of each item.
///
/// # Errors
/// What is not a number from 1.
pub(crate) fn count(node: &NodeView<'_>, queue: &Queue) -> Result<u32, Problem> {
    let failed = |kind| (Some(queue.line), kind);
    if queue.count.is_empty() {
        return Ok(1);
    }
    let text = macros::expand(&queue.count, "queue", &Scope::new(node)).map_err(failed)?;
    let count = text.trim().parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| {
        failed(invalid(
            "queue",
            text,
            "the number of jobs must be a whole number from 1",
        ))
    })
}

/// Returns the name of the file with the items of a `queue`.
///
/// # Errors
/// Macros that cannot be expanded.
pub(crate) fn items_file(node: &NodeView<'_>, queue: &Queue, name: &str) -> Result<String, Problem> {
    let text = macros::expand(name, "queue", &Scope::new(node));
    text.map_err(|kind| (Some(queue.line), kind))
}

/// Refuses commands that make the job another one. Returns those that are ignored.
fn check_commands(scope: &Scope<'_>) -> Result<Vec<(u32, &'static str)>, Problem> {
    for &(name, harmless, reason) in REFUSED {
        if let Some((_, value, line)) = scope.value(&[name])?
            && !value.eq_ignore_ascii_case(harmless)
        {
            return Err((line, ErrorKind::unsupported(format!("{name} = {value}"), reason)));
        }
    }
    let of = |name: &&'static str| {
        let Value { line, text } = scope.node.description.get(name)?;
        let matters = !text.is_empty() && !text.eq_ignore_ascii_case("false");
        matters.then_some((*line, *name))
    };
    Ok(IGNORED.iter().filter_map(of).collect())
}

/// Returns the program and its arguments.
fn program(scope: &Scope<'_>) -> Result<(PathBuf, Vec<String>), Problem> {
    if let Some((_, command, _)) = scope.value(&["shell"])? {
        return Ok(("/bin/sh".into(), vec!["-c".into(), command]));
    }
    // It is relative to the directory of submission, not to `initialdir`.
    let program = scope
        .path(&["executable"], scope.node.directory)?
        .ok_or_else(|| {
            let kind = ErrorKind::Missing {
                node: scope.node.name.to_owned(),
                command: "executable",
            };
            (None, kind)
        })?;
    let arguments = match scope.value(&["arguments", "args"])? {
        Some((name, value, line)) => quoting::arguments(&value)
            .map_err(|quoting::Unreadable(problem)| (line, invalid(name, value, problem)))?,
        None => Vec::new(),
    };
    Ok((program, arguments))
}

/// Refuses files that HTCondor would bring from or to other directories than that of the job, which runs
/// where they lie.
fn check_transfers(scope: &Scope<'_>, initial: &Path) -> Result<(), Problem> {
    for (names, is_input) in [
        (&["transfer_input_files", "transferinputfiles"], true),
        (&["transfer_output_files", "transferoutputfiles"], false),
    ] {
        let Some((name, list, line)) = scope.value(names)? else {
            continue;
        };
        let list = list.trim_matches('"');
        for file in list.split(',').map(str::trim).filter(|file| !file.is_empty()) {
            let is_there = match Path::new(file).parent() {
                _ if file.contains("://") => false,
                Some(parent) if parent.as_os_str().is_empty() => true,
                Some(parent) => is_input && initial.join(parent) == initial,
                None => false,
            };
            if !is_there {
                return Err((
                    line,
                    ErrorKind::unsupported(
                        format!("{name} with {file}"),
                        "the job runs in its directory (initialdir), so its files must be there",
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Parses memory in MiB, or with a unit.
fn megabytes(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_uppercase();
    let number: f64 = number.trim().parse().ok()?;
    let factor = match unit.strip_suffix('B').unwrap_or(&unit) {
        "K" => 1.0 / 1024.0,
        "M" => 1.0,
        "G" => 1024.0,
        "T" => 1024.0 * 1024.0,
        "" if unit.is_empty() => 1.0,
        _ => return None,
    };
    let megabytes = (number * factor).ceil();
    // 2^53 is the largest exact integer.
    (0.0..9e15).contains(&megabytes).then_some(megabytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> Result<Described, Problem> {
        let description = Description::parse(text).unwrap();
        let macros = |pairs: &[(&str, &str)]| -> Macros {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        describe(&NodeView {
            name: "N",
            number: 7,
            directory: Path::new("/d"),
            is_retried: true,
            prepended: &macros(&[("state", "old"), ("x", "1"), ("prefix", "p")]),
            appended: &macros(&[("last", "$(state)!")]),
            description: &description,
            process: &Process::default(),
            environment: &|name| (name == "HOME").then(|| "/home".to_owned()),
            budget: &Budget::default(),
        })
    }

    #[test]
    fn a_job_is_described() {
        let text = "executable = bin/$(JOB)\ncheckpoint_exit_code = 85\narguments = \"$(state) $(last) '$(x) $(prefix)' $ENV(HOME)\"\n\
                    state = new\nprefix = $(prefix)q\nlast = first\n\
                    initialdir = run\nerror = err.$(Cluster).$(Process)\noutput = /dev/null\ninput = /in\n\
                    env = A=1;B=$(x)\nrequest_memory = 1.5 GB\nrequest_cpus = 2\npriority = -3\nuniverse = LOCAL\n\
                    requirements = OpSys == \"LINUX\"\nperiodic_remove = false\nqueue";
        let described = described(text).map_err(|(_, kind)| kind.to_string()).unwrap();
        let job = described.job;
        assert_eq!(job.program, Path::new("/d/bin/N"));
        assert_eq!(job.arguments, ["new", "new!", "1 pq", "/home"]);
        assert_eq!((job.directory.as_path(), job.output), (Path::new("/d/run"), None));
        assert_eq!(job.error.as_deref(), Some(Path::new("/d/run/err.7.0")));
        assert_eq!(job.input.as_deref(), Some(Path::new("/in")));
        assert_eq!(job.environment["B"], "1");
        assert_eq!((job.cpus, job.memory_mb, job.gpus), (Some(2), Some(1536), None));
        assert_eq!(job.checkpoint_exit, Some(85));
        assert_eq!(described.priority, Some(-3));
        assert_eq!(described.ignored, [(16, "requirements")]);
    }

    #[test]
    fn the_number_of_the_retry_is_left_open() {
        let text = "executable = x\noutput = o.$(RETRY)\narguments = a$(retry)b $(n)\nn = $(RETRY)";
        let job = described(text).map_err(|(_, kind)| kind.to_string()).unwrap().job;
        let open = |text: &str| text.replace('#', RETRY_TEXT);
        assert_eq!(job.arguments, [open("a#b"), open("#")]);
        assert_eq!(job.output, Some(open("/d/o.#").into()));
    }

    #[test]
    fn what_needs_htcondor_is_refused() {
        for (text, line) in [
            ("universe = grid", Some(1)),
            ("arguments = a", None),
            ("executable = x\narguments = a\"", Some(2)),
            ("executable = x\nenvironment = \"a\"", Some(2)),
            ("executable = x\non_exit_remove = ExitCode == 0", Some(2)),
            ("executable = x\ndocker_image = debian", Some(2)),
            ("executable = x\nrequest_memory = 2 * 1024", Some(2)),
            ("executable = x\nrequest_cpus = 1.5", Some(2)),
            ("executable = x\ncheckpoint_exit_code = 0", Some(2)),
            ("executable = x\ncheckpoint_exit_code = 256", Some(2)),
            ("executable = x.$(RETRY)", Some(1)),
            ("executable = x\nenvironment = \"a=$(RETRY)\"", Some(2)),
            ("executable = x\noutput = o.$(DAG_STATUS)", Some(2)),
            ("executable = x\ntransfer_input_files = a, sub/b", Some(2)),
            ("executable = x\ntransfer_input_files = https://h/b", Some(2)),
            ("executable = x\ntransfer_output_files = /d/b", Some(2)),
        ] {
            let found = described(text).err().map(|(line, _)| line);
            assert_eq!(found, Some(line), "{text}");
        }
        let fine =
            "executable = x\ntransfer_input_files = a, /d/b, ./c\nhold = False\ntransfer_output_files = o";
        assert!(described(fine).is_ok());
    }
}
