//! `pmc cancel`: ends tasks of a run that takes some.

use pmc_control::Request;

use super::control::show;
use super::wait::MAX_ASKED;
use crate::cli;
use crate::exit;
use crate::failure::Failure;
use crate::layout;
use crate::reach;

/// Cancels tasks. Returns the exit code.
pub fn cancel(arguments: &cli::Cancel) -> Result<u8, Failure> {
    let run = layout::find_run(&arguments.dir)?;
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, false);
    }
    for part in arguments.tasks.chunks(MAX_ASKED) {
        let tasks = part.to_vec();
        let code = show(&arguments.dir, &Request::Cancel { tasks }, false)?;
        if code != exit::SUCCESS {
            return Ok(code);
        }
    }
    Ok(exit::SUCCESS)
}
