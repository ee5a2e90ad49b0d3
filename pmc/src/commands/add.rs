//! `pmc add`: hands tasks to a run that takes some.

use std::io::{self, BufRead as _, BufReader, IsTerminal as _};
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use pmc_control::{AddRequest, Answer, NewTask, Request, ask};
use pmc_dag::words::quote;
use pmc_plan::input::{MAX_COMMAND, is_name, name_of, shell_words};
use pmc_terminal::{escape, print};
use serde::Deserialize;
use serde_json::json;

use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::reach;

/// Maximum tasks in a request: the run does nothing else meanwhile.
const MAX_TASKS: usize = 1000;
/// Maximum bytes of the lines of a request.
const MAX_BYTES: usize = 4 << 20;
/// Maximum bytes of a line of standard input.
const MAX_LINE: u64 = 1 << 20;
/// Runs a command with line breaks, which a DAG file cannot have: `printf` makes them.
const ESCAPED: &str = "eval \"$(printf '%b' '";

/// A task, as a line of standard input has it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    command: Command,
    label: Option<String>,
    #[serde(default)]
    after: Vec<String>,
    name: Option<String>,
    cpus: Option<u32>,
    memory_mib: Option<u64>,
    gpus: Option<u32>,
    nodes: Option<u32>,
    priority: Option<i64>,
    tries: Option<u32>,
    expected_seconds: Option<u32>,
    directory: Option<String>,
}

/// A text for the shell, or program and arguments.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Command {
    Text(String),
    Words(Vec<String>),
}

impl Default for Command {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// Hands tasks to a run. Returns the exit code.
pub fn add(arguments: &cli::Add) -> Result<u8, Failure> {
    let run = layout::find_run(&layout::given_or_latest(arguments.run.as_deref(), true))?;
    let reads_input = arguments.command.is_empty();
    if reads_input && io::stdin().is_terminal() {
        let error = anyhow!("there is no command, and standard input is a terminal");
        return Err(Failure::new(exit::USAGE, error).hint("pmc add RUN -- COMMAND"));
    }
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, reads_input);
    }
    let here = std::env::current_dir()
        .context("cannot determine the working directory")
        .or_code(exit::NOT_RUN)?;
    let here = here.display().to_string();
    if reads_input {
        return add_lines(&run.dag, &here);
    }
    let task = Task {
        command: Command::Text(arguments.command.join(" ")),
        label: arguments.label.clone(),
        after: arguments.after.clone(),
        name: arguments.name.clone(),
        cpus: arguments.cpus,
        memory_mib: arguments.memory,
        gpus: arguments.gpus,
        nodes: arguments.nodes,
        priority: arguments.priority,
        tries: arguments.tries,
        expected_seconds: arguments.expected_seconds,
        directory: None,
    };
    let task = task.prepared(&here).or_code(exit::USAGE)?;
    for id in send(&run.dag, vec![task])? {
        print(&format!("{}\n", escape(&id)));
    }
    Ok(exit::SUCCESS)
}

/// Hands the tasks of standard input to a run as they come, as many at a time as are there.
fn add_lines(dag: &Path, here: &str) -> Result<u8, Failure> {
    let mut input = BufReader::with_capacity(MAX_BYTES, io::stdin().lock());
    let (mut tasks, mut bytes) = (Vec::new(), 0);
    for number in 1_u64.. {
        let mut line = Vec::new();
        let read = io::Read::take(&mut input, MAX_LINE).read_until(b'\n', &mut line);
        let read = read
            .context("cannot read standard input")
            .or_code(exit::NOT_RUN)?;
        if read as u64 == MAX_LINE {
            let error = anyhow!("line {number} of standard input is too long");
            return Err(Failure::new(exit::USAGE, error));
        }
        if !line.trim_ascii().is_empty() {
            let task = task_of(&line, here).with_context(|| format!("line {number} of standard input"));
            tasks.push(task.or_code(exit::USAGE)?);
            bytes += read;
        }
        let is_full = tasks.len() >= MAX_TASKS || bytes >= MAX_BYTES;
        if !tasks.is_empty() && (is_full || read == 0 || !input.buffer().contains(&b'\n')) {
            let ids = send(dag, std::mem::take(&mut tasks))?;
            let lines: String = ids
                .iter()
                .map(|id| format!("{}\n", json!({ "id": id })))
                .collect();
            print(&lines);
            // Who has written the lines may wait for the answers.
            let _ = io::Write::flush(&mut io::stdout());
            bytes = 0;
        }
        if read == 0 {
            break;
        }
    }
    Ok(exit::SUCCESS)
}

fn task_of(line: &[u8], here: &str) -> anyhow::Result<NewTask> {
    let task: Task = serde_json::from_slice(line)?;
    task.prepared(here)
}

/// Hands tasks to a run, and returns their names.
fn send(dag: &Path, tasks: Vec<NewTask>) -> Result<Vec<String>, Failure> {
    let request = Request::Add(AddRequest { length: 0, tasks });
    match ask(dag, &request).or_code(exit::NOT_RUN)? {
        Answer::Added(ids) => Ok(ids),
        other => Err(reach::refused(other)),
    }
}

