//! DAGMan files.

use std::fmt::Write as _;

use super::{WriteError, check_line};

/// When a script of a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Before the job.
    Pre,
    /// After the job.
    Post,
}

/// The text of a DAGMan file. The caller adds each record once.
#[derive(Debug, Default)]
pub struct DagFile {
    text: String,
}

impl DagFile {
    /// Adds a comment. Control characters in it become blanks.
    pub fn comment(&mut self, comment: &str) {
        self.text.push_str("# ");
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        self.text.extend(comment.chars().map(printable));
        self.text.push('\n');
    }

    /// Adds an empty line.
    pub fn blank(&mut self) {
        self.text.push('\n');
    }

    /// Adds a limit of running nodes for a category.
    ///
    /// # Errors
    /// A category that is no word.
    pub fn max_jobs(&mut self, category: &str, limit: u32) -> Result<(), WriteError> {
        check_word("a category", category)?;
        // Writing into a String cannot fail.
        let _ = writeln!(self.text, "MAXJOBS {category} {limit}");
        Ok(())
    }

    /// Adds a node with the path of its submit description. `is_noop`: it ends without running.
    ///
    /// # Errors
    /// A name or path that is no word.
    pub fn job(&mut self, node: &str, submit_file: &str, is_noop: bool) -> Result<(), WriteError> {
        check_node(node)?;
        check_word("the path of a submit description", submit_file)?;
        let noop = if is_noop { " NOOP" } else { "" };
        let _ = writeln!(self.text, "JOB {node} {submit_file}{noop}");
        Ok(())
    }

    /// Adds a node that is a DAG of its own.
    ///
    /// # Errors
    /// A name or path that is no word.
    pub fn subdag(&mut self, node: &str, dag: &str, directory: Option<&str>) -> Result<(), WriteError> {
        check_node(node)?;
        check_word("the path of a DAG", dag)?;
        let _ = write!(self.text, "SUBDAG EXTERNAL {node} {dag}");
        if let Some(directory) = directory {
            check_word("a directory", directory)?;
            let _ = write!(self.text, " DIR {directory}");
        }
        self.text.push('\n');
        Ok(())
    }

    /// Adds a script of a node: the program and its arguments, in the syntax of DAGMan.
    ///
    /// # Errors
    /// A command that a line cannot hold.
    pub fn script(&mut self, kind: Word, node: &str, command: &str) -> Result<(), WriteError> {
        let kind = match kind {
            Word::Pre => "PRE",
            Word::Post => "POST",
        };
        self.record("SCRIPT", &format!("{kind} {node}"), command.trim_end())
    }

    /// Adds a record `NAME NODE VALUE`, such as `RETRY`.
    ///
    /// # Errors
    /// A value that a line cannot hold.
    pub fn record(&mut self, name: &str, node: &str, value: &str) -> Result<(), WriteError> {
        check_line(name, value)?;
        let _ = writeln!(self.text, "{name} {node} {value}");
        Ok(())
    }

    /// Adds macros of a node: names and values.
    ///
    /// # Errors
    /// A value that a line cannot hold.
    pub fn vars(&mut self, node: &str, name: &str, value: &str) -> Result<(), WriteError> {
        check_line("VARS", value)?;
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(self.text, "VARS {node} {name}=\"{value}\"");
        Ok(())
    }

    /// Adds an edge.
    pub fn edge(&mut self, parent: &str, child: &str) {
        for part in ["PARENT ", parent, " CHILD ", child, "\n"] {
            self.text.push_str(part);
        }
    }

    /// Returns the file.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

fn check_word(what: &'static str, text: &str) -> Result<(), WriteError> {
    let is_bad = text.is_empty()
        || text.contains(|c: char| c.is_whitespace() || c.is_control())
        || text.starts_with(['"', '#'])
        || text.ends_with('\\');
    match is_bad {
        true => Err(WriteError::Name {
            what,
            text: text.to_owned(),
        }),
        false => Ok(()),
    }
}

/// Refuses names of nodes that DAGMan refuses.
fn check_node(node: &str) -> Result<(), WriteError> {
    const RESERVED: [&str; 3] = ["parent", "child", "all_nodes"];
    let is_reserved = RESERVED.iter().any(|word| word.eq_ignore_ascii_case(node));
    // HTCondor joins names of splices with `+`.
    if is_reserved || node.contains('+') {
        return Err(WriteError::Name {
            what: "the name of a node",
            text: node.to_owned(),
        });
    }
    check_word("the name of a node", node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dag_is_written() {
        let mut dag = DagFile::default();
        dag.max_jobs("heavy", 2).unwrap();
        dag.job("a", "a.sub", false).unwrap();
        dag.script(Word::Post, "a", "/bin/x 'y z' ").unwrap();
        dag.vars("a", "My.Note", "say \"hi\" \\o/").unwrap();
        dag.subdag("b", "b.dag", Some("there")).unwrap();
        dag.edge("a", "b");
        assert_eq!(
            dag.finish(),
            "MAXJOBS heavy 2\nJOB a a.sub\nSCRIPT POST a /bin/x 'y z'\n\
             VARS a My.Note=\"say \\\"hi\\\" \\\\o/\"\nSUBDAG EXTERNAL b b.dag DIR there\nPARENT a CHILD b\n"
        );
    }

    #[test]
    fn names_that_are_no_words_are_refused() {
        let mut dag = DagFile::default();
        for name in ["", "a b", "a\nb", "PARENT", "a+b", "\"a", "#a"] {
            assert!(dag.job(name, "x.sub", false).is_err(), "{name}");
        }
        assert!(dag.job("a", "x y.sub", false).is_err());
        assert!(dag.script(Word::Pre, "a", "x\ny").is_err());
        assert_eq!(dag.finish(), "");
    }
}
