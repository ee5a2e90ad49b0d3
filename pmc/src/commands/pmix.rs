//! `pmc pmix`: lets tools that are written for PMIx find a run.
//!
//! The server of the PMIx library runs in this process, not in that of the run, and does what `pmc attach`
//! does: it reads the files of the run, and asks the run over its control socket. So whatever the library
//! or a tool does, the run goes on.

#[cfg(feature = "pmix")]
mod bridge;
#[cfg(feature = "pmix")]
mod input;
#[cfg(feature = "pmix")]
mod output_format;
#[cfg(feature = "pmix")]
mod redirect;
#[cfg(feature = "pmix")]
mod requests;

use crate::cli;
use crate::failure::Failure;

/// Serves tools until the run ends. Returns the exit code.
#[cfg(feature = "pmix")]
pub fn pmix(arguments: &cli::Pmix) -> Result<u8, Failure> {
    bridge::serve(arguments)
}

/// Refuses: the library is not there.
#[cfg(not(feature = "pmix"))]
pub fn pmix(_: &cli::Pmix) -> Result<u8, Failure> {
    let error = anyhow::anyhow!("pmix: this program was built without the feature `pmix`");
    Err(Failure::new(crate::exit::NOT_SUPPORTED, error))
}

/// Serves the ranks of a launch, for a proxy of `pmc-launch`.
#[must_use]
pub fn ranks() -> std::process::ExitCode {
    #[cfg(feature = "pmix")]
    let ended = pmc_pmix::ranks::serve().map_err(|error| pmc_dag::reason(&error).to_string());
    #[cfg(not(feature = "pmix"))]
    let ended: Result<(), String> = Err("this program was built without the feature pmix".to_owned());
    match ended {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(why) => {
            pmc_terminal::message(format_args!("pmc {}: {why}", pmc_wire::ranks::COMMAND));
            std::process::ExitCode::from(crate::exit::NOT_RUN)
        }
    }
}
