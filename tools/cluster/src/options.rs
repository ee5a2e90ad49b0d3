//! Command line and environment.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use thiserror::Error;

/// Most commands that run at a time.
const MOST_CPUS: usize = 1024;

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-d`: say more, on standard output.
    pub debug: bool,
    /// What failed commands mean.
    pub failures: Failures,
    /// `-S`: exit codes other than 0 that are successes.
    pub success_codes: BTreeSet<i32>,
    /// `-s`: file that records are appended to instead of standard output.
    pub records: Option<PathBuf>,
    /// `-R`, else `SEQEXEC_PROGRESS_REPORT`: file that beginnings and ends of commands are appended to.
    pub progress: Option<PathBuf>,
    /// `-n`, else `SEQEXEC_CPUS`: how many commands run at a time.
    pub cpus: Cpus,
    /// The list; standard input if there is none.
    pub list: Option<PathBuf>,
    /// `SEQEXEC_SETUP`: a command before all others.
    pub setup: Option<Vec<u8>>,
    /// `SEQEXEC_CLEANUP`: a command after all others.
    pub cleanup: Option<Vec<u8>>,
    /// What was ignored.
    pub warnings: Vec<String>,
}

/// What failed commands mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failures {
    /// All commands are run, then the exit code tells of failures.
    #[default]
    Count,
    /// `-f`: no further command is started.
    Stop,
    /// `-e`: nothing.
    Ignore,
}

/// How many commands run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// So many.
    Number(usize),
    /// As many as there are CPUs for this process.
    Auto,
}

impl Default for Cpus {
    fn default() -> Self {
        Cpus::Number(1)
    }
}

impl Cpus {
    /// `auto` or a number; 0 is one at a time, too.
    fn parse(text: &OsStr) -> Option<Self> {
        let text = text.to_str()?.trim();
        if text.eq_ignore_ascii_case("auto") {
            return Some(Cpus::Auto);
        }
        let number = text.parse::<usize>().ok()?;
        Some(Cpus::Number(number.clamp(1, MOST_CPUS)))
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `-h`.
    Help,
    /// To run.
    Run(Box<Options>),
}

/// Why the command line is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionError {
    /// No such option.
    #[error("there is no option -{0}")]
    Unknown(char),
    /// An option without its value.
    #[error("the option -{0} needs a value")]
    NoValue(char),
    /// A value that means nothing.
    #[error("the value of -{option} must be {what}, not {value}")]
    BadValue {
        /// Which option.
        option: char,
        /// What it must be.
        what: &'static str,
        /// What it is.
        value: String,
    },
    /// `-e` and `-f`.
    #[error("the options -e and -f exclude each other")]
    Exclusive,
    /// More than one list.
    #[error("there can be one list only, not {0} as well")]
    TwoLists(String),
}

/// Reads command line (without the program) and environment. Options may be put together (`-fd`), their values
/// follow at once or as the next word (`-n4`, `-n 4`); `--` ends them.
///
/// # Errors
/// What is wrong with the command line.
pub fn parse(
    words: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Request, OptionError> {
    let mut options = Options::default();
    let (mut ignore, mut stop, mut cpus, mut only_files) = (false, false, None, false);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if !only_files && bytes == b"--" {
            only_files = true;
            continue;
        }
        if only_files || bytes.len() < 2 || bytes[0] != b'-' {
            if options.list.is_some() {
                return Err(OptionError::TwoLists(word.display().to_string()));
            }
            // A dash alone is standard input, as elsewhere.
            if bytes != b"-" || only_files {
                options.list = Some(word.into());
            }
            continue;
        }
        let mut letters = &bytes[1..];
        while let Some((&letter, rest)) = letters.split_first() {
            letters = rest;
            let option = char::from(letter);
            match letter {
                b'd' => options.debug = true,
                b'e' => ignore = true,
                b'f' => stop = true,
                b'h' | b'?' => return Ok(Request::Help),
                b'S' | b's' | b'R' | b'n' => {
                    let value = if rest.is_empty() {
                        words.next().ok_or(OptionError::NoValue(option))?
                    } else {
                        OsString::from_vec(rest.to_vec())
                    };
                    letters = &[];
                    let bad = |what| OptionError::BadValue {
                        option,
                        what,
                        value: value.display().to_string(),
                    };
                    match letter {
                        b'S' => {
                            let code = value.to_str().and_then(|text| text.trim().parse::<i32>().ok());
                            let code = code.filter(|code| (0..=255).contains(code));
                            options
                                .success_codes
                                .insert(code.ok_or_else(|| bad("an exit code"))?);
                        }
                        b's' => options.records = Some(value.into()),
                        b'R' => options.progress = Some(value.into()),
                        _ => cpus = Some(Cpus::parse(&value).ok_or_else(|| bad("a number or auto"))?),
                    }
                }
                _ => return Err(OptionError::Unknown(option)),
            }
        }
    }
    if ignore && stop {
        return Err(OptionError::Exclusive);
    }
    options.failures = match (ignore, stop) {
        (true, _) => Failures::Ignore,
        (_, true) => Failures::Stop,
        _ => Failures::Count,
    };
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let of_environment = || {
        let value = variable("SEQEXEC_CPUS")?;
        let cpus = Cpus::parse(&value);
        if cpus.is_none() {
            options.warnings.push(format!(
                "SEQEXEC_CPUS must be a number or auto, not {}: it is ignored",
                value.display()
            ));
        }
        cpus
    };
    options.cpus = cpus.or_else(of_environment).unwrap_or_default();
    if options.progress.is_none() {
        options.progress = variable("SEQEXEC_PROGRESS_REPORT").map(PathBuf::from);
    }
    options.setup = variable("SEQEXEC_SETUP").map(OsString::into_vec);
    options.cleanup = variable("SEQEXEC_CLEANUP").map(OsString::into_vec);
    Ok(Request::Run(Box::new(options)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, environment: &[(&str, &str)]) -> Result<Request, OptionError> {
        let words = line.split_whitespace().map(OsString::from);
        parse(words, |name| {
            let (_, value) = environment.iter().find(|(n, _)| *n == name)?;
            Some((*value).into())
        })
    }

    fn options(line: &str, environment: &[(&str, &str)]) -> Options {
        match read(line, environment).unwrap() {
            Request::Run(options) => *options,
            Request::Help => panic!("help"),
        }
    }

    #[test]
    fn all_options() {
        let found = options("-df -S 3 -S17 -s rec -R prog -n4 list.in", &[]);
        let expected = Options {
            debug: true,
            failures: Failures::Stop,
            success_codes: [3, 17].into(),
            records: Some("rec".into()),
            progress: Some("prog".into()),
            cpus: Cpus::Number(4),
            list: Some("list.in".into()),
            ..Options::default()
        };
        assert_eq!(found, expected);
        assert_eq!(options("-e -", &[]).failures, Failures::Ignore);
        assert_eq!(options("-- -x", &[]).list, Some("-x".into()));
        assert_eq!(read("-h", &[]), Ok(Request::Help));
    }

    #[test]
    fn the_environment_stands_back() {
        let environment = [
            ("SEQEXEC_CPUS", "auto"),
            ("SEQEXEC_PROGRESS_REPORT", "log"),
            ("SEQEXEC_SETUP", "/bin/s 1"),
            ("SEQEXEC_CLEANUP", ""),
        ];
        let found = options("x", &environment);
        assert_eq!(found.cpus, Cpus::Auto);
        assert_eq!(found.progress, Some("log".into()));
        assert_eq!(found.setup.as_deref(), Some(&b"/bin/s 1"[..]));
        assert_eq!(found.cleanup, None);
        let found = options("-n 0 -R own x", &environment);
        assert_eq!(
            (found.cpus, found.progress),
            (Cpus::Number(1), Some("own".into()))
        );
        assert_eq!(options("x", &[("SEQEXEC_CPUS", "many")]).warnings.len(), 1);
    }

    #[test]
    fn what_is_refused() {
        for line in ["-x", "-n", "-n some", "-S -1", "-S x", "-e -f", "a b", "-R"] {
            assert!(read(line, &[]).is_err(), "{line}");
        }
    }
}
