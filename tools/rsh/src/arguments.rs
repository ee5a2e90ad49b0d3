//! The command line: that of `ssh`, as far as launchers use it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use pmc_wire::command::Call;

/// An option of ssh that is taken.
#[derive(Clone, Copy, Debug)]
pub struct RshOption {
    /// Its letter.
    pub letter: u8,
    /// Name of its value, if it has one.
    pub value: Option<&'static str>,
    /// What it does.
    pub help: &'static str,
}

/// All options. Only `-n` changes something: there are no users, ports and settings to choose.
pub const OPTIONS: [RshOption; 6] = [
    option(b'n', None, "The command reads nothing"),
    option(b'x', None, "Taken, without effect, as the next ones"),
    option(b'q', None, "Quiet"),
    option(b'l', Some("USER"), "User"),
    option(b'o', Some("OPTION"), "Setting of ssh"),
    option(b'p', Some("PORT"), "Port"),
];

/// What the program does, in a line.
pub const ABOUT: &str = "Run a command by a shell on another host of a task that holds several";

const fn option(letter: u8, value: Option<&'static str>, help: &'static str) -> RshOption {
    RshOption { letter, value, help }
}

/// Returns the text of `--help`.
pub(crate) fn help() -> String {
    let mut text = format!("{ABOUT}\n\n{}\n\nOptions:\n", ArgumentsError::Usage);
    for RshOption { letter, value, help } in OPTIONS {
        let option = format!("-{} {}", char::from(letter), value.unwrap_or_default());
        text.push_str(&format!("  {option:<10}  {help}\n"));
    }
    text
}

/// Why a command line cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgumentsError {
    #[error("usage: pmc-rsh [-x] [-q] [-n] [-l USER] [-o OPTION] [-p PORT] HOST COMMAND…")]
    Usage,
    #[error("the option {0} is unknown: -x, -q, -n, -l USER, -o OPTION and -p PORT are taken, as of ssh")]
    Unknown(String),
    #[error("the name of the host is no UTF-8")]
    Host,
}

/// What is to be run, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) host: String,
    command: Vec<u8>,
    no_input: bool,
}

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = OsString>) -> Result<Self, ArgumentsError> {
        let mut words = words.map(OsString::into_vec).peekable();
        let mut no_input = false;
        while let Some(option) = words.next_if(|word| word.len() > 1 && word.starts_with(b"-")) {
            if option == b"--" {
                break;
            }
            let mut letters = option.iter().skip(1);
            while let Some(letter) = letters.next() {
                no_input |= *letter == b'n';
                match OPTIONS.iter().find(|known| known.letter == *letter) {
                    Some(RshOption { value: Some(_), .. }) => {
                        // The value is the rest of the word, or the next one.
                        if letters.len() == 0 {
                            words.next().ok_or(ArgumentsError::Usage)?;
                        }
                        break;
                    }
                    Some(_) => {}
                    None => {
                        return Err(ArgumentsError::Unknown(
                            String::from_utf8_lossy(&option).into_owned(),
                        ));
                    }
                }
            }
        }
        let host = words.next().ok_or(ArgumentsError::Usage)?;
        let host = String::from_utf8(host).map_err(|_| ArgumentsError::Host)?;
        let words: Vec<Vec<u8>> = words.collect();
        if words.is_empty() {
            return Err(ArgumentsError::Usage);
        }
        Ok(Self {
            // There is only one user.
            host: host.rsplit('@').next().unwrap_or_default().to_owned(),
            command: words.join(&b' '),
            no_input,
        })
    }

    pub(crate) fn call(self, token: String) -> Call {
        Call {
            token,
            host: self.host,
            command: self.command,
            no_input: self.no_input,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Arguments, ArgumentsError> {
        Arguments::parse(text.split(' ').map(OsString::from))
    }

    #[test]
    fn options_of_ssh_are_taken() {
        for options in [
            "",
            "-x ",
            "-x -q ",
            "-xq -l me ",
            "-lme -p22 -oBatchMode=yes ",
            "-o A=b -- ",
        ] {
            let parsed = parse(&format!("{options}n2 orted -mca ess env")).unwrap();
            assert_eq!(parsed.host, "n2", "{options}");
            assert_eq!(parsed.command, b"orted -mca ess env");
            assert!(!parsed.no_input);
        }
        assert!(parse("-xn n2 true").unwrap().no_input);
        assert_eq!(parse("me@n2 true").unwrap().host, "n2");
    }

    #[test]
    fn other_command_lines_are_refused() {
        for text in ["-x", "n2", "-l", "-o A=b n2", "-l n2"] {
            assert_eq!(parse(text), Err(ArgumentsError::Usage), "{text}");
        }
        assert_eq!(
            parse("-xZ n2 true"),
            Err(ArgumentsError::Unknown("-xZ".to_owned()))
        );
    }

    proptest! {
        #[test]
        fn arbitrary_words_are_no_panic(words: Vec<Vec<u8>>) {
            let _ = Arguments::parse(words.into_iter().map(OsString::from_vec));
        }
    }
}
