//! Archives of text files in one text file, in the format of Go's txtar.
//!
//! ```text
//! A comment, to the first header.
//! -- folder/file --
//! content
//! -- script.sh mode=755 --
//! #!/bin/sh
//! -- no-line-end no-newline --
//! content
//! -- empty/ --
//! ```
//!
//! Two attributes may follow the path in a header: `mode=OCTAL` sets the mode of the file, and `no-newline`
//! drops the newline at the end of the content. A path that ends with a slash is an empty directory. A line
//! that looks like a header cannot be content.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A text that is no archive, or a folder that cannot become one.
#[derive(Debug, Error)]
pub enum TxtarError {
    /// A line of an archive is invalid.
    #[error("line {line}: {problem}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: LineProblem,
    },
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has content that an archive cannot have.
    #[error("{} {problem}", .path.display())]
    Content {
        /// Its path.
        path: PathBuf,
        /// What an archive cannot have.
        problem: &'static str,
    },
}

/// What is wrong with a line of an archive.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LineProblem {
    /// A path is empty, absolute or has `..` in it.
    #[error("bad path {0:?}")]
    Path(String),
    /// A mode is not octal.
    #[error("mode {0:?} is not an octal number")]
    Mode(String),
    /// A path occurs twice.
    #[error("{0} occurs twice")]
    Twice(String),
    /// A directory has content.
    #[error("a directory has no content")]
    Directory,
}

/// An archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archive {
    /// The text in front of the first header.
    pub comment: String,
    /// The files, in the order of the archive.
    pub files: Vec<File>,
}

/// A file or an empty directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The path in the archive. That of a directory ends with a slash.
    pub path: String,
    /// The mode, if the header has one.
    pub mode: Option<u32>,
    /// The content.
    pub content: String,
}

impl Archive {
    /// Parses the text of an archive.
    ///
    /// # Errors
    /// A path is empty, is absolute, has `..` in it or occurs twice, or a directory has content.
    pub fn parse(text: &str) -> Result<Self, TxtarError> {
        let mut archive = Self::default();
        let mut no_newline = false;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            let at_line = |problem| TxtarError::Line {
                line: number + 1,
                problem,
            };
            let bare = line.strip_suffix('\n').unwrap_or(line);
            if let Some(header) = header(bare) {
                archive.finish_file(no_newline);
                let (file, cut) = parse_header(header).map_err(at_line)?;
                if archive.get(&file.path).is_some() {
                    return Err(at_line(LineProblem::Twice(file.path)));
                }
                no_newline = cut;
                archive.files.push(file);
            } else if let Some(file) = archive.files.last_mut() {
                if file.path.ends_with('/') {
                    return Err(at_line(LineProblem::Directory));
                }
                file.content.push_str(bare);
                file.content.push('\n');
            } else {
                archive.comment.push_str(bare);
                archive.comment.push('\n');
            }
        }
        archive.finish_file(no_newline);
        Ok(archive)
    }

    /// Reads all files below a folder, sorted by path. A file that somebody may execute gets the mode 755.
    ///
    /// # Errors
    /// A file cannot be read, or has a name or content that an archive cannot have.
    pub fn read_folder(folder: &Path) -> Result<Self, TxtarError> {
        let mut archive = Self::default();
        archive.add_folder(folder, "")?;
        archive.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(archive)
    }

    fn add_folder(&mut self, folder: &Path, prefix: &str) -> Result<(), TxtarError> {
        let failed = |source| TxtarError::Read {
            path: folder.to_owned(),
            source,
        };
        let count = self.files.len();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let kind = path.symlink_metadata().map_err(failed)?;
            let refused = |problem| TxtarError::Content {
                path: path.clone(),
                problem,
            };
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or_else(|| refused("has a name that is not UTF-8"))?;
            let name = format!("{prefix}{name}");
            if parse_header(&name).is_ok_and(|(file, cut)| file.path != name || cut) || name.contains('\n') {
                return Err(refused("has a name that an archive cannot have"));
            }
            if kind.is_dir() {
                self.add_folder(&path, &format!("{name}/"))?;
                continue;
            }
            if !kind.is_file() {
                return Err(refused("is neither a file nor a directory"));
            }
            let bytes = fs::read(&path).map_err(|source| TxtarError::Read {
                path: path.clone(),
                source,
            })?;
            let content = String::from_utf8(bytes).map_err(|_| refused("is not UTF-8"))?;
            if content.lines().any(|line| header(line).is_some()) {
                return Err(refused("has a line that looks like the header of an archive"));
            }
            self.files.push(File {
                path: name,
                mode: (kind.permissions().mode() & 0o111 != 0).then_some(0o755),
                content,
            });
        }
        if self.files.len() == count && !prefix.is_empty() {
            self.files.push(File {
                path: prefix.to_owned(),
                mode: None,
                content: String::new(),
            });
        }
        Ok(())
    }

    fn finish_file(&mut self, no_newline: bool) {
        if let Some(file) = self.files.last_mut().filter(|_| no_newline) {
            file.content.pop();
        }
    }

    /// Returns the content of a file.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.files
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.content.as_str())
    }

    /// Returns the files below a directory, with paths relative to it.
    pub fn below(&self, directory: &str) -> impl Iterator<Item = (&str, &File)> {
        self.files.iter().filter_map(move |file| {
            let path = file.path.strip_prefix(directory)?.strip_prefix('/')?;
            (!path.is_empty()).then_some((path, file))
        })
    }
}

