//! Clusters: the task that runs one, and the list or DAG of its jobs.
//!
//! Kickstart wraps each job as outside a cluster, so that monitoring sees single jobs. It does not wrap the
//! aggregator: pegasus-cluster and pegasus-mpi-cluster change no directory and write records themselves.

use std::fmt::Write as _;

use pmc_dag::list;
use pmc_dag::write::{self, TaskLine, WriteError};

use crate::exec::{Aggregator, Cluster};
use crate::exec::{JobId, Task};
use crate::profiles::{Namespace, Profiles};

use super::Plan;
use super::command::{self, Command, is_wrapped, quote};
use super::dag::replace_spaces;
use super::limits;
use super::secrets::environment;

/// Variables that would make pegasus-mpi-cluster join the MPI job in which it runs.
const LAUNCHER_VARIABLES: &[&str] = &[
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "SLURM_STEP_NUM_TASKS",
];
/// Minutes that a run inside a cluster reserves for its end, if it has more than twice as many.
const MARGIN: u64 = 5;

fn cluster<'p>(plan: &'p Plan<'_>, id: JobId) -> Option<&'p Cluster> {
    match plan.job(id).task {
        Task::Cluster(n, _) => Some(&plan.exec.clusters[n]),
        _ => None,
    }
}

/// Returns the cluster of a job.
fn cluster_of<'p>(plan: &'p Plan<'_>, id: JobId) -> Option<&'p Cluster> {
    let position = id.index().checked_sub(plan.exec.jobs.len())?;
    let clusters = &plan.exec.clusters;
    let after = clusters.partition_point(|cluster| cluster.members.start <= position);
    clusters.get(after.checked_sub(1)?)
}

/// Returns the job of the plan that runs a clustered job.
pub(crate) fn cluster_job(plan: &Plan<'_>, id: JobId) -> Option<JobId> {
    cluster_of(plan, id).map(|cluster| cluster.job)
}

/// Returns whether a job is not the first in a list for pegasus-cluster. Its record need not describe the
/// machine again.
pub(crate) fn is_later_member(plan: &Plan<'_>, id: JobId) -> bool {
    cluster_of(plan, id).is_some_and(|cluster| {
        cluster.aggregator == Aggregator::SeqExec && plan.member(cluster.members.start) != id
    })
}

/// Returns whether a clustered job inherits its whole environment from the cluster.
pub(crate) fn inherits_environment(plan: &Plan<'_>, id: JobId) -> bool {
    let profiles = |id: JobId| &plan.exec.setups[plan.job(id).setup].profiles;
    cluster_of(plan, id).is_some_and(|cluster| {
        let outer = profiles(cluster.job);
        profiles(id)
            .of(Namespace::Env)
            .all(|(key, value)| outer.get(Namespace::Env, key) == Some(value))
    })
}

/// Returns whether a list contains a job without kickstart.
pub(crate) fn has_bare_member(plan: &Plan<'_>, id: JobId) -> bool {
    cluster(plan, id).is_some_and(|cluster| {
        let mut members = cluster.members.clone();
        cluster.aggregator == Aggregator::SeqExec && members.any(|m| !is_wrapped(plan, plan.member(m)))
    })
}

/// Resources that the jobs of a cluster need.
#[derive(Debug, Default)]
struct Needs {
    max_memory: Option<u64>,
    total_memory: u64,
    max_cpus: Option<u32>,
    max_gpus: Option<u32>,
    priority: Option<i64>,
    options: Vec<String>,
}

impl Needs {
    fn of(plan: &Plan<'_>, cluster: &Cluster) -> Self {
        let mut needs = Needs::default();
        for member in cluster.members.clone() {
            let mut one = Command::default();
            // Problems are reported with the list.
            limits::resources(plan, plan.member(member), &mut one, &mut Vec::new());
            needs.max_memory = needs.max_memory.max(one.memory_mb);
            needs.total_memory = needs.total_memory.saturating_add(one.memory_mb.unwrap_or(0));
            needs.max_cpus = needs.max_cpus.max(one.cpus);
            needs.max_gpus = needs.max_gpus.max(one.gpus);
            needs.priority = match (needs.priority, one.priority) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
            if !one.options.is_empty() && !needs.options.contains(&one.options) {
                needs.options.push(one.options);
            }
        }
        needs
    }
}

