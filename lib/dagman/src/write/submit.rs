//! Submit descriptions.

use super::{WriteError, check_line};

/// The text of a submit description.
#[derive(Debug, Default)]
pub struct SubmitFile {
    text: String,
}

impl SubmitFile {
    /// Adds a comment. Control characters in it become blanks.
    pub fn comment(&mut self, comment: &str) {
        self.text.push_str("# ");
        // A comment, too, goes on after a backslash.
        let printable = |c: char| if c.is_control() || c == '\\' { ' ' } else { c };
        self.text.extend(comment.chars().map(printable));
        self.text.push('\n');
    }

    /// Adds a command, a macro, or with `+` before its name an attribute. HTCondor replaces macros in the
    /// value.
    ///
    /// # Errors
    /// A name or a value that a line cannot hold.
    pub fn command(&mut self, name: &str, value: &str) -> Result<(), WriteError> {
        let plain = name.strip_prefix('+').unwrap_or(name);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if plain.is_empty() || !plain.chars().all(is_name) || plain.eq_ignore_ascii_case("queue") {
            return Err(WriteError::Name {
                what: "a command",
                text: name.to_owned(),
            });
        }
        check_line(name, value)?;
        for part in [name, " = ", value, "\n"] {
            self.text.push_str(part);
        }
        Ok(())
    }

    /// Ends the description, and returns it.
    #[must_use]
    pub fn queue(mut self) -> String {
        self.text.push_str("queue\n");
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_written() {
        let mut file = SubmitFile::default();
        file.comment("of a\njob\\");
        file.command("executable", "/bin/true").unwrap();
        file.command("+Group", "\"g\"").unwrap();
        assert_eq!(
            file.queue(),
            "# of a job \nexecutable = /bin/true\n+Group = \"g\"\nqueue\n"
        );
    }

    #[test]
    fn lines_that_would_be_others_are_refused() {
        let mut file = SubmitFile::default();
        for (name, value) in [
            ("a", "b\nqueue"),
            ("a", "b\\"),
            ("a", "b\\ "),
            ("a b", "c"),
            ("queue", "3"),
            ("", "x"),
            ("+", "x"),
            ("a\n", "x"),
        ] {
            assert!(file.command(name, value).is_err(), "{name} = {value}");
        }
        assert_eq!(file.queue(), "queue\n");
    }
}
