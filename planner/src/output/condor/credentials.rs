//! Credentials that transfers of a job need.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::exec::{Place, SiteId, Task};
use crate::profiles::{Namespace, Profiles};
use crate::refine::sites::Access;
use crate::tasks::PlannedJob;

use super::ad::{Ad, literal};
use super::context::Context;
use super::transfers::Transfers;

/// A kind of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// Variable and profile with the path of the file.
    name: &'static str,
    /// Protocols that need it.
    schemes: &'static [&'static str],
    /// File below the home directory that is used if nothing names one. If it is missing, the transfer may
    /// get on without.
    default: Option<&'static str>,
    /// Only servers that have a section in the file need it.
    by_section: bool,
}

const PROXY: &str = "X509_USER_PROXY";
const CREDENTIALS: &str = "PEGASUS_CREDENTIALS";
/// Where Pegasus' users keep credentials, below the home directory.
const CREDENTIALS_FILE: &str = ".pegasus/credentials.conf";

const KINDS: [Kind; 4] = [
    Kind {
        name: "SSH_PRIVATE_KEY",
        schemes: &["scp", "sftp", "sshftp"],
        default: None,
        by_section: false,
    },
    Kind {
        name: PROXY,
        schemes: &["gsiftp", "gsidavs", "gsiscp", "root", "srm", "xroot", "xrootd"],
        default: None,
        by_section: false,
    },
    Kind {
        name: CREDENTIALS,
        schemes: &["s3", "s3s", "webdav", "webdavs"],
        default: Some(CREDENTIALS_FILE),
        by_section: false,
    },
    Kind {
        name: CREDENTIALS,
        schemes: &["http", "https"],
        default: Some(CREDENTIALS_FILE),
        by_section: true,
    },
];

/// Adds the credentials of a job: variables with their paths, and for jobs on other sites the files.
///
/// # Errors
/// A credential that is missing or not private; the message names job and site.
pub(super) fn add<'a>(
    context: &'a Context<'a>,
    job: PlannedJob<'a>,
    transfers: &mut Transfers,
    ad: &mut Ad<'a>,
) -> Result<(), String> {
    let is_local = job.site == context.plan.sites.local();
    for (kind, site, server) in needed(job) {
        let Some(path) = find(context, job, kind, (&site, &server))? else {
            continue;
        };
        if kind.name == PROXY && !is_local {
            // HTCondor brings one proxy, and says where it is.
            if ad.get("x509userproxy").is_none() {
                ad.set_literal("x509userproxy", &path);
            }
            if ad.get("x509userproxy") == Some(literal(&path).as_str()) {
                continue;
            }
        }
        let variable = match kind.name {
            CREDENTIALS if !ad.has_variable(CREDENTIALS) => CREDENTIALS.to_owned(),
            name => format!("{name}_{}", site.replace('-', "_")),
        };
        if is_local {
            ad.set_variable(variable, path);
            continue;
        }
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        ad.set_variable(variable, name);
        let entry = literal(&path);
        if !transfers.inputs.contains(&entry) {
            transfers.inputs.insert(0, entry.clone());
        }
        if context.plan.settings.condor.encrypts_credentials && !transfers.encrypted.contains(&entry) {
            transfers.encrypted.push(entry);
        }
    }
    Ok(())
}

/// Returns the kinds of credentials that a job needs, with the sites and the servers of the URLs. Servers
/// do not matter for most kinds.
fn needed(job: PlannedJob<'_>) -> BTreeSet<(Kind, String, String)> {
    let plan = job.plan;
    // URLs with their sites.
    let mut urls: Vec<(&str, &str)> = Vec::new();
    let of_site = |site: SiteId| {
        let name = plan.sites.get(site).name.as_str();
        [Access::Get, Access::Put].map(|access| (name, plan.sites.work_url(site, access)))
    };
    match job.task {
        Task::StageIn(n) | Task::StageOut(n) | Task::InterSite(n) => {
            for file in &plan.exec.transfers[n].files {
                for place in file
                    .sources
                    .iter()
                    .map(|(place, _)| place)
                    .chain([&file.destination])
                {
                    match place {
                        Place::Scratch(site) | Place::ScratchLink(site) => urls.extend(of_site(*site)),
                        Place::Url(url, site) => urls.push((site, url)),
                        Place::Storage(output) => {
                            let output = &plan.sites.outputs[usize::from(*output)];
                            urls.extend(
                                [&output.get, &output.put].map(|url| (output.name.as_str(), url.as_str())),
                            );
                        }
                    }
                }
            }
        }
        Task::CreateDir | Task::CleanUp(_) | Task::RemoveDir => urls.extend(of_site(job.staging)),
        Task::Compute(_) | Task::Cluster(..) if job.is_lite() => {
            urls.extend(of_site(job.staging));
            let site = plan.sites.get(job.site).name.as_str();
            let bypassed = job.uses().iter().filter_map(|u| plan.exec.bypassed(&job, u));
            urls.extend(
                bypassed.flat_map(|bypassed| bypassed.sources.iter().map(move |(url, _)| (site, &**url))),
            );
        }
        _ => {}
    }
    let mut all = BTreeSet::new();
    for (site, url) in urls {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let kinds = KINDS.iter().filter(|kind| kind.schemes.contains(&scheme));
        all.extend(kinds.map(|kind| {
            let server = if kind.by_section { server(url) } else { "" };
            (*kind, site.to_owned(), server.to_owned())
        }));
    }
    all
}

