//! The container of a job in its description

use crate::catalog::transformation::Container;
use crate::exec::Place;
use crate::model::FileKind;
use crate::profiles::Namespace;
use crate::refine::sites::Access;
use crate::task_request::{self, GPUS};

use super::{Direction, PlannedJob, split, transfers, verified};

/// Variables of the environment that are for the node, not for the program in a container.
const OF_NODE: [&str; 1] = ["PEGASUS_HOME"];

/// Scheme of files.
const FILE: &str = "file://";

/// Describes the container of a job.
pub(super) fn describe(job: PlannedJob<'_>, container: &Container) -> pmc_job_files::Container {
    let (plan, profiles) = (job.plan, job.profiles());
    let value = |key: &str| -> Vec<String> {
        let words = split(profiles.pegasus(key).unwrap_or_default());
        words.map(std::borrow::Cow::into_owned).collect()
    };
    let mut launcher = value("container.launcher");
    if !launcher.is_empty() {
        launcher.extend(value("container.launcher.arguments"));
    }
    // Secrets by name only: the task has their values.
    let variables = profiles
        .of(Namespace::Env)
        .filter(|(key, _)| !OF_NODE.contains(key));
    let (secrets, environment): (Vec<_>, Vec<_>) = variables.partition(|(key, _)| plan.secrets.has(key));
    let mut described = pmc_job_files::Container {
        kind: container.kind,
        image: if job.is_lite() || !container.has_file() {
            container.lfn.clone()
        } else {
            plan.sites.scratch_path(job.staging, &container.lfn)
        },
        directory: container.kind.directory().to_owned(),
        mounts: container.mounts.clone(),
        arguments: value("container.arguments"),
        launcher,
        gpus: task_request::find(profiles, GPUS).is_some_and(|(_, value)| value.text() != "0"),
        environment: environment
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        secrets: secrets.into_iter().map(|(key, _)| key.to_owned()).collect(),
        transfers_inside: place(job).is_some(),
        ..pmc_job_files::Container::default()
    };
    if job.is_lite() {
        let uses = job.uses();
        let images = || uses.iter().filter(|u| u.kind == FileKind::Image);
        if plan.exec.has_own_directory(&job) {
            described.fetch = transfers(job, Direction::In, images());
        }
        described.verify = verified(job, images());
    }
    described
}

/// Returns the container in which the files of a job are fetched and delivered, `None` if this is done
/// outside, as for the jobs of a cluster.
pub(in crate::tasks) fn place<'p>(job: PlannedJob<'p>) -> Option<&'p Container> {
    let (plan, container) = (job.plan, job.setup.container.as_deref()?);
    (plan.exec.has_own_directory(&job) && !plan.settings.transfers_on_host).then_some(container)
}

/// Returns the directory of a job in URLs.
pub(super) fn directory(place: Option<&Container>) -> &'static str {
    place.map_or("$PWD", |container| container.kind.directory())
}

/// Returns a URL as a program at a place sees it: files of the node are below the mounts of a container.
pub(super) fn seen(place: Option<&Container>, url: &[&str]) -> String {
    let url = url.concat();
    match place.and_then(|container| mounted(container, &url)) {
        Some(url) => url,
        None => url,
    }
}

/// Returns the URL of a file of the node in a container, `None` if it is not there.
fn mounted(container: &Container, url: &str) -> Option<String> {
    let path = url.strip_prefix(FILE)?;
    container.mounts.iter().find_map(|mount| {
        let mut parts = mount.split(':');
        let here = parts.next()?.trim_end_matches('/');
        let there = parts.next().unwrap_or(here).trim_end_matches('/');
        let rest = path.strip_prefix(here)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{FILE}{there}{rest}"))
    })
}

/// Returns the problem that a job in a container cannot reach its files, which it is to fetch inside.
pub(in crate::tasks) fn out_of_reach(job: PlannedJob<'_>) -> Option<String> {
    let plan = job.plan;
    let container = place(job)?;
    let is_out = |url: &str| url.starts_with(FILE) && mounted(container, url).is_none();
    let uses = job.uses();
    let staged = |file, access| plan.url(&Place::Scratch(job.staging), file, access).1;
    let url = uses.iter().filter(|u| u.kind != FileKind::Image).find_map(|u| {
        if let Some(bypassed) = plan.exec.bypassed(&job, u) {
            let mut urls = bypassed.sources.iter().map(|(url, _)| url.to_string());
            return urls.find(|url| is_out(url));
        }
        let access = if u.link.reads() { Access::Get } else { Access::Put };
        Some(staged(u.file, access)).filter(|url| is_out(url))
    })?;
    Some(format!(
        "source url directory is not mounted in the container {}: the job {} is to transfer {url} inside, since \
         pegasus.transfer.container.onhost is false. Add its directory to the mounts of the container, or choose a staging \
         site with a server.",
        container.name, job.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmc_job_files::ContainerKind;

    use crate::catalog::transformation::container::Draft;

    #[test]
    fn files_of_the_node_are_below_mounts() {
        let draft = Draft {
            kind: Some(ContainerKind::Docker),
            image: "docker:///base".into(),
            mounts: vec!["/data/:/in:ro".into(), "/same".into()],
            ..Draft::default()
        };
        let container = draft.finish().ok().flatten().expect("a container");
        let seen = |url: &str| mounted(&container, url);
        assert_eq!(seen("file:///data/a/b").as_deref(), Some("file:///in/a/b"));
        assert_eq!(seen("file:///same/b").as_deref(), Some("file:///same/b"));
        assert_eq!(seen("file:///database/b"), None);
        assert_eq!(seen("http://host/data/b"), None);
    }
}
