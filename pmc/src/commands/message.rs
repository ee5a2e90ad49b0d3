//! `pmc message`: a task says how far it is. `pmc status` shows the last message of each task that runs.

use std::fmt::Write as _;

use anyhow::anyhow;
use pmc_checkpoint::Store;
use pmc_monitor::history::{History, State};
use pmc_terminal::escape;
use serde_json::{Value, json};

use super::checkpoint::connect;
use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Maximum messages that are shown.
const MAX_SHOWN: usize = 20;

/// Keeps the message of a task. Returns the exit code.
pub fn message(arguments: &cli::Message) -> Result<u8, Failure> {
    let text = one_line(&arguments.text.join(" "));
    if text.is_empty() {
        return Err(Failure::new(exit::USAGE, anyhow!("the message is empty")));
    }
    let text = match &arguments.mail {
        Some(address) if address.contains(char::is_whitespace) || address.is_empty() => {
            let error = anyhow!("--mail: {address:?} is no mail address");
            return Err(Failure::new(exit::USAGE, error));
        }
        Some(address) => format!("mailto:{address} {text}"),
        None => text,
    };
    connect()?.message(text).or_code(exit::NOT_RUN)?;
    Ok(exit::SUCCESS)
}

/// Returns a text in one line without control characters.
fn one_line(text: &str) -> String {
    let plain = text.replace(char::is_control, " ");
    let words: Vec<&str> = plain.split_whitespace().collect();
    words.join(" ")
}

/// A task that runs, and its last message.
pub struct TaskMessage {
    task: String,
    text: String,
}

/// Returns the messages of tasks that run.
pub fn of_running(history: &History) -> Vec<TaskMessage> {
    // Most runs have no such directory.
    let Ok(Some(store)) = Store::open(&history.dir.dag) else {
        return Vec::new();
    };
    let running = history.in_state(State::Running);
    let messages = running.filter_map(|task| {
        let text = store.task(history.plan.name(task)).ok()?.message()?;
        Some(TaskMessage {
            task: history.plan.text_name(task),
            text: one_line(&text),
        })
    });
    messages.take(MAX_SHOWN).collect()
}

/// Returns messages as a list of objects.
pub fn json(messages: &[TaskMessage]) -> Value {
    let object = |message: &TaskMessage| json!({"task": message.task, "text": message.text});
    messages.iter().map(object).collect()
}

/// Writes a line for each message.
pub fn human(out: &mut String, messages: &[TaskMessage]) {
    if messages.is_empty() {
        return;
    }
    out.push_str("\nMessages\n");
    for TaskMessage { task, text } in messages {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "  {}: {}", escape(task), escape(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_control_characters() {
        assert_eq!(one_line("step\t7\u{1b}[31m of\r\n 9 "), "step 7 [31m of 9");
        assert_eq!(one_line("\n\u{7}"), "");
    }

    #[test]
    fn messages_are_escaped() {
        let mut text = String::new();
        human(&mut text, &[]);
        assert_eq!(text, "");
        let messages = [TaskMessage {
            task: "a\u{1b}".to_owned(),
            text: "step 7".to_owned(),
        }];
        human(&mut text, &messages);
        assert_eq!(text, "\nMessages\n  a\\u001b: step 7\n");
        assert_eq!(json(&messages), json!([{"task": "a\u{1b}", "text": "step 7"}]));
    }
}
