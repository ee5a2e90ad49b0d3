//! The jobs of an invocation: the main job and up to four side jobs.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::{Instant, SystemTime};

use monitord_compat::invocation_record::{Stage, Status, Usage};
use nix::errno::Errno;

use super::session::{Session, new_job};
use crate::builtins::BuiltinJob;
use crate::context::Context;
use crate::exit;
use crate::lists::Listed;
use crate::lookup::Found;
use crate::pipes::Waiting;
use crate::spawn::{Program, spawn};
use crate::stat;
use crate::stdio;
use crate::usage::{self, UsageScope};
use crate::wait::{Limit, Target, failure, wait};
use crate::words::split_command;

/// How a job ended: process id, status, usage.
type End = (Option<u32>, Status, Usage);

impl Session<'_, '_> {
    /// Runs all jobs. Returns the exit code.
    pub(super) fn run_jobs(&mut self, words: &[OsString], program: &Found, mut limit: Limit) -> u8 {
        self.run_side(Stage::Setup, "SETUP", &mut limit);
        let mut code = 0;
        if !limit.passed() {
            code = self.run_side(Stage::Pre, "PREJOB", &mut limit);
        }
        if code == 0 && !limit.passed() {
            code = self.run_job(Stage::Main, words, program, &mut limit);
            if code == 0 && !limit.passed() {
                code = self.run_side(Stage::Post, "POSTJOB", &mut limit);
            }
        }
        let in_time = !limit.passed();
        self.run_side(Stage::Cleanup, "CLEANUP", &mut Limit::none());
        if in_time { code } else { exit::TIMEOUT }
    }

    /// Runs the side job in a variable, if there is one. A job without program is noted and skipped.
    fn run_side(&mut self, stage: Stage, variable: &str, limit: &mut Limit) -> u8 {
        let Some(text) = self.context.environment.setting(variable) else {
            return 0;
        };
        let (words, problem) = match split_command(text, &self.variables()) {
            Ok(words) if words.is_empty() => return 0,
            Ok(words) => (words.into_iter().map(OsString::from_vec).collect(), None),
            Err(error) => (vec![OsString::from_vec(text.to_vec())], Some(error.to_string())),
        };
        let found = if problem.is_some() {
            Err(Errno::EINVAL)
        } else {
            self.find_program(&words)
        };
        match found {
            Ok(program) => self.run_job(stage, &words, &program, limit),
            Err(errno) => {
                let reason =
                    problem.unwrap_or_else(|| format!("{}: {}", words[0].to_string_lossy(), errno.desc()));
                (self.notice)(&format!("WARNING: the {} is skipped: {reason}", stage.key()));
                let job = self.job_without_program(&words, errno);
                self.jobs.push((stage, job));
                0
            }
        }
    }

    fn run_job(&mut self, stage: Stage, words: &[OsString], program: &Found, limit: &mut Limit) -> u8 {
        let executable = stat::program(&program.file, &program.status, &mut self.names);
        let mut job = new_job(words, executable);
        let start = Instant::now();
        job.start = stat::stamp_of(SystemTime::now());
        let builtin = if stage == Stage::Main {
            self.run_builtin(words, program)
        } else {
            None
        };
        (job.pid, job.status, job.usage) =
            builtin.unwrap_or_else(|| self.run_process(words, &program.file, limit));
        job.duration = start.elapsed();
        let code = exit::of(&job.status);
        self.jobs.push((stage, job));
        code
    }

    fn run_process(&mut self, words: &[OsString], file: &Path, limit: &mut Limit) -> End {
        let exited = |code| (None, Status::Exited { code }, Usage::default());
        let streams = match self.job_streams() {
            Ok(streams) => streams,
            Err(error) => {
                self.report_problem(&error.to_string());
                return exited(exit::STREAM);
            }
        };
        let program = Program {
            file,
            words,
            environment: &self.context.environment,
            directory: job_directory(&self.directory, &self.context),
            keep: &self.context.keep,
            own_group: self.context.own_group,
            die_with_parent: false,
        };
        let started = spawn(&program, &streams, &mut self.context.cache.spawner());
        // The child has its own copies.
        drop(streams);
        let pid = match started {
            Ok(pid) => pid,
            Err(error) if is_shortage(&error) => {
                (self.notice)(&format!("cannot start a process: {error}"));
                return (None, failure(-1, errno(&error)), Usage::default());
            }
            Err(error) => {
                let text = format!("execv: {}", Errno::from_raw(errno(&error)).desc());
                (self.notice)(&format!("{}: {text}", file.display()));
                self.write_job_error(&text);
                return exited(exit::NOT_RUNNABLE);
            }
        };
        let target = Target {
            pid,
            leads_group: self.context.own_group,
        };
        let (status, usage) = wait(target, limit, self.interrupts, self.notice)
            .unwrap_or_else(|error| (failure(-42, errno(&error)), Usage::default()));
        (u32::try_from(pid.as_raw()).ok(), status, usage)
    }

