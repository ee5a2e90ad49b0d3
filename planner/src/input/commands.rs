//! Reads a file of commands: each line is a command for the shell and becomes a compute job. A line that
//! begins with `#@` has options for the next command. The jobs use no logical files.
//!
//! ```text
//! # A comment.
//! ./prepare 1
//! #@ label=two -c 4 -m 2000 tries=3
//! ./prepare 2 > two.txt
//! #@ after=2,two
//! cat two.txt
//! ```

use std::borrow::Cow;
use std::path::Path;

use pmc_dag::DagErrorKind;
use pmc_dag::record::Record;
use pmc_dag::words::{Words as DagWords, has_open_quote, quote};
use rustc_hash::FxHashMap;

use super::DAG_VERSION;
use super::ReadOptions;
use super::builder::Builder;
use super::executor_dag::{OptionError, Whole, set_options};
use crate::error::InputErrors;
use crate::model::{Arguments, Job, Origin, Position, TransformationName, Words, Workflow};
use crate::profiles::{Namespace, Profiles};
use crate::syntax::text;

const SHELL: &str = "/bin/sh";
/// Goes to the directory and runs the command there. The command is an argument of its own, so that nothing
/// in it can end the script around it.
const SCRIPT: &str = r#"cd "$0" && eval "$1""#;
/// Begins a line with options for the next command.
const OPTIONS: &str = "#@";
/// Maximum bytes of a command: Linux gives a program no longer argument (`MAX_ARG_STRLEN`, with its NUL).
pub const MAX_COMMAND: usize = 128 * 1024 - 1;
/// Maximum bytes of a label, which is a part of file names.
const MAX_LABEL: usize = 100;
/// Name of a command whose first word is not that of a program.
const UNNAMED: &str = "command";
/// Words of the shell that say nothing about what a command does.
const SHELL_WORDS: [&str; 13] = [
    "cd", "for", "if", "while", "until", "case", "export", "set", "source", ".", "exec", "eval", "time",
];
/// Endings of names of workflows in other formats.
const OTHER_FORMATS: [&str; 7] = ["yml", "yaml", "dax", "xml", "dag", "json", "toml"];
/// Keys at the beginning of a line that show that a file is a workflow in YAML.
const WORKFLOW_KEYS: [&str; 4] = ["pegasus:", "x-pegasus:", "jobs:", "jobDependencies:"];

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error(transparent)]
    Dag(#[from] DagErrorKind),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error("a quote is never closed")]
    OpenQuote,
    #[error(
        "`{0}` is no option: write -c, -m and the like with a value, label=, after=, tries=, runtime= or name="
    )]
    UnknownOption(String),
    #[error("{0} has no value")]
    NoValue(String),
    #[error("{option} needs {needs}, not `{value}`")]
    Value {
        option: &'static str,
        needs: &'static str,
        value: String,
    },
    #[error(
        "the command has {0} bytes, but a program gets at most {MAX_COMMAND} in one argument: write a script"
    )]
    TooLong(usize),
    #[error("the command contains a NUL byte")]
    Nul,
    #[error("after={0}: line {0} has no command")]
    NoCommand(String),
    #[error("after={0}: no command has this label")]
    NoLabel(String),
    #[error("these options have no command: the file ends here")]
    NoNext,
}

/// Returns whether a file is one of commands: its name has none of the endings of other formats, and its
/// text is neither XML nor a workflow in YAML.
pub(super) fn is_commands(path: &Path, content: &str) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy());
    if extension.is_some_and(|extension| {
        let mut others = OTHER_FORMATS.iter();
        others.any(|other| extension.eq_ignore_ascii_case(other))
    }) {
        return false;
    }
    if text::is_xml(content) || content.starts_with(['{', '%']) || content.starts_with("---") {
        return false;
    }
    let is_key = |line: &str| WORKFLOW_KEYS.iter().any(|key| line.starts_with(key));
    !content.lines().any(is_key) && content.lines().any(|line| !line.trim().is_empty())
}

