//! Opens files that may be named pipes.
//!
//! Opening a named pipe waits for its other end. Here a signal or the time limit of the jobs ends that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, tee};
use nix::sys::signal::Signal;

use crate::interrupts::{Interrupt, Interrupts};
use crate::wait::poll_interrupts;

/// Time between two looks at the other end of a pipe.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes per read.
const CHUNK: usize = 64 * 1024;

/// For how long an invocation waits for the other ends of pipes.
#[derive(Debug)]
pub struct Patience {
    until: Option<Instant>,
    /// A signal has come.
    is_over: bool,
}

/// What ends waiting.
pub struct Waiting<'a> {
    /// For how long.
    pub patience: &'a mut Patience,
    /// Signals.
    pub interrupts: &'a mut dyn Interrupts,
}

impl Patience {
    /// Waits for at most this time from now on.
    #[must_use]
    pub fn new(limit: Option<Duration>) -> Self {
        Self {
            until: limit.and_then(|limit| Instant::now().checked_add(limit)),
            is_over: false,
        }
    }

    /// Never waits.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Some(Duration::ZERO))
    }
}

impl Waiting<'_> {
    /// Waits a moment. True if the descriptor is ready.
    fn moment(&mut self, watched: Option<&OwnedFd>) -> io::Result<bool> {
        let ended = |kind, what| {
            Err(io::Error::new(
                kind,
                format!("nobody has opened its other end {what}"),
            ))
        };
        if self.patience.is_over {
            return ended(io::ErrorKind::Interrupted, "before a signal came");
        }
        let now = Instant::now();
        let left = self
            .patience
            .until
            .map(|until| until.saturating_duration_since(now));
        if left.is_some_and(|left| left.is_zero()) {
            return ended(io::ErrorKind::TimedOut, "within the time limit");
        }
        self.look(
            left.map_or(LOOK_INTERVAL, |left| left.min(LOOK_INTERVAL)),
            watched,
        )
    }

    /// Returns whether a signal has asked for the end, or the client has gone.
    pub fn is_over(&mut self) -> bool {
        // A descriptor that cannot be polled asks for nothing.
        let _ = self.look(Duration::ZERO, None);
        self.patience.is_over
    }

    /// Takes signals for this time. True if the descriptor is ready.
    fn look(&mut self, pause: Duration, watched: Option<&OwnedFd>) -> io::Result<bool> {
        let woken = poll_interrupts(Some(pause), watched, self.interrupts)?;
        if woken.abandoned {
            self.interrupts.abandoned();
            self.patience.is_over = true;
        }
        while let Some(interrupt) = self.interrupts.take() {
            // The others ask a program to do something, and none runs.
            let ends = |signal| !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2);
            self.patience.is_over |= matches!(interrupt, Interrupt::Forward(signal) if ends(signal));
        }
        Ok(woken.watched)
    }
}

/// Opens a file for reading. Waits for the writer of a named pipe.
///
/// # Errors
/// The file cannot be read, or there is no writer in time.
pub fn open_input(path: &Path, waiting: &mut Waiting<'_>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.file_type().is_fifo() {
        return blocking(file);
    }
    let pipe = OwnedFd::from(file);
    while !has_writer(&pipe)? && !waiting.moment(Some(&pipe))? {}
    blocking(pipe.into())
}

/// Opens a file for writing. Waits for the reader of a named pipe.
///
/// # Errors
/// The file cannot be written, or there is no reader in time.
pub fn open_output(path: &Path, options: &OpenOptions, waiting: &mut Waiting<'_>) -> io::Result<File> {
    loop {
        match open_if_ready(path, options) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_fifo(path) => {
                waiting.moment(None)?;
            }
            opened => return opened,
        }
    }
}

/// Opens a file for writing. Does not wait.
///
/// # Errors
/// The file cannot be written, or is a named pipe without a reader.
pub fn open_if_ready(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let mut options = options.clone();
    blocking(options.custom_flags(libc::O_NONBLOCK).open(path)?)
}

/// Reads a file of at most `max` bytes, which may be a named pipe.
///
/// # Errors
/// As [`open_input`], or it is larger, or its writer writes nothing in time.
pub fn read(path: &Path, max: u64, waiting: &mut Waiting<'_>) -> io::Result<Vec<u8>> {
    let file = open_input(path, waiting)?;
    if !file.metadata()?.file_type().is_fifo() {
        return pmc_files::read_rest(&pmc_files::open_input(path)?, max);
    }
    let (pipe, mut bytes) = (OwnedFd::from(file.try_clone()?), Vec::new());
    loop {
        while !waiting.moment(Some(&pipe))? {}
        let mut chunk = vec![0; CHUNK];
        let length = (&file).read(&mut chunk)?;
        bytes.extend_from_slice(chunk.get(..length).unwrap_or_default());
        if length == 0 || bytes.len() as u64 > max {
            return pmc_files::read_at_most(&bytes[..], max);
        }
    }
}

fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|status| status.file_type().is_fifo())
}

/// Returns whether a pipe has a writer, or what one has written.
fn has_writer(pipe: &OwnedFd) -> io::Result<bool> {
    // Copying what is in the pipe does not take it out.
    let (_reader, writer) = io::pipe()?;
    match tee(pipe, &writer, 1, SpliceFFlags::SPLICE_F_NONBLOCK) {
        Ok(0) => Ok(false),
        Ok(_) | Err(Errno::EAGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Lets the reads and writes of a file wait.
fn blocking(file: File) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
        fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    }
    Ok(file)
}

/// Calls something that waits at most this time.
#[cfg(test)]
pub(crate) fn within<R>(limit: Duration, act: impl FnOnce(&mut Waiting<'_>) -> R) -> R {
    act(&mut Waiting {
        patience: &mut Patience::new(Some(limit)),
        interrupts: &mut crate::interrupts::Uninterrupted,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::PathBuf;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// Time in which nobody comes.
    const SHORT: Duration = Duration::from_millis(60);

    const LONG: Duration = Duration::from_secs(60);

    fn pipe() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        (folder, path)
    }

    fn appending() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        options
    }

    #[test]
    fn a_pipe_whose_other_end_nobody_opens_is_an_error_in_time() {
        let (_folder, path) = pipe();
        let input = within(SHORT, |waiting| open_input(&path, waiting)).unwrap_err();
        let output = within(SHORT, |waiting| open_output(&path, &appending(), waiting)).unwrap_err();
        let list = within(SHORT, |waiting| read(&path, 9, waiting)).unwrap_err();
        for error in [input, output, list] {
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(
                error.to_string(),
                "nobody has opened its other end within the time limit"
            );
        }
        let error = open_if_ready(&path, &appending()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
    }

    #[test]
    fn a_writer_that_comes_later_is_waited_for() {
        let (_folder, path) = pipe();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                std::thread::sleep(SHORT);
                OpenOptions::new().write(true).open(&path).unwrap()
            });
            // It need not write.
            let mut file = within(LONG, |waiting| open_input(&path, waiting)).unwrap();
            let mut writer = writer.join().unwrap();
            writer.write_all(b"text").unwrap();
            drop(writer);
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
        });
    }

    #[test]
    fn a_reader_that_comes_later_is_waited_for() {
        let (_folder, path) = pipe();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                std::thread::sleep(SHORT);
                fs::read(&path).unwrap()
            });
            let mut file = within(LONG, |waiting| open_output(&path, &appending(), waiting)).unwrap();
            // More than a pipe holds: writing waits.
            file.write_all(&[b'x'; 200_000]).unwrap();
            drop(file);
            assert_eq!(reader.join().unwrap().len(), 200_000);
        });
    }

    #[test]
    fn a_list_from_a_pipe_has_a_limit_of_bytes_and_time() {
        let (_folder, path) = pipe();
        let list = |text: &'static [u8]| {
            std::thread::scope(|scope| {
                scope.spawn(|| fs::write(&path, text).unwrap());
                within(LONG, |waiting| read(&path, 9, waiting))
            })
        };
        assert_eq!(list(b"a\nb\n").unwrap(), b"a\nb\n");
        assert!(list(b"0123456789").is_err());
        // A writer that writes nothing.
        let _writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let error = within(SHORT, |waiting| read(&path, 9, waiting)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn other_files_are_opened_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        within(SHORT, |waiting| {
            open_output(&path, &appending(), waiting)
                .unwrap()
                .write_all(b"ab")
                .unwrap();
            assert_eq!(read(&path, 2, waiting).unwrap(), b"ab");
            assert!(read(&path, 1, waiting).is_err());
            assert!(read(folder.path(), 1, waiting).is_err());
            let null = open_output(Path::new("/dev/null"), &appending(), waiting).unwrap();
            let flags = OFlag::from_bits_retain(fcntl(&null, FcntlArg::F_GETFL).unwrap());
            assert!(!flags.contains(OFlag::O_NONBLOCK));
        });
    }
}
