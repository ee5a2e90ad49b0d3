//! Sites of the run: work directories, storage, tools, and candidate execution sites.

pub(crate) mod callout;
mod group;
mod heft;
pub(crate) mod local;
mod output_sites;
mod random;
mod round_robin;
pub(crate) mod selection;
pub(crate) mod settings;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::catalog::site::{DirectoryKind, Grid, Operation, Site, SiteCatalog, SysInfo};
use crate::diagnostic::Diagnostic;
use crate::error::{PlanError, near_spelling};
use crate::profiles::{Namespace, Profiles, parse_bool};
use crate::request::Request;

use super::java_hash_order::{hash, sort_hashed};
use super::settings::Settings;
use crate::data_mode::{self, DataMode};
use crate::exec::SiteId;

pub(crate) use output_sites::OutputSite;
use output_sites::output_site;

/// Maximum sites of a catalog.
const MAX_SITES: usize = u16::MAX as usize;

/// A site and its directories in this run.
#[derive(Clone, Debug)]
pub(crate) struct WorkSite {
    /// Name.
    pub(crate) name: String,
    /// System, compared with that of programs.
    pub(crate) sysinfo: SysInfo,
    /// Profiles of the site without `PEGASUS_HOME`, which only the planner uses.
    pub(crate) profiles: Profiles,
    /// Profiles that are laid over them for jobs with a tag, by tag.
    pub(crate) tags: BTreeMap<String, Profiles>,
    /// Directory of the tools (kickstart, transfer…) on the site.
    pub(crate) tools: String,
    /// `PEGASUS_HOME` of the site in the catalog.
    pub(crate) home: Option<String>,
    /// Ways to its batch system or pool.
    pub(crate) grids: Vec<Grid>,
    /// Directory for jobs on each node, if the site has one.
    pub(crate) local_scratch: Option<String>,
    /// Its file system is visible on the submit host (profile `auxillary.local`).
    pub(crate) visible: bool,
    /// Work directory of the run; `None` without a shared scratch directory.
    pub(crate) scratch: Option<Scratch>,
    /// The profile `pegasus::workdir`: a work directory that the run does not own.
    pub(crate) workdir: Option<String>,
    /// Processors for estimates: idle nodes, else nodes, else ten.
    pub(crate) processors: u32,
    /// Protocol and host of each of its file servers.
    pub(crate) servers: Vec<String>,
    /// Jobs may run there although the user names no execution sites: it is no mere storage site.
    pub(crate) is_for_jobs: bool,
}

/// Directories of a run, relative to those of the sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunDirs {
    /// Below the scratch directories.
    pub(crate) work: String,
    /// Below the storage directories, with `pegasus.dir.storage.deep`.
    pub(crate) storage: String,
}

/// Processors of a site without information about its nodes.
const PROCESSORS: u32 = 10;

/// The work directory of the run on a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scratch {
    /// Path.
    pub(crate) path: String,
    /// URL for transfers.
    pub(crate) url: String,
    /// URLs for jobs that do not see the directory; `None` without a file server.
    pub(crate) servers: Option<ScratchServers>,
}

/// URLs of a work directory for jobs that do not see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScratchServers {
    /// To write to.
    pub(crate) put: String,
    /// To read from.
    pub(crate) get: String,
}

/// What is done with a file at a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It is read.
    Get,
    /// It is written or removed.
    Put,
}

/// All sites, candidate execution sites, and output sites.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sites {
    sites: Vec<WorkSite>,
    by_name: BTreeMap<String, SiteId>,
    /// Candidate execution sites in order of preference.
    pub(crate) candidates: Vec<SiteId>,
    /// Output sites in the order of the command line.
    pub(crate) outputs: Vec<OutputSite>,
    /// Staging sites by execution site; `None` for any.
    staging: Vec<(Option<SiteId>, SiteId)>,
    /// Whether each site is the staging site of jobs with directories of their own. Set once the jobs have
    /// their sites.
    lite: OnceLock<Vec<bool>>,
}

