//! One invocation from beginning to end: side jobs, main job, files, record.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use monitord_compat::invocation_record::{FileEntry, Job, Output as Sum, Source, Stage, Status, Usage};
use nix::errno::Errno;

use crate::checksum;
use crate::context::{Context, OwnUsage};
use crate::inside;
use crate::interrupts::Interrupts;
use crate::lists::{self, Listed};
use crate::lookup::{self, Found};
use crate::machine::Host;
use crate::options::{Command, Options, Output};
use crate::spawn::{Handle, Program, spawn};
use crate::stat::{self, Names};
use crate::stdio::{self, Places, Stream, Writer};
use crate::temporary::Mailbox;
use crate::usage;
use crate::wait::{Limit, Target, wait};
use crate::words::{expand_argument, split_command};

mod report;

pub use report::Report;

/// Exit codes of kickstart itself.
pub mod exit {
    /// The arguments cannot be expanded, a checksum or the record failed.
    pub const FAILURE: u8 = 1;
    /// The time limit passed.
    pub const TIMEOUT: u8 = 14;
    /// Kickstart could not begin: no temporary files, no descriptors.
    pub const INITIALISATION: u8 = 43;
    /// A stream of the job cannot be opened.
    pub const STREAM: u8 = 126;
    /// Wrong option, or nothing that can be run.
    pub const NOT_RUNNABLE: u8 = 127;
    /// Added to the number of the signal that killed the job.
    pub const SIGNAL: u8 = 128;
}

/// Runs what `options` ask for and describes it. `notice` gets messages for the user, one line each.
///
/// # Errors
/// Only if no temporary file can be made, not even in memory: nothing has been run then.
pub fn run(
    options: &Options,
    context: Context<'_>,
    host: &Host,
    interrupts: &mut dyn Interrupts,
    notice: &mut dyn FnMut(&str),
) -> io::Result<Report> {
    let mut session = Session::new(options, context, host, interrupts, notice)?;
    let exit_code = match session.execute() {
        Ok(code) => code,
        Err(Abort { code, message }) => {
            (session.notice)(&message);
            session.explain(&message);
            code
        }
    };
    Ok(session.report(exit_code))
}

/// Describes an invocation that ran nothing because of a `problem` with its command line.
///
/// # Errors
/// As [`run`].
pub fn refuse(options: &Options, context: Context<'_>, host: &Host, problem: &str) -> io::Result<Report> {
    let mut interrupts = crate::interrupts::Uninterrupted;
    let mut notice = |_: &str| {};
    let options = Options {
        log: None,
        ..options.clone()
    };
    let mut session = Session::new(&options, context, host, &mut interrupts, &mut notice)?;
    session.explain(problem);
    Ok(session.report(exit::NOT_RUNNABLE))
}

/// Ends the invocation before the main job.
struct Abort {
    code: u8,
    message: String,
}

impl Abort {
    fn new(code: u8, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }
}

struct Session<'a, 'c> {
    options: &'a Options,
    context: Context<'c>,
    host: &'a Host,
    interrupts: &'a mut dyn Interrupts,
    notice: &'a mut dyn FnMut(&str),
    names: Names,
    /// Where the jobs run.
    directory: PathBuf,
    temporary: Rc<[PathBuf]>,
    metadata: Mailbox,
    integrity: Mailbox,
    /// The program of ours that the main job is, if it may be done by this process.
    own: Option<inside::Program>,
    streams: Option<[Stream; 2]>,
    log: Option<File>,
    jobs: Vec<(Stage, Job)>,
    before: Vec<FileEntry<'static>>,
    after: Vec<FileEntry<'static>>,
}

