//! Runs the harness for lost nodes.

use std::path::{PathBuf, absolute};

use anyhow::{Result, bail};
use testutils::node_faults::{self, Fault, Settings};

use crate::crash::{Rounds, programs};

/// Options of the harness.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    rounds: Rounds,
    /// Rounds at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    parallel: usize,
    /// Lease of agents in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    lease: u64,
    /// The first fault of each round is of this kind
    #[arg(long, value_name = "FAULT")]
    only: Option<Fault>,
    /// Instead of other faults, kill the master this many times in each round, in a run of long tasks
    #[arg(long, value_name = "N", default_value_t = 0)]
    master_kills: u32,
    /// Pegasus' monitoring, `pegasus-monitord`, has to accept the logs of each round
    #[arg(long, value_name = "PROGRAM")]
    monitord: Option<PathBuf>,
}

/// Runs rounds, prints what they find, and fails if it is anything.
///
/// # Errors
/// The programs do not build, or a round has found damage.
pub fn run(options: &Options) -> Result<()> {
    let settings = Settings {
        rounds: options.rounds.count,
        seed: options.rounds.seed,
        limit: options.rounds.limit(),
        parallel: options.parallel,
        lease: options.lease,
        only: options.only,
        master_kills: options.master_kills,
        monitord: options.monitord.as_deref().map(absolute).transpose()?,
        ..Settings::new(&programs()?)
    };
    let report = node_faults::run(&settings);
    print!("{report}");
    if !report.findings.is_empty() {
        bail!("repeat a round with --rounds 1 --seed N");
    }
    Ok(())
}
