//! Replica selection: the locations of a file for a stage-in job, best first, and the side on which the job
//! runs.

pub(crate) mod ranking;

use std::cmp::Reverse;

use crate::catalog::replica::Replica;

use super::settings::Settings;
use super::sites::{Access, Sites};
use crate::exec::SiteId;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Into the work directory.
    In,
    /// Between work directories.
    Inter,
    /// To an output site.
    Out,
}

/// Where a transfer job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Side {
    /// On the submit host.
    Local,
    /// On the staging site.
    Remote,
}

impl Side {
    /// Returns the name used in job names.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Side::Local => "local",
            Side::Remote => "remote",
        }
    }
}

/// Chosen locations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// URL, site, priority, best first.
    pub(crate) sources: Vec<(String, String, u32)>,
    /// Where the job runs.
    pub(crate) side: Side,
    /// A symbolic link suffices.
    pub(crate) link: bool,
}

/// Returns the side of a transfer from or to the work directory of a site.
pub(crate) fn side(settings: &Settings, sites: &Sites, site: SiteId, direction: Direction) -> Side {
    let place = sites.get(site);
    if site == sites.local() || place.visible {
        return Side::Local;
    }
    let own = match direction {
        Direction::In => &settings.remote_sites.stage_in,
        Direction::Inter => &settings.remote_sites.inter,
        Direction::Out => &settings.remote_sites.stage_out,
    };
    let is_remote = settings
        .remote_sites
        .all
        .iter()
        .chain(own)
        .any(|name| name == "*" || *name == place.name);
    let on_file_system = sites.work_url(site, Access::Put).starts_with("file://");
    if is_remote || on_file_system {
        Side::Remote
    } else {
        Side::Local
    }
}

/// Locations that are not used: their number and an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Locations without a site.
    siteless: (usize, String),
    /// Locations that the selector excludes.
    unwanted: (usize, String),
}

impl LeftOut {
    /// Returns warnings about these locations.
    pub(crate) fn warnings(&self, settings: &Settings) -> Vec<String> {
        let mut warnings = Vec::new();
        let (count, first) = &self.siteless;
        if *count > 0 {
            warnings.push(format!(
                "{count} locations of inputs name no site and are not used, for example {first}: give them one in the \
                 replica catalog"
            ));
        }
        let (count, first) = &self.unwanted;
        if let (1.., Some(reason)) = (*count, settings.replica_selector.reason()) {
            warnings.push(format!(
                "{count} locations of inputs are not used, for example {first}: {reason}"
            ));
        }
        warnings
    }
}

fn count(of: &mut (usize, String), pfn: &str) {
    if of.0 == 0 {
        pfn.clone_into(&mut of.1);
    }
    of.0 += 1;
}

/// Returns the locations of a file for the work directory of `site`, best first; `None` if none can be used.
/// Those on the site `preferred` come first.
pub(crate) fn select(
    settings: &Settings,
    sites: &Sites,
    (site, preferred): (SiteId, SiteId),
    replicas: &[Replica],
    linkable: bool,
    left_out: &mut LeftOut,
) -> Option<Selected> {
    let place = sites.get(site);
    let runs = side(settings, sites, site, Direction::In);
    let (mut sources, mut elsewhere) = (Vec::new(), Vec::new());
    for replica in replicas {
        let Some(at) = replica.site.as_deref() else {
            count(&mut left_out.siteless, &replica.pfn);
            continue;
        };
        let Some(priority) = settings
            .replica_selector
            .priority(&sites.get(preferred).name, at, &replica.pfn)
        else {
            count(&mut left_out.unwanted, &replica.pfn);
            continue;
        };
        let source = |priority| (replica.pfn.clone(), at.to_owned(), priority);
        if !replica.pfn.starts_with("file://") || at == place.name || (at == "local" && runs == Side::Local) {
            sources.push(source(priority));
        } else if at == "local" || at == sites.get(preferred).name {
            // Jobs run inside the allocation, which may not see the file systems of the submit host, and
            // transfer jobs may run where those of the execution site are not seen. Without another location,
            // this one is used.
            elsewhere.push(source(10));
        }
    }
    sources.sort_by_key(|(_, _, priority)| Reverse(*priority));
    if sources.is_empty() {
        sources = elsewhere;
    }
    let is_preferred = |(_, at, _): &(String, String, u32)| *at == sites.get(preferred).name;
    settings.replica_selector.settle(&mut sources, is_preferred);
    let link = linkable
        && settings.links
        && sources.first().is_some_and(|(url, at, _)| {
            // Only paths can be linked to.
            *at == place.name && (url.starts_with("file://") || !url.contains("://"))
        });
    if link {
        for (url, at, _) in &mut sources {
            if *at == place.name && !url.contains("://") {
                *url = format!("file://{url}");
            }
        }
    }
    let on_site = sources
        .iter()
        .any(|(url, at, _)| url.starts_with("file://") && *at == place.name && !place.visible);
    let side = if link || on_site { Side::Remote } else { runs };
    if sources.is_empty() {
        None
    } else {
        Some(Selected { sources, side, link })
    }
}
