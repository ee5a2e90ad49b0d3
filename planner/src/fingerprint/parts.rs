//! Which files a plan consists of. Nobody waits until the plan of a nested sub-workflow is on the disk.
//! After a power loss, these lines tell whether it is.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::{MAX_BYTES, parse_name, path, push_name};

/// Appends the line of a file of the plan.
pub(super) fn push(part: &Path, size: u64, text: &mut String) {
    // Writing into a String cannot fail.
    let _ = write!(text, "P {size} ");
    push_name(part, text);
}

/// Reads what follows the `P` of a line.
pub(super) fn parse(rest: &str) -> Option<(PathBuf, u64)> {
    let (size, name) = rest.split_once(' ')?;
    Some((parse_name(name), size.parse().ok()?))
}

/// Adds the files of a plan to its fingerprints, if it has these. All files must be written.
///
/// # Errors
/// The directory cannot be read, or the fingerprints cannot be written.
pub(crate) fn add_parts(dag: &Path) -> io::Result<()> {
    let prints = path(dag);
    let mut file = match fs::OpenOptions::new().append(true).open(&prints) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let dir = dag.parent().unwrap_or(Path::new("."));
    let mut parts = Vec::new();
    find_parts(dir, Path::new(""), &mut parts)?;
    parts.retain(|(part, _)| dir.join(part) != prints);
    parts.sort_by_cached_key(|(part, _)| (dir.join(part) == dag, part.clone()));
    let mut text = String::new();
    for (part, size) in parts {
        push(&part, size, &mut text);
    }
    file.write_all(text.as_bytes())
}

fn find_parts(dir: &Path, below: &Path, found: &mut Vec<(PathBuf, u64)>) -> io::Result<()> {
    for entry in fs::read_dir(dir.join(below))? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        let data = entry.metadata()?;
        if data.is_dir() {
            find_parts(dir, &name, found)?;
        } else if data.is_file() {
            found.push((name, data.len()));
        }
    }
    Ok(())
}

/// Returns whether all files of the plan of a nested sub-workflow are there, none of them cut off.
pub(crate) fn is_whole(dag: &Path) -> bool {
    let Ok(text) = pmc_files::read_to_string(&path(dag), MAX_BYTES) else {
        return false;
    };
    let dir = dag.parent().unwrap_or(Path::new("."));
    let mut parts = text.lines().filter_map(|line| parse(line.strip_prefix("P ")?));
    let mut last = None;
    // Of a file that is cut off, only the beginning is there.
    let are_there = parts.all(|(part, size)| {
        let path = dir.join(part);
        let is_there = fs::metadata(&path).is_ok_and(|data| data.is_file() && data.len() >= size);
        last = Some(path);
        is_there
    });
    // The fingerprints may be cut off, too.
    are_there && last.is_some_and(|last| last == dag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_with_a_file_cut_off_is_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let dag = file("w.dag");
        fs::create_dir_all(file("00/00")).unwrap();
        for name in ["w.dag", "w.fingerprints", "z.yml", "00/00/a%\n.in"] {
            fs::write(file(name), format!("{name}\n")).unwrap();
        }
        assert!(!is_whole(&dag), "without lines for the files");
        add_parts(&dag).unwrap();
        assert!(is_whole(&dag));
        let prints = fs::read(file("w.fingerprints")).unwrap();
        for name in ["w.dag", "z.yml", "00/00/a%\n.in"] {
            let whole = fs::read(file(name)).unwrap();
            fs::write(file(name), "").unwrap();
            assert!(!is_whole(&dag), "{name} is empty");
            fs::remove_file(file(name)).unwrap();
            assert!(!is_whole(&dag), "{name} is not there");
            fs::write(file(name), whole).unwrap();
        }
        // A task of the run may do that.
        fs::remove_file(file("w.fingerprints")).unwrap();
        nix::unistd::mkfifo(&file("w.fingerprints"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!is_whole(&dag), "fingerprints without end");
        assert!(crate::fingerprint::Fingerprints::read(&dag).is_err());
        fs::remove_file(file("w.fingerprints")).unwrap();
        fs::write(file("w.fingerprints"), &prints).unwrap();
        // A log that has grown.
        fs::write(file("z.yml"), "longer than it was").unwrap();
        assert!(is_whole(&dag));
        for length in 0..prints.len() - 1 {
            fs::write(file("w.fingerprints"), &prints[..length]).unwrap();
            assert!(!is_whole(&dag), "{length} bytes of the fingerprints");
        }
    }

    #[test]
    fn a_plan_without_fingerprints_gets_none() {
        let dir = tempfile::tempdir().unwrap();
        let dag = dir.path().join("w.dag");
        add_parts(&dag).unwrap();
        assert!(!path(&dag).exists());
        assert!(!is_whole(&dag));
    }
}