impl Task {
    /// Returns the task as the run takes it. `here`: where it runs, if it does not say.
    fn prepared(self, here: &str) -> anyhow::Result<NewTask> {
        let text = match &self.command {
            Command::Text(text) => text.trim().to_owned(),
            Command::Words(words) => {
                let quoted = words.iter().map(|word| pmc_calls::shell::shell_quote(word));
                quoted.collect::<Vec<_>>().join(" ")
            }
        };
        if text.is_empty() {
            bail!("the command is empty");
        }
        if self.tries == Some(0) {
            bail!("tries: a task has one attempt at least");
        }
        if text.contains('\0') {
            bail!("the command contains a NUL byte");
        }
        let name = match &self.name {
            Some(name) if is_name(name) => name.clone(),
            Some(name) => bail!("name: it needs letters, digits, and . _ -, not {name:?}"),
            None => name_of(&text).to_owned(),
        };
        let text = match text.contains(['\n', '\r']) {
            true => escaped(&text),
            false => text,
        };
        if text.len() > MAX_COMMAND {
            bail!(
                "the command has {} bytes, but a program gets at most {MAX_COMMAND} in one argument: write a script",
                text.len()
            );
        }
        let directory = self.directory.as_deref().unwrap_or(here);
        let directory = Path::new(here).join(directory).display().to_string();
        let words = shell_words(&directory, &text).map(|word| {
            let quoted = quote(word.as_bytes());
            String::from_utf8_lossy(&quoted).into_owned()
        });
        Ok(NewTask {
            options: self.options(),
            label: self.label,
            after: self.after,
            transformation: name,
            command: words.join(" "),
        })
    }

    /// Returns the options of the TASK line.
    fn options(&self) -> String {
        let options = [
            ("-c", self.cpus.map(|value| value.to_string())),
            ("-m", self.memory_mib.map(|value| value.to_string())),
            ("-g", self.gpus.map(|value| value.to_string())),
            ("-N", self.nodes.map(|value| value.to_string())),
            ("-p", self.priority.map(|value| value.to_string())),
            ("-t", self.tries.map(|value| value.to_string())),
            ("-e", self.expected_seconds.map(|value| value.to_string())),
        ];
        let given = options
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let words: Vec<String> = given.map(|(name, value)| format!("{name} {value}")).collect();
        words.join(" ")
    }
}

/// Returns a command of one line that runs a text of several ones.
fn escaped(text: &str) -> String {
    let mut line = ESCAPED.to_owned();
    for character in text.chars() {
        match character {
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\'' => line.push_str("'\\''"),
            other => line.push(other),
        }
    }
    line.push_str("')\"");
    line
}

#[cfg(test)]
mod tests {
    use pmc_dag::Dag;
    use pmc_dag::words::split;

    use super::*;

    fn prepared(line: &str) -> Result<NewTask, String> {
        task_of(line.as_bytes(), "/here").map_err(|error| format!("{error:#}"))
    }

    /// Runs a task by hand, as its line in the DAG file has it, and returns its output.
    fn run(line: &str) -> String {
        let task = prepared(line).unwrap();
        let dag = Dag::parse(format!("TASK x {} {}\n", task.options, task.command).into()).unwrap();
        let words = split(dag.task(dag.find(b"x").unwrap()).command);
        let words: Vec<_> = words
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        let (program, arguments) = words.split_first().unwrap();
        let output = std::process::Command::new(program)
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn a_line_becomes_a_task() {
        let task = prepared(
            r#"{"command": "A=1 ./x.sh \"$A\"", "label": "x", "after": ["1"], "cpus": 2, "memory_mib": 5, "gpus": 1,
                "nodes": 3, "tries": 4, "priority": -1, "expected_seconds": 9, "directory": "sub"}"#,
        );
        let task = task.unwrap();
        assert_eq!(task.options, "-c 2 -m 5 -g 1 -N 3 -p -1 -t 4 -e 9");
        assert_eq!(
            (task.transformation.as_str(), task.label.as_deref()),
            ("x.sh", Some("x"))
        );
        assert_eq!(task.after, ["1"]);
        assert!(task.command.contains(" /here/sub "), "{}", task.command);
        let words = prepared(r#"{"command": ["echo", "a  b", "it's"], "name": "say"}"#).unwrap();
        assert_eq!(words.transformation, "say");
    }

    #[test]
    fn commands_run_as_they_are_written() {
        for (command, output) in [
            (json!("echo 'a  b' \"c\\\\d\" | tr a-z A-Z"), "A  B C\\D\n"),
            (
                json!(["printf", "%s|", "a  b", "it's", "\\n$HOME"]),
                "a  b|it's|\\n$HOME|",
            ),
            (
                json!("x='it\\n'\nfor i in 1 2; do\n  printf '%s ' \"$i$x\"\ndone"),
                "1it\\n 2it\\n ",
            ),
            (json!("cat <<END\n'a' \\\\ %b\nEND\n"), "'a' \\ %b\n"),
        ] {
            let line = json!({ "command": command, "directory": "/" }).to_string();
            assert_eq!(run(&line), output, "{command}");
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for (line, message) in [
            ("{}", "missing field `command`"),
            (r#"{"command": " "}"#, "is empty"),
            (r#"{"command": "x", "cpu": 1}"#, "unknown field `cpu`"),
            (r#"{"command": "x", "name": "a b"}"#, "letters, digits"),
            (r#"{"command": "a\u0000"}"#, "NUL"),
            ("x", "expected value"),
        ] {
            let error = prepared(line).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
        let long = json!({ "command": "x".repeat(MAX_COMMAND + 1) }).to_string();
        assert!(prepared(&long).unwrap_err().contains("write a script"));
    }
}
