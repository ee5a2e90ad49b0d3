//! Agents by `srun` of Slurm.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Name of the program.
pub const PROGRAM: &str = "srun";

/// Beginnings of variables that are options of `srun`, and that a batch job has from the step or the
/// allocation in which it was submitted, or for its own tasks. An agent is one task for all of its node.
const OPTIONS: [&[u8]; 37] = [
    b"SLURM_ACCEL_BIND",
    b"SLURM_CORE_SPEC",
    b"SLURM_CPUS_PER_",
    b"SLURM_CPU_BIND",
    b"SLURM_DISTRIBUTION",
    b"SLURM_ERRORMODE",
    b"SLURM_STDERRMODE",
    b"SLURM_EXACT",
    b"SLURM_EXCLUSIVE",
    b"SLURM_GPUS",
    b"SLURM_GPU_BIND",
    b"SLURM_GRES",
    b"SLURM_HINT",
    b"SLURM_HOSTFILE",
    b"SLURM_INPUTMODE",
    b"SLURM_STDINMODE",
    b"SLURM_LABELIO",
    b"SLURM_MEM_",
    b"SLURM_MULTI_PROG",
    b"SLURM_NPROCS",
    b"SLURM_NTASKS",
    b"SLURM_OUTPUTMODE",
    b"SLURM_STDOUTMODE",
    b"SLURM_OVERCOMMIT",
    b"SLURM_RELATIVE",
    b"SLURM_REMOTE_CWD",
    b"SLURM_WORKING_DIR",
    b"SLURM_RESV_PORTS",
    b"SLURM_SPREAD_JOB",
    b"SLURM_SRUN_MULTI",
    b"SLURM_THREADS",
    b"SLURM_THREAD_SPEC",
    b"SLURM_TIMELIMIT",
    b"SLURM_TRES_",
    b"SLURM_UNBUFFEREDIO",
    b"SLURM_WAIT",
    b"SRUN_",
];

/// Returns the words that start agents, one on each node. Without hosts, Slurm takes nodes of the job.
#[must_use]
pub fn words(agents: u32, hosts: &[String]) -> Vec<String> {
    let mut words = vec![
        PROGRAM.to_owned(),
        // The step shares the nodes with the master.
        "--overlap".to_owned(),
        // It outlives lost nodes, agents that fail, and those that leave.
        "--no-kill".to_owned(),
        "--kill-on-bad-exit=0".to_owned(),
        "--wait=0".to_owned(),
        // Each agent has all CPUs, all memory and the variables of the job on its node.
        "--cpu-bind=none".to_owned(),
        "--mem=0".to_owned(),
        "--export=ALL".to_owned(),
        "--mpi=none".to_owned(),
        "--ntasks-per-node=1".to_owned(),
        format!("--nodes={agents}"),
        format!("--ntasks={agents}"),
    ];
    words.extend((!hosts.is_empty()).then(|| format!("--nodelist={}", pmc_hosts::compress(hosts))));
    words
}

/// Returns whether a variable is an option of `srun`. Without such variables, only its command line counts.
#[must_use]
pub fn is_option(name: &OsStr) -> bool {
    OPTIONS.iter().any(|option| name.as_bytes().starts_with(option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_an_outer_step_are_forgotten_and_the_job_is_not() {
        for name in [
            "SLURM_CPU_BIND",
            "SLURM_CPU_BIND_LIST",
            "SLURM_MEM_PER_CPU",
            "SLURM_MEM_PER_NODE",
            "SLURM_MEM_BIND_TYPE",
            "SLURM_CPUS_PER_TASK",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_GPUS_PER_TASK",
            "SRUN_CPUS_PER_TASK",
        ] {
            assert!(is_option(name.as_ref()), "{name}");
        }
        for name in [
            "SLURM_CONF",
            "SLURM_JOB_ID",
            "SLURM_JOB_NODELIST",
            "SLURM_JOB_CPUS_PER_NODE",
            "SLURM_NODELIST",
            "SLURM_TASKS_PER_NODE",
            "SLURM_NNODES",
            "SLURM_SUBMIT_DIR",
        ] {
            assert!(!is_option(name.as_ref()), "{name}");
        }
    }
}
