//! How ranks have ended: for people, for `--report`, and as an exit code.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use serde::Serialize;

use crate::error::LaunchError;
use crate::frames::PmiEnd;
use crate::world::World;

/// Exit code of a rank that has not said that it ends.
const NOT_FINALIZED: u8 = 1;

/// Exit code if a host was lost.
const LOST: u8 = 1;

/// The end of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Exited(u8),
    Signal(u8),
    /// It has ended well, but others may wait for it.
    NotFinalized,
    /// Its host, or its proxy.
    Lost,
}

impl End {
    fn of(status: i32, end: PmiEnd) -> Self {
        let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
        match status & 0x7f {
            0 if status == 0 && end == PmiEnd::Open => Self::NotFinalized,
            0 => Self::Exited(byte(status >> 8)),
            signal => Self::Signal(byte(signal)),
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
            Self::NotFinalized => NOT_FINALIZED,
            Self::Lost => LOST,
        }
    }

    /// As a sentence about some ranks.
    fn text(self) -> String {
        match self {
            Self::Exited(code) => format!("ended with exit code {code}"),
            Self::Signal(signal) => {
                let name = nix::sys::signal::Signal::try_from(i32::from(signal));
                let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
                format!("ended by signal {signal}{name}")
            }
            Self::NotFinalized => "ended without MPI_Finalize".to_owned(),
            Self::Lost => "was lost with its host".to_owned(),
        }
    }
}

/// Ranks that run, and how the others have ended.
#[derive(Debug)]
pub(super) struct Ends {
    /// Host of each rank.
    hosts: Vec<u32>,
    /// By rank: its process, and how it has ended.
    pids: BTreeMap<u32, i32>,
    ends: BTreeMap<u32, End>,
    /// Of the first failure.
    code: Option<u8>,
    is_stopping: bool,
}

impl Ends {
    pub(super) fn new(world: &World) -> Self {
        Self {
            hosts: world.ranks.iter().map(|place| place.host).collect(),
            pids: BTreeMap::new(),
            ends: BTreeMap::new(),
            code: None,
            is_stopping: false,
        }
    }

    pub(super) fn started(&mut self, host: u32, processes: &[(u32, i32)]) {
        let own = processes
            .iter()
            .filter(|(rank, _)| self.hosts.get(*rank as usize) == Some(&host));
        self.pids.extend(own.copied());
    }

    /// Rank and process of each.
    pub(super) fn processes(&self) -> impl Iterator<Item = (u32, i32)> {
        self.pids.iter().map(|(rank, pid)| (*rank, *pid))
    }

    pub(super) fn are_some_left(&self) -> bool {
        self.ends.len() < self.hosts.len()
    }

    /// Notes the end of a rank. Returns whether it is a failure.
    pub(super) fn ended(&mut self, rank: u32, status: i32, end: PmiEnd) -> bool {
        if rank as usize >= self.hosts.len() {
            return false;
        }
        let end = End::of(status, end);
        self.ends.insert(rank, end);
        let has_failed = end.code() != 0;
        if has_failed {
            self.code.get_or_insert(end.code());
        }
        has_failed
    }

    /// A rank ends the program.
    pub(super) fn aborted(&mut self, _rank: u32, code: i32) {
        let code = u8::try_from(code & 0xff).unwrap_or(u8::MAX);
        self.code.get_or_insert(if code == 0 { 1 } else { code });
    }

    /// Notes that the ranks of a host are lost. Returns whether there were any.
    pub(super) fn lose(&mut self, host: u32) -> bool {
        let mut any = false;
        for (rank, on) in (0..).zip(&self.hosts) {
            if *on == host && !self.ends.contains_key(&rank) {
                self.ends.insert(rank, End::Lost);
                any = true;
            }
        }
        if any {
            self.code.get_or_insert(LOST);
        }
        any
    }

    /// Returns true the first time.
    pub(super) fn begin_to_stop(&mut self) -> bool {
        !std::mem::replace(&mut self.is_stopping, true)
    }

    /// That of the rank that has failed first.
    pub(super) fn exit_code(&self) -> u8 {
        self.code.unwrap_or(0)
    }

