//! First and last line of a DAG file that shows whether it is complete.
//!
//! A file that was cut off at the end of a line is a valid DAG, whose run would succeed without the missing
//! tasks. The planner therefore announces a last line, which has the numbers of tasks and edges. Both lines
//! are comments for the original executor. A DAG that announces nothing is taken as it is.

use crate::error::DagErrorKind;

/// First line of a DAG that ends with [`last_line`].
pub const FIRST_LINE: &str = "#+ The last line of the complete file is \"#+ end TASKS EDGES\".\n";

/// Start of the last line.
const END: &str = "#+ end ";

/// Returns the last line.
#[must_use]
pub fn last_line(tasks: usize, edges: usize) -> String {
    format!("{END}{tasks} {edges}\n")
}

/// Checks the last line if the first one announces it.
pub(crate) fn check(text: &[u8], tasks: usize, edges: usize) -> Result<(), DagErrorKind> {
    if !text.starts_with(FIRST_LINE.as_bytes()) || text.ends_with(last_line(tasks, edges).as_bytes()) {
        return Ok(());
    }
    Err(DagErrorKind::Incomplete { tasks, edges })
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
        for (end, _) in dag.match_indices('\n').skip(1) {
            let cut = &dag[..=end];
            if cut != dag {
                let error = read(cut).unwrap_err();
                assert!(error.contains("is incomplete"), "{cut}: {error}");
            }
        }
        let without_task = dag.replace("TASK b /bin/true\nEDGE a b\n", "");
        assert!(read(&without_task).is_err());
    }

    #[test]
    fn other_dags_need_no_last_line() {
        assert_eq!(read("TASK a /bin/true\n"), Ok(()));
        assert_eq!(read(""), Ok(()));
    }
}
