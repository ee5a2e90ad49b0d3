//! The environment of tasks.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use pmc_wire::checkpoint::VARIABLE as NODE;

use super::forward::Pipes;
use super::gpus::Devices;
use super::leftovers;
use crate::node::ServedAttempt;
use crate::protocol::{Assignment, Part, Rank};

/// Variable with the number of the attempt. As with the original, the first attempt does not have it.
const ATTEMPT: &[u8] = b"PMC_ATTEMPT";

/// Variable with the number of earlier starts, in this run and before. The first start does not have it.
const RESTART: &[u8] = b"PMC_RESTART";

/// Variables that the worker sets for tasks.
const TASK_VARIABLES: [&[u8]; 9] = [
    ATTEMPT,
    RESTART,
    leftovers::VARIABLE,
    b"PMC_TASK",
    b"PMC_MEMORY",
    b"PMC_CPUS",
    b"PMC_RANK",
    b"PMC_HOST_RANK",
    NODE.as_bytes(),
];

/// Beginnings of the variables that a launcher sets for one of its processes: Open MPI, PRRTE, MPICH,
/// MVAPICH, anything with PMI; steps of Slurm, Flux, PALS, ALPS and LSF. With them, a program in a task that
/// knows such launchers would take itself for the worker or the agent, and fail or wait for the others.
/// Settings for such programs, the number of the batch job and its nodes have other names.
const LAUNCHER_PREFIXES: &[&[u8]] = &[
    b"ALPS_APP_",
    b"FLUX_JOB_ID",
    b"FLUX_JOB_NNODES",
    b"FLUX_JOB_SIZE",
    b"FLUX_KVS_NAMESPACE",
    b"FLUX_PMI_",
    b"FLUX_TASK_",
    b"HYDI_",
    b"HYDRA_PROXY_",
    b"JSM_NAMESPACE_",
    b"LSF_PM_TASKID",
    b"MPIRUN_NPROCS",
    b"MPIRUN_RANK",
    b"MPI_LOCALNRANKS",
    b"MPI_LOCALRANKID",
    b"MV2_COMM_WORLD_",
    b"MVP_COMM_WORLD_",
    b"OMPI_APP_CTX_NUM_PROCS",
    b"OMPI_ARGV",
    b"OMPI_COMMAND",
    b"OMPI_COMM_WORLD_",
    b"OMPI_FILE_LOCATION",
    b"OMPI_FIRST_RANKS",
    b"OMPI_MCA_ess",
    b"OMPI_MCA_initial_wdir",
    b"OMPI_MCA_orte_",
    b"OMPI_NUM_APP_CTX",
    b"OMPI_UNIVERSE_SIZE",
    b"OMPI_WORLD_",
    b"PALS_APID",
    b"PALS_APINFO",
    b"PALS_FD",
    b"PALS_LOCAL_",
    b"PALS_NODEID",
    b"PALS_RANK",
    b"PALS_SIZE",
    b"PALS_SPOOL_DIR",
    b"PALS_STARTUP",
    b"PMI2_",
    b"PMIX_",
    b"PMI_",
    b"PRTE_LAUNCHED",
    b"SLURM_CPU_BIND",
    b"SLURM_GTIDS",
    b"SLURM_LAUNCH_NODE_IPADDR",
    b"SLURM_LOCALID",
    b"SLURM_MEM_BIND",
    b"SLURM_NODEID",
    b"SLURM_PMI",
    b"SLURM_PROCID",
    b"SLURM_SRUN_COMM_",
    b"SLURM_STEPID",
    b"SLURM_STEPMGR",
    b"SLURM_STEP_",
    b"SLURM_TASK_PID",
];

/// Returns the variables that tasks inherit, as `NAME=value`.
pub(super) fn inherited(environment: &[(OsString, OsString)]) -> Vec<CString> {
    environment
        .iter()
        .filter(|(name, _)| is_inherited(name.as_bytes()))
        .filter_map(|(name, value)| variable(name.as_bytes(), value.as_bytes()).ok())
        .collect()
}

/// Variables of one task.
pub(super) struct TaskVariables(Vec<CString>);

/// The numbers by which a task knows its worker.
#[derive(Clone, Copy)]
pub(super) struct WorkerNumbers {
    /// Rank of the worker.
    pub(super) rank: Rank,
    /// Number of the worker on its host.
    pub(super) host_rank: u32,
}

