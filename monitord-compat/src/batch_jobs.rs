//! The ledger of a run, `NAME.dag.jobs`: which batch jobs ran it, and what came of each. A line of JSON for
//! each event. `pmc supervise` appends to it, views and agents read it. It is never rewritten, and a line
//! that is torn or of another version does not count.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use pmc_files::{Destination, OFlags, Owner};
use serde::{Deserialize, Serialize};

/// Maximum bytes of the file that are read.
pub const MAX_SIZE: u64 = 64 << 20;

/// An event, and when it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Seconds since the epoch.
    pub at: f64,
    /// The batch job: `SCHEDULER ID`, or `local HOST` outside of one.
    pub job: String,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened to a batch job, or in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A program that looks after a run in this job began.
    Begin {
        /// Nodes of the job, the first one first, as far as they are known.
        nodes: Vec<String>,
        /// Processes that the job has room for, as the batch system says it.
        #[serde(default)]
        slots: Option<u32>,
        /// Minutes of the job, as the batch script says it.
        #[serde(default)]
        limit: Option<u64>,
        /// The job that was handed in last has this number in its chain, from 0.
        chain: u32,
        /// Maximum number of further jobs.
        resubmit: u32,
        /// The command that runs the workflow.
        command: Vec<String>,
        /// The program is one that an agent has started, because the first node was lost.
        #[serde(default)]
        successor: bool,
    },
    /// The job that is to follow this one was handed in.
    Next {
        /// That job.
        next: String,
    },
    /// It was cancelled.
    Cancel {
        /// That job.
        next: String,
    },
    /// The workflow ended, or was cut off.
    End {
        /// How: the word in `NAME.dag.end`, or `killed`, `cancelled`, `not-started`.
        end: String,
        /// What is done about it: `stop`, `again`, `here`.
        action: String,
        /// Tasks that are done.
        done: usize,
    },
    /// The last message of a task that is not done, at the end of the workflow in this job.
    Message {
        /// Name of the task.
        task: String,
        /// What it has said.
        text: String,
    },
}

/// Returns the path of the ledger of a DAG.
#[must_use]
pub fn path(dag: &Path) -> PathBuf {
    pmc_files::with_suffix(dag, ".jobs")
}

impl Entry {
    /// Returns the line of the event.
    #[must_use]
    pub fn line(&self) -> String {
        // Numbers and texts have a form in JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// Reads the lines of a ledger. A line without its end does not count.
#[must_use]
pub fn parse(text: &str) -> Vec<Entry> {
    let lines = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Reads the ledger of a DAG if another user cannot have put it there: for programs that do what it says.
///
/// # Errors
/// It cannot be read, or is that of another user. One that is missing is empty.
pub fn read_own(dag: &Path) -> io::Result<Vec<Entry>> {
    let (file, owner) = match pmc_files::open_with_owner(&path(dag)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    check_own(owner)?;
    let text = pmc_files::read_at_most(file, MAX_SIZE)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// Appends an event to the ledger of a DAG, on a line of its own, and makes sure that it is on disk.
///
/// # Errors
/// It cannot be written, or is that of another user.
pub fn append(dag: &Path, entry: &Entry) -> io::Result<()> {
    let path = path(dag);
    check_own(Destination::named(&path)?.owner()?)?;
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
    let mut file = pmc_files::open_for_writing(&path, flags, 0o600)?;
    let mut text = String::new();
    // The writer before this one may have been killed within a line.
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != [b'\n'] {
            text.push('\n');
        }
    }
    text.push_str(&entry.line());
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

fn check_own(owner: Owner) -> io::Result<()> {
    match owner {
        Owner::User | Owner::Root => Ok(()),
        Owner::Other => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "another user may have written it",
        )),
    }
}

/// Reads the ledger of a DAG. One that cannot be read is as good as empty.
#[must_use]
pub fn read(dag: &Path) -> Vec<Entry> {
    let text = pmc_files::read(&path(dag), MAX_SIZE).unwrap_or_default();
    parse(&String::from_utf8_lossy(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let job = "slurm 17".to_owned();
        let events = [
            Event::Begin {
                nodes: vec!["n1".to_owned(), "n2".to_owned()],
                slots: Some(8),
                limit: Some(90),
                chain: 2,
                resubmit: 5,
                command: vec!["/opt/x y".to_owned(), "--\"\n".to_owned()],
                successor: true,
            },
            Event::Next {
                next: "slurm 18".to_owned(),
            },
            Event::Cancel {
                next: "slurm 18".to_owned(),
            },
            Event::End {
                end: "success".to_owned(),
                action: "stop".to_owned(),
                done: 7,
            },
            Event::Message {
                task: "a\"".to_owned(),
                text: "step 7".to_owned(),
            },
        ];
        let entry = |(at, event)| Entry {
            at: f64::from(at) + 0.5,
            job: job.clone(),
            event,
        };
        (1..).zip(events).map(entry).collect()
    }

    #[test]
    fn a_ledger_that_is_torn_anywhere_keeps_its_whole_lines() {
        let entries = entries();
        let text: String = entries.iter().map(Entry::line).collect();
        assert_eq!(parse(&text), entries);
        for length in 0..text.len() {
            let whole = text[..length].matches('\n').count();
            assert_eq!(parse(&text[..length]), entries[..whole], "{length}");
            // The next writer ends the torn line first.
            let torn = format!("{}\n{}", &text[..length], entries[0].line());
            assert_eq!(parse(&torn).last(), Some(&entries[0]), "{length}");
        }
    }

    #[test]
    fn a_begin_without_slots_and_limit_counts() {
        let line = concat!(
            r#"{"at":1.5,"job":"slurm 17","event":"begin","nodes":["n1"],"#,
            r#""chain":0,"resubmit":0,"command":["x"]}"#
        );
        let entries = parse(&format!("{line}\n"));
        let slots = entries.iter().map(|entry| match &entry.event {
            Event::Begin { slots, limit, .. } => (*slots, *limit),
            _ => (Some(0), Some(0)),
        });
        assert_eq!(slots.collect::<Vec<_>>(), [(None, None)]);
    }

    #[test]
    fn a_ledger_that_another_user_may_have_written_is_not_believed() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        let entry = &entries()[0];
        append(&dag, entry).unwrap();
        assert_eq!(read_own(&dag).unwrap(), std::slice::from_ref(entry));
        let other = Some(nix::unistd::Uid::from_raw(54321));
        // The file is that of another user, or its directory.
        for given in [path(&dag), folder.path().to_owned()] {
            nix::unistd::chown(&given, other, None).unwrap();
            assert!(
                read_own(&dag).is_err() && append(&dag, entry).is_err(),
                "{given:?}"
            );
            nix::unistd::chown(&given, Some(nix::unistd::geteuid()), None).unwrap();
        }
        assert_eq!(read(&dag), std::slice::from_ref(entry));
        // Nor is one made in a directory of another user.
        nix::unistd::chown(folder.path(), other, None).unwrap();
        std::fs::remove_file(path(&dag)).unwrap();
        assert!(append(&dag, entry).is_err() && !path(&dag).exists());
    }
}
