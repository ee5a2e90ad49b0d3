//! The commands of a DAGMan file, before names and files are resolved.

use std::rc::Rc;

use crate::error::ErrorKind;
use crate::model::AbortOn;
use crate::queue::Progress;
use crate::submit::Description;
use crate::text::{Lines, take_keyword, take_word};

/// A command and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) line: u32,
    pub(crate) command: Command,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// `JOB`.
    Job(Entry<Submit>),
    /// `SUBDAG EXTERNAL`, with the DAGMan file.
    SubDag(Entry<String>),
    /// `SPLICE`, with the DAGMan file.
    Splice(Entry<String>),
    /// `SUBMIT-DESCRIPTION`.
    Describe(String, Description),
    /// `INCLUDE`.
    Include(String),
    /// `PARENT … CHILD …`.
    Edges(Vec<String>, Vec<String>),
    /// `MAXJOBS`.
    MaxJobs(String, u32),
    /// A command of [`IGNORED`], and why it is ignored.
    Ignored(&'static str, &'static str),
    /// A setting of a node, or of all nodes of the file.
    Set(Option<String>, Setting),
}

/// A node or a splice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry<C> {
    pub(crate) name: String,
    pub(crate) content: C,
    pub(crate) directory: Option<String>,
    pub(crate) noop: bool,
    pub(crate) done: bool,
}

/// Where the submit description of a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Submit {
    /// The name of a description in the DAGMan file, or a file.
    Named(String),
    Inline(Rc<Description>),
}

/// What is said of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Pre(Vec<String>),
    Post(Vec<String>),
    /// A HOLD script: no job is ever held.
    Hold,
    PreSkip(u8),
    /// Retries, and the exit code after which there is none.
    Retry(u32, Option<u8>),
    Priority(i64),
    Category(String),
    AbortOn(AbortOn),
    /// Name and value of each macro; whether they come after the submit description.
    Vars(Vec<(String, String)>, bool),
    Done,
}

/// Commands that do not change what runs, and why they are ignored.
const IGNORED: &[(&str, &str)] = &[
    ("CONFIG", "there is no DAGMan to configure"),
    ("DOT", "pmc-plan draws plans with --svg"),
    ("JOBSTATE_LOG", "the executor writes a jobstate.log of its own"),
    ("NODE_STATUS_FILE", "pmc status shows the state of the run"),
    ("SAVE_POINT_FILE", "pmc resume continues a run where it ended"),
    ("SET_JOB_ATTR", "there is no ClassAd of DAGMan"),
];

/// Commands that only HTCondor can follow, and why.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("CONNECT", "splices are connected by PARENT and CHILD"),
    ("DATA", "there is no Stork"),
    ("ENV", "set the environment of each job in its submit description"),
    (
        "FINAL",
        "make it a JOB with all others as parents, or use the option --on-end of pmc run",
    ),
    ("PIN_IN", "splices are connected by PARENT and CHILD"),
    ("PIN_OUT", "splices are connected by PARENT and CHILD"),
    ("PROVISIONER", "the batch system provides the nodes"),
    ("REJECT", "the file says that it must not run"),
    ("SERVICE", "every job takes part in the DAG"),
    ("SUBMITDESCRIPTION", "write SUBMIT-DESCRIPTION"),
    ("TOLERANCE", "a node is one job"),
    ("WEAK", "a child starts when its parents have succeeded"),
];

/// Commands that are followed.
const SUPPORTED: &[&str] = &[
    "ABORT-DAG-ON",
    "CATEGORY",
    "DONE",
    "INCLUDE",
    "JOB",
    "MAXJOBS",
    "NODE",
    "PARENT",
    "PRE_SKIP",
    "PRIORITY",
    "RETRY",
    "SCRIPT",
    "SPLICE",
    "SUBDAG",
    "SUBMIT-DESCRIPTION",
    "VARS",
];

