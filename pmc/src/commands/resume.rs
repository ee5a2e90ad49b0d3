//! `pmc resume`: resumes a run that failed or was interrupted.

use std::time::Instant;

use crate::cli;
use crate::commands::execute;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::submit::Submit;

/// Runs the tasks that the rescue file does not list. Returns the exit code.
pub fn resume(arguments: &cli::Resume) -> Result<u8, Failure> {
    let start = Instant::now();
    let named = layout::given_or_latest(
        arguments.dir.as_deref(),
        arguments.output.quiet || arguments.output.json,
    );
    let dir = layout::find_submit(&named)
        .or_code(exit::USAGE)
        .map_err(|failure| failure.hint("give the directory that `pmc run` printed at its end"))?;
    let submit = Submit::open(&dir).or_code(exit::NOT_RUN)?;
    let request = execute::Request {
        submit,
        name: named,
        execution: arguments.execution.clone(),
        output: arguments.output,
        start,
    };
    execute::execute(&request)
}
