//! Positions of errors in input files.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use pmc_dag::cycle::Cycle;
use pmc_dag::{Dag, TaskId};

/// Maximum number of characters of a line that are shown.
const MAX_SHOWN: usize = 200;

/// A line of a file with a message about it. `Display` is `[FILE:LINE] TEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file.
    pub file: PathBuf,
    /// Number of the line, counted from 1.
    pub line: u64,
    /// The line itself or a message about it.
    pub text: String,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}:{}] {}", self.file.display(), self.line, self.text)
    }
}

impl Position {
    /// Returns the position of a line, with the line as its text.
    pub(super) fn of_line(file: &Path, line: u64) -> Self {
        let text = lines(file).nth(usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1));
        let text = shorten(text.as_deref().unwrap_or_default());
        Self {
            file: file.to_owned(),
            line,
            text,
        }
    }

    /// Returns the position of the last edge in the file that belongs to a cycle.
    pub(super) fn of_cycle(file: &Path, dag: &Dag, cycle: &Cycle) -> Self {
        let next = |at: usize| cycle.tasks[(at + 1) % cycle.tasks.len()];
        let edges: Vec<(TaskId, TaskId)> = (0..cycle.tasks.len())
            .map(|at| (cycle.tasks[at], next(at)))
            .collect();
        let is_part = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let keyword = words.next().is_some_and(|word| word.starts_with("EDGE"));
            let (Some(parent), Some(child)) = (words.next(), words.next()) else {
                return false;
            };
            let find = |name: &str| dag.find(name.as_bytes());
            let edge = find(parent).zip(find(child));
            keyword && edge.is_some_and(|edge| edges.contains(&edge))
        };
        let line = (1..).zip(lines(file)).filter(|(_, line)| is_part(line)).last();
        let names = cycle.tasks.iter().chain(cycle.tasks.first());
        let names: Vec<_> = names
            .map(|task| String::from_utf8_lossy(dag.name(*task)))
            .collect();
        let blocked = cycle.blocked.len();
        let tasks = if blocked == 1 { "task" } else { "tasks" };
        let text = format!(
            "{blocked} {tasks} can never run because of a cycle: {}",
            shorten(&names.join(" -> "))
        );
        Self {
            file: file.to_owned(),
            line: line.map_or(0, |(number, _)| number),
            text,
        }
    }
}

/// Returns the lines of a file; none if it cannot be read.
fn lines(file: &Path) -> impl Iterator<Item = String> {
    let reader = pmc_files::open(file).ok().map(BufReader::new);
    let lines = reader
        .into_iter()
        .flat_map(|reader| reader.split(b'\n').map_while(Result::ok));
    lines.map(|line| String::from_utf8_lossy(&line).trim().to_owned())
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_line_has_its_text() {
        let file = file("TASK a x\n  TASK b  \n");
        let position = Position::of_line(file.path(), 2);
        assert_eq!(
            position.to_string(),
            format!("[{}:2] TASK b", file.path().display())
        );
        assert_eq!(Position::of_line(file.path(), 9).text, "");
        assert_eq!(Position::of_line(Path::new("no/such/file"), 1).text, "");
        assert_eq!(shorten(&"ü".repeat(300)), format!("{}...", "ü".repeat(200)));
    }

    #[test]
    fn the_edge_that_closes_a_cycle_is_found() {
        let text = "TASK a x\nTASK b x\nTASK c x\nEDGE a b\nEDGE b a\n# end\nEDGE b c\n";
        let file = file(text);
        let dag = Dag::parse(text.into()).unwrap();
        let position = Position::of_cycle(file.path(), &dag, &pmc_dag::cycle::find(&dag).unwrap());
        assert_eq!(position.line, 5);
        assert!(
            position
                .text
                .starts_with("3 tasks can never run because of a cycle: "),
            "{position}"
        );
        assert!(position.text.ends_with("a -> b -> a") || position.text.ends_with("b -> a -> b"));
    }
}
