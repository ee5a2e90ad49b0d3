//! Job clustering: several compute jobs become one job of the plan. Linear in jobs and edges, apart from
//! sorting.
//!
//! The techniques are applied one after the other to units: jobs, and clusters of an earlier technique. A
//! cluster of clusters is one cluster of all their jobs. At the end the jobs move from [`Exec::jobs`] to
//! [`Exec::members`], and the rest of the refinement sees the clusters instead of them.

mod bins;
mod groups;
mod lite;
mod merge;
pub(crate) mod settings;

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::model::{JobIndex, JobKind, TransformationName, Workflow};
use crate::profiles::{Namespace, Profiles};
use crate::task_request::{Amounts, JobNodes, cpus_of_rank};

use super::Refinement;
use super::mapping::Mapper;
use super::names::{job_name, staged_name};
use crate::exec::{Aggregator, Cluster, Exec, ExecJob, JobId, ListId, Setup, SetupId, SiteId, Task};
use crate::graph::Graph;
use crate::ids::{Id as _, UnitId};

use groups::{Group, GroupName};
use settings::Technique;

/// Maximum problems reported.
const MAX_REPORTED: usize = 20;

/// A text is no number of seconds. The message is the end of a sentence.
#[derive(Debug, thiserror::Error)]
#[error("must be a number of seconds, not {0}")]
struct NotSeconds(String);

/// Parses a number of seconds.
fn seconds(text: &str) -> Result<f64, NotSeconds> {
    text.trim()
        .parse::<f64>()
        .ok()
        .filter(|s| s.is_finite() && *s >= 0.0)
        .ok_or_else(|| NotSeconds(text.to_owned()))
}

/// A job, or several.
#[derive(Clone, Debug)]
struct Unit {
    /// Numbers in [`Exec::jobs`], ascending.
    jobs: Vec<JobId>,
    /// Name, if it is a cluster.
    cluster: Option<Box<str>>,
}

/// The units, as the techniques see them.
trait Units {
    /// Returns the number of units.
    fn len(&self) -> usize;
    /// Returns the number of a unit's transformation; `None` for clusters.
    fn transformation(&self, unit: UnitId) -> Option<ListId>;
    /// Returns number and name of a unit's site.
    fn site(&self, unit: UnitId) -> (SiteId, &str);
    /// Returns a profile of the namespace pegasus.
    fn profile(&self, unit: UnitId, key: &str) -> Option<&str>;
    /// Returns the run time of a unit in seconds, if all its jobs have one.
    ///
    /// # Errors
    /// A value that is not a number.
    fn runtime(&self, unit: UnitId) -> Result<Option<f64>, Diagnostic>;
    /// Returns the name of a unit for messages.
    fn name(&self, unit: UnitId) -> &str;
}

/// The units as the techniques see them.
struct View<'a> {
    workflow: &'a Workflow,
    exec: &'a Exec,
    mapper: &'a Mapper<'a>,
    units: &'a [Unit],
    /// Number of each job's transformation.
    transformations: &'a [Option<ListId>],
}

impl View<'_> {
    fn profile_of_job(&self, job: JobId, key: &str) -> Option<&str> {
        let setup = self.exec.jobs[job].setup;
        self.exec.setups[setup].profiles.pegasus(key)
    }
}

impl Units for View<'_> {
    fn len(&self) -> usize {
        self.units.len()
    }
    fn transformation(&self, unit: UnitId) -> Option<ListId> {
        let unit = &self.units[unit];
        match (&unit.cluster, unit.jobs.first()) {
            (None, Some(&job)) => self.transformations[job],
            // Clusters are grouped with clusters.
            _ => None,
        }
    }
    fn site(&self, unit: UnitId) -> (SiteId, &str) {
        let site = self.units[unit]
            .jobs
            .first()
            .map_or(self.mapper.sites.local(), |&job| self.exec.jobs[job].site);
        (site, &self.mapper.sites.get(site).name)
    }
    fn profile(&self, unit: UnitId, key: &str) -> Option<&str> {
        let mut jobs = self.units[unit].jobs.iter().rev();
        jobs.find_map(|&job| self.profile_of_job(job, key))
    }
    fn runtime(&self, unit: UnitId) -> Result<Option<f64>, Diagnostic> {
        let mut sum = 0.0;
        for &job in &self.units[unit].jobs {
            let Some(text) = self.profile_of_job(job, "runtime") else {
                return Ok(None);
            };
            sum += seconds(text).map_err(|e| {
                Diagnostic::error(format!(
                    "the profile pegasus::runtime of the job {} {e}",
                    self.exec.jobs[job].name
                ))
            })?;
        }
        Ok(Some(sum))
    }
    fn name(&self, unit: UnitId) -> &str {
        let unit = &self.units[unit];
        match (&unit.cluster, unit.jobs.first()) {
            (None, Some(&job)) => &self.exec.jobs[job].name,
            (Some(name), _) => name,
            (None, None) => "",
        }
    }
}

