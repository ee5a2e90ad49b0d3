//! Finds the application of a command, behind kickstart and env.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Letters of kickstart's options with a value.
const KICKSTART_VALUES: &[u8] = b"nNRLTBioelwWSsIkK";
/// Letters of kickstart's options without a value.
const KICKSTART_FLAGS: &[u8] = b"HfqXtzZFc";

/// End of the name of a script of pmc-plan that sets secret variables and runs its arguments.
const SECRETS: &[u8] = b".secrets";

/// Returns the program that a command finally runs.
#[must_use]
pub fn application(words: &[Vec<u8>]) -> &[u8] {
    let mut rest = words;
    loop {
        let Some((first, arguments)) = rest.split_first() else {
            return words.first().map_or(b"", Vec::as_slice);
        };
        let name = Path::new(OsStr::from_bytes(first))
            .file_name()
            .unwrap_or_default();
        rest = match name.as_bytes() {
            b"pegasus-kickstart" | b"kickstart" | b"invoke" => after_kickstart(arguments),
            b"env" => after_env(arguments),
            b"sh" if arguments.first().is_some_and(|script| script.ends_with(SECRETS)) => &arguments[1..],
            _ => return first,
        };
    }
}

fn after_kickstart(mut words: &[Vec<u8>]) -> &[Vec<u8>] {
    while let Some((word, rest)) = words.split_first() {
        let Some((b'-', option)) = word.split_first() else {
            break;
        };
        match option {
            b"-" => return rest,
            [letter, value @ ..] if KICKSTART_VALUES.contains(letter) => {
                words = if value.is_empty() {
                    rest.get(1..).unwrap_or_default()
                } else {
                    rest
                };
            }
            [letter, ..] if KICKSTART_FLAGS.contains(letter) => words = rest,
            _ => break,
        }
    }
    words
}

fn after_env(mut words: &[Vec<u8>]) -> &[Vec<u8>] {
    while let Some((word, rest)) = words.split_first() {
        if word == b"-u" {
            words = rest.get(1..).unwrap_or_default();
        } else if word.contains(&b'=') || word == b"-" || word == b"-i" {
            words = rest;
        } else {
            break;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(line: &str) -> String {
        let words: Vec<Vec<u8>> = line.split_whitespace().map(|w| w.as_bytes().to_vec()).collect();
        String::from_utf8(application(&words).to_vec()).unwrap()
    }

    #[test]
    fn wrappers_are_skipped() {
        let kickstart = "/p/bin/pegasus-kickstart -H -n mk -Nx -R hpc -w /w -S @a -L l -T t -k 3 ";
        assert_eq!(app(&format!("{kickstart} /bin/mkdir -m 2755")), "/bin/mkdir");
        assert_eq!(
            app("/usr/bin/env A=b -u C /p/kickstart -n x -- /bin/ls"),
            "/bin/ls"
        );
        assert_eq!(
            app("env A=b /bin/sh /s/w-0.secrets /p/kickstart -n x -- /bin/ls"),
            "/bin/ls"
        );
        assert_eq!(app("/bin/sh script"), "/bin/sh");
        assert_eq!(app("/bin/ls -l"), "/bin/ls");
        assert_eq!(app("/p/pegasus-kickstart -n x -I args"), "/p/pegasus-kickstart");
        assert_eq!(app("/p/pegasus-kickstart -n"), "/p/pegasus-kickstart");
        assert_eq!(app(""), "");
    }
}