/// Returns whether a text is a DAGMan file: its first command is one of DAGMan. Workflows in YAML or XML are
/// not, nor are DAG files of pegasus-mpi-cluster, with which DAGMan shares MAXJOBS. `SUBDAG PLANNED` is a
/// line of those only.
#[must_use]
pub fn is_dagman(text: &str) -> bool {
    for line in Lines::new(text) {
        let mut rest = line.text.as_ref();
        let Some(word) = take_word(&mut rest) else {
            continue;
        };
        if word.eq_ignore_ascii_case("MAXJOBS") {
            continue;
        }
        if word.eq_ignore_ascii_case("SUBDAG") && take_word(&mut { rest }) == Some("PLANNED") {
            return false;
        }
        let others = UNSUPPORTED.iter().chain(IGNORED).map(|(name, _)| name);
        let mut all = SUPPORTED.iter().chain(others);
        let known = all.any(|name| name.eq_ignore_ascii_case(word));
        return known && (!rest.trim().is_empty() || word.eq_ignore_ascii_case("REJECT"));
    }
    false
}

/// Parses a DAGMan file.
///
/// # Errors
/// The line of the problem, and the problem.
pub(crate) fn parse(text: &str) -> Result<Vec<Located>, (u32, ErrorKind)> {
    let mut commands = Vec::new();
    let mut lines = Lines::new(text);
    while let Some(line) = lines.next() {
        let parsed =
            command(&line.text, &mut lines).map_err(|(inner, kind)| (inner.unwrap_or(line.number), kind))?;
        let line = line.number;
        commands.push(Located {
            line,
            command: parsed,
        });
    }
    Ok(commands)
}

/// A problem and its line, if it is another than that of the command.
type Problem = (Option<u32>, ErrorKind);

fn command(text: &str, lines: &mut Lines<'_>) -> Result<Command, Problem> {
    let mut rest = text;
    let written = take_word(&mut rest).unwrap_or_default();
    let word = written.to_ascii_uppercase();
    let rest = &mut rest;
    let command = match word.as_str() {
        "JOB" | "NODE" => return job(rest, lines).map(Command::Job),
        "SUBMIT-DESCRIPTION" => {
            let name = name("SUBMIT-DESCRIPTION", rest)?;
            let Some(description) = inline(rest, lines)? else {
                return Err(here("SUBMIT-DESCRIPTION", "`{` must follow the name"));
            };
            no_more("SUBMIT-DESCRIPTION", rest)?;
            return Ok(Command::Describe(name, description));
        }
        "SUBDAG" => {
            if !take_keyword(rest, "EXTERNAL") {
                return Err(here("SUBDAG", "EXTERNAL must follow"));
            }
            let name = name("SUBDAG", rest)?;
            let file = required("SUBDAG", rest, "a DAGMan file")?;
            Command::SubDag(entry("SUBDAG", name, file, rest, true)?)
        }
        "SPLICE" => {
            let name = name("SPLICE", rest)?;
            let file = required("SPLICE", rest, "a DAGMan file")?;
            Command::Splice(entry("SPLICE", name, file, rest, false)?)
        }
        "INCLUDE" => {
            let file = required("INCLUDE", rest, "a file")?;
            no_more("INCLUDE", rest)?;
            Command::Include(file)
        }
        "PARENT" => edges(rest)?,
        "MAXJOBS" => {
            let category = required("MAXJOBS", rest, "a category")?;
            let limit = number("MAXJOBS", rest, "the maximum")?;
            no_more("MAXJOBS", rest)?;
            Command::MaxJobs(category, limit)
        }
        "SCRIPT" => return script(rest),
        "VARS" => return vars(rest),
        "RETRY" | "PRIORITY" | "CATEGORY" | "ABORT-DAG-ON" | "PRE_SKIP" | "DONE" => {
            return setting(&word, rest);
        }
        _ => {
            if let Some((name, reason)) = IGNORED.iter().find(|(name, _)| *name == word) {
                return Ok(Command::Ignored(name, reason));
            }
            let known = UNSUPPORTED.iter().find(|(name, _)| *name == word);
            return Err((
                None,
                match known {
                    Some((_, reason)) => ErrorKind::unsupported(word, reason),
                    None => ErrorKind::UnknownCommand(written.to_owned()),
                },
            ));
        }
    };
    Ok(command)
}

/// A problem of the line itself.
fn here(command: &'static str, problem: impl Into<String>) -> Problem {
    (None, ErrorKind::syntax(command, problem))
}

fn required(command: &'static str, rest: &mut &str, what: &str) -> Result<String, Problem> {
    let word = take_word(rest).filter(|word| !word.is_empty());
    let word = word.ok_or_else(|| here(command, format!("{what} is missing")))?;
    Ok(word.to_owned())
}

