//! Finds hosts for tasks that run on one host.

use pmc_dag::Request;

use super::{Free, Hosts};

/// What of a host counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Room {
    /// What is free.
    Free,
    /// What is free and not reserved.
    Unreserved,
}

impl Hosts {
    /// Returns the most free memory among hosts with a free slot that have all else that is requested, except
    /// for the avoided ones.
    pub(crate) fn most_free_memory_without(
        &mut self,
        request: Request,
        avoided: &[u32],
        room: Room,
    ) -> Option<u64> {
        self.without(avoided, |hosts| hosts.most_free_memory(request, room))
    }

    /// Like [`Hosts::most_free_memory_without`], without avoided hosts.
    pub(crate) fn most_free_memory(&self, request: Request, room: Room) -> Option<u64> {
        let most = |index: &super::Index, room: Room| {
            index.most_memory(&self.scale, request, |host| self.room_for(host, request, room))
        };
        let beyond = most(&self.index, Room::Unreserved);
        match room {
            Room::Free if !self.reserved.is_empty() => beyond.max(most(self.reserved.index(), Room::Free)),
            _ => beyond,
        }
    }

    /// Returns a host with a free slot on which the request fits, none of the avoided ones. What is reserved
    /// comes last.
    pub(crate) fn find_without(&mut self, request: Request, avoided: &[u32], room: Room) -> Option<u32> {
        self.without(avoided, |hosts| hosts.find(request, room))
    }

    /// Like [`Hosts::find_without`], without avoided hosts.
    pub(super) fn find(&self, request: Request, room: Room) -> Option<u32> {
        let free = |host| self.room_for(host, request, Room::Unreserved);
        let found = self.index.find(&self.scale, request, self.placement, free);
        match room {
            Room::Free => found.or_else(|| self.find_reserved(request)),
            Room::Unreserved => found,
        }
    }

    /// Returns a host with a reserved part and a free slot on which the request fits, also into what is
    /// reserved; none of the avoided ones.
    pub(crate) fn find_reserved_without(&mut self, request: Request, avoided: &[u32]) -> Option<u32> {
        self.without(avoided, |hosts| hosts.find_reserved(request))
    }

    fn find_reserved(&self, request: Request) -> Option<u32> {
        if self.reserved.is_empty() {
            return None;
        }
        let free = |host| self.room_for(host, request, Room::Free);
        let reserved = self.reserved.index();
        reserved.find(&self.scale, request, self.placement, free)
    }

    /// Searches as if these hosts had no free slot.
    fn without<R>(&mut self, avoided: &[u32], search: impl FnOnce(&Self) -> R) -> R {
        avoided.iter().for_each(|host| self.leave(*host));
        let found = search(self);
        avoided.iter().for_each(|host| self.enter(*host));
        found
    }

    /// True if a host has a free slot, and the request fits.
    pub(crate) fn has_room(&self, host: u32, request: Request, room: Room) -> bool {
        self.room_for(host, request, room)
            .is_some_and(|free| free.holds(request))
    }

    /// What of a host a task may use.
    fn room_for(&self, host: u32, request: Request, room: Room) -> Option<Free> {
        let free = self.free_in(host, room)?;
        self.get(host).suits(request).then_some(free)
    }

    /// What is free on a host for a task that names it, or does not; `None` if nothing can start.
    pub(crate) fn free_for(&self, host: u32, room: Room, is_named: bool) -> Option<Free> {
        if !is_named {
            return self.free_in(host, room);
        }
        let free = self.get(host).free_for_named()?;
        match room {
            Room::Free => Some(free),
            Room::Unreserved => self.beyond_reserved(host, free),
        }
    }

    /// What is free on a host for tasks that name none; `None` if nothing can start.
    pub(crate) fn free_in(&self, host: u32, room: Room) -> Option<Free> {
        match room {
            Room::Free => self.get(host).free(),
            Room::Unreserved => self.unreserved(host),
        }
    }
}
