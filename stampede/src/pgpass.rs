//! Reads passwords of PostgreSQL servers from `.pgpass`, the file of PostgreSQL's own programs.
//!
//! A line is `HOST:PORT:DATABASE:USER:PASSWORD`. Each of the first four fields may be `*`. A backslash
//! escapes a colon or backslash. The first matching line counts.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::destination::Server;

/// Why a file of passwords is not used. PostgreSQL's programs do not use it either.
#[derive(Debug, thiserror::Error)]
pub enum PasswordFileError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a directory or the like.
    #[error("{}: not a file", .0.display())]
    NotAFile(PathBuf),
    /// Other users may read it.
    #[error("{}: not used, as others may read it; chmod 0600 it", .0.display())]
    Exposed(PathBuf),
}

/// Returns the password for a server, if the file has one. `user` is the account for a URL without one.
///
/// # Errors
/// The file cannot be used.
pub fn password(path: &Path, server: &Server, user: &str) -> Result<Option<String>, PasswordFileError> {
    let unreadable = |source: io::Error| PasswordFileError::Read {
        path: path.to_owned(),
        source,
    };
    let data = match fs::metadata(path) {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    if !data.is_file() {
        return Err(PasswordFileError::NotAFile(path.to_owned()));
    }
    if data.permissions().mode() & 0o077 != 0 {
        return Err(PasswordFileError::Exposed(path.to_owned()));
    }
    let bytes = fs::read(path).map_err(unreadable)?;
    Ok(find(&String::from_utf8_lossy(&bytes), server, user))
}

fn find(text: &str, server: &Server, user: &str) -> Option<String> {
    let host = match server.host.as_deref() {
        // The name for sockets of this machine.
        None | Some("/var/run/postgresql" | "/run/postgresql" | "/tmp") => "localhost",
        Some(host) => host,
    };
    let port = server.port.to_string();
    let user = server.user.as_deref().unwrap_or(user);
    let expected = [host, &port, server.database.as_deref().unwrap_or(user), user];
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let mut rest = line;
            for expected in expected {
                let (field, after) = field(rest);
                rest = after?;
                if field.plain != "*" && field.text != expected {
                    return None;
                }
            }
            let (password, _) = field(rest);
            Some(password.text).filter(|password| !password.is_empty())
        })
}

struct Field<'t> {
    /// The original text.
    plain: &'t str,
    /// The text without escapes.
    text: String,
}

/// Returns the first field, and the rest after its colon.
fn field(line: &str) -> (Field<'_>, Option<&str>) {
    let mut text = String::new();
    let mut letters = line.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            ':' => {
                let plain = &line[..at];
                return (Field { plain, text }, Some(&line[at + 1..]));
            }
            '\\' => text.extend(letters.next().map(|(_, letter)| letter)),
            letter => text.push(letter),
        }
    }
    (Field { plain: line, text }, None)
}

#[cfg(test)]
#[cfg(feature = "postgresql")]
mod tests {
    use std::fs::Permissions;

    use super::*;
    use crate::destination::{Destination, read_url};

    fn server(url: &str) -> Server {
        match read_url(url) {
            Ok(Destination::Server(server)) => *server,
            other => panic!("{url}: {other:?}"),
        }
    }

    const FILE: &str = "# of the site\n\
        db.example.org:5432:runs:me:one\n\
        db.example.org:*:*:me:t\\:w\\\\o\n\
        localhost:5432:here:*:three\n\
        [::1]:x\n\
        *:*:*:odd\\:name:four\n\
        a:1:b:c:\n";

    #[test]
    fn the_first_matching_line_counts() {
        for (url, expected) in [
            ("postgresql://me@db.example.org/runs", Some("one")),
            ("postgresql://me@db.example.org:5433/runs", Some("t:w\\o")),
            ("postgresql://you@db.example.org/runs", None),
            ("postgresql:///here", Some("three")),
            ("postgresql:///here?host=/var/run/postgresql", Some("three")),
            ("postgresql:///here?host=/srv/pg", None),
            ("postgresql://odd%3Aname@anywhere/d", Some("four")),
            ("postgresql://c@a:1/b", None),
        ] {
            assert_eq!(find(FILE, &server(url), "login").as_deref(), expected, "{url}");
        }
        let own = "*:*:login:login:five\n";
        assert_eq!(
            find(own, &server("postgresql://h"), "login").as_deref(),
            Some("five")
        );
    }

    #[test]
    fn an_exposed_file_is_not_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), FILE).unwrap();
        let server = server("postgresql://me@db.example.org/runs");
        let mode = |mode| fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        assert!(
            password(file.path(), &server, "x")
                .unwrap_err()
                .to_string()
                .contains("chmod 0600")
        );
        mode(0o600);
        assert_eq!(
            password(file.path(), &server, "x").unwrap().as_deref(),
            Some("one")
        );
        assert_eq!(
            password(Path::new("/nowhere/at/all"), &server, "x").unwrap(),
            None
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "[a*:\\\\\n#5432é]{0,40}") {
            let _ = find(&text, &server("postgresql://a@a/a"), "a");
        }
    }
}