/// Step: forms the clusters of the settings. At this point all jobs are compute jobs, numbered in document
/// order.
///
/// # Errors
/// Invalid profiles, clusters over several sites, clusters that wait for each other.
pub(super) fn cluster_jobs(refinement: &mut Refinement<'_, '_>) -> Result<(), PlanError> {
    let Refinement {
        workflow,
        exec,
        mapper,
        mapped,
        reduced,
        ..
    } = refinement;
    let workflow: &Workflow = workflow;
    let techniques = &mapper.settings.cluster.techniques;
    if techniques.is_empty() || exec.jobs.is_empty() {
        return Ok(());
    }
    let job_edges: Vec<(JobId, JobId)> = mapped.edges(&reduced.edges).collect();
    let mut units: Vec<Unit> = JobId::first(exec.jobs.len())
        .map(|job| Unit {
            jobs: vec![job],
            cluster: None,
        })
        .collect();
    let transformations = number_transformations(workflow, exec);
    let unit_of = |job: JobId| UnitId::new(job.index());
    let mut edges: Vec<(UnitId, UnitId)> = job_edges.iter().map(|&(p, c)| (unit_of(p), unit_of(c))).collect();
    for &technique in techniques {
        let graph = Graph::new(units.len(), &edges);
        let view = View {
            workflow,
            exec,
            mapper,
            units: &units,
            transformations: &transformations,
        };
        let settings = &mapper.settings.cluster;
        let groups = match technique {
            Technique::Horizontal => groups::horizontal(&view, &graph, settings, settings.by_runtime),
            Technique::Runtime => groups::horizontal(&view, &graph, settings, true),
            Technique::Label => Ok(groups::label(&view, settings)),
            Technique::Whole => Ok(groups::whole(&view, settings)),
        }
        .map_err(PlanError::Refinement)?;
        let groups = without_nested(&view, groups);
        if groups.is_empty() {
            continue;
        }
        check_sites(&view, &groups)?;
        let joined = join(&view, groups, &edges);
        (units, edges) = joined;
        if let Some(path) = Graph::new(units.len(), &edges).find_cycle() {
            let view = View {
                workflow,
                exec,
                mapper,
                units: &units,
                transformations: &transformations,
            };
            return Err(cycle(&view, &path));
        }
    }
    if units.iter().all(|unit| unit.cluster.is_none()) {
        return Ok(());
    }
    add_clusters(refinement, units, &job_edges)
}

/// Takes nested sub-workflows out of the groups: the executor starts them itself.
fn without_nested(view: &View<'_>, mut groups: Vec<Group>) -> Vec<Group> {
    let is_nested = |unit: UnitId| {
        let mut jobs = view.units[unit].jobs.iter();
        jobs.any(|&job| view.exec.is_nested(&view.exec.jobs[job]))
    };
    for group in &mut groups {
        group.units.retain(|&unit| !is_nested(unit));
    }
    groups.retain(|group| !group.units.is_empty());
    groups
}

/// Returns the number of each job's transformation.
fn number_transformations(workflow: &Workflow, exec: &Exec) -> Vec<Option<ListId>> {
    let mut numbers: FxHashMap<&Arc<TransformationName>, ListId> = FxHashMap::default();
    exec.jobs
        .iter()
        .map(|job| match job.task {
            Task::Compute(n) => {
                let next = ListId::new(numbers.len());
                Some(*numbers.entry(&workflow.jobs[n].transformation).or_insert(next))
            }
            _ => None,
        })
        .collect()
}

