//! Names that look like those of secrets, and texts without the values of secrets.
//!
//! Submit directories, records and logs are read by colleagues. They must not show passwords that came in as
//! properties, options or variables.

use std::ffi::OsStr;

/// A name with one of these words is that of a secret. Case and the characters `_`, `-` and `.` do not count.
pub const WORDS: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
];

/// Names that end so say where something is, such as `DB_PASSWORD_FILE`.
const PLACES: [&str; 3] = ["file", "path", "dir"];

/// Variables of Pegasus and Google that hold the path of a file with a secret. Pegasus appends `_SITE` to its
/// own.
const NAMES_OF_FILES: [&str; 4] = [
    "PEGASUS_CREDENTIALS",
    "SSH_PRIVATE_KEY",
    "HPSS_CREDENTIAL",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// Variable with more words, separated by commas.
pub const VARIABLE: &str = "PMC_SECRET_NAMES";

/// Stands for the value of a secret.
pub const HIDDEN: &str = "XXX";

/// Recognises names of secrets.
#[derive(Clone, Debug)]
pub struct SecretNames {
    words: Vec<String>,
}

impl SecretNames {
    /// Uses [`WORDS`] and the words in `more`, the value of [`VARIABLE`].
    #[must_use]
    pub fn new(more: Option<&OsStr>) -> Self {
        let more = more
            .map(|more| more.to_string_lossy().into_owned())
            .unwrap_or_default();
        let words = WORDS.iter().copied().chain(more.split(','));
        SecretNames {
            words: words
                .map(|word| plain(word.trim().as_bytes()))
                .filter(|word| !word.is_empty())
                .collect(),
        }
    }

    /// Returns whether a name is that of a secret.
    #[must_use]
    pub fn contain(&self, name: &[u8]) -> bool {
        let letters = plain(name);
        self.words.iter().any(|word| letters.contains(word)) && !says_where(name)
    }

    /// Returns the words that make a name that of a secret, in lower case without separators.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(String::as_str)
    }

    /// Returns a word of a command line, such as `-Ddb.password=x` or `TOKEN=x`, without the value of a
    /// secret. `None` if it has none.
    #[must_use]
    pub fn hide(&self, word: &[u8]) -> Option<Vec<u8>> {
        let equals = word.iter().position(|byte| *byte == b'=')?;
        let (name, value) = word.split_at(equals);
        // In longer texts, such as scripts, the equals sign means something else.
        let is_name = name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(byte));
        (is_name && value.len() > 1 && self.contain(name)).then(|| [name, b"=", HIDDEN.as_bytes()].concat())
    }

    /// Like [`SecretNames::hide`] for all words. Words without a secret stay.
    #[must_use]
    pub fn hide_all(&self, words: &[String]) -> Vec<String> {
        words
            .iter()
            .map(|word| match self.hide(word.as_bytes()) {
                Some(hidden) => String::from_utf8_lossy(&hidden).into_owned(),
                None => word.clone(),
            })
            .collect()
    }
}

/// Returns a value as messages show it: nothing of a secret, and no passwords of URLs. `name` is that of the
/// setting.
#[must_use]
pub fn shown_value(name: &str, value: &str) -> String {
    let names = SecretNames::new(None);
    if names.contain(name.as_bytes()) {
        return HIDDEN.to_owned();
    }
    let value = urls_without_secrets(value);
    // Databases have parameters behind semicolons, too, and logins such as `user/password@host`.
    let shown = value.split(';').map(|part| {
        let hidden = names.hide(part.as_bytes());
        hidden.map_or(part.to_owned(), |hidden| {
            String::from_utf8_lossy(&hidden).into_owned()
        })
    });
    let shown = shown.collect::<Vec<_>>().join(";");
    match (shown.starts_with("jdbc:"), shown.split_once('@')) {
        (true, Some((login, place))) if !login.contains("://") => {
            let user = login.split('/').next().unwrap_or_default();
            let hidden = if user.len() < login.len() { "/XXX" } else { "" };
            format!("{user}{hidden}@{place}")
        }
        _ => shown,
    }
}

