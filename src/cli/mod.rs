//! The command line: reading it ([`RawArgs`]) and turning it into [`Options`](crate::options::Options).
//!
//! The grammar is that of pegasus-mpi-cluster 5.1. Every option is one word, and its value is the next word.
//! Options may stand before or after the DAG file. The last one wins.

mod agents;
mod apply;
mod args;
mod convert;
mod help;
mod limits;
mod number;
mod options;
mod values;
mod version;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use pmc_batch::BatchJob;

use crate::options::SERVER_VARIABLES;

pub use args::{Agents, EarlyExit, RawArgs};
pub use options::{OPTIONS, OptionSpec, Section};
pub use version::version;

/// Reads the command line. `words` are the arguments without the program; `environment` looks up a variable.
///
/// # Errors
/// There is nothing to run: the words ask for help or version, or something is wrong.
pub fn parse(
    program: &OsStr,
    words: &[OsString],
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<RawArgs, EarlyExit> {
    let help = |code| EarlyExit {
        text: help::help(program),
        code,
        everywhere: true,
    };
    if words.is_empty() {
        return Err(help(1));
    }
    if words.iter().any(|word| word == "-h" || word == "--help") {
        return Err(help(0));
    }
    let mut args = RawArgs::default();
    read_environment(&mut args, &environment)?;
    if words.iter().any(|word| word == "--agent") {
        // What the command line of the master says about hosts counts before the environment of an agent.
        args.host_environment = [
            std::mem::take(&mut args.host_memory),
            std::mem::take(&mut args.host_cpus),
            std::mem::take(&mut args.host_gpus),
        ];
    }
    args.batch_job = BatchJob::of_environment(|name| environment(name)?.into_string().ok());
    args.endpoint_value = environment("PMC_ENDPOINT");
    let file = read_words(&mut args, words)?;
    if args.agent {
        args.endpoint = file;
    } else {
        args.dag = file.ok_or_else(|| help(1))?;
    }
    Ok(args)
}

fn read_environment(
    args: &mut RawArgs,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<(), EarlyExit> {
    let value = |name| environment(name).map(OsString::into_vec);
    let unsigned = |name| match value(name) {
        Some(text) => number::unsigned(&text).ok_or_else(|| EarlyExit::invalid_value(name)),
        None => Ok(0),
    };
    args.host_script = environment("PMC_HOST_SCRIPT").and_then(values::path);
    args.host_name = match environment("PMC_HOST_NAME") {
        Some(name) => values::host_name(&name, "PMC_HOST_NAME")?,
        None => None,
    };
    args.drain_file = environment("PMC_DRAIN_FILE").and_then(values::path);
    args.home = environment("HOME").map(PathBuf::from);
    args.user = environment("USER").and_then(|name| name.into_string().ok());
    args.server_variables = SERVER_VARIABLES
        .into_iter()
        .filter_map(|name| Some((name, environment(name)?)))
        .collect();
    args.host_memory = unsigned("PMC_HOST_MEMORY")?;
    args.host_cpus = unsigned("PMC_HOST_CPUS")?;
    args.host_gpus = unsigned("PMC_HOST_GPUS")?;
    if let Some(text) = value("PMC_MAX_WALL_TIME") {
        limits::set_wall_time(args, OsStr::from_bytes(&text), "PMC_MAX_WALL_TIME")?;
    }
    args.exec_kickstart = match value("PMC_KICKSTART").as_deref() {
        Some(b"exec") => true,
        Some(b"serve") | None => false,
        Some(_) => {
            let message = "Invalid value for PMC_KICKSTART: give exec or serve";
            return Err(EarlyExit::refuse(message));
        }
    };
    Ok(())
}

/// Returns the DAG file, if the words name one.
fn read_words(args: &mut RawArgs, words: &[OsString]) -> Result<Option<PathBuf>, EarlyExit> {
    let mut dags = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if let Some(option) = options::find(word) {
            apply::apply(option, args, &mut words)?;
        } else if word.as_bytes().starts_with(b"-") {
            let message = format!("Unrecognized argument: {}", word.display());
            return Err(EarlyExit::refuse(&message));
        } else {
            dags.push(word);
        }
    }
    match dags.as_slice() {
        [] => Ok(None),
        [dag] => Ok(Some(PathBuf::from(dag))),
        // Checked last: a wrong option gives a better message.
        _ => Err(EarlyExit::refuse("Invalid argument\n")),
    }
}

#[cfg(test)]
mod tests;
