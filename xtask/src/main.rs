//! `cargo xtask generate`: writes manual pages and completions below `share/`, and the page about the
//! keys of the planner.

use anyhow::{Result, bail};
use xtask::{manual, workspace};

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("generate") => {
            let root = workspace::root();
            std::fs::write(root.join(manual::KEYS_PAGE), pmc_plan::keys::page())?;
            manual::write(&root.join("share"))
        }
        _ => bail!("usage: cargo xtask generate"),
    }
}