/// Returns a text without the passwords and queries of the URLs in it. A query can be a signature.
#[must_use]
pub fn urls_without_secrets(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        out.push_str(before);
        let end = url.find(|c: char| c.is_whitespace() || "'\"<>".contains(c));
        let (url, after) = url.split_at(end.unwrap_or(url.len()));
        let host = url.find('/').unwrap_or(url.len());
        let (login, place) = match url[..host].rfind('@') {
            Some(at) => (&url[..at], &url[at..]),
            None => ("", url),
        };
        out.push_str(login.split(':').next().unwrap_or_default());
        if login.contains(':') {
            out.push(':');
            out.push_str(HIDDEN);
        }
        match place.split_once('?') {
            Some((place, _)) => {
                out.push_str(place);
                out.push('?');
                out.push_str(HIDDEN);
            }
            None => out.push_str(place),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns whether a name is that of a place, not of a secret.
fn says_where(name: &[u8]) -> bool {
    let last = name
        .rsplit(|byte| b"_-.".contains(byte))
        .next()
        .unwrap_or_default();
    let is_place = last.len() < name.len()
        && PLACES
            .iter()
            .any(|place| last.eq_ignore_ascii_case(place.as_bytes()));
    is_place
        || NAMES_OF_FILES.iter().any(|known| {
            name.strip_prefix(known.as_bytes())
                .is_some_and(|site| site.is_empty() || site.starts_with(b"_"))
        })
}

/// Returns a name in lower case without separators.
fn plain(name: &[u8]) -> String {
    name.iter()
        .filter(|byte| !b"_-.".contains(byte))
        .map(|byte| char::from(byte.to_ascii_lowercase()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secrets_and_logins_are_not_shown() {
        for (name, value, shown) in [
            ("a.password", "pw", "XXX"),
            ("a.db.url", "jdbc:mysql://u:pw@h/d", "jdbc:mysql://u:XXX@h/d"),
            ("a.db.url", "jdbc:mysql://h/d?password=pw", "jdbc:mysql://h/d?XXX"),
            (
                "a.db.url",
                "jdbc:sqlserver://h;user=u;password=pw;x=y",
                "jdbc:sqlserver://h;user=u;password=XXX;x=y",
            ),
            (
                "a.db.url",
                "jdbc:oracle:thin:u/pw@//h:1/x",
                "jdbc:oracle:thin:u/XXX@//h:1/x",
            ),
            ("a.db.url", "jdbc:sqlite:/a/b@c.db", "jdbc:sqlite:/XXX@c.db"),
            ("a.db.url", "/a/b@c;d", "/a/b@c;d"),
        ] {
            assert_eq!(shown_value(name, value), shown);
        }
    }

    #[test]
    fn names_of_secrets() {
        let names = SecretNames::new(Some(OsStr::new("pin, lab_key")));
        for name in [
            "DB_PASSWORD",
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "pegasus.catalog.replica.db.password",
            "Api-Key",
            "LABKEY",
            "CARD_PIN",
            "TOKENFILE",
            "PEGASUS_CREDENTIALSX",
        ] {
            assert!(names.contain(name.as_bytes()), "{name}");
        }
        for name in [
            "PATH",
            "SSH_AUTH_SOCK",
            "PASSAGE",
            "KEY",
            "pegasus.dir.storage",
            "DB_PASSWORD_FILE",
            "SSH_PRIVATE_KEY_hpc",
            "PEGASUS_CREDENTIALS",
        ] {
            assert!(!names.contain(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn urls_lose_passwords_and_queries() {
        for (text, expected) in [
            (
                "curl -o x ftp://me:p@w@h/a/b?c",
                "curl -o x ftp://me:XXX@h/a/b?XXX",
            ),
            (
                "a 'davs://h/x?authz=t' b http://h?t",
                "a 'davs://h/x?XXX' b http://h?XXX",
            ),
            ("ftp://me@h/a@b:c", "ftp://me@h/a@b:c"),
            ("no url: a@b:c?d", "no url: a@b:c?d"),
            ("://", "://"),
        ] {
            assert_eq!(urls_without_secrets(text), expected);
        }
    }

    #[test]
    fn values_are_hidden() {
        let names = SecretNames::new(None);
        let words = [
            "-Da.password=x=y",
            "--token=",
            "TOKEN=t",
            "--sites",
            "echo token=$X",
            "a=b",
        ];
        let hidden = names.hide_all(&words.map(str::to_owned));
        assert_eq!(
            hidden,
            [
                "-Da.password=XXX",
                "--token=",
                "TOKEN=XXX",
                "--sites",
                "echo token=$X",
                "a=b"
            ]
        );
    }
}
