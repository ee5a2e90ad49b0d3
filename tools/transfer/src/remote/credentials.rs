//! The credentials file that `PEGASUS_CREDENTIALS` names: sections in brackets, options `name = value`.
//!
//! | section | options | for |
//! |---|---|---|
//! | `PROTOCOL://HOST` or `HOST` | `header.NAME`, `username`, `password`, `insecure` | http(s), webdav(s) |
//! | a storage site | `endpoint`, `region` | s3 |
//! | `IDENTITY@SITE` | `access_key`, `secret_key`, `session_token` | s3 |
//!
//! Names of options count in lower case. Lines that start with `#` or `;` are comments. A line that starts with
//! a blank continues the value before. Values are taken as they are.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::shown;

/// A parsed file.
#[derive(Default)]
pub(crate) struct Credentials(Vec<Section>);

struct Section {
    name: String,
    options: Vec<(String, String)>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Passwords stay out of logs.
        out.debug_list().entries(self.0.iter().map(|s| &s.name)).finish()
    }
}

impl Credentials {
    /// Reads a file that nobody else may read.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let name = shown::path(path);
        let meta = fs::metadata(path).map_err(|error| format!("credentials file {name}: {error}"))?;
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(format!(
                "Permissions of credentials file {name} are too liberal; run: chmod 600 {name}"
            ));
        }
        let text = fs::read(path).map_err(|error| format!("credentials file {name}: {error}"))?;
        Self::parse(&String::from_utf8_lossy(&text))
            .map_err(|(line, message)| format!("credentials file {name}, line {line}: {message}"))
    }

    /// Reads the text of a file; on failure the line and what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut sections: Vec<Section> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let fail = |message| Err((index + 1, message));
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

    /// Whether there is a section.
    pub(crate) fn has(&self, section: &str) -> bool {
        self.0.iter().any(|s| s.name == section)
    }

    /// An option; the last one counts.
    pub(crate) fn get(&self, section: &str, option: &str) -> Option<&str> {
        self.options(section)
            .filter(|(name, _)| *name == option)
            .last()
            .map(|(_, value)| value)
    }

    /// All options of a section.
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
        secret_key : a=b:%c\n\n[http://h:80]\nheader.X-Foo: transfer_one\nlong = 1\n  2\n; end\n[amazon]\nregion=r\n";

    #[test]
    fn options_are_found() {
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
    fn errors_name_the_line() {
        for (text, line) in [("x = 1\n", 1), ("[a]\nnothing\n", 2), ("\n[a\n", 2)] {
            assert_eq!(Credentials::parse(text).err().map(|e| e.0), Some(line), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[\\[\\]=: #;a\n\té]{0,60}") {
            let _ = Credentials::parse(&text);
        }
    }
}