impl Sites {
    /// Returns a site.
    pub(crate) fn get(&self, id: SiteId) -> &WorkSite {
        &self.sites[id]
    }
    /// Returns all sites, by number.
    pub(crate) fn all(&self) -> &[WorkSite] {
        &self.sites
    }
    /// Returns the name of a site in the catalog; an unknown name is returned as it is.
    fn catalog_name<'s>(&'s self, name: &'s str) -> &'s str {
        self.find(name).map_or(name, |id| &self.get(id).name)
    }
    /// Returns the number of a site.
    pub(crate) fn find(&self, name: &str) -> Option<SiteId> {
        self.by_name.get(name).copied()
    }
    /// Returns the number of sites.
    pub(crate) fn len(&self) -> usize {
        self.sites.len()
    }
    /// Returns the names of some sites.
    pub(crate) fn names(&self, ids: &[SiteId]) -> Vec<&str> {
        ids.iter().map(|&id| self.get(id).name.as_str()).collect()
    }
    /// Returns the site of the submit host.
    pub(crate) fn local(&self) -> SiteId {
        self.find("local").expect("the site local is always made")
    }
    /// Returns the first candidate with the same work directory. Otherwise files might be removed under one
    /// name of the directory while they are needed under the other.
    pub(crate) fn directory_of(&self, id: SiteId) -> SiteId {
        let Some(scratch) = &self.get(id).scratch else {
            return id;
        };
        let same = |site: &WorkSite| site.scratch.as_ref().is_some_and(|s| s.url == scratch.url);
        let mut candidates = self.candidates.iter().copied();
        candidates.find(|&other| same(self.get(other))).unwrap_or(id)
    }
    /// Returns the staging site that the command line names for an execution site.
    fn named_staging(&self, id: SiteId) -> Option<SiteId> {
        let chosen = |site| self.staging.iter().find(|(of, _)| *of == site);
        let chosen = chosen(Some(id)).or_else(|| chosen(None));
        chosen.map(|&(_, staging)| staging)
    }
    /// Returns the site whose work directory the jobs of a site exchange files through.
    ///
    /// # Errors
    /// Jobs that share a work directory need that of their site, and cannot have that of another one.
    pub(crate) fn staging_of(&self, id: SiteId, mode: DataMode) -> Result<SiteId, Diagnostic> {
        let named = self.named_staging(id);
        let site = self.get(id);
        let staging = match mode {
            DataMode::Shared => {
                if let Some(other) = named.filter(|&other| other != id) {
                    return Err(Diagnostic::error(format!(
                        "--staging-site: with the data configuration sharedfs jobs work where their files are: the \
                         staging site of {} must be the execution site itself, not {}",
                        site.name,
                        self.get(other).name
                    )));
                }
                if site.scratch.is_none() {
                    return Err(without_scratch(&site.name));
                }
                id
            }
            // Jobs with directories of their own need none of their site.
            DataMode::NonShared if site.scratch.is_none() => named.unwrap_or(self.local()),
            DataMode::NonShared => named.unwrap_or(id),
            DataMode::CondorIo => self.local(),
        };
        Ok(self.directory_of(staging))
    }
    /// Returns the sites that may become the staging site of jobs of a site whose data configuration nothing
    /// says.
    pub(super) fn possible_staging(&self, id: SiteId) -> impl Iterator<Item = SiteId> {
        let sites = [self.named_staging(id), Some(id)];
        sites.into_iter().flatten().map(|site| self.directory_of(site))
    }
    /// Returns whether programs on this machine see the work directory of a site.
    pub(crate) fn is_visible(&self, id: SiteId) -> bool {
        let scratch = self.get(id).scratch.as_ref();
        scratch.is_some_and(|scratch| scratch.url.starts_with("file:") || scratch.url.starts_with('/'))
    }
    /// Notes which sites are staging sites of jobs with directories of their own.
    pub(crate) fn serve_lite(&self, lite: Vec<bool>) {
        // A plan maps its jobs once.
        self.lite.get_or_init(|| lite);
    }
    /// Returns whether a site is the staging site of jobs with directories of their own.
    pub(crate) fn is_lite(&self, id: SiteId) -> bool {
        self.lite.get().is_some_and(|lite| lite[id.index()])
    }
    /// Returns the URL of the work directory of a site.
    pub(crate) fn work_url(&self, id: SiteId, access: Access) -> &str {
        let Some(scratch) = &self.get(id).scratch else {
            return "";
        };
        match (&scratch.servers, access) {
            (Some(servers), Access::Get) if self.is_lite(id) => &servers.get,
            (Some(servers), Access::Put) if self.is_lite(id) => &servers.put,
            _ => &scratch.url,
        }
    }
    /// Returns the site on which jobs run that make and empty the work directory of a site: its own, unless
    /// that directory is visible or served elsewhere.
    pub(crate) fn managed_from(&self, id: SiteId) -> SiteId {
        if self.get(id).visible
            || (self.is_lite(id) && !self.work_url(id, Access::Put).starts_with("file://"))
        {
            self.local()
        } else {
            id
        }
    }
    /// Path of a file in the shared work directory of a site.
    pub(crate) fn scratch_path(&self, id: SiteId, lfn: &str) -> String {
        let base = self.get(id).scratch.as_ref().map_or("", |s| s.path.as_str());
        format!("{base}/./{lfn}")
    }

