//! Sites that no site catalog describes and that mean this machine: `condorpool`, which every Pegasus knows
//! without a catalog, execution sites of the command line, and, if there is no site catalog, all others. They
//! are further names of `local`.

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use crate::catalog::site::SiteCatalog;
use crate::catalog::transformation::TransformationCatalog;
use crate::model::Workflow;
use crate::refine::replicas::Replicas;
use crate::refine::sites::selection::fixed_site;
use crate::request::Request;

/// The site of this machine.
const LOCAL: &str = "local";

/// Makes undefined sites further names of `local`. Returns a warning if there are some.
pub(super) fn name_this_machine(
    request: &Request,
    workflow: &Workflow,
    sites: &mut SiteCatalog,
    programs: &mut TransformationCatalog,
    replicas: &mut Replicas,
) -> Option<String> {
    let is_undefined = |name: &str| {
        sites.is_undefined_local(name)
            || (request.sites.iter().any(|site| site == name) && sites.is_new_name(name))
    };
    let staging = request
        .staging_sites
        .iter()
        .flat_map(|(site, staging)| [site, staging]);
    let named = request.sites.iter().chain(staging).chain(&request.output_sites);
    let named = named.map(String::as_str).filter(|name| !name.is_empty());
    let fixed = workflow.jobs.iter().filter_map(fixed_site);
    let mut names: BTreeSet<String> = named
        .chain(fixed)
        .filter(|name| is_undefined(name))
        .map(str::to_owned)
        .collect();
    let only_local = sites.sites.keys().all(|name| name == LOCAL);
    let runs_here = !names.is_empty()
        || request.sites.iter().any(|name| name == LOCAL)
        || (request.sites.is_empty() && only_local);
    if runs_here {
        let of_programs = programs.entries.iter().map(|entry| entry.site.as_str());
        names.extend(of_programs.filter(|name| is_undefined(name)).map(str::to_owned));
    }
    if names.is_empty() {
        return None;
    }
    move_programs(request, &names, programs);
    replicas.move_to_site(&names, LOCAL);
    let listed: Vec<&str> = names.iter().map(String::as_str).collect();
    let (site, means) = if names.len() == 1 {
        ("site", "means")
    } else {
        ("sites", "mean")
    };
    let without = if sites.is_absent {
        "without a site catalog"
    } else {
        "not in the site catalog"
    };
    let warning = format!("{without}, the {site} {} {means} this machine", listed.join(", "));
    sites.names_of_local = names;
    Some(warning)
}

/// Makes the programs of these sites programs of `local`. An entry of `local` for the same program wins,
/// unless the user names the other site.
fn move_programs(request: &Request, names: &BTreeSet<String>, catalog: &mut TransformationCatalog) {
    let of_local: FxHashSet<_> = catalog
        .entries
        .iter()
        .filter(|entry| entry.site == LOCAL)
        .map(|entry| entry.name.clone())
        .collect();
    let is_named = |site: &String| request.sites.contains(site);
    // The first entry that fits is used.
    catalog
        .entries
        .sort_by_key(|entry| !(names.contains(&entry.site) && is_named(&entry.site)));
    for entry in &mut catalog.entries {
        if names.contains(&entry.site) && (is_named(&entry.site) || !of_local.contains(&entry.name)) {
            entry.site = LOCAL.into();
        }
    }
}