    /// Lines about all ranks, those of a host that have ended alike in one.
    pub(super) fn lines(&self, world: &World, is_quiet: bool) -> Vec<String> {
        let mut groups: BTreeMap<(u32, End), Vec<u32>> = BTreeMap::new();
        for (rank, end) in &self.ends {
            let host = self.hosts.get(*rank as usize).copied().unwrap_or(0);
            groups.entry((host, *end)).or_default().push(*rank);
        }
        let groups = groups
            .into_iter()
            .filter(|((_, end), _)| !is_quiet || end.code() != 0);
        let line = |((host, end), ranks): ((u32, End), Vec<u32>)| {
            let name = world.hosts.get(host as usize).map_or("", |host| &host.name);
            let word = if ranks.len() == 1 { "rank" } else { "ranks" };
            format!("{word} {} on {name}: {}", ranges(&ranks), end.text())
        };
        groups.map(line).collect()
    }
}

/// Where each rank would run.
pub(super) fn placement(world: &World) -> String {
    let mut text = String::new();
    for (number, host) in (0..).zip(&world.hosts) {
        let mut by_program: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (rank, place) in world.ranks_of(number) {
            by_program.entry(place.program).or_default().push(rank);
        }
        for (program, ranks) in by_program {
            let words = world.programs.get(program as usize);
            let words = words
                .into_iter()
                .flatten()
                .map(|word| String::from_utf8_lossy(word));
            let words: Vec<_> = words.collect();
            let word = if ranks.len() == 1 { "rank" } else { "ranks" };
            text.push_str(&format!(
                "{word} {} on {}: {}\n",
                ranges(&ranks),
                host.name,
                words.join(" ")
            ));
        }
    }
    text
}

