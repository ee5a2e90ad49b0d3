//! Clusters by run time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::diagnostic::Diagnostic;
use crate::ids::UnitId;

use super::Units;

/// Units with their run times, the longest first.
fn sorted(units: &impl Units, group: &[UnitId]) -> Result<Vec<(f64, UnitId)>, Vec<Diagnostic>> {
    let mut problems = Vec::new();
    let mut all = Vec::with_capacity(group.len());
    for &unit in group {
        match units.runtime(unit) {
            Ok(Some(seconds)) => all.push((seconds, unit)),
            Ok(None) => problems.push(Diagnostic::error(format!(
                "clustering by run time needs the run time of the job {}: give it, or its transformation, the profile \
                 pegasus::runtime (seconds)",
                units.name(unit)
            ))),
            Err(problem) => problems.push(problem),
        }
        if problems.len() >= super::MAX_REPORTED {
            break;
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    // Stable, so that equal units keep their order in the workflow.
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    Ok(all)
}

/// Forms clusters that run at most `longest` seconds: each unit joins the first cluster with room. Longer
/// units stay alone.
pub(super) fn bounded(
    units: &impl Units,
    group: &[UnitId],
    longest: &str,
    allow_single: bool,
) -> Result<Vec<Vec<UnitId>>, Vec<Diagnostic>> {
    let name = group.first().map_or("", |&first| units.name(first));
    let longest = super::seconds(longest).map_err(|e| {
        vec![Diagnostic::error(format!(
            "the profile pegasus::clusters.maxruntime of the job {name} {e}"
        ))]
    })?;
    let all = sorted(units, group)?;
    let mut bins: Vec<Vec<UnitId>> = Vec::new();
    let mut room = Room::new(all.len(), longest);
    for (seconds, unit) in all {
        if seconds > longest {
            continue;
        }
        let Some(bin) = room.take(seconds) else { continue };
        if bin >= bins.len() {
            bins.resize(bin + 1, Vec::new());
        }
        bins[bin].push(unit);
    }
    Ok(in_order(bins, allow_single))
}

/// Forms a number of clusters: each unit joins the shortest cluster so far.
pub(super) fn balanced(
    units: &impl Units,
    group: &[UnitId],
    clusters: usize,
    allow_single: bool,
) -> Result<Vec<Vec<UnitId>>, Vec<Diagnostic>> {
    let all = sorted(units, group)?;
    let clusters = clusters.min(all.len());
    let mut bins = vec![Vec::new(); clusters];
    let mut shortest: BinaryHeap<Reverse<(Seconds, usize)>> =
        (0..clusters).map(|bin| Reverse((Seconds(0.0), bin))).collect();
    for (seconds, unit) in all {
        let Some(Reverse((Seconds(length), bin))) = shortest.pop() else {
            break;
        };
        bins[bin].push(unit);
        shortest.push(Reverse((Seconds(length + seconds), bin)));
    }
    Ok(in_order(bins, allow_single))
}

/// Returns the units of each bin in the order of the workflow. Bins of one unit are left out.
fn in_order(mut bins: Vec<Vec<UnitId>>, allow_single: bool) -> Vec<Vec<UnitId>> {
    bins.retain(|bin| bin.len() > 1 || (allow_single && !bin.is_empty()));
    for bin in &mut bins {
        bin.sort_unstable();
    }
    bins
}

/// A finite number that can be compared.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seconds(f64);

impl Eq for Seconds {}
impl PartialOrd for Seconds {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Seconds {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Free room in bins: a tree of maxima that finds the first bin with enough room in logarithmic time.
struct Room {
    leaves: usize,
    most: Vec<f64>,
}

impl Room {
    fn new(bins: usize, each: f64) -> Self {
        let leaves = bins.next_power_of_two();
        Room {
            leaves,
            most: vec![each; 2 * leaves],
        }
    }
    /// Takes room in the first bin that has it.
    fn take(&mut self, amount: f64) -> Option<usize> {
        // Sums of fractions are not exact, so a rounding error counts as room.
        let fits = |room: f64| room + 1e-9 * amount.max(1.0) >= amount;
        if !fits(self.most[1]) {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node = if fits(self.most[2 * node]) {
                2 * node
            } else {
                2 * node + 1
            };
        }
        let bin = node - self.leaves;
        self.most[node] -= amount;
        while node > 1 {
            node /= 2;
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]);
        }
        Some(bin)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exec::{ListId, SiteId};
    use crate::ids::Id as _;

    struct Times(Vec<f64>);

    impl Units for Times {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn transformation(&self, _: UnitId) -> Option<ListId> {
            None
        }
        fn site(&self, _: UnitId) -> (SiteId, &str) {
            (SiteId::new(0), "local")
        }
        fn profile(&self, _: UnitId, _: &str) -> Option<&str> {
            None
        }
        fn runtime(&self, unit: UnitId) -> Result<Option<f64>, Diagnostic> {
            let seconds = self.0[unit];
            Ok((seconds >= 0.0).then_some(seconds))
        }
        fn name(&self, _: UnitId) -> &str {
            "job"
        }
    }

    fn all(times: &Times) -> Vec<UnitId> {
        UnitId::first(times.len()).collect()
    }

    fn numbers(bins: &[Vec<UnitId>]) -> Vec<Vec<usize>> {
        let of_bin = |bin: &Vec<UnitId>| bin.iter().map(|unit| unit.index()).collect();
        bins.iter().map(of_bin).collect()
    }

    #[test]
    fn first_fit_of_the_longest_first() {
        let times = Times(vec![40.0, 80.0, 100.0, 60.0, 250.0, 20.0]);
        let bins = bounded(&times, &all(&times), "200", false).expect("run times");
        // 100 + 80 + 20, 60 + 40; 250 is too long.
        assert_eq!(numbers(&bins), [vec![1, 2, 5], vec![0, 3]]);
    }

    #[test]
    fn the_shortest_bin_is_next() {
        let times = Times(vec![10.0, 20.0, 30.0, 40.0]);
        let bins = balanced(&times, &all(&times), 2, false).expect("run times");
        assert_eq!(numbers(&bins), [vec![0, 3], vec![1, 2]]);
        assert!(
            balanced(&times, &all(&times), 9, false)
                .expect("run times")
                .is_empty()
        );
    }

    #[test]
    fn a_missing_run_time_names_the_job() {
        let times = Times(vec![10.0, -1.0]);
        let problems = balanced(&times, &all(&times), 1, false).expect_err("no run time");
        assert!(
            problems[0].message.contains("run time of the job job"),
            "{problems:?}"
        );
        assert!(bounded(&times, &all(&times), "-3", false).is_err());
    }

    proptest! {
        #[test]
        fn it_is_first_fit(seconds in prop::collection::vec(0u32..50, 2..60), longest in 1u32..100) {
            let times = Times(seconds.iter().map(|&s| f64::from(s)).collect());
            let found = bounded(&times, &all(&times), &longest.to_string(), true).expect("run times");
            let mut order: Vec<usize> = (0..seconds.len()).collect();
            order.sort_by_key(|&n| Reverse(seconds[n]));
            let mut bins: Vec<(u32, Vec<usize>)> = Vec::new();
            for n in order {
                let s = seconds[n];
                if s > longest {
                    continue;
                }
                match bins.iter_mut().find(|(used, _)| used + s <= longest) {
                    Some((used, bin)) => {
                        *used += s;
                        bin.push(n);
                    }
                    None => bins.push((s, vec![n])),
                }
            }
            let mut expected: Vec<Vec<usize>> = bins.into_iter().map(|(_, bin)| bin).collect();
            expected.iter_mut().for_each(|bin| bin.sort_unstable());
            prop_assert_eq!(numbers(&found), expected);
        }
    }
}