/// Options of a command.
#[derive(Debug, Default)]
struct CommandOptions {
    /// Where they begin.
    position: Position,
    profiles: Profiles,
    /// Name that other commands may use.
    label: Option<String>,
    /// Name of the kind of command, for statistics.
    name: Option<String>,
    /// Lines and labels of the commands that must be done before.
    after: Vec<String>,
}

/// Reads a file of commands. They run in `directory`.
///
/// # Errors
/// All options that cannot be understood, commands that are too long, and dependencies on unknown commands.
pub(super) fn read(
    path: &Path,
    content: &str,
    directory: &Path,
    options: &ReadOptions,
) -> Result<Workflow, InputErrors> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let mut reader = Reader {
        builder: Builder::new(path),
        directory: directory.display().to_string(),
        next: None,
        ids_of_lines: FxHashMap::default(),
        waiting: Vec::new(),
    };
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    reader.builder.set_label(&name, Position::default(), &[]);
    reader.builder.workflow.version = DAG_VERSION.to_owned();
    reader.builder.workflow.origin = Origin::Commands;
    let mut lines = content.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let mut command = Cow::Borrowed(line.trim());
        // The shell takes out a backslash with the line break after it.
        while !command.starts_with('#') && has_continuation(&command) {
            let Some((more, _)) = lines.next() else { break };
            let length = command.len() - 1;
            let joined = command.to_mut();
            joined.truncate(length);
            joined.push_str(more.trim_end());
        }
        let position = Position {
            line: number,
            column: 0,
        };
        if let Err(problem) = reader.line(&command, position) {
            reader.builder.problem(position, problem.to_string());
        }
    }
    if let Some(options) = reader.next.take() {
        reader
            .builder
            .problem(options.position, LineError::NoNext.to_string());
    }
    reader.add_dependencies();
    reader.builder.finish(options)
}

/// Returns whether a command goes on in the next line: it ends with a backslash that no other one escapes.
fn has_continuation(command: &str) -> bool {
    let backslashes = command.bytes().rev().take_while(|&byte| byte == b'\\').count();
    backslashes % 2 == 1
}

/// A command for the shell.
pub(super) struct ShellCommand<'a> {
    /// Identifier of its job.
    pub(super) id: String,
    /// Name of the kind of command, for statistics.
    pub(super) name: String,
    /// Where it runs.
    pub(super) directory: &'a str,
    /// The command.
    pub(super) text: &'a str,
    /// What it requests.
    pub(super) profiles: Profiles,
    /// Where it is written.
    pub(super) position: Position,
}

impl ShellCommand<'_> {
    /// Adds a job for the command.
    pub(super) fn add(self, builder: &mut Builder) -> Result<(), LineError> {
        let mut profiles = self.profiles;
        // As for the tasks of a DAG: what is not requested is not the planner's default.
        if profiles.get(Namespace::Pegasus, "memory").is_none() {
            profiles.set(Namespace::Pegasus, "memory", "0");
        }
        // A record would keep only the beginning of the output.
        profiles.set(Namespace::Pegasus, "gridstart", "none");
        profiles.set(Namespace::Selector, "pfn", SHELL);
        let transformation = builder.transformation(TransformationName {
            name: self.name,
            ..TransformationName::default()
        });
        let mut arguments = Words::default();
        for word in &shell_words(self.directory, self.text)[1..] {
            arguments.push(word);
        }
        let job = Job {
            id: self.id,
            transformation,
            arguments: Arguments::Exact(arguments),
            profiles,
            position: self.position,
            ..Job::default()
        };
        builder.add_job(job, self.position);
        if self.text.contains('\0') {
            return Err(LineError::Nul);
        }
        match self.text.len() {
            length if length > MAX_COMMAND => Err(LineError::TooLong(length)),
            _ => Ok(()),
        }
    }
}

/// Returns the words of the command that runs a text in the shell, in a directory.
#[must_use]
pub fn shell_words<'a>(directory: &'a str, text: &'a str) -> [&'a str; 5] {
    [SHELL, "-c", SCRIPT, directory, text]
}

