//! The selector RoundRobin: level by level, each job goes to the site that has been given the fewest jobs of
//! the level and can run it. With sites that can run everything they take turns.

use super::selection::{Placing, levels};
use crate::exec::SiteId;
use crate::graph::by_depth;

/// Chooses for all jobs; jobs of a level in document order.
pub(super) fn choose(placing: &Placing<'_>) -> Vec<SiteId> {
    let mut chosen = vec![placing.sites.local(); placing.workflow.jobs.len()];
    let graph = placing.graph();
    for level in by_depth(&levels(&graph)) {
        let mut queue: Vec<(SiteId, u32)> = placing.sites.candidates.iter().map(|&s| (s, 0)).collect();
        for n in level {
            let Some(class) = placing.class(n) else { continue };
            if let Some(site) = take(&mut queue, |site| class.entry(site).is_some()) {
                chosen[n] = site;
            }
        }
    }
    chosen
}

/// Takes the first site of the queue that will do; it goes behind all that have no more jobs than it has now.
fn take(queue: &mut Vec<(SiteId, u32)>, will_do: impl Fn(SiteId) -> bool) -> Option<SiteId> {
    let at = queue.iter().position(|(site, _)| will_do(*site))?;
    let (site, count) = queue.remove(at);
    let behind = queue.partition_point(|(_, other)| *other <= count + 1);
    queue.insert(behind, (site, count + 1));
    Some(site)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn able_sites_take_turns() {
        let mut queue = vec![(SiteId::new(0), 0), (SiteId::new(1), 0), (SiteId::new(2), 0)];
        let mut turns: Vec<usize> = (0..6)
            .filter_map(|_| take(&mut queue, |_| true))
            .map(SiteId::index)
            .collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
        // Jobs that only one can run make it wait behind the others.
        turns = (0..4)
            .filter_map(|n| take(&mut queue, |s| n > 1 || s.index() == 0))
            .map(SiteId::index)
            .collect();
        assert_eq!(turns, [0, 0, 1, 2]);
        assert_eq!(take(&mut queue, |_| true), Some(SiteId::new(1)));
        assert_eq!(take(&mut queue, |_| false), None);
        assert!(queue.is_sorted_by_key(|(_, count)| *count));
    }
}
