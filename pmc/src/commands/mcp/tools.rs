//! The tools: commands of this program, and what they take.

use serde_json::{Map, Value, json};

/// A command that is a tool.
pub(super) struct Tool {
    /// Name of tool and command.
    pub(super) name: &'static str,
    /// What it does, for those who choose a tool.
    pub(super) about: &'static str,
    /// It changes the course of a run.
    pub(super) controls: bool,
    /// Options of each call.
    options: &'static [&'static str],
    arguments: &'static [Argument],
}

/// What a tool takes.
struct Argument {
    name: &'static str,
    about: &'static str,
    place: Place,
    is_required: bool,
}

/// Where an argument is in the words of the command.
enum Place {
    /// Behind the options, in the order of the arguments.
    Word,
    /// Value of an option: a text.
    Text(&'static str),
    /// Value of an option: a number from 1 on.
    Number(&'static str),
    /// An option, if it is true.
    Flag(&'static str),
}

const RUN: &str =
    "directory of the run; without it, the working directory if it is one, else the latest run below it";
const TASK: &str = "name of the task";

const fn optional(name: &'static str, place: Place, about: &'static str) -> Argument {
    Argument {
        name,
        about,
        place,
        is_required: false,
    }
}

const fn required(name: &'static str, about: &'static str) -> Argument {
    Argument {
        is_required: true,
        ..optional(name, Place::Word, about)
    }
}

/// All tools.
pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "status",
        about: "How far a run is: its phase, its tasks by state, what runs where, and what has failed.",
        controls: false,
        options: &["--json"],
        arguments: &[optional("run", Place::Word, RUN)],
    },
    Tool {
        name: "why",
        about: "What a task of a run that goes on waits for.",
        controls: false,
        options: &["--json"],
        arguments: &[required("task", TASK), optional("run", Place::Word, RUN)],
    },
    Tool {
        name: "analyzer",
        about: "Why tasks of a run have failed, with the end of their output; root causes first.",
        controls: false,
        options: &["--json"],
        arguments: &[optional("run", Place::Word, RUN)],
    },
    Tool {
        name: "log",
        about: "The output of a task, at most its end. It is text of the programs of the workflow.",
        controls: false,
        options: &[],
        arguments: &[
            required("task", TASK),
            optional("run", Place::Word, RUN),
            optional(
                "attempt",
                Place::Number("--attempt"),
                "number of the attempt, from 1; else the latest",
            ),
            optional("stderr", Place::Flag("--stderr"), "only standard error"),
        ],
    },
    Tool {
        name: "simulate",
        about: "How long a plan or a run would take on other numbers of nodes. Nothing runs.",
        controls: false,
        options: &["--json"],
        arguments: &[
            optional("run", Place::Word, RUN),
            optional(
                "nodes",
                Place::Text("--nodes"),
                "numbers of nodes, separated by commas",
            ),
            optional(
                "walltime",
                Place::Number("--walltime"),
                "minutes in which the run is to end",
            ),
        ],
    },
    Tool {
        name: "kill",
        about: "Sends a signal to a running task.",
        controls: true,
        options: &[],
        arguments: &[
            required("task", TASK),
            required("run", "directory of the run"),
            optional(
                "signal",
                Place::Text("--signal"),
                "name or number of the signal; else TERM",
            ),
        ],
    },
    Tool {
        name: "drain",
        about: "Lets a run start no more tasks; it ends when those that run have ended.",
        controls: true,
        options: &[],
        arguments: &[
            required("run", "directory of the run"),
            optional(
                "in",
                Place::Text("--in"),
                "time until then, such as 30m; else at once",
            ),
        ],
    },
];

impl Tool {
    /// Returns the JSON Schema of its arguments.
    pub(super) fn schema(&self) -> Map<String, Value> {
        let property = |argument: &Argument| {
            let value = match argument.place {
                Place::Word | Place::Text(_) => json!({"type": "string"}),
                Place::Number(_) => json!({"type": "integer", "minimum": 1}),
                Place::Flag(_) => json!({"type": "boolean"}),
            };
            let mut value = value;
            value["description"] = argument.about.into();
            (argument.name.to_owned(), value)
        };
        let required = self.arguments.iter().filter(|argument| argument.is_required);
        let required: Vec<&str> = required.map(|argument| argument.name).collect();
        let properties: Map<String, Value> = self.arguments.iter().map(property).collect();
        Map::from_iter([
            ("type".to_owned(), "object".into()),
            ("properties".to_owned(), properties.into()),
            ("required".to_owned(), required.into()),
            ("additionalProperties".to_owned(), false.into()),
        ])
    }

