//! Which file a program is: in the directory of the launch, else one of `PATH`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Returns the file of a program. A name with a slash is a path. The current directory is that of the launch.
///
/// # Errors
/// There is none, or it cannot be executed: why.
pub(super) fn find(word: &[u8], path: Option<&[u8]>) -> Result<PathBuf, String> {
    let name = OsStr::from_bytes(word);
    if word.contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let is_program = |file: &Path| file.is_file() && access(file, AccessFlags::X_OK).is_ok();
    let here = Path::new(".").join(name);
    if is_program(&here) {
        return Ok(here);
    }
    let folders = path.unwrap_or(b"/usr/bin:/bin").split(|byte| *byte == b':');
    let files = folders.filter(|folder| !folder.is_empty());
    let mut files = files.map(|folder| Path::new(OsStr::from_bytes(folder)).join(name));
    let found = files.find(|file| is_program(file));
    found.ok_or_else(|| match here.is_file() {
        true => "permission denied".to_owned(),
        false => "it is neither in the directory nor in PATH".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_paths_or_in_folders_of_path() {
        assert_eq!(find(b"./x", None), Ok(PathBuf::from("./x")));
        assert_eq!(find(b"sh", Some(b"/nowhere::/bin")), Ok(PathBuf::from("/bin/sh")));
        assert_eq!(
            find(b"no-such-program", None).unwrap_err(),
            "it is neither in the directory nor in PATH"
        );
        // A file of this package that is no program.
        assert_eq!(find(b"Cargo.toml", None).unwrap_err(), "permission denied");
    }
}
