//! The files that a front end sends. Each is read once, and kept open: what has its name later is another
//! file.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use nix::unistd::{AccessFlags, access};
use pmc_link::Offered;
use sha2::{Digest as _, Sha256};

use super::libraries;
use super::messages::{Kind, Needs, OfferedFile, Part, RawPath};

/// Bytes that are read at a time.
const READ_SIZE: usize = 256 << 10;

/// Finds the checksum of a file while its bytes come.
#[derive(Debug, Default)]
pub(crate) struct Checksum {
    hash: Sha256,
    /// Bytes of the file that are in it.
    read: u64,
}

impl Checksum {
    /// Reads the file on, up to that many bytes, or to its end.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read_to(&mut self, file: &File, end: u64) -> io::Result<()> {
        let mut buffer = vec![0; READ_SIZE];
        while self.read < end {
            let most = usize::try_from(end - self.read)
                .unwrap_or(READ_SIZE)
                .min(READ_SIZE);
            let part = buffer.get_mut(..most).unwrap_or_default();
            let length = match file.read_at(part, self.read) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if length == 0 {
                break;
            }
            self.hash.update(part.get(..length).unwrap_or_default());
            self.read += length as u64;
        }
        Ok(())
    }

    /// Bytes, and SHA-256 in hexadecimal.
    pub(crate) fn finish(self) -> (u64, String) {
        let digits = self.hash.finalize();
        let digits = digits.iter().map(|byte| format!("{byte:02x}"));
        (self.read, digits.collect())
    }
}

/// Opens a file for reading, wherever links lead: it is what ranks would execute. Never waits for a FIFO.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// The files of a launch.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// By number.
    pub(crate) offered: Vec<OfferedFile>,
    open: Vec<Arc<File>>,
    /// By program.
    pub(crate) needs: Vec<Needs>,
}

/// A file that cannot be sent, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unsendable {
    pub(crate) what: String,
    pub(crate) why: String,
}

impl Unsendable {
    fn new(path: &Path, why: impl ToString) -> Self {
        Self {
            what: path.display().to_string(),
            why: why.to_string(),
        }
    }

    fn system(path: &Path, error: &io::Error) -> Self {
        Self::new(path, pmc_dag::reason(error))
    }
}

impl Files {
    /// Reads the next program, perhaps with its libraries, and files that its ranks find beside it.
    ///
    /// # Errors
    /// A file cannot be read, the program cannot be executed, or two different files have one name.
    pub(crate) fn add(
        &mut self,
        program: &Path,
        with_libraries: bool,
        others: &[impl AsRef<Path>],
    ) -> Result<(), Unsendable> {
        access(program, AccessFlags::X_OK).map_err(|error| Unsendable::system(program, &error.into()))?;
        let mut parts = vec![self.part(Kind::Program, None, program)?];
        if with_libraries {
            let libraries = libraries::of_program(program).map_err(|why| Unsendable::new(program, why))?;
            for library in libraries {
                let name = library.name.as_bytes();
                parts.push(self.part(Kind::Library, Some(name), &library.path)?);
            }
        }
        for other in others {
            let part = self.part(Kind::Other, None, other.as_ref())?;
            let is_same_name = |known: &&Part| known.kind == Kind::Other && known.name == part.name;
            match parts.iter().find(is_same_name) {
                None => parts.push(part),
                Some(known) if known.file == part.file => {}
                Some(_) => {
                    let why = "another file of this name, which differs, is sent, too";
                    return Err(Unsendable::new(other.as_ref(), why));
                }
            }
        }
        let program = u32::try_from(self.needs.len()).unwrap_or(u32::MAX);
        self.needs.push(Needs { program, parts });
        Ok(())
    }

    fn part(&mut self, kind: Kind, name: Option<&[u8]>, path: &Path) -> Result<Part, Unsendable> {
        let name = name.or(path.file_name().map(|name| name.as_bytes()));
        let name = name.ok_or_else(|| Unsendable::new(path, "it is no regular file"))?;
        Ok(Part {
            kind,
            name: RawPath(name.to_vec()),
            file: self.read(path)?,
        })
    }

