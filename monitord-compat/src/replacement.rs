//! Replaces the plan in a submit directory by a new one. Whatever ends the replacing program, the directory
//! has the old plan or the new one afterwards.
//!
//! The new files are written into [`STAGING`]`/new`, with the paths that they will have in the submit
//! directory. [`commit`] renames that directory to [`PENDING`]. From then on the new plan counts: [`finish`]
//! moves its files to their places, the DAG last, and a program that finds a pending directory calls it
//! before anything else. The replaced files go to `replaced/NNN`; nothing is removed or truncated.
//!
//! All of this happens under the lock of the DAG: see [`crate::run_lock::lock_dag`].

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Directory in a submit directory in which a new plan is written.
pub const STAGING: &str = ".replan.new";
/// Directory in a submit directory with a new plan that counts.
pub const PENDING: &str = ".replan";
/// Directory in a submit directory with replaced files.
pub const REPLACED: &str = "replaced";
/// New files, in [`STAGING`] and [`PENDING`].
pub const NEW: &str = "new";
/// Replaced files, in [`PENDING`].
const OLD: &str = "old";
/// Names of files that belong to the old plan and have no successor, one a line, in [`STAGING`].
const OBSOLETE: &str = "obsolete";

/// Makes the staged plan the one that counts. `obsolete` files of the submit directory are moved away with
/// the replaced ones.
///
/// # Errors
/// A file that cannot be written. The old plan counts.
pub fn commit(dir: &Path, obsolete: &[&str]) -> io::Result<()> {
    let staging = dir.join(STAGING);
    let list: String = obsolete.iter().map(|name| format!("{name}\n")).collect();
    fs::write(staging.join(OBSOLETE), list)?;
    // All files of the plan with one call.
    let device = fs::File::open(&staging)?;
    nix::unistd::syncfs(&device)?;
    fs::rename(&staging, dir.join(PENDING))?;
    fs::File::open(dir)?.sync_all()
}

/// Returns whether a new plan counts whose files are not all in their places.
#[must_use]
pub fn is_pending(dir: &Path) -> bool {
    dir.join(PENDING).symlink_metadata().is_ok()
}

/// Moves the files of a pending plan to their places; the file `last` after all others. Does nothing without
/// a pending plan. A call that is cut off can be repeated.
///
/// # Errors
/// A file that cannot be moved.
pub fn finish(dir: &Path, last: &OsStr) -> io::Result<()> {
    let pending = dir.join(PENDING);
    if !is_pending(dir) {
        return Ok(());
    }
    let (new, old) = (pending.join(NEW), pending.join(OLD));
    let mut files = Vec::new();
    if new.is_dir() {
        files_below(&new, Path::new(""), &mut files)?;
    }
    files.sort_by_key(|file| (file.as_os_str() == last, file.clone()));
    for file in &files {
        place(dir, &new, &old, file)?;
    }
    for name in fs::read_to_string(pending.join(OBSOLETE))
        .unwrap_or_default()
        .lines()
    {
        let target = dir.join(name);
        if target.symlink_metadata().is_ok() {
            fs::create_dir_all(&old)?;
            fs::rename(&target, old.join(name))?;
        }
    }
    if old.is_dir() {
        let replaced = dir.join(REPLACED);
        fs::create_dir_all(&replaced)?;
        let free = (1..).map(|number: u32| replaced.join(format!("{number:03}")));
        let mut free = free.filter(|path| path.symlink_metadata().is_err());
        if let Some(target) = free.next() {
            fs::rename(&old, target)?;
        }
    }
    fs::remove_dir_all(&pending)
}

/// Puts one new file in its place. The name of the place always has a file: the old one or the new one.
fn place(dir: &Path, new: &Path, old: &Path, file: &Path) -> io::Result<()> {
    let (source, target, backup) = (new.join(file), dir.join(file), old.join(file));
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if target.symlink_metadata().is_ok() {
        if is_same(&source, &target) {
            return fs::remove_file(&source);
        }
        if let Some(parent) = backup.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::hard_link(&target, &backup) {
            Ok(()) => {}
            // From a call that was cut off.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // The file system has no hard links.
            Err(_) => {
                fs::copy(&target, &backup)?;
            }
        }
    }
    fs::rename(&source, &target)
}