fn number<T: std::str::FromStr>(command: &'static str, rest: &mut &str, what: &str) -> Result<T, Problem> {
    let word = required(command, rest, what)?;
    let number = word.parse();
    number.map_err(|_| here(command, format!("{what} cannot be `{word}`")))
}

fn no_more(command: &'static str, rest: &str) -> Result<(), Problem> {
    match rest.trim() {
        "" => Ok(()),
        more => Err(here(command, format!("`{more}` is too much"))),
    }
}

/// Returns the name of a new node.
fn name(command: &'static str, rest: &mut &str) -> Result<String, Problem> {
    let name = required(command, rest, "a name")?;
    let reserved = ["PARENT", "CHILD", "ALL_NODES"];
    if reserved.iter().any(|word| name.eq_ignore_ascii_case(word)) {
        return Err(here(command, format!("{name} cannot be a name")));
    }
    // As in DAGMan: `+` separates splices and nodes, and `.` the numbers of DAGs.
    if name.contains(|c: char| c == '+' || c == '.' || c.is_whitespace() || c.is_control()) {
        return Err(here(
            command,
            format!("the name `{name}` contains one of `+`, `.` and blanks"),
        ));
    }
    Ok(name)
}

/// Returns the node that a setting is for; `None` for all.
fn target(command: &'static str, rest: &mut &str) -> Result<Option<String>, Problem> {
    let name = required(command, rest, "a node")?;
    Ok((!name.eq_ignore_ascii_case("ALL_NODES")).then_some(name))
}

fn job(rest: &mut &str, lines: &mut Lines<'_>) -> Result<Entry<Submit>, Problem> {
    let name = name("JOB", rest)?;
    let submit = match inline(rest, lines)? {
        Some(description) => Submit::Inline(Rc::new(description)),
        None => Submit::Named(required("JOB", rest, "a submit description")?),
    };
    entry("JOB", name, submit, rest, true)
}

/// Reads `[DIR directory] [NOOP] [DONE]`.
fn entry<C>(
    command: &'static str,
    name: String,
    content: C,
    rest: &mut &str,
    is_node: bool,
) -> Result<Entry<C>, Problem> {
    let mut entry = Entry {
        name,
        content,
        directory: None,
        noop: false,
        done: false,
    };
    loop {
        if take_keyword(rest, "DIR") {
            entry.directory = Some(required(command, rest, "a directory")?);
        } else if is_node && take_keyword(rest, "NOOP") {
            entry.noop = true;
        } else if is_node && take_keyword(rest, "DONE") {
            entry.done = true;
        } else {
            no_more(command, rest)?;
            return Ok(entry);
        }
    }
}

/// Reads the lines of an inline submit description, if one begins here. What follows its end is left in
/// `rest`, if it is on the line of the beginning; nothing may follow the end elsewhere.
fn inline(rest: &mut &str, lines: &mut Lines<'_>) -> Result<Option<Description>, Problem> {
    let begin = rest.trim();
    let end = match begin.strip_prefix("@=") {
        Some(tag) if !tag.is_empty() && !tag.contains(char::is_whitespace) => format!("@{tag}"),
        Some(_) => return Err(here("JOB", "`@=` needs a tag")),
        None if begin == "{" => "}".to_owned(),
        None if begin.starts_with('{') => {
            return Err(here("JOB", "an inline description begins on the line after `{`"));
        }
        None => return Ok(None),
    };
    *rest = "";
    let mut description = Description::default();
    let mut progress = Progress::Commands;
    for line in lines {
        if line.text == end {
            let checked = description.check_end(progress);
            checked.map_err(|(line, kind)| (Some(line), kind))?;
            return Ok(Some(description));
        }
        let added = description.add(&line, &mut progress);
        added.map_err(|kind| (Some(line.number), kind))?;
    }
    Err(here("JOB", format!("the inline description has no end, `{end}`")))
}

fn edges(rest: &mut &str) -> Result<Command, Problem> {
    let (mut parents, mut children) = (Vec::new(), Vec::new());
    let mut is_child = false;
    while let Some(word) = take_word(rest) {
        if word.eq_ignore_ascii_case("CHILD") {
            if is_child {
                return Err(here("PARENT", "CHILD stands twice"));
            }
            is_child = true;
        } else if is_child {
            children.push(word.to_owned());
        } else {
            parents.push(word.to_owned());
        }
    }
    if parents.is_empty() || children.is_empty() {
        return Err(here("PARENT", "it must be PARENT node … CHILD node …"));
    }
    Ok(Command::Edges(parents, children))
}