impl<'a, 'c> Session<'a, 'c> {
    fn new(
        options: &'a Options,
        mut context: Context<'c>,
        host: &'a Host,
        interrupts: &'a mut dyn Interrupts,
        notice: &'a mut dyn FnMut(&str),
    ) -> io::Result<Self> {
        let temporary = context
            .spares
            .directories(&context.environment, &context.directory);
        let metadata = context.spares.mailbox(&temporary, "meta")?;
        let integrity = context.spares.mailbox(&temporary, "integrity")?;
        let names = context.spares.names();
        let environment = &mut context.environment;
        if let Some(first) = environment
            .get(b"KICKSTART_PREPEND_PATH")
            .filter(|first| !first.is_empty())
        {
            let mut path = first.to_vec();
            if let Some(rest) = environment.get(b"PATH") {
                path.push(b':');
                path.extend_from_slice(rest);
            }
            environment.set(b"PATH", &path);
        }
        for (name, file) in [
            ("KICKSTART_METADATA", &metadata),
            ("KICKSTART_INTEGRITY_DATA", &integrity),
        ] {
            environment.set(name.as_bytes(), file.path().as_os_str().as_bytes());
        }
        Ok(Self {
            options,
            directory: context.directory.clone(),
            context,
            host,
            interrupts,
            notice,
            names,
            temporary,
            metadata,
            integrity,
            own: None,
            streams: None,
            log: None,
            jobs: Vec::with_capacity(1),
            before: Vec::new(),
            after: Vec::new(),
        })
    }

    fn execute(&mut self) -> Result<u8, Abort> {
        // Lists and argument files are named relative to the directory kickstart was started in.
        let before = self.listed(&self.options.before);
        let after = self.listed(&self.options.after);
        let command = self.command()?;
        self.enter()?;
        self.open_log();
        let words = self.main_words(command)?;
        let program = match self.find(&words) {
            Ok(program) => program,
            Err(errno) => {
                let name = words
                    .first()
                    .map(|word| word.to_string_lossy().into_owned())
                    .unwrap_or_default();
                let job = self.never_started(&words, errno);
                self.jobs.push((Stage::Main, job));
                return Err(Abort::new(
                    exit::NOT_RUNNABLE,
                    format!(
                        "cannot run {name}: {}; give an executable file or one found on PATH",
                        errno.desc()
                    ),
                ));
            }
        };
        self.own = self.own_program(&program);
        self.open_streams()?;
        self.before = before.iter().map(|listed| self.look_at(listed)).collect();
        let mut code = self.run_chain(&words, &program);
        self.after = after
            .iter()
            .map(|listed| self.look_at_output(listed, &mut code))
            .collect();
        Ok(code)
    }

    /// The command line or the contents of the argument file.
    fn command(&self) -> Result<Vec<OsString>, Abort> {
        match &self.options.command {
            Command::Words(words) => Ok(words.clone()),
            Command::File(path) => {
                let text = fs::read(self.context.directory.join(path)).map_err(|error| {
                    let message = format!("cannot read the argument file {}: {error}", path.display());
                    Abort::new(exit::NOT_RUNNABLE, message)
                })?;
                let words = lists::parse_arguments(&text);
                if words.is_empty() {
                    let message = format!("the argument file {} names no program", path.display());
                    return Err(Abort::new(exit::NOT_RUNNABLE, message));
                }
                Ok(words)
            }
        }
    }

