//! How the processes of a batch job exchange messages.

use std::path::Path;

use crate::scheduler::Scheduler;

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

/// Returns the word that tells the executor how to start its agents in a job of this scheduler.
pub(super) fn agent_launcher(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::Slurm => "srun",
        Scheduler::Torque | Scheduler::PbsPro => "pbsdsh",
        Scheduler::Lsf => "blaunch",
        Scheduler::Flux => "flux",
        Scheduler::Cobalt => "mpiexec",
    }
}

/// Returns whether the executor is known to have no MPI: it was built together with this program, without it.
pub(crate) fn lacks_mpi(executor: &Path, own_bin: Option<&Path>) -> bool {
    let same = |own: &Path| {
        let directory = executor.parent().and_then(|path| path.canonicalize().ok());
        directory.is_some() && directory == own.canonicalize().ok()
    };
    !cfg!(feature = "mpi") && own_bin.is_some_and(same)
}
