//! What a command prints that runs on another host.
//!
//! There, its output goes to a pipe and not to a terminal, so that it escapes nothing of what tasks print.
//! This process does, if it has a terminal. And `srun` adds a line to standard error about each exit code but
//! 0, which says nothing that the message of the command does not.

use std::io::{self, Read};
use std::process::{Child, ChildStderr, ChildStdout, ExitStatus};
use std::thread::JoinHandle;

use pmc_terminal::CopyWriter;

/// Bytes that are read at a time.
const READ_SIZE: usize = 1 << 16;

/// Beginning and end of the line of `srun`, with the host, the number of the task and the code around the
/// middle.
const SRUN_LINE: (&[u8], &[u8]) = (b"srun: error: ", b": Exited with exit code ");

/// Longest line that may be one of `srun`.
const MAX_SRUN_LINE: usize = 1 << 10;

/// Copies the streams of a process that are piped, and waits for its end. Without `of_srun`, all lines pass.
///
/// # Errors
/// A thread cannot be started, or the process cannot be waited for.
pub(super) fn pass_on(child: &mut Child, of_srun: bool) -> io::Result<ExitStatus> {
    let stdout = child.stdout.take().map(copy_stdout).transpose();
    let stderr = child
        .stderr
        .take()
        .map(|pipe| copy_stderr(pipe, of_srun))
        .transpose();
    let status = child.wait();
    // The panic of a thread was printed.
    if let Some(thread) = stdout? {
        let _ = thread.join();
    }
    if let Some(thread) = stderr?
        && let Ok(filter) = thread.join()
    {
        let mut out = CopyWriter::to_stderr();
        let failed = status.as_ref().is_ok_and(|status| !status.success());
        filter.end(failed, |bytes| out.write(bytes));
        out.end();
    }
    status
}

fn copy_stdout(mut pipe: ChildStdout) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("stdout".to_owned())
        .spawn(move || {
            let mut out = CopyWriter::to_stdout();
            each_part(&mut pipe, |bytes| out.write(bytes));
            out.end();
        })
}

/// Returns what is held back in the end.
fn copy_stderr(mut pipe: ChildStderr, of_srun: bool) -> io::Result<JoinHandle<Filter>> {
    std::thread::Builder::new()
        .name("stderr".to_owned())
        .spawn(move || {
            let mut out = CopyWriter::to_stderr();
            let mut filter = Filter::default();
            each_part(&mut pipe, |bytes| match of_srun {
                true => filter.pass(bytes, |bytes| out.write(bytes)),
                false => out.write(bytes),
            });
            out.end();
            filter
        })
}

fn each_part(pipe: &mut impl Read, mut take: impl FnMut(&[u8])) {
    let mut buffer = vec![0; READ_SIZE];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => take(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Holds back the latest line that may be of `srun`. That program prints it when the command ends, which may
/// be before the last lines of the command have come.
#[derive(Default)]
struct Filter {
    /// A line that looks like that of `srun`.
    held: Vec<u8>,
    /// The beginning of a line that may become one.
    begun: Vec<u8>,
    /// The last byte that has passed was not the end of a line.
    in_line: bool,
}

impl Filter {
    fn pass(&mut self, bytes: &[u8], mut put: impl FnMut(&[u8])) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let ends = line.ends_with(b"\n");
            if self.in_line {
                self.in_line = !ends;
                put(line);
                continue;
            }
            self.begun.extend_from_slice(line);
            let may_be = may_be_of_srun(&self.begun);
            if may_be && !ends {
                continue;
            }
            let mut line = std::mem::take(&mut self.begun);
            if may_be {
                // An earlier one is of a task.
                std::mem::swap(&mut self.held, &mut line);
            } else {
                self.in_line = !ends;
            }
            put(&line);
        }
    }

    /// `srun` prints its line if the command has failed.
    fn end(self, failed: bool, mut put: impl FnMut(&[u8])) {
        if !failed {
            put(&self.held);
        }
        put(&self.begun);
    }
}

fn may_be_of_srun(line: &[u8]) -> bool {
    let start = SRUN_LINE.0;
    let len = line.len().min(start.len());
    line.len() <= MAX_SRUN_LINE && line[..len] == start[..len] && (!line.ends_with(b"\n") || is_of_srun(line))
}

fn is_of_srun(line: &[u8]) -> bool {
    let (start, middle) = SRUN_LINE;
    line.starts_with(start) && line.windows(middle.len()).any(|part| part == middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(parts: &[&[u8]], failed: bool) -> String {
        let mut all = Vec::new();
        let mut filter = Filter::default();
        for part in parts {
            filter.pass(part, |bytes| all.extend_from_slice(bytes));
        }
        filter.end(failed, |bytes| all.extend_from_slice(bytes));
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn the_line_of_srun_does_not_pass() {
        let line = "srun: error: n2: task 0: Exited with exit code 4\n";
        let of_task = "srun: error: n7: tasks 0-3: Exited with exit code 9\n";
        for (all, expected) in [
            (format!("pmc: no\n{line}"), "pmc: no\n".to_owned()),
            // It may come before what the command has printed.
            (format!("a\n{line}pmc: no\n"), "a\npmc: no\n".to_owned()),
            // A task may have printed the same.
            (format!("{of_task}b\n{line}c"), format!("b\n{of_task}c")),
        ] {
            for cut in 0..=all.len() {
                let parts = [&all.as_bytes()[..cut], &all.as_bytes()[cut..]];
                assert_eq!(passed(&parts, true), expected, "{cut}");
            }
        }
    }

    #[test]
    fn other_lines_pass() {
        let line = "srun: error: n2: task 0: Exited with exit code 4\n";
        for all in [
            "srun: error: Unable to create step\n".to_owned(),
            "srun: err".to_owned(),
            format!("a {line}"),
            String::new(),
        ] {
            for cut in 0..=all.len() {
                let parts = [&all.as_bytes()[..cut], &all.as_bytes()[cut..]];
                assert_eq!(passed(&parts, true), all, "{cut}");
            }
        }
        assert_eq!(
            passed(&[line.as_bytes(), b"more\n"], false),
            format!("more\n{line}")
        );
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let mut filter = Filter::default();
        let mut all = Vec::new();
        filter.pass(b"a prompt: ", |bytes| all.extend_from_slice(bytes));
        filter.pass(b"srun: error: ", |bytes| all.extend_from_slice(bytes));
        assert_eq!(all, b"a prompt: srun: error: ");
    }
}
