//! Queued tasks over several hosts.

use super::{Class, Key, Queue, ShapeId};
use crate::scheduler::shares::ShareId;

/// The first task of a shape of gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitingGang {
    /// The largest one is to start first.
    pub(crate) key: Key,
    pub(crate) shape: ShapeId,
}

impl Queue {
    /// True if gangs are queued.
    pub(crate) fn has_gangs(&self) -> bool {
        self.gangs > 0
    }

    /// Returns the gang that is to start first, none of these shapes, and only of a share if there is one.
    pub(crate) fn first_gang(&self, share: Option<ShareId>, without: &[ShapeId]) -> Option<WaitingGang> {
        let of_share = |class: &&Class| share.is_none_or(|share| share == class.share);
        let classes = self.gang_classes().filter(of_share);
        let waiting = classes.flat_map(Class::waiting);
        waiting.filter(|gang| !without.contains(&gang.shape)).max()
    }

    /// Returns the first gang of each shape whose tasks may start, the one that is to start first in front.
    pub(crate) fn first_gangs(&self) -> Vec<WaitingGang> {
        let mut gangs: Vec<WaitingGang> = self.gang_classes().flat_map(Class::waiting).collect();
        gangs.sort_unstable_by(|a, b| b.cmp(a));
        gangs
    }

    fn gang_classes(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().filter(|class| class.gang.is_some())
    }

    /// Returns the key of the first task of a shape, [`Key::NONE`] if none may start.
    pub(crate) fn key_of(&self, id: ShapeId) -> Key {
        let shape = self.shape(id);
        self.classes[shape.class as usize].keys[shape.leaf as usize]
    }

    /// Returns the shapes of tasks for one host with tasks that may start, the one that is to start first in
    /// front.
    pub(crate) fn open_shapes(&self) -> Vec<ShapeId> {
        let plain = self.classes.iter().filter(|class| class.gang.is_none());
        let shapes = plain.flat_map(|class| class.keys.iter().copied().zip(class.shapes.clone()));
        let mut open: Vec<(Key, ShapeId)> = shapes.filter(|(key, _)| *key > Key::NONE).collect();
        open.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        open.into_iter().map(|(_, shape)| shape).collect()
    }
}

impl Class {
    /// Returns the first tasks of its shapes that may start.
    fn waiting(&self) -> impl Iterator<Item = WaitingGang> + '_ {
        let shapes = self.keys.iter().zip(&self.shapes);
        let waiting = shapes.map(|(key, shape)| WaitingGang {
            key: *key,
            shape: *shape,
        });
        waiting.filter(|gang| gang.key > Key::NONE)
    }
}
