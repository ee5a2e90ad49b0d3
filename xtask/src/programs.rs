//! The command lines of all programs.

use clap::{Arg, ArgAction, Command, CommandFactory as _};
use pegasus_cluster::options::Args as ClusterArgs;
use pmc_calls::kickstart;

/// Returns the command line of every program that users call.
#[must_use]
pub fn all() -> Vec<Command> {
    let mut programs = vec![
        pmc::command(),
        pmc_plan::cli::command(),
        pmc_stampede::cli::command(),
        executor(),
        kickstart(),
        ClusterArgs::command(),
        pegasus_exitcode::command(),
        pegasus_lite::command(),
        pegasus_transfer::command(),
        pegasus_transfer::integrity_program::command(),
        pegasus_rc_client::command(),
        rsh(),
        pmc_launch::command(),
    ];
    for program in &mut programs {
        *program = program.clone().version(env!("CARGO_PKG_VERSION"));
    }
    programs
}

/// The executor reads its options as the original does, so they are a table, not a command of clap.
fn executor() -> Command {
    let options = pegasus_mpi_cluster::CLI_OPTIONS
        .iter()
        .map(|option| argument(option.long, option.short, option.value, option.help).long(option.long));
    Command::new("pegasus-mpi-cluster")
        .about("Run a workflow DAG as one batch job")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(options)
        .arg(
            Arg::new("DAGFILE")
                .required(true)
                .help("DAG file with tasks and edges"),
        )
}

/// The same for kickstart.
fn kickstart() -> Command {
    let options = kickstart::OPTIONS.iter().map(|option| {
        // An id is not shown; it has to be unique and static.
        let argument = argument(option.help, option.short, option.value, option.help);
        match option.long {
            Some(long) => argument.long(long),
            None => argument,
        }
    });
    Command::new("pegasus-kickstart")
        .about("Run one program and write its invocation record")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(options)
        .arg(
            Arg::new("COMMAND")
                .num_args(1..)
                .trailing_var_arg(true)
                .help("Program to run, with its arguments"),
        )
}

/// The same for what is called as ssh.
fn rsh() -> Command {
    let options = pmc_rsh::OPTIONS.iter().map(|option| {
        argument(
            option.help,
            Some(char::from(option.letter)),
            option.value,
            option.help,
        )
    });
    Command::new("pmc-rsh")
        .about(pmc_rsh::ABOUT)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(options)
        .arg(
            Arg::new("HOST")
                .required(true)
                .help("Host of the task, by its name in the batch job or in PMC_NODELIST"),
        )
        .arg(
            Arg::new("COMMAND")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true)
                .help("Command, which gets the environment and the directory of the task"),
        )
}

fn argument(id: &'static str, short: Option<char>, value: Option<&'static str>, help: &'static str) -> Arg {
    let argument = Arg::new(id).help(help);
    let argument = match short {
        Some(short) => argument.short(short),
        None => argument,
    };
    match value {
        Some(value) => argument.value_name(value),
        None => argument.action(ArgAction::SetTrue),
    }
}
