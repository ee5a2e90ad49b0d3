//! Why a DAGMan file cannot be read.

use std::path::PathBuf;

use thiserror::Error;

/// A problem, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}:{line}: {kind}", file.display())]
pub struct DagmanError {
    /// The DAGMan file or submit description.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: u32,
    /// What is wrong.
    pub kind: ErrorKind,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file cannot be loaded.
    #[error("cannot read {}: {reason}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The reason of the operating system.
        reason: String,
    },
    /// The first word of a line is no command of DAGMan.
    #[error("`{0}` is no command of DAGMan")]
    UnknownCommand(String),
    /// A command lacks words or has too many, or a word is not what it must be.
    #[error("{command}: {problem}")]
    Syntax {
        /// The command.
        command: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A command, or a form of it, that runs only under HTCondor.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// Command, option or value.
        what: String,
        /// Why, or what to do instead.
        reason: &'static str,
    },
    /// A name that no node has.
    #[error("there is no node {0}")]
    UnknownNode(String),
    /// A name that two nodes, splices or descriptions have.
    #[error("the name {0} is used twice")]
    RepeatedName(String),
    /// Files that include each other without end.
    #[error("{} is part of itself", .0.display())]
    Circle(PathBuf),
    /// The file has no node.
    #[error("{} has no node", .0.display())]
    Empty(PathBuf),
    /// More than fits into memory, or than can be read in a reasonable time.
    #[error("the DAG has more than {limit} {what}")]
    TooLarge {
        /// Nodes, edges, bytes, parts.
        what: &'static str,
        /// Their maximum.
        limit: usize,
    },
    /// A line of a submit description is no assignment and no `queue`.
    #[error("`{0}` is no line of a submit description")]
    SubmitLine(String),
    /// A value of a submit description cannot be used.
    #[error("{name} = {value}: {problem}")]
    Value {
        /// The command.
        name: String,
        /// Its value, with macros expanded.
        value: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A macro that cannot be expanded.
    #[error("{text}: {problem}")]
    Macro {
        /// The macro, as written.
        text: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A submit description lacks a command that each job needs.
    #[error("the submit description of the node {node} has no {command}")]
    Missing {
        /// Name of the node.
        node: String,
        /// The command.
        command: &'static str,
    },
}

impl ErrorKind {
    pub(crate) fn syntax(command: &'static str, problem: impl Into<String>) -> Self {
        ErrorKind::Syntax {
            command,
            problem: problem.into(),
        }
    }

    pub(crate) fn unsupported(what: impl Into<String>, reason: &'static str) -> Self {
        ErrorKind::Unsupported {
            what: what.into(),
            reason,
        }
    }
}