/// Refuses clusters over several sites.
fn check_sites(view: &View<'_>, groups: &[Group]) -> Result<(), PlanError> {
    let mut problems = Vec::new();
    for group in groups {
        let Some(&first) = group.units.first() else {
            continue;
        };
        if let Some(&other) = group
            .units
            .iter()
            .find(|&&unit| view.site(unit) != view.site(first))
        {
            let what = match &group.name {
                GroupName::Label(label) => format!("the label {label}"),
                GroupName::Whole => "the technique whole".to_owned(),
                GroupName::Level(..) => "horizontal clustering".to_owned(),
            };
            problems.push(Diagnostic::error(format!(
                "{what} puts jobs of several sites into one cluster: {} runs on {}, {} on {}",
                view.name(first),
                view.site(first).1,
                view.name(other),
                view.site(other).1
            )));
        }
    }
    problems.truncate(MAX_REPORTED);
    PlanError::check(problems)
}

/// Joins each group to one unit. Returns the units and the edges between them.
fn join(
    view: &View<'_>,
    groups: Vec<Group>,
    edges: &[(UnitId, UnitId)],
) -> (Vec<Unit>, Vec<(UnitId, UnitId)>) {
    let mut group_of: Vec<Option<&Group>> = vec![None; view.units.len()];
    for group in &groups {
        for &unit in &group.units {
            group_of[unit] = Some(group);
        }
    }
    let clusters = view.units.iter().filter_map(|unit| unit.cluster.clone());
    let mut names = Names::new(clusters);
    let mut units: Vec<Unit> = Vec::with_capacity(view.units.len());
    let mut number_of = vec![UnitId::new(0); view.units.len()];
    // A cluster takes the place of its first unit.
    for (old, unit) in UnitId::first(view.units.len()).zip(view.units) {
        let number = UnitId::new(units.len());
        let Some(group) = group_of[old] else {
            number_of[old] = number;
            units.push(unit.clone());
            continue;
        };
        if group.units.first() != Some(&old) {
            continue;
        }
        let mut jobs: Vec<JobId> = Vec::new();
        for &member in &group.units {
            number_of[member] = number;
            jobs.extend(&view.units[member].jobs);
        }
        jobs.sort_unstable();
        let name = names.free(base_name(view, group));
        units.push(Unit {
            jobs,
            cluster: Some(name),
        });
    }
    let mut joined: Vec<(UnitId, UnitId)> = edges
        .iter()
        .map(|&(p, c)| (number_of[p], number_of[c]))
        .filter(|(p, c)| p != c)
        .collect();
    joined.sort_unstable();
    joined.dedup();
    (units, joined)
}

/// Returns the name that a cluster gets if it is free.
fn base_name(view: &View<'_>, group: &Group) -> String {
    let clean = |text: &str| {
        job_name("merge_", text, "")
            .trim_end_matches('_')
            .replace('=', "_")
    };
    match &group.name {
        GroupName::Level(level, number) => {
            let first = group.units.first().map(|&unit| &view.units[unit]);
            let job = first
                .filter(|unit| unit.cluster.is_none())
                .and_then(|unit| unit.jobs.first());
            let name = match job.map(|&job| view.exec.jobs[job].task) {
                Some(Task::Compute(n)) => staged_name(
                    &view.workflow.jobs[n].transformation,
                    &view.mapper.settings.staging_delimiter,
                ),
                _ => "cluster".to_owned(),
            };
            format!("{}_PID{level}_ID{number}", clean(&name))
        }
        GroupName::Label(label) => clean(label),
        GroupName::Whole => "merge_whole-wf".to_owned(),
    }
}

/// Names of clusters.
struct Names {
    taken: FxHashSet<Box<str>>,
    /// For names that were wanted by several, the number of the last one.
    numbers: FxHashMap<Box<str>, usize>,
}

impl Names {
    fn new(taken: impl Iterator<Item = Box<str>>) -> Self {
        Self {
            taken: taken.collect(),
            numbers: FxHashMap::default(),
        }
    }

