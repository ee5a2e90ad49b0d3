//! Runs the harness for lost nodes.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use testutils::node_faults::{self, Fault, Settings};

use crate::crash::programs;

/// Runs rounds, prints what they find, and fails if it is anything.
///
/// # Errors
/// An option is wrong, the programs do not build, or a round has found damage.
pub fn run(options: &[&str]) -> Result<()> {
    let mut settings = Settings::new(&programs()?);
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
            "--parallel" => settings.parallel = usize::try_from(number()?)?,
            "--lease" => settings.lease = number()?,
            "--master-kills" => settings.master_kills = u32::try_from(number()?)?,
            "--only" => {
                let fault = Fault::named(value).with_context(|| format!("--only {value}: no such fault"))?;
                settings.only = Some(fault);
            }
            _ => bail!("there is no option {name}"),
        }
    }
    let report = node_faults::run(&settings);
    print!("{report}");
    if !report.findings.is_empty() {
        bail!("repeat a round with --rounds 1 --seed N");
    }
    Ok(())
}
