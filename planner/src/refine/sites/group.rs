//! The selector Group: jobs with the same profile `pegasus::group` go to one site, drawn among those that can
//! run all of them; other jobs are drawn for one by one.

use std::collections::BTreeMap;

use super::random;
use super::selection::Placing;
use crate::diagnostic::Diagnostic;
use crate::exec::SiteId;
use crate::model::JobIndex;

/// The name that jobs without the profile have in Pegasus.
const RESERVED: &str = "default";

/// Chooses for all jobs.
///
/// # Errors
/// Groups that no site can run as a whole, or that have the reserved name.
pub(super) fn choose(placing: &Placing<'_>) -> Result<Vec<SiteId>, Vec<Diagnostic>> {
    let mut chosen = random::choose(placing);
    let mut groups: BTreeMap<&str, Vec<JobIndex>> = BTreeMap::new();
    for (n, _) in placing.free() {
        if let Some(group) = placing.job(n).profiles.pegasus("group") {
            groups.entry(group).or_default().push(n);
        }
    }
    let mut problems = Vec::new();
    for (group, jobs) in groups {
        if group == RESERVED {
            let ids = some(jobs.iter().map(|&n| placing.job(n).id.as_str()));
            problems.push(Diagnostic::error(format!(
                "the group name {RESERVED} is reserved for jobs without a group; give the group of {ids} another name"
            )));
            continue;
        }
        let mut common: Vec<SiteId> = placing.sites.candidates.clone();
        let mut programs: Vec<String> = Vec::new();
        for class in jobs.iter().filter_map(|&n| placing.class(n)) {
            let before = common.len();
            common.retain(|&site| class.entry(site).is_some());
            if common.len() < before
                && let Some(name) = &class.name
            {
                programs.push(name.to_string());
            }
        }
        let draw = random::below(placing.settings.seed, group, common.len());
        match common.get(draw) {
            Some(&site) => jobs.iter().for_each(|&n| chosen[n] = site),
            None => problems.push(Diagnostic::error(format!(
                "no site can run all {} jobs of the group {group}: of the sites [{}], none has all of {}",
                jobs.len(),
                placing.sites.names(&placing.sites.candidates).join(", "),
                programs.join(", ")
            ))),
        }
    }
    if problems.is_empty() {
        Ok(chosen)
    } else {
        Err(problems)
    }
}

/// The first few names of a list.
fn some<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut shown: Vec<&str> = names.take(6).collect();
    if shown.len() > 5 {
        shown[5] = "…";
    }
    shown.join(", ")
}
