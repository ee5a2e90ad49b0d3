//! Facts about the inputs of a plan, for programs that choose its directories.

use crate::error::{InputErrors, PlanError};
use crate::model::Origin;
use crate::properties::Properties;
use crate::request::Request;

use super::inputs::{Inputs, property_sources};

/// Facts that decide where the files of a run go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Name of the workflow.
    pub label: String,
    /// A catalog or the property `pegasus.dir.exec` gives the scratch directory of the site `local`.
    pub has_scratch: bool,
    /// A catalog describes the site `local`, but not its scratch directory.
    pub lacks_scratch: bool,
    /// A catalog gives the storage directory of the site `local`.
    pub has_storage: bool,
    /// The jobs are commands, whose output goes into packs.
    pub are_commands: bool,
}

/// Reads the inputs of a request as [`plan`](super::plan) does.
///
/// # Errors
/// All problems of the inputs.
pub fn facts(request: &Request) -> Result<Facts, PlanError> {
    let inputs = Inputs::read(request)?;
    Ok(Facts {
        has_scratch: inputs.describes_local || inputs.properties.get("pegasus.dir.exec").is_some(),
        lacks_scratch: inputs.describes_local && inputs.made.scratch,
        has_storage: !inputs.made.storage,
        are_commands: inputs.workflow.origin == Origin::Commands,
        label: inputs.workflow.label,
    })
}

/// Reads the properties of a request.
///
/// # Errors
/// All problems of the properties.
pub fn properties(request: &Request) -> Result<Properties, InputErrors> {
    Properties::load(&property_sources(request))
}