impl fmt::Display for Archive {
    /// Writes the text of the archive. A comment that does not end with a newline gets one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.comment)?;
        if !self.comment.is_empty() && !self.comment.ends_with('\n') {
            f.write_str("\n")?;
        }
        for File { path, mode, content } in &self.files {
            write!(f, "-- {path}")?;
            if let Some(mode) = mode {
                write!(f, " mode={mode:o}")?;
            }
            let is_open = !content.is_empty() && !content.ends_with('\n');
            let (attribute, end) = if is_open { (" no-newline", "\n") } else { ("", "") };
            write!(f, "{attribute} --\n{content}{end}")?;
        }
        Ok(())
    }
}

impl File {
    /// Writes the file to a path. Directories are created as needed.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if self.path.ends_with('/') {
            return fs::create_dir_all(path);
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, &self.content)?;
        // Independent of the umask.
        fs::set_permissions(path, fs::Permissions::from_mode(self.mode.unwrap_or(0o644)))
    }
}

/// Returns what stands between the dashes of a header, for a line without its newline.
fn header(line: &str) -> Option<&str> {
    line.strip_prefix("-- ")?.strip_suffix(" --")
}

/// Parses `PATH [mode=OCTAL] [no-newline]`. The second value is true if the content has no newline at its
/// end.
fn parse_header(header: &str) -> Result<(File, bool), LineProblem> {
    let (mut path, mut mode, mut no_newline) = (header.trim(), None, false);
    while let Some((rest, last)) = path.rsplit_once(' ') {
        if last == "no-newline" {
            no_newline = true;
        } else if let Some(octal) = last.strip_prefix("mode=") {
            mode = Some(u32::from_str_radix(octal, 8).map_err(|_| LineProblem::Mode(octal.to_owned()))?);
        } else {
            break;
        }
        path = rest.trim_end();
    }
    if path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(LineProblem::Path(path.to_owned()));
    }
    let file = File {
        path: path.to_owned(),
        mode,
        content: String::new(),
    };
    Ok((file, no_newline))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_content_modes_and_line_ends() {
        let text = "About this.\n\n-- a/b c --\none\r\n\ntwo\n-- run.sh mode=755 --\n#!/bin/sh\n\
            -- empty --\n-- cut no-newline --\nend\n-- dir/ --\n-- last --\nno line end";
        let archive = Archive::parse(text).expect("an archive");
        assert_eq!(archive.comment, "About this.\n\n");
        let files: Vec<_> = archive
            .files
            .iter()
            .map(|f| (f.path.as_str(), f.mode, f.content.as_str()))
            .collect();
        assert_eq!(
            files,
            [
                ("a/b c", None, "one\r\n\ntwo\n"),
                ("run.sh", Some(0o755), "#!/bin/sh\n"),
                ("empty", None, ""),
                ("cut", None, "end"),
                ("dir/", None, ""),
                ("last", None, "no line end\n"),
            ]
        );
        assert_eq!(archive.get("cut"), Some("end"));
        assert_eq!(
            archive.below("a").map(|(path, _)| path).collect::<Vec<_>>(),
            ["b c"]
        );
    }

    #[test]
    fn lines_that_are_no_headers_are_content() {
        let archive = Archive::parse("-- a --\n--b --\n-- c\n --  d --\n").expect("an archive");
        assert_eq!(archive.get("a"), Some("--b --\n-- c\n --  d --\n"));
    }

    #[test]
    fn bad_archives_are_refused() {
        for (text, problem) in [
            ("-- /etc/passwd --\n", "line 1: bad path \"/etc/passwd\""),
            ("-- a/../../b --\n", "line 1: bad path \"a/../../b\""),
            ("--  --\n", "line 1: bad path \"\""),
            ("-- a --\n-- a --\n", "line 2: a occurs twice"),
            ("-- a mode=9 --\n", "line 1: mode \"9\" is not an octal number"),
            ("-- a/ --\nx\n", "line 2: a directory has no content"),
        ] {
            let error = Archive::parse(text).expect_err(text);
            assert_eq!(error.to_string(), problem);
        }
    }

    #[test]
    fn files_are_written_with_their_modes() {
        let folder = tempfile::tempdir().expect("a directory");
        let archive = Archive::parse("-- in/run mode=755 --\nx\n-- in/text --\ny\n-- in/none/ --\n")
            .expect("an archive");
        for (path, file) in archive.below("in") {
            file.write(&folder.path().join(path)).expect("a file");
        }
        let mode = |name: &str| {
            let data = fs::metadata(folder.path().join(name)).expect("a file");
            data.permissions().mode() & 0o777
        };
        assert_eq!((mode("run"), mode("text")), (0o755, 0o644));
        assert!(folder.path().join("none").is_dir());
    }

    #[test]
    fn a_folder_becomes_an_archive_and_a_folder_again() {
        let text = "-- a/cut no-newline --\nend\n-- a/run mode=755 --\n#!/bin/sh\n-- a/x y --\n\n\
            -- empty --\n-- none/ --\n";
        let archive = Archive::parse(text).expect("an archive");
        let folder = tempfile::tempdir().expect("a directory");
        for file in &archive.files {
            file.write(&folder.path().join(&file.path)).expect("a file");
        }
        let read = Archive::read_folder(folder.path()).expect("a folder of text files");
        assert_eq!(read, archive);
        assert_eq!(read.to_string(), text);
    }

    #[test]
    fn content_that_would_not_come_back_is_refused() {
        for (name, content, problem) in [
            ("a", &b"x\n-- b --\n"[..], "looks like the header"),
            ("a", b"\xff", "is not UTF-8"),
            ("a no-newline", b"", "has a name"),
        ] {
            let folder = tempfile::tempdir().expect("a directory");
            fs::write(folder.path().join(name), content).expect("a file");
            let error = Archive::read_folder(folder.path()).expect_err(name).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