/// Returns the command of a cluster.
///
/// # Errors
/// Invalid profiles.
pub(crate) fn command(plan: &Plan<'_>, id: JobId) -> Result<Command, Vec<String>> {
    let Some(cluster) = cluster(plan, id) else {
        return Err(vec![format!("the job {} is not a cluster", plan.job(id).name)]);
    };
    let setup = &plan.exec.setups[plan.job(id).setup];
    let mut problems = Vec::new();
    let mut command = Command::default();
    // Resources of the aggregator in the catalog, else those of the jobs.
    limits::resources(plan, id, &mut command, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    let needs = Needs::of(plan, cluster);
    command.cpus = command.cpus.max(needs.max_cpus);
    command.gpus = command.gpus.max(needs.max_gpus);
    command.priority = command.priority.or(needs.priority);
    command.environment = environment(&plan.secrets, plan.job(id).setup, setup);
    command.program = quote(&setup.executable).into_owned();
    let profile = setup.profiles.pegasus("job.aggregator.arguments").map(str::trim);
    let extra = profile
        .filter(|text| !text.is_empty())
        .or(plan.settings.cluster.arguments.as_deref())
        .unwrap_or_default();
    let mut words = match cluster.aggregator {
        Aggregator::SeqExec => {
            check_parallel(plan, id, cluster, extra)?;
            sequential(plan, id, needs, &mut command)
        }
        Aggregator::MpiExec => parallel(plan, id, &needs, &mut command),
    };
    let mut options = String::new();
    super::dagman::push_options(plan, id, &mut options).map_err(|problem| vec![problem.to_string()])?;
    if cluster.aggregator == Aggregator::SeqExec {
        // The run inside a cluster judges each of its jobs.
        super::messages::push_options(&setup.profiles, &mut options);
    }
    options.push_str(&command.options);
    command.options = options;
    if !extra.is_empty() {
        words.push(extra.to_owned());
    }
    words.push(quote(&plan.job_file(id, ".in")).into_owned());
    command.arguments = words.join(" ");
    Ok(command)
}

/// Refuses dependencies between jobs that pegasus-cluster would run at the same time.
fn check_parallel(plan: &Plan<'_>, id: JobId, cluster: &Cluster, arguments: &str) -> Result<(), Vec<String>> {
    if cluster.edges.is_empty() {
        return Ok(());
    }
    let setup = &plan.exec.setups[plan.job(id).setup];
    let variable = setup.profiles.get(Namespace::Env, "SEQEXEC_CPUS");
    match parallel_jobs(arguments).or(variable.map(str::to_owned)) {
        Some(number) if is_several(&number) => Err(vec![format!(
            "job {}: its jobs depend on each other, but pegasus-cluster would run several of them at the same time (-n \
             {number} in job.aggregator.arguments, or SEQEXEC_CPUS) and ignores dependencies: remove that setting, or \
             set the profile pegasus::job.aggregator of these jobs to mpiexec, which respects dependencies",
            plan.job(id).name
        )]),
        _ => Ok(()),
    }
}

/// Sets the resources of a cluster under pegasus-cluster and returns its options.
fn sequential(plan: &Plan<'_>, id: JobId, needs: Needs, command: &mut Command) -> Vec<String> {
    command.memory_mb = command.memory_mb.max(needs.max_memory);
    if command.options.is_empty() {
        command.options = needs.options.join(" ");
    }
    let mut words = Vec::new();
    let settings = &plan.settings.cluster;
    if settings.first_job_fail {
        words.push("-f".into());
    }
    if settings.log {
        let log = if settings.global_log {
            format!("{}/{}.log", plan.submit, plan.base)
        } else {
            plan.job_file(id, ".log")
        };
        words.push(format!("-R {}", quote(&log)));
    }
    words
}

/// Sets the resources of a cluster under pegasus-mpi-cluster and returns its options.
fn parallel(plan: &Plan<'_>, id: JobId, needs: &Needs, command: &mut Command) -> Vec<String> {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup].profiles;
    let cpus = command.cpus.unwrap_or(1);
    let slots = u64::from(cpus / needs.max_cpus.unwrap_or(1)).max(1);
    let memory = needs
        .max_memory
        .map(|mb| mb.saturating_mul(slots).min(needs.total_memory));
    command.memory_mb = command.memory_mb.or(memory).max(needs.max_memory);
    let mut words = vec![format!("--workers {cpus} --host-cpus {cpus}")];
    if let Some(memory) = command.memory_mb {
        words.push(format!("--host-memory {memory}"));
    }
    if let Some(gpus) = command.gpus {
        words.push(format!("--host-gpus {gpus}"));
    }
    words.push("--no-resource-log".into());
    if plan.exec.is_lite(job) {
        // What an earlier attempt has made is gone with its directory.
        words.push("--skip-rescue".into());
    }
    if let Some(minutes) = wall_time(profiles, &plan.settings.profiles) {
        words.push(format!("--max-wall-time {minutes}"));
    }
    let mut unset = String::from("/usr/bin/env");
    for variable in LAUNCHER_VARIABLES {
        // Writing into a String cannot fail.
        let _ = write!(unset, " -u {variable}");
    }
    let set = command.environment.strip_prefix("/usr/bin/env ");
    command.environment = format!("{unset} {}", set.unwrap_or(&command.environment));
    words
}

/// Returns the number of jobs that pegasus-cluster runs at a time, if its arguments say so.
fn parallel_jobs(arguments: &str) -> Option<String> {
    let words = pmc_dag::words::split(arguments.as_bytes());
    let number = pmc_calls::cluster::value(&words, b'n')?;
    Some(String::from_utf8_lossy(number).into_owned())
}

/// Returns whether this number of parallel jobs is more than one.
fn is_several(number: &str) -> bool {
    let number = number.trim();
    number.eq_ignore_ascii_case("auto") || number.parse::<u64>().is_ok_and(|n| n > 1)
}

/// Returns the minutes that a run inside a cluster may take.
fn wall_time(job: &Profiles, defaults: &Profiles) -> Option<u64> {
    let number =
        |profiles: &Profiles, namespace, key| profiles.get(namespace, key)?.trim().parse::<u64>().ok();
    let minutes = [job, defaults].iter().find_map(|profiles| {
        number(profiles, Namespace::Pegasus, "maxwalltime")
            .or_else(|| number(profiles, Namespace::Globus, "maxwalltime"))
            .or_else(|| number(profiles, Namespace::Pegasus, "runtime").map(|seconds| seconds / 60))
    })?;
    let minutes = if minutes > 2 * MARGIN {
        minutes - MARGIN
    } else {
        minutes
    };
    (minutes > 1).then_some(minutes)
}

/// Appends the input of the aggregator.
///
/// # Errors
/// Jobs that the list cannot express.
pub(crate) fn list(plan: &Plan<'_>, id: JobId, text: &mut String) -> Result<(), Vec<String>> {
    let Some(cluster) = cluster(plan, id) else {
        return Ok(());
    };
    let mut problems = Vec::new();
    for (k, position) in cluster.members.clone().enumerate() {
        let member = plan.member(position);
        match command::command(plan, member) {
            Ok(command) => {
                if let Err(problem) = entry(plan, cluster, member, k as u64 + 1, &command, text) {
                    problems.push(problem.to_string());
                }
            }
            Err(more) => problems.extend(more),
        }
    }
    if cluster.aggregator == Aggregator::MpiExec {
        text.push('\n');
        for &(parent, child) in &cluster.edges {
            let name = |position: usize| &plan.job(plan.member(position)).name;
            if let Err(problem) = write::edge(text, name(parent), name(child)) {
                problems.push(problem.to_string());
            }
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

fn entry(
    plan: &Plan<'_>,
    cluster: &Cluster,
    member: JobId,
    number: u64,
    command: &Command,
    text: &mut String,
) -> Result<(), WriteError> {
    let job = plan.job(member);
    let mut transformation = String::new();
    plan.push_transformation(job, &mut transformation);
    write::comment(
        text,
        number,
        &replace_spaces(&transformation),
        &replace_spaces(plan.logical_id(job)),
    )?;
    let line = format!("{}{} {}", command.environment, command.program, command.arguments);
    let line = line.trim_end_matches([' ', '\t']);
    match cluster.aggregator {
        Aggregator::SeqExec => {
            if line.contains(['\n', '\r']) {
                return Err(WriteError::LineBreak {
                    what: "command",
                    task: job.name.to_string(),
                });
            }
            list::translate(line, text);
            Ok(())
        }
        Aggregator::MpiExec => {
            // The retries are those of the cluster as a whole.
            let line = TaskLine {
                tries: None,
                ..command.task_line(&job.name, line)
            };
            write::task(text, &line)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_parallel_jobs_is_found() {
        let several = |arguments| parallel_jobs(arguments).is_some_and(|number| is_several(&number));
        assert!(several("-n4") && several("-d -n auto") && several("-fn 3"));
        assert!(!several("") && !several("-n 1") && !several("-n 3 -n 1"));
    }

    #[test]
    fn wall_times_reserve_time_for_the_end() {
        let of = |namespace, key: &str, value: &str| {
            let mut profiles = Profiles::default();
            profiles.set(namespace, key, value);
            profiles
        };
        let none = Profiles::default();
        assert_eq!(wall_time(&none, &none), None);
        assert_eq!(
            wall_time(&of(Namespace::Globus, "maxwalltime", "30"), &none),
            Some(25)
        );
        assert_eq!(
            wall_time(&none, &of(Namespace::Globus, "maxwalltime", "10")),
            Some(10)
        );
        assert_eq!(
            wall_time(&of(Namespace::Pegasus, "runtime", "1200"), &none),
            Some(15)
        );
        assert_eq!(wall_time(&of(Namespace::Pegasus, "runtime", "60"), &none), None);
    }
}
