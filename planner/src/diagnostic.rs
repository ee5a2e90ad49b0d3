//! Diagnostics: what the planner reports to its user, with the place in the input file if there is one.

use std::fmt;
use std::path::{Path, PathBuf};

/// Position in an input file, both numbers counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// Returns line and column (in characters) of a byte of the text.
pub(crate) fn position_of(text: &str, byte: usize) -> Position {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let start = memchr::memrchr(b'\n', before).map_or(0, |n| n + 1);
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
    Position {
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: u32::try_from(column).unwrap_or(u32::MAX),
    }
}

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Prevents the plan.
    Error,
    /// The plan exists, but may not be what the user wants.
    Warning,
}

/// One error or warning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Input file, as the user named it, if the problem is in one.
    pub file: Option<PathBuf>,
    /// Position in the file, if known.
    pub position: Option<Position>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// Creates an error from its printed form without a file: the message, and its hint if it has one.
    pub fn error(text: impl Into<String>) -> Self {
        let (message, hint) = split_hint(text.into());
        Diagnostic {
            severity: Severity::Error,
            file: None,
            position: None,
            message,
            hint,
        }
    }
    /// Creates a warning in the same way.
    pub fn warning(text: impl Into<String>) -> Self {
        Diagnostic::error(text).as_warning()
    }
    /// Creates an error in a file as a whole.
    pub fn in_file(file: &Path, message: impl Into<String>) -> Self {
        Diagnostic {
            severity: Severity::Error,
            file: Some(file.to_owned()),
            position: None,
            message: message.into(),
            hint: None,
        }
    }
    /// Creates an error at a position of a file.
    pub fn at(file: &Path, position: Position, message: impl Into<String>) -> Self {
        Diagnostic {
            position: Some(position),
            ..Diagnostic::in_file(file, message)
        }
    }
    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// Returns it as a warning.
    #[must_use]
    pub fn as_warning(self) -> Self {
        let severity = Severity::Warning;
        Diagnostic { severity, ..self }
    }

    /// A JSON object with the keys `severity`, `file`, `line`, `column`, `message` and `hint`. Unknown values
    /// are `null`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "severity": match self.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            },
            "file": self.file.as_ref().map(|file| file.display().to_string()),
            "line": self.position.map(|position| position.line),
            "column": self.position.map(|position| position.column).filter(|&column| column > 0),
            "message": self.message,
            "hint": self.hint,
        })
    }
}

impl fmt::Display for Diagnostic {
    /// `FILE:LINE:COLUMN: message`, and the hint on its own line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(Position { line, column }) = self.position {
                write!(f, "{line}:")?;
                if column > 0 {
                    write!(f, "{column}:")?;
                }
            }
            f.write_str(" ")?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "{HINT}{hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Diagnostic {}

/// Separates message and hint in printed form.
pub(crate) const HINT: &str = "\n  hint: ";

/// Splits the printed form of a problem into message and hint.
fn split_hint(mut text: String) -> (String, Option<String>) {
    let hint = text.find(HINT).map(|at| {
        let hint = text[at + HINT.len()..].to_owned();
        text.truncate(at);
        hint
    });
    (text, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_hints() {
        let position = Position { line: 3, column: 7 };
        let error = Diagnostic::at(Path::new("w.yml"), position, "wrong").with_hint("right");
        assert_eq!(error.to_string(), "w.yml:3:7: wrong\n  hint: right");
        let json = error.json();
        assert_eq!(
            (json["line"].as_u64(), json["hint"].as_str()),
            (Some(3), Some("right"))
        );
        assert_eq!(
            Diagnostic::in_file(Path::new("w.yml"), "wrong").to_string(),
            "w.yml: wrong"
        );
    }

    #[test]
    fn hints_are_separated_from_messages() {
        let diagnostic = Diagnostic::error("no site x\n  hint: add it");
        assert_eq!(
            (diagnostic.message.as_str(), diagnostic.hint.as_deref()),
            ("no site x", Some("add it"))
        );
        assert_eq!(diagnostic.to_string(), "no site x\n  hint: add it");
    }
}
