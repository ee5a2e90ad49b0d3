//! Commands as lines of DAG files for pegasus-mpi-cluster, and of lists for pegasus-cluster.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::rc::Rc;

use pmc_dag::write::TaskLine;

use crate::tasks::requests::Kind;
use crate::tasks::{Invocation, Shared};

/// Quotes a word for a DAG file. Plain words are unchanged.
pub(crate) fn quote(word: &str) -> Cow<'_, str> {
    match pmc_dag::words::quote(word.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(word),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// An invocation in the syntax of a DAG file.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// What environment and options are made of. Similar jobs follow each other.
    shared: Rc<Shared>,
    environment: String,
    options: String,
    /// Length of those options that similar jobs share.
    shared_options: usize,
    inherits_environment: bool,
    program: String,
    arguments: String,
}

impl Line {
    /// Replaces the line by that of another invocation.
    pub(crate) fn fill(&mut self, invocation: &Invocation) {
        if !Rc::ptr_eq(&self.shared, &invocation.shared) {
            self.shared = invocation.shared.clone();
            self.environment.clear();
            push_environment(&self.shared, &mut self.environment);
            self.options.clear();
            push_options(&self.shared, &mut self.options);
            self.shared_options = self.options.len();
        }
        self.options.truncate(self.shared_options);
        for (name, value) in &invocation.expression_values {
            push_pair("--expression-value", name, value, &mut self.options);
        }
        self.inherits_environment = invocation.inherits_environment;
        self.program.clear();
        self.program.push_str(&quote(&invocation.program));
        self.arguments.clear();
        invocation.arguments.write(&mut self.arguments, quote);
    }

    /// Returns the words before the program that set its environment, and a blank, if there are any.
    pub(crate) fn environment(&self) -> &str {
        match self.inherits_environment {
            true => "",
            false => &self.environment,
        }
    }

    /// Returns the first program.
    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    /// Returns the arguments of the first program.
    pub(crate) fn arguments(&self) -> &str {
        &self.arguments
    }

    /// Returns a TASK line with the requests. `command` is the command or its beginning.
    pub(crate) fn task<'a>(&'a self, name: &'a str, command: &'a str) -> TaskLine<'a> {
        let requests = &self.shared.requests;
        TaskLine {
            name,
            memory_mb: requests.memory_mb,
            cpus: requests.cpus,
            gpus: requests.gpus,
            priority: requests.priority,
            tries: requests.tries,
            options: &self.options,
            command,
        }
    }
}

/// Appends the words that set the environment.
fn push_environment(shared: &Shared, text: &mut String) {
    let environment = &shared.environment;
    if !(environment.set.is_empty() && environment.unset.is_empty()) {
        text.push_str("/usr/bin/env ");
    }
    for variable in environment.unset {
        // Writing into a String cannot fail.
        let _ = write!(text, "-u {variable} ");
    }
    for (key, value) in &environment.set {
        let _ = write!(text, "{} ", quote(&format!("{key}={value}")));
    }
    if let Some(path) = &environment.script {
        let _ = write!(text, "/bin/sh {} ", quote(path));
    }
}

/// Appends an option with the value `NAME=VALUE`.
fn push_pair(option: &str, name: &str, value: &str, text: &mut String) {
    // Writing into a String cannot fail.
    let _ = write!(text, "{option} {} ", quote(&format!("{name}={value}")));
}

/// Appends further options of the task.
fn push_options(shared: &Shared, text: &mut String) {
    let Shared { requests, checks, .. } = shared;
    // Writing into a String cannot fail.
    let _ = match checks.abort_on {
        Some((code, Some(exit))) => write!(text, "--abort-on {code}={exit} "),
        Some((code, None)) => write!(text, "--abort-on {code} "),
        None => Ok(()),
    };
    let _ = write!(text, "{}", requests.gang);
    if let Some(category) = &requests.category {
        let _ = write!(text, "--category {} ", quote(category));
    }
    if let Some(factor) = &requests.more_memory {
        let _ = write!(text, "--more-memory {factor} ");
    }
    if let Some(delay) = &requests.retry_delay {
        let _ = write!(text, "--retry-delay {} ", quote(delay));
    }
    if let Some(seconds) = &requests.expected_time {
        let _ = write!(text, "-e {} ", quote(seconds));
    }
    if let Some(signal) = &requests.checkpoint_signal {
        let _ = write!(text, "--checkpoint-signal {} ", quote(signal));
    }
    if let Some(code) = requests.checkpoint_exit {
        let _ = write!(text, "--checkpoint-exit {code} ");
    }
    for (amount, expression) in &requests.expressions {
        push_pair("--request-expression", amount.name(), expression, text);
    }
    for (kind, message) in &checks.messages {
        let option = match kind {
            Kind::Failure => "--failure-message",
            Kind::Success => "--success-message",
        };
        let _ = write!(text, "{option} {} ", quote(message));
    }
    if let Some(stdin) = &requests.stdin {
        let _ = write!(text, "--stdin {} ", quote(stdin));
    }
    text.push_str(&requests.options);
}
