//! The selector Heft: list scheduling by the earliest estimated end. Jobs are taken in the order of their
//! rank, the longest way from a root; each goes to the site where it ends first.
//!
//! Estimates are whole seconds: the profile `runtime` of the program at the site, else of the job. A site has
//! as many processors as its site catalog entry has idle nodes, else nodes at all, else ten.

use super::selection::{Placed, Placing, of_job};
use crate::diagnostic::Diagnostic;
use crate::exec::{EntryId, SiteId};
use crate::graph::Lists;
use crate::ids::Id as _;
use crate::model::JobIndex;

/// Seconds that data takes from one site to another.
const COMMUNICATION: f64 = 2.5;
/// The same where times are whole numbers.
const WHOLE_COMMUNICATION: u64 = 2;
/// No estimate is longer: sums stay exact.
const LONGEST: f64 = 1e12;

/// Chooses for all jobs.
///
/// # Errors
/// All programs without an estimate.
pub(super) fn choose(placing: &Placing<'_>, placed: &mut Placed) -> Result<Vec<SiteId>, Vec<Diagnostic>> {
    let count = placing.workflow.jobs.len();
    let graph = placing.graph();
    let order = graph.topological().unwrap_or_default();
    let processors = |site: SiteId| placing.sites.get(site).processors;
    let costs = costs(placing)?;
    let average = |n: JobIndex| {
        let (mut sum, mut weights) = (0.0, 0.0);
        for &(site, seconds) in costs.of(n) {
            sum += seconds as f64 * f64::from(processors(site));
            weights += f64::from(processors(site));
        }
        if weights > 0.0 { sum / weights } else { 0.0 }
    };
    let mut rank = vec![0f64; count];
    for &n in &order {
        let parents = graph.parents(n).iter();
        rank[n] = parents
            .map(|&p| rank[p] + average(p) + COMMUNICATION)
            .fold(0.0, f64::max);
    }
    let mut by_rank = order;
    // Jobs of equal rank stay in the order of the workflow, and parents always rank before children.
    by_rank.sort_unstable();
    by_rank.sort_by(|a, b| rank[*a].total_cmp(&rank[*b]));
    let mut queues: Vec<Option<Processors>> = (0..placing.sites.len()).map(|_| None).collect();
    let mut chosen = vec![placing.sites.local(); count];
    let mut finish = vec![0u64; count];
    for n in by_rank {
        let mut best: Option<(u64, SiteId, usize)> = None;
        for &(site, seconds) in costs.of(n) {
            let ready = graph.parents(n).iter().map(|&p| {
                let elsewhere = chosen[p] != site;
                finish[p] + if elsewhere { WHOLE_COMMUNICATION } else { 0 }
            });
            let ready = ready.max().unwrap_or(0);
            let queue =
                queues[site].get_or_insert_with(|| Processors::new((processors(site) as usize).min(count)));
            let (processor, start) = queue.earliest(ready);
            let end = start + seconds;
            if best.is_none_or(|(other, _, _)| end < other) {
                best = Some((end, site, processor));
            }
        }
        if let Some((end, site, processor)) = best {
            chosen[n] = site;
            finish[n] = end;
            if let Some(queue) = &mut queues[site] {
                queue.occupy(processor, end);
            }
        }
    }
    let makespan = finish.iter().max().copied().unwrap_or(0);
    placed.notes.push(format!(
        "Heft expects the jobs alone to take {makespan} s on the processors of the sites"
    ));
    Ok(chosen)
}

