//! Recognizes tasks that run the kickstart of this installation.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::worker::program;

/// Programs that set variables and then become another program.
const ENV_PROGRAMS: [&str; 2] = ["/usr/bin/env", "/bin/env"];

/// Beginnings of variables that kickstart itself reads, and of words that are no variables. A server cannot
/// run tasks with these.
const REFUSED_PREFIXES: [&[u8]; 4] = [b"-", b"=", b"TZ=", b"LD_"];

/// A call of kickstart.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::worker) struct KickstartCommand<'a> {
    /// `NAME=value`, from a leading `env`.
    pub(in crate::worker) variables: &'a [Vec<u8>],
    /// Arguments of kickstart.
    pub(in crate::worker) words: &'a [Vec<u8>],
}

/// The kickstart of this installation.
pub(super) struct KickstartProgram {
    path: PathBuf,
    file: FileId,
    /// The path by which the last task named the program.
    last_name: RefCell<Option<PathBuf>>,
}

/// Device and inode.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(file: &Path) -> Option<Self> {
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self(metadata.dev(), metadata.ino()))
    }
}

impl KickstartProgram {
    /// Returns `None` if there is no such file.
    pub(super) fn new(path: &Path) -> Option<Self> {
        Some(Self {
            path: path.to_owned(),
            file: FileId::of(path)?,
            last_name: RefCell::default(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kickstart command in the words of a task. `None` for other programs, and if the task sets
    /// variables that kickstart itself reads.
    pub(super) fn command<'w>(&self, words: &'w [Vec<u8>], path: &[PathBuf]) -> Option<KickstartCommand<'w>> {
        let (first, mut rest) = words.split_first()?;
        let mut file = find(first, path);
        let mut variables = &rest[..0];
        if ENV_PROGRAMS.iter().any(|env| *file == *Path::new(env)) {
            let count = rest.iter().take_while(|word| word.contains(&b'=')).count();
            (variables, rest) = rest.split_at(count);
            let (kickstart, arguments) = rest.split_first()?;
            let is_refused = |word: &Vec<u8>| REFUSED_PREFIXES.iter().any(|prefix| word.starts_with(prefix));
            if !kickstart.contains(&b'/') || variables.iter().any(is_refused) {
                return None;
            }
            file = find(kickstart, path);
            rest = arguments;
        }
        self.is_at(&file).then_some(KickstartCommand {
            variables,
            words: rest,
        })
    }

    /// Returns whether the program has this path. The path of the last task is not checked again: a running
    /// server does not change with the file.
    fn is_at(&self, file: &Path) -> bool {
        if self.last_name.borrow().as_deref() == Some(file) {
            return true;
        }
        let is_same = FileId::of(file) == Some(self.file);
        if is_same && file.is_absolute() {
            self.last_name.replace(Some(file.to_owned()));
        }
        is_same
    }
}

/// As [`program::find`], but takes a word with a slash as a path without a check.
fn find<'w>(word: &'w [u8], path: &[PathBuf]) -> Cow<'w, Path> {
    if word.contains(&b'/') {
        Cow::Borrowed(Path::new(OsStr::from_bytes(word)))
    } else {
        program::find(word, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split_whitespace()
            .map(|word| word.as_bytes().to_vec())
            .collect()
    }

    #[test]
    fn only_our_kickstart_is_recognized() {
        let folder = tempfile::tempdir().unwrap();
        let path = [folder.path().to_owned()];
        let own = folder.path().join("pegasus-kickstart");
        std::fs::copy("/bin/true", &own).unwrap();
        std::fs::create_dir(folder.path().join("other")).unwrap();
        std::fs::copy("/bin/true", folder.path().join("other/pegasus-kickstart")).unwrap();
        std::os::unix::fs::symlink(&own, folder.path().join("link")).unwrap();
        let kickstart = KickstartProgram::new(&own).unwrap();
        let own = own.display().to_string();
        let command = |line: &str| {
            let words = words(line);
            let command = kickstart.command(&words, &path)?;
            let join = |words: &[Vec<u8>]| String::from_utf8(words.join(&b' ')).unwrap();
            Some((join(command.variables), join(command.words)))
        };
        let plain = Some((String::new(), "-n x /bin/true".to_owned()));
        assert_eq!(command("pegasus-kickstart -n x /bin/true"), plain);
        assert_eq!(command(&format!("{own} -n x /bin/true")), plain);
        assert_eq!(command("link -n x /bin/true"), plain);
        assert_eq!(
            command(&format!("/usr/bin/env A=b C= {own} -n x")),
            Some(("A=b C=".to_owned(), "-n x".to_owned()))
        );
        assert_eq!(command(&own), Some((String::new(), String::new())));
        for other in [
            String::new(),
            "/bin/true".to_owned(),
            "nothing".to_owned(),
            format!("{}/other/pegasus-kickstart -n x", folder.path().display()),
            format!("/usr/bin/env -i A=b {own} -n x"),
            format!("/usr/bin/env TZ=UTC {own} -n x"),
            format!("/usr/bin/env LD_PRELOAD=x.so {own} -n x"),
            "/usr/bin/env A=b pegasus-kickstart -n x".to_owned(),
            "/usr/bin/env A=b".to_owned(),
        ] {
            assert_eq!(command(&other), None, "{other}");
        }
        assert_eq!(kickstart.command(&[Vec::new()], &path), None);
    }
}
