//! Replica selection: which locations of a file a stage-in job is given, best first, and on which side
//! the job runs (sections 6.6.1 and 6.7 of the planner's specification).

use crate::catalog::replica::Replica;

use super::exec::SiteId;
use super::settings::{ReplicaSelector, Settings};
use super::sites::Sites;

/// What a transfer is for.
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
    /// As job names have it.
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
    /// A symbolic link will do.
    pub(crate) link: bool,
}

/// Where a transfer from or to the work directory of a site runs.
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
    let on_file_system = place
        .scratch
        .as_ref()
        .is_some_and(|s| s.url.starts_with("file://"));
    if is_remote || on_file_system {
        Side::Remote
    } else {
        Side::Local
    }
}

/// Orders the locations of a file for a job on `site`; `None` if none can be used.
pub(crate) fn select(
    settings: &Settings,
    sites: &Sites,
    site: SiteId,
    replicas: &[Replica],
    linkable: bool,
) -> Option<Selected> {
    let place = sites.get(site);
    let runs = side(settings, sites, site, Direction::In);
    let located = replicas.iter().filter_map(|r| Some((r, r.site.as_deref()?)));
    let located: Vec<(&Replica, &str)> = match settings.replica_selector {
        ReplicaSelector::Default => located.collect(),
        ReplicaSelector::Local => located.filter(|(_, s)| *s == "local").collect(),
    };
    let is_file = |r: &Replica| r.pfn.starts_with("file://");
    let (mut files, mut near, mut far, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (replica, at) in located {
        let source = |priority| (replica.pfn.clone(), at.to_owned(), priority);
        if is_file(replica) {
            if at == place.name || (at == "local" && runs == Side::Local) {
                files.push(source(100));
            } else if at == "local" {
                // Every job of the plan runs in the allocation. Whether it sees the file systems of the
                // submit host is not known here; without any other location that is the best guess.
                elsewhere.push(source(10));
            }
        } else if at == place.name {
            near.push(source(50));
        } else {
            far.push(source(10));
        }
    }
    let mut sources = files;
    sources.append(&mut near);
    sources.append(&mut far);
    if sources.is_empty() {
        sources = elsewhere;
    }
    let link = linkable && settings.links && sources.first().is_some_and(|(_, at, _)| *at == place.name);
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
