//! Checkpoint files of a job, which the run keeps while the program goes on: as soon as the program has
//! closed or renamed one, they are saved as a series with the node service ([`pmc_tcsio`]), as a program
//! can do it itself. So an attempt on another node goes on from what the program has saved last, not from
//! what came to the staging site at the end of an attempt.
//!
//! All files of a series are those of one moment, at which the program has not written any of them for a
//! while.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use pmc_checkpoint::WATCHED;
use pmc_files::Destination;
use pmc_job_files::Description;
use pmc_tcsio::{ClientError, Connection, Process, Writing};
use pmc_wire::checkpoint::VARIABLE;

use crate::job_context::JobContext;
use crate::messages::Log;

/// How long no file changes before they are saved.
const QUIET: Duration = Duration::from_millis(200);

/// Minimum time between two series.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Saving takes at most this part of the time: the inverse.
const MAX_SHARE: u32 = 20;

/// Maximum files that are kept.
const MAX_FILES: usize = 1 << 10;

/// Maximum bytes of the list of files in a series.
const MAX_LIST: u64 = 1 << 20;

/// Permissions of a file that comes back, before the umask.
const MODE: u32 = 0o644;

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// The checkpoint files of a job, and the connection by which the run keeps them.
pub(crate) struct Kept {
    connection: Connection,
    directory: PathBuf,
    /// Paths in this directory, in an order that is the same in each attempt.
    files: Vec<String>,
    log: Log,
}

/// What can be seen of a file without reading it: size, number, and the times of its last changes.
type Look = (u64, u64, [(i64, i64); 2]);

/// How files look. Those that are not there are left out.
type Looks = BTreeMap<String, Look>;

/// Why files are not saved.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("{0}")]
    Service(#[from] ClientError),
    #[error("{0}: {1}")]
    File(String, io::Error),
    /// The program has gone on writing: it is tried again.
    #[error("the program writes {0}")]
    Changed(String),
}

