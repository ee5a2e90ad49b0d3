//! Makes the plan of a submit directory again: the request is in its recipe.

use std::path::{Path, PathBuf};

use crate::cli::{self, Invocation};
use crate::error::UsageError;
use crate::recipe::{Recipe, RecipeError};
use crate::request::{Environment, Request};

/// Why the request of a plan is not known.
#[derive(Debug, thiserror::Error)]
pub enum AgainError {
    /// There is no recipe.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
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
/// A directory without recipe, a recipe that is not understood.
pub fn request(dir: &Path, environment: Environment) -> Result<Request, AgainError> {
    let recipe = Recipe::read(dir)?;
    let environment = Environment {
        working_dir: recipe.directory,
        user: recipe.user,
        uuid: recipe.uuid,
        ..environment
    };
    let mut line = vec!["pmc-plan".to_owned()];
    line.extend(recipe.arguments);
    let Invocation::Plan(mut request, _) = cli::parse(&line, environment)? else {
        return Err(AgainError::NoPlan);
    };
    request.pictures.clear();
    let copy: Option<PathBuf> = request.workflow.file_name().map(|name| dir.join(name));
    if let Some(copy) = copy.filter(|copy| !request.workflow.is_file() && copy.is_file()) {
        request.workflow = copy;
    }
    Ok(*request)
}
