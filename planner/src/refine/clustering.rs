//! Clustering is not offered yet: `--cluster` is accepted where it changes nothing, and refused where jobs
//! would be grouped.

use rustc_hash::FxHashMap;

use crate::model::Workflow;
use crate::plan::PlanError;

use super::exec::{Exec, SiteId, Task};
use super::graph::Graph;
use super::reuse::Reduced;

/// Refuses what would group jobs.
///
/// # Errors
/// An unknown technique, or one that finds jobs to group.
pub(crate) fn refuse(
    workflow: &Workflow,
    exec: &Exec,
    reduced: &Reduced,
    techniques: &[String],
) -> Result<(), PlanError> {
    for technique in techniques {
        let group = match technique.to_ascii_lowercase().as_str() {
            "horizontal" => horizontal(workflow, exec, reduced),
            "label" => label(exec),
            "whole" => (exec.jobs.len() > 1).then(|| "all jobs".to_owned()),
            "none" => None,
            _ => {
                return Err(PlanError::Unsupported(format!(
                    "--cluster: there is no technique {technique}; known are horizontal, label, whole"
                )));
            }
        };
        if let Some(group) = group {
            return Err(PlanError::Code(vec![format!(
                "--cluster {technique} would group {group}, which is not offered yet; leave the option out: \
                 pegasus-mpi-cluster packs small tasks onto its hosts anyway"
            )]));
        }
    }
    Ok(())
}

/// Jobs of one level, transformation and site.
fn horizontal(workflow: &Workflow, exec: &Exec, reduced: &Reduced) -> Option<String> {
    let graph = Graph::new(workflow.jobs.len(), &reduced.edges);
    let depths = graph.depths(&graph.topological()?);
    let mut groups: FxHashMap<(u32, String, SiteId), (u32, u32)> = FxHashMap::default();
    for (k, job) in exec.jobs.iter().enumerate() {
        if let Task::Compute(n) = job.task {
            let name = workflow.jobs[n.0 as usize].transformation.to_string();
            let group = groups
                .entry((depths[n.0 as usize], name, job.site))
                .or_insert((0, k as u32));
            group.0 += 1;
        }
    }
    let mut formed: Vec<String> = groups
        .into_iter()
        .filter(|(_, (size, first))| {
            let setup = exec.jobs[*first as usize].setup;
            let profiles = &exec.setups[setup as usize].profiles;
            let number = |key| {
                profiles
                    .pegasus(key)
                    .and_then(|v: &str| v.trim().parse::<u32>().ok())
            };
            match number("clusters.num") {
                Some(clusters) => clusters > 0 && *size > clusters,
                None => *size > 1 && number("clusters.size").is_some_and(|s| s > 1),
            }
        })
        .map(|((level, name, _), (size, _))| format!("{size} jobs of {name} on level {level}"))
        .collect();
    formed.sort_unstable();
    formed.into_iter().next()
}

/// Jobs with one value of the profile `label`.
fn label(exec: &Exec) -> Option<String> {
    let mut counts: FxHashMap<&str, u32> = FxHashMap::default();
    for job in &exec.jobs {
        if let Some(label) = exec.setups[job.setup as usize].profiles.pegasus("label") {
            *counts.entry(label).or_default() += 1;
        }
    }
    counts
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|(label, count)| format!("{count} jobs with the label {label}"))
        .min()
}