    /// Finds all sites of a run.
    ///
    /// # Errors
    /// Unknown sites, execution sites without scratch directory, output sites without storage.
    pub(crate) fn new(
        catalog: &SiteCatalog,
        request: &Request,
        settings: &Settings,
        dirs: &RunDirs,
    ) -> Result<Self, PlanError> {
        let mut all = catalog.sites.clone();
        // Reading the catalogs has added the site `local`.
        all.entry("local".into()).or_default();
        let mut this = Sites::default();
        for (name, site) in &all {
            if this.sites.len() >= MAX_SITES {
                return Err(PlanError::refinement("more than 65535 sites in the site catalog"));
            }
            let id = SiteId::new(this.sites.len());
            this.by_name.insert(name.clone(), id);
            this.sites.push(work_site(site, request, settings, &dirs.work));
        }
        let local = this.local();
        this.by_name
            .extend(catalog.names_of_local.iter().map(|name| (name.clone(), local)));
        let mut problems = Vec::new();
        this.candidates = this.choose_candidates(request, &mut problems);
        this.staging = this.choose_staging(request, &mut problems);
        this.outputs = this.choose_outputs(&all, request, settings, &dirs.storage, &mut problems);
        PlanError::check(problems)?;
        Ok(this)
    }

    /// Returns the names of all sites for error messages, `condorpool` always among them.
    fn loaded(&self) -> String {
        let mut names: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        if !names.contains(&"condorpool") {
            names.push("condorpool");
        }
        names.sort_unstable();
        names.join(", ")
    }

    /// Returns a hint: the site with a similar name, and all sites.
    pub(crate) fn suggestion(&self, name: &str) -> String {
        let known = format!(
            "sites are {}",
            self.by_name.keys().cloned().collect::<Vec<_>>().join(", ")
        );
        match near_spelling(name, self.by_name.keys().map(String::as_str)) {
            Some(near) => format!("did you mean {near}? {known}"),
            None => known,
        }
    }

    /// Returns the problem of an unknown site.
    fn unknown(&self, what: &str, name: &str) -> String {
        let mut text = format!(
            "{what} site {name} not loaded into site store. Loaded sites are [{}]",
            self.loaded()
        );
        match near_spelling(name, self.by_name.keys().map(String::as_str)) {
            Some(near) => text.push_str(&format!("\n  hint: did you mean {near}?")),
            None => text.push_str(
                "\n  hint: describe it in the site catalog: sites.yml in the working directory, or the file that the \
                 property pegasus.catalog.site.file names",
            ),
        }
        text
    }

    fn choose_candidates(&self, request: &Request, problems: &mut Vec<Diagnostic>) -> Vec<SiteId> {
        let mut candidates = Vec::new();
        // Storage-only sites count only if the user names them.
        let all = || {
            self.by_name
                .iter()
                .filter(|&(_, &id)| self.get(id).name != "local" && self.get(id).is_for_jobs)
                .map(|(_, &id)| id)
        };
        if request.sites.is_empty() {
            match self.find("compute") {
                Some(id) => candidates.push(id),
                None => candidates.extend(all()),
            }
            // Without a site catalog, jobs run on this machine.
            if candidates.is_empty() {
                candidates.push(self.local());
            }
        }
        for name in &request.sites {
            if name == "*" {
                candidates.extend(all());
                continue;
            }
            match self.find(name) {
                Some(id) => candidates.push(id),
                None => problems.push(Diagnostic::error(self.unknown("Execution", name))),
            }
        }
        let mut seen = Vec::new();
        candidates.retain(|id| {
            !seen.contains(id) && {
                seen.push(*id);
                true
            }
        });
        candidates
    }

