//! Invocations from threads of one process.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::cache::InvocationCache;
use crate::environment::Environment;
use crate::interrupts::Interrupt;
use crate::options::{Request, parse};
use crate::usage::UsageScope;

/// Cancels the job when a pipe becomes readable.
struct Cancel(Option<io::PipeReader>);

impl Interrupts for Cancel {
    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    fn take(&mut self) -> Option<Interrupt> {
        self.0
            .take()
            .map(|_| Interrupt::Forward(nix::sys::signal::Signal::SIGTERM))
    }
}

fn run_in(directory: &Path, line: &[&str], interrupts: &mut dyn Interrupts) -> Report {
    let Ok(Request::Run(options)) = parse(line.iter().map(OsString::from)) else {
        panic!("{line:?}");
    };
    let null = File::open("/dev/null").unwrap();
    let variables = [("PATH", "/usr/bin:/bin"), ("WHERE", "here")];
    let context = Context {
        start: (SystemTime::now(), Instant::now()),
        environment: Environment::from_iter(variables.map(|(name, value)| (name.into(), value.into()))),
        directory: directory.to_owned(),
        is_process_directory: false,
        umask: 0o22,
        program: "/bin/worker".into(),
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        keep: Vec::new(),
        cache: &InvocationCache::default(),
        builtins: None,
        usage_scope: UsageScope::Thread,
        own_group: true,
    };
    run(&options, context, &Host::gather(false), interrupts, &mut |_| {}).unwrap()
}

fn stdout(report: &Report) -> &str {
    let entry = report
        .record
        .files
        .iter()
        .find(|entry| entry.key == b"stdout")
        .unwrap();
    entry.payload.as_ref().map_or("", |payload| &payload.text)
}

#[test]
fn threads_run_jobs_in_their_own_directories() {
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let script = format!("pwd; echo {number} $WHERE; echo x > out; exit {number}");
                let line = ["-H", "-s", "o=out", "/bin/sh", "-c", &script];
                let report = run_in(folder.path(), &line, &mut Uninterrupted);
                let expected = format!("{}\n{number} here\n", folder.path().display());
                assert_eq!((stdout(&report), report.exit_code), (expected.as_str(), number));
                assert_eq!(report.record.files[0].stat.as_ref().unwrap().size, 2);
            });
        }
    });
}

#[test]
fn a_cancelled_job_dies_with_its_descendants() {
    let (reader, writer) = io::pipe().unwrap();
    drop(writer);
    let start = Instant::now();
    let line = ["-H", "/bin/sh", "-c", "sleep 20 & sleep 20; wait"];
    let report = run_in(Path::new("/"), &line, &mut Cancel(Some(reader)));
    assert_eq!(report.exit_code, 143);
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// Runs a job whose stream is a pipe that nobody opens.
fn run_with_pipe(line: &[&str], interrupts: &mut dyn Interrupts) -> Report {
    let folder = tempfile::tempdir().unwrap();
    nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    run_in(folder.path(), line, interrupts)
}

fn stderr(report: &Report) -> &str {
    let entry = report
        .record
        .files
        .iter()
        .find(|entry| entry.key == b"stderr")
        .unwrap();
    entry.payload.as_ref().map_or("", |payload| &payload.text)
}

#[test]
fn the_time_limit_counts_while_the_other_end_of_a_pipe_is_missing() {
    for line in [
        &["-H", "-k", "1", "-i", "pipe", "/bin/cat"][..],
        &["-H", "-k", "1", "-o", "pipe", "/bin/true"],
        &["-H", "-k", "1", "-I", "pipe"],
    ] {
        let report = run_with_pipe(line, &mut Uninterrupted);
        let expected = if line.contains(&"-I") {
            exit::NOT_RUNNABLE
        } else {
            exit::TIMEOUT
        };
        assert_eq!(report.exit_code, expected, "{line:?}");
        let said = stderr(&report);
        assert!(
            said.contains("nobody has opened its other end within the time limit"),
            "{said}"
        );
    }
    let report = run_with_pipe(&["-H", "-k", "1", "-S", "@pipe", "/bin/true"], &mut Uninterrupted);
    assert_eq!(report.exit_code, exit::TIMEOUT, "no time is left for the job");
}

#[test]
fn a_signal_ends_waiting_for_the_other_end_of_a_pipe() {
    for line in [
        ["-H", "-i", "pipe", "/bin/cat"],
        ["-H", "-o", "pipe", "/bin/true"],
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(writer);
        let report = run_with_pipe(&line, &mut Cancel(Some(reader)));
        assert_eq!(report.exit_code, exit::STREAM, "{line:?}");
        assert!(
            stderr(&report).contains("before a signal came"),
            "{}",
            stderr(&report)
        );
    }
}

#[test]
fn a_log_that_is_a_pipe_without_a_reader_is_not_used() {
    let report = run_with_pipe(&["-H", "-l", "pipe", "/bin/true"], &mut Uninterrupted);
    assert!(report.exit_code == 0 && report.log.is_none());
}
