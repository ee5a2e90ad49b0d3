//! `cargo xtask generate`: writes manual pages and completions below `share/`.

use anyhow::{Result, bail};
use xtask::{manual, workspace};

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("generate") => manual::write(&workspace::root().join("share")),
        _ => bail!("usage: cargo xtask generate"),
    }
}
