//! Makes the plan of a submit directory again: its request is saved there.

use std::path::{Path, PathBuf};

use crate::cli::{self, Invocation};
use crate::error::UsageError;
use crate::request::{Environment, Request};
use crate::saved_request::{SavedRequest, SavedRequestError};

/// Why the request of a plan is not known.
#[derive(Debug, thiserror::Error)]
pub enum RepeatError {
    /// There is no saved.
    #[error(transparent)]
    SavedRequest(#[from] SavedRequestError),
    /// The recorded command line is not understood.
    #[error("the recorded command line cannot be used: {0}")]
    Usage(#[from] UsageError),
    /// The recorded command line is one that does not plan.
    #[error("the recorded command line does not plan")]
    NoPlan,
}

/// Returns the request from which the plan in a submit directory was made, for the present environment.
/// Pictures are left out.
///
/// # Errors
/// A directory without a saved request, one that is not understood.
pub fn request(dir: &Path, environment: Environment) -> Result<Request, RepeatError> {
    let saved = SavedRequest::read(dir)?;
    let environment = Environment {
        working_dir: saved.directory,
        user: saved.user,
        uuid: saved.uuid,
        ..environment
    };
    let mut line = vec!["pmc-plan".to_owned()];
    line.extend(saved.arguments);
    let Invocation::Plan(mut request, _) = cli::parse(&line, environment)? else {
        return Err(RepeatError::NoPlan);
    };
    request.pictures.clear();
    let copy: Option<PathBuf> = request.workflow.file_name().map(|name| dir.join(name));
    if let Some(copy) = copy.filter(|copy| !request.workflow.is_file() && copy.is_file()) {
        request.workflow = copy;
    }
    Ok(*request)
}
