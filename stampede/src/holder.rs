//! One loader a directory: `monitord.pid`.
//!
//! The file names the process and its host, and is locked as long as the loader lives. The lock is that
//! of an open file description, which network file systems pass on to other hosts.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// The lock; the file is removed with it.
#[derive(Debug)]
pub struct Holder {
    file: File,
    path: PathBuf,
}

/// Why there is no lock.
#[derive(Debug)]
pub enum NotHeld {
    /// Another loader is at work; its process and host.
    By(String),
    /// The file cannot be written.
    Io(io::Error),
}

/// Whether the holder's file is locked, or could not be.
pub type Locked = Result<(), Errno>;

fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        // The constants fit by the definition of the structure.
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

impl Holder {
    /// Takes the lock or fails at once. `stamp` is the time for the file's readers. With the lock comes
    /// whether the file system has locks at all.
    ///
    /// # Errors
    /// Somebody has it, or the file cannot be written.
    pub fn acquire(path: &Path, stamp: &str) -> Result<(Self, Locked), NotHeld> {
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(NotHeld::Io)?;
            let locked = match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))) {
                Ok(_) => Ok(()),
                Err(Errno::EAGAIN | Errno::EACCES) => return Err(NotHeld::By(read_holder(&mut file))),
                Err(error) => Err(error),
            };
            // The loader before may have removed the file after it was opened here.
            let mine = file.metadata().map_err(NotHeld::Io)?;
            let same = path
                .metadata()
                .is_ok_and(|now| (now.dev(), now.ino()) == (mine.dev(), mine.ino()));
            if !same {
                continue;
            }
            let host = gethostname::gethostname();
            let text = format!(
                "pid {}\ntimestamp {stamp}\nhost {}\n",
                std::process::id(),
                host.display()
            );
            let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
            written.map_err(NotHeld::Io)?;
            return Ok((
                Self {
                    file,
                    path: path.to_owned(),
                },
                locked,
            ));
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // While the lock is held, so that no other loader's file is removed.
        let _ = std::fs::remove_file(&self.path);
        let _ = self.file.flush();
    }
}

/// `123 on node7`.
fn read_holder(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.take(4096).read_to_string(&mut text);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let pid = value("pid ").unwrap_or("(unknown)");
    match value("host ") {
        Some(host) => format!("{pid} on {host}"),
        None => pid.to_owned(),
    }
}

/// Whether somebody holds the lock of a DAG, as the executor does while it runs. `None` if that cannot
/// be found out.
#[must_use]
pub fn is_locked(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    // Reading suffices to ask, and to take a lock for reading one would disturb the other.
    let mut asked = whole_file(libc::F_RDLCK);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut asked)).ok()?;
    Some(libc::c_int::from(asked.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monitord.pid");
        // What a killed loader left behind holds nobody up.
        std::fs::write(&path, "pid 1\n").unwrap();
        let (first, locked) = Holder::acquire(&path, "now").unwrap();
        assert_eq!(locked, Ok(()));
        assert_eq!(is_locked(&path), Some(true));
        match Holder::acquire(&path, "later") {
            Err(NotHeld::By(holder)) => {
                assert!(
                    holder.starts_with(&format!("{} on ", std::process::id())),
                    "{holder}"
                );
            }
            other => panic!("{other:?}"),
        }
        drop(first);
        assert!(!path.exists());
        assert!(Holder::acquire(&path, "later").is_ok());
        assert_eq!(is_locked(&dir.path().join("none")), None);
    }
}
