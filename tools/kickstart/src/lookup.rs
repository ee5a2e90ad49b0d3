//! Finds the file of a program.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

/// The file of a program.
#[derive(Clone, Debug)]
pub struct Found {
    /// Name of the file.
    pub file: PathBuf,
    /// Status of the file.
    pub status: Metadata,
}

/// Finds the file that running `name` in `directory` would execute.
///
/// A name with a slash is relative to `directory`. Any other name is searched for in the elements of `path`,
/// and then in `directory`. The original searches `directory` first, which lets a file called `ls` in a
/// scratch directory replace the real one. The first regular file that may be executed counts.
///
/// # Errors
/// `ENOENT` if there is no such file, `EACCES` if none may be executed.
pub fn find(name: &OsStr, directory: &Path, path: Option<&[u8]>) -> Result<Found, Errno> {
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    if name.as_bytes().contains(&b'/') {
        return executable(directory.join(name));
    }
    let elements = path
        .unwrap_or_default()
        .split(|&byte| byte == b':')
        .filter(|element| !element.is_empty());
    let mut failure = Errno::ENOENT;
    for element in elements.map(OsStr::from_bytes).chain([OsStr::new("")]) {
        match executable(directory.join(element).join(name)) {
            Ok(found) => return Ok(found),
            Err(Errno::EACCES) => failure = Errno::EACCES,
            Err(_) => {}
        }
    }
    Err(failure)
}

fn executable(file: PathBuf) -> Result<Found, Errno> {
    let status =
        fs::metadata(&file).map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    if !status.is_file() {
        return Err(Errno::ENOENT);
    }
    access(&file, AccessFlags::X_OK)?;
    Ok(Found { file, status })
}

/// Makes the file of `name` executable for all users unless it is executable (`-X`). A failure shows when it
/// is run.
pub fn make_executable(name: &OsStr, directory: &Path) {
    let file = directory.join(name);
    if access(&file, AccessFlags::R_OK | AccessFlags::X_OK).is_ok() {
        return;
    }
    if let Ok(status) = fs::metadata(&file)
        && status.is_file()
    {
        let mode = status.permissions().mode() | 0o555;
        let _ = fs::set_permissions(&file, fs::Permissions::from_mode(mode));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(folder: &Path, name: &str, mode: u32) -> PathBuf {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn path_precedes_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let here = program(folder.path(), "prog", 0o755);
        let there = program(folder.path(), "bin/prog", 0o755);
        let path = folder.path().join("bin").into_os_string();
        let find = |name: &str, path: Option<&[u8]>| {
            find(OsStr::new(name), folder.path(), path).map(|found| found.file)
        };
        assert_eq!(find("prog", Some(path.as_bytes())), Ok(there));
        assert_eq!(find("prog", Some(b"/nowhere:")), Ok(here.clone()));
        assert_eq!(find("./prog", None), Ok(folder.path().join("./prog")));
        assert_eq!(find(here.to_str().unwrap(), None), Ok(here));
    }

    #[test]
    fn missing_and_forbidden_files_differ() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "data", 0o644);
        program(folder.path(), "execute-only", 0o111);
        let find = |name: &str| find(OsStr::new(name), folder.path(), Some(b"/usr/bin")).map(drop);
        assert_eq!(find("nosuch"), Err(Errno::ENOENT));
        assert_eq!(find("/usr"), Err(Errno::ENOENT));
        assert_eq!(find(""), Err(Errno::ENOENT));
        assert_eq!(find("data"), Err(Errno::EACCES));
        assert!(find("execute-only").is_ok());
        make_executable(OsStr::new("data"), folder.path());
        assert!(find("data").is_ok());
    }
}
