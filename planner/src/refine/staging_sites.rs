//! Staging sites of jobs with directories of their own.

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::{Exec, SiteId, Task};
use crate::model::{FileId, Workflow};

use super::sites::{Access, Sites};

/// Returns the directory of a file in the work directory of a site, `.` for that itself.
pub(crate) fn directory_of<'e>(exec: &'e Exec, sites: &Sites, site: SiteId, file: FileId) -> &'e str {
    if sites.is_lite(site) {
        exec.directories.of(file)
    } else {
        "."
    }
}

/// Lets the planners of nested sub-workflows fetch what they read, where the work directory is behind a
/// server. They run on this machine, as in Pegasus.
pub(crate) fn fetch_for_planners(exec: &mut Exec, workflow: &Workflow, sites: &Sites) {
    for job in &exec.jobs {
        let Task::Compute(n) = job.task else { continue };
        let is_planned = workflow.jobs[n]
            .nested
            .as_ref()
            .is_some_and(|nested| !nested.is_ready);
        let is_behind_server =
            sites.is_lite(job.staging) && !is_path(sites.work_url(job.staging, Access::Get));
        exec.setups[job.setup].fetches_for_planner = is_planned && is_behind_server;
    }
}

fn is_path(url: &str) -> bool {
    url.starts_with("file:") || url.starts_with('/')
}

/// Notes the staging sites of jobs with directories of their own, and checks that jobs agree.
///
/// # Errors
/// Sites with jobs of both kinds, staging sites that cannot be used.
pub(crate) fn settle(exec: &Exec, sites: &Sites) -> Result<(), PlanError> {
    // The first shared job and the first other one of each site.
    let mut first: Vec<[Option<usize>; 2]> = vec![[None; 2]; sites.len()];
    for (n, job) in exec.jobs.iter().enumerate() {
        let is_lite = exec.setups[job.setup].mode.is_lite();
        if matches!(job.task, Task::Compute(_)) && !exec.is_nested(job) {
            first[job.staging.index()][usize::from(is_lite)].get_or_insert(n);
        }
    }
    let mut problems: Vec<Diagnostic> = Vec::new();
    for (n, jobs) in first.iter().enumerate() {
        let site = sites.get(SiteId::new(n));
        let name = |n: usize| &exec.jobs[n].name;
        if let [Some(shared), Some(lite)] = jobs {
            let problem = Diagnostic::error(format!(
                "Worker package is set to be staged for both sharedfs and nonsharedfs|condorio mode for sites [{}]: \
                 the data configuration of the job {} is sharedfs, that of the job {} is not",
                site.name,
                name(*shared),
                name(*lite)
            ));
            problems.push(problem.with_hint(
                "give all jobs of a site the same one, with the property pegasus.data.configuration or the profile \
                 pegasus::data.configuration",
            ));
        }
        if let Some(lite) = jobs[1]
            && site
                .scratch
                .as_ref()
                .is_none_or(|scratch| scratch.servers.is_none())
        {
            let problem = Diagnostic::error(format!(
                "the staging site {} of the job {} has no directory of type sharedScratch with a file server, from \
                 which jobs could fetch files",
                site.name,
                name(lite)
            ));
            problems.push(problem.with_hint(format!(
                "add fileServers with a URL to that directory of the site {}, or choose another site with --staging-site",
                site.name
            )));
        }
    }
    sites.serve_lite(first.iter().map(|jobs| jobs[1].is_some()).collect());
    PlanError::check(problems)
}
