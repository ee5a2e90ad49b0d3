//! `cargo xtask CHORE`: chores of the repository.

use std::path::Path;

use anyhow::{Result, bail};
use xtask::{crash, golden, manual, node_faults, workspace};

const USAGE: &str = "usage: cargo xtask generate
       cargo xtask crash [--rounds N] [--seed N] [--minutes N] [--only KIND]
       cargo xtask node-faults [--rounds N] [--seed N] [--minutes N] [--parallel N] [--lease SECONDS]
                               [--only FAULT] [--master-kills N]
       cargo xtask golden pack FOLDER...
       cargo xtask golden unpack ARCHIVE FOLDER";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["generate"] => {
            let root = workspace::root();
            std::fs::write(root.join(manual::KEYS_PAGE), pmc_plan::keys::page())?;
            manual::write(&root.join("share"))
        }
        ["crash", options @ ..] => crash::run(options),
        ["node-faults", options @ ..] => node_faults::run(options),
        ["golden", "pack", folders @ ..] if !folders.is_empty() => {
            for folder in folders {
                println!("{}", golden::pack(Path::new(folder))?.display());
            }
            Ok(())
        }
        ["golden", "unpack", archive, folder] => golden::unpack(Path::new(archive), Path::new(folder)),
        _ => bail!("{USAGE}"),
    }
}
