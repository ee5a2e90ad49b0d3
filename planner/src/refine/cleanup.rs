//! In-place clean-up: each file is removed from a work directory after its last use (section 6.9.1 of the
//! planner's specification).

use crate::model::{FileId, TransferFlag, Workflow};

use super::exec::{Exec, ExecJob, JobId, Place, SiteId, Task};
use super::graph::{Graph, by_depth};
use super::mapping::Mapper;

/// Files that one job leaves to be removed.
struct Node {
    job: JobId,
    files: Vec<FileId>,
}

/// Nodes per clean-up job, when nothing else is set.
const NODES_PER_JOB: usize = 5;
/// No clean-up job.
const NONE: u32 = u32::MAX;

/// What the clean-up of every site looks at.
struct Uses<'a> {
    workflow: &'a Workflow,
    graph: &'a Graph,
    depths: &'a [u32],
    levels: &'a [Vec<u32>],
    /// Files that stay, see [`staying`].
    staying: &'a [bool],
}

/// Files that must not be removed: outputs that the user wants of jobs without a stage-out job.
pub(crate) fn staying(workflow: &Workflow, exec: &mut Exec) -> Vec<bool> {
    let mut staying = vec![false; workflow.files.len()];
    let graph = exec.graph();
    for (id, job) in exec.jobs.iter().enumerate() {
        let Task::Compute(n) = job.task else { continue };
        let mut children = graph.children(id as JobId).iter();
        if children.any(|&c| matches!(exec.jobs[c as usize].task, Task::StageOut(_))) {
            continue;
        }
        for file_use in &workflow.jobs[n.0 as usize].uses {
            staying[file_use.file.0 as usize] |=
                file_use.link.writes() && file_use.transfer != TransferFlag::Not;
        }
    }
    staying
}

/// Adds clean-up jobs for every site, but none for files that stay.
pub(crate) fn add(
    workflow: &Workflow,
    exec: &mut Exec,
    mapper: &mut Mapper<'_>,
    sites: &[SiteId],
    staying: &[bool],
) {
    let graph = exec.graph();
    let order = graph.topological().unwrap_or_default();
    let depths = graph.depths(&order);
    let levels = by_depth(&depths);
    let uses = Uses {
        workflow,
        graph: &graph,
        depths: &depths,
        levels: &levels,
        staying,
    };
    for &site in sites {
        add_for_site(&uses, exec, mapper, site);
    }
}

fn add_for_site(uses: &Uses<'_>, exec: &mut Exec, mapper: &mut Mapper<'_>, site: SiteId) {
    // Per file the number of the node that removes it; per node the clean-up job it went into.
    let mut owner = vec![NONE; uses.workflow.files.len()];
    let mut cleanup_of: Vec<JobId> = Vec::new();
    let mut later: Vec<(JobId, u32)> = Vec::new();
    let mut parents: Vec<(JobId, JobId)> = Vec::new();
    for (depth, jobs) in uses.levels.iter().enumerate().rev() {
        let mut nodes: Vec<Node> = Vec::new();
        let first = cleanup_of.len();
        let mut users: Vec<(JobId, Vec<FileId>)> = Vec::new();
        for &job in jobs {
            let files = files_of(uses, exec, job, site);
            if !files.is_empty() {
                users.push((job, files));
            }
        }
        let buckets = buckets(users.len());
        users.sort_by_key(|(job, _)| {
            (
                bucket(&exec.jobs[*job as usize].name, buckets),
                std::cmp::Reverse(*job),
            )
        });
        for (job, files) in users {
            let number = (first + nodes.len()) as u32;
            let mut own = Vec::new();
            for &file in &files {
                match &mut owner[file.0 as usize] {
                    slot if *slot == NONE => {
                        *slot = number;
                        own.push(file);
                    }
                    slot if *slot != number => later.push((job, *slot)),
                    _ => {}
                }
            }
            nodes.push(Node { job, files: own });
        }
        let size = cluster_size(nodes.len(), mapper);
        let mut k = 0;
        for cluster in nodes.chunks(size) {
            if cluster.iter().all(|node| node.files.is_empty()) {
                cleanup_of.extend(cluster.iter().map(|_| NONE));
                continue;
            }
            let cleanup = add_job(exec, mapper, site, depth + 1, k, cluster);
            k += 1;
            for node in cluster {
                cleanup_of.push(cleanup);
                // Others come before the job that removes what they share.
                if !node.files.is_empty() {
                    parents.push((cleanup, node.job));
                }
            }
        }
    }
    parents.extend(
        later
            .into_iter()
            .map(|(job, node)| (cleanup_of[node as usize], job)),
    );
    parents.sort_unstable();
    parents.dedup();
    let mut reduction = Reduction::new(uses.graph, uses.depths);
    for group in parents.chunk_by(|a, b| a.0 == b.0) {
        let cleanup = group[0].0;
        let jobs: Vec<JobId> = group.iter().map(|&(_, job)| job).collect();
        for parent in reduction.needed(&jobs) {
            exec.edges.push((parent, cleanup));
        }
    }
}

/// Which of the jobs of a level share a clean-up job is of no importance, but it decides how many there are.
/// The order is that of a hash table over their names, as in Pegasus, so that the numbers are the same: a
/// hash over the UTF-16 units, its halves combined, in as many buckets as a table of this size has.
fn bucket(name: &str, buckets: u32) -> u32 {
    let hash = name.encode_utf16().fold(0u32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(u32::from(unit))
    });
    (hash ^ (hash >> 16)) & (buckets - 1)
}

