//! Code generators: what runs a plan, and what jobs and plans can rely on there.

use crate::error::PlanError;
use crate::properties::Properties;

/// A code generator: the format of the executable workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeGenerator {
    /// A DAG for pegasus-mpi-cluster.
    Pmc,
    /// A shell script that runs one job after the other.
    Shell,
    /// A DAG for HTCondor's DAGMan, and a submit description for each job.
    Condor,
}

/// What jobs and plans can rely on. Only this table and the list of writers in `output` know the names of
/// code generators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Name in properties.
    pub(crate) name: &'static str,
    /// Each job starts in its directory, with its input redirected.
    pub(crate) prepares_jobs: bool,
    /// A run that was cut off goes on where it was. A job may thus start again after it has changed
    /// something.
    pub(crate) resumes: bool,
    /// Sub-workflows can be planned when their turn comes.
    pub(crate) nests: bool,
    /// DAGMan runs DAGs and nested sub-workflows.
    pub(crate) runs_dagman: bool,
    /// Jobs of large plans share one file with their work lists.
    pub(crate) shares_lists: bool,
    /// pegasus-mpi-cluster runs the plan.
    pub(crate) is_pmc: bool,
    /// Files of the submit directory come to a job into the directory that `_CONDOR_SCRATCH_DIR` names, and
    /// checksums come in the records of kickstart.
    pub(crate) ships_files: bool,
}

impl CodeGenerator {
    /// Returns what the code generator offers.
    pub(crate) fn abilities(self) -> Abilities {
        match self {
            CodeGenerator::Pmc => Abilities {
                name: "PMC",
                prepares_jobs: false,
                resumes: true,
                nests: true,
                runs_dagman: false,
                shares_lists: true,
                is_pmc: true,
                ships_files: false,
            },
            CodeGenerator::Shell => Abilities {
                name: "Shell",
                prepares_jobs: true,
                resumes: false,
                nests: false,
                runs_dagman: false,
                shares_lists: false,
                is_pmc: false,
                ships_files: false,
            },
            CodeGenerator::Condor => Abilities {
                name: "Condor",
                prepares_jobs: true,
                resumes: true,
                nests: true,
                runs_dagman: true,
                shares_lists: false,
                is_pmc: false,
                ships_files: true,
            },
        }
    }
}

/// Returns the code generator: PMC without the property.
///
/// # Errors
/// One that is not offered.
pub(crate) fn generator(properties: &Properties) -> Result<CodeGenerator, PlanError> {
    match properties.get("pegasus.code.generator").map(str::trim) {
        None | Some("") => Ok(CodeGenerator::Pmc),
        Some(name) if name.eq_ignore_ascii_case("pmc") => Ok(CodeGenerator::Pmc),
        Some(name) if name.eq_ignore_ascii_case("shell") => Ok(CodeGenerator::Shell),
        Some(name) if name.eq_ignore_ascii_case("condor") => Ok(CodeGenerator::Condor),
        Some(name) => Err(PlanError::Unsupported(format!(
            "the code generator {name} is not offered: set pegasus.code.generator to PMC, Condor or Shell, or leave it out"
        ))),
    }
}
