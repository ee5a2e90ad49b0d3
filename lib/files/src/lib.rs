//! Opens files in directories that may belong to other users.
//!
//! A view of a run must neither wait for a FIFO, nor read a device, nor fill the memory, nor follow a link
//! that somebody else has planted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// Opens a regular file for reading. Never waits.
///
/// A link is followed if it belongs to the user of this process or to root.
///
/// # Errors
/// The file cannot be opened, is not a regular file, or is the link of another user.
pub fn open(path: &Path) -> io::Result<File> {
    let entry = fs::symlink_metadata(path)?;
    if entry.is_symlink() && !is_trusted(entry.uid()) {
        return Err(refused("is a link of another user"));
    }
    open_regular(path, &fs::metadata(path)?)
}

/// `about` is what the path leads to: opening a device can have effects.
fn open_regular(path: &Path, about: &fs::Metadata) -> io::Result<File> {
    check_regular(about)?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    // It can have been replaced in between.
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `max` bytes. See [`open`].
///
/// # Errors
/// The file cannot be opened or read, or is larger.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(refused(&format!("is larger than {max} bytes")));
    }
    Ok(bytes)
}

/// Reads a UTF-8 text like [`read`].
///
/// # Errors
/// The same, or the file is not UTF-8.
pub fn read_to_string(path: &Path, max: u64) -> io::Result<String> {
    String::from_utf8(read(path, max)?).map_err(|_| refused("is not UTF-8 text"))
}

/// Opens an input of a program: a regular file, or a pipe or device that is no trap of another user.
///
/// # Errors
/// The file cannot be opened, or is not a regular file and belongs to another user than root.
pub fn open_input(path: &Path) -> io::Result<File> {
    let about = fs::metadata(path)?;
    match about.is_file() || !is_trusted(about.uid()) {
        true => open_regular(path, &about),
        false => File::open(path),
    }
}

/// Largest list that a tool reads, in bytes: that of some million transfers.
pub const MAX_LIST: u64 = 1 << 30;

/// Reads the rest of a file of any kind, also a pipe, of at most `max` bytes.
///
/// # Errors
/// The file cannot be read, or is larger. The size of a regular file is known before it is read.
pub fn read_rest(mut file: &File, max: u64) -> io::Result<Vec<u8>> {
    let data = file.metadata()?;
    if data.is_file() && data.len().saturating_sub(file.stream_position()?) > max {
        return Err(too_large(max));
    }
    read_at_most(file, max)
}

/// Reads all that is left, at most `max` bytes.
///
/// # Errors
/// It cannot be read, or is more.
pub fn read_at_most(input: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(too_large(max));
    }
    Ok(bytes)
}

fn too_large(max: u64) -> io::Error {
    refused(&format!("larger than {} MiB, the most that is read", max >> 20))
}

/// Opens a regular file with these options for writing. Follows no link and never waits.
///
/// # Errors
/// The file cannot be opened, is not a regular file, or is a link.
pub fn open_for_writing(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = options.custom_flags(flags.bits()).open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Creates a file instead of the one that an interrupted program may have left. Follows no link.
///
/// # Errors
/// The file cannot be removed or created.
pub fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(path)
}

/// Returns the file that a new version will replace: `path`, or what the link `path` leads to.
///
/// # Errors
/// There is something that is not a regular file, for example a device, which a rename would destroy.
pub fn replaceable(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Ok(entry) if entry.is_symlink() => {
            let target = fs::canonicalize(path)?;
            check_regular(&fs::metadata(&target)?)?;
            Ok(target)
        }
        Ok(entry) => check_regular(&entry).map(|()| path.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(error),
    }
}

/// Returns whether a file belongs to the user of this process or to root. False if there is no such file.
#[must_use]
pub fn is_of_trusted_user(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| is_trusted(data.uid()))
}

/// Returns whether a file belongs to the user of this process. False if there is no such file.
#[must_use]
pub fn is_of_user(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.uid() == nix::unistd::geteuid().as_raw())
}

/// Returns whether links of a user are followed.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == nix::unistd::geteuid().as_raw()
}

fn check_regular(data: &fs::Metadata) -> io::Result<()> {
    let kind = data.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let kind = if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(refused(&format!("is {kind}, not a regular file")))
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;

    use super::*;

    fn reason<T>(result: io::Result<T>) -> String {
        result.err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn lists_have_a_limit() {
        const MAX: u64 = 3 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        let file = File::create_new(&path).unwrap();
        let text = "larger than 3 MiB, the most that is read";
        for (len, expected) in [(0, ""), (MAX, ""), (MAX + 1, text)] {
            file.set_len(len).unwrap();
            let file = File::open(&path).unwrap();
            let read = read_at_most(&file, MAX);
            assert_eq!(
                read.as_ref().map_or(0, Vec::len) as u64,
                if len > MAX { 0 } else { len }
            );
            assert_eq!(reason(read), expected);
            let mut file = File::open(&path).unwrap();
            assert_eq!(reason(read_rest(&file, MAX)), expected);
            file.seek(io::SeekFrom::Start(1)).unwrap();
            assert_eq!(reason(read_rest(&file, MAX)), "", "what is left counts");
        }
        // As sparse files show, a regular file is refused before it is read.
        file.set_len(1 << 40).unwrap();
        assert_eq!(reason(read_rest(&File::open(&path).unwrap(), MAX)), text);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        assert_eq!(reason(open(&fifo)), "is a FIFO, not a regular file");
        assert_eq!(
            reason(open(Path::new("/dev/zero"))),
            "is a device, not a regular file"
        );
        assert_eq!(reason(open(dir.path())), "is a directory, not a regular file");
        let link = dir.path().join("link");
        symlink("/dev/zero", &link).unwrap();
        assert_eq!(reason(open(&link)), "is a device, not a regular file");
        assert_eq!(
            open(&dir.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn inputs_are_no_traps_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let own = fifo.clone();
        let writer = std::thread::spawn(move || fs::write(own, "text"));
        assert_eq!(read_at_most(open_input(&fifo).unwrap(), 9).unwrap(), b"text");
        writer.join().unwrap().unwrap();
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: the other half of inputs_are_no_traps_of_others needs root");
            return;
        }
        std::os::unix::fs::chown(&fifo, Some(65534), None).unwrap();
        assert_eq!(reason(open_input(&fifo)), "is a FIFO, not a regular file");
    }

    #[test]
    fn own_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read_to_string(&link, 4).unwrap(), "text");
        assert_eq!(reason(read(&link, 3)), "is larger than 3 bytes");
        assert_eq!(replaceable(&link).unwrap(), file.canonicalize().unwrap());
    }

    #[test]
    fn links_of_others_are_not_followed() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: links_of_others_are_not_followed needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        assert_eq!(reason(open(&link)), "is a link of another user");
        assert!(is_of_trusted_user(&file));
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert!(!is_of_trusted_user(&file));
    }

    #[test]
    fn writing_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        assert!(open_for_writing(&link, OpenOptions::new().append(true)).is_err());
        open_for_writing(&file, OpenOptions::new().append(true)).unwrap();
        create_anew(&link).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
    }

    #[test]
    fn devices_are_not_replaced() {
        assert_eq!(
            reason(replaceable(Path::new("/dev/null"))),
            "is a device, not a regular file"
        );
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new");
        assert_eq!(replaceable(&new).unwrap(), new);
    }
}
