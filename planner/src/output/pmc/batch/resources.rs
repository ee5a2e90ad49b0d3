//! Resources of batch jobs, from options, properties and profiles.

use std::path::PathBuf;

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::properties::Properties;
use crate::refine::sites::WorkSite;
use crate::request::Request;
use pmc_batch::Scheduler;
use pmc_status::memory;

use super::demand::Demand;
use super::estimate::{Estimate, Machine, count};
use super::settings::{COUNT, DRAIN, MEMORY, REPEATS, Reader, TIME, Text, schedulers};
use super::task_files::TaskFiles;
use super::transport::{self, ONE_PROCESS, Transport};

/// Default number of nodes.
const NODES: u32 = 1;
/// Default number of processes per node if the size of a node is unknown.
const TASKS_PER_NODE: u32 = 2;
/// Default wall time in minutes, if the run times of jobs do not need more.
const MINUTES: u32 = 60;
/// Minutes of a wall time from run times in which no task starts or the executor ends.
const SPARE_MINUTES: u32 = 15;
/// Maximum wall time in minutes from run times: a year.
const MAX_MINUTES: u32 = 366 * 24 * 60;
/// Maximum default time in minutes for running tasks to end. The default is a twelfth of the wall time.
const MAX_DEFAULT_DRAIN: u32 = 10;
/// Launchers that forward SIGUSR1 to the executor.
const SIGNAL_FORWARDERS: &[&str] = &["mpiexec", "mpirun", "srun", "none"];

/// Resources of batch jobs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resources {
    /// Schedulers that get a script; one for each suffix.
    pub(crate) schedulers: Vec<Scheduler>,
    /// Nodes.
    pub(crate) nodes: u32,
    /// Processes per node.
    pub(crate) tasks_per_node: u32,
    /// The size of a node and the number of processes are unknown: where the scheduler can, there is a
    /// process for each core.
    pub(super) all_cores: bool,
    /// A job gets all memory of a node, where the scheduler can.
    all_memory: bool,
    /// The scheduler that the user chose, or that is on this machine.
    pub(super) preferred: Option<Scheduler>,
    /// The plan is for a batch job, and not for this machine.
    pub(super) is_for_cluster: bool,
    /// Wall time in minutes, if it is given.
    pub(super) minutes: Option<u32>,
    /// The largest requests of jobs.
    pub(super) demand: Demand,
    /// How long the run takes, if jobs declare run times.
    pub(crate) estimate: Option<Estimate>,
    /// No setting changes more than numbers: the script for Torque is as that of Pegasus.
    pub(super) is_default: bool,
    /// Queue or partition.
    pub(crate) queue: Option<String>,
    /// Account or project.
    pub(crate) account: Option<String>,
    launcher: Option<String>,
    /// How the processes exchange messages.
    pub(super) transport: Transport,
    /// Size of a node, if known.
    pub(crate) node: NodeSize,
    /// Minutes before the executor's time limit at which it stops starting tasks; `None`: default.
    pub(super) drain: Option<u32>,
    /// Number of further jobs that may follow the first one.
    pub(super) resubmit: u32,
    /// Shell commands that precede the run.
    pub(crate) setup: Option<String>,
    /// Additional directives without the scheduler's prefix.
    pub(crate) directives: Vec<String>,
    /// The executor writes the database of the run.
    pub(crate) stampede: bool,
    /// Where the output of tasks goes.
    task_files: TaskFiles,
    /// Directory of custom templates.
    pub(crate) templates: Option<PathBuf>,
}

/// Size of a node, where known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSize {
    /// CPUs.
    pub(crate) cpus: Option<u32>,
    /// MiB of memory.
    pub(crate) memory_mb: Option<u64>,
}

impl NodeSize {
    /// Returns why a task with these requests fits on no node.
    pub(crate) fn problem(&self, task: &str, memory_mb: Option<u64>, cpus: Option<u32>) -> Option<String> {
        let too_much = |what: String, node: String, profile: &str| {
            format!(
                "the task {task} fits on no node: it requests {what}, but a node has {node}; lower its profile \
                 pegasus::{profile} or request larger nodes"
            )
        };
        if let (Some(requested), Some(available)) = (cpus, self.cpus)
            && requested > available
        {
            return Some(too_much(
                format!("{requested} CPUs"),
                available.to_string(),
                "cores",
            ));
        }
        if let (Some(requested), Some(available)) = (memory_mb, self.memory_mb)
            && requested > available
        {
            return Some(too_much(
                format!("{} of memory", memory(requested)),
                memory(available),
                "memory",
            ));
        }
        None
    }
}

impl Resources {
    /// Returns whether a job needs several nodes at once.
    pub(crate) fn needs_nodes(&self) -> bool {
        self.demand.over_nodes.is_some_and(|job| job.nodes > 1)
    }

