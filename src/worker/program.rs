//! Finds a task's program.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// Exit code of kickstart, `env` and shells for a program that they cannot run.
const NOT_RUNNABLE: i32 = 127;

/// Returns the file to execute for the first word of a command. A word with a slash is a path. Others are
/// searched in the current folder first, then in the folders of PATH. A word that is not found is returned
/// unchanged, so that executing it gives the error.
pub(super) fn find<'a>(word: &'a [u8], path: &[PathBuf]) -> Cow<'a, Path> {
    let plain = Path::new(OsStr::from_bytes(word));
    if is_program(plain) {
        Cow::Borrowed(plain)
    } else {
        find_in_path(word, path).unwrap_or(Cow::Borrowed(plain))
    }
}

/// As [`find`], but does not search the current folder. `None` if a word without a slash is not on PATH.
pub(super) fn find_in_path<'a>(word: &'a [u8], path: &[PathBuf]) -> Option<Cow<'a, Path>> {
    let plain = Path::new(OsStr::from_bytes(word));
    if word.is_empty() || word.contains(&b'/') {
        return Some(Cow::Borrowed(plain));
    }
    let found = path
        .iter()
        .map(|folder| folder.join(plain))
        .find(|file| is_program(file));
    found.map(Cow::Owned)
}

/// Returns whether an error says that the program is missing, or is no program. Another attempt on this host
/// has the same error.
pub(super) fn is_unusable(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    use Errno::{EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOEXEC, ENOTDIR};
    matches!(
        errno,
        Some(EACCES | EISDIR | ELOOP | ENAMETOOLONG | ENOENT | ENOEXEC | ENOTDIR)
    )
}

/// Returns whether kickstart, or what else runs the program of a command, has ended with this wait status
/// because the program is missing or cannot be executed. Programs without an absolute path are not looked
/// for: kickstart searches them with variables and a folder of its own.
pub(super) fn is_missing_behind(words: &[Vec<u8>], status: i32) -> bool {
    let application = Path::new(OsStr::from_bytes(pmc_calls::application(words)));
    status == NOT_RUNNABLE << 8 && application.is_absolute() && !is_program(application)
}

/// Returns whether this is a regular file with an execute bit.
fn is_program(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn path_is_searched_for_executable_files() {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in [("a/tool", 0o644), ("b/tool", 0o755), ("c/tool", 0o755)] {
            let file = folder.path().join(name);
            fs::create_dir(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(folder.path().join("a/folder")).unwrap();
        let path: Vec<PathBuf> = ["a", "b", "c"].iter().map(|f| folder.path().join(f)).collect();
        assert_eq!(find(b"tool", &path), folder.path().join("b/tool"));
        assert_eq!(find(b"folder", &path), Path::new("folder"));
        assert_eq!(find(b"no-such-tool", &path), Path::new("no-such-tool"));
        assert_eq!(find(b"./tool", &path), Path::new("./tool"));
        assert_eq!(find(b"", &path), Path::new(""));
        assert_eq!(find_in_path(b"no-such-tool", &path), None);
    }

    #[test]
    fn a_program_may_be_missing_behind_kickstart() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        fs::write(&plain, "").unwrap();
        let is_missing = |program: &str, code: i32| {
            let words = ["/p/pegasus-kickstart", "-n", "x", program, "a"];
            is_missing_behind(&words.map(|word| word.as_bytes().to_vec()), code << 8)
        };
        assert!(is_missing("/no/such/program", 127));
        assert!(is_missing(plain.to_str().unwrap(), 127));
        // The program itself, or a script that it is, has ended so.
        assert!(!is_missing("/bin/sh", 127));
        assert!(!is_missing("/no/such/program", 1));
        assert!(!is_missing("program", 127));
    }

    #[test]
    fn current_folder_comes_first() {
        // Tests run in the folder of the package.
        assert_eq!(find(b"Cargo.toml", &[]), Path::new("Cargo.toml"));
        assert_eq!(find_in_path(b"Cargo.toml", &[]), None);
        assert!(!is_program(Path::new("Cargo.toml")));
    }
}
