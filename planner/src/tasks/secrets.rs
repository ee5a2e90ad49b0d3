//! Keeps secrets out of the files that colleagues read.
//!
//! Secret values of environments go into scripts `BASE-N.secrets`, which only their owner can read. A task
//! runs `/bin/sh BASE-N.secrets PROGRAM …`, so that the values are neither in the DAG nor in a command line.
//! Other files that may hold secrets are readable by their owner only.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::sync::OnceLock;

use pmc_calls::shell::shell_quote;
use pmc_secrets::SecretNames;
use regex::bytes::{Regex, RegexBuilder};

use crate::exec::{Exec, Place, SetupId};
use crate::profiles::{Namespace, Profiles};
use crate::refine::sites::Sites;

/// Secrets of a plan.
#[derive(Debug)]
pub(crate) struct Secrets {
    /// Number of each setup's script, `None` without secrets.
    numbers: Vec<Option<usize>>,
    /// Scripts that set secrets and run their arguments.
    scripts: Vec<String>,
    /// Path of the scripts without number and suffix.
    path: String,
    /// URLs of the plan may hold secrets.
    in_urls: bool,
    finder: Finder,
}

/// Finds secrets in texts.
#[derive(Debug)]
struct Finder {
    names: SecretNames,
    /// What they look like. Most plans have nothing that comes near, and need no regular expression.
    pattern: OnceLock<Option<Regex>>,
}

impl Finder {
    fn new(names: SecretNames) -> Self {
        let pattern = OnceLock::new();
        Finder { names, pattern }
    }

    fn finds(&self, text: &[u8]) -> bool {
        if !may_have_secrets(&self.names, text) {
            return false;
        }
        let pattern = self.pattern.get_or_init(|| pattern(&self.names));
        finds(&self.names, pattern, text)
    }
}

/// Returns `false` for texts in which [`pattern`] finds nothing.
fn may_have_secrets(names: &SecretNames, text: &[u8]) -> bool {
    let has = |text: &[u8], part: &[u8]| memchr::memmem::find(text, part).is_some();
    if memchr::memchr(b'@', text).is_some() && has(text, b"://") {
        return true;
    }
    let mut letters = text.to_ascii_lowercase();
    // A signature is no name: what it ends with counts.
    if has(&letters, b"signature=") || has(&letters, b"sig=") {
        return true;
    }
    letters.retain(|byte| !b"-_.".contains(byte));
    names
        .words()
        .any(|word| has(&letters, word.to_ascii_lowercase().as_bytes()))
}

impl Secrets {
    /// Finds the secrets of a plan. `more` is the value of [`pmc_secrets::VARIABLE`], `base` the path of the
    /// plan's files without suffix.
    pub(crate) fn new(exec: &Exec, sites: &Sites, more: Option<&str>, base: String) -> Self {
        let names = SecretNames::new(more.map(OsStr::new));
        let mut scripts: Vec<String> = Vec::new();
        let numbers = exec.setups.iter().map(|setup| {
            let script = script(&names, &setup.profiles)?;
            let known = scripts.iter().position(|other| *other == script);
            Some(known.unwrap_or_else(|| {
                scripts.push(script);
                scripts.len() - 1
            }))
        });
        let numbers = numbers.collect();
        let finder = Finder::new(names);
        let is_secret = |url: &str| {
            // Most URLs have neither a user nor a query.
            memchr::memchr2(b'@', b'?', url.as_bytes()).is_some() && finder.finds(url.as_bytes())
        };
        let moved = exec.transfers.iter().flat_map(|set| &set.files);
        let mut places = moved.flat_map(|file| {
            let sources = file.sources.iter().map(|(place, _)| place);
            sources.chain([&file.destination])
        });
        let in_urls = sites.outputs.iter().any(|output| is_secret(&output.put))
            || sites
                .all()
                .iter()
                .filter_map(|site| site.scratch.as_ref())
                .any(|scratch| {
                    let servers = scratch.servers.iter();
                    let mut urls = servers.flat_map(|servers| [&servers.put, &servers.get]);
                    is_secret(&scratch.url) || urls.any(|url| is_secret(url))
                })
            || places.any(|place| match place {
                Place::Url(url, _) => is_secret(url),
                _ => false,
            });
        Secrets {
            numbers,
            scripts,
            path: base,
            in_urls,
            finder,
        }
    }

    /// Returns whether a variable is a secret.
    pub(crate) fn has(&self, variable: &str) -> bool {
        self.finder.names.contain(variable.as_bytes())
    }

    /// Returns the path of the script for a setup.
    pub(crate) fn path(&self, setup: SetupId) -> Option<String> {
        self.numbers[setup.index()].map(|number| self.path_of(number))
    }

    fn path_of(&self, number: usize) -> String {
        format!("{}-{number}.secrets", self.path)
    }

    /// Returns the script for a setup.
    pub(crate) fn script(&self, setup: SetupId) -> Option<&str> {
        self.numbers[setup.index()].map(|number| self.scripts[number].as_str())
    }

