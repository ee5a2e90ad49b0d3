//! Finds the file of a program.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::stat::Names;

/// The file of a program.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name.
    pub file: PathBuf,
    /// What the system says about it.
    pub status: Metadata,
}

/// The file that running `name` in `directory` means.
///
/// A name with a slash is relative to `directory`. Any other is looked for in the elements of `path`, then, as a
/// last resort, in `directory`: the original looks there first, which lets a file called `ls` in a scratch
/// directory take the place of the real one. The first regular file that may be executed counts; of those that
/// `names` knows, the system is not asked again.
///
/// # Errors
/// `ENOENT` if there is no such file, `EACCES` if none may be executed.
pub fn find(name: &OsStr, directory: &Path, path: Option<&[u8]>, names: &Names) -> Result<Found, Errno> {
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    if name.as_bytes().contains(&b'/') {
        return executable(directory.join(name), names);
    }
    let elements = path
        .unwrap_or_default()
        .split(|&byte| byte == b':')
        .filter(|element| !element.is_empty());
    let mut failure = Errno::ENOENT;
    for element in elements.map(OsStr::from_bytes).chain([OsStr::new("")]) {
        match executable(directory.join(element).join(name), names) {
            Ok(found) => return Ok(found),
            Err(Errno::EACCES) => failure = Errno::EACCES,
            Err(_) => {}
        }
    }
    Err(failure)
}

fn executable(file: PathBuf, names: &Names) -> Result<Found, Errno> {
    let status =
        fs::metadata(&file).map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    if !status.is_file() {
        return Err(Errno::ENOENT);
    }
    if !names.is_program(&file, &status) {
        access(&file, AccessFlags::X_OK)?;
    }
    Ok(Found { file, status })
}

/// Makes the file of `name` executable for everybody if it is not (`-X`). Failure shows when it is run.
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
    fn path_comes_before_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let here = program(folder.path(), "prog", 0o755);
        let there = program(folder.path(), "bin/prog", 0o755);
        let path = folder.path().join("bin").into_os_string();
        let find = |name: &str, path: Option<&[u8]>| {
            find(OsStr::new(name), folder.path(), path, &Names::default()).map(|found| found.file)
        };
        assert_eq!(find("prog", Some(path.as_bytes())), Ok(there));
        assert_eq!(find("prog", Some(b"/nowhere:")), Ok(here.clone()));
        assert_eq!(find("./prog", None), Ok(folder.path().join("./prog")));
        assert_eq!(find(here.to_str().unwrap(), None), Ok(here));
    }

    #[test]
    fn failures() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "data", 0o644);
        program(folder.path(), "execute-only", 0o111);
        let names = Names::default();
        let find = |name: &str| find(OsStr::new(name), folder.path(), Some(b"/usr/bin"), &names).map(drop);
        assert_eq!(find("nosuch"), Err(Errno::ENOENT));
        assert_eq!(find("/usr"), Err(Errno::ENOENT));
        assert_eq!(find(""), Err(Errno::ENOENT));
        assert_eq!(find("data"), Err(Errno::EACCES));
        assert!(find("execute-only").is_ok());
        make_executable(OsStr::new("data"), folder.path());
        assert!(find("data").is_ok());
    }
}
