//! What the tasks of a planned workflow are for, from the event file that the planner writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use pmc_monitor::kinds::Kind;

/// What the planner says of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What it is for.
    pub kind: Kind,
    /// Directory of its input files, relative to the submit directory.
    pub directory: PathBuf,
}

/// Jobs by task name, from the text of a `.static.bp` file. Lines that are no `job.info` are passed
/// over, and so is what cannot be read: the summary can do without.
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

/// The quoted value of a key. Names of jobs and types hold no quotes.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let start = line.find(&format!(" {key}=\""))? + key.len() + 3;
    line[start..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_events_give_kinds() {
        let text = "ts=2026-11-21T07:25:23.1Z event=task.info xwf.id=u task.id=\"ID1\" type_desc=\"compute\" \n\
            ts=2026-11-21T07:25:23.1Z event=job.info xwf.id=u job.id=\"stage_in_0\" submit_file=\"00/01/stage_in_0.sub\" type=\"2\" type_desc=\"stage-in-tx\" argv=\" -n x\" \n\
            ts=2026-11-21T07:25:23.1Z event=job.info xwf.id=u job.id=\"a_ID1\" type=\"1\" type_desc=\"compute\" \n";
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