/// Reads one line after another.
struct Reader {
    builder: Builder,
    directory: String,
    /// Options for the next command.
    next: Option<CommandOptions>,
    /// Job of the command that begins in a line.
    ids_of_lines: FxHashMap<u32, String>,
    /// Commands that wait for others: job, what it waits for, position.
    waiting: Vec<(String, Vec<String>, Position)>,
}

impl Reader {
    /// Reads a line, without blanks around it.
    fn line(&mut self, line: &str, position: Position) -> Result<(), LineError> {
        if let Some(options) = line.strip_prefix(OPTIONS) {
            let next = self.next.get_or_insert_with(|| CommandOptions {
                position,
                ..CommandOptions::default()
            });
            return next.add(options);
        }
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let options = self.next.take().unwrap_or_default();
        let id = options.label.unwrap_or_else(|| position.line.to_string());
        self.ids_of_lines.insert(position.line, id.clone());
        if !options.after.is_empty() {
            self.waiting.push((id.clone(), options.after, options.position));
        }
        let command = ShellCommand {
            id,
            name: options.name.unwrap_or_else(|| name_of(line).to_owned()),
            directory: &self.directory,
            text: line,
            profiles: options.profiles,
            position,
        };
        command.add(&mut self.builder)
    }

    /// Adds the edges of all commands that wait for others.
    fn add_dependencies(&mut self) {
        for (child, parents, position) in std::mem::take(&mut self.waiting) {
            for parent in parents {
                let id = match parent.parse::<u32>() {
                    Ok(line) => self
                        .ids_of_lines
                        .get(&line)
                        .cloned()
                        .ok_or(LineError::NoCommand(parent)),
                    Err(_) if self.builder.job(&parent).is_some() => Ok(parent),
                    Err(_) => Err(LineError::NoLabel(parent)),
                };
                match id {
                    Ok(id) => self.builder.add_dependency(&id, &child, position),
                    Err(problem) => self.builder.problem(position, problem.to_string()),
                }
            }
        }
    }
}

impl CommandOptions {
    /// Adds the options of a line.
    fn add(&mut self, text: &str) -> Result<(), LineError> {
        if has_open_quote(text.as_bytes()) {
            return Err(LineError::OpenQuote);
        }
        let mut of_task = String::new();
        let mut words =
            DagWords::new(text.as_bytes()).map(|word| String::from_utf8_lossy(&word).into_owned());
        while let Some(word) = words.next() {
            if word.starts_with('-') {
                of_task.push_str(&word);
                of_task.push(' ');
                let value = words.next().ok_or(LineError::NoValue(word))?;
                of_task.push_str(&String::from_utf8_lossy(&quote(value.as_bytes())));
                of_task.push(' ');
                continue;
            }
            match word.split_once('=') {
                Some((key, value)) => self.set(key, value, &word)?,
                None => return Err(LineError::UnknownOption(word)),
            }
        }
        self.set_task_options(&of_task)
    }

    /// Sets an option with a name.
    fn set(&mut self, key: &str, value: &str, word: &str) -> Result<(), LineError> {
        let wrong = |option, needs| LineError::Value {
            option,
            needs,
            value: value.to_owned(),
        };
        match key {
            "label" => {
                let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
                if is_number || !is_name(value) {
                    return Err(wrong(
                        "label=",
                        "letters, digits, and . _ -, and not digits alone",
                    ));
                }
                self.label = Some(value.to_owned());
            }
            "name" if is_name(value) => self.name = Some(value.to_owned()),
            "name" => return Err(wrong("name=", "letters, digits, and . _ -")),
            "after" => {
                let names = value.split(',').map(str::trim);
                self.after
                    .extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
                if self.after.is_empty() {
                    return Err(wrong("after=", "numbers of lines, or labels"));
                }
            }
            "tries" => {
                let tries: u32 = value
                    .parse()
                    .ok()
                    .filter(|tries| *tries > 0)
                    .ok_or_else(|| wrong("tries=", "a number from 1"))?;
                self.profiles
                    .set(Namespace::Dagman, "retry", &(tries - 1).to_string());
            }
            "runtime" => {
                value
                    .parse::<u32>()
                    .map_err(|_| wrong("runtime=", "whole seconds"))?;
                self.profiles.set(Namespace::Pegasus, "runtime", value);
            }
            _ => return Err(LineError::UnknownOption(word.to_owned())),
        }
        Ok(())
    }