impl Kept {
    /// Returns what a job has to keep. `None` if it has no checkpoint files, or belongs to no run that keeps
    /// them.
    pub(crate) fn of_job(
        description: &Description,
        directory: &Path,
        around: &JobContext<'_>,
    ) -> Option<Self> {
        let mut files: Vec<String> = Vec::new();
        for entry in &description.checkpoint_out {
            let name = entry.lfn.as_ref()?;
            let name = String::from_utf8(name.0.clone()).ok()?;
            let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_));
            let is_plain = !name.contains('\n') && Path::new(&name).components().all(is_inside);
            if !is_plain {
                return None;
            }
            files.push(name);
        }
        files.sort_unstable();
        files.dedup();
        // The jobs of a cluster are one task for the run.
        if files.is_empty() || files.len() > MAX_FILES || description.in_cluster {
            return None;
        }
        let address = around.context.environment.get(VARIABLE.as_bytes())?;
        let address = std::str::from_utf8(address).ok()?;
        let log = around.log.clone();
        match Connection::open(Some(address), Process { rank: 0, ranks: 1 }) {
            Ok(connection) => Some(Self {
                connection,
                directory: directory.to_owned(),
                files,
                log,
            }),
            Err(error) => {
                log.say(format_args!("The run does not keep checkpoint files: {error}"));
                None
            }
        }
    }

    /// Brings the files of the series from which the job goes on. Returns whether there is one.
    pub(crate) fn restore(&self) -> bool {
        let Some(series) = self.connection.given() else {
            return false;
        };
        match self.bring() {
            Ok(count) => {
                self.log.say(format_args!(
                    "Going on from checkpoint {series} of the run, which has {count} files"
                ));
                true
            }
            Err(error) => {
                self.log.say(format_args!(
                    "No matter for checkpoint {series} of the run: {error}"
                ));
                false
            }
        }
    }

    fn bring(&self) -> Result<usize, KeepError> {
        let mut list = String::new();
        let mut bytes = Vec::new();
        let mut reading = self.connection.open_given(&list_prefix())?;
        reading.copy_to(&mut bytes).map_err(failed("the list of files"))?;
        self.connection.end_reading(reading)?;
        bytes
            .take(MAX_LIST)
            .read_to_string(&mut list)
            .map_err(failed("the list of files"))?;
        let mut places = Vec::new();
        for (number, name) in list.lines().enumerate().filter(|(_, name)| !name.is_empty()) {
            if self.files.get(number).map(String::as_str) != Some(name) {
                let changed = io::Error::other("the job has other checkpoint files now");
                return Err(KeepError::File(name.to_owned(), changed));
            }
            let path = self.directory.join(name);
            let made = path.parent().map_or(Ok(()), fs::create_dir_all);
            let place = made
                .and_then(|()| Destination::new(&path))
                .map_err(failed(name))?;
            places.push((number, name, place));
        }
        // All of them are here before the first one gets its name.
        let mut new = Vec::new();
        for (number, name, place) in &places {
            let mut reading = self.connection.open_given(&prefix(*number))?;
            let made = place.replacement(".checkpoint-", MODE).map_err(failed(name))?;
            reading.copy_to(&mut made.file()).map_err(failed(name))?;
            self.connection.end_reading(reading)?;
            new.push((*name, made));
        }
        for (name, made) in new {
            made.publish().map_err(failed(name))?;
        }
        Ok(places.len())
    }

    /// Saves the files from now on, until the result is dropped.
    pub(crate) fn watch(self) -> Watch {
        let started = self.start();
        started.unwrap_or_else(|(log, error)| {
            log.say(format_args!("The run does not keep checkpoint files: {error}"));
            Watch(None)
        })
    }

    fn start(self) -> Result<Watch, (Log, io::Error)> {
        let log = self.log.clone();
        let start = || {
            let changes = Changes::of(&self.directory, &self.files)?;
            let (ended, end) = io::pipe()?;
            let thread = std::thread::Builder::new().name("checkpoints".to_owned());
            let thread = thread.spawn(move || self.keep(&changes, &ended.into()))?;
            Ok(Watch(Some((end.into(), thread))))
        };
        start().map_err(|error| (log, error))
    }

    /// Saves the files whenever the program has closed or renamed one of them, until `end` says so.
    fn keep(&self, changes: &Changes, end: &OwnedFd) {
        let mut saved = self.looks();
        let mut may_save_at = Instant::now();
        let mut has_failed = false;
        let mut has_ended = false;
        while !has_ended {
            // Until something happens; then until nothing has happened for a while.
            has_ended = changes.wait(end, None);
            let mut looks = self.looks();
            while !has_ended {
                has_ended = changes.wait(end, Some(QUIET.max(may_save_at - Instant::now())));
                let now = self.looks();
                if std::mem::replace(&mut looks, now.clone()) == now && Instant::now() >= may_save_at {
                    break;
                }
            }
            looks = self.looks();
            if looks == saved || looks.is_empty() {
                continue;
            }
            let begun = Instant::now();
            match self.save(&looks) {
                Ok(()) => {
                    saved = looks;
                    has_failed = false;
                }
                Err(KeepError::Changed(_)) => changes.again(),
                Err(error) if has_failed => drop(error),
                Err(error) => {
                    has_failed = true;
                    self.log
                        .say(format_args!("Checkpoint files are not kept now: {error}"));
                }
            }
            may_save_at = Instant::now() + MIN_INTERVAL.max(begun.elapsed() * MAX_SHARE);
        }
    }

    fn looks(&self) -> Looks {
        let look = |name: &String| {
            let status = fs::metadata(self.directory.join(name)).ok()?;
            let times = [
                (status.mtime(), status.mtime_nsec()),
                (status.ctime(), status.ctime_nsec()),
            ];
            status
                .is_file()
                .then(|| (name.clone(), (status.len(), status.ino(), times)))
        };
        self.files.iter().filter_map(look).collect()
    }

    /// Saves all files as one series, if they still look so afterwards.
    fn save(&self, looks: &Looks) -> Result<(), KeepError> {
        // Each series has all prefixes: so their numbers are the same.
        let mut open = vec![self.connection.create(&list_prefix())?];
        let mut result = Ok(());
        for number in 0..self.files.len() {
            match self.connection.create(&prefix(number)) {
                Ok(file) => open.push(file),
                Err(error) => result = result.and(Err(error.into())),
            }
        }
        let result =
            result
                .and_then(|()| self.write(&mut open, looks))
                .and_then(|()| match self.looks() == *looks {
                    true => Ok(()),
                    false => Err(KeepError::Changed("them".to_owned())),
                });
        if result.is_err() {
            open.iter_mut().for_each(Writing::spoil);
        }
        let closed = open.into_iter().map(|file| self.connection.close(file));
        let closed: Vec<_> = closed.collect();
        result?;
        closed.into_iter().try_for_each(|closed| Ok(closed?))
    }

    fn write(&self, open: &mut [Writing], looks: &Looks) -> Result<(), KeepError> {
        let Some((list, open)) = open.split_first_mut() else {
            return Ok(());
        };
        let mut text = String::new();
        for (name, writing) in self.files.iter().zip(open) {
            if looks.contains_key(name) {
                text.push_str(name);
                self.copy(name, writing)?;
            }
            text.push('\n');
        }
        Ok(list.append(text.as_bytes())?)
    }

    fn copy(&self, name: &str, into: &mut Writing) -> Result<(), KeepError> {
        let mut file: File = pmc_files::open_input(&self.directory.join(name)).map_err(failed(name))?;
        let mut buffer = vec![0; CHUNK];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => into.append(buffer.get(..length).unwrap_or_default())?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(name)(error)),
            }
        }
    }
}

