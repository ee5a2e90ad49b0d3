//! Summary of a plan.

use std::fmt::Write as _;

use crate::exec::{Counts, JobId, ListId, Task, TransferSet};
use crate::graph::{Graph, by_depth};
use crate::output::pmc::batch::{Estimate, duration};
use crate::refine::cleanup::space::{Sizes, short_bytes};
use crate::tasks::Plan;

/// Summary of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Name of the workflow.
    pub label: String,
    /// Number of jobs of each kind.
    pub counts: Counts,
    /// Number of levels of the executable workflow.
    pub levels: usize,
    /// Level with the most jobs, counted from 1, and their number.
    pub widest: (usize, usize),
    /// Number of clustered jobs, size of the smallest and of the largest cluster.
    pub clustered: Option<(usize, usize, usize)>,
    /// Files staged into work directories.
    pub stage_in: Files,
    /// Files copied between work directories.
    pub inter_site: Files,
    /// Files staged to output sites.
    pub stage_out: Files,
    /// Sites and their numbers of compute jobs, by name.
    pub sites: Vec<(String, usize)>,
    /// Estimated duration, if run times are known.
    pub estimate: Option<Estimate>,
}

/// Transferred files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Number of files.
    pub files: usize,
    /// Bytes of files of known size.
    pub bytes: u64,
    /// Number of files of unknown size.
    pub unknown: usize,
}

impl Files {
    fn of<'s>(sets: impl Iterator<Item = &'s TransferSet>, sizes: &Sizes) -> Self {
        let mut this = Files::default();
        for moved in sets.flat_map(|set| &set.files) {
            this.files += 1;
            match sizes.known(moved.file) {
                Some(size) => this.bytes = this.bytes.saturating_add(size),
                None => this.unknown += 1,
            }
        }
        this
    }
    fn write_line(&self, name: &str, text: &mut String) {
        if self.files == 0 {
            return;
        }
        let known = match self.files - self.unknown {
            0 => "of unknown size".to_owned(),
            _ if self.unknown == 0 => short_bytes(self.bytes),
            _ => format!(
                "{} and {} files of unknown size",
                short_bytes(self.bytes),
                self.unknown
            ),
        };
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  {name:<14}{} files, {known}", self.files);
    }
}

impl Summary {
    pub(crate) fn new(plan: &Plan<'_>, counts: Counts, sizes: &Sizes, estimate: Option<Estimate>) -> Self {
        let exec = plan.exec;
        let graph = Graph::new(exec.jobs.len(), &exec.edges);
        let levels: Vec<Vec<JobId>> = by_depth(&graph.depths(&plan.order));
        let widest = levels
            .iter()
            .enumerate()
            .max_by_key(|(at, level)| (level.len(), std::cmp::Reverse(*at)))
            .map_or((0, 0), |(at, level)| (at + 1, level.len()));
        let sets = |selected: fn(Task) -> Option<ListId>| {
            exec.jobs
                .iter()
                .filter_map(move |job| selected(job.task))
                .map(|n| &exec.transfers[n])
        };
        let mut sites: std::collections::BTreeMap<&str, usize> = Default::default();
        for (job, _) in exec.computing() {
            *sites.entry(&plan.sites.get(job.site).name).or_default() += 1;
        }
        Summary {
            label: plan.workflow.label.clone(),
            counts,
            levels: levels.len(),
            widest,
            clustered: clustered(plan),
            stage_in: Files::of(
                sets(|task| match task {
                    Task::StageIn(n) => Some(n),
                    _ => None,
                }),
                sizes,
            ),
            inter_site: Files::of(
                sets(|task| match task {
                    Task::InterSite(n) => Some(n),
                    _ => None,
                }),
                sizes,
            ),
            stage_out: Files::of(
                sets(|task| match task {
                    Task::StageOut(n) => Some(n),
                    _ => None,
                }),
                sizes,
            ),
            sites: sites
                .into_iter()
                .map(|(name, jobs)| (name.to_owned(), jobs))
                .collect(),
            estimate,
        }
    }

