//! Writes the submit directory: `common` what all plans have, the other folders what runs the plan.

pub(crate) mod common;
mod condor;
pub(crate) mod pmc;
mod shell;

use std::path::{Path, PathBuf};

use pmc_batch::Script;

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::SiteId;
use crate::fingerprint::Facts;
use crate::refine::settings::CodeGenerator;
use crate::request::Request;
use crate::tasks::{Plan, WorkLists};

use common::events::JobEvents;
use pmc::batch::Resources;

/// Writes what runs a plan. Quoting is its own business: the jobs come as words.
pub(crate) trait Generator {
    /// Returns keys and values of the braindump about what runs the plan.
    fn braindump(&self, plan: &Plan<'_>) -> Vec<(&'static str, Option<String>)>;

    /// Writes what runs the plan, and the events of its jobs.
    ///
    /// # Errors
    /// Jobs that the format cannot express, failed writes.
    fn write(&self, to: &mut Writing<'_>) -> Result<Code, PlanError>;
}

/// Returns the writer of a code generator.
pub(crate) fn generator(of: CodeGenerator) -> &'static dyn Generator {
    match of {
        CodeGenerator::Pmc => &pmc::Pmc,
        CodeGenerator::Shell => &shell::Shell,
        CodeGenerator::Condor => &condor::Condor,
    }
}

/// Returns the name of the submit description of the run of DAGMan, `None` if something else runs the plan.
pub(crate) fn condor_file(plan: &Plan<'_>) -> Option<String> {
    let is_condor = plan.settings.generator == CodeGenerator::Condor;
    is_condor.then(|| condor::dagman_file(plan))
}

/// What a generator writes, and where.
pub(crate) struct Writing<'a> {
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) request: &'a Request,
    /// Where the work lists are, which are written before.
    pub(crate) lists: &'a WorkLists,
    /// Facts for later commands.
    pub(crate) facts: &'a Facts,
    /// Files from which the plan is made.
    pub(crate) read: &'a [PathBuf],
    /// Resources of the batch job.
    pub(crate) resources: &'a Resources,
    /// Site of the batch job.
    pub(crate) site: SiteId,
    /// Directory for the files.
    pub(crate) dir: &'a Path,
    pub(crate) events: JobEvents<'a>,
    pub(crate) warnings: &'a mut Vec<Diagnostic>,
}

/// What runs the plan; paths are relative to the submit directory.
#[derive(Default)]
pub(crate) struct Code {
    /// Batch scripts.
    pub(crate) scripts: Vec<Script>,
    /// What fits into the batch job.
    pub(crate) batch_size: Option<String>,
    /// Files of a run of the batch job for the output of tasks.
    pub(crate) run_files: Option<String>,
    /// Options of the executor that the batch scripts give it for its logs and the output of tasks.
    pub(crate) log_options: Vec<&'static str>,
    /// A job needs several nodes at once, so that the executor needs agents.
    pub(crate) needs_nodes: bool,
    /// Script that runs the jobs.
    pub(crate) shell: Option<String>,
}
