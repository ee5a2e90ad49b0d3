//! Gangs on a simulated host: their processes are those of the simulation.

use std::time::Duration;

use pmc_system::simulated::random;
use pmc_system::thread;

use super::{Leftover, Members};
use crate::protocol::{Membership, Rank, SubmitId};
use crate::worker::simulated::host;

/// The longest time that the processes of a gang take to be gone, in milliseconds.
const END_MILLIS: u64 = 400;

/// The gangs of the host on which this thread is.
#[derive(Debug)]
pub(in crate::agent) struct SimulatedGangs;

impl Members for SimulatedGangs {
    fn join(&self, membership: &Membership, _: (Rank, u32)) -> Result<Vec<String>, String> {
        let host = host().ok_or("there is no host")?;
        host.0.join(membership);
        Ok(Vec::new())
    }

    fn leave(&self, submit: SubmitId) -> Option<Leftover> {
        let host = host().filter(|host| host.0.begin_to_leave(submit))?;
        let millis = random(|random| random.below(END_MILLIS)).unwrap_or(0);
        thread::sleep(Duration::from_millis(millis));
        Some(Leftover {
            is_cut: host.0.leave(submit),
            killed: Vec::new(),
        })
    }

    fn leave_all(&self) {
        let memberships = host().map_or_else(Vec::new, |host| host.0.memberships());
        for submit in memberships {
            self.leave(submit);
        }
    }

    fn groups(&self, _: SubmitId) -> Vec<nix::unistd::Pid> {
        // Tasks of a simulation have no processes.
        Vec::new()
    }
}
