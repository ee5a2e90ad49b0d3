//! Kinds of the tasks of a plan, from the event file of the planner.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use pmc_monitor::kinds::Kind;

/// A job of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Purpose of the job.
    pub kind: Kind,
    /// Directory of its input files, relative to the submit directory.
    pub directory: PathBuf,
}

/// Reads the jobs by task name from the text of a `.static.bp` file. Ignores other events and damaged lines:
/// the summary does not depend on them.
pub fn read(text: &str) -> BTreeMap<String, Job> {
    let mut jobs = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains(" event=job.info ")) {
        if let (Some(job), Some(description)) = (value(line, "job.id"), value(line, "type_desc")) {
            let file = Path::new(value(line, "submit_file").unwrap_or_default());
            let directory = file.parent().unwrap_or(Path::new("")).to_owned();
            let kind = Kind::from_description(description);
            jobs.insert(job.to_owned(), Job { kind, directory });
        }
    }
    jobs
}

/// Returns the quoted value of a key. Values have no quotes inside.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let start = line.find(&format!(" {key}=\""))? + key.len() + 3;
    line[start..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_events_have_kinds() {
        let text = "ts=2026-11-21T07:25:23.1Z event=task.info xwf.id=u task.id=\"ID1\" \
            type_desc=\"compute\" \n\
            ts=2026-11-21T07:25:23.1Z event=job.info xwf.id=u job.id=\"stage_in_0\" \
            submit_file=\"00/01/stage_in_0.sub\" type=\"2\" type_desc=\"stage-in-tx\" argv=\" -n x\" \n\
            ts=2026-11-21T07:25:23.1Z event=job.info xwf.id=u job.id=\"a_ID1\" type=\"1\" \
            type_desc=\"compute\" \n";
        let jobs = read(text);
        assert_eq!(jobs.len(), 2);
        assert_eq!(
            jobs["stage_in_0"],
            Job {
                kind: Kind::StageIn,
                directory: "00/01".into()
            }
        );
        assert_eq!(
            jobs["a_ID1"],
            Job {
                kind: Kind::Compute,
                directory: "".into()
            }
        );
    }
}
