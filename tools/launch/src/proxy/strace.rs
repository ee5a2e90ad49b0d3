//! Ranks that run below `strace`.
//!
//! The rank is the process that this one starts, and `strace` a child of it, in a group of its own (`-DD`).
//! So signals reach the rank and not what watches it, and a rank ends with its proxy as ever.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use pmc_files::{Folder, Owner};

use super::program;
use crate::frames::{Bytes, Strace};

/// What is executed in place of a program, and its arguments.
pub(super) struct Wrapped {
    pub(super) file: PathBuf,
    pub(super) words: Vec<Bytes>,
}

/// Puts `strace` before the command of a rank, if this rank has it. On failure, returns what failed, and why.
pub(super) fn wrap(
    strace: Option<&Strace>,
    rank: u32,
    (file, words): (&Path, &[Bytes]),
    path: Option<&[u8]>,
) -> Result<Option<Wrapped>, (String, String)> {
    let Some(strace) = strace.filter(|strace| strace.ranks.contains(&rank)) else {
        return Ok(None);
    };
    let Some(tracer) = program::find_in_path(b"strace", path) else {
        let why = "it is not installed, and --strace needs it";
        return Err(("strace".to_owned(), why.to_owned()));
    };
    // What strace says of such a program comes too late.
    access(file, AccessFlags::X_OK).map_err(|error| (file.display().to_string(), error.desc().to_owned()))?;
    let directory = Path::new(std::ffi::OsStr::from_bytes(&strace.directory.0));
    let output = create(directory, &format!("strace.{}.{rank}", strace.job)).map_err(|error| {
        (
            directory.display().to_string(),
            pmc_dag::reason(&error).to_string(),
        )
    })?;
    let text = |text: &str| Bytes(text.as_bytes().to_vec());
    let bytes = |path: &Path| Bytes(path.as_os_str().to_owned().into_vec());
    let mut all = vec![text("strace"), text("-DD"), text("-o"), bytes(&output)];
    all.extend(strace.options.iter().cloned());
    all.extend([text("--"), bytes(file)]);
    all.extend(words.iter().skip(1).cloned());
    Ok(Some(Wrapped {
        file: tracer,
        words: all,
    }))
}

/// Creates the file of a rank. `strace` opens it by its name: so nobody else may put a link in its place.
fn create(directory: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = Folder::find(directory)?;
    let mode = fs::metadata(folder.path())?.permissions().mode();
    if folder.owner()? != Owner::User || mode & 0o002 != 0 {
        let why = "it is no directory of yours into which only you, or your group, can write";
        return Err(io::Error::other(why));
    }
    let path = folder.real_path()?.join(name);
    pmc_files::create_anew(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strace(directory: &Path) -> Strace {
        Strace {
            directory: Bytes(directory.as_os_str().as_bytes().to_vec()),
            job: 7,
            options: vec![Bytes(b"-f".to_vec())],
            ranks: vec![2],
        }
    }

    fn wrapped(directory: &Path, rank: u32, file: &str, path: &str) -> Result<Vec<String>, (String, String)> {
        let words = ["a", "-x"].map(|word| Bytes(word.as_bytes().to_vec()));
        let command = (Path::new(file), &words[..]);
        let wrapped = wrap(Some(&strace(directory)), rank, command, Some(path.as_bytes()))?;
        let words = wrapped.into_iter().flat_map(|wrapped| wrapped.words);
        Ok(words.map(|word| String::from_utf8(word.0).unwrap()).collect())
    }

    #[test]
    fn a_rank_is_a_command_of_strace() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        // Any program of that name.
        fs::copy("/bin/true", top.join("strace")).unwrap();
        let path = top.to_str().unwrap();
        let file = format!("{path}/strace.7.2");
        let words = ["strace", "-DD", "-o", &file, "-f", "--", "/bin/sh", "-x"];
        assert_eq!(wrapped(&top, 2, "/bin/sh", path).unwrap(), words);
        assert!(Path::new(&file).is_file());
        assert!(
            wrapped(&top, 1, "/bin/sh", path).unwrap().is_empty(),
            "another rank"
        );
        let (what, why) = wrapped(&top, 2, "/bin/sh", "/nowhere").unwrap_err();
        assert_eq!(
            (&*what, &*why),
            ("strace", "it is not installed, and --strace needs it")
        );
        let (what, _) = wrapped(&top, 2, "/etc/passwd", path).unwrap_err();
        assert_eq!(what, "/etc/passwd");
    }

    /// Another user could put a link in the place of the file before `strace` opens it.
    #[test]
    fn strace_writes_only_where_others_may_not() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("open");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(create(&directory, "x").is_err());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(create(&directory, "x").is_ok());
        assert!(create(&folder.path().join("none"), "x").is_err());
    }
}
