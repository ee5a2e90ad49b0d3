//! Runs the crash harness.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use testutils::crash::{Kind, Settings};

use crate::workspace;

/// Runs rounds, prints what they find, and fails if it is anything.
///
/// # Errors
/// An option is wrong, the programs do not build, or a round has found damage.
pub fn run(options: &[&str]) -> Result<()> {
    let mut settings = Settings {
        programs: programs()?,
        rounds: 60,
        seed: 1,
        limit: Duration::MAX,
        only: None,
    };
    for pair in options.chunks(2) {
        let &[name, value] = pair else {
            bail!("{} needs a value", pair[0]);
        };
        let number = || -> Result<u64> {
            value
                .parse()
                .with_context(|| format!("{name} {value}: not a number"))
        };
        match name {
            "--rounds" => settings.rounds = number()?,
            "--seed" => settings.seed = number()?,
            "--minutes" => settings.limit = Duration::from_secs(number()?.saturating_mul(60)),
            "--only" => {
                let kind = Kind::named(value).with_context(|| format!("--only {value}: no such kind"))?;
                settings.only = Some(kind);
            }
            _ => bail!("there is no option {name}"),
        }
    }
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
    build.args(["build", "--quiet", "--package", "pmc", "--bins"]);
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