    /// Returns the words of the command for these arguments.
    ///
    /// # Errors
    /// An argument is missing, unknown or of the wrong type: a message.
    pub(super) fn words(&self, given: &Map<String, Value>) -> Result<Vec<String>, String> {
        let is_known = |key: &&String| {
            self.arguments
                .iter()
                .any(|argument| argument.name == key.as_str())
        };
        if let Some(key) = given.keys().find(|key| !is_known(key)) {
            return Err(format!("{} takes no argument {key}", self.name));
        }
        let mut options: Vec<String> = vec![self.name.to_owned()];
        options.extend(self.options.iter().map(|option| (*option).to_owned()));
        // A text that begins with a hyphen is no option.
        let mut words = vec!["--".to_owned()];
        for argument in self.arguments {
            let name = argument.name;
            let value = match given.get(name) {
                Some(Value::Null) | None if argument.is_required => return Err(format!("{name} is missing")),
                Some(Value::Null) | None => continue,
                Some(value) => value,
            };
            let text = value
                .as_str()
                .filter(|text| !text.is_empty() && !text.contains('\0'));
            match argument.place {
                Place::Word => words.push(text.ok_or(format!("{name} is not a text"))?.to_owned()),
                Place::Text(option) => {
                    let text = text.ok_or(format!("{name} is not a text"))?;
                    options.push(format!("{option}={text}"));
                }
                Place::Number(option) => {
                    let number = value.as_u64().filter(|number| *number > 0);
                    let number = number.ok_or(format!("{name} is not a number from 1 on"))?;
                    options.push(format!("{option}={number}"));
                }
                Place::Flag(option) => {
                    if value
                        .as_bool()
                        .ok_or(format!("{name} is neither true nor false"))?
                    {
                        options.push(option.to_owned());
                    }
                }
            }
        }
        options.append(&mut words);
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn words(name: &str, given: Value) -> Result<Vec<String>, String> {
        let tool = TOOLS.iter().find(|tool| tool.name == name).expect("a tool");
        tool.words(given.as_object().expect("an object"))
    }

    #[test]
    fn arguments_become_words_and_never_options() {
        let line = |name: &str, given: Value| words(name, given).map(|words| words.join(" "));
        assert_eq!(line("status", json!({})).as_deref(), Ok("status --json --"));
        assert_eq!(
            line(
                "log",
                json!({"run": "-r", "task": "--help", "attempt": 2, "stderr": true})
            )
            .as_deref(),
            Ok("log --attempt=2 --stderr -- --help -r")
        );
        assert_eq!(
            line("kill", json!({"task": "a", "run": "d", "signal": "-9"})).as_deref(),
            Ok("kill --signal=-9 -- a d")
        );
        for (name, given, message) in [
            ("why", json!({}), "task is missing"),
            ("kill", json!({"task": "a"}), "run is missing"),
            ("why", json!({"task": 7}), "task is not a text"),
            ("why", json!({"task": "a\0b"}), "task is not a text"),
            (
                "log",
                json!({"task": "a", "attempt": 0}),
                "attempt is not a number from 1 on",
            ),
            (
                "log",
                json!({"task": "a", "stderr": "yes"}),
                "stderr is neither true nor false",
            ),
            ("status", json!({"dir": "x"}), "status takes no argument dir"),
        ] {
            assert_eq!(words(name, given), Err(message.to_owned()));
        }
    }

    /// A tool that its command refuses would be of no use.
    #[test]
    fn commands_take_all_that_their_tools_take() {
        for tool in TOOLS {
            let value = |argument: &Argument| match argument.place {
                Place::Text("--in") => json!("30m"),
                Place::Text("--nodes") => json!("1,2"),
                Place::Text(_) => json!("KILL"),
                Place::Word => json!("x"),
                Place::Number(_) => json!(3),
                Place::Flag(_) => json!(true),
            };
            let all = tool
                .arguments
                .iter()
                .map(|argument| (argument.name.to_owned(), value(argument)));
            let words = tool.words(&all.collect()).expect("words");
            let line = std::iter::once("pmc".to_owned()).chain(words);
            assert!(Cli::try_parse_from(line).is_ok(), "{}", tool.name);
        }
    }
}
