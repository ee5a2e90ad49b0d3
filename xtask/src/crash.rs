//! Runs the crash harness.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use testutils::crash::{Kind, Settings};

use crate::workspace;

/// The rounds of a harness.
#[derive(clap::Args)]
pub(crate) struct Rounds {
    /// Number of rounds
    #[arg(long = "rounds", value_name = "N", default_value_t = 60)]
    pub(crate) count: u64,
    /// Seed of the first round; the others follow
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Start no round after this time
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
}

impl Rounds {
    /// Returns the time after which no round starts.
    pub(crate) fn limit(&self) -> Duration {
        let seconds = self.minutes.map(|minutes| minutes.saturating_mul(60));
        seconds.map_or(Duration::MAX, Duration::from_secs)
    }
}

/// Options of the harness.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    rounds: Rounds,
    /// Rounds of this kind only
    #[arg(long, value_name = "KIND")]
    only: Option<Kind>,
}

/// Runs rounds, prints what they find, and fails if it is anything.
///
/// # Errors
/// The programs do not build, or a round has found damage.
pub fn run(options: &Options) -> Result<()> {
    let settings = Settings {
        programs: programs()?,
        rounds: options.rounds.count,
        seed: options.rounds.seed,
        limit: options.rounds.limit(),
        only: options.only,
    };
    let report = testutils::crash::run(&settings, &mut |findings, kept| {
        for finding in findings {
            println!("{finding}");
        }
        if let Some(kept) = kept {
            println!("    kept: {}", kept.display());
        }
    });
    print!("{report}");
    if !report.findings.is_empty() {
        bail!("repeat a round with --rounds 1 --seed N");
    }
    Ok(())
}

/// Builds the programs for the profile of this program. Returns their directory.
///
/// # Errors
/// They do not build.
pub(crate) fn programs() -> Result<std::path::PathBuf> {
    let own = std::env::current_exe().context("this program has no path")?;
    let directory = own.parent().context("a program is in a directory")?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args([
        "build",
        "--quiet",
        "--package",
        "pmc",
        "--bins",
        "--features",
        "full",
    ]);
    if directory.ends_with("release") {
        build.arg("--release");
    }
    let built = build
        .current_dir(workspace::root())
        .status()
        .context("cannot start cargo")?;
    if !built.success() {
        bail!("the programs do not build");
    }
    Ok(directory.to_owned())
}
