//! PMIx, by which ranks of Open MPI find each other. The library runs in a process of its own,
//! `pmc pmix-ranks`, which takes nothing down with it.
//!
//! At a fence, what the ranks of each host have given goes to the front end, and that of all hosts comes
//! back: as the pairs of a barrier of PMI-1, in which a key is the number of the host and that of the part.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pmc_wire::command::{receive, send};
use pmc_wire::ranks::{COMMAND, FromServer, Part, Start, ToServer};

use super::say;
use crate::frames::{FrameReader, Load, Pair, PmiEnd, ToFront, parts_of};
use crate::world::hosts_of;

/// The program that has the library, beside this one.
const PROGRAM: &str = "pmc";

/// Time for the server to end.
const ENDING: Duration = Duration::from_secs(2);

/// Open MPI 4 looks for it to know that something else than its `mpirun` has started it.
const STARTED: &[u8] = b"FLUX_JOB_ID";

/// A name and its value.
type Variable = (Vec<u8>, Vec<u8>);

/// The server of this host.
pub(super) struct Pmix {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    frames: FrameReader,
    node: u32,
    /// Those of each rank.
    variables: BTreeMap<u32, Vec<Variable>>,
    ends: BTreeMap<u32, PmiEnd>,
    /// Parts of the fence that this host has given.
    given: u32,
    /// Parts that have come: host and number.
    parts: BTreeMap<(u32, u32), Vec<u8>>,
}

impl Pmix {
    /// Starts the server of a launch. `hosts` are the names of all, with commas between them.
    ///
    /// # Errors
    /// Why that is not possible.
    pub(super) fn start(load: &Load, hosts: &str) -> Result<Self, String> {
        let failed = |error: io::Error| pmc_dag::reason(&error).to_string();
        let host_of = hosts_of(&load.mapping, load.size).ok_or("it is not known which rank runs where")?;
        let program = std::env::current_exe().map_err(failed)?.with_file_name(PROGRAM);
        let mut child = Command::new(&program)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Signals of a terminal are for the ranks.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{}: {}", program.display(), pmc_dag::reason(&error)))?;
        let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no streams".to_owned());
        };
        let start = ToServer::Start(Start {
            name: load.name.clone(),
            hosts: hosts.split(',').map(str::to_owned).collect(),
            node: load.node,
            host_of,
            programs: load.ranks.iter().map(|rank| (rank.rank, rank.program)).collect(),
        });
        // One that has ended says why below.
        let _ = send(&mut input, &start).and_then(|()| input.flush());
        let variables = match receive(&mut output).map_err(failed)? {
            Some(FromServer::Ready(variables)) => variables,
            Some(FromServer::Failed(why)) => return Err(why),
            _ => {
                return Err(format!(
                    "{} has no PMIx: start the program with mpirun",
                    program.display()
                ));
            }
        };
        let of_rank = |entries: Vec<serde_bytes::ByteBuf>| {
            let split = entries.iter().filter_map(|entry| {
                let end = entry.iter().position(|byte| *byte == b'=')?;
                Some((entry.get(..end)?.to_vec(), entry.get(end + 1..)?.to_vec()))
            });
            let started = (STARTED.to_vec(), load.name.clone().into_bytes());
            split.chain([started]).collect()
        };
        Ok(Self {
            child,
            input: Some(input),
            output,
            frames: FrameReader::default(),
            node: load.node,
            variables: variables
                .into_iter()
                .map(|(rank, own)| (rank, of_rank(own)))
                .collect(),
            ends: BTreeMap::new(),
            given: 0,
            parts: BTreeMap::new(),
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    pub(super) fn variables_of(&self, rank: u32) -> &[Variable] {
        self.variables.get(&rank).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn end_of(&self, rank: u32) -> PmiEnd {
        self.ends.get(&rank).copied().unwrap_or_default()
    }

    /// Reads what the server says. Returns false if it has ended.
    pub(super) fn hear(&mut self) -> io::Result<bool> {
        if !self.frames.read(&mut self.output)? {
            return Ok(false);
        }
        while let Some(message) = self.frames.next()? {
            match message {
                FromServer::Begun(rank) => {
                    self.ends.insert(rank, PmiEnd::Open);
                }
                FromServer::Finalized(rank) => {
                    self.ends.insert(rank, PmiEnd::Finalized);
                }
                FromServer::Abort { rank, code } => say(&ToFront::Abort { rank, code })?,
                FromServer::Fence(part) => self.give(&part)?,
                FromServer::Ready(_) | FromServer::Failed(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(true)
    }

    /// Passes a part of a fence to the front end.
    fn give(&mut self, part: &Part) -> io::Result<()> {
        let pair = Pair {
            key: format!("{}.{}", self.node, self.given),
            value: STANDARD.encode(&part.bytes),
        };
        self.given += 1;
        for part in parts_of(vec![pair]) {
            say(&ToFront::Put(part))?;
        }
        if part.is_last {
            self.given = 0;
            say(&ToFront::AtBarrier)?;
        }
        Ok(())
    }

    /// Notes parts of a fence.
    pub(super) fn learn(&mut self, pairs: Vec<Pair>) {
        let parsed = pairs.into_iter().filter_map(|pair| {
            let (host, number) = pair.key.split_once('.')?;
            let key = (host.parse().ok()?, number.parse().ok()?);
            Some((key, STANDARD.decode(pair.value).ok()?))
        });
        self.parts.extend(parsed);
    }

    /// Lets the ranks pass the fence.
    pub(super) fn pass_barrier(&mut self) -> io::Result<()> {
        let all: Vec<u8> = std::mem::take(&mut self.parts).into_values().flatten().collect();
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        // A server that has ended is noticed elsewhere.
        let sent = Part::all_of(&all).try_for_each(|part| send(&mut *input, &ToServer::Fence(part)));
        let _ = sent.and_then(|()| input.flush());
        Ok(())
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        self.input = None;
        let until = Instant::now() + ENDING;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
