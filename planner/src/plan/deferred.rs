//! Planning of a nested sub-workflow, during the run of the workflow around it. A plan that is made of the
//! same inputs is kept, so that a run that is started again goes on where it was.

use std::fs;
use std::path::{Path, PathBuf};

use monitord_compat::braindump_reader::Braindump;
use sha2::{Digest as _, Sha256};

use super::build::plan_of;
use super::inputs::Inputs;
use super::{Planned, directories, files};
use crate::error::{Cause, PlanError};
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
            && facts().is_some_and(|facts| facts.made_of == made_of(request, &inputs))
            && is_whole(&dag)
        {
            return Ok(Prepared::Kept(link));
        }
    }
    plan_of(request, inputs).map(|planned| Prepared::Planned(Box::new(planned)))
}

/// Returns a hash of everything that the plan of a sub-workflow is made of.
pub(super) fn made_of(request: &Request, inputs: &Inputs) -> String {
    let mut hasher = Sha256::new();
    let mut add = |part: &[u8]| {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    add(env!("CARGO_PKG_VERSION").as_bytes());
    for word in request.line.iter().filter(|word| *word != "--force-replan") {
        add(word.as_bytes());
    }
    for (key, value) in inputs.properties.iter() {
        add(key.as_bytes());
        add(value.as_bytes());
    }
    let read = files::read_files(request, inputs);
    for path in read.iter().chain(&request.output_map).chain(&request.reuse_dirs) {
        // The working directory may be a new one each time, into which these files are fetched.
        let name = path
            .strip_prefix(&request.environment.working_dir)
            .unwrap_or(path);
        add(name.as_os_str().as_encoded_bytes());
        match fs::read(path) {
            Ok(content) => add(&content),
            // A directory: what is in it, and since when.
            Err(_) => add(names_in(path).as_bytes()),
        }
    }
    let digest = hasher.finalize();
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the names in a directory, with the times of their last changes; empty if it cannot be read.
fn names_in(path: &Path) -> String {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let changed = entry.metadata().and_then(|data| data.modified()).ok();
            format!("{:?} {changed:?}\n", entry.file_name())
        })
        .collect();
    names.sort_unstable();
    names.concat()
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
            return Err(Cause::SubWorkflow.error(format!(
                "{} is the workflow of the run in {}, which plans it again: there would be no end",
                request.workflow.display(),
                directory.display()
            )));
        }
    }
    if depth > MAX_DEPTH {
        return Err(Cause::SubWorkflow.error(format!(
            "there are more than {MAX_DEPTH} workflows within each other: the last one is {}",
            request.workflow.display()
        )));
    }
    Ok(())
}
