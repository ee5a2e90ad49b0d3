//! Passwords of PostgreSQL servers, from the file that PostgreSQL's own programs read (`.pgpass`).
//!
//! A line is `HOST:PORT:DATABASE:USER:PASSWORD`; each of the first four may be `*`, and a colon or a backslash
//! in a field follows a backslash. The first line that fits counts.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::destination::Server;

/// The password for a server, if the file names one. `user` is the account if the URL names none.
///
/// # Errors
/// A text that says why the file is not used: PostgreSQL's programs do not either.
pub fn password(path: &Path, server: &Server, user: &str) -> Result<Option<String>, String> {
    let unreadable = |error: io::Error| format!("{}: {error}", path.display());
    let data = match fs::metadata(path) {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    if !data.is_file() {
        return Err(format!("{}: not a file", path.display()));
    }
    if data.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "{}: others may read it, so it is not used; chmod 0600 it",
            path.display()
        ));
    }
    let bytes = fs::read(path).map_err(unreadable)?;
    Ok(find(&String::from_utf8_lossy(&bytes), server, user))
}

fn find(text: &str, server: &Server, user: &str) -> Option<String> {
    let host = match server.host.as_deref() {
        // The sockets of this machine go by this name.
        None | Some("/var/run/postgresql" | "/run/postgresql" | "/tmp") => "localhost",
        Some(host) => host,
    };
    let port = server.port.to_string();
    let user = server.user.as_deref().unwrap_or(user);
    let wanted = [host, &port, server.database.as_deref().unwrap_or(user), user];
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let mut rest = line;
            for wanted in wanted {
                let (field, after) = field(rest);
                rest = after?;
                if field.plain != "*" && field.text != wanted {
                    return None;
                }
            }
            let (password, _) = field(rest);
            Some(password.text).filter(|password| !password.is_empty())
        })
}

struct Field<'t> {
    /// As it stands there.
    plain: &'t str,
    /// Without the backslashes.
    text: String,
}

/// The first field, and what follows its colon if there is one.
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

    #[cfg(feature = "postgresql")]
    #[test]
    fn the_first_line_that_fits() {
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

    #[cfg(feature = "postgresql")]
    #[test]
    fn a_file_that_others_may_read_is_not_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), FILE).unwrap();
        let server = server("postgresql://me@db.example.org/runs");
        let mode = |mode| fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        assert!(
            password(file.path(), &server, "x")
                .unwrap_err()
                .contains("chmod 0600")
        );
        mode(0o600);
        assert_eq!(
            password(file.path(), &server, "x").unwrap().as_deref(),
            Some("one")
        );
        assert_eq!(password(Path::new("/nowhere/at/all"), &server, "x"), Ok(None));
    }

    proptest::proptest! {
        #[cfg(feature = "postgresql")]
        #[test]
        fn any_text_is_read(text in "[a*:\\\\\n#5432é]{0,40}") {
            let _ = find(&text, &server("postgresql://a@a/a"), "a");
        }
    }
}
