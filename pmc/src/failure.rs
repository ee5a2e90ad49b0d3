//! Error of a command: message, advice and exit code.

use std::fmt::Write as _;

use pmc_control::Answer;
use pmc_terminal::escape;

use crate::exit;

/// An error with its exit code and, where there is one, advice.
#[derive(Debug)]
pub struct Failure {
    /// One of [`crate::exit`].
    pub code: u8,
    /// Error with its causes.
    pub error: anyhow::Error,
    /// What the user can do.
    pub hint: Option<String>,
}

impl Failure {
    /// Makes a failure without advice.
    pub fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Failure {
            code,
            error: error.into(),
            hint: None,
        }
    }

    /// Makes the failure that an unexpected answer means: a refusal, or a run of another version.
    pub fn of_answer(answer: &Answer) -> Self {
        let reason = match answer {
            Answer::Refused(reason) => escape(reason),
            _ => "the run is of another version".into(),
        };
        Failure::new(exit::NOT_RUN, anyhow::anyhow!("{reason}"))
    }

    /// Adds advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Renders message, causes and advice for the terminal.
    pub fn render(&self) -> String {
        let mut last = without_number(&self.error.to_string());
        let mut text = format!("pmc: {last}");
        for cause in self
            .error
            .chain()
            .skip(1)
            .map(|cause| without_number(&cause.to_string()))
        {
            // Some libraries repeat the cause in their message.
            if !last.contains(&cause) {
                let _ = write!(text, "\n  because: {cause}");
            }
            last = cause;
        }
        if let Some(hint) = &self.hint {
            let _ = write!(text, "\n  hint: {hint}");
        }
        text
    }
}

/// Removes the error numbers that the standard library adds.
fn without_number(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    whole
}

/// Adds an exit code to an error.
pub trait OrCode<T> {
    /// Turns the error into a [`Failure`] with this code.
    fn or_code(self, code: u8) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrCode<T> for Result<T, E> {
    fn or_code(self, code: u8) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(code, error))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn causes_are_printed_once() {
        let error = std::fs::read("/nonexistent")
            .context("cannot read it")
            .expect_err("there is no such file");
        let failure = Failure::new(4, error).hint("make it");
        assert_eq!(
            failure.render(),
            "pmc: cannot read it\n  because: No such file or directory\n  hint: make it"
        );
        let error = std::fs::read("/nonexistent")
            .context("cannot: No such file or directory")
            .expect_err("no file");
        assert_eq!(
            Failure::new(4, error).render(),
            "pmc: cannot: No such file or directory"
        );
        let error = anyhow::anyhow!("cannot write x: No space left on device (os error 28), 2 files");
        assert_eq!(
            Failure::new(4, error).render(),
            "pmc: cannot write x: No space left on device, 2 files"
        );
        let error = anyhow::anyhow!("inner").context("outer: inner");
        assert_eq!(Failure::new(4, error).render(), "pmc: outer: inner");
    }
}