    fn lookup(&self) -> impl Fn(&[u8]) -> Option<Vec<u8>> + '_ {
        |name| self.context.environment.get(name).map(<[u8]>::to_vec)
    }

    fn listed(&mut self, values: &[Vec<u8>]) -> Vec<Listed> {
        let mut all = Vec::new();
        for value in values {
            let files = lists::entries(value, &self.context.directory, &self.lookup());
            match files {
                Ok(files) => all.extend(files),
                // The job does not need the list: only the record is poorer.
                Err(error) => (self.notice)(&format!("WARNING: {error}; its files are not in the record")),
            }
        }
        all
    }

    /// Makes and checks the working directory.
    fn enter(&mut self) -> Result<(), Abort> {
        let Some(name) = &self.options.directory else {
            return Ok(());
        };
        let wanted = self.context.directory.join(name);
        let refused = |what: &str, error: io::Error| {
            Abort::new(
                exit::NOT_RUNNABLE,
                format!("cannot {what} {}: {error}", name.display()),
            )
        };
        if self.options.make_directory
            && let Err(error) = fs::create_dir(&wanted)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(refused("make the directory", error));
        }
        let found = fs::metadata(&wanted).and_then(|status| {
            let directory = self.names.real(&wanted, &status)?;
            Ok((directory, status.is_dir()))
        });
        let (directory, is_directory) = found.map_err(|error| refused("change to the directory", error))?;
        if !is_directory {
            return Err(refused("change to the directory", Errno::ENOTDIR.into()));
        }
        nix::unistd::access(&directory, nix::unistd::AccessFlags::X_OK)
            .map_err(|error| refused("change to the directory", error.into()))?;
        self.directory = directory;
        Ok(())
    }

    fn open_log(&mut self) {
        let Some(name) = &self.options.log else {
            return;
        };
        let file = self.directory.join(name);
        match OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o644)
            .open(&file)
        {
            Ok(log) => self.log = Some(log),
            Err(error) => (self.notice)(&format!(
                "WARNING: cannot write {}: {error}; the record goes to standard output",
                file.display()
            )),
        }
    }

    fn places(&self, writer: Writer) -> Places<'_> {
        Places {
            directory: &self.directory,
            temporary: &self.temporary,
            spares: self.context.spares,
            writer,
        }
    }

    fn open_streams(&mut self) -> Result<(), Abort> {
        let open =
            |error: io::Error| Abort::new(exit::INITIALISATION, format!("cannot open a stream: {error}"));
        let places = self.places(match self.own {
            Some(_) => Writer::Own,
            None => Writer::Processes,
        });
        let stdout = Stream::stdout(&self.options.stdout, places).map_err(open)?;
        let stderr = Stream::stderr(&self.options.stderr, places).map_err(open)?;
        self.streams = Some([stdout, stderr]);
        Ok(())
    }

    /// Puts the reason why nothing ran where readers of the record look for messages of the job.
    fn explain(&mut self, problem: &str) {
        let open = |stream: fn(&Output, Places<'_>) -> io::Result<Stream>| {
            stream(&Output::Capture, self.places(Writer::Processes))
        };
        if self.streams.is_none()
            && let (Ok(stdout), Ok(stderr)) = (open(Stream::stdout), open(Stream::stderr))
        {
            stderr.write_line(problem);
            self.streams = Some([stdout, stderr]);
        }
    }

    /// Program and arguments of the main job: the wrapper's words, then the expanded command.
    fn main_words(&self, command: Vec<OsString>) -> Result<Vec<OsString>, Abort> {
        let problem = |error| Abort::new(exit::FAILURE, error);
        let mut words = Vec::with_capacity(command.len());
        if let Some(wrapper) = self.context.environment.get(b"KICKSTART_WRAPPER") {
            let wrapper = split_command(wrapper, &self.lookup()).map_err(problem)?;
            words.extend(wrapper.into_iter().map(OsString::from_vec));
        }
        let application = words.len();
        for word in command {
            let word = expand_argument(word.as_bytes(), &self.lookup()).map_err(problem)?;
            words.push(OsString::from_vec(word));
        }
        if self.options.make_executable
            && let Some(program) = words.get(application)
        {
            lookup::make_executable(program, &self.directory);
        }
        Ok(words)
    }

    fn find(&self, words: &[OsString]) -> Result<Found, Errno> {
        let name = words.first().ok_or(Errno::ENOENT)?;
        lookup::find(
            name,
            &self.directory,
            self.context.environment.get(b"PATH"),
            &self.names,
        )
    }

    fn run_chain(&mut self, words: &[OsString], program: &Found) -> u8 {
        let mut limit = Limit::new(self.options.term_after, self.options.kill_delay);
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

    /// Runs the side job that the variable names, if any. One that cannot be found is noted and skipped.
    fn run_side(&mut self, stage: Stage, variable: &str, limit: &mut Limit) -> u8 {
        let Some(text) = self.context.environment.setting(variable) else {
            return 0;
        };
        let (words, problem) = match split_command(text, &self.lookup()) {
            Ok(words) if words.is_empty() => return 0,
            Ok(words) => (words.into_iter().map(OsString::from_vec).collect(), None),
            Err(error) => (vec![OsString::from_vec(text.to_vec())], Some(error.to_string())),
        };
        let found = if problem.is_some() {
            Err(Errno::EINVAL)
        } else {
            self.find(&words)
        };
        match found {
            Ok(program) => self.run_job(stage, &words, &program, limit),
            Err(errno) => {
                let why =
                    problem.unwrap_or_else(|| format!("{}: {}", words[0].to_string_lossy(), errno.desc()));
                (self.notice)(&format!("WARNING: the {} is skipped: {why}", stage.key()));
                let job = self.never_started(&words, errno);
                self.jobs.push((stage, job));
                0
            }
        }
    }

    fn run_job(&mut self, stage: Stage, words: &[OsString], program: &Found, limit: &mut Limit) -> u8 {
        let executable = stat::program(&program.file, &program.status, &mut self.names);
        let mut job = describe(words, executable);
        let began = Instant::now();
        job.start = stat::stamp_of(SystemTime::now());
        let (pid, status, usage) = self.run_child(stage, words, &program.file, limit);
        job.duration = began.elapsed();
        (job.pid, job.status, job.usage) = (pid, status, usage);
        let code = exit_code(&job.status);
        self.jobs.push((stage, job));
        code
    }

    fn run_child(
        &mut self,
        stage: Stage,
        words: &[OsString],
        file: &Path,
        limit: &mut Limit,
    ) -> (Option<u32>, Status, Usage) {
        let exited = |code| (None, Status::Exited { code }, Usage::default());
        let failed = |raw, error: io::Error| (None, failure(raw, errno(&error)), Usage::default());
        if stage == Stage::Main
            && let Some((status, usage)) = self.inside(words)
        {
            return (Some(std::process::id()), status, usage);
        }
        let Some(streams) = self.child_streams() else {
            return exited(exit::STREAM);
        };
        let program = Program {
            file,
            words,
            environment: &self.context.environment,
            directory: moved(&self.directory, &self.context),
            keep: &self.context.keep,
            own_group: self.context.own_group,
        };
        let started = spawn(&program, &streams, &mut self.context.spares.spawner());
        // The child has its own.
        drop(streams);
        let pid = match started {
            Ok(pid) => pid,
            Err(error)
                if matches!(
                    errno(&error),
                    libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE
                ) =>
            {
                (self.notice)(&format!("cannot start a process: {error}"));
                return failed(-1, error);
            }
            Err(error) => {
                let text = format!("execv: {}", Errno::from_raw(errno(&error)).desc());
                (self.notice)(&format!("{}: {text}", file.display()));
                self.tell_job(&text);
                return exited(exit::NOT_RUNNABLE);
            }
        };
        let target = Target {
            pid,
            leads_group: self.context.own_group,
        };
        let id = u32::try_from(pid.as_raw()).ok();
        match wait(target, limit, self.interrupts, self.notice) {
            Ok((status, usage)) => (id, status, usage),
            Err(error) => (id, failure(-42, errno(&error)), Usage::default()),
        }
    }

    /// The streams for a child. If one cannot be opened, why is told.
    fn child_streams(&mut self) -> Option<[Handle<'c>; 3]> {
        let [stdout, stderr] = self.streams.as_ref()?;
        let open = || {
            let stdin = stdio::input(&self.options.stdin, &self.context, &self.directory)?;
            Ok([
                stdin,
                stdout.for_child(&self.context)?,
                stderr.for_child(&self.context)?,
            ])
        };
        let streams: io::Result<_> = open();
        streams
            .inspect_err(|error| {
                (self.notice)(&error.to_string());
                stderr.write_line(&error.to_string());
            })
            .ok()
    }

    /// Adds a line to what the job has written to its standard error.
    fn tell_job(&self, line: &str) {
        if let Some([_, stderr]) = &self.streams {
            stderr.write_line(line);
        }
    }

    /// Which program of ours the main job is, if it may be done without a process for it.
    fn own_program(&self, program: &Found) -> Option<inside::Program> {
        // A limit is kept for certain with a process only.
        if self.options.term_after.is_some() {
            return None;
        }
        self.context.inside?.program(&program.file, &program.status)
    }

    /// Does the job without a process for it, if it can be done so.
    fn inside(&mut self, words: &[OsString]) -> Option<(Status, Usage)> {
        let program = self.own?;
        let inside = self.context.inside?;
        let [stdout, stderr] = self.streams.as_ref()?;
        // These programs write nothing to it, but it has to be there.
        stdout.lent(&self.context).ok()?;
        let job = inside::Job {
            arguments: words.get(1..)?,
            environment: &self.context.environment,
            directory: moved(&self.directory, &self.context),
            stdin: stdio::input(&self.options.stdin, &self.context, &self.directory).ok()?,
            stderr: stderr.lent(&self.context).ok()?,
        };
        let (status, usage) = inside.run(program, &job, self.interrupts)?;
        if let OwnUsage::Since(before) = &mut self.context.own_usage {
            *before = usage::sum(*before, usage);
        }
        Some((status, usage::measurable(usage)))
    }

    fn never_started(&mut self, words: &[OsString], errno: Errno) -> Job {
        let name = words.first().cloned().unwrap_or_default();
        let executable = stat::named(b"", Path::new(&name), &self.directory, &mut self.names);
        let mut job = describe(words, executable);
        if errno == Errno::ENOENT {
            // What was looked for on PATH is not the file of that name in the directory.
            job.executable.source = Source::Name(name.into_vec());
            job.executable.stat = Err(libc::ENOENT);
        }
        job.status = failure(-127, errno as i32);
        job
    }

    fn look_at(&mut self, listed: &Listed) -> FileEntry<'static> {
        let key = listed
            .lfn
            .clone()
            .unwrap_or_else(|| listed.pfn.as_os_str().as_bytes().to_vec());
        let mut entry = stat::named(&key, &listed.pfn, &self.directory, &mut self.names);
        entry.lfn.clone_from(&listed.lfn);
        entry
    }

    fn look_at_output(&mut self, listed: &Listed, code: &mut u8) -> FileEntry<'static> {
        let mut entry = self.look_at(listed);
        if let Ok(status) = &entry.stat {
            let regular = status.mode & libc::S_IFMT == libc::S_IFREG;
            let output = checksum::of_output(&self.directory.join(&listed.pfn), regular);
            if matches!(output, Sum::Unreadable) {
                (self.notice)(&format!("cannot read {} to checksum it", listed.pfn.display()));
                if *code == 0 {
                    *code = exit::FAILURE;
                }
            }
            entry.output = Some(output);
        }
        entry
    }
}

