//! `pmc pegasus`: answers as programs of Pegasus do, for the scripts in `share/pegasus-shims`.
//!
//! The Python client of Pegasus (`Workflow.plan()`, `run()`, `wait()` …) calls these programs by their names.

mod config;
mod graphviz;
mod keg;
mod plan;
mod remove;
mod run;
mod start;
mod status;
mod views;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, ValueEnum as _};
use monitord_compat::run_lock::is_locked;

use crate::cli::{Pegasus, PegasusProgram};
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::submit::Submit;

/// Variable in which a script passes the directory of the scripts.
const SHIMS: &str = "PMC_SHIMS";

/// Returns the variables of this process that are text.
fn environment() -> std::collections::BTreeMap<String, String> {
    let variables = std::env::vars_os();
    let texts =
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.collect()
}

/// Runs a program of Pegasus. Returns its exit code.
pub fn pegasus(arguments: &Pegasus) -> Result<u8, Failure> {
    let (program, words) = (arguments.program, &arguments.arguments);
    match program {
        PegasusProgram::Plan => plan::plan(words),
        PegasusProgram::Run => run::run(&parse(program, words)),
        PegasusProgram::Status => status::status(&parse(program, words)),
        PegasusProgram::Analyzer => views::analyzer(&parse(program, words)),
        PegasusProgram::Statistics => views::statistics(&parse(program, words)),
        PegasusProgram::Remove => remove::remove(&parse(program, words)),
        PegasusProgram::Version => config::version(&parse(program, words)),
        PegasusProgram::Config => config::config(&parse(program, words)),
        PegasusProgram::Graphviz => graphviz::graphviz(&parse(program, words)),
        PegasusProgram::Keg => keg::keg(words),
        PegasusProgram::CondorQ => condor_q(words),
    }
}

/// Programs of this installation with the names of Pegasus' programs: the directory of the scripts is that of
/// an installation for plans whose `PEGASUS_HOME` was found by the place of `pegasus-plan`.
const OWN_PROGRAMS: [&str; 7] = [
    "pegasus-cluster",
    "pegasus-integrity",
    "pegasus-kickstart",
    "pegasus-lite",
    "pegasus-mpi-cluster",
    "pegasus-rc-client",
    "pegasus-transfer",
];

/// Returns name and text of each script that stands for a program of Pegasus.
#[must_use]
pub fn scripts() -> Vec<(&'static str, String)> {
    let script = |program: &PegasusProgram| {
        let name = program.name();
        let word = program.to_possible_value();
        let word = word.as_ref().map_or(name, |value| value.get_name());
        let text = format!(
            "#!/bin/sh\n\
             # Answers as {name} does, with the pmc of this installation, else that on PATH.\n\
             {SHIMS}=${{0%/*}}\n\
             export {SHIMS}\n\
             pmc=${SHIMS}/../../../bin/pmc\n\
             [ -x \"$pmc\" ] || pmc=pmc\n\
             exec \"$pmc\" pegasus {word} \"$@\"\n"
        );
        (name, text)
    };
    let own = |name: &&'static str| {
        // A search on PATH would find the script itself.
        let text = format!(
            "#!/bin/sh\n\
             # Runs {name} of this installation, else the one beside the pmc on PATH.\n\
             program=${{0%/*}}/../../../bin/{name}\n\
             [ -x \"$program\" ] || program=$(dirname \"$(command -v pmc)\")/{name}\n\
             exec \"$program\" \"$@\"\n"
        );
        (*name, text)
    };
    let scripts = PegasusProgram::value_variants().iter().map(script);
    scripts.chain(OWN_PROGRAMS.iter().map(own)).collect()
}

/// Parses the command line of a program. Prints help or an error and exits, as the program would.
fn parse<T: Parser>(program: PegasusProgram, words: &[String]) -> T {
    T::parse_from(std::iter::once(program.name()).chain(words.iter().map(String::as_str)))
}

/// Opens the plan in a submit directory.
fn open(dir: &Path) -> Result<Submit, Failure> {
    let dir = layout::find_submit(dir).or_code(exit::TASKS_FAILED)?;
    Submit::open(&dir).or_code(exit::TASKS_FAILED)
}

/// Waits until the executor of a run that has written its last line has ended, at most some seconds. The
/// Python client goes on as soon as it has read that line.
fn wait_for_end(dag: &Path) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while is_locked(dag) == Some(true) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Replaces this process by another program.
fn replace_by(program: &Path, words: &[String]) -> Failure {
    let error = Command::new(program).args(words).exec();
    let error = anyhow::Error::new(error).context(format!("cannot run {}", program.display()));
    Failure::new(exit::NOT_RUN, error)
}

/// Returns a program of this installation.
fn own_program(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .context("cannot find the directory of pmc")
        .or_code(exit::NOT_RUN)?;
    Ok(own.with_file_name(name))
}

/// Runs HTCondor's `condor_q` if there is one. Without HTCondor the queue is empty: prints nothing.
fn condor_q(words: &[String]) -> Result<u8, Failure> {
    let canonical = |dir: PathBuf| dir.canonicalize().ok();
    let own = std::env::var_os(SHIMS).and_then(|dir| canonical(dir.into()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let real = std::env::split_paths(&path)
        .filter_map(canonical)
        .filter(|dir| Some(dir) != own.as_ref())
        .map(|dir| dir.join(PegasusProgram::CondorQ.name()))
        .find(|program| program.is_file());
    match real {
        Some(real) => Err(replace_by(&real, words)),
        None => Ok(exit::SUCCESS),
    }
}
