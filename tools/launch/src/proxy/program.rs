//! Which file a program is: in the directory of the launch, else one of `PATH`. Which MPI it needs.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use object::read::ReadCache;
use object::{Object as _, ObjectSection as _};

/// What libraries of Open MPI are called: `libmpi.so.40`, `libmpi_mpifh.so.40` and others.
const OPEN_MPI: (&str, &str) = ("libmpi", ".so.40");

/// Entries of the table of a program that name libraries.
const NEEDED: u64 = 1;

/// Largest table that is read.
const MAX_TABLE: u64 = 16 << 20;

/// Returns the file of a program. A name with a slash is a path. The current directory is that of the launch.
///
/// # Errors
/// There is none, or it cannot be executed: why.
pub(crate) fn find(word: &[u8], path: Option<&[u8]>) -> Result<PathBuf, String> {
    let name = OsStr::from_bytes(word);
    if word.contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let here = Path::new(".").join(name);
    if is_program(&here) {
        return Ok(here);
    }
    find_in_path(word, path).ok_or_else(|| match here.is_file() {
        true => "permission denied".to_owned(),
        false => "it is neither in the directory nor in PATH".to_owned(),
    })
}

/// Returns the file of a program that is in one of these directories.
pub(super) fn find_in_path(name: &[u8], path: Option<&[u8]>) -> Option<PathBuf> {
    let folders = path.unwrap_or(b"/usr/bin:/bin").split(|byte| *byte == b':');
    let files = folders.filter(|folder| !folder.is_empty());
    let mut files = files.map(|folder| Path::new(OsStr::from_bytes(folder)).join(OsStr::from_bytes(name)));
    files.find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.is_file() && access(file, AccessFlags::X_OK).is_ok()
}

/// Returns the library of Open MPI that a program needs, if it needs one.
pub(crate) fn open_mpi_of(file: &Path) -> Option<String> {
    let cache = ReadCache::new(File::open(file).ok()?);
    let program = object::File::parse(&cache).ok()?;
    let section = |name: &str| {
        let section = program.section_by_name(name)?;
        let section = (section.size() <= MAX_TABLE).then_some(section)?;
        Some(section.data().ok()?.to_vec())
    };
    let (table, names) = (section(".dynamic")?, section(".dynstr")?);
    let number = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let needed = table.chunks_exact(16).filter_map(|entry| {
        let (tag, value) = entry.split_at(8);
        let at = usize::try_from(number(value)?).ok()?;
        let name = names.get(at..)?.split(|byte| *byte == 0).next()?;
        (number(tag)? == NEEDED).then(|| String::from_utf8_lossy(name).into_owned())
    });
    let (start, end) = OPEN_MPI;
    needed
        .into_iter()
        .find(|name| name.starts_with(start) && name.ends_with(end))
}

/// True if a process has such a library in its memory.
pub(super) fn has_open_mpi(pid: nix::unistd::Pid) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let files = maps.lines().filter_map(|line| line.rsplit_once('/'));
    let mut names = files.map(|(_, name)| name);
    let (start, end) = OPEN_MPI;
    names.any(|name| {
        let rest = name.strip_prefix(start).and_then(|rest| rest.split_once(end));
        rest.is_some_and(|(_, after)| after.is_empty() || after.starts_with('.'))
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
        assert_eq!(open_mpi_of(Path::new("/bin/sh")), None);
        assert_eq!(open_mpi_of(Path::new("Cargo.toml")), None);
        assert!(!has_open_mpi(nix::unistd::getpid()));
        // A file of this package that is no program.
        assert_eq!(find(b"Cargo.toml", None).unwrap_err(), "permission denied");
    }
}
