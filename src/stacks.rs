//! What the processes of a task do: traced by a process of its own.
//!
//! A worker must not trace its children itself: it waits for their ends, and would take a stop for one.
//! Besides, what is read of their programs may be damaged. So this program starts itself once more, which
//! traces them, prints what it has found, and ends. As long as it lives, at most [`LIMIT`], it may hold them
//! up.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use nix::unistd::Pid;
use pmc_control::HostStacks;

use crate::exit;
use crate::host::{OWN_PROGRAM, own_path};

/// First word of the command line of such a process. Then come 1 for all threads or 0, and process groups.
const TRACE: &str = "--trace-processes";

/// Name of the program that traces.
const PROGRAM: &str = "pegasus-mpi-cluster";

/// Seconds after which it ends, whatever it does.
const LIMIT: u32 = 25;

/// Most bytes that it may print.
const MAX_PRINTED: u64 = 8 << 20;

/// The stacks, or why there are none.
pub(crate) type Traced = Result<HostStacks, String>;

/// Traces the processes of these groups in another thread. `then` gets what was found.
pub(crate) fn trace(
    groups: impl IntoIterator<Item = Pid>,
    all_threads: bool,
    then: impl FnOnce(Traced) + Send + 'static,
) {
    let groups: Vec<Pid> = groups.into_iter().collect();
    if groups.is_empty() {
        return then(Err("no process of the task is there".to_owned()));
    }
    let wait = move || then(traced(&groups, all_threads));
    // Without a thread, the tool gets no answer, and says so.
    if let Err(error) = std::thread::Builder::new().name("stacks".to_owned()).spawn(wait) {
        tracing::error!("Unable to trace a task: {}", pmc_dag::reason(&error));
    }
}

fn traced(groups: &[Pid], all_threads: bool) -> Traced {
    let failed = |error: &io::Error| format!("{PROGRAM} cannot trace the task: {}", pmc_dag::reason(error));
    let printed = run(groups, all_threads).map_err(|error| failed(&error))?;
    serde_json::from_slice(&printed).map_err(|_| {
        format!("the processes could not be traced within {LIMIT} seconds, or what traces them has failed")
    })
}

/// Starts the process and returns what it prints.
fn run(groups: &[Pid], all_threads: bool) -> io::Result<Vec<u8>> {
    let own = own_path()?;
    // Workers that are threads of `pmc` have it beside them.
    let program = match own.file_name() == Some(OsStr::new(PROGRAM)) {
        true => PathBuf::from(OWN_PROGRAM),
        false => own.with_file_name(PROGRAM),
    };
    let mut child = Command::new(program)
        .args([TRACE, if all_threads { "1" } else { "0" }])
        .args(groups.iter().map(Pid::to_string))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut printed = Vec::new();
    let read = match child.stdout.take() {
        Some(output) => output.take(MAX_PRINTED).read_to_end(&mut printed),
        None => Ok(0),
    };
    // One that prints more than that ends with its pipe.
    child.wait()?;
    read.map(|_| printed)
}

/// The whole of a process that traces others, if this command line asks for it.
pub(crate) fn main(arguments: &[OsString]) -> Option<ExitCode> {
    let arguments: Option<Vec<&str>> = arguments.iter().map(|word| word.to_str()).collect();
    let (first, rest) = arguments?
        .split_first()
        .map(|(first, rest)| (*first, rest.to_vec()))?;
    let (all_threads, groups) = rest.split_first().filter(|_| first == TRACE)?;
    let groups: Result<Vec<i32>, _> = groups.iter().map(|group| group.parse()).collect();
    let Ok(groups) = groups else {
        return Some(ExitCode::from(exit::FAILURE));
    };
    // Its end lets all go on that it has stopped.
    nix::unistd::alarm::set(LIMIT);
    let stacks = pmc_stacks::trace(&groups, *all_threads == "1");
    let printed = serde_json::to_vec(&stacks)
        .map_err(io::Error::other)
        .and_then(|text| io::stdout().write_all(&text));
    let code = printed.map_or(exit::FAILURE, |()| exit::SUCCESS);
    Some(ExitCode::from(code))
}