/// Ascending numbers as ranges: `0-2,5`.
fn ranges(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The file of `--report`: a JSON object a line.
pub(super) struct Report {
    file: BufWriter<File>,
    path: std::path::PathBuf,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Record<'a> {
    Began {
        rank: u32,
        host: &'a str,
        pid: Option<i32>,
        program: String,
    },
    Exited {
        rank: u32,
        exit_code: u8,
    },
    Killed {
        rank: u32,
        signal: u8,
    },
    Other {
        rank: u32,
        reason: String,
    },
}

impl Report {
    pub(super) fn create(path: &Path) -> Result<Self, LaunchError> {
        let file = pmc_files::create_anew(path).map_err(|error| LaunchError::File {
            path: path.to_owned(),
            why: pmc_dag::reason(&error).to_string(),
        })?;
        Ok(Self {
            file: BufWriter::new(file),
            path: path.to_owned(),
        })
    }

    fn write<'a>(&mut self, records: impl Iterator<Item = Record<'a>>) -> Result<(), LaunchError> {
        let write = || {
            for record in records {
                let line = serde_json::to_string(&record).map_err(std::io::Error::other)?;
                writeln!(self.file, "{line}")?;
            }
            self.file.flush()
        };
        write().map_err(|error| LaunchError::File {
            path: self.path.clone(),
            why: pmc_dag::reason(&error).to_string(),
        })
    }

    /// Writes host, process and program of each rank.
    pub(super) fn begins(&mut self, world: &World, ends: &Ends) -> Result<(), LaunchError> {
        let record = |(rank, place): (u32, &crate::world::Place)| {
            let program = world
                .programs
                .get(place.program as usize)
                .and_then(|words| words.first());
            let program = program.map(|word| String::from_utf8_lossy(word).into_owned());
            Record::Began {
                rank,
                host: world.hosts.get(place.host as usize).map_or("", |host| &host.name),
                pid: ends.pids.get(&rank).copied(),
                program: program.unwrap_or_default(),
            }
        };
        self.write((0..).zip(&world.ranks).map(record))
    }

    /// Writes how each rank has ended.
    pub(super) fn ends(&mut self, ends: &Ends) -> Result<(), LaunchError> {
        let record = |(rank, end): (&u32, &End)| match *end {
            End::Exited(exit_code) => Record::Exited {
                rank: *rank,
                exit_code,
            },
            End::Signal(signal) => Record::Killed { rank: *rank, signal },
            other => Record::Other {
                rank: *rank,
                reason: other.text(),
            },
        };
        self.write(ends.ends.iter().map(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Host, Place};

    fn world() -> World {
        let host = |name: &str| Host {
            name: name.to_owned(),
            slots: 2,
        };
        let place = |host| Place {
            host,
            program: 0,
            offset: 0,
        };
        World {
            hosts: vec![host("n1"), host("n2")],
            ranks: [0, 0, 1, 1].map(place).into(),
            programs: vec![vec![b"./a".to_vec(), b"b".to_vec()]],
        }
    }

    #[test]
    fn ranks_of_a_host_that_end_alike_are_one_line() {
        let world = world();
        let mut ends = Ends::new(&world);
        assert!(!ends.ended(0, 0, PmiEnd::Finalized));
        assert!(!ends.ended(1, 0, PmiEnd::Silent));
        assert!(ends.ended(2, 9, PmiEnd::Open));
        assert!(ends.are_some_left());
        assert!(ends.ended(3, 3 << 8, PmiEnd::Open));
        assert!(!ends.are_some_left());
        assert_eq!(ends.exit_code(), 137, "that of the first failure");
        assert_eq!(
            ends.lines(&world, false),
            [
                "ranks 0-1 on n1: ended with exit code 0",
                "rank 3 on n2: ended with exit code 3",
                "rank 2 on n2: ended by signal 9 (SIGKILL)",
            ]
        );
        assert_eq!(ends.lines(&world, true).len(), 2);
        assert!(!ends.ended(9, 1 << 8, PmiEnd::Silent), "there is no such rank");
    }

    #[test]
    fn other_ends_are_failures_too() {
        let world = world();
        let mut ends = Ends::new(&world);
        assert!(ends.ended(0, 0, PmiEnd::Open), "it has not finalized");
        assert!(ends.lose(1) && !ends.lose(1));
        assert_eq!(ends.exit_code(), 1);
        let mut aborted = Ends::new(&world);
        aborted.aborted(2, 3);
        aborted.ended(2, 15, PmiEnd::Open);
        assert_eq!(aborted.exit_code(), 3);
        assert!(aborted.begin_to_stop() && !aborted.begin_to_stop());
    }

    #[test]
    fn the_placement_names_all_ranks() {
        assert_eq!(
            placement(&world()),
            "ranks 0-1 on n1: ./a b\nranks 2-3 on n2: ./a b\n"
        );
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn the_report_has_a_line_for_each_begin_and_end() {
        let (world, folder) = (world(), tempfile::tempdir().unwrap());
        let path = folder.path().join("report");
        let mut ends = Ends::new(&world);
        ends.started(0, &[(0, 11), (1, 12)]);
        let mut report = Report::create(&path).unwrap();
        report.begins(&world, &ends).unwrap();
        ends.ended(0, 0, PmiEnd::Silent);
        ends.ended(1, 9, PmiEnd::Silent);
        ends.lose(1);
        report.ends(&ends).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], r#"{"rank":0,"host":"n1","pid":11,"program":"./a"}"#);
        assert_eq!(lines[2], r#"{"rank":2,"host":"n2","pid":null,"program":"./a"}"#);
        assert_eq!(lines[4], r#"{"rank":0,"exit_code":0}"#);
        assert_eq!(lines[5], r#"{"rank":1,"signal":9}"#);
        assert_eq!(lines[6], r#"{"rank":2,"reason":"was lost with its host"}"#);
    }

    /// Where other users may write, they can take the name before.
    #[test]
    fn a_link_in_place_of_the_report_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mine) = (folder.path().join("report"), folder.path().join("mine"));
        std::fs::write(&mine, "kept").unwrap();
        std::os::unix::fs::symlink(&mine, &path).unwrap();
        let mut report = Report::create(&path).unwrap();
        report.begins(&world(), &Ends::new(&world())).unwrap();
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), "kept");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    }
}
