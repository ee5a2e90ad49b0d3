//! Runs published workflow descriptions without their programs and data.
//!
//! `synthetic prepare` reads a DAX file and writes what a planner needs besides: catalogs, properties
//! and input files of the right sizes. The transformation catalog maps every transformation to this
//! very program. Called by a job it stands for the real program: it reads all inputs of the job and
//! writes all outputs, each with the size the DAX gives, times a scale factor. `synthetic check`
//! compares the outputs of a run with the DAX.

mod content;
mod dax;
mod prepare;
mod table;
mod task;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Names the table of jobs and makes the program stand for a job.
pub const TABLE_VARIABLE: &str = "SYNTHETIC_JOBS";
/// The executor tells a task its name in this variable.
pub const TASK_VARIABLE: &str = "PMC_TASK";

/// Runs published workflow descriptions without their programs and data.
#[derive(Parser)]
enum Command {
    /// Write catalogs, properties and input files for a DAX file.
    Prepare {
        /// The workflow.
        #[arg(long, value_name = "FILE")]
        dax: PathBuf,
        /// Directory to write to.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// All sizes are multiplied by this; what was not empty keeps at least one byte.
        #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
        scale: f64,
        /// Jobs last this fraction of the run time that the DAX gives.
        #[arg(long, value_name = "FACTOR", default_value_t = 0.0)]
        time_scale: f64,
    },
    /// Check the outputs of a run against the table of jobs.
    Check {
        /// Directory that `prepare` wrote.
        #[arg(long, value_name = "DIR")]
        prepared: PathBuf,
        /// Directory of the outputs (default: the one that the prepared site catalog names).
        #[arg(long, value_name = "DIR")]
        outputs: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let result = match std::env::var_os(TABLE_VARIABLE) {
        Some(table) => {
            let task = std::env::var(TASK_VARIABLE).unwrap_or_default();
            task::run(&PathBuf::from(table), &task)
        }
        None => match Command::parse() {
            Command::Prepare {
                dax,
                out,
                scale,
                time_scale,
            } => prepare::prepare(
                &dax,
                &out,
                prepare::Factors {
                    size: scale,
                    time: time_scale,
                },
            ),
            Command::Check { prepared, outputs } => prepare::check(&prepared, outputs.as_deref()),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("synthetic: {error:#}");
            ExitCode::FAILURE
        }
    }
}
