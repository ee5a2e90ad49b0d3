//! `pmc-monitord`: a stand-in for `pegasus-monitord` for runs of `pegasus-mpi-cluster`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::cli::Cli;
use crate::client::ClientSettings;
use crate::error::Notice;
use crate::session::{self, End};
use clap::Parser as _;
use pmc_terminal::message;

/// Name in messages.
const NAME: &str = "pmc-monitord";

/// Exit code if another loader is at work; that of `pegasus-monitord`.
const EXIT_HELD: u8 = 43;

/// Runs the program: arguments, environment and exit status are those of the process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            return pmc_terminal::finish_early(NAME, error.print(), error.use_stderr(), 1);
        }
    };
    pmc_terminal::finish(NAME, run(&cli))
}

fn run(cli: &Cli) -> u8 {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let client = ClientSettings::new(home.as_deref(), |name| std::env::var_os(name));
    let options = match cli.options(home, client) {
        Ok(options) => options,
        Err(error) => {
            message(format_args!("{NAME}: --dest {error}"));
            return 1;
        }
    };
    if cli.group {
        // This fails if the process leads a group or session already.
        let _ = nix::unistd::setpgid(nix::unistd::Pid::from_raw(0), nix::unistd::Pid::from_raw(0));
    }
    let mut notice = |notice: Notice| message(format_args!("{NAME}: {notice}"));
    let loaded = if cli.replay {
        session::replay(&options, &mut notice)
    } else {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The second signal ends the program at once.
            let second = signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop));
            if let Err(error) = second.and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop))) {
                message(format_args!("{NAME}: cannot handle signal {signal}: {error}"));
            }
        }
        // A loader in the background outlives the terminal.
        let unused = Arc::new(AtomicBool::new(false));
        let _ = signal_hook::flag::register(signal_hook::consts::SIGHUP, unused);
        session::follow(&options, &stop, &mut notice)
    };
    match loaded {
        Ok(summary) => {
            if cli.verbose > 0 {
                let seconds = summary.elapsed.as_secs_f64();
                message(format_args!(
                    "{NAME}: {} jobs loaded in {seconds:.3} s",
                    summary.jobs
                ));
            }
            u8::from(summary.end == End::Interrupted)
        }
        Err(error) => {
            message(format_args!("{NAME}: {error}"));
            if error.is_held() { EXIT_HELD } else { 1 }
        }
    }
}
