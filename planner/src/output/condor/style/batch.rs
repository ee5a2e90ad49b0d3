//! The styles glite and ssh: a batch system, to which HTCondor submits.

use crate::exec::{Aggregator, Task};
use crate::profiles::Namespace;
use crate::tasks::PlannedJob;

use pmc_dagman::write::class_ad_string;

use super::super::ad::{Ad, literal};
use super::super::context::Context;
use super::super::ranks::priority;
use super::super::requests;
use super::super::transfers::Transfers;

/// Batch systems.
const SCHEDULERS: [&str; 10] = [
    "cobalt",
    "condor",
    "flux",
    "kubernetes",
    "lsf",
    "moab",
    "pbs",
    "sfapi",
    "sge",
    "slurm",
];

/// Batch systems that give a job whole nodes, or the same part of each.
const BY_NODES: [&str; 3] = ["cobalt", "moab", "pbs"];

/// Longest name of a job, as PBS has it.
const MAX_NAME: usize = 15;

/// Cores, nodes, and cores of each node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shape {
    cores: Option<u64>,
    nodes: Option<u64>,
    per_node: Option<u64>,
}

/// Adds batch system, requests and environment.
///
/// # Errors
/// The site has no batch system, or the requests contradict each other.
pub(super) fn add<'a>(
    context: &'a Context<'a>,
    job: PlannedJob<'a>,
    transfers: &Transfers,
    ad: &mut Ad<'a>,
) -> Result<(), String> {
    let scheduler = resource(context, job, ad)?;
    ad.set("universe", "grid");
    ad.is_remote_environment = true;
    let asked = Shape {
        cores: number(job, "cores", "count")?,
        nodes: number(job, "nodes", "hostcount")?,
        per_node: number(job, "ppn", "xcount")?,
    };
    let shape = shape(&scheduler, asked).map_err(|problem| format!("job {}: {problem}", job.name))?;
    requests::add(job, false, ad)?;
    if let Some(cores) = shape.cores
        && let Some((_, value)) = ad.macros.iter_mut().find(|(name, _)| name == "pegasus_cores")
    {
        *value = cores.to_string();
    }
    add_environment(context, job, shape, ad);
    ad.set("+remote_cerequirements", requirements(context, job, shape));
    let is_cobalt = scheduler == "cobalt";
    let texts = [
        ("queue", "batch_queue"),
        ("project", "batch_project"),
        ("glite.arguments", ""),
    ];
    for (key, command) in texts {
        if let Some(value) = job.setup.profiles.pegasus(key) {
            let name = format!("pegasus_{}", key.replace('.', "_"));
            if !command.is_empty() && !is_cobalt {
                ad.set(command, format!("$({name})"));
            }
            ad.macros.push((name.into(), format!("'{value}'")));
        }
    }
    if is_cobalt {
        add_for_cobalt(job, shape, ad);
    } else if has_runtime(job) {
        ad.set("batch_runtime", "$(pegasus_job_runtime)");
    }
    ad.set("should_transfer_files", "YES");
    ad.set("when_to_transfer_output", "ON_EXIT");
    if !transfers.inputs.is_empty() {
        ad.set("transfer_input_files", transfers.input_files());
    }
    if !transfers.encrypted.is_empty() {
        ad.set("encrypt_input_files", transfers.encrypted.join(","));
    }
    Ok(())
}

/// Adds the attributes that say to Cobalt what a job needs.
fn add_for_cobalt<'a>(job: PlannedJob<'a>, shape: Shape, ad: &mut Ad<'a>) {
    let numbers = [
        ("+NodeNumber", shape.cores),
        ("+HostNumber", shape.nodes),
        ("+SMPGranularity", shape.per_node),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            ad.set(name, number.to_string());
        }
    }
    if let Some(project) = job.setup.profiles.pegasus("project") {
        ad.set("+BatchProject", literal(&class_ad_string(project)));
    }
    if has_runtime(job) {
        ad.set("+BatchWallclock", "$(pegasus_job_runtime)");
    }
}

