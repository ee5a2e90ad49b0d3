//! The state of an invocation.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monitord_compat::invocation_record::{FileEntry, Job, Source, Stage, Status, Usage};
use nix::errno::Errno;

use crate::context::Context;
use crate::exit;
use crate::interrupts::{Interrupts, Uninterrupted};
use crate::lookup::{self, Found};
use crate::machine::Host;
use crate::names::Names;
use crate::options::{Options, Output};
use crate::pipes::{Patience, Waiting};
use crate::stat;
use crate::stdio::{Places, Stream};
use crate::temporary::{self, Mailbox};
use crate::wait::failure;

/// Ends the invocation before the main job.
pub(super) struct Abort {
    pub(super) code: u8,
    pub(super) message: String,
}

impl Abort {
    pub(super) fn new(code: u8, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }
}

pub(super) struct Session<'a, 'c> {
    pub(super) options: &'a Options,
    pub(super) context: Context<'c>,
    pub(super) host: &'a Host,
    pub(super) interrupts: &'a mut dyn Interrupts,
    pub(super) notice: &'a mut dyn FnMut(&str),
    pub(super) names: Names,
    /// Working directory of the jobs.
    pub(super) directory: PathBuf,
    /// Directories for temporary files.
    pub(super) temporary: Vec<PathBuf>,
    pub(super) metadata: Mailbox,
    pub(super) integrity: Mailbox,
    /// For how long it waits for the other ends of named pipes.
    pub(super) patience: Patience,
    pub(super) streams: Option<[Stream; 2]>,
    pub(super) log: Option<File>,
    pub(super) jobs: Vec<(Stage, Job)>,
    /// Files examined before the jobs.
    pub(super) before: Vec<FileEntry<'static>>,
    /// Files examined after the jobs.
    pub(super) after: Vec<FileEntry<'static>>,
}

impl<'a, 'c> Session<'a, 'c> {
    pub(super) fn new(
        options: &'a Options,
        mut context: Context<'c>,
        host: &'a Host,
        interrupts: &'a mut dyn Interrupts,
        notice: &'a mut dyn FnMut(&str),
    ) -> io::Result<Self> {
        let temporary = temporary::directories(&context.environment, &context.directory);
        let metadata = context.cache.mailbox(&temporary, "meta")?;
        let integrity = context.cache.mailbox(&temporary, "integrity")?;
        let names = context.cache.names();
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
        if options.transformation.as_deref() == Some(pmc_calls::CLEAN_UP) {
            environment.set(pmc_calls::CLEAN_UP_VARIABLE.as_bytes(), b"1");
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
            patience: Patience::new(options.term_after),
            streams: None,
            log: None,
            jobs: Vec::with_capacity(1),
            before: Vec::new(),
            after: Vec::new(),
        })
    }

    /// Returns a lookup of the environment for expanding variables.
    pub(super) fn variables(&self) -> impl Fn(&[u8]) -> Option<Vec<u8>> + '_ {
        |name| self.context.environment.get(name).map(<[u8]>::to_vec)
    }

    pub(super) fn find_program(&self, words: &[OsString]) -> Result<Found, Errno> {
        let name = words.first().ok_or(Errno::ENOENT)?;
        lookup::find(name, &self.directory, self.context.environment.get(b"PATH"))
    }

    pub(super) fn waiting(&mut self) -> Waiting<'_> {
        Waiting {
            patience: &mut self.patience,
            interrupts: self.interrupts,
        }
    }

    pub(super) fn places(&self, in_memory: bool) -> Places<'_> {
        Places {
            directory: &self.directory,
            temporary: &self.temporary,
            cache: self.context.cache,
            in_memory,
        }
    }

    /// Puts the reason why nothing ran where readers of the record look for messages of the job.
    pub(super) fn explain(&mut self, problem: &str) {
        if self.streams.is_some() {
            return;
        }
        let mut waiting = Waiting {
            patience: &mut Patience::none(),
            interrupts: &mut Uninterrupted,
        };
        let places = self.places(false);
        let stdout = Stream::stdout(&Output::Capture, places, &mut waiting);
        let stderr = Stream::stderr(&Output::Capture, places, &mut waiting);
        if let (Ok(stdout), Ok(stderr)) = (stdout, stderr) {
            stderr.write_line(problem);
            self.streams = Some([stdout, stderr]);
        }
    }

    /// Describes a job whose program was not found.
    pub(super) fn job_without_program(&mut self, words: &[OsString], errno: Errno) -> Job {
        let name = words.first().cloned().unwrap_or_default();
        let mut executable = stat::named(b"", Path::new(&name), &self.directory, &mut self.names);
        if errno == Errno::ENOENT {
            // A file of that name in the directory is not the one that was searched for on PATH.
            executable.source = Source::Name(name.as_bytes().to_vec());
            executable.stat = Err(libc::ENOENT);
        }
        let mut job = new_job(words, executable);
        job.status = failure(-127, errno as i32);
        job
    }
}

/// Describes a job before it is started.
pub(super) fn new_job(words: &[OsString], executable: FileEntry<'static>) -> Job {
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