    /// Returns this name, or one with a number behind it if it is taken.
    fn free(&mut self, base: String) -> Box<str> {
        let base: Box<str> = base.into();
        if self.taken.insert(base.clone()) {
            return base;
        }
        let number = self.numbers.entry(base.clone()).or_insert(1);
        loop {
            *number += 1;
            let name: Box<str> = format!("{base}_{number}").into();
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// Returns the error that names clusters waiting for each other.
fn cycle(view: &View<'_>, path: &[UnitId]) -> PlanError {
    let mut names: Vec<&str> = path
        .iter()
        .chain(path.first())
        .map(|&unit| view.name(unit))
        .collect();
    let length = names.len();
    names.truncate(10);
    let dots = if length > names.len() { " needs …" } else { "" };
    PlanError::refinement(format!(
        "these clusters would wait for each other: {}{dots}; give the jobs between jobs of one label that label, too, \
         or give jobs that are far apart different labels",
        names.join(" needs ")
    ))
}

/// Adds the clusters to the plan.
fn add_clusters(
    refinement: &mut Refinement<'_, '_>,
    units: Vec<Unit>,
    job_edges: &[(JobId, JobId)],
) -> Result<(), PlanError> {
    let Refinement {
        workflow,
        exec,
        mapper,
        mapped,
        reduced,
        notes,
        ..
    } = refinement;
    let workflow: &Workflow = workflow;
    let graph = Graph::new(exec.jobs.len(), job_edges);
    let depths = graph.depths(&graph.topological().unwrap_or_default());
    let readers = lite::Readers::new(workflow, exec, &units);
    let mut inside = lite::MemberSetups::default();
    let mut old: Vec<Option<ExecJob>> = std::mem::take(&mut exec.jobs).into_iter().map(Some).collect();
    // Node of each abstract job in the graph of the next steps: the job itself, or its cluster.
    let mut node_of: Vec<JobIndex> = JobIndex::first(workflow.jobs.len()).collect();
    let mut place = vec![0usize; old.len()];
    // A unit becomes the job with its number.
    let mut unit_of = vec![JobId::new(0); old.len()];
    for (number, unit) in JobId::first(units.len()).zip(units) {
        for &job in &unit.jobs {
            unit_of[job] = number;
        }
        let Some(name) = unit.cluster else {
            for job in unit.jobs.iter().filter_map(|&job| old[job].take()) {
                let task = job.task;
                let id = exec.add(job);
                if let Task::Compute(n) = task {
                    mapped.numbers[n] = Some(id);
                }
            }
            continue;
        };
        let mut jobs = unit.jobs;
        jobs.sort_unstable_by_key(|&job| (depths[job], job));
        let first = exec.members.len();
        let node = JobIndex::new(reduced.kept.len());
        let mut abstract_jobs = Vec::with_capacity(jobs.len());
        for &job in &jobs {
            place[job] = exec.members.len();
            let Some(mut member) = old[job].take() else {
                continue;
            };
            if exec.is_lite(&member) {
                member.setup = inside.of(exec, member.setup);
            }
            if let Task::Compute(n) = member.task {
                abstract_jobs.push(n);
                node_of[n] = node;
                reduced.kept[n] = false;
                mapped.numbers[n] = None;
            }
            exec.members.push(member);
        }
        let members = first..exec.members.len();
        let mut uses = merge::uses(workflow, &abstract_jobs);
        uses.retain(|u| !readers.is_internal(u, number));
        let job = cluster_job(exec, mapper, name, &members)?;
        let Task::Cluster(_, aggregator) = job.task else {
            continue;
        };
        let id = exec.add(job);
        exec.clusters.push(Cluster {
            members,
            job: id,
            aggregator,
            uses,
            edges: Vec::new(),
        });
        reduced.kept.push(true);
        mapped.numbers.push(Some(id));
    }
    add_inner_edges(exec, job_edges, &unit_of, &place);
    join_edges(&mut reduced.edges, &node_of);
    notes.push(format!(
        "{} jobs run together in {} clusters",
        exec.members.len(),
        exec.clusters.len()
    ));
    Ok(())
}

/// Makes edges between jobs edges between their nodes: the jobs themselves, or their clusters.
fn join_edges(edges: &mut Vec<(JobIndex, JobIndex)>, node_of: &[JobIndex]) {
    for edge in &mut *edges {
        *edge = (node_of[edge.0], node_of[edge.1]);
    }
    edges.retain(|(p, c)| p != c);
    edges.sort_unstable();
    edges.dedup();
}

/// Adds the edges between the jobs of each cluster. `place` has the position of a job in [`Exec::members`].
fn add_inner_edges(exec: &mut Exec, edges: &[(JobId, JobId)], unit_of: &[JobId], place: &[usize]) {
    for &(parent, child) in edges {
        let unit = unit_of[parent.index()];
        if unit != unit_of[child.index()] {
            continue;
        }
        if let Task::Cluster(n, _) = exec.jobs[unit].task {
            let edge = (place[parent.index()], place[child.index()]);
            exec.clusters[n].edges.push(edge);
        }
    }
}

/// Returns the job that runs the members.
fn cluster_job(
    exec: &mut Exec,
    mapper: &mut Mapper<'_>,
    name: Box<str>,
    members: &Range<usize>,
) -> Result<ExecJob, PlanError> {
    let jobs = &exec.members[members.clone()];
    let mode = lite::mode(exec, &name, jobs)?;
    let setups = &exec.setups;
    let mut profiles = merge::profiles(jobs.iter().map(|job| &setups[job.setup].profiles));
    let aggregator = match profiles.pegasus("job.aggregator") {
        None => mapper.settings.cluster.aggregator,
        Some(chosen) => Aggregator::parse(chosen).ok_or_else(|| {
            PlanError::refinement(format!(
                "the profile pegasus::job.aggregator of the jobs in {name} must be seqexec or mpiexec, not {chosen}"
            ))
        })?,
    };
    if aggregator == Aggregator::MpiExec {
        // The jobs run in parallel, so the sum of times does not apply.
        for (namespace, key) in [
            (Namespace::Pegasus, "runtime"),
            (Namespace::Pegasus, "maxwalltime"),
            (Namespace::Globus, "maxwalltime"),
        ] {
            profiles.remove(namespace, key);
        }
    }
    let (site, staging) = jobs
        .first()
        .map_or((mapper.sites.local(), mapper.sites.local()), |job| {
            (job.site, job.staging)
        });
    let task = Task::Cluster(ListId::new(exec.clusters.len()), aggregator);
    let own = mapper.auxiliary_setup(task, site, exec);
    let own = &exec.setups[own];
    if let Some(entry) = mapper.auxiliary_entry(task, site) {
        profiles.overlay(&entry.profiles);
    }
    for (key, value) in own.profiles.of(Namespace::Env) {
        profiles.set(Namespace::Env, key, value);
    }
    let executable = Arc::clone(&own.executable);
    let nodes = match aggregator {
        Aggregator::MpiExec if mapper.settings.generator.abilities().is_pmc => mapper
            .auxiliary_entry(task, site)
            .and_then(|entry| JobNodes::of([Some(&entry.profiles), None])),
        _ => None,
    };
    if nodes.is_some() {
        each_rank(
            &mut profiles,
            exec.members[members.clone()]
                .iter()
                .map(|job| &exec.setups[job.setup]),
        );
    }
    exec.setups.push(Setup {
        executable,
        profiles,
        staged: false,
        mode,
        kind: JobKind::Compute,
        container: None,
        in_cluster: false,
        fetches_for_planner: false,
        nodes,
        entry: None,
    });
    Ok(ExecJob {
        name,
        task,
        site,
        staging,
        setup: SetupId::new(exec.setups.len() - 1),
    })
}

/// Sets what each rank of a cluster over several nodes requests: room for any of its jobs.
fn each_rank<'s>(profiles: &mut Profiles, jobs: impl Iterator<Item = &'s Setup>) {
    let own = Amounts {
        cpus: cpus_of_rank(profiles),
        ..Amounts::of(profiles)
    };
    let most = jobs
        .map(|job| Amounts::of(&job.profiles))
        .fold(own, |most, job| Amounts {
            memory_mb: most.memory_mb.max(job.memory_mb),
            cpus: most.cpus.max(job.cpus),
            gpus: most.gpus.max(job.gpus),
        });
    for (key, value) in [
        ("pmc_request_memory", most.memory_mb),
        ("pmc_request_cpus", most.cpus.into()),
        ("pmc_request_gpus", most.gpus.into()),
    ] {
        if value > 0 {
            profiles.set(Namespace::Pegasus, key, &value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_clusters_that_want_one_name_get_numbers() {
        let mut names = Names::new(["m_3".into()].into_iter());
        let given: Vec<Box<str>> = (0..100_000).map(|_| names.free("m".to_owned())).collect();
        assert_eq!([&*given[0], &*given[1], &*given[2]], ["m", "m_2", "m_4"]);
        let different: FxHashSet<&Box<str>> = given.iter().collect();
        assert_eq!(different.len(), given.len());
    }
}
