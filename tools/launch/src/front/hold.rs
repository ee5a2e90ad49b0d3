//! Ranks that are stopped before their first instruction until a person has attached debuggers, for `--hold`.

use super::Launch;
use crate::frames::{Strace, ToProxy};

/// Most ranks that are named with their processes.
const MAX_NAMED: usize = 32;

impl Launch<'_> {
    /// Says what a person does now who has asked for it.
    pub(super) fn say_what_follows(&mut self, is_held: bool, strace: Option<&Strace>) {
        if let Some(strace) = strace {
            let directory = String::from_utf8_lossy(&strace.directory.0);
            let directory = directory.trim_end_matches('/');
            pmc_terminal::message(format_args!(
                "strace writes {directory}/strace.{}.RANK",
                strace.job
            ));
        }
        self.is_held = self.options.hold && is_held;
        if !self.is_held {
            return;
        }
        let all = self.world.ranks.len();
        for (rank, pid) in self.ends.processes().take(MAX_NAMED) {
            let place = self.world.ranks.get(rank as usize);
            let host = place.map_or("", |place| self.name(place.host as usize));
            pmc_terminal::message(format_args!("rank {rank} on {host}: process {pid}"));
        }
        if all > MAX_NAMED {
            let others = all - MAX_NAMED;
            pmc_terminal::message(format_args!("{others} other ranks: --report FILE names all"));
        }
        pmc_terminal::message("The ranks stand before their first instruction. Enter lets them go");
    }

    /// Lets ranks go that are held.
    pub(super) fn let_go(&mut self) {
        if std::mem::take(&mut self.is_held) {
            self.proxies.say_all(&ToProxy::Signal(libc::SIGCONT));
        }
    }

    /// Returns what of the input is for ranks: while they are held, what follows the first end of a line.
    pub(super) fn after_enter(&mut self, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        if !self.is_held {
            return Some(bytes);
        }
        match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) => drop(bytes.drain(..=end)),
            // Nobody will press it any more.
            None if bytes.is_empty() => {
                self.let_go();
                return Some(bytes);
            }
            None => {
                self.read_on();
                return None;
            }
        }
        self.let_go();
        if bytes.is_empty() {
            // None would say that the input has ended.
            self.read_on();
            return None;
        }
        Some(bytes)
    }

    fn read_on(&self) {
        if let Some(input) = &self.input {
            input.read_on();
        }
    }
}
