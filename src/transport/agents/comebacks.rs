//! Agents that are started later than the others: those that an earlier master has left behind, and those of
//! hosts that are gone and may come again.

use std::time::{Duration, Instant};

use pmc_batch::launch::Launch;
use pmc_system::clock;
use rustc_hash::FxHashMap;

use super::Running;
use super::launcher::LaunchError;

/// Minimum time between two starts of the agent of a host.
const COMEBACK_INTERVAL: Duration = Duration::from_secs(60);

/// How often the master looks for hosts that are gone.
const COMEBACK_LOOK: Duration = Duration::from_secs(5);

/// When agents of hosts that are gone are started again.
pub(super) struct Comebacks {
    next_look: Instant,
    /// When each was started again last.
    started: FxHashMap<u32, Instant>,
}

impl Default for Comebacks {
    fn default() -> Self {
        Self {
            next_look: clock::now() + COMEBACK_LOOK,
            started: FxHashMap::default(),
        }
    }
}

impl Comebacks {
    /// Returns whether the agent of this number, which was first started at `begun`, may be started again.
    /// Notes that it is.
    fn is_due(&mut self, number: u32, begun: Instant) -> bool {
        let last = self.started.get(&number).copied().unwrap_or(begun);
        let is_due = clock::elapsed(last) >= COMEBACK_INTERVAL;
        if is_due {
            self.started.insert(number, clock::now());
        }
        is_due
    }

    /// Notes that the master has looked. Returns when it looks again.
    fn looked(&mut self) -> Instant {
        self.next_look = clock::now() + COMEBACK_LOOK;
        self.next_look
    }
}

impl Running {
    /// Starts the agents of an earlier master that have not come back.
    pub(super) fn start_skipped(&mut self, agents: u32) -> Result<(), LaunchError> {
        let Some(launcher) = self.launcher.as_mut().filter(|launcher| launcher.has_skipped()) else {
            return Ok(());
        };
        let table = self.reception.table();
        if self.reception.rules.starts_all {
            let all = table.present().count() >= agents as usize;
            launcher.start_skipped(|_| all)
        } else {
            launcher.start_skipped(|number| table.is_present(number))
        }
    }

    /// Starts agents again whose hosts are gone and may have come back. Returns when to call this next.
    pub(super) fn start_again(&mut self, launch: Option<&Launch>) -> Option<Instant> {
        let launcher = self.launcher.as_mut()?;
        let hosts = launch?.hosts();
        if hosts.is_empty() || self.comebacks.next_look > clock::now() {
            return (!hosts.is_empty()).then_some(self.comebacks.next_look);
        }
        let table = self.reception.table();
        self.reported.retain(|number| !table.has_number(*number));
        let candidates = (0..u32::MAX)
            .zip(hosts)
            .filter(|(number, _)| table.may_come_again(*number) && !launcher.is_skipped(*number));
        let gone: Vec<(u32, &String)> = candidates.collect();
        drop(table);
        for (number, host) in gone {
            // At first, what has started an agent has until then to bring it.
            if self.comebacks.is_due(number, self.begun) {
                tracing::debug!("Starting the agent on {host} again");
                if let Err(error) = launcher.start_again(number) {
                    tracing::warn!("Unable to start the agent on {host} again: {error}");
                }
            }
        }
        Some(self.comebacks.looked())
    }
}
