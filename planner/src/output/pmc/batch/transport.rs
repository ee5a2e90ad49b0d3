//! How the processes of a batch job exchange messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pmc_batch::Scheduler;

/// Problem of a batch job with one process.
pub(super) const ONE_PROCESS: &str = "the batch job has one process, and pegasus-mpi-cluster needs two under MPI, a master and a \
                           worker: ask for more nodes or processes per node, or choose --launcher none";

/// A transport of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// An agent on each node, which the executor starts. The run survives the loss of a node.
    Agents,
    /// An MPI launcher starts all processes.
    Mpi,
    /// One process on the first node.
    None,
}

impl Transport {
    /// Parses the value of the property `pegasus.batch.transport`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "agents" => Some(Self::Agents),
            "mpi" => Some(Self::Mpi),
            "none" => Some(Self::None),
            _ => None,
        }
    }
}

/// Returns the number of agents as words of a script: that of the nodes of the batch job, which its user may
/// change at submission, else that of the plan.
pub(super) fn agent_count(scheduler: Scheduler, nodes: u32) -> String {
    let lines = |variable: &str| {
        format!("\"$([ -r \"${variable}\" ] && sort -u \"${variable}\" | wc -l || echo {nodes})\"")
    };
    match scheduler {
        Scheduler::Slurm => format!("\"${{SLURM_JOB_NUM_NODES:-{nodes}}}\""),
        Scheduler::Torque | Scheduler::PbsPro => lines("PBS_NODEFILE"),
        Scheduler::Lsf => lines("LSB_DJOB_HOSTFILE"),
        // The brokers of the job, one on each node.
        Scheduler::Flux => format!("\"$(flux getattr size || echo {nodes})\""),
        Scheduler::Cobalt => format!("\"${{COBALT_PARTSIZE:-{nodes}}}\""),
    }
}

/// Returns whether an executor of our own installation says that it has no MPI. Others are not asked: they
/// may be the original, which has no agents, or a program of somebody else.
pub(crate) fn lacks_mpi(executor: &Path, own_bin: Option<&Path>) -> bool {
    let Some(own) = own_bin.and_then(|path| path.canonicalize().ok()) else {
        return false;
    };
    // It may be a link to ours, or be in a directory that is one.
    let is_own = |path: Option<PathBuf>| path.is_some_and(|path| path.parent() == Some(&own));
    let beside = executor.parent().and_then(|path| path.canonicalize().ok());
    if beside.as_ref() != Some(&own) && !is_own(executor.canonicalize().ok()) {
        return false;
    }
    let output = Command::new(executor)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| {
        let printed = [output.stdout, output.stderr].concat();
        printed
            .split(|byte| *byte == b'\n')
            .any(|line| line == b"MPI: none")
    })
}
