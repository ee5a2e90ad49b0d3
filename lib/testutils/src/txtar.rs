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

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

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
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut archive = Self::default();
        let mut no_newline = false;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            let bare = line.strip_suffix('\n').unwrap_or(line);
            let header = bare.strip_prefix("-- ").and_then(|rest| rest.strip_suffix(" --"));
            if let Some(header) = header {
                archive.finish_file(no_newline);
                let (file, cut) = parse_header(header).map_err(|e| format!("line {}: {e}", number + 1))?;
                if archive.get(&file.path).is_some() {
                    return Err(format!("line {}: {} occurs twice", number + 1, file.path));
                }
                no_newline = cut;
                archive.files.push(file);
            } else if let Some(file) = archive.files.last_mut() {
                if file.path.ends_with('/') {
                    return Err(format!("line {}: a directory has no content", number + 1));
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

/// Parses `PATH [mode=OCTAL] [no-newline]`. The second value is true if the content has no newline at its
/// end.
fn parse_header(header: &str) -> Result<(File, bool), String> {
    let (mut path, mut mode, mut no_newline) = (header.trim(), None, false);
    while let Some((rest, last)) = path.rsplit_once(' ') {
        if last == "no-newline" {
            no_newline = true;
        } else if let Some(octal) = last.strip_prefix("mode=") {
            mode = Some(u32::from_str_radix(octal, 8).map_err(|e| format!("mode {octal}: {e}"))?);
        } else {
            break;
        }
        path = rest.trim_end();
    }
    if path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(format!("bad path {path:?}"));
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
            (
                "-- a mode=9 --\n",
                "line 1: mode 9: invalid digit found in string",
            ),
            ("-- a/ --\nx\n", "line 2: a directory has no content"),
        ] {
            assert_eq!(Archive::parse(text), Err(problem.to_owned()), "{text}");
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
}
