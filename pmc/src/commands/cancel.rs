//! `pmc cancel`: ends tasks of a run that takes some.

use anyhow::anyhow;
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
    let (tasks, dir) = layout::tasks_and_run(arguments.words.clone());
    if tasks.is_empty() {
        let error = anyhow!("no task is named: each is an ID");
        return Err(Failure::new(exit::USAGE, error));
    }
    let dir = layout::given_or_latest(dir.as_deref(), true);
    let run = layout::find_run(&dir)?;
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, false);
    }
    for part in tasks.chunks(MAX_ASKED) {
        let tasks = part.to_vec();
        let code = show(&dir, &Request::Cancel { tasks }, false)?;
        if code != exit::SUCCESS {
            return Ok(code);
        }
    }
    Ok(exit::SUCCESS)
}
