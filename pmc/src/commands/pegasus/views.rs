//! `pegasus-analyzer` and `pegasus-statistics`: the views of `pmc` under the options of Pegasus.

use std::path::Path;

use super::{open, wait_for_end};
use crate::cli::{self, Section, pegasus};
use crate::commands;
use crate::exit;
use crate::failure::Failure;
use pmc_terminal::print;

/// Exit code of `pegasus-analyzer` for a workflow that failed.
const WORKFLOW_FAILED: u8 = 2;
/// Directory for the files of `pegasus-statistics`, in the submit directory.
const STATISTICS: &str = "statistics";

/// Explains why a workflow failed. Returns the exit code.
pub fn analyzer(options: &pegasus::Analyzer) -> Result<u8, Failure> {
    let dir = options.input_dir.as_ref().or(options.submit_dir.as_ref());
    let submit = open(dir.map_or(Path::new("."), |dir| dir))?;
    wait_for_end(&submit.dag);
    let code = commands::analyzer::analyzer(&cli::Analyzer {
        dir: Some(submit.dir),
        json: options.json,
        quiet: false,
        causes: if options.summary { 0 } else { usize::MAX },
    })?;
    Ok(match code {
        exit::TASKS_FAILED => WORKFLOW_FAILED,
        other => other,
    })
}

/// Prints statistics and writes them to files. Returns the exit code.
pub fn statistics(options: &pegasus::Statistics) -> Result<u8, Failure> {
    let submit = open(&options.dir)?;
    wait_for_end(&submit.dag);
    let output = match &options.output {
        Some(output) => output.clone(),
        None => submit.dir.join(STATISTICS),
    };
    let sections: Vec<Section> = options.statistics_level.iter().map(section).collect();
    let mut arguments = cli::Statistics {
        dir: Some(submit.dir),
        sections,
        time: options.time_filter,
        csv: false,
        json: false,
        output: None,
    };
    commands::statistics::statistics(&arguments)?;
    arguments.csv = options.file == pegasus::FileType::Csv;
    arguments.output = Some(output.clone());
    commands::statistics::statistics(&arguments)?;
    print(&format!("\nFiles: {}\n", output.display()));
    Ok(exit::SUCCESS)
}

fn section(level: &pegasus::Level) -> Section {
    match level {
        pegasus::Level::All => Section::All,
        pegasus::Level::Summary => Section::Summary,
        pegasus::Level::WfStats => Section::Workflow,
        pegasus::Level::JbStats => Section::Jobs,
        pegasus::Level::TfStats => Section::Breakdown,
        pegasus::Level::TiStats => Section::Time,
        pegasus::Level::IntStats => Section::Integrity,
    }
}
