//! Options about packed output.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// When the output of tasks goes into packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PackedOutput {
    /// If the DAG has more than 10,000 tasks and the plan asks for no notifications
    Auto,
    /// Always
    Always,
    /// Never; a run that has packs already goes on in packs
    Never,
}

/// Exit codes of `pmc unpack`.
const EXIT: &str = "\
Exit codes:
  0    all attempts have files
  2    the command line is wrong, or RUN is not the directory of a run
  4    a pack is damaged, or a file cannot be written; the other attempts have files";

/// `pmc unpack`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Unpack {
    /// Directory of the run [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
}