impl TaskVariables {
    pub(super) fn new(
        task: &Assignment,
        pipes: &Pipes<'_>,
        worker: WorkerNumbers,
        devices: &Devices,
        served: Option<&ServedAttempt>,
    ) -> io::Result<Self> {
        let mut all = Vec::with_capacity(9 + task.pipe_forwards.len());
        for (name, descriptor) in pipes.variables() {
            if name.is_empty() {
                return Err(io::Error::other("The variable of a pipe forward has no name"));
            }
            if !TASK_VARIABLES.contains(&name) {
                all.push(variable(name, descriptor.to_string().as_bytes())?);
            }
        }
        all.push(variable(b"PMC_TASK", &task.name)?);
        for (name, value) in [
            ("PMC_MEMORY", task.memory_mb),
            ("PMC_CPUS", task.cpus.into()),
            ("PMC_RANK", worker.rank.0.into()),
            ("PMC_HOST_RANK", worker.host_rank.into()),
        ] {
            all.push(variable(name.as_bytes(), value.to_string().as_bytes())?);
        }
        if let Some((name, value)) = served.map(ServedAttempt::variable) {
            all.push(variable(name.as_bytes(), value.as_bytes())?);
        }
        if task.attempt > 1 {
            all.push(variable(ATTEMPT, task.attempt.to_string().as_bytes())?);
        }
        if task.restarts > 0 {
            all.push(variable(RESTART, task.restarts.to_string().as_bytes())?);
        }
        for (name, value) in granted(&task.cpu_set, &task.gpu_set, devices) {
            all.push(variable(name.as_bytes(), value.as_bytes())?);
        }
        Ok(Self(all))
    }

    /// Adds variables.
    pub(super) fn with(mut self, variables: impl IntoIterator<Item = CString>) -> Self {
        self.0.extend(variables);
        self
    }

    pub(super) fn all(&self) -> &[CString] {
        &self.0
    }
}

/// Variables that name the CPUs and GPUs of a task.
fn granted(cpus: &[u32], gpus: &[u32], devices: &Devices) -> Vec<(&'static str, String)> {
    let numbers: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let affinity = (!cpus.is_empty()).then(|| ("PMC_AFFINITY", numbers.join(",")));
    let gpus = Some(gpus).filter(|gpus| !gpus.is_empty());
    let gpus = gpus.into_iter().flat_map(|gpus| devices.variables(gpus));
    affinity.into_iter().chain(gpus).collect()
}

/// Returns the variables of a part of a gang, as `NAME=value`.
pub(super) fn part_variables(part: &Part, rank: Rank, host_rank: u32, devices: &Devices) -> Vec<Vec<u8>> {
    let mut all = vec![
        ("PMC_MEMORY", part.memory_mb.to_string()),
        ("PMC_CPUS", part.cpus.to_string()),
        ("PMC_RANK", rank.0.to_string()),
        ("PMC_HOST_RANK", host_rank.to_string()),
    ];
    all.extend(granted(&part.cpu_set, &part.gpu_set, devices));
    let text = |(name, value): &(&str, String)| format!("{name}={value}").into_bytes();
    all.iter().map(text).collect()
}

/// Returns `NAME=value`.
fn variable(name: &[u8], value: &[u8]) -> io::Result<CString> {
    let mut text = Vec::with_capacity(name.len() + value.len() + 2);
    text.extend_from_slice(name);
    text.push(b'=');
    text.extend_from_slice(value);
    Ok(CString::new(text)?)
}

/// Returns whether tasks inherit the variable of this name.
pub(super) fn is_inherited(name: &[u8]) -> bool {
    !TASK_VARIABLES.contains(&name) && !LAUNCHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_inherited_and_ranks_are_not() {
        for name in [
            "PATH",
            "OMPI_MCA_btl",
            "SLURM_JOB_ID",
            "SLURM_JOB_NODELIST",
            "SLURM_NODELIST",
            "SLURM_TASKS_PER_NODE",
            "SLURM_NTASKS",
            "SLURM_CPUS_PER_TASK",
            "SLURMD_NODENAME",
            "PBS_NODEFILE",
            "LSB_HOSTS",
            "FLUX_URI",
            "PALS_CPU_BIND",
            "PMC_AFFINITY",
            "OMP_NUM_THREADS",
        ] {
            assert!(is_inherited(name.as_bytes()), "{name}");
        }
        for name in [
            "PMC_ATTEMPT",
            "PMC_RANK",
            "PMI_FD",
            "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_PMIX_MAPPING_SERV",
            "PALS_RANKID",
            "PALS_LOCAL_RANKID",
            "FLUX_TASK_RANK",
            "FLUX_JOB_ID",
            "MV2_COMM_WORLD_RANK",
            "JSM_NAMESPACE_RANK",
            "PMIX_RANK",
            "OMPI_COMM_WORLD_RANK",
            "MPI_LOCALRANKID",
        ] {
            assert!(!is_inherited(name.as_bytes()), "{name}");
        }
    }
}
