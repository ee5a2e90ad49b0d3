//! Reads passwords of PostgreSQL servers from `.pgpass`, the file of PostgreSQL's own programs.
//!
//! A line is `HOST:PORT:DATABASE:USER:PASSWORD`. Each of the first four fields may be `*`. A backslash
//! escapes a colon or backslash. The first matching line counts.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

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

/// Returns the password for a key, host, port, database and account, if the file has one.
///
/// # Errors
/// The file cannot be used.
pub fn password(path: &Path, key: &[String; 4]) -> Result<Option<String>, PasswordFileError> {
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
    Ok(find(&String::from_utf8_lossy(&bytes), key))
}

fn find(text: &str, key: &[String; 4]) -> Option<String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let mut rest = line;
            for expected in key {
                let (field, after) = field(rest);
                rest = after?;
                if field.plain != "*" && field.text != *expected {
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
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn key(text: &str) -> [String; 4] {
        let fields: Vec<_> = text.split('|').map(str::to_owned).collect();
        fields.try_into().unwrap()
    }

    const FILE: &str = "# of the site\n\
        db.example.org:5432:runs:me:one\n\
        db.example.org:*:*:me:t\\:w\\\\o\n\
        [::1]:x\n\
        *:*:*:odd\\:name:four\n\
        a:1:b:c:\n";

    #[test]
    fn the_first_matching_line_counts() {
        for (text, expected) in [
            ("db.example.org|5432|runs|me", Some("one")),
            ("db.example.org|5433|runs|me", Some("t:w\\o")),
            ("db.example.org|5432|runs|you", None),
            ("anywhere|5432|d|odd:name", Some("four")),
            ("a|1|b|c", None),
        ] {
            assert_eq!(find(FILE, &key(text)).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn an_exposed_file_is_not_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), FILE).unwrap();
        let key = key("db.example.org|5432|runs|me");
        let mode = |mode| fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        let error = password(file.path(), &key).unwrap_err().to_string();
        assert!(error.contains("chmod 0600"), "{error}");
        mode(0o600);
        assert_eq!(password(file.path(), &key).unwrap().as_deref(), Some("one"));
        assert_eq!(password(Path::new("/nowhere/at/all"), &key).unwrap(), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "[a*:\\\\\n#5432é]{0,40}") {
            let _ = find(&text, &key("a|5432|a|a"));
        }
    }
}
