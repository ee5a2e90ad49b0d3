//! Warnings about a batch job that may not do for its jobs.

use pmc_batch::Scheduler;
use pmc_status::memory;

use super::Resources;
use super::estimate::duration;
use super::transport::{ONE_PROCESS, Transport};

/// MiB of memory that a job requests if nobody says how much it needs.
const DEFAULT_MEMORY_MB: u64 = 2048;

impl Resources {
    /// Returns warnings about unusual values.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.is_single_process() {
            warnings.push(ONE_PROCESS.into());
        }
        if let Some(scheduler) = self.preferred
            && self.all_cores
            && !self.uses_all_cores(scheduler)
            && (scheduler != Scheduler::Cobalt || self.transport == Transport::Mpi)
        {
            let (asks_for, what) = match self.transport {
                Transport::Mpi => ("starts", "processes"),
                Transport::Agents | Transport::None => ("asks for", "CPUs"),
            };
            warnings.push(format!(
                "the script for {scheduler} {asks_for} {} {what} on each node, because the number of its cores is \
                 unknown: give --node-cpus or --ntasks-per-node",
                self.tasks_per_node
            ));
        }
        if self.transport == Transport::None && self.nodes > 1 {
            warnings.push(format!(
                "the launcher none starts the executor on one node only; {} nodes are requested",
                self.nodes
            ));
        }
        if let Some(drain) = self.drain
            && let Some(&scheduler) = self.schedulers.iter().find(|&&s| drain >= self.max_wall_time(s))
        {
            warnings.push(format!(
                "no task would be started in the last {drain} minutes of a job of {} minutes, so never: the signal \
                 for it is omitted",
                self.minutes(scheduler)
            ));
        }
        if self.is_for_cluster {
            warnings.extend(self.contradictions_to_jobs());
        }
        warnings.extend(self.contradictions_in_directives());
        warnings
    }

    /// Returns what jobs need and the batch job may not have.
    fn contradictions_to_jobs(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let (Some(minutes), Some(estimate)) = (self.minutes, self.estimate)
            && estimate.longest_chain > f64::from(minutes) * 60.0
        {
            warnings.push(format!(
                "the wall time of the batch job is {}, but its longest chain of jobs takes {} by the run times that \
                 they declare: give a longer --walltime, or submit the script again for the rest",
                duration(f64::from(minutes) * 60.0),
                duration(estimate.longest_chain)
            ));
        }
        if self.node.cpus.is_none() && self.demand.cpus > self.tasks_per_node {
            warnings.push(format!(
                "a job requests {} CPUs, but the script asks for {} processes on each node, and a shared node gives \
                 it no more CPUs: give --node-cpus",
                self.demand.cpus, self.tasks_per_node
            ));
        }
        if let Some(scheduler) = self.preferred
            && self.demand.memory_mb > DEFAULT_MEMORY_MB
            && self.node.memory_mb.is_none()
            && !self.uses_all_memory(scheduler)
        {
            warnings.push(format!(
                "a job requests {} of memory, but the script for {scheduler} asks for none, so that the default of \
                 the scheduler counts: give --node-memory",
                memory(self.demand.memory_mb)
            ));
        }
        if self.demand.gpus > 0 && !self.directives.iter().any(|line| asks_for_gpus(line)) {
            warnings.push(format!(
                "jobs request GPUs (up to {}), but the batch scripts ask for none: add a directive of your scheduler by \
                 the property pegasus.batch.directives, for Slurm --gpus-per-node={}",
                self.demand.gpus, self.demand.gpus
            ));
        }
        warnings
    }

    /// Returns where the user's directives replace ours.
    fn contradictions_in_directives(&self) -> Option<String> {
        let own = self.own_memory_directive()?;
        let is_replaced = self.node.memory_mb.is_some() || self.uses_all_memory(Scheduler::Slurm);
        is_replaced.then(|| {
            let size = match self.node.memory_mb {
                Some(mb) => format!("--mem={mb}M"),
                None => "--mem=0".to_owned(),
            };
            format!("the directive {own} contradicts {size}, which the script for slurm leaves out")
        })
    }
}

/// Returns whether a directive asks for GPUs, in the words of any scheduler.
fn asks_for_gpus(directive: &str) -> bool {
    let directive = directive.to_ascii_lowercase();
    ["gpu", "gres", "mig=", "accel"]
        .iter()
        .any(|word| directive.contains(word))
}
