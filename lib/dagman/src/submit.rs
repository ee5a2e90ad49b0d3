//! Submit descriptions: assignments and `queue`.

use rustc_hash::FxHashMap;

use crate::error::ErrorKind;
use crate::queue::{self, Progress, Queue};
use crate::text::{Line, Lines};

/// A value, before macros are expanded, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) text: String,
    pub(crate) line: u32,
}

/// Commands and macros of a submit description, by their names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Description {
    values: FxHashMap<String, Value>,
    /// The jobs; without it, one.
    pub(crate) queue: Option<Queue>,
    /// It is in a file of its own.
    pub(crate) is_file: bool,
}

impl Description {
    /// Returns the value of a command, whose name is in lower case.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Parses the text of a submit description.
    ///
    /// # Errors
    /// The line of the problem, and the problem.
    pub(crate) fn parse(text: &str) -> Result<Self, (u32, ErrorKind)> {
        let mut description = Description {
            is_file: true,
            ..Description::default()
        };
        let mut progress = Progress::Commands;
        for line in Lines::new(text) {
            let added = description.add(&line, &mut progress);
            added.map_err(|kind| (line.number, kind))?;
        }
        description.check_end(progress)?;
        Ok(description)
    }

    /// Refuses a list of `queue` that has no end.
    ///
    /// # Errors
    /// The line of the `queue`, and the problem.
    pub(crate) fn check_end(&self, progress: Progress) -> Result<(), (u32, ErrorKind)> {
        match (&self.queue, progress) {
            (Some(queue), Progress::Words | Progress::Rows) => {
                Err((queue.line, queue::invalid("(", "the list has no end, `)`")))
            }
            _ => Ok(()),
        }
    }

    /// Adds a line.
    pub(crate) fn add(&mut self, line: &Line<'_>, progress: &mut Progress) -> Result<(), ErrorKind> {
        let text = line.text.as_ref();
        if let (Progress::Words | Progress::Rows, Some(queue)) = (*progress, &mut self.queue) {
            *progress = queue.add_line(text, *progress);
            return Ok(());
        }
        let first = text.split([' ', '\t', '=', ':']).next().unwrap_or_default();
        if first.eq_ignore_ascii_case("queue") && !text[first.len()..].trim_start().starts_with('=') {
            if *progress == Progress::End {
                let reason = "the jobs of a node differ in macros only";
                return Err(ErrorKind::unsupported("a second queue", reason));
            }
            let (queue, next) = Queue::parse(&text[first.len()..], line.number)?;
            (self.queue, *progress) = (Some(queue), next);
            return Ok(());
        }
        if *progress == Progress::End {
            // It would be a setting of the next `queue`.
            return Ok(());
        }
        for word in ["if", "elif", "else", "endif", "include", "use"] {
            if first.eq_ignore_ascii_case(word) && !text[first.len()..].trim_start().starts_with('=') {
                return Err(ErrorKind::unsupported(
                    text,
                    "write the lines that apply into the submit description",
                ));
            }
        }
        let Some((name, value)) = text.split_once('=') else {
            return Err(ErrorKind::SubmitLine(text.to_owned()));
        };
        let (name, value) = (name.trim(), value.trim());
        if name.ends_with('@') {
            return Err(ErrorKind::unsupported(text, "write the value on one line"));
        }
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(ErrorKind::SubmitLine(text.to_owned()));
        }
        let name = name.to_ascii_lowercase();
        let before = self.values.get(&name).map(|value| value.text.as_str());
        let text = match before {
            Some(before) => resolve(value, &name, before),
            None => value.to_owned(),
        };
        if text.len() > MAX_VALUE {
            return Err(ErrorKind::Value {
                name,
                value: text.chars().take(40).collect(),
                problem: "it has more than 1 MiB",
            });
        }
        let line = line.number;
        self.values.insert(name, Value { text, line });
        Ok(())
    }
}

/// Maximum length of a value in bytes.
const MAX_VALUE: usize = 1 << 20;

/// Replaces a macro in its own value by its value so far.
fn resolve(value: &str, name: &str, before: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    let mut close = value.find(')');
    while let Some(at) = rest.find("$(") {
        let (head, from) = rest.split_at(at);
        out.push_str(head);
        let inner = &from[2..];
        // Each parenthesis is looked for once.
        let start = value.len() - inner.len();
        if close.is_some_and(|close| close < start) {
            close = inner.find(')').map(|end| start + end);
        }
        let is_own = close.map(|close| close - start).filter(|&end| {
            let (inner, length) = (inner.as_bytes(), name.len().min(end));
            let is_named = inner[..length].eq_ignore_ascii_case(name.as_bytes());
            is_named && (length == end || inner[length] == b':' && !inner[length..end].contains(&b'('))
        });
        match is_own {
            Some(end) => {
                out.push_str(before);
                rest = &inner[end + 1..];
            }
            None => {
                out.push_str("$(");
                rest = inner;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn assignments_are_read() {
        let text = "# A job\nExecutable = /bin/x\nargs = a\nargs = $(ARGS:x) b \\\n  c\n+Group = \"g\"\nqueue 1\nargs = z\n";
        let description = Description::parse(text).unwrap();
        let value = |name: &str| {
            description
                .get(name)
                .map(|value| (value.text.as_str(), value.line))
        };
        assert_eq!(value("executable"), Some(("/bin/x", 2)));
        assert_eq!(value("args"), Some(("a b c", 4)));
        assert_eq!(value("+group"), Some(("\"g\"", 6)));
        assert_eq!(value("x"), None);
    }

    #[test]
    fn lines_that_need_htcondor_are_refused() {
        for (text, line) in [
            ("a = 1\nqueue\nqueue", 3),
            ("queue x matching *.dat", 1),
            ("\nqueue x in (a\nb", 2),
            ("\nif defined x", 2),
            ("include : more.sub", 1),
            ("nothing", 1),
            ("a b = c", 1),
            ("x @=end", 1),
        ] {
            assert_eq!(Description::parse(text).unwrap_err().0, line, "{text}");
        }
        assert!(Description::parse("queue_name = 2\nqueue").is_ok());
        let several = Description::parse("x = 1\nqueue x from (\n a = b\n queue\n)\ny = 2").unwrap();
        assert_eq!(several.queue.unwrap().line, 2);
    }

    #[test]
    fn a_value_with_many_macros_is_read_in_linear_time() {
        let many = "$(".repeat(1 << 18);
        let start = std::time::Instant::now();
        for end in ["", ")"] {
            let _ = Description::parse(&format!("a = 1\na = {many}{end}\n"));
        }
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([a= \n\\\\$()]|queue|if|in|from|#)*") {
            let _ = Description::parse(&text);
        }
    }
}