/// Returns whether two files have the same content.
fn is_same(a: &Path, b: &Path) -> bool {
    let is_file = |path: &Path| path.symlink_metadata().ok().filter(fs::Metadata::is_file);
    let (Some(first), Some(second)) = (is_file(a), is_file(b)) else {
        return false;
    };
    first.len() == second.len() && matches!((fs::read(a), fs::read(b)), (Ok(a), Ok(b)) if a == b)
}

fn files_below(dir: &Path, relative: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir.join(relative))? {
        let entry = entry?;
        let path = relative.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files_below(dir, &path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An old plan, and a staged new one.
    fn staged() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, text) in [
            ("w.dag", "old"),
            ("w.dag.rescue", "old"),
            ("00/00/a.in", "old"),
            ("same", "same"),
            ("w.db", "old"),
            ("jobstate.log", "log"),
        ] {
            put(name, text);
        }
        for (name, text) in [
            ("w.dag", "new"),
            ("w.dag.rescue", "new"),
            ("00/00/a.in", "new"),
            ("00/01/b.in", "new"),
            ("same", "same"),
        ] {
            put(&format!("{STAGING}/{NEW}/{name}"), text);
        }
        dir
    }

    fn content(dir: &Path) -> Vec<(PathBuf, String)> {
        let mut files = Vec::new();
        files_below(dir, Path::new(""), &mut files).unwrap();
        files.sort();
        files
            .into_iter()
            .map(|file| (file.clone(), fs::read_to_string(dir.join(&file)).unwrap()))
            .collect()
    }

    fn expected() -> Vec<(PathBuf, String)> {
        [
            ("00/00/a.in", "new"),
            ("00/01/b.in", "new"),
            ("jobstate.log", "log"),
            ("replaced/001/00/00/a.in", "old"),
            ("replaced/001/w.dag", "old"),
            ("replaced/001/w.dag.rescue", "old"),
            ("replaced/001/w.db", "old"),
            ("same", "same"),
            ("w.dag", "new"),
            ("w.dag.rescue", "new"),
        ]
        .map(|(name, text)| (name.into(), text.to_owned()))
        .to_vec()
    }

    #[test]
    fn a_plan_replaces_another() {
        let dir = staged();
        assert!(!is_pending(dir.path()));
        finish(dir.path(), "w.dag".as_ref()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("w.dag")).unwrap(), "old");
        commit(dir.path(), &["w.db", "absent.db"]).unwrap();
        assert!(is_pending(dir.path()));
        finish(dir.path(), "w.dag".as_ref()).unwrap();
        assert_eq!(content(dir.path()), expected());
        assert!(!is_pending(dir.path()));
    }

    #[test]
    fn a_replacement_that_was_cut_off_is_finished() {
        // As if the program had been killed after each step in turn.
        for step in 0..6 {
            let dir = staged();
            commit(dir.path(), &["w.db"]).unwrap();
            let pending = dir.path().join(PENDING);
            let (new, old) = (pending.join(NEW), pending.join(OLD));
            let order = ["00/00/a.in", "00/01/b.in", "same", "w.dag.rescue", "w.dag"];
            for name in order.iter().take(step) {
                place(dir.path(), &new, &old, Path::new(name)).unwrap();
            }
            if let Some(name) = order.get(step) {
                // The backup is there, the new file not.
                let backup = old.join(name);
                fs::create_dir_all(backup.parent().unwrap()).unwrap();
                let _ = fs::hard_link(dir.path().join(name), backup);
            }
            finish(dir.path(), "w.dag".as_ref()).unwrap();
            let mut found = content(dir.path());
            found.retain(|(path, _)| !path.ends_with("001/same"));
            assert_eq!(found, expected(), "step {step}");
        }
    }
}