/// Returns the seconds of each job on each site where it can run.
fn costs(placing: &Placing<'_>) -> Result<Lists<JobIndex, (SiteId, u64)>, Vec<Diagnostic>> {
    let mut problems: Vec<Diagnostic> = Vec::new();
    let mut costs = Lists::default();
    for n in JobIndex::first(placing.workflow.jobs.len()) {
        let job = placing.job(n);
        let own = job.profiles.pegasus("runtime");
        let mut add = |site: SiteId, entry: Option<EntryId>, is_free: bool| {
            let at_site = entry.and_then(|e| placing.programs.entry(e).profiles.pegasus("runtime"));
            match at_site.or(own).map(|text| (text, seconds(text))) {
                Some((_, Some(seconds))) => costs.push((site, seconds)),
                // A job with a fixed site only takes up room there.
                _ if !is_free => costs.push((site, 1)),
                None => problems.push(Diagnostic::error(format!(
                    "the site selector Heft needs the profile pegasus::runtime of {} on the site {}: set it in the \
                     transformation catalog, or of {} in the workflow",
                    job.transformation,
                    placing.sites.get(site).name,
                    job.id
                ))),
                Some((text, None)) => problems.push(Diagnostic::error(format!(
                    "{} on the site {}: the profile pegasus::runtime must be a number of seconds, not `{text}`",
                    of_job(placing, n),
                    placing.sites.get(site).name
                ))),
            }
        };
        match (placing.class(n), placing.fixed.get(&n)) {
            (Some(class), _) => class
                .options
                .iter()
                .for_each(|&(site, entry)| add(site, entry, true)),
            (None, Some(&site)) => {
                let entry = placing
                    .programs
                    .usable(&job.transformation, placing.sites.get(site));
                add(site, entry, false);
            }
            (None, None) => {}
        }
        costs.end();
    }
    if problems.is_empty() {
        return Ok(costs);
    }
    // One job of a kind stands for all.
    let mut seen = rustc_hash::FxHashSet::default();
    problems.retain(|problem| {
        seen.insert(
            problem
                .message
                .split(": set it")
                .next()
                .unwrap_or_default()
                .to_owned(),
        )
    });
    Err(problems)
}

/// Whole seconds, at least one.
fn seconds(text: &str) -> Option<u64> {
    let number = text.trim().parse::<f64>().ok().filter(|&number| number >= 0.0)?;
    Some(number.clamp(1.0, LONGEST) as u64)
}

/// When each processor of a site is free: a tree of minima over them.
struct Processors {
    /// Leaves from `leaves` on; node `n` is the minimum of `2n` and `2n + 1`.
    tree: Vec<u64>,
    leaves: usize,
}

impl Processors {
    fn new(count: usize) -> Self {
        let leaves = count.max(1).next_power_of_two();
        let mut tree = vec![0; 2 * leaves];
        tree[leaves + count.max(1)..].fill(u64::MAX);
        for n in (1..leaves).rev() {
            tree[n] = tree[2 * n].min(tree[2 * n + 1]);
        }
        Processors { tree, leaves }
    }
    /// The first processor that is free at `ready`, else the first that is free next, and when the job
    /// starts.
    fn earliest(&self, ready: u64) -> (usize, u64) {
        let start = self.tree[1].max(ready);
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            if self.tree[node] > start {
                node += 1;
            }
        }
        (node - self.leaves, start)
    }
    fn occupy(&mut self, processor: usize, until: u64) {
        let mut node = self.leaves + processor;
        self.tree[node] = until;
        while node > 1 {
            node /= 2;
            self.tree[node] = self.tree[2 * node].min(self.tree[2 * node + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn estimates_are_whole_seconds() {
        assert_eq!(seconds(" 12.9 "), Some(12));
        assert_eq!(seconds("0"), Some(1));
        for bad in ["-1", "soon", "nan", ""] {
            assert!(seconds(bad).is_none(), "{bad}");
        }
        assert_eq!(seconds("inf"), Some(LONGEST as u64));
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_a_search_finds(
            count in 1usize..9,
            jobs in prop::collection::vec((0u64..20, 1u64..10), 1..40),
        ) {
            let mut tree = Processors::new(count);
            let mut plain = vec![0u64; count];
            for (ready, seconds) in jobs {
                let start = plain.iter().map(|&free| free.max(ready)).min().unwrap_or(0);
                let processor = plain.iter().position(|&free| free.max(ready) == start).unwrap_or(0);
                prop_assert_eq!(tree.earliest(ready), (processor, start));
                tree.occupy(processor, start + seconds);
                plain[processor] = start + seconds;
            }
        }
    }
}