    /// Collects the resources from options, else properties `pegasus.batch.*`, else profiles of the site,
    /// which win over profiles in properties. What is not said follows from the requests of the jobs.
    /// `lacks_mpi` returns whether the executor is known to have no MPI.
    ///
    /// # Errors
    /// All invalid values.
    pub(crate) fn new(
        request: &Request,
        properties: &Properties,
        site: &WorkSite,
        demand: Demand,
        lacks_mpi: &dyn Fn() -> bool,
    ) -> Result<Self, PlanError> {
        let options = &request.batch;
        let stampede = properties.get_bool("pegasus.batch.stampede", false)?;
        let mut reader = Reader {
            properties,
            site: &site.profiles,
            problems: Vec::new(),
        };
        let nodes = reader.nodes(options.nodes, demand);
        let tasks_per_node = reader.tasks_per_node(options.tasks_per_node);
        let minutes = reader.number(options.walltime, "walltime", Some("maxwalltime"), TIME);
        let cpus = reader.number(options.node_cpus, "node.cpus", None, COUNT);
        let memory = reader.number(options.node_memory, "node.memory", None, MEMORY);
        let drain = reader.number(options.drain, "drain", None, DRAIN);
        let resubmit = reader.number(None, "resubmit", None, REPEATS);
        let queue = reader.text(options.queue.as_ref(), "queue", "queue", Text::Word);
        let account = reader.text(options.account.as_ref(), "account", "project", Text::Word);
        let launcher = reader.text(
            options.launcher.as_ref(),
            "launcher",
            "batch.launcher",
            Text::Line,
        );
        let transport = reader.transport(launcher.as_deref(), nodes, demand, lacks_mpi);
        let scheduler_names = reader.value("scheduler", None);
        let schedulers = schedulers(request, scheduler_names, &mut reader.problems);
        let has_choice =
            !options.schedulers.is_empty() || scheduler_names.is_some() || options.detected.is_some();
        let preferred = schedulers.first().copied().filter(|_| has_choice);
        let directives = reader.directives();
        let setup = reader.value("setup", None).map(str::to_owned);
        let templates = options.template_dir.clone().or_else(|| {
            let directory = reader.value("templates", None)?;
            Some(request.environment.working_dir.join(directory))
        });
        let is_default = setup.is_none()
            && launcher.is_none()
            && transport == Transport::Mpi
            && directives.is_empty()
            && [nodes, tasks_per_node, minutes, cpus, memory, drain, resubmit]
                .iter()
                .all(Option::is_none);
        let resources = Resources {
            schedulers,
            nodes: nodes.unwrap_or(NODES),
            // One process is the master, so there are at least two.
            tasks_per_node: tasks_per_node.unwrap_or_else(|| cpus.unwrap_or(demand.cpus).max(TASKS_PER_NODE)),
            all_cores: tasks_per_node.is_none() && cpus.is_none(),
            all_memory: memory == Some(0),
            preferred,
            is_for_cluster: !request.runs_here && (preferred.is_some() || site.name != "local"),
            minutes,
            demand,
            estimate: None,
            is_default,
            queue,
            account,
            launcher,
            transport,
            node: NodeSize {
                cpus,
                memory_mb: memory.filter(|mb| *mb > 0).map(u64::from),
            },
            drain,
            resubmit: resubmit.unwrap_or(0),
            setup,
            directives,
            stampede,
            task_files: reader.task_files(),
            templates,
        };
        let has_size = options.nodes.is_some() || options.tasks_per_node.is_some();
        reader
            .problems
            .extend(resources.problems(has_size, tasks_per_node));
        match reader.problems.is_empty() {
            true => Ok(resources),
            false => Err(PlanError::Refinement(reader.problems)),
        }
    }

    /// Returns contradictions. `has_size`: options set the number of nodes or processes.
    fn problems(&self, has_size: bool, tasks_per_node: Option<u32>) -> Vec<Diagnostic> {
        let mut problems = Vec::new();
        if let (Some(ppn), Some(cpus)) = (tasks_per_node, self.node.cpus)
            && ppn > cpus
        {
            problems.push(Diagnostic::error(format!(
                "{ppn} processes per node are requested, but a node has {cpus} CPUs"
            )));
        }
        if let Some(job) = self.demand.over_nodes {
            let needed = job.nodes;
            if self.nodes < needed {
                problems.push(Diagnostic::error(format!(
                    "the batch job has {}, but a job needs {needed} nodes at once: request that many (--nodes)",
                    count(u64::from(self.nodes), "node")
                )));
            } else if self.transport != Transport::Agents {
                problems.push(Diagnostic::error(format!(
                    "a job needs {needed} nodes at once, and only agents run it: set the property \
                     pegasus.batch.transport to agents, or leave it out, as well as the launcher none"
                )));
            }
        }
        if self.is_single_process() && has_size {
            problems.push(Diagnostic::error(ONE_PROCESS));
        }
        if let Some(launcher) = &self.launcher
            && (launcher.contains([';', '|', '&', '<', '>', '`'])
                || launcher
                    .split_whitespace()
                    .next()
                    .is_some_and(|first| first.contains('=')))
        {
            problems.push(Diagnostic::error(format!(
                "the launcher must be a program and its arguments, not {launcher}; put settings into the property \
                 pegasus.batch.setup"
            )));
        }
        problems
    }