    /// Returns the exit code 0, or that of a failure if a required file is missing after the jobs. The record
    /// then has this failure as that of the main job, because readers take the status from there.
    pub(super) fn check_outputs(&mut self, listed: &[Listed]) -> u8 {
        /// Maximum number of names in the message.
        const SHOWN: usize = 10;
        let missing: Vec<String> = listed
            .iter()
            .zip(&self.after)
            .filter(|(file, _)| file.required || self.options.require_outputs)
            .filter(|(_, entry)| matches!(entry.stat, Err(libc::ENOENT | libc::ENOTDIR)))
            .map(|(file, _)| file.pfn.display().to_string())
            .collect();
        if missing.is_empty() {
            return 0;
        }
        let mut names = missing[..missing.len().min(SHOWN)].join(", ");
        if missing.len() > SHOWN {
            names += &format!(" and {} more", missing.len() - SHOWN);
        }
        let message = format!(
            "the program ended with success, but did not write its declared output: {names} (in {}); {}",
            self.directory.display(),
            pmc_calls::OUTPUTS_UNCHECKED
        );
        self.report_problem(&message);
        let main = self
            .jobs
            .iter_mut()
            .rev()
            .find(|(stage, _)| *stage == Stage::Main);
        if let Some((_, job)) = main {
            job.status = Status::Exited { code: exit::FAILURE };
        }
        exit::FAILURE
    }

    /// Returns whether this process may run the main job itself.
    pub(super) fn is_builtin(&self, program: &Found) -> bool {
        // Only a process can be stopped for certain when its time is over.
        let builtins = self
            .context
            .builtins
            .filter(|_| self.options.term_after.is_none());
        builtins.is_some_and(|builtins| builtins.contains(program))
    }

    /// Runs the main job in this process, if possible.
    fn run_builtin(&mut self, words: &[OsString], program: &Found) -> Option<End> {
        if !self.is_builtin(program) {
            return None;
        }
        let [stdin, _, stderr] = self.job_streams().ok()?;
        let job = BuiltinJob {
            program,
            arguments: words.get(1..)?,
            environment: &self.context.environment,
            directory: job_directory(&self.directory, &self.context),
            stdin,
            stderr,
        };
        let (status, usage) = self.context.builtins?.run(&job, self.interrupts)?;
        if let UsageScope::Since(before) = &mut self.context.usage_scope {
            // What the job used is not kickstart's.
            *before = usage::sum(*before, usage);
        }
        Some((Some(std::process::id()), status, usage::measurable(usage)))
    }

    /// Opens standard input, output and error of a job.
    fn job_streams(&mut self) -> io::Result<[OwnedFd; 3]> {
        let streams = self.streams.as_ref();
        let [stdout, stderr] = streams.ok_or(io::ErrorKind::NotConnected)?;
        let mut waiting = Waiting {
            patience: &mut self.patience,
            interrupts: self.interrupts,
        };
        Ok([
            stdio::input(&self.options.stdin, &self.context, &self.directory, &mut waiting)?,
            stdout.for_job(&self.context)?,
            stderr.for_job(&self.context)?,
        ])
    }

    /// Reports a problem to the user and to readers of the job's standard error.
    pub(super) fn report_problem(&mut self, line: &str) {
        (self.notice)(line);
        self.write_job_error(line);
    }

    /// Adds a line to the job's standard error.
    fn write_job_error(&self, line: &str) {
        if let Some([_, stderr]) = &self.streams {
            stderr.write_line(line);
        }
    }
}

/// Returns the directory of the jobs, unless they inherit it.
fn job_directory<'d>(directory: &'d Path, context: &Context<'_>) -> Option<&'d Path> {
    let inherited = context.is_process_directory && directory == context.directory;
    (!inherited).then_some(directory)
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Returns whether the system has too few resources for another process.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        errno(error),
        libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE
    )
}
