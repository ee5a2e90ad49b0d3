//! Credentials that transfers of a job need.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::exec::{Place, SiteId, Task};
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
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "SSH_PRIVATE_KEY",
        schemes: &["scp", "sftp"],
        default: None,
    },
    Kind {
        name: "X509_USER_PROXY",
        schemes: &["gsiftp"],
        default: None,
    },
    Kind {
        name: "PEGASUS_CREDENTIALS",
        schemes: &["s3", "s3s", "webdav", "webdavs"],
        default: Some(".pegasus/credentials.conf"),
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
    for (kind, site) in needed(job) {
        let Some(path) = find(context, job, kind, &site)? else {
            continue;
        };
        let variable = format!("{}_{}", kind.name, site.replace('-', "_"));
        if is_local {
            ad.set_variable(variable, path);
            continue;
        }
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        ad.set_variable(variable, name);
        let entry = literal(&path);
        if !transfers.encrypted.contains(&entry) {
            transfers.inputs.insert(0, entry.clone());
            transfers.encrypted.push(entry);
        }
    }
    Ok(())
}

/// Returns the kinds of credentials that a job needs, with the sites of the URLs.
fn needed(job: PlannedJob<'_>) -> BTreeSet<(Kind, String)> {
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
        all.extend(kinds.map(|kind| (*kind, site.to_owned())));
    }
    all
}

/// Finds the file of a credential: a profile of the site, else a variable of the environment, else the
/// default place.
fn find(
    context: &Context<'_>,
    job: PlannedJob<'_>,
    kind: Kind,
    site: &str,
) -> Result<Option<String>, String> {
    let plan = context.plan;
    let key = kind.name.to_ascii_lowercase();
    let of_site = plan.sites.find(site).map(|id| &plan.sites.get(id).profiles);
    let of_site = of_site.and_then(|profiles| profiles.pegasus(&key)).map(str::trim);
    let variables = &context.request.environment.variables;
    let named = of_site.or_else(|| variables.get(kind.name).map(String::as_str));
    let path = match (
        named.filter(|path| !path.is_empty()),
        kind.default,
        variables.get("HOME"),
    ) {
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
