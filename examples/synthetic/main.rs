//! Runs published workflow descriptions without their programs and data.
//!
//! `synthetic prepare` reads a DAX file and writes the other inputs of a planner: catalogs, properties
//! and input files of the right sizes. The transformation catalog maps every transformation to this
//! program. As a job, it reads all inputs of the job and writes all outputs with the sizes in the DAX,
//! times a scale factor. `synthetic check` compares the outputs of a run with the DAX.

mod content;
mod dax;
mod prepare;
mod table;
mod task;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Variable with the path of the table of jobs. If set, the program runs as a job.
pub const TABLE_VARIABLE: &str = "SYNTHETIC_JOBS";
/// Variable with the name of the task, set by the executor.
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
        /// Factor for all sizes; non-empty files keep at least one byte
        #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
        scale: f64,
        /// Factor for the run times in the DAX
        #[arg(long, value_name = "FACTOR", default_value_t = 0.0)]
        time_scale: f64,
    },
    /// Check the outputs of a run against the table of jobs.
    Check {
        /// Directory that `prepare` wrote.
        #[arg(long, value_name = "DIR")]
        prepared: PathBuf,
        /// Directory of the outputs (default: that of the prepared site catalog)
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
