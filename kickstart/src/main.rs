//! `pegasus-kickstart`: runs one program and prints its invocation record. Under the name
//! `pegasus-kickstart-server` it does so again and again for an executor.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use nix::sys::stat::{Mode, umask};

use pegasus_kickstart::context::{Context, Environment, OwnUsage};
use pegasus_kickstart::interrupts::ProcessSignals;
use pegasus_kickstart::invoke::{self, exit};
use pegasus_kickstart::machine::Host;
use pegasus_kickstart::spares::Spares;
use pegasus_kickstart::{program, serve};

fn main() -> ExitCode {
    let began = (SystemTime::now(), Instant::now());
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let serves = Path::new(&name).file_name() == Some(OsStr::new(serve::wire::SERVER_NAME));
    let executable = std::env::current_exe().unwrap_or_else(|_| name.into());
    let done = ProcessSignals::install().and_then(|signals| {
        if serves {
            serve::run(inherited(executable), signals).map(|()| 0)
        } else {
            Ok(run(began, words, executable, signals))
        }
    });
    match done {
        Ok(code) => code.into(),
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
    let inherited = inherited(executable);
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
        transfers: None,
        own_usage: OwnUsage::Process,
        own_group: false,
    };
    let host = |machine| Cow::Owned(Host::gather(machine));
    program::run(words, context, host, &mut signals).code
}

fn inherited(program: PathBuf) -> serve::Inherited {
    serve::Inherited {
        environment: std::env::vars_os().collect::<Environment>(),
        umask: current_umask(),
        program,
    }
}

/// The only way to ask for the mask is to change it; no other thread runs yet.
fn current_umask() -> u32 {
    let mask = umask(Mode::empty());
    umask(mask);
    mask.bits()
}
