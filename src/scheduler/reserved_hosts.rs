//! Hosts that a person has reserved: only tasks that name them (`--on`) start there.
//!
//! What runs there goes on. They count as hosts of the run: a task that would fit there waits, and does not
//! end the run. Parts that are reserved for gangs are another matter (`gangs`).

use pmc_dag::{Gang, Request};

use crate::protocol::ToWorker;
use crate::scheduler::Outbox;
use crate::scheduler::gangs::of_person;
use crate::scheduler::hosts::Host;
use crate::scheduler::run::Master;

impl Host {
    /// True if a gang may start here, as far as persons have reserved hosts.
    pub(crate) fn is_open_to(&self, gang: &Gang) -> bool {
        !self.named_only || gang.on.contains(&self.name)
    }
}

impl Master {
    /// True if workers of this host are there, or were.
    #[must_use]
    pub fn is_host(&self, name: &str) -> bool {
        self.hosts.number(name).is_some()
    }

    /// Reserves a host, or opens it again. That holds for workers that come later, too.
    pub fn reserve_host(&mut self, name: &str, is_reserved: bool, out: &mut impl Outbox) {
        let Some(number) = self.hosts.set_named_only(name, is_reserved) else {
            return;
        };
        for rank in &self.hosts.get(number).ranks {
            let slot = &self.slots[rank.0 as usize - 1];
            if is_reserved && slot.member.is_there() && !slot.prefilled.is_empty() {
                out.send(*rank, ToWorker::Retract);
            }
        }
        // Tasks may wait for this host because they avoid others.
        self.avoidance.look_again();
    }

    /// Says which hosts a person has reserved on which a request would fit now.
    pub(super) fn reserved_by_person(&self, request: Request) -> Option<String> {
        let has_room = |host: &&Host| {
            host.named_only
                && host.suits(request)
                && host.free_for_named().is_some_and(|free| free.holds(request))
        };
        let mut names: Vec<&str> = self
            .hosts
            .all()
            .iter()
            .filter(has_room)
            .map(|host| host.name.as_str())
            .collect();
        names.sort_unstable();
        (!names.is_empty()).then(|| of_person(&names))
    }
}
