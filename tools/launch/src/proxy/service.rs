//! PMI-1 over the sockets of the ranks.

use std::io::{self, Read as _, Write as _};

use super::rank::Rank;
use super::say;
use crate::frames::{Load, Pair, PmiEnd, ToFront, parts_of};
use crate::pmi::{Action, Facts, MAX_LINE, Server};

/// Bytes that are read at a time.
const READ_SIZE: usize = 8 << 10;

pub(super) struct Pmi(Server);

impl Pmi {
    pub(super) fn new(load: &Load) -> Self {
        let facts = Facts {
            name: load.name.clone(),
            size: load.size,
            mapping: load.mapping.clone(),
        };
        let programs = load.ranks.iter().map(|rank| (rank.rank, rank.program));
        Self(Server::new(facts, programs.collect()))
    }

    pub(super) fn end_of(&self, rank: u32) -> PmiEnd {
        self.0.end_of(rank)
    }

    pub(super) fn learn(&mut self, pairs: Vec<Pair>) {
        self.0.learn(pairs);
    }

    pub(super) fn pass_barrier(&mut self, ranks: &mut [Rank]) -> io::Result<()> {
        let actions = self.0.pass_barrier();
        act(actions, ranks)
    }

    pub(super) fn named(&mut self, rank: u32, port: Option<&str>, ranks: &mut [Rank]) -> io::Result<()> {
        let actions = self.0.named(rank, port);
        act(actions, ranks)
    }

    /// Reads what a rank says.
    pub(super) fn hear(&mut self, place: usize, ranks: &mut [Rank]) -> io::Result<()> {
        let Some(rank) = ranks.get_mut(place) else {
            return Ok(());
        };
        let number = rank.number();
        let Some(line) = rank.pmi() else { return Ok(()) };
        let mut buffer = vec![0; READ_SIZE];
        match line.socket.read(&mut buffer) {
            Ok(0) => {
                *rank.pmi() = None;
                return Ok(());
            }
            Ok(length) => line
                .begun
                .extend_from_slice(buffer.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => *rank.pmi() = None,
        }
        let mut lines = Vec::new();
        if let Some(line) = rank.pmi() {
            while let Some(end) = line.begun.iter().position(|byte| *byte == b'\n') {
                let whole: Vec<u8> = line.begun.drain(..=end).collect();
                lines.push(String::from_utf8_lossy(&whole).into_owned());
            }
            if line.begun.len() > MAX_LINE {
                *rank.pmi() = None;
            }
        }
        for line in lines {
            let actions = self.0.line(number, &line);
            act(actions, ranks)?;
        }
        Ok(())
    }
}

fn find(ranks: &mut [Rank], number: u32) -> Option<&mut Rank> {
    ranks.iter_mut().find(|rank| rank.number() == number)
}

fn act(actions: Vec<Action>, ranks: &mut [Rank]) -> io::Result<()> {
    for action in actions {
        match action {
            Action::Answer(rank, text) => {
                if let Some(rank) = find(ranks, rank)
                    && let Some(line) = rank.pmi()
                    // A rank that asks and never reads the answer gets no more.
                    && line.socket.write_all(text.as_bytes()).is_err()
                {
                    *rank.pmi() = None;
                }
            }
            Action::Barrier(pairs) => {
                for part in parts_of(pairs) {
                    say(&ToFront::Put(part))?;
                }
                say(&ToFront::AtBarrier)?;
            }
            Action::Abort { rank, code } => say(&ToFront::Abort { rank, code })?,
            Action::Name { rank, request } => say(&ToFront::Name { rank, request })?,
            Action::Drop(rank) => find(ranks, rank).into_iter().for_each(|rank| *rank.pmi() = None),
        }
    }
    Ok(())
}
