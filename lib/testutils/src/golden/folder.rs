//! Golden cases as folders, as the programs that record them read and write them.

use std::fs;
use std::io;
use std::path::Path;

use crate::txtar::{Archive, TxtarError};

/// The file of a folder that becomes the comment of the archive.
const COMMENT: &str = "about.md";

/// The first files of a case, in their order. Others follow, and what is below `expected` is last.
const FIRST: [&str; 5] = ["args", "np", "compare.json", "env", "run.json"];

/// The first files below `expected`.
const FIRST_EXPECTED: [&str; 5] = ["exit", "stdout", "stderr", "files", "tree/"];

/// Makes the archive of a recorded case. The comment is `about.md` without a heading in its first line.
///
/// # Errors
/// A file cannot be read, or has content that an archive cannot have.
pub fn pack(folder: &Path) -> Result<Archive, TxtarError> {
    let mut archive = Archive::read_folder(folder)?;
    if let Some(at) = archive.files.iter().position(|file| file.path == COMMENT) {
        let text = archive.files.remove(at).content;
        let heading = text.starts_with("# ");
        let text = if heading {
            text.split_once('\n').map_or("", |(_, rest)| rest)
        } else {
            &text
        };
        archive.comment = format!("{}\n\n", text.trim());
    }
    archive.files.sort_by_cached_key(|file| order(&file.path));
    Ok(archive)
}

/// Writes a case as a folder, for the programs that record it again.
///
/// # Errors
/// The file system refuses.
pub fn unpack(archive: &Archive, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(COMMENT), format!("{}\n", archive.comment.trim_end()))?;
    let mut files = archive.files.iter();
    files.try_for_each(|file| file.write(&folder.join(&file.path)))
}

/// Sorts files by their role, those of the second run (`args.2`, `expected/exit.2`) behind those of the
/// first, and others by path.
fn order(path: &str) -> (bool, u32, usize, u32, String) {
    let expected = path.strip_prefix("expected/");
    let first = if expected.is_some() {
        &FIRST_EXPECTED
    } else {
        &FIRST
    };
    let name = expected.unwrap_or(path);
    let find = |name: &str| {
        let has_role = |role: &str| name == role || (role.ends_with('/') && name.starts_with(role));
        first.iter().position(|role| has_role(role))
    };
    let of_run = || {
        let (role, run) = name.rsplit_once('.')?;
        Some((find(role)?, run.parse().ok()?))
    };
    let (rank, run) = match find(name) {
        Some(rank) => (rank, 0),
        None => of_run().unwrap_or((first.len(), 0)),
    };
    let block = if expected.is_some() { run } else { 0 };
    (expected.is_some(), block, rank, run, path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::Case;

    #[test]
    fn cases_survive_being_folders() {
        for kind in ["executor", "planner"] {
            for case in Case::read_all(kind) {
                let folder = tempfile::tempdir().expect("a directory");
                unpack(&case.archive, folder.path()).expect("a folder");
                let mut packed = pack(folder.path()).expect("an archive");
                let mut expected = case.archive.clone();
                assert_eq!(packed.comment.trim_end(), expected.comment.trim_end());
                packed.files.sort_by(|a, b| a.path.cmp(&b.path));
                expected.files.sort_by(|a, b| a.path.cmp(&b.path));
                assert_eq!(packed.files, expected.files, "{}", case.name);
            }
        }
    }

    #[test]
    fn files_stand_in_the_order_in_which_they_are_read() {
        let mut paths = vec![
            "expected/stdout.2",
            "expected/exit.10",
            "expected/tree/a",
            "expected/files",
            "expected/exit",
            "case.dag",
            "args.10",
            "args.9",
            "np",
            "args",
        ];
        paths.sort_by_cached_key(|path| order(path));
        assert_eq!(
            paths,
            [
                "args",
                "args.9",
                "args.10",
                "np",
                "case.dag",
                "expected/exit",
                "expected/files",
                "expected/tree/a",
                "expected/stdout.2",
                "expected/exit.10",
            ]
        );
    }
}