    /// Returns the staging sites of the command line.
    fn choose_staging(
        &self,
        request: &Request,
        problems: &mut Vec<Diagnostic>,
    ) -> Vec<(Option<SiteId>, SiteId)> {
        let mut chosen = Vec::new();
        for (site, staging) in &request.staging_sites {
            for (what, name) in [("Execution", site), ("Staging", staging)] {
                if !name.is_empty() && self.find(name).is_none() {
                    problems.push(Diagnostic::error(self.unknown(what, name)));
                }
            }
            if let (of, Some(staging)) = (self.find(site), self.find(staging))
                && (of.is_some() || site.is_empty())
            {
                chosen.push((of, staging));
            }
        }
        chosen
    }

    fn choose_outputs(
        &self,
        all: &BTreeMap<String, Site>,
        request: &Request,
        settings: &Settings,
        deep: &str,
        problems: &mut Vec<Diagnostic>,
    ) -> Vec<OutputSite> {
        let names = request.output_sites.iter();
        let mut names: Vec<String> = names.map(|name| self.catalog_name(name).to_owned()).collect();
        if (request.output_dir.is_some() || request.output_map.is_some()) && names.is_empty() {
            names.push("local".into());
        }
        // `--output-dir` belongs to the one output site, else to local.
        let dir_site = match names.as_slice() {
            [one] => one.clone(),
            _ => "local".into(),
        };
        // In the order of Pegasus' table, which decides which jobs copy what.
        let count = names.len();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        sort_hashed(&mut names, count, |name| hash(name));
        let mut outputs = Vec::new();
        for name in names {
            let Some(site) = all.get(name) else {
                problems.push(Diagnostic::error(self.unknown("Output", name)));
                continue;
            };
            let dir = request.output_dir.as_deref().filter(|_| name == dir_site);
            match output_site(site, dir, request, settings, deep) {
                Some(output) => outputs.push(output),
                None => problems.push(Diagnostic::error(format!(
                    "the output site {name} has no directory of type localStorage or sharedStorage"
                ))),
            }
        }
        outputs
    }
}

/// The problem of a site whose jobs share a work directory that it does not have.
fn without_scratch(site: &str) -> Diagnostic {
    Diagnostic::error(format!(
        "the site {site} has no directory of type sharedScratch, in which its jobs work with the data configuration \
         sharedfs\n  hint: add one to the site in the site catalog, or give its jobs directories of their own: set \
         the property pegasus.data.configuration, or the profile pegasus::data.configuration of the site, to condorio \
         or nonsharedfs"
    ))
}

/// Returns whether jobs may run on a site although the user names no execution sites.
fn is_for_jobs(site: &Site, settings: &Settings) -> bool {
    use DirectoryKind::{LocalStorage, SharedScratch, SharedStorage};
    let has = |kinds: &[DirectoryKind]| kinds.iter().any(|kind| site.directories.contains_key(kind));
    let own_mode = site.profiles.pegasus(data_mode::KEY).and_then(DataMode::parse);
    has(&[SharedScratch])
        || own_mode.is_some_and(DataMode::is_lite)
        || (own_mode.is_none() && settings.data.is_lite() && !has(&[LocalStorage, SharedStorage]))
}

