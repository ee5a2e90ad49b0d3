//! Writes DAGMan files and submit descriptions.
//!
//! The formats are those of the manual of HTCondor 25; [`read`](crate::read) reads what is written here.

mod dag;
mod quoting;
mod submit;

use thiserror::Error;

pub use dag::{DagFile, Word as ScriptKind};
pub use quoting::{Dollars, arguments, class_ad_string, environment, literal};
pub use submit::SubmitFile;

/// A text that a format cannot express.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WriteError {
    /// A line break or a NUL in a value.
    #[error("{what}: `{}` contains a line break or a NUL, which a file of HTCondor cannot express", shown(.text))]
    LineBreak {
        /// The command or the record.
        what: String,
        /// The value.
        text: String,
    },
    /// HTCondor would take the next line for a part of the value.
    #[error("{what}: `{}` ends with a backslash, which continues the line in a file of HTCondor", shown(.text))]
    Continued {
        /// The command or the record.
        what: String,
        /// The value.
        text: String,
    },
    /// A name that is no word.
    #[error("`{}` cannot be {what} in a file of HTCondor", shown(.text))]
    Name {
        /// What it would be the name of.
        what: &'static str,
        /// The name.
        text: String,
    },
}

/// Returns the start of a text for a message, on one line.
fn shown(text: &str) -> String {
    const LENGTH: usize = 60;
    let mut shown: String = text.chars().take(LENGTH).flat_map(char::escape_debug).collect();
    if text.chars().nth(LENGTH).is_some() {
        shown.push('…');
    }
    shown
}

/// Refuses a value that does not fit on a line.
fn check_line(what: &str, text: &str) -> Result<(), WriteError> {
    if text.contains(['\n', '\r', '\0']) {
        return Err(WriteError::LineBreak {
            what: what.to_owned(),
            text: text.to_owned(),
        });
    }
    if text.trim_end().ends_with('\\') {
        return Err(WriteError::Continued {
            what: what.to_owned(),
            text: text.to_owned(),
        });
    }
    Ok(())
}