    /// Returns whether there are secret values in the environments of jobs.
    pub(crate) fn are_in_environments(&self) -> bool {
        !self.scripts.is_empty()
    }

    /// Returns the path of each script and its text.
    pub(crate) fn scripts(&self) -> impl Iterator<Item = (String, &str)> {
        self.scripts
            .iter()
            .enumerate()
            .map(|(number, script)| (self.path_of(number), script.as_str()))
    }

    /// Returns whether URLs of the plan may hold secrets.
    pub(crate) fn are_in_urls(&self) -> bool {
        self.in_urls
    }

    /// Returns whether a text may hold secrets.
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        self.finder.finds(text)
    }
}

/// Returns the script that sets the secrets among the variables of a job, `None` without any.
fn script(names: &SecretNames, profiles: &Profiles) -> Option<String> {
    let mut text = String::new();
    // Names that a shell does not accept.
    let mut others = String::new();
    let variables = profiles.of(Namespace::Env);
    for (key, value) in variables.filter(|(key, _)| names.contain(key.as_bytes())) {
        // Writing into a String cannot fail.
        let _ = if is_shell_name(key) {
            writeln!(text, "export {key}={}", shell_quote(value))
        } else {
            write!(others, " {}", shell_quote(&format!("{key}={value}")))
        };
    }
    if text.is_empty() && others.is_empty() {
        return None;
    }
    let env = if others.is_empty() { "" } else { " /usr/bin/env" };
    Some(format!(
        "# Secrets among the variables of jobs.\n{text}exec{env}{others} \"$@\"\n"
    ))
}

fn is_shell_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns what a secret looks like in a text: `NAME: value`, `NAME=value`, `"NAME">value`, and URLs with a
/// password or a signature.
fn pattern(names: &SecretNames) -> Option<Regex> {
    let words = names.words().map(|word| {
        let letters = word
            .chars()
            .map(|letter| regex::escape(letter.encode_utf8(&mut [0; 4])));
        letters.collect::<Vec<_>>().join("[-_.]?")
    });
    let words = words.collect::<Vec<_>>().join("|");
    let text = format!(
        r#"((?:{words})[\w.-]*)(?:["']?[ \t]*[:=][ \t]*[^\s]|["'][^<>]*>[^<])|://[^/\s"'@]*:[^/\s"'@]+@|[?&](?:[\w-]*signature|sig)="#
    );
    // Only words of the user could make it too large: then all files are private.
    RegexBuilder::new(&text)
        .unicode(false)
        .case_insensitive(true)
        .build()
        .ok()
}

fn finds(names: &SecretNames, pattern: &Option<Regex>, text: &[u8]) -> bool {
    let Some(pattern) = pattern else { return true };
    pattern.captures_iter(text).any(|found| match found.get(1) {
        None => true,
        Some(word) => {
            let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
            let before = text[..word.start()]
                .iter()
                .rev()
                .take_while(|b| is_name(b))
                .count();
            names.contain(&text[word.start() - before..word.end()])
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(text: &str) -> bool {
        let names = SecretNames::new(Some(OsStr::new("lab_key")));
        let is_found = finds(&names, &pattern(&names), text.as_bytes());
        // No secret is missed without the regular expression.
        assert!(!is_found || may_have_secrets(&names, text.as_bytes()), "{text}");
        is_found
    }

    #[test]
    fn secrets_in_texts_are_found() {
        for text in [
            "env: {DB_PASSWORD: x}",
            "  db_password : 'x'",
            "pegasus.catalog.replica.db.password = x\n",
            "<profile namespace=\"env\" key=\"API-KEY\">x</profile>",
            "\"LABKEY\": 1",
            "in.dat https://me:pw@host/in.dat site=\"web\"",
            "url: https://host/in?X-Amz-Signature=0",
            "url: https://host/in?a=b&sig=0",
            "jdbc:postgresql://host/db?user=u&password=p",
        ] {
            assert!(is_found(text), "{text}");
        }
        for text in [
            "a.password=\nb=1",
            "name: tokenize\nuses: []",
            "DB_PASSWORD_FILE: /home/me/x",
            "PEGASUS_CREDENTIALS: /home/me/x",
            "url: https://host:80/in?a=b",
            "me@host: x",
        ] {
            assert!(!is_found(text), "{text}");
        }
    }

    #[test]
    fn scripts_quote_values() {
        let mut profiles = Profiles::default();
        profiles.set(Namespace::Env, "A", "b");
        let names = SecretNames::new(None);
        assert_eq!(script(&names, &profiles), None);
        profiles.set(Namespace::Env, "TOKEN", "it's $(x)\n\"y\"");
        profiles.set(Namespace::Env, "my-token", "a b");
        let text = script(&names, &profiles).expect("it has secrets");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        std::fs::write(&path, &text).expect("writable");
        let output = std::process::Command::new("/bin/sh")
            .arg(&path)
            .args(["/usr/bin/env", "-u", "A"])
            .output()
            .expect("sh is there");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.contains("\nTOKEN=it's $(x)\n\"y\"\n"), "{output}");
        assert!(output.contains("\nmy-token=a b\n"), "{output}");
    }
}
