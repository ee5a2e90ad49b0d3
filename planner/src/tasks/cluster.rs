//! Clusters: the invocation of the program that runs their jobs.
//!
//! Kickstart wraps each job as outside a cluster, so that monitoring sees single jobs. It does not wrap the
//! aggregator: pegasus-cluster and pegasus-mpi-cluster change no directory and write records themselves.

use std::rc::Rc;

use crate::diagnostic::Diagnostic;
use crate::exec::{Aggregator, Cluster};
use crate::profiles::{Namespace, Profiles};

use super::environment::Environment;
use super::plan::PlannedJob;
use super::requests::{self, Checks, Requests};
use super::words::Words;
use super::{Invocation, Shared};

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
    fn of(job: PlannedJob<'_>, cluster: &Cluster) -> Self {
        let mut needs = Needs::default();
        for position in cluster.members.clone() {
            let member = job.plan.at(job.plan.member(position));
            // Problems are reported with the list.
            let one = requests::amounts(member, &mut Vec::new());
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

/// Fills in the program that runs the jobs of a cluster.
///
/// # Errors
/// Invalid profiles.
pub(super) fn fill(
    job: PlannedJob<'_>,
    cluster: &Cluster,
    invocation: &mut Invocation,
) -> Result<(), Vec<Diagnostic>> {
    let mut problems = Vec::new();
    // Resources of the aggregator in the catalog, else those of the jobs.
    let mut requests = requests::amounts(job, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    let over_nodes = requests::cluster_nodes(job, &mut requests);
    let over_nodes = over_nodes.map_err(|problem| vec![Diagnostic::error(problem)])?;
    let needs = Needs::of(job, cluster);
    requests.cpus = requests.cpus.max(needs.max_cpus);
    requests.gpus = requests.gpus.max(needs.max_gpus);
    requests.priority = requests.priority.or(needs.priority);
    requests.category = requests::category(job);
    requests::after_failures(job, &mut requests)
        .map_err(|problem| vec![Diagnostic::error(problem.to_string())])?;
    let mut environment = Environment::of(job);
    let settings = job.plan.settings.cluster.arguments.as_deref();
    let extra = job.pegasus("job.aggregator.arguments").or(settings);
    let extra = extra.unwrap_or_default();
    let is_list = cluster.aggregator == Aggregator::SeqExec;
    let line = &mut invocation.arguments;
    if is_list {
        check_parallel(job, cluster, extra)?;
        sequential(job, needs, &mut requests, line);
    } else {
        environment.unset = LAUNCHER_VARIABLES;
        if over_nodes {
            line.option("--agents", "gang");
        } else {
            on_one_node(&needs, &mut requests, line);
        }
        parallel(job, line);
        if job.ships_files() && job.names_executor() {
            // A launcher of MPI gives it workers.
            line.clear();
            if let Some(minutes) = wall_time(job.profiles(), &job.plan.settings.profiles) {
                line.option("--max-wall-time", &minutes.to_string());
            }
        }
    }
    if !extra.is_empty() {
        line.quoted(extra).blanks(" ");
    }
    match job.ships_files() {
        true => line.parts(&[&job.name, ".in"]),
        false => line.word(&job.plan.job_file(job.id, ".in")),
    };
    invocation.program.push_str(&job.setup.executable);
    invocation.shared = Rc::new(Shared {
        environment,
        requests,
        // The run inside a cluster judges each of its jobs.
        checks: Checks::of(job, is_list).map_err(|problem| vec![Diagnostic::error(problem.to_string())])?,
    });
    Ok(())
}

/// Refuses dependencies between jobs that pegasus-cluster would run at the same time.
fn check_parallel(job: PlannedJob<'_>, cluster: &Cluster, arguments: &str) -> Result<(), Vec<Diagnostic>> {
    if cluster.edges.is_empty() {
        return Ok(());
    }
    let variable = job.profiles().get(Namespace::Env, "SEQEXEC_CPUS");
    match parallel_jobs(arguments).or(variable.map(str::to_owned)) {
        Some(number) if is_several(&number) => Err(vec![Diagnostic::error(format!(
            "job {}: its jobs depend on each other, but pegasus-cluster would run several of them at the same time (-n \
             {number} in job.aggregator.arguments, or SEQEXEC_CPUS) and ignores dependencies: remove that setting, or \
             set the profile pegasus::job.aggregator of these jobs to mpiexec, which respects dependencies",
            job.name
        ))]),
        _ => Ok(()),
    }
}

/// Sets the requests of a cluster under pegasus-cluster and adds its options.
fn sequential(job: PlannedJob<'_>, needs: Needs, requests: &mut Requests, line: &mut Words) {
    let plan = job.plan;
    requests.memory_mb = requests.memory_mb.max(needs.max_memory);
    if requests.options.is_empty() {
        requests.options = needs.options.join(" ");
    }
    let settings = &plan.settings.cluster;
    if settings.first_job_fail {
        line.word("-f").blanks(" ");
    }
    if settings.log {
        let log = if job.ships_files() {
            let name = if settings.global_log {
                &plan.workflow.label
            } else {
                &*job.name
            };
            format!("{name}.prg")
        } else if settings.global_log {
            format!("{}/{}.log", plan.submit, plan.base)
        } else {
            plan.job_file(job.id, ".log")
        };
        line.option("-R", &log);
    }
}

/// Sets the requests of a cluster under pegasus-mpi-cluster on one node, and adds options with its size.
fn on_one_node(needs: &Needs, requests: &mut Requests, line: &mut Words) {
    let cpus = requests.cpus.unwrap_or(1);
    let slots = u64::from(cpus / needs.max_cpus.unwrap_or(1)).max(1);
    let memory = needs
        .max_memory
        .map(|mb| mb.saturating_mul(slots).min(needs.total_memory));
    requests.memory_mb = requests.memory_mb.or(memory).max(needs.max_memory);
    line.option("--workers", &cpus.to_string());
    line.option("--host-cpus", &cpus.to_string());
    if let Some(memory) = requests.memory_mb {
        line.option("--host-memory", &memory.to_string());
    }
    if let Some(gpus) = requests.gpus {
        line.option("--host-gpus", &gpus.to_string());
    }
}

/// Adds the other options of pegasus-mpi-cluster.
fn parallel(job: PlannedJob<'_>, line: &mut Words) {
    line.word("--no-resource-log").blanks(" ");
    if job.is_lite() {
        // What an earlier attempt has made is gone with its directory.
        line.word("--skip-rescue").blanks(" ");
    }
    if let Some(minutes) = wall_time(job.profiles(), &job.plan.settings.profiles) {
        line.option("--max-wall-time", &minutes.to_string());
    }
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
