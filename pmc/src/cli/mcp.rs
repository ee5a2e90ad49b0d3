//! Options of `pmc mcp`.

use clap::Args;

/// Exit codes, and what the tools are.
const AFTER: &str = "\
Exit codes:
  0    the program at the other end has closed standard input
  4    nobody has spoken the protocol on standard input
  69   this program was built without the feature mcp

Tools that only look: status, why, analyzer, log, simulate. With --allow-control also kill and drain. Each runs
the command of its name in the working directory, as the user of this process.";

/// `pmc mcp`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct Mcp {
    /// Offer tools that change the course of runs, too: kill and drain
    #[arg(long)]
    pub allow_control: bool,
}
