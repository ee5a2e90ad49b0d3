//! Clean-up: removes files from the work directories while the workflow runs. [`add_in_place`] removes each
//! file after its last use. [`constraint`] removes files only as far as a bound on space requires.

pub(crate) mod constraint;
pub(crate) mod space;

use crate::error::PlanError;
use crate::model::{FileId, TransferFlag, Workflow};
use crate::request::CleanupStrategy;

use super::mapping::Mapper;
use super::reduce::{Depth, Reduction};
use super::sites::Access;
use super::{Refinement, java_hash_order};
use crate::exec::{Exec, ExecJob, JobId, ListId, Place, SiteId, Task};
use crate::graph::{Graph, Lists, by_depth};
use crate::ids::{Id as _, UnitId};

/// A job that leaves files to remove. Its files are a slice of the list of its level; the slice starts at the
/// end of the previous one.
struct Node {
    job: JobId,
    end: usize,
}

/// Default number of nodes per clean-up job.
const NODES_PER_JOB: usize = 5;

/// Input of the clean-up of every site.
struct Uses<'a> {
    workflow: &'a Workflow,
    graph: &'a Graph<JobId>,
    depths: &'a [u32],
    levels: &'a [Vec<JobId>],
    /// Files to keep, see [`staying`].
    staying: &'a [bool],
}

/// Returns the files that must not be removed: outputs of jobs without a stage-out job that the user asks
/// for, files that no job copies, and files whose names match a pattern in `kept`. In a pattern, `*` stands
/// for any text.
pub(crate) fn staying(workflow: &Workflow, exec: &Exec, graph: &Graph<JobId>, kept: &[String]) -> Vec<bool> {
    let mut staying = vec![false; workflow.files.len()];
    if !kept.is_empty() {
        for (file, stays) in FileId::first(workflow.files.len()).zip(&mut staying) {
            let name = workflow.files.name(file);
            *stays = kept.iter().any(|pattern| matches(pattern, name));
        }
    }
    for file in FileId::first(staying.len()) {
        staying[file] |= exec.files.of(file).stays;
    }
    for (id, job) in JobId::first(exec.jobs.len()).zip(&exec.jobs) {
        if !matches!(job.task, Task::Compute(_) | Task::Cluster(..)) {
            continue;
        }
        let mut children = graph.children(id).iter();
        if children.any(|&c| matches!(exec.jobs[c].task, Task::StageOut(_))) {
            continue;
        }
        for file_use in exec.uses(workflow, job.task) {
            staying[file_use.file] |= file_use.link.writes() && file_use.transfer != TransferFlag::Not;
        }
    }
    staying
}

/// Returns whether a name matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(head) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(tail)
}

/// Step: adds the jobs that remove files, as the strategy asks for.
pub(super) fn add_cleanup(refinement: &mut Refinement<'_, '_>) -> Result<(), PlanError> {
    let settings = refinement.mapper.settings;
    if settings.cleanup == CleanupStrategy::None {
        return Ok(());
    }
    let graph = refinement.exec.graph();
    let staying = staying(
        refinement.workflow,
        &refinement.exec,
        &graph,
        &settings.cleanup_kept,
    );
    // Outputs that go nowhere else would be lost with the directory.
    refinement.removes_directories = !staying.contains(&true);
    match settings.cleanup {
        CleanupStrategy::InPlace => add_in_place(refinement, &staying, &graph),
        CleanupStrategy::Constraint => constraint::add(refinement, &staying, &graph)?,
        CleanupStrategy::Leaf | CleanupStrategy::None => {}
    }
    Ok(())
}

/// Adds clean-up jobs for every site, except for files to keep.
fn add_in_place(refinement: &mut Refinement<'_, '_>, staying: &[bool], graph: &Graph<JobId>) {
    let Refinement {
        workflow,
        exec,
        mapper,
        work_sites: sites,
        ..
    } = refinement;
    let workflow: &Workflow = workflow;
    let order = graph.order().unwrap_or_default();
    let depths = graph.depths(&order);
    let levels = by_depth(&depths);
    let uses = Uses {
        workflow,
        graph,
        depths: &depths,
        levels: &levels,
        staying,
    };
    // The cache of the OSDF keeps what it has, as in Pegasus.
    let removes = |site: &SiteId| !mapper.sites.work_url(*site, Access::Put).starts_with("osdf:");
    let sites: Vec<SiteId> = sites.iter().copied().filter(removes).collect();
    for site in sites {
        add_for_site(&uses, exec, mapper, site);
    }
}

