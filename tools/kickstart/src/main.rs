//! `pegasus-kickstart`: runs one program and prints its invocation record.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use pegasus_kickstart::context::{Context, Inherited, OwnUsage};
use pegasus_kickstart::interrupts::ProcessSignals;
use pegasus_kickstart::invoke::{self, exit};
use pegasus_kickstart::machine::Host;
use pegasus_kickstart::program;
use pegasus_kickstart::spares::Spares;

fn main() -> ExitCode {
    let began = (SystemTime::now(), Instant::now());
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let executable = std::env::current_exe().unwrap_or_else(|_| name.into());
    match ProcessSignals::install() {
        Ok(signals) => run(began, words, executable, signals).into(),
        Err(error) => {
            program::notice(io::stderr().as_fd(), &format!("ERROR: cannot begin: {error}"));
            exit::INITIALISATION.into()
        }
    }
}

fn run(
    began: (SystemTime, Instant),
    words: impl IntoIterator<Item = OsString>,
    executable: PathBuf,
    mut signals: ProcessSignals,
) -> u8 {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let inherited = Inherited::of_process(executable);
    let context = Context {
        began,
        environment: inherited.environment,
        directory: invoke::current_directory(),
        entered: true,
        umask: inherited.umask,
        program: inherited.program,
        stdin: stdin.as_fd(),
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        keep: Vec::new(),
        spares: &Spares::default(),
        inside: None,
        own_usage: OwnUsage::Process,
        own_group: false,
    };
    let host = |machine| Cow::Owned(Host::gather(machine));
    program::run(words, context, host, &mut signals).code
}
