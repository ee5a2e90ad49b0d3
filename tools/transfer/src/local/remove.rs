//! Removes files and directories.

use std::fs;
use std::io;
use std::path::{Component, Path};

use crate::error::TransferError;

/// Removes a file or link, or with `recursive` a directory and its content without following links. A missing
/// file counts as removed. The root directory and names that end in `.` or `..` are refused.
pub fn remove(path: &Path, recursive: bool) -> Result<(), TransferError> {
    let error = |error| TransferError::io("remove", path, error);
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(cause) if is_gone(&cause) => return Ok(()),
        Err(cause) => return Err(error(cause)),
    };
    let result = if !meta.is_dir() {
        fs::remove_file(path)
    } else if !recursive {
        return Err(TransferError::IsADirectory(path.to_owned()));
    } else {
        check_directory(path)?;
        fs::remove_dir_all(path)
    };
    match result {
        Err(cause) if !is_gone(&cause) => Err(error(cause)),
        _ => Ok(()),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Rejects directories whose removal must be a mistake.
fn check_directory(path: &Path) -> Result<(), TransferError> {
    let refused = || Err(TransferError::RefusedRemoval(path.to_owned()));
    let last_part = path
        .as_os_str()
        .as_encoded_bytes()
        .rsplit(|b| *b == b'/')
        .find(|part| !part.is_empty());
    if matches!(path.components().next_back(), Some(Component::ParentDir) | None)
        || matches!(last_part, Some(b"." | b".."))
    {
        return refused();
    }
    let real = fs::canonicalize(path).map_err(|error| TransferError::io("examine", path, error))?;
    if real.parent().is_none() {
        refused()
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_dots_are_refused() {
        for path in ["/", "//", ".", "..", "./", "/tmp/..", "/tmp/.", "/usr/../"] {
            assert!(
                matches!(
                    remove(Path::new(path), true),
                    Err(TransferError::RefusedRemoval(_))
                ),
                "{path}"
            );
        }
    }

    #[test]
    fn missing_file_counts_as_removed() {
        let dir = tempfile::tempdir().expect("directory");
        let file = dir.path().join("f");
        fs::write(&file, "x").expect("write");
        for path in [
            dir.path().join("none"),
            file.join("below-a-file"),
            dir.path().join("no/such/dir"),
        ] {
            remove(&path, true).expect("missing is fine");
            remove(&path, false).expect("missing is fine");
        }
        remove(&file, false).expect("file");
        assert!(!file.exists());
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().expect("directory");
        let kept = dir.path().join("kept");
        fs::create_dir_all(kept.join("sub")).expect("mkdir");
        let gone = dir.path().join("gone");
        fs::create_dir(&gone).expect("mkdir");
        std::os::unix::fs::symlink(&kept, gone.join("link")).expect("link");
        assert!(matches!(
            remove(&gone, false),
            Err(TransferError::IsADirectory(_))
        ));
        remove(&gone, true).expect("directory");
        assert!(!gone.exists() && kept.join("sub").is_dir());
        let link = dir.path().join("direct");
        std::os::unix::fs::symlink(&kept, &link).expect("link");
        remove(&link, true).expect("link");
        assert!(fs::symlink_metadata(&link).is_err() && kept.is_dir());
    }
}