fn add_for_site(uses: &Uses<'_>, exec: &mut Exec, mapper: &mut Mapper<'_>, site: SiteId) {
    // For each file, the node that removes it; for each node, its clean-up job.
    let mut owner: Vec<Option<UnitId>> = vec![None; uses.workflow.files.len()];
    let mut cleanup_of: Vec<Option<JobId>> = Vec::new();
    let mut later: Vec<(JobId, UnitId)> = Vec::new();
    let mut parents: Vec<(JobId, JobId)> = Vec::new();
    let files = files_of_jobs(uses, exec, site);
    let levels = levels_of_site(uses, exec, site);
    let mut nodes: Vec<Node> = Vec::new();
    let mut left: Vec<FileId> = Vec::new();
    for (depth, jobs) in levels.iter().enumerate().rev() {
        nodes.clear();
        left.clear();
        let first = cleanup_of.len();
        for &job in jobs {
            let number = UnitId::new(first + nodes.len());
            let before = left.len();
            let mut shares = false;
            for &file in files.of(job) {
                match &mut owner[file] {
                    slot @ None => {
                        *slot = Some(number);
                        left.push(file);
                    }
                    Some(other) if *other != number => {
                        later.push((job, *other));
                        shares |= other.index() >= first;
                    }
                    Some(_) => {}
                }
            }
            // No node if later jobs use all the files.
            if shares || left.len() > before {
                nodes.push(Node { job, end: left.len() });
            }
        }
        let size = cluster_size(nodes.len(), mapper, site);
        let mut k = 0;
        let mut at = 0;
        for cluster in nodes.chunks(size) {
            let end = cluster.last().map_or(at, |node| node.end);
            if end == at {
                cleanup_of.extend(cluster.iter().map(|_| None));
                continue;
            }
            let cleanup = add_job(exec, mapper, site, depth + 1, k, &left[at..end]);
            k += 1;
            for node in cluster {
                cleanup_of.push(Some(cleanup));
                // As in Pegasus: jobs without own files precede only the job that removes shared files.
                if node.end > at {
                    parents.push((cleanup, node.job));
                }
            }
            at = end;
        }
    }
    let of_shared = |(job, node): (JobId, UnitId)| Some((cleanup_of[node]?, job));
    parents.extend(later.into_iter().filter_map(of_shared));
    // Grouped by clean-up job; sorted only within a group.
    let Some(earliest) = parents.iter().map(|&(cleanup, _)| cleanup.index()).min() else {
        return;
    };
    let count = exec.jobs.len() - earliest;
    let from_earliest = |&(cleanup, job): &(JobId, JobId)| (JobId::new(cleanup.index() - earliest), job);
    let grouped = Lists::grouped(count, parents.iter().map(from_earliest));
    drop(parents);
    let mut reduction = Reduction::new(uses.graph, uses.depths, Depth::Second);
    let mut jobs: Vec<JobId> = Vec::new();
    for n in JobId::first(count) {
        jobs.clear();
        jobs.extend_from_slice(grouped.of(n));
        jobs.sort_unstable();
        jobs.dedup();
        if jobs.is_empty() {
            continue;
        }
        for &parent in reduction.needed(&jobs) {
            exec.edges.push((parent, JobId::new(earliest + n.index())));
        }
    }
}

/// Returns the files that clean-up may remove after each job from the work directory of a site.
fn files_of_jobs(uses: &Uses<'_>, exec: &Exec, site: SiteId) -> Lists<JobId, FileId> {
    let mut files = Lists::with_capacity(uses.graph.len(), 0);
    for job in uses.graph.nodes() {
        files_of(uses, exec, job, site, |file| files.push(file));
        files.end();
    }
    files
}

