//! First and last line of a DAG file that shows whether it is complete.
//!
//! A file that was cut off at the end of a line is a valid DAG, whose run would succeed without the missing
//! tasks. The planner therefore announces a last line, which has the numbers of tasks and edges. Both lines
//! are comments for the original executor. A DAG that announces nothing is taken as it is.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::error::DagErrorKind;

/// First line of a DAG that ends with [`last_line`].
pub const FIRST_LINE: &str = "#+ The last line of the complete file is \"#+ end TASKS EDGES\".\n";

/// Start of the last line.
const END: &str = "#+ end ";
/// Maximum length in bytes of the last line.
const MAX_LAST_LINE: u64 = 64;

/// Returns the last line.
#[must_use]
pub fn last_line(tasks: usize, edges: usize) -> String {
    format!("{END}{tasks} {edges}\n")
}

/// Adds lines to a complete DAG file. `added` is the number of tasks and of edges in them.
///
/// # Errors
/// The file cannot be read or written.
pub fn append(path: &Path, lines: &str, added: (usize, usize)) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(MAX_LAST_LINE);
    let mut end = vec![0; usize::try_from(length - start).unwrap_or_default()];
    file.read_exact_at(&mut end, start)?;
    let at = memchr::memrchr(b'\n', end.strip_suffix(b"\n").unwrap_or(&end)).map_or(0, |at| at + 1);
    let mut text = lines.to_owned();
    if let Some((tasks, edges)) = numbers(&end[at..]) {
        file.set_len(start + at as u64)?;
        text.push_str(&last_line(tasks + added.0, edges + added.1));
    }
    file.seek(SeekFrom::End(0))?;
    file.write_all(text.as_bytes())
}

/// Returns the numbers in the last line.
fn numbers(line: &[u8]) -> Option<(usize, usize)> {
    let text = std::str::from_utf8(line).ok()?;
    let (tasks, edges) = text.strip_prefix(END)?.trim_end().split_once(' ')?;
    Some((tasks.parse().ok()?, edges.parse().ok()?))
}

/// Removes a last line that ends in its middle, if the first one announces a complete file.
pub(crate) fn remove_torn_line(text: &mut Vec<u8>) {
    if announces_end(text) {
        let end = memchr::memrchr(b'\n', text).map_or(0, |at| at + 1);
        text.truncate(end);
    }
}

/// Checks the last line if the first one announces it.
pub(crate) fn check(text: &[u8], tasks: usize, edges: usize) -> Result<(), DagErrorKind> {
    if !announces_end(text) {
        return Ok(());
    }
    let before = text.strip_suffix(last_line(tasks, edges).as_bytes());
    if before.is_some_and(|before| before.ends_with(b"\n")) {
        return Ok(());
    }
    Err(DagErrorKind::Incomplete { tasks, edges })
}

/// Returns whether the text begins with the first line, or is a part of that line.
fn announces_end(text: &[u8]) -> bool {
    let start = &text[..text.len().min(FIRST_LINE.len())];
    !start.is_empty() && FIRST_LINE.as_bytes().starts_with(start)
}

#[cfg(test)]
mod tests {
    use crate::Dag;

    use super::*;

    fn read(text: &str) -> Result<(), String> {
        Dag::parse(text.into())
            .map(drop)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_dag_that_was_cut_off_is_refused() {
        let dag = format!(
            "{FIRST_LINE}TASK a /bin/true\nTASK b /bin/true\nEDGE a b\n{}",
            last_line(2, 1)
        );
        assert_eq!(read(&dag), Ok(()));
        assert!(read(&FIRST_LINE[..20]).is_err() && read("#").is_err());
        for (end, _) in dag.match_indices('\n').skip(1) {
            let cut = &dag[..=end];
            if cut != dag {
                let error = read(cut).unwrap_err();
                assert!(error.contains("is incomplete"), "{cut}: {error}");
            }
        }
        let torn = format!("{FIRST_LINE}TASK a /bin/true\n#+ end 1{}", last_line(1, 0));
        assert!(read(&torn).is_err());
        let without_task = dag.replace("TASK b /bin/true\nEDGE a b\n", "");
        assert!(read(&without_task).is_err());
    }

    #[test]
    fn an_incomplete_dag_can_be_read_without_its_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.dag");
        let open = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let (dag, is_incomplete) = Dag::open_incomplete(&path).unwrap();
            (dag.len(), is_incomplete)
        };
        let start = format!("{FIRST_LINE}TASK a /bin/true\n");
        assert_eq!(open(&format!("{start}{}", last_line(1, 0))), (1, false));
        assert_eq!(open(&format!("{start}{}", last_line(2, 0))), (1, true));
        assert_eq!(open(&start), (1, true));
        assert_eq!(open(&format!("{start}TASK b /bin/rm /scratch/b")), (1, true));
        assert_eq!(open(FIRST_LINE), (0, true));
        // Only the planner's files announce their end.
        assert_eq!(open("TASK a /bin/true"), (1, false));
    }

    #[test]
    fn added_lines_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.dag");
        let start = format!("{FIRST_LINE}TASK a /bin/true\n");
        std::fs::write(&path, format!("{start}{}", last_line(1, 0))).unwrap();
        append(&path, "TASK b /bin/true\nEDGE a b\n", (1, 1)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            format!("{start}TASK b /bin/true\nEDGE a b\n{}", last_line(2, 1))
        );
        assert_eq!(read(&text), Ok(()));
        std::fs::write(&path, "TASK a /bin/true\n").unwrap();
        append(&path, "EDGE a a\n", (0, 1)).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "TASK a /bin/true\nEDGE a a\n"
        );
    }

    #[test]
    fn other_dags_need_no_last_line() {
        assert_eq!(read("TASK a /bin/true\n"), Ok(()));
        assert_eq!(read(""), Ok(()));
    }
}