fn work_site(site: &Site, request: &Request, settings: &Settings, exec_rel: &str) -> WorkSite {
    let mut profiles = site.profiles.clone();
    let tools = tools_of(site, request);
    profiles.remove(Namespace::Env, "PEGASUS_HOME");
    let mut tags = site.tags.clone();
    for profiles in tags.values_mut() {
        profiles.remove(Namespace::Env, "PEGASUS_HOME");
    }
    let workdir = profiles
        .pegasus("workdir")
        .or_else(|| settings.profiles.pegasus("workdir"))
        .map(|dir| dir.trim().trim_end_matches('/').to_owned());
    let scratch = site
        .directories
        .get(&DirectoryKind::SharedScratch)
        .map(|directory| {
            let within = |base: &str| match &settings.dir_exec {
                Some(dir) if dir.starts_with('/') => dir.clone(),
                Some(dir) => format!("{}/{dir}", base.trim_end_matches('/')),
                None => base.trim_end_matches('/').to_owned(),
            };
            if let Some(path) = workdir.as_ref().filter(|dir| dir.starts_with('/')) {
                let url = format!("file://{path}");
                return Scratch {
                    path: path.clone(),
                    servers: Some(ScratchServers {
                        put: url.clone(),
                        get: url.clone(),
                    }),
                    url,
                };
            }
            let exec_rel = workdir.as_deref().unwrap_or(exec_rel);
            let path = join(&within(&directory.path), exec_rel);
            // All jobs of the plan see the path, so no other protocol is needed.
            let url = match directory.url(Operation::Put) {
                Some(url) if url.starts_with("file://") => {
                    let mount = url.trim_start_matches("file://");
                    format!("file://{}", join(&within(mount), exec_rel))
                }
                _ => format!("file://{path}"),
            };
            let served = |operation| {
                let url = join(&within(directory.url(operation)?), exec_rel);
                Some(match url.starts_with('/') {
                    true => format!("file://{url}"),
                    false => url,
                })
            };
            let servers = served(Operation::Put).zip(served(Operation::Get));
            Scratch {
                path,
                url,
                servers: servers.map(|(put, get)| ScratchServers { put, get }),
            }
        });
    WorkSite {
        name: site.name.clone(),
        sysinfo: site.sysinfo.clone(),
        visible: site.profiles.pegasus("auxillary.local").and_then(parse_bool) == Some(true),
        profiles,
        tags,
        tools,
        home: home_of(site).map(str::to_owned),
        grids: site.grids.clone(),
        local_scratch: site
            .directories
            .get(&DirectoryKind::LocalScratch)
            .map(|directory| directory.path.clone()),
        scratch,
        workdir,
        processors: site.idle_nodes.or(site.total_nodes).unwrap_or(PROCESSORS).max(1),
        servers: site
            .directories
            .values()
            .flat_map(|directory| &directory.servers)
            .map(|server| split_url(&server.url).0.to_owned())
            .collect(),
        is_for_jobs: is_for_jobs(site, settings),
    }
}

/// Returns the directory of the tools: from the site's `PEGASUS_HOME`, else from the environment, else that
/// of the running program.
fn tools_of(site: &Site, request: &Request) -> String {
    home_of(site).map_or_else(|| own_tools(request), |home| format!("{home}/bin"))
}

/// Returns the site's `PEGASUS_HOME`.
fn home_of(site: &Site) -> Option<&str> {
    let home = site.profiles.get(Namespace::Env, "PEGASUS_HOME")?.trim();
    (!home.is_empty()).then(|| home.trim_end_matches('/'))
}

/// Returns the directory of the tools of the planner's installation.
pub(crate) fn own_tools(request: &Request) -> String {
    let environment = &request.environment;
    match environment.variables.get("PEGASUS_HOME").map(String::as_str) {
        Some(home) if !home.is_empty() => format!("{}/bin", home.trim_end_matches('/')),
        _ => environment
            .own_bin
            .as_ref()
            .map_or_else(|| "/usr/bin".into(), |bin| bin.display().to_string()),
    }
}

fn join(base: &str, relative: &str) -> String {
    let relative = relative.trim_matches('/');
    if relative.is_empty() {
        base.to_owned()
    } else {
        format!("{}/{relative}", base.trim_end_matches('/'))
    }
}

/// Splits a URL into protocol with host, and path.
pub(crate) fn split_url(url: &str) -> (&str, &str) {
    let Some(host) = url.find("://").map(|n| n + 3) else {
        return ("", url);
    };
    match url[host..].find('/') {
        Some(n) => url.split_at(host + n),
        None => (url, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_before_the_path() {
        assert_eq!(split_url("file:///a/b"), ("file://", "/a/b"));
        assert_eq!(
            split_url("gsiftp://h.example.org/a/b"),
            ("gsiftp://h.example.org", "/a/b")
        );
        assert_eq!(split_url("gsiftp://h"), ("gsiftp://h", ""));
        assert_eq!(split_url("/a"), ("", "/a"));
    }
}
