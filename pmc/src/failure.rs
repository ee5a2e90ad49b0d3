//! Why a command ends without success: what the rim prints and the exit code.

use std::fmt::Write as _;

/// An error with its exit code and, where there is one, advice.
#[derive(Debug)]
pub struct Failure {
    /// One of [`crate::exit`].
    pub code: u8,
    /// Message and causes.
    pub error: anyhow::Error,
    /// What the user can do.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without advice.
    pub fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Failure {
            code,
            error: error.into(),
            hint: None,
        }
    }

    /// Adds advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The text for the terminal: message, causes, advice.
    pub fn render(&self) -> String {
        let mut last = without_number(&self.error.to_string());
        let mut text = format!("pmc: {last}");
        for cause in self
            .error
            .chain()
            .skip(1)
            .map(|cause| without_number(&cause.to_string()))
        {
            // Some libraries repeat the cause in their own message.
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

/// Leaves out the numbers that the standard library adds to errors of the system.
fn without_number(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    whole
}

/// Gives errors an exit code on their way up.
pub trait OrCode<T> {
    /// The error becomes a [`Failure`] with this code.
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
    fn causes_are_told_once() {
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