    /// Reads a file, unless its like was read. Returns its number.
    fn read(&mut self, path: &Path) -> Result<u32, Unsendable> {
        let failed = |error: io::Error| Unsendable::system(path, &error);
        let absolute = std::path::absolute(path).map_err(failed)?;
        let file = open(path).map_err(failed)?;
        let status = file.metadata().map_err(failed)?;
        let seen = (status.ino(), status.mtime(), status.mtime_nsec());
        let raw = RawPath(absolute.as_os_str().as_bytes().to_vec());
        let is_same = |known: &&OfferedFile| known.path == raw && known.seen == seen;
        if let Some(number) = self.offered.iter().position(|known| is_same(&known)) {
            return Ok(number as u32);
        }
        let mut checksum = Checksum::default();
        checksum.read_to(&file, u64::MAX).map_err(failed)?;
        let (bytes, sha256) = checksum.finish();
        if let Some(number) = self.offered.iter().position(|known| known.sha256 == sha256) {
            return Ok(number as u32);
        }
        self.offered.push(OfferedFile {
            sha256,
            bytes,
            path: raw,
            seen,
        });
        self.open.push(Arc::new(file));
        Ok(self.offered.len() as u32 - 1)
    }

    /// The file with a number, and what is known of it.
    pub(crate) fn get(&self, number: u32) -> Option<(&File, &OfferedFile)> {
        let number = number as usize;
        Some((self.open.get(number)?, self.offered.get(number)?))
    }

    /// Returns what gives each of them by its checksum.
    pub(crate) fn giver(&self) -> impl Fn(&str) -> Option<Offered> + Send + 'static {
        let all: Vec<(String, Arc<File>)> = self
            .offered
            .iter()
            .zip(&self.open)
            .map(|(offered, file)| (offered.sha256.clone(), Arc::clone(file)))
            .collect();
        move |key| {
            let (_, file) = all.iter().find(|(known, _)| known == key)?;
            Some(Offered {
                file: file.try_clone().ok()?,
                lock: None,
                growing: None,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn program(folder: &Path, name: &str, text: &str) -> std::path::PathBuf {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn equal_files_are_sent_once_and_names_are_those_of_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (program(folder.path(), "a", "x"), program(folder.path(), "b", "x"));
        let mut files = Files::default();
        files.add(&a, true, &[&b]).unwrap();
        files.add(&b, true, &[&b, &b]).unwrap();
        assert_eq!(files.offered.len(), 1);
        let name = |program: usize, part: usize| files.needs[program].parts[part].name.0.clone();
        assert_eq!((name(0, 0), name(0, 1)), (b"a".to_vec(), b"b".to_vec()));
        assert_eq!(files.needs[1].parts.len(), 2);
        // SHA-256 of "x".
        let sha256 = &files.offered[0].sha256;
        assert_eq!(&sha256[..16], "2d711642b726b044");
        // What has the name now is another file.
        fs::remove_file(&a).unwrap();
        fs::write(&a, "another").unwrap();
        let offered = files.giver()(sha256).unwrap();
        assert_eq!(offered.file.metadata().unwrap().len(), 1);
        assert!(files.giver()("a").is_none());
    }

    #[test]
    fn what_cannot_be_sent_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let good = program(folder.path(), "good", "x");
        let refused = |program: &Path, others: &[&Path]| {
            let error = Files::default().add(program, false, others).unwrap_err();
            assert!(error.what.starts_with(folder.path().to_str().unwrap()));
            error.why
        };
        let plain = folder.path().join("plain");
        fs::write(&plain, "x").unwrap();
        assert_eq!(refused(&plain, &[]), "Permission denied");
        assert_eq!(
            refused(&good, &[&folder.path().join("no")]),
            "No such file or directory"
        );
        let (one, two) = (
            program(folder.path(), "1/f", "1"),
            program(folder.path(), "2/f", "2"),
        );
        assert!(refused(&good, &[&one, &two]).contains("differs"));
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(refused(&good, &[&fifo]), "it is no regular file");
        assert_eq!(refused(folder.path(), &[]), "it is no regular file");
    }
}
