//! The steps before and after the jobs: command, directory, log, streams, files to examine.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;

use monitord_compat::invocation_record::{ChecksummedFile, FileEntry, Stage};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use super::session::{Abort, Session};
use crate::checksum;
use crate::exit;
use crate::lists::{self, Listed};
use crate::lookup::{self, Found};
use crate::options::Command;
use crate::pipes::{self, Waiting};
use crate::stat;
use crate::stdio::{Places, Stream};
use crate::words::{MAX_VALUES, expand_argument, split_command};

impl Session<'_, '_> {
    /// Returns the files that options name, directly or in lists.
    pub(super) fn listed_files(&mut self, values: &[Vec<u8>]) -> Vec<Listed> {
        let mut all = Vec::new();
        let environment = &self.context.environment;
        let variables = |name: &[u8]| environment.get(name).map(<[u8]>::to_vec);
        let mut waiting = Waiting {
            patience: &mut self.patience,
            interrupts: self.interrupts,
        };
        for value in values {
            let files = lists::entries(value, &self.context.directory, &variables, &mut waiting);
            match files {
                Ok(files) => all.extend(files),
                // The job does not need the list.
                Err(error) => (self.notice)(&format!("WARNING: {error}; its files are not in the record")),
            }
        }
        all
    }

    /// Returns the command line or the contents of the argument file.
    pub(super) fn command(&mut self) -> Result<Vec<OsString>, Abort> {
        match &self.options.command {
            Command::Words(words) => Ok(words.clone()),
            Command::File(path) => {
                let file = self.context.directory.join(path);
                let text = lists::read(&file, &mut self.waiting()).map_err(|error| {
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

    /// Makes and checks the working directory.
    pub(super) fn enter_directory(&mut self) -> Result<(), Abort> {
        let Some(name) = &self.options.directory else {
            return Ok(());
        };
        let directory = self.context.directory.join(name);
        let refused = |what: &str, error: io::Error| {
            let message = format!("cannot {what} {}: {error}", name.display());
            Abort::new(exit::NOT_RUNNABLE, message)
        };
        if self.options.make_directory
            && let Err(error) = fs::create_dir(&directory)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(refused("make the directory", error));
        }
        let real = fs::metadata(&directory).and_then(|status| {
            if !status.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            let real = self.names.real(&directory, &status)?;
            access(&real, AccessFlags::X_OK)?;
            Ok(real)
        });
        self.directory = real.map_err(|error| refused("change to the directory", error))?;
        Ok(())
    }

    pub(super) fn open_log(&mut self) {
        let Some(name) = &self.options.log else {
            return;
        };
        let file = self.directory.join(name);
        let mut options = OpenOptions::new();
        // A pipe that nobody reads would keep the record for ever.
        match pipes::open_if_ready(&file, options.append(true).create(true).mode(0o644)) {
            Ok(log) => self.log = Some(log),
            Err(error) => (self.notice)(&format!(
                "WARNING: cannot write {}: {error}; the record goes to standard output",
                file.display()
            )),
        }
    }

    /// Returns program and arguments of the main job: the wrapper's words, then the expanded command.
    pub(super) fn main_words(&self, command: Vec<OsString>) -> Result<Vec<OsString>, Abort> {
        let problem = |error| Abort::new(exit::FAILURE, error);
        let mut words = Vec::with_capacity(command.len());
        if let Some(wrapper) = self.context.environment.get(b"KICKSTART_WRAPPER") {
            let wrapper = split_command(wrapper, &self.variables()).map_err(problem)?;
            words.extend(wrapper.into_iter().map(OsString::from_vec));
        }
        let application = words.len();
        let mut left = MAX_VALUES;
        for word in command {
            let word = expand_argument(word.as_bytes(), &self.variables(), &mut left).map_err(problem)?;
            words.push(OsString::from_vec(word));
        }
        if self.options.make_executable
            && let Some(program) = words.get(application)
        {
            lookup::make_executable(program, &self.directory);
        }
        Ok(words)
    }

    /// Finds the program of the main job.
    pub(super) fn main_program(&mut self, words: &[OsString]) -> Result<Found, Abort> {
        self.find_program(words).map_err(|errno| {
            let name = words.first().map(|word| word.to_string_lossy());
            let message = format!(
                "cannot run {}: {}; give an executable file or one found on PATH",
                name.unwrap_or_default(),
                errno.desc()
            );
            let job = self.job_without_program(words, errno);
            self.jobs.push((Stage::Main, job));
            Abort::new(exit::NOT_RUNNABLE, message)
        })
    }

    /// Opens the output streams; `in_memory` as in [`crate::stdio::Places`].
    pub(super) fn open_streams(&mut self, in_memory: bool) -> Result<(), Abort> {
        let problem =
            |error: io::Error| Abort::new(exit::INITIALISATION, format!("cannot open a stream: {error}"));
        let places = Places {
            directory: &self.directory,
            temporary: &self.temporary,
            cache: self.context.cache,
            in_memory,
        };
        let mut waiting = Waiting {
            patience: &mut self.patience,
            interrupts: self.interrupts,
        };
        let stdout = Stream::stdout(&self.options.stdout, places, &mut waiting).map_err(problem)?;
        let stderr = Stream::stderr(&self.options.stderr, places, &mut waiting).map_err(problem)?;
        let too_late = stdout.too_late().or_else(|| stderr.too_late());
        self.streams = Some([stdout, stderr]);
        if let Some(problem) = too_late {
            self.report_problem(&problem);
        }
        Ok(())
    }

    /// Makes the entry of a listed file.
    pub(super) fn examine(&mut self, file: &Listed) -> FileEntry<'static> {
        let pfn = || file.pfn.as_os_str().as_bytes().to_vec();
        let key = file.lfn.clone().unwrap_or_else(pfn);
        let mut entry = stat::named(&key, &file.pfn, &self.directory, &mut self.names);
        entry.lfn.clone_from(&file.lfn);
        entry
    }

    /// As [`Self::examine`], with a checksum. An unreadable file turns success into failure.
    pub(super) fn examine_output(&mut self, file: &Listed, code: &mut u8) -> FileEntry<'static> {
        let mut entry = self.examine(file);
        if let Ok(status) = &entry.stat {
            let regular = status.mode & libc::S_IFMT == libc::S_IFREG;
            let path = self.directory.join(&file.pfn);
            let mut waiting = self.waiting();
            let output = checksum::of_output(&path, regular, &mut || waiting.is_over());
            if matches!(output, ChecksummedFile::Unreadable) {
                (self.notice)(&format!("cannot read {} to checksum it", file.pfn.display()));
                if *code == 0 {
                    *code = exit::FAILURE;
                }
            }
            entry.output = Some(output);
        }
        entry
    }
}
