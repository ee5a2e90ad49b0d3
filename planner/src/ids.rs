//! Numbers of jobs, files, sites and other things: one type each, with all casts in this file.
//!
//! A number counts from 0 and is an index into arrays. `Option` of a number takes no more memory than the
//! number.

use std::fmt::Debug;
use std::hash::Hash;
use std::num::{NonZeroU16, NonZeroU32};

/// A number of a thing.
pub(crate) trait Id: Copy + Debug + Ord + Hash {
    /// Returns the number of a position in an array.
    fn new(position: usize) -> Self;
    /// Returns the position in an array.
    fn index(self) -> usize;
    /// Returns the first `count` numbers.
    fn first(count: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..count).map(Self::new)
    }
}

/// A plain number, for what is numbered in one place only.
impl Id for u32 {
    #[inline]
    fn new(position: usize) -> Self {
        Self::try_from(position).unwrap_or(Self::MAX)
    }
    #[inline]
    fn index(self) -> usize {
        self as usize
    }
}

/// Defines types of numbers.
macro_rules! ids {
    ($($(#[$doc:meta])* $visibility:vis $name:ident($inner:ty, $nonzero:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $visibility struct $name($nonzero);

        impl $name {
            /// Returns the number of a position. Positions end long before memory does.
            #[inline]
            $visibility fn new(position: usize) -> Self {
                let next = <$inner>::try_from(position + 1).unwrap_or(<$inner>::MAX);
                Self(<$nonzero>::new(next).unwrap_or(<$nonzero>::MIN))
            }
            /// Returns the position.
            #[inline]
            $visibility fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }

        impl Id for $name {
            #[inline]
            fn new(position: usize) -> Self {
                $name::new(position)
            }
            #[inline]
            fn index(self) -> usize {
                $name::index(self)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.index())
            }
        }

        impl<T> std::ops::Index<$name> for [T] {
            type Output = T;
            #[inline]
            fn index(&self, id: $name) -> &T {
                &self[id.index()]
            }
        }

        impl<T> std::ops::IndexMut<$name> for [T] {
            #[inline]
            fn index_mut(&mut self, id: $name) -> &mut T {
                &mut self[id.index()]
            }
        }

        impl<T> std::ops::Index<$name> for Vec<T> {
            type Output = T;
            #[inline]
            fn index(&self, id: $name) -> &T {
                &self[id.index()]
            }
        }

        impl<T> std::ops::IndexMut<$name> for Vec<T> {
            #[inline]
            fn index_mut(&mut self, id: $name) -> &mut T {
                &mut self[id.index()]
            }
        }
    )*};
}

ids! {
    /// Number of a job of the abstract workflow, in document order. In the refinement, the clusters follow
    /// the jobs.
    pub JobIndex(u32, NonZeroU32);
    /// Number of a logical file, in order of first mention. See [`crate::model::Files`].
    pub FileId(u32, NonZeroU32);
    /// Number of a job of the executable workflow, in order of creation.
    pub(crate) JobId(u32, NonZeroU32);
    /// Number of a site of the run.
    pub(crate) SiteId(u16, NonZeroU16);
    /// Number of an entry in the list of [`crate::exec::Exec`] that belongs to a kind of job.
    pub(crate) ListId(u32, NonZeroU32);
    /// Number of a program with its profiles.
    pub(crate) SetupId(u32, NonZeroU32);
    /// Number of an entry of the transformation catalog.
    pub(crate) EntryId(u32, NonZeroU32);
    /// Number of a job, or of a cluster of an earlier technique, while clusters are formed.
    pub(crate) UnitId(u32, NonZeroU32);
    /// Number of a file in a work directory, for clean-up within a bound on space.
    pub(crate) ItemId(u32, NonZeroU32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_small_and_sorted() {
        assert_eq!(size_of::<Option<JobId>>(), 4);
        assert_eq!(size_of::<Option<SiteId>>(), 2);
        assert_eq!((JobId::new(0).index(), JobId::new(7).index()), (0, 7));
        assert!(FileId::new(1) < FileId::new(2));
        assert_eq!(format!("{:?}", SiteId::new(3)), "SiteId(3)");
        assert_eq!([10, 20][JobIndex::new(1)], 20);
        assert_eq!(
            UnitId::first(2).collect::<Vec<_>>(),
            [UnitId::new(0), UnitId::new(1)]
        );
    }
}