fn script(rest: &mut &str) -> Result<Command, Problem> {
    for keyword in ["DEFER", "DEBUG"] {
        if take_keyword(rest, keyword) {
            let reason = "the script itself can wait, or write its output to a file";
            return Err((None, ErrorKind::unsupported(format!("SCRIPT {keyword}"), reason)));
        }
    }
    let kind = required("SCRIPT", rest, "PRE or POST")?.to_ascii_uppercase();
    let node = target("SCRIPT", rest)?;
    let words: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() {
        return Err(here("SCRIPT", "a program is missing"));
    }
    let setting = match kind.as_str() {
        "PRE" => Setting::Pre(words),
        "POST" => Setting::Post(words),
        "HOLD" => Setting::Hold,
        other => return Err(here("SCRIPT", format!("it must be PRE or POST, not {other}"))),
    };
    Ok(Command::Set(node, setting))
}

fn vars(rest: &mut &str) -> Result<Command, Problem> {
    let node = target("VARS", rest)?;
    let append = take_keyword(rest, "APPEND");
    if !append {
        take_keyword(rest, "PREPEND");
    }
    let mut pairs = Vec::new();
    let mut text = rest.trim_start();
    while !text.is_empty() {
        let unreadable = || here("VARS", format!("`{text}` must be name=\"value\""));
        let (name, after) = text.split_once('=').ok_or_else(unreadable)?;
        let name = name.trim_end();
        let after = after.trim_start().strip_prefix('"').ok_or_else(unreadable)?;
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '"') {
            return Err(unreadable());
        }
        let mut value = String::new();
        let mut chars = after.chars();
        loop {
            match chars.next().ok_or_else(unreadable)? {
                '"' => break,
                '\\' => match chars.next().ok_or_else(unreadable)? {
                    c @ ('"' | '\\') => value.push(c),
                    c => value.extend(['\\', c]),
                },
                c => value.push(c),
            }
        }
        pairs.push((name.to_ascii_lowercase(), value));
        text = chars.as_str().trim_start();
    }
    if pairs.is_empty() {
        return Err(here("VARS", "name=\"value\" is missing"));
    }
    Ok(Command::Set(node, Setting::Vars(pairs, append)))
}

fn setting(command: &str, rest: &mut &str) -> Result<Command, Problem> {
    let (command, node, setting) = match command {
        "RETRY" => {
            let node = target("RETRY", rest)?;
            let retries = number("RETRY", rest, "the number of retries")?;
            let unless_exit = match take_keyword(rest, "UNLESS-EXIT") {
                true => Some(number("RETRY", rest, "the value of UNLESS-EXIT, from 0 to 255,")?),
                false => None,
            };
            ("RETRY", node, Setting::Retry(retries, unless_exit))
        }
        "PRIORITY" => {
            let node = target("PRIORITY", rest)?;
            (
                "PRIORITY",
                node,
                Setting::Priority(number("PRIORITY", rest, "the priority")?),
            )
        }
        "CATEGORY" => {
            let node = target("CATEGORY", rest)?;
            (
                "CATEGORY",
                node,
                Setting::Category(required("CATEGORY", rest, "a category")?),
            )
        }
        "ABORT-DAG-ON" => {
            let node = target("ABORT-DAG-ON", rest)?;
            let code = number("ABORT-DAG-ON", rest, "the exit code, from 0 to 255,")?;
            let exit = match take_keyword(rest, "RETURN") {
                true => Some(number(
                    "ABORT-DAG-ON",
                    rest,
                    "the value of RETURN, from 0 to 255,",
                )?),
                false => None,
            };
            ("ABORT-DAG-ON", node, Setting::AbortOn(AbortOn { code, exit }))
        }
        "PRE_SKIP" => {
            let node = target("PRE_SKIP", rest)?;
            (
                "PRE_SKIP",
                node,
                Setting::PreSkip(number("PRE_SKIP", rest, "the exit code, from 0 to 255,")?),
            )
        }
        _ => {
            let node = required("DONE", rest, "a node")?;
            ("DONE", Some(node), Setting::Done)
        }
    };
    no_more(command, rest)?;
    Ok(Command::Set(node, setting))
}

#[cfg(test)]
mod tests;