/// Sets the resource of HTCondor, and returns the batch system.
fn resource(context: &Context<'_>, job: PlannedJob<'_>, ad: &mut Ad<'_>) -> Result<String, String> {
    let site = &context.plan.sites.get(job.site).name;
    let scheduler = match (ad.get("grid_resource"), context.grid(job, "batch")) {
        (Some(own), _) => {
            let mut words = own.split_whitespace();
            let (kind, scheduler) = (words.next(), words.next());
            if kind != Some("batch") {
                return Err(format!(
                    "job {}: the profile condor::grid_resource must be `batch SYSTEM`, not `{own}`, for the style of the site \
                     {site}",
                    job.name
                ));
            }
            scheduler.unwrap_or_default().to_ascii_lowercase()
        }
        (None, Some(grid)) => {
            ad.set(
                "grid_resource",
                format!("batch {} {}", grid.scheduler, grid.contact)
                    .trim_end()
                    .to_owned(),
            );
            grid.scheduler.clone()
        }
        (None, None) => {
            return Err(format!(
                "job {}: No valid grid gateway found for site {site}: its style needs a grid of the type batch in the site \
                 catalog, or the profile condor::grid_resource, such as `batch slurm`",
                job.name
            ));
        }
    };
    match SCHEDULERS.contains(&scheduler.as_str()) {
        true => Ok(scheduler),
        false => Err(format!(
            "job {}: the batch system `{scheduler}` of the site {site} must be one of {}",
            job.name,
            SCHEDULERS.join(", ")
        )),
    }
}

/// Returns a number from profiles: of the namespace `pegasus`, else of `globus`.
fn number(job: PlannedJob<'_>, pegasus: &str, globus: &str) -> Result<Option<u64>, String> {
    let profiles = &job.setup.profiles;
    let own = job.pegasus(pegasus);
    let old = || profiles.get(Namespace::Globus, globus).map(str::trim);
    let Some(value) = own.or_else(old).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|_| {
        format!(
            "Invalid Value specified for {pegasus} {value} for job {}: it must be a whole number",
            job.name
        )
    })
}

/// Completes what is asked for: two of the numbers give the third.
fn shape(scheduler: &str, asked: Shape) -> Result<Shape, String> {
    let by_nodes = BY_NODES.contains(&scheduler);
    let product = asked.nodes.zip(asked.per_node).map(|(n, p)| n.saturating_mul(p));
    if asked == Shape::default() {
        return Ok(asked);
    }
    // One core is the default.
    let cores = asked.cores.filter(|&cores| cores > 1);
    Ok(match (cores, product) {
        (None, Some(product)) => Shape {
            cores: Some(product),
            ..asked
        },
        (Some(cores), Some(product)) if by_nodes && cores != product => {
            return Err(format!(
                "it asks for {cores} cores, but for {} nodes with {} cores each, which are {product}",
                asked.nodes.unwrap_or(0),
                asked.per_node.unwrap_or(0)
            ));
        }
        (_, Some(_)) => asked,
        (cores, None) if by_nodes => {
            let cores = cores.unwrap_or(1);
            let (nodes, per_node) = match (asked.nodes, asked.per_node) {
                (Some(nodes), _) => (nodes, divided(cores, nodes, "nodes")?),
                (None, Some(per_node)) => (divided(cores, per_node, "cores for each node")?, per_node),
                (None, None) if cores == 1 => (1, 1),
                (None, None) => {
                    return Err(format!(
                        "it asks for {cores} cores; with the batch system {scheduler} it must say on how many nodes: set the \
                         profile pegasus::nodes or pegasus::ppn"
                    ));
                }
            };
            Shape {
                cores: Some(nodes.saturating_mul(per_node)),
                nodes: Some(nodes),
                per_node: Some(per_node),
            }
        }
        (_, None) => asked,
    })
}

/// Divides cores by what must divide them. One core, the default, is then one for each.
fn divided(cores: u64, by: u64, what: &str) -> Result<u64, String> {
    match cores {
        1 => Ok(1),
        _ if by > 0 && cores.is_multiple_of(by) => Ok(cores / by),
        _ => Err(format!(
            "it asks for {cores} cores, which are no multiple of {by} {what}"
        )),
    }
}

fn has_runtime(job: PlannedJob<'_>) -> bool {
    let globus = job.setup.profiles.get(Namespace::Globus, "maxwalltime");
    job.pegasus("runtime").is_some() || globus.is_some_and(|text| !text.trim().is_empty())
}

fn asks_cores(job: PlannedJob<'_>, shape: Shape) -> bool {
    shape.cores.is_some() || matches!(job.task, Task::Compute(_) | Task::Cluster(..))
}

/// Returns the number of GPUs, if the job asks for any.
fn gpus(job: PlannedJob<'_>) -> Option<&str> {
    job.pegasus("gpus").filter(|&gpus| gpus != "0")
}

