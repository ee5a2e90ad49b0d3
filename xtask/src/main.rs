//! `cargo xtask CHORE`: chores of the repository.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::{chains, crash, golden, manual, node_faults, simulation, workspace};

/// Chores of the repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Write the manual pages and completions in share/, and the page of the planner's keys
    Generate,
    /// Kill programs at random moments, fill the disk, take directories away: nothing may be lost
    Crash(crash::Options),
    /// Lose nodes, kill programs and cancel jobs while batch jobs of seconds follow each other
    Chains(chains::Options),
    /// Switch off, cut off, stop and kill nodes and masters of runs with agents
    NodeFaults(node_faults::Options),
    /// Run whole runs on simulated hosts, disks and networks, each from a seed: `--help` says what there is
    #[command(disable_help_flag = true)]
    Sim {
        /// Options of the simulation
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Pack folders of recorded runs into golden cases, and the other way round
    #[command(subcommand)]
    Golden(Golden),
}

#[derive(Subcommand)]
enum Golden {
    /// Make one text file of each folder
    Pack {
        /// Folders of one case each
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
    /// Plan all cases of a kind of the planner, and keep the plans
    Plan {
        /// A directory of tests/golden
        kind: String,
        /// The planner
        planner: PathBuf,
        /// The folder to make
        folder: PathBuf,
    },
    /// Make a folder of a text file
    Unpack {
        /// The text file
        archive: PathBuf,
        /// The folder to make
        folder: PathBuf,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().chore {
        Chore::Generate => {
            let root = workspace::root();
            std::fs::write(root.join(manual::KEYS_PAGE), pmc_plan::keys::page())?;
            manual::write(&root.join("share"))
        }
        Chore::Crash(options) => crash::run(&options),
        Chore::Chains(options) => chains::run(&options),
        Chore::NodeFaults(options) => node_faults::run(&options),
        Chore::Sim { options } => simulation::run(&options),
        Chore::Golden(Golden::Pack { folders }) => {
            for folder in folders {
                println!("{}", golden::pack(&folder)?.display());
            }
            Ok(())
        }
        Chore::Golden(Golden::Plan {
            kind,
            planner,
            folder,
        }) => {
            std::fs::create_dir_all(&folder)?;
            testutils::golden::planner::plan_all(&kind, &planner.canonicalize()?, &folder.canonicalize()?);
            Ok(())
        }
        Chore::Golden(Golden::Unpack { archive, folder }) => golden::unpack(&archive, &folder),
    }
}
