//! Groups units into clusters, with one function per technique. A unit is a job, or a cluster of an earlier
//! technique.

use rustc_hash::FxHashMap;

use crate::diagnostic::Diagnostic;
use crate::exec::{ListId, SiteId};
use crate::graph::{Graph, by_depth};
use crate::ids::{Id as _, UnitId};

use super::settings::ClusterSettings;
use super::{Units, bins};

/// Units that become a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Name without `merge_`, except for what names the transformation.
    pub(super) name: GroupName,
    /// Units in order.
    pub(super) units: Vec<UnitId>,
}

/// Origin of a cluster's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GroupName {
    /// The transformation of its first unit, its level, and a number, both from 1.
    Level(u32, u32),
    /// A label.
    Label(String),
    /// The workflow.
    Whole,
}

/// Units of one level, transformation and site.
pub(super) fn horizontal(
    units: &impl Units,
    graph: &Graph<UnitId>,
    settings: &ClusterSettings,
    by_runtime: bool,
) -> Result<Vec<Group>, Vec<Diagnostic>> {
    // The graph has no cycle: it is checked after each technique.
    let order = graph.topological().unwrap_or_default();
    let depths = graph.depths(&order);
    let mut groups = Vec::new();
    let mut problems = Vec::new();
    for (depth, level) in by_depth(&depths).iter().enumerate() {
        let mut numbers: FxHashMap<(Option<ListId>, SiteId), usize> = FxHashMap::default();
        let mut found: Vec<Vec<UnitId>> = Vec::new();
        for &unit in level {
            let key = (units.transformation(unit), units.site(unit).0);
            let number = *numbers.entry(key).or_insert_with(|| {
                found.push(Vec::new());
                found.len() - 1
            });
            found[number].push(unit);
        }
        // Clusters of one transformation share one numbering over all sites.
        let mut next: FxHashMap<Option<ListId>, u32> = FxHashMap::default();
        for group in found {
            let Some(&first) = group.first() else { continue };
            match parts(units, &group, settings, by_runtime) {
                Ok(parts) => {
                    for units_of_part in parts {
                        let number = next.entry(units.transformation(first)).or_default();
                        *number += 1;
                        groups.push(Group {
                            name: GroupName::Level(depth as u32 + 1, *number),
                            units: units_of_part,
                        });
                    }
                }
                Err(more) => problems.extend(more),
            }
        }
    }
    if problems.is_empty() {
        Ok(groups)
    } else {
        problems.dedup();
        problems.truncate(super::MAX_REPORTED);
        Err(problems)
    }
}

/// Splits the units of one level, transformation and site. Units left out stay alone.
fn parts(
    units: &impl Units,
    group: &[UnitId],
    settings: &ClusterSettings,
    by_runtime: bool,
) -> Result<Vec<Vec<UnitId>>, Vec<Diagnostic>> {
    let Some(&first) = group.first() else {
        return Ok(Vec::new());
    };
    if group.len() == 1 && !settings.allow_single {
        return Ok(Vec::new());
    }
    let number = |key: &str| -> Result<Option<usize>, Vec<Diagnostic>> {
        let Some(text) = units.profile(first, key).map(str::trim) else {
            return Ok(None);
        };
        match text.parse::<usize>() {
            Ok(n) if n > 0 => Ok(Some(n)),
            _ => Err(vec![Diagnostic::error(format!(
                "the profile pegasus::{key} of the job {} must be a positive number, not {text}",
                units.name(first)
            ))]),
        }
    };
    let (clusters, size) = (number("clusters.num")?, number("clusters.size")?);
    let size = size.or_else(|| settings.nodes.get(units.site(first).1).map(|&n| n as usize));
    // A size of 1 disables clusters.
    if by_runtime && (clusters.is_some() || size != Some(1)) {
        let longest = units.profile(first, "clusters.maxruntime");
        match (longest, clusters) {
            (Some(longest), _) => return bins::bounded(units, group, longest, settings.allow_single),
            (None, Some(clusters)) => return bins::balanced(units, group, clusters, settings.allow_single),
            (None, None) => {}
        }
    }
    let (size, rest) = match clusters {
        Some(clusters) => (group.len() / clusters, group.len() % clusters),
        None => (size.unwrap_or(1), 0),
    };
    Ok(slices(group, size, rest, settings.allow_single))
}

/// Splits into consecutive units. The first `rest` slices are one unit longer than `size`.
fn slices(group: &[UnitId], size: usize, mut rest: usize, allow_single: bool) -> Vec<Vec<UnitId>> {
    if size == 1 && rest == 0 && !allow_single {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let mut left = group;
    while !left.is_empty() {
        let requested = size + usize::from(rest > 0);
        rest = rest.saturating_sub(1);
        // As in Pegasus, the last slice may have one job, but not a slice of requested size 1.
        if requested == 0 || (requested == 1 && !allow_single) {
            break;
        }
        let (part, more) = left.split_at(requested.min(left.len()));
        parts.push(part.to_vec());
        left = more;
    }
    parts
}

/// Units with one label.
pub(super) fn label(units: &impl Units, settings: &ClusterSettings) -> Vec<Group> {
    let mut numbers: FxHashMap<&str, usize> = FxHashMap::default();
    let mut found: Vec<(&str, Vec<UnitId>)> = Vec::new();
    for unit in UnitId::first(units.len()) {
        let Some(label) = units.profile(unit, &settings.label_key).map(str::trim) else {
            continue;
        };
        let number = *numbers.entry(label).or_insert_with(|| {
            found.push((label, Vec::new()));
            found.len() - 1
        });
        found[number].1.push(unit);
    }
    found
        .into_iter()
        .filter(|(_, units)| units.len() > 1 || settings.allow_single)
        .map(|(label, units)| Group {
            name: GroupName::Label(label.to_owned()),
            units,
        })
        .collect()
}

/// All units.
pub(super) fn whole(units: &impl Units, settings: &ClusterSettings) -> Vec<Group> {
    let count = units.len();
    if count == 0 || (count == 1 && !settings.allow_single) {
        return Vec::new();
    }
    vec![Group {
        name: GroupName::Whole,
        units: UnitId::first(count).collect(),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(jobs: usize, size: usize, rest: usize, allow_single: bool) -> Vec<usize> {
        let group: Vec<UnitId> = UnitId::first(jobs).collect();
        let parts = slices(&group, size, rest, allow_single);
        let joined: Vec<UnitId> = parts.concat();
        assert_eq!(joined, group[..joined.len()]);
        parts.iter().map(Vec::len).collect()
    }

    #[test]
    fn slices_by_size() {
        assert_eq!(sizes(10, 4, 0, false), [4, 4, 2]);
        assert_eq!(sizes(9, 4, 0, false), [4, 4, 1]);
        assert_eq!(sizes(3, 4, 0, false), [3]);
        assert_eq!(sizes(3, 1, 0, false), [] as [usize; 0]);
        assert_eq!(sizes(3, 1, 0, true), [1, 1, 1]);
    }

    #[test]
    fn slices_by_number() {
        // Three clusters of eleven, of four, of two jobs.
        assert_eq!(sizes(11, 3, 2, false), [4, 4, 3]);
        assert_eq!(sizes(4, 1, 1, false), [2]);
        assert_eq!(sizes(2, 0, 2, false), [] as [usize; 0]);
    }
}