/// Returns what the batch system is asked for.
fn requirements(context: &Context<'_>, job: PlannedJob<'_>, shape: Shape) -> String {
    // Names in batch systems are short of characters.
    let name = job.name.chars().filter(|c| !matches!(c, '_' | '-'));
    let name: String = name.take(MAX_NAME).collect();
    let mut parts = vec![
        format!("JOBNAME=={}", literal(&class_ad_string(&name))),
        "PASSENV==1".to_owned(),
    ];
    let mut add = |name: &str, value: Option<String>| {
        parts.extend(value.map(|value| format!("{name}==\"{value}\"")));
    };
    add("NODES", shape.nodes.map(|nodes| nodes.to_string()));
    add(
        "CORES",
        asks_cores(job, shape).then(|| "$(pegasus_cores)".to_owned()),
    );
    add("GPUS", gpus(job).map(|_| "$(pegasus_gpus)".to_owned()));
    add("PROCS", shape.per_node.map(|per_node| per_node.to_string()));
    add(
        "TOTAL_MEMORY",
        job.pegasus("memory").map(|_| "$(pegasus_memory_mb)".to_owned()),
    );
    parts.push(format!("PRIORITY=={}", priority(context, job)));
    if job.setup.profiles.pegasus("glite.arguments").is_some() {
        parts.push("EXTRA_ARGUMENTS==\"$(pegasus_glite_arguments)\"".to_owned());
    }
    parts.join(" && ")
}

/// Adds the variables that tell the job where it is and what it has.
fn add_environment<'a>(context: &'a Context<'a>, job: PlannedJob<'a>, shape: Shape, ad: &mut Ad<'a>) {
    let is_compute = matches!(job.task, Task::Compute(_) | Task::Cluster(..));
    if !job.is_lite() && !context.is_script(job) {
        ad.set_variable("_CONDOR_SCRATCH_DIR", ".");
        if is_compute {
            ad.set_variable("PEGASUS_SCRATCH_DIR", job.work_dir());
        }
    }
    let is_mpi = matches!(job.task, Task::Cluster(_, Aggregator::MpiExec));
    if is_compute && !job.is_lite() && (is_mpi || !(job.is_wrapped() || job.cluster().is_some())) {
        // There is no kickstart that changes into the work directory.
        ad.set_variable("_PEGASUS_SCRATCH_DIR", job.work_dir());
        ad.set("+remote_iwd", literal(&class_ad_string(job.work_dir())));
    }
    if let Some(nodes) = shape.nodes {
        ad.set_variable("PEGASUS_NODES", nodes.to_string());
    }
    if has_runtime(job) {
        ad.set_expanded("PEGASUS_RUNTIME", "$(pegasus_job_runtime)");
    }
    if asks_cores(job, shape) {
        ad.set_expanded("PEGASUS_CORES", "$(pegasus_cores)");
    }
    if let Some(per_node) = shape.per_node {
        ad.set_variable("PEGASUS_PPN", per_node.to_string());
    }
    if job.setup.profiles.pegasus("project").is_some() {
        ad.set_expanded("PEGASUS_PROJECT", "$(pegasus_project)");
    }
    if job.setup.profiles.pegasus("queue").is_some() {
        ad.set_expanded("PEGASUS_QUEUE", "$(pegasus_queue)");
    }
    if let Some(gpus) = gpus(job) {
        ad.set_variable("PEGASUS_GPUS", gpus);
    }
    let transfers = ad.get("transfer_executable").unwrap_or("false").to_owned();
    ad.set_variable("_CONDOR_TRANSFER_EXECUTABLE", transfers);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(scheduler: &str, cores: u64, nodes: u64, per_node: u64) -> Result<[u64; 3], String> {
        let some = |n: u64| (n > 0).then_some(n);
        let asked = Shape {
            cores: some(cores),
            nodes: some(nodes),
            per_node: some(per_node),
        };
        let done = shape(scheduler, asked)?;
        Ok([done.cores, done.nodes, done.per_node].map(Option::unwrap_or_default))
    }

    #[test]
    fn two_numbers_give_the_third() {
        assert_eq!(completed("slurm", 4, 0, 0), Ok([4, 0, 0]));
        assert_eq!(completed("slurm", 1, 2, 8), Ok([16, 2, 8]));
        assert_eq!(completed("pbs", 8, 2, 0), Ok([8, 2, 4]));
        assert_eq!(completed("pbs", 8, 0, 4), Ok([8, 2, 4]));
        assert_eq!(completed("pbs", 1, 2, 4), Ok([8, 2, 4]));
        assert_eq!(completed("pbs", 1, 0, 0), Ok([1, 1, 1]));
        assert_eq!(completed("pbs", 1, 3, 0), Ok([3, 3, 1]));
    }

    #[test]
    fn contradictions_are_refused_with_the_numbers() {
        for (scheduler, cores, nodes, per_node, number) in [
            ("pbs", 9, 2, 4, "9 cores"),
            ("moab", 9, 2, 0, "no multiple of 2"),
            ("cobalt", 9, 0, 4, "no multiple of 4"),
            ("pbs", 9, 0, 0, "9 cores"),
        ] {
            let problem = completed(scheduler, cores, nodes, per_node).unwrap_err();
            assert!(problem.contains(number), "{problem}");
        }
    }
}