/// Returns protocol and host of a URL, as they name sections of the file with credentials.
fn server(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    &url[..end]
}

/// Returns the path of a credential that something names: a profile of the site, of the site `local`, or of
/// the properties, else a variable of the environment.
fn named<'c>(context: &'c Context<'_>, kind: Kind, site: &str) -> Option<&'c str> {
    let plan = context.plan;
    let key = kind.name.to_ascii_lowercase();
    let local = &plan.sites.get(plan.sites.local()).profiles;
    let of_site = plan.sites.find(site).map(|id| &plan.sites.get(id).profiles);
    let properties = &plan.settings.profiles;
    let in_env = |profiles: &'c Profiles| profiles.get(Namespace::Env, kind.name);
    let path = of_site
        .and_then(|profiles| profiles.pegasus(&key))
        .or_else(|| local.pegasus(&key))
        .or_else(|| in_env(local))
        .or_else(|| properties.pegasus(&key))
        .or_else(|| in_env(properties))
        .or_else(|| {
            context
                .request
                .environment
                .variables
                .get(kind.name)
                .map(String::as_str)
        });
    path.map(str::trim).filter(|path| !path.is_empty())
}

/// Finds the file of a credential: one that something names, else the one at the default place.
fn find(
    context: &Context<'_>,
    job: PlannedJob<'_>,
    kind: Kind,
    (site, server): (&str, &str),
) -> Result<Option<String>, String> {
    let variables = &context.request.environment.variables;
    let proxy = format!("/tmp/x509up_u{}", nix::unistd::getuid());
    let named = named(context, kind, site);
    let named = named.or((kind.name == PROXY && Path::new(&proxy).exists()).then_some(proxy.as_str()));
    let path = match (named, kind.default, variables.get("HOME")) {
        (Some(path), ..) => path.to_owned(),
        (None, Some(default), Some(home)) => {
            let path = format!("{home}/{default}");
            if !Path::new(&path).exists() {
                return Ok(None);
            }
            path
        }
        (None, Some(_), None) => return Ok(None),
        (None, None, _) => {
            return Err(format!(
                "job {}: its transfers from and to the site {site} need a credential: set the profile pegasus::{} of the \
                 site, or the variable of that name, to the path of its file",
                job.name, kind.name
            ));
        }
    };
    if kind.by_section && !has_section(&path, server) {
        return Ok(None);
    }
    let status = std::fs::metadata(&path).map_err(|error| {
        format!(
            "job {}: the credential {path} of the site {site} cannot be read: {error}",
            job.name
        )
    })?;
    let mode = status.permissions().mode() & 0o777;
    if mode & 0o177 != 0 {
        return Err(format!(
            "job {}: the credential {path} of the site {site} has the mode {mode:04o}, so that others may read it: chmod it \
             to 0600",
            job.name
        ));
    }
    Ok(Some(path))
}

/// Returns whether a file with credentials has a section.
fn has_section(path: &str, name: &str) -> bool {
    /// No file of credentials is larger.
    const LIMIT: u64 = 1 << 20;
    let read = |file| pmc_files::read_rest(&file, LIMIT);
    let bytes = pmc_files::open_input(Path::new(path)).and_then(read);
    let text = String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default();
    let sections = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix('[')?.strip_suffix(']'));
    sections.map(str::trim).any(|section| section == name)
}