/// Buckets of a table that is filled to three quarters at most: a power of two.
fn buckets(entries: usize) -> u32 {
    let needed = u32::try_from(entries)
        .unwrap_or(u32::MAX / 2)
        .div_ceil(3)
        .saturating_mul(4);
    needed.clamp(16, 1 << 30).next_power_of_two()
}

fn cluster_size(nodes: usize, mapper: &Mapper<'_>) -> usize {
    let settings = mapper.settings;
    let size = match (settings.cleanup_jobs, settings.cleanup_size) {
        (Some(jobs), _) => nodes.div_ceil(jobs as usize),
        (None, Some(size)) => size as usize,
        (None, None) => nodes.div_ceil(nodes.div_ceil(NODES_PER_JOB).max(1)),
    };
    size.max(1)
}

fn add_job(
    exec: &mut Exec,
    mapper: &mut Mapper<'_>,
    site: SiteId,
    level: usize,
    k: usize,
    cluster: &[Node],
) -> JobId {
    let task = Task::CleanUp(exec.removals.len() as u32);
    exec.removals.push(
        cluster
            .iter()
            .flat_map(|node| node.files.iter().copied())
            .collect(),
    );
    let runs_on = if mapper.sites.get(site).visible {
        mapper.sites.local()
    } else {
        site
    };
    let setup = mapper.auxiliary_setup(task, runs_on, exec);
    exec.add(ExecJob {
        name: format!("clean_up_{}_level_{level}_{k}", mapper.sites.get(site).name).into(),
        task,
        site: runs_on,
        staging: site,
        setup,
    })
}

/// Files in the work directory of a site that are of no use after a job, as far as the job goes.
fn files_of(uses: &Uses<'_>, exec: &Exec, job: JobId, site: SiteId) -> Vec<FileId> {
    let may_go = |file: FileId| !uses.staying[file.0 as usize] && !exec.in_place.contains(&(file, site));
    let this = &exec.jobs[job as usize];
    match this.task {
        Task::Compute(n) if this.staging == site => uses.workflow.jobs[n.0 as usize]
            .uses
            .iter()
            .filter(|u| u.link.reads() || u.link.writes())
            .map(|u| u.file)
            .filter(|&file| may_go(file))
            .collect(),
        Task::StageOut(n) | Task::InterSite(n) if !uses.graph.parents(job).is_empty() => {
            let here = Place::Scratch(site);
            exec.transfers[n as usize]
                .files
                .iter()
                .filter(|file| file.sources.iter().any(|(place, _)| *place == here))
                .map(|file| file.file)
                .filter(|&file| may_go(file))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Drops parents from which another parent is reached anyway.
struct Reduction<'g> {
    graph: &'g Graph,
    depths: &'g [u32],
    /// Round in which a node was last a parent, and last visited.
    parent_in: Vec<u32>,
    visited_in: Vec<u32>,
    round: u32,
    stack: Vec<u32>,
}

/// Edges that are looked at per parent. A redundant edge does no harm, so a search that would cost more is
/// given up; this keeps the step linear.
const SEARCH_PER_PARENT: usize = 256;

impl<'g> Reduction<'g> {
    fn new(graph: &'g Graph, depths: &'g [u32]) -> Self {
        Reduction {
            graph,
            depths,
            parent_in: vec![0; graph.len()],
            visited_in: vec![0; graph.len()],
            round: 0,
            stack: Vec::new(),
        }
    }
    /// The parents that are needed, in order.
    fn needed(&mut self, parents: &[u32]) -> Vec<u32> {
        self.round += 1;
        let round = self.round;
        let top = parents
            .iter()
            .map(|&p| self.depths[p as usize])
            .min()
            .unwrap_or_default();
        for &p in parents {
            self.parent_in[p as usize] = round;
        }
        let mut budget = SEARCH_PER_PARENT * parents.len();
        self.stack.clear();
        self.stack
            .extend(parents.iter().copied().filter(|&p| self.depths[p as usize] > top));
        'search: while let Some(node) = self.stack.pop() {
            for &above in self.graph.parents(node) {
                if budget == 0 {
                    break 'search;
                }
                budget -= 1;
                // Whoever is above a parent is no needed parent itself.
                self.parent_in[above as usize] = 0;
                if self.visited_in[above as usize] != round && self.depths[above as usize] > top {
                    self.visited_in[above as usize] = round;
                    self.stack.push(above);
                }
            }
        }
        parents
            .iter()
            .copied()
            .filter(|&p| self.parent_in[p as usize] == round)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_a_level_have_an_order_of_their_own() {
        let mut names = ["part_F1", "part_F2", "part_F3", "part_F4", "part_F5", "part_F6"];
        let size = buckets(names.len());
        names.sort_by_key(|name| bucket(name, size));
        assert_eq!(
            names,
            ["part_F6", "part_F2", "part_F3", "part_F4", "part_F5", "part_F1"]
        );
        assert_eq!(
            [0, 12, 13, 24, 25, 96, 97].map(buckets),
            [16, 16, 32, 32, 64, 128, 256]
        );
    }

    #[test]
    fn a_parent_above_another_one_is_not_needed() {
        // 0 → 1 → 2 → 3, 0 → 4
        let graph = Graph::new(5, &[(0, 1), (1, 2), (2, 3), (0, 4)]);
        let order = graph.topological().expect("no cycle");
        let depths = graph.depths(&order);
        let mut reduction = Reduction::new(&graph, &depths);
        assert_eq!(reduction.needed(&[0, 3]), [3]);
        assert_eq!(reduction.needed(&[0, 4]), [4]);
        assert_eq!(reduction.needed(&[3, 4]), [3, 4]);
        assert_eq!(reduction.needed(&[0, 1, 2, 3, 4]), [3, 4]);
        assert_eq!(reduction.needed(&[2]), [2]);
    }
}
