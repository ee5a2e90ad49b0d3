//! Finds the files in which kickstart captures the output of a running program.
//!
//! The files have no names. But the program has them open as its standard streams, and the owner of a process
//! may open its descriptors.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::unistd::Pid;
use pmc_spawn::family::children;

use crate::protocol::Captures;

/// Maximum processes of a task that are looked at: wrappers around kickstart are few.
const MAX_PROCESSES: usize = 64;

/// Returns the files of the first program that kickstart runs below a process.
pub(super) fn find(leader: Pid) -> Captures {
    let mut left = VecDeque::from([leader]);
    for _ in 0..MAX_PROCESSES {
        let Some(pid) = left.pop_front() else { break };
        left.extend(children(pid));
        if pid == leader {
            continue;
        }
        let found = [1, 2].map(|descriptor| open(&format!("/proc/{pid}/fd/{descriptor}")));
        if found.iter().any(Option::is_some) {
            return found;
        }
    }
    [None, None]
}

/// Opens a descriptor of a process if it is a file of kickstart.
fn open(link: &str) -> Option<File> {
    if !is_of_kickstart(&fs::read_link(link).ok()?) {
        return None;
    }
    // Kickstart may hold a lease for a moment; then the next look finds the file.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(link)
        .ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// Returns whether the target of a link in `/proc` is a file that kickstart has made: one without a name, or
/// `ks.out.…`.
fn is_of_kickstart(target: &Path) -> bool {
    let Some(name) = target.file_name() else {
        return false;
    };
    let name = name.as_bytes();
    if let Some(number) = name
        .strip_prefix(b"#")
        .and_then(|rest| rest.strip_suffix(b" (deleted)"))
    {
        return number.iter().all(u8::is_ascii_digit);
    }
    let name = name.strip_prefix(b"memfd:").unwrap_or(name);
    name.starts_with(b"ks.out") || name.starts_with(b"ks.err")
}

/// Opens a file once more, for reading.
pub(super) fn reopen(file: &File) -> Option<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn files_of_kickstart_have_these_names() {
        for (target, expected) in [
            ("/tmp/#1234 (deleted)", true),
            ("/tmp/ks.out.AbCdEf", true),
            ("/tmp/ks.err.AbCdEf (deleted)", true),
            ("/memfd:ks.err (deleted)", true),
            ("/tmp/#1234", false),
            ("/tmp/#x (deleted)", false),
            ("/home/u/result (deleted)", false),
            ("pipe:[123]", false),
        ] {
            assert_eq!(is_of_kickstart(Path::new(target)), expected, "{target}");
        }
    }

    #[test]
    fn the_stream_of_a_child_is_found_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let capture = folder.path().join("ks.out.AbCdEf");
        let mut shell = Command::new("/bin/sh")
            .args(["-c", "echo mine; sh -c 'echo captured; read x' > \"$0\""])
            .arg(&capture)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let leader = Pid::from_raw(shell.id() as i32);
        let captured = (0..2000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let [out, err] = find(leader);
            assert!(err.is_none());
            let mut text = String::new();
            out?.read_to_string(&mut text).unwrap();
            (!text.is_empty()).then_some(text)
        });
        assert_eq!(captured.as_deref(), Some("captured\n"));
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