/// The directory of the jobs, unless it is that of the process.
fn moved<'d>(directory: &'d Path, context: &Context<'_>) -> Option<&'d Path> {
    Some(directory).filter(|directory| !context.entered || *directory != context.directory)
}

/// A job before it is started.
fn describe(words: &[OsString], executable: FileEntry<'static>) -> Job {
    Job {
        start: stat::epoch(),
        duration: Duration::ZERO,
        pid: None,
        usage: Usage::default(),
        status: Status::Exited {
            code: exit::NOT_RUNNABLE,
        },
        executable,
        arguments: words
            .iter()
            .skip(1)
            .map(|word| word.as_bytes().to_vec())
            .collect(),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

pub(crate) fn failure(raw: i32, errno: i32) -> Status {
    Status::Failed {
        raw,
        errno,
        text: Errno::from_raw(errno).desc().to_owned(),
    }
}

/// The exit code of kickstart for a job that ended like this.
fn exit_code(status: &Status) -> u8 {
    match status {
        Status::Exited { code } => *code,
        Status::Signalled { signal, .. } => {
            exit::SIGNAL.saturating_add(u8::try_from(*signal).unwrap_or(u8::MAX))
        }
        Status::Failed { .. } => exit::NOT_RUNNABLE,
    }
}

/// The directory as the process knows it, for [`Context::directory`].
#[must_use]
pub fn current_directory() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| OsStr::new(".").into())
}

#[cfg(test)]
mod tests;