/// Returns the jobs of a site by depth. The order within a level is that of a Java hash table of the level,
/// filled from a hash table of the site.
fn levels_of_site(uses: &Uses<'_>, exec: &Exec, site: SiteId) -> Vec<Vec<JobId>> {
    let of_site = |jobs: &Vec<JobId>| -> Vec<JobId> {
        jobs.iter()
            .copied()
            .filter(|&job| is_of_site(exec, job, site))
            .collect()
    };
    let mut levels: Vec<Vec<JobId>> = uses.levels.iter().map(of_site).collect();
    let jobs = levels.iter().map(Vec::len).sum();
    for level in &mut levels {
        let name = |job: &JobId| &*exec.jobs[*job].name;
        java_hash_order::sort_by_buckets(level, jobs, name);
    }
    levels
}

/// Returns whether a job belongs to a site: because it reads files there, else because it runs there.
fn is_of_site(exec: &Exec, job: JobId, site: SiteId) -> bool {
    let this = &exec.jobs[job];
    match this.task {
        Task::Compute(_) | Task::Cluster(..) | Task::StageOut(_) => this.staging == site,
        Task::InterSite(n) => exec.transfers[n]
            .files
            .iter()
            .flat_map(|file| &file.sources)
            .any(|(place, _)| *place == Place::Scratch(site)),
        _ => this.site == site,
    }
}

/// Returns the number of nodes per clean-up job of a level, from a profile of the site or a property.
fn cluster_size(nodes: usize, mapper: &Mapper<'_>, site: SiteId) -> usize {
    let settings = mapper.settings;
    let profiles = &mapper.sites.get(site).profiles;
    let profile = |key| -> Option<u32> {
        let number = profiles.pegasus(key)?.trim().parse().ok()?;
        (number > 0).then_some(number)
    };
    let own = (profile("cleanup.clusters.num"), profile("cleanup.clusters.size"));
    let size = match own {
        (None, None) => (settings.cleanup_jobs, settings.cleanup_size),
        own => own,
    };
    let size = match size {
        (Some(jobs), _) => nodes.div_ceil(jobs as usize),
        (None, Some(size)) => size as usize,
        (None, None) => nodes.div_ceil(nodes.div_ceil(NODES_PER_JOB).max(1)),
    };
    size.max(1)
}

/// Returns the site on which the clean-up jobs of a site run.
fn runs_on(mapper: &Mapper<'_>, site: SiteId) -> SiteId {
    mapper.sites.managed_from(site)
}

fn add_job(
    exec: &mut Exec,
    mapper: &mut Mapper<'_>,
    site: SiteId,
    level: usize,
    k: usize,
    files: &[FileId],
) -> JobId {
    let task = Task::CleanUp(ListId::new(exec.removals.len()));
    exec.removals.push(files.to_vec());
    let runs_on = runs_on(mapper, site);
    let setup = mapper.auxiliary_setup(task, runs_on, exec);
    exec.add(ExecJob {
        name: format!("clean_up_{}_level_{level}_{k}", mapper.sites.get(site).name).into(),
        task,
        site: runs_on,
        staging: site,
        setup,
    })
}

/// Calls `each` with the files of a job that clean-up may remove from the work directory of a site.
fn files_of(uses: &Uses<'_>, exec: &Exec, job: JobId, site: SiteId, each: impl FnMut(FileId)) {
    let may_go = |file: FileId| !uses.staying[file] && !exec.files.at(file, site).is_in_place;
    let this = &exec.jobs[job];
    match this.task {
        Task::Compute(_) | Task::Cluster(..) if this.staging == site => exec
            .uses(uses.workflow, this.task)
            .iter()
            .filter(|u| u.link.reads() || u.link.writes())
            .filter(|u| exec.bypassed(this, u).is_none())
            .map(|u| u.file)
            .filter(|&file| may_go(file))
            .for_each(each),
        Task::StageOut(n) | Task::InterSite(n) if !uses.graph.parents(job).is_empty() => {
            let here = Place::Scratch(site);
            exec.transfers[n]
                .files
                .iter()
                .filter(|file| file.sources.iter().any(|(place, _)| *place == here))
                .map(|file| file.file)
                .filter(|&file| may_go(file))
                .for_each(each);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, matched) in [
            ("a.log", "a.log", true),
            ("a.log", "b.log", false),
            ("*.log", "b.log", true),
            ("*.log", "b.log.gz", false),
            ("a*", "a", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXcYb", false),
            ("ab*ba", "aba", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), matched, "{pattern} {name}");
        }
    }
}