    /// Formats the summary as text.
    pub fn to_text(&self) -> String {
        let counts = &self.counts;
        let mut text = format!(
            "{}: {} tasks, {} dependencies, {} levels; widest level: {} with {} tasks\n",
            self.label, counts.total, counts.edges, self.levels, self.widest.0, self.widest.1
        );
        for (kind, number) in counts.kinds() {
            if number > 0 {
                let _ = writeln!(text, "  {kind:<14}{number}");
            }
        }
        if let Some((jobs, smallest, largest)) = self.clustered {
            let each = match smallest == largest {
                true => format!("{smallest}"),
                false => format!("{smallest} to {largest}"),
            };
            let _ = writeln!(text, "  {:<14}{jobs} jobs, {each} in each cluster", "in clusters");
        }
        if counts.deleted > 0 {
            let _ = writeln!(
                text,
                "  {:<14}{} (their outputs exist)",
                "not run", counts.deleted
            );
        }
        for (site, jobs) in &self.sites {
            let _ = writeln!(text, "  {:<14}{site}, {jobs} compute jobs", "site");
        }
        self.stage_in.write_line("to stage in", &mut text);
        self.inter_site.write_line("between sites", &mut text);
        self.stage_out.write_line("to stage out", &mut text);
        match &self.estimate {
            None => text.push_str(
                "No time estimate: no run time is known (profile pegasus::runtime of a job or transformation, in seconds)\n",
            ),
            Some(e) => {
                let _ = writeln!(
                    text,
                    "Estimated time: {} on {} nodes with {} processes each (longest chain {}, all jobs {}); run times \
                     of {} of {} compute jobs are known, other jobs count as 0",
                    duration(e.makespan),
                    e.nodes,
                    e.tasks_per_node,
                    duration(e.longest_chain),
                    duration(e.work),
                    e.known,
                    counts.compute + counts.clustered,
                );
            }
        }
        text
    }

    /// Formats the summary as JSON.
    pub fn json(&self) -> serde_json::Value {
        let files = |f: &Files| serde_json::json!({"files": f.files, "bytes": f.bytes, "unknown": f.unknown});
        let kinds: serde_json::Map<String, serde_json::Value> = self
            .counts
            .kinds()
            .into_iter()
            .map(|(kind, number)| (kind.replace('-', "_"), number.into()))
            .collect();
        let sites: serde_json::Map<String, serde_json::Value> = self
            .sites
            .iter()
            .map(|(name, jobs)| (name.clone(), (*jobs).into()))
            .collect();
        serde_json::json!({
            "label": self.label,
            "tasks": self.counts.total,
            "dependencies": self.counts.edges,
            "kinds": kinds,
            "deleted": self.counts.deleted,
            "levels": self.levels,
            "widest_level": {"level": self.widest.0, "tasks": self.widest.1},
            "sites": sites,
            "clusters": self.clustered.map(|(jobs, smallest, largest)| serde_json::json!({
                "clusters": self.counts.clustered,
                "jobs": jobs,
                "smallest": smallest,
                "largest": largest,
            })),
            "stage_in": files(&self.stage_in),
            "inter_site": files(&self.inter_site),
            "stage_out": files(&self.stage_out),
            "estimate": self.estimate.map(|e| serde_json::json!({
                "makespan_seconds": e.makespan,
                "longest_chain_seconds": e.longest_chain,
                "work_seconds": e.work,
                "nodes": e.nodes,
                "tasks_per_node": e.tasks_per_node,
                "known_runtimes": e.known,
            })),
        })
    }
}

/// Returns the number of clustered jobs, size of the smallest and of the largest cluster.
fn clustered(plan: &Plan<'_>) -> Option<(usize, usize, usize)> {
    let sizes = || plan.exec.clusters.iter().map(|cluster| cluster.members.len());
    Some((sizes().sum(), sizes().min()?, sizes().max()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_summarized() {
        let mut text = String::new();
        Files {
            files: 3,
            bytes: 2048,
            unknown: 1,
        }
        .write_line("to stage in", &mut text);
        Files::default().write_line("nothing", &mut text);
        assert_eq!(
            text,
            "  to stage in   3 files, 2.0 KiB and 1 files of unknown size\n"
        );
    }
}
