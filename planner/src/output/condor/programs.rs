//! Programs of HTCondor on the submit host.

use std::collections::BTreeMap;

use crate::profiles::Namespace;
use crate::refine::programs::auxiliary_name;
use crate::tasks::Plan;

/// Finds the program of DAGMan: that of the catalog, else the one below the directory that a variable of the
/// site `local` or of the planner names, else the one on the planner's `PATH`.
pub(super) fn dagman(plan: &Plan<'_>, variables: &BTreeMap<String, String>) -> Option<String> {
    let name = auxiliary_name("condor::dagman");
    let mut entries = plan.catalog.entries(&name);
    if let Some(entry) = entries.find(|entry| entry.site == "local") {
        return Some(entry.pfn.strip_prefix("file://").unwrap_or(&entry.pfn).to_owned());
    }
    let site = &plan.sites.get(plan.sites.local()).profiles;
    let of_site = |key: &&str| site.get(Namespace::Env, key);
    let of_planner = |key: &&str| variables.get(*key).map(String::as_str);
    let homes = ["CONDOR_HOME", "CONDOR_LOCATION"];
    let named = homes.iter().find_map(of_site);
    if let Some(home) = named.or_else(|| homes.iter().find_map(of_planner)) {
        return Some(format!("{home}/bin/condor_dagman"));
    }
    let mut paths = variables.get("PATH").into_iter().flat_map(std::env::split_paths);
    let found = paths.find_map(|directory| {
        let program = directory.join("condor_dagman");
        (program.is_absolute() && program.is_file()).then_some(program)
    });
    found.map(|program| program.display().to_string())
}
