//! Files that pass along the dependencies of sub-workflows without being listed in the `uses` of their jobs.
//!
//! Pegasus gives the cache file of a sub-workflow to the sub-workflows that depend on it, so that they find
//! its files. Here all work in one directory: a file that one part writes and parts that depend on it only
//! read is the same file.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::JobIndex;

/// A job that uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    /// The job of the outer workflow that it stems from.
    pub(super) outer: JobIndex,
    /// The sub-workflow job to which its files are private; `None` for files of the outer workflow.
    pub(super) space: Option<JobIndex>,
    /// It writes the file.
    pub(super) writes: bool,
}

/// Dependencies between the jobs of the outer workflow.
pub(super) struct Dependencies {
    children: FxHashMap<JobIndex, Vec<JobIndex>>,
    is_part: Vec<bool>,
    /// Jobs that depend on a job, directly or not.
    descendants: FxHashMap<JobIndex, FxHashSet<JobIndex>>,
}

impl Dependencies {
    /// Indexes the edges from parent to child. `is_part` says which jobs are sub-workflows.
    pub(super) fn new(edges: &[(JobIndex, JobIndex)], is_part: Vec<bool>) -> Self {
        let mut children: FxHashMap<JobIndex, Vec<JobIndex>> = FxHashMap::default();
        for &(parent, child) in edges {
            children.entry(parent).or_default().push(child);
        }
        Dependencies {
            children,
            is_part,
            descendants: FxHashMap::default(),
        }
    }

    /// Returns whether a file of several spaces is one file: jobs of one space write it, and all others
    /// depend on them. If a catalog also has a location of it (`is_known`), it passes only between
    /// sub-workflows of which one is a parent of the other: Pegasus then prefers the cache file.
    pub(super) fn pass(&mut self, users: &[User], is_known: bool) -> bool {
        let mut writers: Vec<User> = users.iter().copied().filter(|user| user.writes).collect();
        writers.dedup();
        let Some(space) = writers.first().map(|first| first.space) else {
            return false;
        };
        if writers.iter().any(|writer| writer.space != space) {
            return false;
        }
        let mut readers = users.iter().filter(|user| user.space != space);
        readers.all(|reader| {
            writers.iter().all(|writer| {
                let follows = self.descendants(writer.outer).contains(&reader.outer);
                follows && (!is_known || self.is_cached(writer.outer, reader.outer))
            })
        })
    }

    /// Returns whether Pegasus gives the cache file of one job to the other.
    fn is_cached(&self, parent: JobIndex, child: JobIndex) -> bool {
        let is_part = |job: JobIndex| self.is_part[job];
        let children = self.children.get(&parent);
        is_part(parent) && is_part(child) && children.is_some_and(|all| all.contains(&child))
    }

    fn descendants(&mut self, job: JobIndex) -> &FxHashSet<JobIndex> {
        let children = &self.children;
        self.descendants.entry(job).or_insert_with(|| {
            let mut found = FxHashSet::default();
            let mut open = vec![job];
            while let Some(next) = open.pop() {
                let all = children.get(&next).into_iter().flatten();
                open.extend(all.copied().filter(|&child| found.insert(child)));
            }
            found
        })
    }
}
