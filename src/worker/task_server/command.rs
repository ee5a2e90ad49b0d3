//! Recognizes tasks that run a program of this installation for which a server stands in.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pmc_wire::Tool;

use crate::worker::program;

/// Programs that set variables and then become another program.
const ENV_PROGRAMS: [&str; 2] = ["/usr/bin/env", "/bin/env"];

/// Beginnings of variables that the programs themselves read, and of words that are no variables. A server
/// cannot run tasks with these.
const REFUSED_PREFIXES: [&[u8]; 4] = [b"-", b"=", b"TZ=", b"LD_"];

/// A call of one of the programs.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::worker) struct ToolCommand<'a> {
    /// Which one.
    pub(in crate::worker) tool: Tool,
    /// `NAME=value`, from a leading `env`.
    pub(in crate::worker) variables: &'a [Vec<u8>],
    /// Arguments of the program.
    pub(in crate::worker) words: &'a [Vec<u8>],
}

/// The programs of this installation for which a server stands in.
pub(super) struct Tools {
    kickstart: PathBuf,
    /// Those that exist.
    files: Vec<(Tool, FileId)>,
    /// The paths by which the last tasks named them.
    last_names: RefCell<Vec<(Tool, PathBuf)>>,
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

impl Tools {
    /// Finds the programs in the directory of `kickstart`. Returns `None` if kickstart is not there.
    pub(super) fn beside(kickstart: &Path) -> Option<Self> {
        FileId::of(kickstart)?;
        let file = |tool: Tool| Some((tool, FileId::of(&kickstart.with_file_name(tool.name()))?));
        Some(Self {
            kickstart: kickstart.to_owned(),
            files: Tool::ALL.into_iter().filter_map(file).collect(),
            last_names: RefCell::default(),
        })
    }

    pub(super) fn kickstart(&self) -> &Path {
        &self.kickstart
    }

    /// Returns the command in the words of a task. `None` for other programs, and if the task sets variables
    /// that the programs themselves read.
    pub(super) fn command<'w>(&self, words: &'w [Vec<u8>], path: &[PathBuf]) -> Option<ToolCommand<'w>> {
        let (first, mut rest) = words.split_first()?;
        let mut file = find(first, path);
        let mut variables = &rest[..0];
        if ENV_PROGRAMS.iter().any(|env| *file == *Path::new(env)) {
            (variables, rest) = rest.split_at(pmc_calls::env_words(rest));
            let (tool, arguments) = rest.split_first()?;
            let is_refused = |word: &Vec<u8>| REFUSED_PREFIXES.iter().any(|prefix| word.starts_with(prefix));
            if !tool.contains(&b'/') || variables.iter().any(is_refused) {
                return None;
            }
            file = find(tool, path);
            rest = arguments;
        }
        Some(ToolCommand {
            tool: self.at(&file)?,
            variables,
            words: rest,
        })
    }

    /// Returns the program that has this path. The path of the last task is not checked again: a running
    /// server does not change with the file.
    fn at(&self, file: &Path) -> Option<Tool> {
        if let Some((tool, _)) = self.last_names.borrow().iter().find(|(_, name)| name == file) {
            return Some(*tool);
        }
        let id = FileId::of(file)?;
        let (tool, _) = *self.files.iter().find(|(_, known)| *known == id)?;
        if file.is_absolute() {
            let mut names = self.last_names.borrow_mut();
            names.retain(|(other, _)| *other != tool);
            names.push((tool, file.to_owned()));
        }
        Some(tool)
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
    fn only_our_programs_are_recognized() {
        let folder = tempfile::tempdir().unwrap();
        let path = [folder.path().to_owned()];
        let own = folder.path().join("pegasus-kickstart");
        std::fs::copy("/bin/true", &own).unwrap();
        std::fs::copy("/bin/true", folder.path().join("pegasus-lite")).unwrap();
        std::fs::create_dir(folder.path().join("other")).unwrap();
        std::fs::copy("/bin/true", folder.path().join("other/pegasus-kickstart")).unwrap();
        std::os::unix::fs::symlink(&own, folder.path().join("link")).unwrap();
        let tools = Tools::beside(&own).unwrap();
        let own = own.display().to_string();
        let command = |line: &str| {
            let words = words(line);
            let command = tools.command(&words, &path)?;
            let join = |words: &[Vec<u8>]| String::from_utf8(words.join(&b' ')).unwrap();
            Some((command.tool, join(command.variables), join(command.words)))
        };
        let plain = Some((Tool::Kickstart, String::new(), "-n x /bin/true".to_owned()));
        assert_eq!(command("pegasus-kickstart -n x /bin/true"), plain);
        assert_eq!(command(&format!("{own} -n x /bin/true")), plain);
        assert_eq!(command("link -n x /bin/true"), plain);
        assert_eq!(
            command(&format!("/usr/bin/env A=b C= {own} -n x")),
            Some((Tool::Kickstart, "A=b C=".to_owned(), "-n x".to_owned()))
        );
        assert_eq!(
            command("pegasus-lite x.json"),
            Some((Tool::Lite, String::new(), "x.json".to_owned()))
        );
        assert_eq!(
            command(&own),
            Some((Tool::Kickstart, String::new(), String::new()))
        );
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
        assert_eq!(tools.command(&[Vec::new()], &path), None);
    }
}