    /// Sets options of the TASK line.
    fn set_task_options(&mut self, options: &str) -> Result<(), LineError> {
        const PROGRAM: &str = "/bin/true";
        let line = format!("TASK command {options}{PROGRAM}");
        let Record::Task(task) = Record::parse(line.as_bytes())? else {
            return Ok(());
        };
        let (request, command) = task.request()?;
        if command != PROGRAM.as_bytes() {
            return Err(LineError::UnknownOption(options.trim_end().to_owned()));
        }
        let given = |names: [&str; 2]| {
            let mut words = options.split(' ');
            words.any(|word| names.contains(&word))
        };
        let mut set = |key: &str, value: String| self.profiles.set(Namespace::Pegasus, key, &value);
        if given(["-m", "--request-memory"]) {
            set("memory", request.memory_mb.to_string());
        }
        if given(["-c", "--request-cpus"]) {
            set("cores", request.cpus.to_string());
        }
        if request.gpus > 0 {
            set("gpus", request.gpus.to_string());
        }
        Ok(set_options(options.as_bytes(), Whole::Run, &mut self.profiles)?)
    }
}

/// Returns whether a text can be a part of a file name.
pub fn is_name(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.len() <= MAX_LABEL && text.bytes().all(is_valid) && !text.starts_with(['.', '-'])
}

