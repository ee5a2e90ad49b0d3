//! The URLs of a transfer specification.
//!
//! | form | meaning |
//! |---|---|
//! | no colon, or starting with `/`, `./` or `../` | path of a local file |
//! | `file:PATH`, `file://PATH`, `file://localhost/PATH` | the same; relative without a leading `/` |
//! | `symlink://PATH`, `moveto://PATH` | local path, to be linked or moved to |
//! | `PROTOCOL://HOST/PATH` | anything else; several `/` in a row count as one |
//!
//! In the local forms `$NAME` and `${NAME}` are replaced from the environment (an unset name by nothing).
//! There is no percent-decoding: a `%` in a file name is a `%`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::shown;

/// Returns the value of an environment variable.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The address of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    host: String,
    path: PathBuf,
}

/// The reason why a text is not a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The text is empty.
    #[error("a URL is empty")]
    Empty,
    /// A zero byte, which is invalid in a file name.
    #[error("the URL '{0}' contains a zero byte")]
    ZeroByte(String),
    /// Neither a path nor `protocol://host/path`.
    #[error("'{0}' is not a URL: a path or PROTOCOL://HOST/PATH is needed")]
    Syntax(String),
}

/// Other protocols whose URLs may have a query with a token.
const TOKEN_SCHEMES: [&str; 5] = ["root", "gsidavs", "osdf", "pelican", "stash"];

/// Protocols of local paths.
const LOCAL_PROTOCOLS: [&str; 3] = ["file", "symlink", "moveto"];
/// Protocols whose paths can end with a query.
const HTTP_SCHEMES: [&str; 4] = ["http", "https", "webdav", "webdavs"];

impl Url {
    /// Parses a URL.
    pub fn parse(text: &[u8], env: Lookup<'_>) -> Result<Self, UrlError> {
        let shown = || shown::bytes(text).to_string();
        if text.is_empty() {
            return Err(UrlError::Empty);
        }
        if text.contains(&0) {
            return Err(UrlError::ZeroByte(shown()));
        }
        if !text.contains(&b':')
            || [&b"/"[..], b"./", b"../"]
                .iter()
                .any(|start| text.starts_with(start))
        {
            return Ok(Self::local("file", text, env));
        }
        for scheme in LOCAL_PROTOCOLS {
            if let Some(rest) = text
                .strip_prefix(scheme.as_bytes())
                .and_then(|rest| rest.strip_prefix(b":"))
            {
                let mut rest = rest.strip_prefix(b"//").unwrap_or(rest);
                if scheme == "file" {
                    rest = rest
                        .strip_prefix(b"localhost")
                        .filter(|r| r.starts_with(b"/"))
                        .unwrap_or(rest);
                }
                if rest.is_empty() {
                    return Err(UrlError::Syntax(shown()));
                }
                return Ok(Self::local(scheme, rest, env));
            }
        }
        Self::remote(text).ok_or_else(|| UrlError::Syntax(shown()))
    }

    fn local(scheme: &str, path: &[u8], env: Lookup<'_>) -> Self {
        Self {
            scheme: scheme.to_owned(),
            host: String::new(),
            path: OsString::from_vec(expand(path, env)).into(),
        }
    }

    fn remote(text: &[u8]) -> Option<Self> {
        let colon = text.iter().position(|b| *b == b':')?;
        let scheme = std::str::from_utf8(&text[..colon]).ok()?;
        if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return None;
        }
        let rest = text[colon + 1..].strip_prefix(b"//")?;
        let slash = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
        let (host, path) = rest.split_at(slash);
        let host = std::str::from_utf8(host).ok()?;
        if !host.chars().all(|c| c.is_alphanumeric() || "_.-:@#".contains(c)) {
            return None;
        }
        let mut collapsed = Vec::with_capacity(path.len());
        for byte in path {
            if *byte != b'/' || collapsed.last() != Some(&b'/') {
                collapsed.push(*byte);
            }
        }
        Some(Self {
            scheme: scheme.to_owned(),
            host: host.to_owned(),
            path: OsString::from_vec(collapsed).into(),
        })
    }

    /// Creates a `file` URL.
    #[must_use]
    pub fn file(path: PathBuf) -> Self {
        Self {
            scheme: "file".to_owned(),
            host: String::new(),
            path,
        }
    }

    /// Returns the protocol, without the colon.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the host with user and port as written; empty for local protocols.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this is a local file.
    #[must_use]
    pub fn is_local(&self) -> bool {
        LOCAL_PROTOCOLS.contains(&self.scheme.as_str())
    }

    /// Returns the URL as text, with the bytes of the path unchanged.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = format!("{}://{}", self.scheme, self.host).into_bytes();
        if matches!(self.scheme.as_str(), "srm" | "root") {
            text.push(b'/');
        }
        text.extend_from_slice(self.path.as_os_str().as_bytes());
        text
    }

    /// Returns the host for messages, without a password.
    #[must_use]
    pub fn host_shown(&self) -> String {
        match self.host.rsplit_once('@') {
            Some((user, host)) => match user.split_once(':') {
                Some((user, _)) => format!("{user}:XXX@{host}"),
                None => self.host.clone(),
            },
            None => self.host.clone(),
        }
    }

    fn path_shown(&self) -> PathBuf {
        let bytes = self.path.as_os_str().as_bytes();
        let scheme = self.scheme.as_str();
        let has_queries = HTTP_SCHEMES.contains(&scheme) || TOKEN_SCHEMES.contains(&scheme);
        match bytes.iter().position(|byte| *byte == b'?') {
            Some(query) if has_queries => OsString::from_vec([&bytes[..query], b"?XXX"].concat()).into(),
            _ => self.path.clone(),
        }
    }

    /// Returns the URL for messages, on one line, without a password and without a query, which can be a
    /// signature.
    #[must_use]
    pub fn shown(&self) -> String {
        let host = self.host_shown();
        let shown = Self {
            scheme: self.scheme.clone(),
            host,
            path: self.path_shown(),
        };
        shown::bytes(&shown.to_bytes()).to_string()
    }
}