/// Adds the name of a file to what is wrong with it.
fn failed(name: &str) -> impl Fn(io::Error) -> KeepError {
    move |error| KeepError::File(name.to_owned(), error)
}

/// The prefix of the list of files.
fn list_prefix() -> String {
    format!("{WATCHED}Files")
}

/// The prefix of a file.
fn prefix(number: usize) -> String {
    format!("{WATCHED}{number}")
}

/// Saves checkpoint files until it is dropped, and once more then.
pub(crate) struct Watch(Option<(OwnedFd, JoinHandle<()>)>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

/// Says when the program has closed or renamed one of the files.
struct Changes {
    inotify: Inotify,
    /// Names of the files in the directories that are watched.
    names: Vec<(WatchDescriptor, Vec<String>)>,
    /// What has happened may have been seen too early.
    again: std::cell::Cell<bool>,
}

impl Changes {
    fn of(directory: &Path, files: &[String]) -> io::Result<Self> {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        let inotify = Inotify::init(flags)?;
        let mut folders: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
        for file in files {
            let path = directory.join(file);
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let folder = path.parent().unwrap_or(directory).to_owned();
            folders.entry(folder).or_default().push(name);
        }
        let mut names = Vec::new();
        for (folder, own) in folders {
            let events = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
            // Files in directories that the program makes are saved when it ends.
            if let Ok(watch) = inotify.add_watch(&folder, events) {
                names.push((watch, own));
            }
        }
        let again = std::cell::Cell::new(false);
        Ok(Self {
            inotify,
            names,
            again,
        })
    }

    /// Lets the next wait end at once.
    fn again(&self) {
        self.again.set(true);
    }

    /// Waits until a file has changed, or until `timeout` is over. Returns whether the other side of `end`
    /// was closed.
    fn wait(&self, end: &OwnedFd, timeout: Option<Duration>) -> bool {
        if timeout.is_none() && self.again.take() {
            return false;
        }
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map_or(PollTimeout::NONE, |left| {
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            });
            let mut watched = [
                PollFd::new(end.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
            ];
            // A signal is for others.
            let _ = poll(&mut watched, left);
            if watched[0].any() == Some(true) {
                return true;
            }
            let is_ours = self.has_event();
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            if is_over || (timeout.is_none() && is_ours) {
                return false;
            }
        }
    }

    /// Takes all events. Returns whether one of them is about one of the files, or about too many.
    fn has_event(&self) -> bool {
        let mut is_ours = false;
        while let Ok(events) = self.inotify.read_events() {
            is_ours |= events.iter().any(|event| {
                let of = |(watch, names): &(WatchDescriptor, Vec<String>)| {
                    let name = event.name.as_ref().map(|name| name.to_string_lossy());
                    *watch == event.wd && name.is_some_and(|name| names.iter().any(|own| *own == name))
                };
                event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) || self.names.iter().any(of)
            });
        }
        is_ours
    }
}
