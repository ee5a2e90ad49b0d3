//! `pegasus-cluster`: runs a list of commands as one job.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use pegasus_cluster::children::Children;
use pegasus_cluster::options::{self, Request};
use pegasus_cluster::{exit, run};

const USAGE: &str = "\
Usage: pegasus-cluster [-d] [-e | -f] [-S CODE]... [-s FILE] [-R FILE] [-n N] [LIST]

Runs the commands in LIST, one a line, or those on standard input.

 -e        exit with 0, whatever happens to the commands
 -f        start no further command after one that failed
           (default: run all, exit with 5 if one failed)
 -S CODE   take this exit code of a command for a success, too; may be repeated
 -s FILE   append records of commands and run to FILE instead of printing them
 -R FILE   append a line to FILE whenever a command begins or ends
           (default: SEQEXEC_PROGRESS_REPORT)
 -n N      run N commands at a time, or auto: as many as there are CPUs
           (default: SEQEXEC_CPUS, else 1)
 -d        print what is done
 -h        print this text

SEQEXEC_SETUP and SEQEXEC_CLEANUP name commands to run before and after.

Exit status: 0 success, 1 wrong usage, 2 FILE of -s cannot be opened, 3 LIST cannot be read,
4 output cannot be written, 5 a command failed or a signal ended the run.
";

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_else(|| "pegasus-cluster".into());
    let options = match options::parse(words, |name| std::env::var_os(name)) {
        Ok(Request::Run(options)) => options,
        Ok(Request::Help) => {
            // A reader that is gone does not want the help.
            let _ = io::stdout().write_all(USAGE.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            warn(&error.to_string());
            let _ = io::stderr().write_all(USAGE.as_bytes());
            return exit::USAGE.into();
        }
    };
    for warning in &options.warnings {
        warn(warning);
    }
    let children = Arc::new(Children::default());
    if let Err(error) = children.stop_at_signals() {
        warn(&format!("cannot handle signals: {error}"));
        return exit::SYSTEM.into();
    }
    match run(&options, &program, &children, &warn) {
        Ok(code) => code.into(),
        Err(error) => {
            warn(&error.to_string());
            error.exit_code().into()
        }
    }
}

/// Prints to stderr; there is nobody to tell if that fails.
fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "pegasus-cluster: {text}");
}
