//! The list of agents, on disk: from it the next master learns which agents may still run tasks.
//!
//! A line for each agent that joins (`JOIN EPOCH SESSION FIRST-RANK SLOTS HOST`) and for each that is gone
//! (`GONE EPOCH SESSION`). After the first of these lines of an agent that a master has started, there is its
//! number (`NUMBER EPOCH SESSION NUMBER`). A run that ends in order removes the file.
//!
//! Only the first line of a master that knows of all agents is synced: `MASTER EPOCH SYSTEM`. If the last
//! such line is that of another running system, a host may have lost its power, and the list its last lines.
//! Then there may be agents that it lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use pmc_files::OFlags;
use pmc_link::SessionId;
use pmc_system::disk;
use pmc_system::planted::{Planted, is_planted};

use crate::host::running_system;
use crate::options::folder;

/// Epoch and number of a session.
pub(super) type SessionName = (u64, SessionId);

/// Longest list that is read, in bytes: that of some million agents.
const MAX_ROSTER: u64 = 256 << 20;

/// Highest rank that is read: no run has more slots.
const MAX_RANK: u64 = 1 << 27;

/// What an earlier master has left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Earlier {
    /// Agents that may still run tasks, with their hosts.
    pub(super) agents: BTreeMap<SessionName, String>,
    /// Numbers of those that a master has started.
    numbers: BTreeMap<SessionName, u32>,
    /// The highest rank that was given to an agent.
    pub(super) last_rank: u32,
    /// The running system of the last master that knew of all agents.
    system: Option<u32>,
    /// There may be agents that the list lacks.
    pub(super) is_incomplete: bool,
}

/// The open file.
#[derive(Debug)]
pub(super) struct Roster {
    path: PathBuf,
    file: File,
    epoch: u64,
    /// A write has failed, and may have left a part of a line.
    torn: bool,
}

impl Earlier {
    /// Reads the list of a DAG; it is empty without a file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        match pmc_files::read(path, MAX_ROSTER) {
            Ok(bytes) => Ok(Self::read(&String::from_utf8_lossy(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Reads the lines of earlier masters. Lines that make no sense are skipped: the last one may be torn.
    fn read(text: &str) -> Self {
        let mut earlier = Self::default();
        for line in text.lines() {
            let mut words = line.splitn(6, ' ');
            let kind = words.next();
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(epoch), Some(session)) = (number(), number()) else {
                continue;
            };
            if kind == Some("MASTER") {
                earlier.system = u32::try_from(session).ok();
                continue;
            }
            match (kind, number(), number(), words.next()) {
                (Some("JOIN"), Some(first), Some(slots), Some(host)) => {
                    let last = first.saturating_add(slots).saturating_sub(1);
                    let Some(last) = u32::try_from(last).ok().filter(|_| last <= MAX_RANK) else {
                        continue;
                    };
                    earlier.last_rank = earlier.last_rank.max(last);
                    earlier.agents.insert((epoch, session), host.to_owned());
                }
                (Some("NUMBER"), Some(number), ..) => {
                    earlier
                        .numbers
                        .extend(u32::try_from(number).map(|number| ((epoch, session), number)));
                }
                (Some("GONE"), ..) => {
                    earlier.remove((epoch, session));
                }
                _ => {}
            }
        }
        earlier
    }

    /// Removes an agent. Returns whether it was there.
    pub(super) fn remove(&mut self, name: SessionName) -> bool {
        self.numbers.remove(&name);
        self.agents.remove(&name).is_some()
    }

    /// Numbers of the agents that a master has started.
    pub(super) fn numbers(&self) -> BTreeSet<u32> {
        self.numbers.values().copied().collect()
    }
}

impl Roster {
    /// Opens the list of this DAG, and reads what an earlier master has left.
    pub(super) fn open(path: &Path, epoch: u64) -> io::Result<(Self, Earlier)> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let file = pmc_files::open_output(path, flags, 0o600)?;
        // Root may go on with the run of a user. Nobody else may be told which agents are left.
        if ![file.metadata()?.uid(), 0].contains(&geteuid().as_raw()) {
            return Err(io::Error::other("the list belongs to another user: remove it"));
        }
        let bytes = pmc_files::read_rest(&file, MAX_ROSTER)?;
        let mut earlier = Earlier::read(&String::from_utf8_lossy(&bytes));
        // An earlier master may have left a part of a line.
        let torn = file.metadata()?.len() > 0;
        let path = path.to_owned();
        let mut roster = Self {
            path,
            file,
            epoch,
            torn,
        };
        let system = Some(running_system()).filter(|system| *system != 0);
        let is_complete = system.is_some() && earlier.system == system;
        earlier.is_incomplete = torn && !is_complete && !is_planted(Planted::CompleteList);
        if !earlier.is_incomplete {
            roster.begin()?;
        }
        Ok((roster, earlier))
    }

    /// Writes that this master knows of all agents. From now on, the list lacks none, unless the host loses
    /// its power.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.append(&format!("MASTER {} {}\n", self.epoch, running_system()))?;
        disk::sync_data(&self.file)?;
        disk::sync_folder(folder(&self.path))
    }

