//! Command line and exit code.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use pegasus_rc_client::catalog::Kept;
use pegasus_rc_client::program::{self, Args, Streams};

pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            // Nothing else to do if the message cannot be printed.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let done = program::run(
        &args,
        &mut Kept::default(),
        &mut Streams {
            stdout: &mut io::stdout().lock(),
            stderr: &mut io::stderr().lock(),
        },
    );
    if done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
