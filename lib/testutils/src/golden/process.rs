//! Processes with a time limit.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, setsid};

/// The end of a process.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code, or the negative number of a signal; `None` after the time limit.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Names of the processes that it left behind, sorted, if they were asked for.
    pub leftovers: Vec<String>,
    /// The wall time.
    pub elapsed: Duration,
}

/// Runs a command in a session of its own, with the usual umask and limit on open files. What is left of the
/// session after the command ended is killed.
pub fn run(command: &mut Command, limit: Duration, want_leftovers: bool) -> Ended {
    const OPEN_FILES: u64 = 1024;
    // Files, not pipes: processes that are left behind cannot keep them open.
    let mut stdout = tempfile::tempfile().expect("a temporary file");
    let mut stderr = tempfile::tempfile().expect("a temporary file");
    command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("a second descriptor"))
        .stderr(stderr.try_clone().expect("a second descriptor"));
    let prepare = || {
        setsid()?;
        umask(Mode::from_bits_truncate(0o022));
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        // The executor raises its limit as far as it may.
        let limit = OPEN_FILES.min(hard);
        setrlimit(Resource::RLIMIT_NOFILE, limit, limit)?;
        Ok(())
    };
    #[expect(unsafe_code, reason = "only a hook between fork and exec starts a session")]
    // SAFETY: the hook makes four system calls and neither allocates nor locks.
    unsafe {
        command.pre_exec(prepare);
    }
    let start = Instant::now();
    let mut child = command
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let code = wait(&mut child, start + limit);
    let elapsed = start.elapsed();
    let session = i32::try_from(child.id()).expect("a process id");
    let mut leftovers = Vec::new();
    if want_leftovers {
        std::thread::sleep(Duration::from_millis(500));
        let members = session_members(session).into_iter();
        leftovers = members
            .filter(|(pid, _)| *pid != session)
            .map(|(_, name)| name)
            .collect();
        leftovers.sort();
    }
    for (pid, _) in session_members(session) {
        // It may have ended by now.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = child.wait();
    Ended {
        code,
        stdout: read(&mut stdout),
        stderr: read(&mut stderr),
        leftovers,
        elapsed,
    }
}

fn wait(child: &mut Child, end: Instant) -> Option<i32> {
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code().or_else(|| status.signal().map(|signal| -signal));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

fn read(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().expect("a temporary file");
    file.read_to_end(&mut bytes).expect("a temporary file");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the ids and names of the live processes of a session.
fn session_members(session: i32) -> Vec<(i32, String)> {
    let mut members = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // PID (NAME) STATE PARENT GROUP SESSION …
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((head, tail)) = stat.rsplit_once(')') else {
            continue;
        };
        let fields: Vec<&str> = tail.split_whitespace().collect();
        if let [state, _, _, own, ..] = fields[..]
            && state != "Z"
            && own.parse() == Ok(session)
        {
            let name = head.split_once('(').map_or("", |(_, name)| name);
            members.push((pid, name.to_owned()));
        }
    }
    members
}