    /// Writes that an agent has joined. After an error the list may or may not have it.
    pub(super) fn join(
        &mut self,
        session: SessionId,
        ranks: &Range<u32>,
        host: &str,
        number: Option<u32>,
    ) -> io::Result<()> {
        let (epoch, first, slots) = (self.epoch, ranks.start, ranks.len());
        let mut lines = format!("JOIN {epoch} {session} {first} {slots} {host}\n");
        if let Some(number) = number {
            lines += &format!("NUMBER {epoch} {session} {number}\n");
        }
        self.append(&lines)
    }

    pub(super) fn gone(&mut self, (epoch, session): SessionName) -> io::Result<()> {
        self.append(&format!("GONE {epoch} {session}\n"))
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        if is_planted(Planted::NoList) {
            return Ok(());
        }
        let text = if self.torn {
            format!("\n{line}")
        } else {
            line.to_owned()
        };
        let written = disk::write_all(&self.file, text.as_bytes());
        self.torn = written.is_err();
        written
    }

    /// Removes the file: no agent is left.
    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_are_not_gone_are_found() {
        let text = "JOIN 1 1 1 4 n1\nNUMBER 1 1 7\nJOIN 1 2 5 4 n 2\nNUMBER 1 2 8\nGONE 1 1\nJOIN 2 1 9 1 n3\nJOIN 2 2 10";
        let earlier = Earlier::read(text);
        let agents = [((1, 2), "n 2".to_owned()), ((2, 1), "n3".to_owned())];
        assert_eq!(earlier.agents, agents.into());
        assert_eq!((earlier.last_rank, earlier.numbers()), (9, [8].into()));
        // Each rank takes memory.
        let many = Earlier::read("JOIN 1 1 1 4000000000 n1\nJOIN 1 2 4000000000 1 n2\n");
        assert_eq!(many, Earlier::default());
        for cut in 0..text.len() {
            let _ = Earlier::read(&text[..cut]);
        }
    }

    #[test]
    fn the_list_of_another_system_may_lack_agents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.dag.agents");
        let open = |epoch| Roster::open(&path, epoch).unwrap();
        assert!(!open(1).1.is_incomplete, "there was no master before");
        assert!(!open(2).1.is_incomplete, "this system has written all of it");
        std::fs::write(&path, format!("MASTER 2 {}\n", running_system() ^ 1)).unwrap();
        let (mut roster, earlier) = open(3);
        assert!(earlier.is_incomplete);
        // It was killed before it knew of all.
        assert!(open(4).1.is_incomplete);
        roster.begin().unwrap();
        assert!(!open(5).1.is_incomplete);
        std::fs::write(&path, "JOIN 1 1 1 4 n1\n").unwrap();
        assert!(open(6).1.is_incomplete, "that of a version before this line");
    }

    #[test]
    fn a_line_after_a_failed_write_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.dag.agents");
        let (mut roster, _) = Roster::open(&path, 1).unwrap();
        std::fs::write(&path, "JOIN 1 1 1 4 n").unwrap();
        roster.torn = true;
        roster.join(2, &(5..7), "n2", None).unwrap();
        let earlier = Earlier::open(&path).unwrap();
        assert!(earlier.agents.contains_key(&(1, 2)));
    }

    #[test]
    fn the_file_goes_on_after_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.dag.agents");
        std::fs::write(&path, "JOIN 1 1 1 4 n1\nGONE 1").unwrap();
        let (mut roster, earlier) = Roster::open(&path, 2).unwrap();
        assert_eq!(earlier.agents.len(), 1);
        roster.join(1, &(5..7), "n2", Some(3)).unwrap();
        roster.gone((1, 1)).unwrap();
        let (roster, earlier) = Roster::open(&path, 3).unwrap();
        assert_eq!(earlier.agents, [((2, 1), "n2".to_owned())].into());
        assert_eq!((earlier.last_rank, earlier.numbers()), (6, [3].into()));
        roster.remove();
        assert!(!path.exists());
    }
}
