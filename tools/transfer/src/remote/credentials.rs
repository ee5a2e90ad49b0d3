//! The credentials file `PEGASUS_CREDENTIALS`: sections in brackets, options `name = value`.
//!
//! | section | options | for |
//! |---|---|---|
//! | `PROTOCOL://HOST` or `HOST` | `header.NAME`, `username`, `password`, `insecure` | http(s), webdav(s) |
//! | a storage site | `endpoint`, `region` | s3 |
//! | `IDENTITY@SITE` | `access_key`, `secret_key`, `session_token` | s3 |
//!
//! Option names are case-insensitive. Lines that start with `#` or `;` are comments. A line that starts with
//! a blank continues the previous value. Values are not unescaped.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::TransferError;
use crate::shown;

/// A parsed credentials file.
#[derive(Default)]
pub(crate) struct Credentials(Vec<Section>);

struct Section {
    name: String,
    options: Vec<(String, String)>,
}

/// Why a credentials file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    #[error("credentials file {}: {source}", shown::path(path))]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "Permissions of credentials file {name} are too liberal; run: chmod 600 {name}",
        name = shown::path(.0)
    )]
    OpenPermissions(PathBuf),
    #[error("credentials file {}, {source}", shown::path(path))]
    Syntax { path: PathBuf, source: SyntaxError },
}

impl From<CredentialsError> for TransferError {
    fn from(error: CredentialsError) -> Self {
        Self::Credentials(error.to_string())
    }
}

/// A line that is neither section, option, comment nor continuation.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub(crate) struct SyntaxError {
    line: usize,
    message: &'static str,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keep passwords out of logs.
        out.debug_list().entries(self.0.iter().map(|s| &s.name)).finish()
    }
}

/// Maximum bytes of a file with passwords, keys or tokens.
pub(super) const MAX_CREDENTIALS: u64 = 1 << 20;

impl Credentials {
    /// Reads a file. Other users must not have access to it.
    pub(crate) fn read(path: &Path) -> Result<Self, CredentialsError> {
        let unreadable = |source| CredentialsError::Unreadable {
            path: path.to_owned(),
            source,
        };
        // Another user must not be able to put a file there after the check.
        let file = pmc_files::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.permissions().mode() & 0o077 != 0 {
            return Err(CredentialsError::OpenPermissions(path.to_owned()));
        }
        let text = pmc_files::read_rest(&file, MAX_CREDENTIALS).map_err(unreadable)?;
        Self::parse(&String::from_utf8_lossy(&text)).map_err(|source| CredentialsError::Syntax {
            path: path.to_owned(),
            source,
        })
    }

    /// Parses the text of a credentials file.
    pub(crate) fn parse(text: &str) -> Result<Self, SyntaxError> {
        let mut sections: Vec<Section> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let fail = |message| {
                let line = index + 1;
                Err(SyntaxError { line, message })
            };
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
                continue;
            }
            if line.starts_with([' ', '\t'])
                && let Some((_, value)) = sections.last_mut().and_then(|s| s.options.last_mut())
            {
                value.push('\n');
                value.push_str(trimmed);
                continue;
            }
            if let Some(rest) = trimmed.strip_prefix('[') {
                let Some(name) = rest.strip_suffix(']') else {
                    return fail("a section name must end with ']'");
                };
                sections.push(Section {
                    name: name.to_owned(),
                    options: Vec::new(),
                });
                continue;
            }
            let Some(section) = sections.last_mut() else {
                return fail("an option stands before the first [section]");
            };
            let Some(at) = trimmed.find(['=', ':']) else {
                return fail("neither [section] nor 'name = value'");
            };
            let (name, value) = (trimmed[..at].trim(), trimmed[at + 1..].trim());
            section
                .options
                .push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Ok(Self(sections))
    }

    /// Returns whether the section exists.
    pub(crate) fn has(&self, section: &str) -> bool {
        self.0.iter().any(|s| s.name == section)
    }

    /// Returns the last value of an option.
    pub(crate) fn get(&self, section: &str, option: &str) -> Option<&str> {
        self.options(section)
            .filter(|(name, _)| *name == option)
            .last()
            .map(|(_, value)| value)
    }

    /// Iterates over the options of a section.
    pub(crate) fn options<'a>(&'a self, section: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let of_section = self.0.iter().filter(move |s| s.name == section);
        of_section.flat_map(|s| {
            s.options
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# comment\n[amazon]\nendpoint = https://s3.amazonaws.com\n\n[me@amazon]\nAccess_Key=AK\n\
        secret_key : a=b:%c\n\n[http://h:80]\nheader.X-Foo: one\nlong = 1\n  2\n; end\n[amazon]\nregion=r\n";

    #[test]
    fn options_are_read_from_sections() {
        let read = Credentials::parse(TEXT).expect("valid");
        assert_eq!(read.get("amazon", "endpoint"), Some("https://s3.amazonaws.com"));
        assert_eq!(read.get("amazon", "region"), Some("r"));
        assert_eq!(read.get("me@amazon", "access_key"), Some("AK"));
        assert_eq!(read.get("me@amazon", "secret_key"), Some("a=b:%c"));
        assert_eq!(read.get("http://h:80", "header.x-foo"), Some("one"));
        assert_eq!(read.get("http://h:80", "long"), Some("1\n2"));
        assert_eq!(read.get("none", "x"), None);
        assert!(read.has("amazon") && !read.has("none"));
        assert!(!format!("{read:?}").contains("a=b"));
    }

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("a FIFO");
        for path in [&fifo, Path::new("/dev/zero")] {
            assert!(Credentials::read(path).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn syntax_errors_give_the_line() {
        for (text, line) in [("x = 1\n", 1), ("[a]\nnothing\n", 2), ("\n[a\n", 2)] {
            assert_eq!(
                Credentials::parse(text).err().map(|e| e.line),
                Some(line),
                "{text}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[\\[\\]=: #;a\n\té]{0,60}") {
            let _ = Credentials::parse(&text);
        }
    }
}
