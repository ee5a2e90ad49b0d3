//! The submit directory: its number is taken by making it, its content appears at once.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::error::PlanError;

/// A submit directory that is being made. Unless it is published, nothing is left of it.
#[derive(Debug)]
pub(crate) struct SubmitDir {
    /// Where it will be.
    path: PathBuf,
    /// Where its content is collected, beside it.
    staging: PathBuf,
    /// Directories that did not exist before, innermost first.
    made: Vec<PathBuf>,
    published: bool,
}

/// Largest run number of four digits.
const LAST_RUN: u32 = 9999;

impl SubmitDir {
    /// Takes the next free `runNNNN` in a directory. Two planners never get the same one: making the
    /// directory is what takes the number.
    ///
    /// # Errors
    /// A directory that cannot be made.
    pub(crate) fn next_run(parent: &Path) -> Result<Self, PlanError> {
        let mut made = make_dirs(parent)?;
        let mut number = match last_run(parent) {
            Ok(last) => last + 1,
            Err(e) => {
                remove_all(&made);
                return Err(PlanError::io("read the directory", parent, e));
            }
        };
        loop {
            if number > LAST_RUN {
                remove_all(&made);
                return Err(PlanError::refinement(format!(
                    "{} has a run{LAST_RUN} already: remove old runs or choose another --dir",
                    parent.display()
                )));
            }
            let path = parent.join(format!("run{number:04}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    made.insert(0, path.clone());
                    return Self::stage(path, made);
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => {
                    remove_all(&made);
                    return Err(PlanError::io("make the directory", &path, e));
                }
            }
        }
    }

    /// The path that [`SubmitDir::next_run`] would take now.
    pub(crate) fn next_path(parent: &Path) -> PathBuf {
        let number = last_run(parent).unwrap_or_default() + 1;
        parent.join(format!("run{number:04}"))
    }

    /// Takes a directory of a given name, which may exist.
    ///
    /// # Errors
    /// A directory that cannot be made.
    pub(crate) fn named(path: &Path) -> Result<Self, PlanError> {
        let made = make_dirs(path)?;
        Self::stage(path.to_owned(), made)
    }

    fn stage(path: PathBuf, made: Vec<PathBuf>) -> Result<Self, PlanError> {
        let parent = path.parent().unwrap_or(&path).to_owned();
        let staged = tempfile::Builder::new()
            .prefix(".plan-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .tempdir_in(&parent);
        match staged {
            Ok(directory) => Ok(SubmitDir {
                path,
                staging: directory.keep(),
                made,
                published: false,
            }),
            Err(e) => {
                remove_all(&made);
                Err(PlanError::io("write into the directory", &parent, e))
            }
        }
    }

    /// Where it will be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    /// Where files are to be written now.
    pub(crate) fn staging(&self) -> &Path {
        &self.staging
    }

    /// Brings the files beside the DAG, and the DAG, to the disk, so that after a crash of the machine the directory,
    /// if it is there, has a plan in it. For plans whose files are written in an instant; larger ones would wait for
    /// the disk longer than planning takes, and can be made again.
    ///
    /// # Errors
    /// A file that the disk does not take.
    pub(crate) fn sync(&self) -> Result<(), PlanError> {
        let failed = |e| PlanError::io("read the directory", &self.staging, e);
        let written = |path: &Path| {
            let path = path.to_owned();
            move |e| PlanError::io("write", &path, e)
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.staging).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_file() {
                let path = entry.path();
                let file = fs::File::open(&path).map_err(written(&path))?;
                begin_to_write(&file);
                files.push((path, file));
            }
        }
        for (path, file) in files {
            file.sync_all().map_err(written(&path))?;
        }
        let directory = fs::File::open(&self.staging).and_then(|directory| directory.sync_all());
        directory.map_err(written(&self.staging))
    }

    /// Puts the content in place: an empty directory is replaced as a whole, into one with files each file
    /// is moved.
    ///
    /// # Errors
    /// A directory or file that cannot be moved.
    pub(crate) fn publish(mut self) -> Result<PathBuf, PlanError> {
        match fs::rename(&self.staging, &self.path) {
            Ok(()) => {}
            Err(_) => {
                merge(&self.staging, &self.path)?;
                // Only empty directories are left.
                let _ = fs::remove_dir_all(&self.staging);
            }
        }
        self.published = true;
        Ok(self.path.clone())
    }
}

impl Drop for SubmitDir {
    fn drop(&mut self) {
        if !self.published {
            // Nobody is there to be told; what cannot be removed is in nobody's way.
            let _ = fs::remove_dir_all(&self.staging);
            remove_all(&self.made);
        }
    }
}

/// Has the system begin to bring a file to the disk, without waiting. Several files that are begun before the first is
/// waited for take half the time: they share what the file system writes for each wait.
fn begin_to_write(file: &fs::File) {
    #[expect(unsafe_code, reason = "the call takes a descriptor and numbers")]
    // SAFETY: the descriptor is open. What fails here fails again, and is told, when the file is waited for.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Removes directories that are empty.
fn remove_all(made: &[PathBuf]) {
    for directory in made {
        let _ = fs::remove_dir(directory);
    }
}

/// Makes a directory and those above it; gives those that were made, innermost first.
fn make_dirs(path: &Path) -> Result<Vec<PathBuf>, PlanError> {
    let missing: Vec<PathBuf> = path
        .ancestors()
        .take_while(|p| !p.as_os_str().is_empty() && !p.exists())
        .map(Path::to_owned)
        .collect();
    if let Err(e) = fs::create_dir_all(path) {
        remove_all(&missing);
        return Err(PlanError::io("make the directory", path, e));
    }
    Ok(missing)
}

/// Largest number of a `runNNNN`, 0 if there is none.
fn last_run(parent: &Path) -> io::Result<u32> {
    let mut last = 0;
    for entry in fs::read_dir(parent)? {
        let name = entry?.file_name();
        let digits = name
            .to_str()
            .and_then(|n| n.strip_prefix("run"))
            .unwrap_or_default();
        if digits.len() == 4
            && digits.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = digits.parse::<u32>()
        {
            last = last.max(number);
        }
    }
    Ok(last)
}

/// Moves every file below `from` to its place below `to`; the braindump, by which tools find everything
/// else, comes last.
fn merge(from: &Path, to: &Path) -> Result<(), PlanError> {
    let mut entries: Vec<fs::DirEntry> = fs::read_dir(from)
        .and_then(Iterator::collect)
        .map_err(|e| PlanError::io("read the directory", from, e))?;
    entries.sort_by_key(|entry| (entry.file_name() == "braindump.yml", entry.file_name()));
    for entry in entries {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            fs::create_dir_all(&target).map_err(|e| PlanError::io("make the directory", &target, e))?;
            merge(&source, &target)?;
        } else {
            fs::rename(&source, &target).map_err(|e| PlanError::io("write", &target, e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_and_failures_leave_nothing() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let parent = base.path().join("u/pegasus/wf");
        let first = SubmitDir::next_run(&parent)?;
        let second = SubmitDir::next_run(&parent)?;
        fs::write(first.staging().join("a"), "1")?;
        first.sync()?;
        let path = first.publish()?;
        assert_eq!(path, parent.join("run0001"));
        assert_eq!(fs::read_to_string(path.join("a"))?, "1");
        assert_eq!(second.path(), parent.join("run0002"));
        fs::write(second.staging().join("b"), "2")?;
        drop(second);
        let names: Vec<_> = fs::read_dir(&parent)?.collect::<Result<_, _>>()?;
        assert_eq!(names.len(), 1, "{names:?}");
        Ok(())
    }

    #[test]
    fn a_failed_first_run_leaves_no_directories() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        drop(SubmitDir::next_run(&base.path().join("u/pegasus/wf"))?);
        assert_eq!(fs::read_dir(base.path())?.count(), 0);
        Ok(())
    }

    #[test]
    fn an_existing_directory_keeps_its_other_files() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let path = base.path().join("mine");
        fs::create_dir_all(path.join("00"))?;
        fs::write(path.join("wf.dag.rescue"), "DONE a\n")?;
        fs::write(path.join("00/x"), "old")?;
        let dir = SubmitDir::named(&path)?;
        fs::create_dir(dir.staging().join("00"))?;
        fs::write(dir.staging().join("00/x"), "new")?;
        fs::write(dir.staging().join("braindump.yml"), "")?;
        dir.publish()?;
        assert_eq!(fs::read_to_string(path.join("00/x"))?, "new");
        assert!(path.join("wf.dag.rescue").exists());
        assert_eq!(fs::read_dir(base.path())?.count(), 1);
        Ok(())
    }
}
