//! Reports about a plan: summary, explanations of jobs, pictures.

pub(crate) mod explain;
pub(crate) mod picture;
pub mod summary;

use std::path::Path;

use crate::error::InputErrors;
use crate::expand::ExpandEnv;
use crate::input::{ReadOptions, read_workflow};
use crate::request::{Format, Subject};

/// Draws the workflow in a file, which needs no catalogs.
///
/// # Errors
/// All problems of the file.
pub fn draw_workflow(path: &Path, variables: &ExpandEnv, format: Format) -> Result<String, InputErrors> {
    let workflow = read_workflow(path, variables, &ReadOptions::default())?.workflow;
    Ok(picture::draw(
        &workflow,
        &crate::exec::Exec::default(),
        Subject::Abstract,
        format,
    ))
}
