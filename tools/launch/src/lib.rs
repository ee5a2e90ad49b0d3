//! `pmc-launch`: starts the processes of a parallel program, its *ranks*, on the hosts of a task.
//!
//! The *front end* is what a person or a task starts. It starts a *proxy* on each host, by `pmc-rsh`; the
//! proxy of its own host is a child. Proxies start the ranks (`proxy`); what both say to each other is in
//! `frames`.
//!
//! ```text
//! starting ──all proxies are there──> loading ──all ranks stand before their first instruction──> running
//!     └──────────── failed: all is torn down, nothing has run ─────┘                  └──> ending ──> ended
//! ```
//!
//! A rank stops at its `execve` until all others have, too. So no rank runs before all programs are known to
//! be there, and what cannot be executed is known before anything has run.
//!
//! In a batch job, `pmc launch` hands the launch to a run of its own, the *session*, as a task over
//! several hosts; the task is this program again (`relay`).
//!
//! With `--bcast`, the front end sends programs to hosts that do not see them (`spread`).
//!
//! The command line is in `arguments`, load files in `loadfile`, which rank runs where in `world`. The
//! protocol by which MPI libraries find each other, PMI-1, is in `pmi`, without any file or process.

mod arguments;
mod error;
mod frames;
mod front;
mod inherited;
pub mod internals;
mod lines;
mod loadfile;
mod pmi;
mod proxy;
pub mod relay;
mod spread;
mod strace;
mod world;

use std::ffi::OsString;
use std::process::ExitCode;

pub use arguments::{Options, Shape, command};

/// Name of the program.
const NAME: &str = "pmc-launch";

/// First argument of a proxy. The next one is its version.
const PROXY: &str = "--proxy";

/// First argument of a task of a session. The next one is its ticket.
pub const RELAY: &str = "--relay";

/// First argument of what such a task then is. The others are those of the person.
const RELAYED: &str = "--relayed";

/// Exit code if nothing was started.
const NOT_STARTED: u8 = 4;

/// Exit code if the command line is wrong.
const USAGE: u8 = 2;

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|argument| argument == PROXY) {
        return proxy::main(arguments.get(2));
    }
    if arguments.get(1).is_some_and(|argument| argument == RELAY) {
        return relay::main(arguments.get(2));
    }
    let is_relayed = arguments.get(1).is_some_and(|argument| argument == RELAYED);
    if is_relayed {
        arguments.remove(1);
    }
    match arguments::parse(arguments) {
        // The run that the person has named has started it.
        Ok(options) if is_relayed || options.run_directory().is_none() => ExitCode::from(launch(&options)),
        Ok(_) => {
            pmc_terminal::message(format_args!("{NAME}: --run is an option of `pmc launch`"));
            ExitCode::from(USAGE)
        }
        Err(code) => code,
    }
}

/// Runs a launch. Returns its exit code.
#[must_use]
pub fn launch(options: &Options) -> u8 {
    match front::run(options) {
        Ok(code) => code,
        Err(error) => {
            pmc_terminal::message(format_args!("{NAME}: {error}"));
            if error.is_usage() { USAGE } else { NOT_STARTED }
        }
    }
}
