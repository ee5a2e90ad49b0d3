//! Planning of a nested sub-workflow, during the run of the workflow around it. A plan that is made of the
//! same inputs is kept, so that a run that is started again goes on where it was.

use std::path::{Path, PathBuf};

use monitord_compat::braindump_reader::Braindump;

use super::build::plan_of;
use super::inputs::Inputs;
use super::{Planned, directories, files};
use crate::error::PlanError;
use crate::fingerprint::{Facts, is_whole};
use crate::refine::subworkflow::MAX_DEPTH;
use crate::request::Request;

/// Maximum size in bytes of a braindump.
const MAX_BRAINDUMP: u64 = 1 << 20;

/// The plan of a nested sub-workflow.
#[derive(Clone, Debug)]
pub enum Prepared {
    /// It is new.
    Planned(Box<Planned>),
    /// The plan in this directory is kept.
    Kept(PathBuf),
}

/// Plans a nested sub-workflow, unless there is a plan of the same inputs.
///
/// # Errors
/// Everything that prevents a plan, a workflow inside itself, too many workflows within each other.
pub fn prepare(request: &Request) -> Result<Prepared, PlanError> {
    let inputs = Inputs::read(request)?;
    if let Some(link) = directories::link(request, &inputs) {
        check_depth(request, &link)?;
        let base = directories::base(request, &inputs.workflow);
        let dag = link.join(format!("{base}.dag"));
        let facts = || Facts::read(&dag);
        if !request.force_replan
            && facts().is_some_and(|facts| facts.made_of == files::made_of(request, &inputs))
            && is_whole(&dag)
        {
            return Ok(Prepared::Kept(link));
        }
    }
    plan_of(request, inputs).map(|planned| Prepared::Planned(Box::new(planned)))
}

/// Refuses a workflow that is around itself, and too many workflows around it. Their plans are in the
/// directories above.
fn check_depth(request: &Request, link: &Path) -> Result<(), PlanError> {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let own = canonical(&request.workflow);
    let mut depth = 0;
    for directory in link.ancestors().skip(1) {
        let Ok(text) = pmc_files::read_to_string(&directory.join("braindump.yml"), MAX_BRAINDUMP) else {
            continue;
        };
        let Ok(braindump) = Braindump::read(&text) else {
            continue;
        };
        depth += 1;
        if braindump
            .get("dax")
            .is_some_and(|path| canonical(Path::new(path)) == own)
        {
            return Err(PlanError::refinement(format!(
                "{} is the workflow of the run in {}, which plans it again: there would be no end",
                request.workflow.display(),
                directory.display()
            )));
        }
    }
    if depth > MAX_DEPTH {
        return Err(PlanError::refinement(format!(
            "there are more than {MAX_DEPTH} workflows within each other: the last one is {}",
            request.workflow.display()
        )));
    }
    Ok(())
}
