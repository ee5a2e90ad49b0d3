//! Jobs that make and remove the work directories.

use super::Refinement;
use super::mapping::Mapper;
use super::settings::CreateDirStrategy;
use crate::error::PlanError;
use crate::exec::{Exec, ExecJob, JobId, Place, SiteId, Task};
use crate::ids::Id as _;
use crate::model::{Origin, Workflow};
use crate::request::CleanupStrategy;

/// Returns whether a job works in the work directory of its staging site.
fn works_there(task: Task) -> bool {
    match task {
        Task::Compute(_)
        | Task::Cluster(..)
        | Task::StageIn(_)
        | Task::StageOut(_)
        | Task::InterSite(_)
        | Task::Chmod(_)
        | Task::CleanUp(_) => true,
        Task::Register(_) | Task::CreateDir | Task::RemoveDir | Task::NoOp => false,
    }
}

/// Returns whether a job copies files from the work directory of a site to that of another.
fn takes_from(exec: &Exec, job: JobId, site: SiteId) -> bool {
    match exec.jobs[job].task {
        Task::InterSite(n) => exec.transfers[n]
            .files
            .iter()
            .flat_map(|moved| &moved.sources)
            .any(|(place, _)| *place == Place::Scratch(site)),
        _ => false,
    }
}

/// Returns the site that makes and removes the directories of a site.
fn runs_on(mapper: &Mapper<'_>, site: SiteId) -> SiteId {
    mapper.sites.managed_from(site)
}

/// Step: adds one job per site that makes the work directory.
pub(super) fn create_directories(refinement: &mut Refinement<'_, '_>) -> Result<(), PlanError> {
    let Refinement {
        workflow,
        exec,
        mapper,
        ..
    } = refinement;
    let names: &Workflow = workflow;
    if names.origin == Origin::Commands {
        return Ok(());
    }
    let graph = exec.graph();
    let order = graph.order().unwrap_or_default();
    // Outputs of deleted jobs never pass through the work directory.
    let is_counted = |exec: &Exec, job: JobId| {
        let task = exec.jobs[job].task;
        works_there(task) && !(matches!(task, Task::StageOut(_)) && graph.parents(job).is_empty())
    };
    let mut sites: Vec<SiteId> = JobId::first(exec.jobs.len())
        .filter(|&job| is_counted(exec, job))
        .map(|job| exec.jobs[job].staging)
        .collect();
    sites.sort_unstable();
    sites.dedup();
    let strategy = mapper.settings.create_dir;
    let mut creates = Vec::new();
    for &site in &sites {
        let setup = mapper.auxiliary_setup(Task::CreateDir, runs_on(mapper, site), exec);
        let create = exec.add(ExecJob {
            name: format!(
                "create_dir_{}{}_{}_{}",
                mapper.prefix,
                names.label,
                names.index,
                mapper.sites.get(site).name
            )
            .into(),
            task: Task::CreateDir,
            site: runs_on(mapper, site),
            staging: site,
            setup,
        });
        creates.push(create);
        if strategy == CreateDirStrategy::HourGlass {
            continue;
        }
        let mut made_above = vec![false; graph.len()];
        for &job in &order {
            let above = graph.parents(job).iter().any(|&p| made_above[p]);
            made_above[job] = above;
            if exec.jobs[job].staging != site || !is_counted(exec, job) {
                continue;
            }
            let tied = match strategy {
                CreateDirStrategy::Minimal | CreateDirStrategy::HourGlass => !above,
                CreateDirStrategy::Tentacles => !matches!(exec.jobs[job].task, Task::StageOut(_)),
            };
            if tied {
                exec.edges.push((create, job));
                made_above[job] = true;
            }
        }
    }
    if strategy == CreateDirStrategy::HourGlass && !creates.is_empty() {
        let local = mapper.sites.local();
        let setup = mapper.auxiliary_setup(Task::NoOp, local, exec);
        let waist = exec.add(ExecJob {
            name: format!("pegasus_concat_{}{}_{}", mapper.prefix, names.label, names.index).into(),
            task: Task::NoOp,
            site: local,
            staging: local,
            setup,
        });
        exec.edges.extend(creates.iter().map(|&create| (create, waist)));
        let firsts = graph.roots();
        exec.edges.extend(firsts.map(|job| (waist, job)));
    }
    refinement.work_sites = sites;
    Ok(())
}

/// Step: adds one job per site that removes the work directory at the end.
pub(super) fn remove_directories(refinement: &mut Refinement<'_, '_>) -> Result<(), PlanError> {
    let Refinement {
        workflow,
        exec,
        mapper,
        work_sites: sites,
        ..
    } = refinement;
    let names: &Workflow = workflow;
    if !refinement.removes_directories {
        return Ok(());
    }
    // In a shell script, registration jobs work in the directory.
    let with_registration = mapper.settings.cleanup != CleanupStrategy::InPlace;
    let graph = exec.graph();
    let order = graph.order().unwrap_or_default();
    // A directory named by the user may hold files of others.
    for &site in sites
        .iter()
        .filter(|&&site| mapper.sites.get(site).workdir.is_none())
    {
        let setup = mapper.auxiliary_setup(Task::RemoveDir, runs_on(mapper, site), exec);
        let remove = exec.add(ExecJob {
            name: format!(
                "cleanup_{}{}_{}_{}",
                mapper.prefix,
                names.label,
                names.index,
                mapper.sites.get(site).name
            )
            .into(),
            task: Task::RemoveDir,
            site: runs_on(mapper, site),
            staging: site,
            setup,
        });
        let mut waited_below = vec![false; graph.len()];
        for &job in order.iter().rev() {
            let below = graph.children(job).iter().any(|&c| waited_below[c]);
            waited_below[job] = below;
            let task = exec.jobs[job].task;
            if exec.is_nested(&exec.jobs[job]) {
                // Its jobs work below this directory, on any site.
                exec.edges.push((job, remove));
                waited_below[job] = true;
                continue;
            }
            if exec.jobs[job].staging != site && !takes_from(exec, job, site) {
                continue;
            }
            if matches!(task, Task::Register(_)) && with_registration && !graph.parents(job).is_empty() {
                exec.edges.push((job, remove));
                continue;
            }
            let counted =
                works_there(task) && !(matches!(task, Task::StageOut(_)) && graph.parents(job).is_empty());
            if counted && !below {
                exec.edges.push((job, remove));
                waited_below[job] = true;
            }
        }
    }
    Ok(())
}