/// Replaces `$NAME` and `${NAME}`. A name starts with a letter and has at least two characters, so a lone `$`
/// in a file name is kept.
fn expand(text: &[u8], env: Lookup<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| *b == b'$') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        match variable(rest) {
            Some((name, length)) => {
                out.extend_from_slice(env(name).unwrap_or_default().as_bytes());
                rest = &rest[length..];
            }
            None => {
                out.push(b'$');
                rest = &rest[1..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// Returns the name and the length of the reference at the start of `text`, which begins with `$`.
fn variable(text: &[u8]) -> Option<(&str, usize)> {
    let braced = text.get(1) == Some(&b'{');
    let start = if braced { 2 } else { 1 };
    let length = text[start..]
        .iter()
        .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_')
        .count();
    let name = std::str::from_utf8(&text[start..start + length]).ok()?;
    if length < 2 || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    match (braced, text.get(start + length)) {
        (true, Some(b'}')) => Some((name, start + length + 1)),
        (true, _) => None,
        (false, _) => Some((name, start + length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<OsString> {
        (name == "DATA").then(|| "/data".into())
    }

    fn parts(text: &str) -> (String, String, String) {
        let url = Url::parse(text.as_bytes(), &env).expect(text);
        (url.scheme, url.host, url.path.to_string_lossy().into_owned())
    }

    #[test]
    fn local_forms() {
        for (text, scheme, path) in [
            ("/a/b", "file", "/a/b"),
            ("a", "file", "a"),
            ("/a:b", "file", "/a:b"),
            ("file:///a", "file", "/a"),
            ("file://localhost/a", "file", "/a"),
            ("file:a", "file", "a"),
            ("file://dst/x", "file", "dst/x"),
            ("file:////a//b", "file", "//a//b"),
            ("symlink:///a", "symlink", "/a"),
            ("moveto:/a", "moveto", "/a"),
            ("file:///a%20b#c?d", "file", "/a%20b#c?d"),
        ] {
            assert_eq!(
                parts(text),
                (scheme.to_owned(), String::new(), path.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn variables_are_replaced_in_local_paths_only() {
        for (text, path) in [
            ("file://$DATA/x", "/data/x"),
            ("${DATA}x/$NOTSET", "/datax/"),
            ("a$", "a$"),
            ("a$1b", "a$1b"),
            ("$D/x", "$D/x"),
            ("${DATA", "${DATA"),
        ] {
            assert_eq!(parts(text).2, path, "{text}");
        }
        assert_eq!(parts("http://h/$DATA").2, "/$DATA");
    }

    #[test]
    fn remote_forms() {
        assert_eq!(
            parts("http://h:80//a///b"),
            ("http".into(), "h:80".into(), "/a/b".into())
        );
        assert_eq!(
            parts("s3://user@amazon/bucket/k"),
            ("s3".into(), "user@amazon".into(), "/bucket/k".into())
        );
        assert_eq!(parts("http://h"), ("http".into(), "h".into(), String::new()));
    }

    #[test]
    fn queries_are_not_shown() {
        let shown = |text: &[u8]| Url::parse(text, &env).expect("valid").shown();
        assert_eq!(shown(b"https://h/a?X-Amz-Signature=1"), "https://h/a?XXX");
        assert_eq!(shown(b"/data/what?"), "file:///data/what?");
    }

    #[test]
    fn passwords_are_not_shown() {
        let url = Url::parse(b"http://me:secret@h:80/x", &env).expect("valid");
        assert_eq!(url.shown(), "http://me:XXX@h:80/x");
        assert_eq!(url.to_bytes(), b"http://me:secret@h:80/x");
        let url = Url::parse(b"s3://me@site/x", &env).expect("valid");
        assert_eq!(url.shown(), "s3://me@site/x");
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for text in [
            "",
            "foo:bar",
            "a b://h/x",
            "http:/h",
            "http://h o/x",
            "file:",
            "file://",
            "a\0b",
            "http://h\0/",
        ] {
            assert!(Url::parse(text.as_bytes(), &env).is_err(), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_round_trips(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60)) {
            if let Ok(url) = Url::parse(&text, &|_| None) {
                let again = Url::parse(&url.to_bytes(), &|_| None);
                if !url.is_local() && !matches!(url.scheme(), "srm" | "root") {
                    proptest::prop_assert_eq!(again.as_ref(), Ok(&url));
                }
            }
        }
    }
}