/// Returns the name of the program that a command starts, as far as the first word shows it.
#[must_use]
pub fn name_of(command: &str) -> &str {
    let is_assignment = |word: &&str| word.contains('=') && !word.starts_with(['/', '.', '=']);
    let word = command.split_whitespace().find(|word| !is_assignment(word));
    let name = word.and_then(|word| word.rsplit('/').next()).unwrap_or_default();
    match is_name(name) && !SHELL_WORDS.contains(&name) {
        true => name,
        false => UNNAMED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobIndex;

    fn parsed(content: &str) -> Result<Workflow, String> {
        let path = Path::new("/data/commands.txt");
        read(path, content, Path::new("/data"), &ReadOptions::default()).map_err(|e| e.to_string())
    }

    fn edges(workflow: &Workflow) -> Vec<(&str, &str)> {
        let id = |index: JobIndex| workflow.jobs[index].id.as_str();
        workflow
            .edges
            .iter()
            .map(|&(parent, child)| (id(parent), id(child)))
            .collect()
    }

    #[test]
    fn options_of_the_first_command_are_no_record_of_a_dag() {
        let text = "#@ label=one -c 2\nsleep 1\n";
        assert!(!crate::input::executor_dag::is_executor_dag(text));
        assert!(is_commands(Path::new("words.txt"), text));
        assert_eq!(parsed(text).unwrap().jobs[JobIndex::new(0)].id, "one");
        assert!(crate::input::executor_dag::is_executor_dag(
            "#@ 1 work:1.0 ID1\nTASK work_ID1 true\n"
        ));
    }

    #[test]
    fn each_line_is_a_command() {
        let workflow = parsed(
            "#!/bin/sh\n# one\necho 'a  b' | wc -c\n\n  A=1 ./x.sh \"$A\"\r\nfor i in 1 2; do :; done\n",
        )
        .unwrap();
        let jobs: Vec<_> = workflow
            .jobs
            .iter()
            .map(|job| (job.id.as_str(), job.transformation.name.as_str()))
            .collect();
        assert_eq!(jobs, [("3", "echo"), ("5", "x.sh"), ("6", "command")]);
        let Arguments::Exact(words) = &workflow.jobs[1].arguments else {
            panic!("split arguments")
        };
        let words: Vec<&str> = words.iter().collect();
        assert_eq!(words, ["-c", SCRIPT, "/data", "A=1 ./x.sh \"$A\""]);
        assert_eq!(workflow.label, "commands");
        assert_eq!(workflow.origin, Origin::Commands);
    }

    #[test]
    fn a_backslash_joins_lines() {
        let workflow = parsed("echo a \\\n  b\necho 'c\\\\'\n#@ label=x \\\necho d\n");
        let workflow = workflow.unwrap_err();
        assert!(workflow.contains(":4: `\\` is no option"), "{workflow}");
        let workflow = parsed("echo a \\\n  b\necho c\\\\\necho d\\").unwrap();
        let last = |job: &Job| match &job.arguments {
            Arguments::Exact(words) => words.iter().last().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        let commands: Vec<String> = workflow.jobs.iter().map(last).collect();
        assert_eq!(commands, ["echo a   b", "echo c\\\\", "echo d\\"]);
        assert_eq!(workflow.jobs[1].id, "3");
    }

    #[test]
    fn options_are_for_the_next_command() {
        let text = "first\n#@ -c 4 -m 2000 label=x\n#@ tries=3 after=1 -g 1 --category 'a b' runtime=60 name=step\n\nsecond\nthird\n#@ after=x,5\nlast\n";
        let workflow = parsed(text).unwrap();
        let second = &workflow.jobs[1];
        assert_eq!(
            (second.id.as_str(), second.transformation.name.as_str()),
            ("x", "step")
        );
        let profile = |namespace, key| second.profiles.get(namespace, key).unwrap_or_default();
        assert_eq!(profile(Namespace::Pegasus, "cores"), "4");
        assert_eq!(profile(Namespace::Pegasus, "memory"), "2000");
        assert_eq!(profile(Namespace::Pegasus, "gpus"), "1");
        assert_eq!(profile(Namespace::Pegasus, "runtime"), "60");
        assert_eq!(profile(Namespace::Dagman, "retry"), "2");
        assert_eq!(profile(Namespace::Dagman, "category"), "a b");
        assert!(
            workflow.jobs[2]
                .profiles
                .get(Namespace::Pegasus, "cores")
                .is_none()
        );
        assert_eq!(edges(&workflow), [("1", "x"), ("x", "8")]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, message) in [
            ("#@ -c\nx\n", "-c has no value"),
            ("#@ -c four\nx\n", "four"),
            ("#@ 4\nx\n", "`4` is no option"),
            ("#@ colour=red\nx\n", "`colour=red` is no option"),
            ("#@ label=7\nx\n", "label= needs"),
            ("#@ label=../x\nx\n", "label= needs"),
            ("#@ tries=0\nx\n", "tries= needs"),
            ("#@ after=\nx\n", "after= needs"),
            ("#@ runtime=1h\nx\n", "runtime= needs"),
            ("#@ label='x\nx\n", "quote"),
            ("x\n#@ after=9\ny\n", "line 9 has no command"),
            ("x\n#@ after=nobody\ny\n", "no command has this label"),
            ("x\n#@ label=y\n", "have no command"),
            ("#@ label=a after=b\nx\n#@ label=b after=a\ny\n", "cycle"),
            ("#@ label=a\nx\n#@ label=a\ny\n", "used twice"),
            ("# nothing\n", "no jobs"),
            ("x\0y\n", "NUL"),
            ("#@ -f A=b\nx\n", "forward"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(message), "{text:?}: {error}");
        }
        let long = format!("echo {}", "x".repeat(MAX_COMMAND));
        assert!(parsed(&long).unwrap_err().contains("at most 131071"));
    }

    #[test]
    fn other_formats_are_not_commands() {
        let is = |name: &str, text: &str| is_commands(Path::new(name), text);
        assert!(is("commands.txt", "echo a\n"));
        assert!(is("jobs", "\n# x\necho a: b\n"));
        assert!(is("run.sh", "#!/bin/sh\necho a\n"));
        assert!(!is("w.yml", "echo a\n"));
        assert!(!is("w.DAX", "echo a\n"));
        assert!(!is("w.txt", "x-pegasus:\n  a: b\npegasus: 5.0\n"));
        assert!(!is("w", "<?xml version=\"1.0\"?><adag/>"));
        assert!(!is("w", "{\"pegasus\": 5}"));
        assert!(!is("w", "\n \n"));
    }
}