    /// Takes the estimate of the run into account.
    #[must_use]
    pub(crate) fn with_estimate(self, estimate: Option<Estimate>) -> Self {
        Self { estimate, ..self }
    }

    /// Returns what jobs share, for an estimate.
    pub(crate) fn machine(&self) -> Machine {
        Machine {
            nodes: self.nodes,
            tasks_per_node: self.tasks_per_node,
            slots: self.task_slots(),
            memory_mb: self.node.memory_mb,
        }
    }

    /// Returns the number of tasks that run at a time, if they are small.
    pub(super) fn task_slots(&self) -> u64 {
        // Under MPI, one process is the master.
        let masters = u64::from(self.transport == Transport::Mpi);
        self.ranks().saturating_sub(masters)
    }

    /// Returns the wall time in minutes: as given, else what the run needs by the run times that its jobs
    /// declare, at least an hour.
    pub(crate) fn minutes(&self, scheduler: Scheduler) -> u32 {
        self.minutes.unwrap_or_else(|| {
            let needed = self.estimate.map_or(0, |estimate| {
                // The slots of whole nodes are unknown.
                let seconds = match self.uses_all_cores(scheduler) {
                    true => estimate.longest_chain,
                    false => estimate.makespan,
                };
                // Jobs also wait for files and for each other.
                (seconds * 11.0 / 600.0).ceil().min(f64::from(MAX_MINUTES)) as u32
            });
            match needed {
                0 => MINUTES,
                minutes => (minutes + SPARE_MINUTES).max(MINUTES),
            }
        })
    }

    /// Returns the estimate from which the wall time of the preferred scheduler follows.
    pub(super) fn decisive_estimate(&self) -> Option<Estimate> {
        let first = *self.schedulers.first()?;
        let is_decisive = self.minutes.is_none() && self.minutes(first) > MINUTES;
        self.estimate.filter(|_| is_decisive)
    }

    /// Returns whether there is one process, which is too few under MPI.
    pub(super) fn is_single_process(&self) -> bool {
        self.ranks() < 2 && self.transport == Transport::Mpi
    }

    /// Returns whether as many tasks run on a node as it has cores, because the job has whole nodes.
    pub(super) fn has_slot_for_each_core(&self, scheduler: Scheduler) -> bool {
        let is_whole = scheduler == Scheduler::Cobalt && self.transport != Transport::Mpi;
        self.uses_all_cores(scheduler) || (self.all_cores && is_whole)
    }

    /// Returns the number of tasks that an agent runs at a time, if it is not the number of its cores.
    pub(super) fn slots(&self) -> Option<u32> {
        (!self.all_cores).then_some(self.tasks_per_node)
    }

