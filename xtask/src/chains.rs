//! Runs the chain harness.

use anyhow::{Context as _, Result, bail};
use testutils::chains::{self, Settings};

use crate::crash::{Rounds, programs};

/// Options of the harness.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    rounds: Rounds,
    /// Scenarios at a time
    #[arg(long, value_name = "N", default_value_t = 4)]
    at_once: usize,
}

/// Runs scenarios, prints each, and fails if one has gone wrong.
///
/// # Errors
/// The programs do not build, or a scenario has gone wrong.
pub fn run(options: &Options) -> Result<()> {
    let settings = Settings {
        programs: programs()?,
        rounds: options.rounds.count,
        seed: options.rounds.seed,
        limit: options.rounds.limit(),
        at_once: options.at_once,
    };
    let report = chains::run(&settings, &|line| println!("{line}")).context("the harness cannot run")?;
    print!("{report}");
    if !report.findings.is_empty() {
        bail!("repeat a scenario with --rounds 1 --seed N");
    }
    Ok(())
}