    /// Returns the total number of processes.
    pub(crate) fn ranks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.tasks_per_node)
    }

    /// Returns whether the script asks for whole nodes and starts a process for each core.
    pub(crate) fn uses_all_cores(&self, scheduler: Scheduler) -> bool {
        // The others ask for cores by number.
        self.all_cores && matches!(scheduler, Scheduler::Slurm | Scheduler::Flux)
    }

    /// Returns whether the script asks for all memory of its nodes.
    pub(crate) fn uses_all_memory(&self, scheduler: Scheduler) -> bool {
        // The others give the memory of a whole node with its cores, or ask for memory by number.
        scheduler == Scheduler::Slurm
            && (self.all_memory || (self.all_cores && self.node.memory_mb.is_none()))
    }

    /// Returns the CPUs that the script asks for on each node, if its scheduler counts CPUs.
    pub(crate) fn cpus_asked(&self, scheduler: Scheduler) -> u32 {
        // An MPI launcher starts a process on each CPU that was asked for in these words.
        let counts_processes =
            self.transport == Transport::Mpi && matches!(scheduler, Scheduler::Torque | Scheduler::Lsf);
        match self.node.cpus {
            Some(cpus) if !counts_processes => cpus.max(self.tasks_per_node),
            _ => self.tasks_per_node,
        }
    }

    /// Returns the CPUs of a node that the run may use, if the script asks for a number: a node may have
    /// more, for others.
    pub(super) fn host_cpus(&self, scheduler: Scheduler) -> Option<u32> {
        let cpus = self.node.cpus?;
        Some(cpus.min(self.cpus_asked(scheduler)))
    }

    /// Returns the MiB of memory of a node that the run may use, if the script asks for a number.
    pub(super) fn host_memory(&self, scheduler: Scheduler) -> Option<u64> {
        let is_replaced = scheduler == Scheduler::Slurm && self.own_memory_directive().is_some();
        self.node.memory_mb.filter(|_| !is_replaced)
    }

    /// Returns the CPUs for each process, if the size of a node is known.
    pub(crate) fn cpus_per_task(&self) -> Option<u32> {
        self.node.cpus.map(|cpus| (cpus / self.tasks_per_node).max(1))
    }

    /// Returns how the executor starts its agents, if it has some.
    pub(super) fn agents(&self, scheduler: Scheduler) -> Option<&str> {
        (self.transport == Transport::Agents).then(|| match &self.launcher {
            Some(launcher) => launcher.as_str(),
            None => scheduler.agent_launcher(),
        })
    }

    /// Returns the number of agents, as words of a script.
    pub(super) fn agent_count(&self, scheduler: Scheduler) -> String {
        transport::agent_count(scheduler, self.nodes)
    }

    /// Returns the command that starts the processes, `none` if the script starts only one.
    pub(crate) fn launcher(&self, scheduler: Scheduler) -> String {
        if self.transport != Transport::Mpi {
            return "none".into();
        }
        match (&self.launcher, scheduler) {
            // By itself, it would start one process on each node.
            (Some(launcher), Scheduler::Slurm) if launcher == "srun" && self.all_cores => {
                "srun --ntasks-per-node=\"$SLURM_CPUS_ON_NODE\"".into()
            }
            (Some(launcher), _) => launcher.clone(),
            (None, Scheduler::Flux) if self.all_cores => {
                format!("flux run --nodes={} --exclusive --tasks-per-core=1", self.nodes)
            }
            (None, Scheduler::Flux) => format!("flux run --nodes={} --ntasks={}", self.nodes, self.ranks()),
            (None, Scheduler::Cobalt) => {
                format!("aprun -n {} -N {}", self.ranks(), self.tasks_per_node)
            }
            (None, _) => "mpiexec".into(),
        }
    }

    /// Returns the minutes after which the executor ends the run; the rest of the wall time is for its end.
    pub(crate) fn max_wall_time(&self, scheduler: Scheduler) -> u32 {
        match self.minutes(scheduler) {
            minutes if minutes > 10 => minutes - 5,
            minutes => minutes.saturating_sub(1).max(1),
        }
    }

    /// Returns the minutes from the start of the job to the signal after which no task is started, `None`
    /// without such a signal. By default, only Slurm sends it, and only to launchers that forward it.
    pub(crate) fn drain_after(&self, scheduler: Scheduler) -> Option<u32> {
        let launcher = match self.transport {
            Transport::Mpi => self.launcher.as_deref().unwrap_or("mpiexec"),
            Transport::Agents | Transport::None => "none",
        };
        let first = launcher.split_whitespace().next().unwrap_or_default();
        let program = first.rsplit('/').next().unwrap_or_default();
        let limit = self.max_wall_time(scheduler);
        let lead = match self.drain {
            Some(minutes) => minutes,
            None if scheduler == Scheduler::Slurm && SIGNAL_FORWARDERS.contains(&program) => {
                (self.minutes(scheduler) / 12).min(MAX_DEFAULT_DRAIN)
            }
            None => 0,
        };
        (lead > 0 && lead < limit).then(|| limit - lead)
    }

    /// Returns whether the output of tasks goes into packs.
    pub(super) fn is_packed(&self, tasks: usize) -> bool {
        self.task_files.is_packed(tasks, self.stampede)
    }

    /// Returns the directive of the user that sets the memory of a Slurm job.
    pub(super) fn own_memory_directive(&self) -> Option<&str> {
        let words = self.directives.iter().flat_map(|line| line.split_whitespace());
        let mut options = words.filter(|word| {
            let name = word.split('=').next().unwrap_or_default();
            ["--mem", "--mem-per-cpu", "--mem-per-gpu"].contains(&name)
        });
        options.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_too_large_for_a_node_is_reported_with_both_sizes() {
        let node = NodeSize {
            cpus: Some(4),
            memory_mb: Some(1000),
        };
        assert_eq!(node.problem("t", Some(1000), Some(4)), None);
        let problem = node.problem("big", None, Some(5)).expect("too many CPUs");
        assert!(problem.contains("the task big"), "{problem}");
        assert!(problem.contains("5 CPUs, but a node has 4"), "{problem}");
        let problem = node.problem("big", Some(1001), Some(1)).expect("too much memory");
        assert!(
            problem.contains("1001 MiB of memory, but a node has 1000 MiB"),
            "{problem}"
        );
        assert_eq!(NodeSize::default().problem("t", Some(1 << 40), Some(999)), None);
    }
}
