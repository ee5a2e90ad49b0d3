//! The command line: what the options of [`pmc_calls::kickstart`] mean.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use pmc_calls::kickstart::{self, TRACING};

mod usage;

pub use usage::usage;

/// Default of `-B`: characters of captured output kept in the record.
pub const DEFAULT_PAYLOAD: usize = 262_144;

/// Default of `-K`: time between SIGTERM and SIGKILL.
pub const DEFAULT_KILL_DELAY: Duration = Duration::from_secs(5);

/// What one invocation was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `-n`: transformation.
    pub transformation: Option<Vec<u8>>,
    /// `-N`: id of the task in the abstract workflow.
    pub derivation: Option<Vec<u8>>,
    /// `-R`: site.
    pub resource: Option<Vec<u8>>,
    /// `-L`: label of the workflow.
    pub label: Option<Vec<u8>>,
    /// `-T`: time of the abstract workflow.
    pub stamp: Option<Vec<u8>>,
    /// `-H`: leave out the machine.
    pub omit_machine: bool,
    /// `-M`: a missing file of `-s` is a failure.
    pub require_outputs: bool,
    /// `-f`: environment and limits even on success.
    pub long_form: bool,
    /// `-q`: leave out captured output on success.
    pub quiet: bool,
    /// `-F`: sync the record to disk.
    pub sync: bool,
    /// `-B`: characters of captured output to keep; `None` keeps all.
    pub payload_limit: Option<usize>,
    /// `-i`: standard input.
    pub stdin: Input,
    /// `-o`: standard output.
    pub stdout: Output,
    /// `-e`: standard error.
    pub stderr: Output,
    /// `-l`: file to append the record to; `None` means standard output.
    pub log: Option<PathBuf>,
    /// `-w`, `-W`: working directory.
    pub directory: Option<PathBuf>,
    /// `-W`: make the working directory.
    pub make_directory: bool,
    /// `-S`: files to examine before the jobs, each `[lfn=]pfn` or `@list`.
    pub before: Vec<Vec<u8>>,
    /// `-s`: files to examine and checksum after the jobs.
    pub after: Vec<Vec<u8>>,
    /// `-X`: make the program executable.
    pub make_executable: bool,
    /// `-k`: time until SIGTERM.
    pub term_after: Option<Duration>,
    /// `-K`: time from SIGTERM to SIGKILL.
    pub kill_delay: Duration,
    /// The program and its arguments.
    pub command: Command,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transformation: None,
            derivation: None,
            resource: None,
            label: None,
            stamp: None,
            omit_machine: false,
            require_outputs: false,
            long_form: false,
            quiet: false,
            sync: false,
            payload_limit: Some(DEFAULT_PAYLOAD),
            stdin: Input::Null,
            stdout: Output::Capture,
            stderr: Output::Capture,
            log: None,
            directory: None,
            make_directory: false,
            before: Vec::new(),
            after: Vec::new(),
            make_executable: false,
            term_after: None,
            kill_delay: DEFAULT_KILL_DELAY,
            command: Command::Words(Vec::new()),
        }
    }
}

/// Where the jobs read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `/dev/null`.
    Null,
    /// Kickstart's own standard input.
    Inherit,
    /// A file.
    File(PathBuf),
}

/// Where the jobs write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A temporary file whose text goes into the record.
    Capture,
    /// Kickstart's own stream.
    Inherit,
    /// A file.
    File {
        /// Its name.
        path: PathBuf,
        /// What happens to a file of that name.
        existing: Existing,
    },
}

/// What happens to an output file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Emptied.
    Truncate,
    /// Kept and appended to (`!file`).
    Append,
    /// Renamed to `file.000`, `file.001`, … (`^file`).
    Preserve,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Program and arguments.
    Words(Vec<OsString>),
    /// `-I`: a file with program and arguments, one per line.
    File(PathBuf),
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run a program.
    Run(Box<Options>),
    /// `-V`: the version of Pegasus.
    CompatibleVersion,
    /// `--version`: the version of this program.
    Version,
    /// `--help`.
    Help,
    /// `-h`, `-?`, or nothing to run.
    Usage,
}

/// What is wrong with a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionProblem {
    /// The value of an option is missing.
    #[error("-{0} argument missing")]
    Missing(char),
    /// A value cannot be used.
    #[error("-{option} {value}: {expected}")]
    Value {
        /// Letter of the option.
        option: char,
        /// The value given.
        value: String,
        /// What is expected.
        expected: &'static str,
    },
    /// Something follows the value of `-I`.
    #[error("-I FILE must be the last thing on the command line, found {0} after it")]
    NotLast(String),
    /// An option this program refuses.
    #[error("-{0}: tracing of processes, system calls and libraries is not available; remove the option")]
    Unsupported(char),
}

/// A wrong command line, with the options before the error: they label the record.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{problem}")]
pub struct OptionError {
    /// What is wrong.
    pub problem: OptionProblem,
    /// Options before the problem.
    pub options: Box<Options>,
}

/// Parses the words after the program name.
///
/// # Errors
/// An option is refused, or its value is missing or wrong.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Request, OptionError> {
    let mut options = Box::new(Options::default());
    let words: Vec<Vec<u8>> = words.into_iter().map(OsString::into_vec).collect();
    match parse_into(&mut options, &words) {
        Ok(Some(request)) => Ok(request),
        Ok(None) => Ok(Request::Run(options)),
        Err(problem) => Err(OptionError { problem, options }),
    }
}

/// Reads the words into `options`. Returns another request, if there is one.
fn parse_into(options: &mut Options, words: &[Vec<u8>]) -> Result<Option<Request>, OptionProblem> {
    let mut given = kickstart::Options::new(words);
    while let Some(kickstart::Given { letter, value, .. }) = given.next() {
        if TRACING.contains(&letter) {
            return Err(OptionProblem::Unsupported(letter));
        }
        let needs_value = kickstart::OPTIONS
            .iter()
            .any(|spec| spec.short == Some(letter) && spec.value.is_some());
        if needs_value && value.is_none() {
            return Err(OptionProblem::Missing(letter));
        }
        if let Some(request) = options.set(letter, value.unwrap_or_default().to_vec())? {
            return Ok(Some(request));
        }
        if matches!(options.command, Command::File(_)) {
            return match given.rest().first() {
                Some(word) => Err(OptionProblem::NotLast(String::from_utf8_lossy(word).into_owned())),
                None => Ok(None),
            };
        }
    }
    let rest = given.rest().iter().cloned().map(OsString::from_vec);
    options.command = Command::Words(rest.collect());
    if given.rest().is_empty() {
        return Ok(Some(Request::Usage));
    }
    Ok(None)
}

impl Options {
    /// Sets one option.
    fn set(&mut self, letter: char, value: Vec<u8>) -> Result<Option<Request>, OptionProblem> {
        match letter {
            'n' => self.transformation = Some(unquoted(value)),
            'N' => self.derivation = Some(unquoted(value)),
            'R' => self.resource = Some(unquoted(value)),
            'L' => self.label = Some(unquoted(value)),
            'T' => self.stamp = Some(unquoted(value)),
            'w' | 'W' => {
                self.directory = Some(path(unquoted(value)));
                self.make_directory = letter == 'W';
            }
            'H' => self.omit_machine = true,
            'M' => self.require_outputs = true,
            'f' => self.long_form = true,
            'q' => self.quiet = true,
            'F' => self.sync = true,
            'X' => self.make_executable = true,
            'B' => self.payload_limit = payload_limit(&value)?,
            'k' => {
                let seconds = seconds('k', &value)?;
                self.term_after = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            'K' => {
                self.kill_delay = match seconds('K', &value)? {
                    0 => return Err(wrong('K', &value, "expected a number of seconds, at least 1")),
                    seconds => Duration::from_secs(seconds),
                };
            }
            'i' => {
                self.stdin = if value == b"-" {
                    Input::Inherit
                } else {
                    Input::File(path(value))
                };
            }
            'o' => self.stdout = output(&value),
            'e' => self.stderr = output(&value),
            'l' => self.log = (value != b"-").then(|| path(value)),
            'S' => self.before.push(value),
            's' => self.after.push(value),
            'I' => self.command = Command::File(path(value)),
            'V' => return Ok(Some(Request::CompatibleVersion)),
            '-' if value == b"help" => return Ok(Some(Request::Help)),
            '-' => return Ok(Some(Request::Version)),
            'h' | '?' => return Ok(Some(Request::Usage)),
            // `-c` is ignored.
            _ => {}
        }
        Ok(None)
    }
}

fn path(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

/// Removes one pair of enclosing quotes.
fn unquoted(mut text: Vec<u8>) -> Vec<u8> {
    if let [first @ (b'\'' | b'"'), .., last] = text[..]
        && first == last
    {
        text.pop();
        text.remove(0);
    }
    text
}

fn output(spec: &[u8]) -> Output {
    if spec == b"-" {
        return Output::Inherit;
    }
    let (name, existing) = match spec {
        [b'!', b'^', name @ ..] | [b'^', b'!', name @ ..] | [b'!', name @ ..] => (name, Existing::Append),
        [b'^', name @ ..] => (name, Existing::Preserve),
        name => (name, Existing::Truncate),
    };
    Output::File {
        path: OsStr::from_bytes(name).into(),
        existing,
    }
}

fn wrong(option: char, value: &[u8], expected: &'static str) -> OptionProblem {
    OptionProblem::Value {
        option,
        value: String::from_utf8_lossy(value).into_owned(),
        expected,
    }
}

fn payload_limit(text: &[u8]) -> Result<Option<usize>, OptionProblem> {
    if text == b"all" {
        return Ok(None);
    }
    let number = str::from_utf8(text).ok().and_then(|text| {
        if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            usize::from_str_radix(digits, 16).ok()
        } else if text.starts_with('0') {
            usize::from_str_radix(text, 8).ok()
        } else {
            text.parse().ok()
        }
    });
    match number {
        None | Some(0) => Err(wrong(
            'B',
            text,
            "expected `all` or a number of characters above 0",
        )),
        number => Ok(number),
    }
}

fn seconds(option: char, text: &[u8]) -> Result<u64, OptionProblem> {
    str::from_utf8(text)
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok())
        .map(u64::from)
        .ok_or_else(|| wrong(option, text, "expected a number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn options(line: &str) -> Options {
        match parse(words(line)) {
            Ok(Request::Run(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    fn problem(line: &str) -> OptionProblem {
        parse(words(line)).unwrap_err().problem
    }

    #[test]
    fn values_are_glued_or_separate() {
        let options = options("-n ns::tr:1.0 -NID01 -R'local' -L \"wf\" -T2026 /bin/true -n x");
        assert_eq!(options.transformation.unwrap(), b"ns::tr:1.0");
        assert_eq!(options.derivation.unwrap(), b"ID01");
        assert_eq!(options.resource.unwrap(), b"local");
        assert_eq!(options.label.unwrap(), b"wf");
        assert_eq!(options.stamp.unwrap(), b"2026");
        assert_eq!(options.command, Command::Words(words("/bin/true -n x")));
    }

    #[test]
    fn flags_are_not_bundled() {
        let options = options("-Hq -f -X -F -c prog");
        assert!(options.omit_machine && options.long_form && options.make_executable && options.sync);
        assert!(!options.quiet);
    }

    #[test]
    fn options_of_the_planner_are_understood() {
        let options = options(
            "-i /s/gen.in -n gen -N ID01 -o out -e err -R local -W /scratch -X -S @/s/g.in.lof -s @/s/g.out.lof -L demo \
             -T 2026-11-21T06:10:05+00:00 -k 300 -K 150 /opt/gen -i f.a -o f.b",
        );
        assert_eq!(options.stdin, Input::File("/s/gen.in".into()));
        assert_eq!(
            options.stdout,
            Output::File {
                path: "out".into(),
                existing: Existing::Truncate
            }
        );
        assert_eq!(options.directory.unwrap(), PathBuf::from("/scratch"));
        assert!(options.make_directory);
        assert_eq!(options.before, [b"@/s/g.in.lof"]);
        assert_eq!(options.after, [b"@/s/g.out.lof"]);
        assert_eq!(
            (options.term_after, options.kill_delay.as_secs()),
            (Some(Duration::from_secs(300)), 150)
        );
        assert_eq!(options.command, Command::Words(words("/opt/gen -i f.a -o f.b")));
    }

    #[test]
    fn the_last_directory_counts() {
        let options = options("-W a -w b prog");
        assert_eq!(
            (options.directory.unwrap(), options.make_directory),
            (PathBuf::from("b"), false)
        );
    }

    #[test]
    fn streams_and_log_are_parsed() {
        let spec = |text: &str| options(&format!("-o {text} -e - -i - -l log prog")).stdout;
        assert_eq!(spec("-"), Output::Inherit);
        assert_eq!(
            spec("!f"),
            Output::File {
                path: "f".into(),
                existing: Existing::Append
            }
        );
        assert_eq!(
            spec("^f"),
            Output::File {
                path: "f".into(),
                existing: Existing::Preserve
            }
        );
        assert_eq!(
            spec("!^f"),
            Output::File {
                path: "f".into(),
                existing: Existing::Append
            }
        );
        let options = options("-e - -i - -l log prog");
        assert_eq!((options.stderr, options.stdin), (Output::Inherit, Input::Inherit));
        assert_eq!(options.log.unwrap(), PathBuf::from("log"));
    }

    #[test]
    fn payload_limits_are_decimal_octal_or_hexadecimal() {
        assert_eq!(options("prog").payload_limit, Some(262_144));
        assert_eq!(options("-B all prog").payload_limit, None);
        assert_eq!(options("-B 0x10 prog").payload_limit, Some(16));
        assert_eq!(options("-B010 prog").payload_limit, Some(8));
        for bad in ["0", "x", "-1"] {
            assert!(matches!(
                problem(&format!("-B {bad} prog")),
                OptionProblem::Value { option: 'B', .. }
            ));
        }
    }

    #[test]
    fn an_unknown_option_is_the_program() {
        assert_eq!(options("-Q x").command, Command::Words(words("-Q x")));
        assert_eq!(options("-").command, Command::Words(words("-")));
        assert_eq!(options("-H -- -n").command, Command::Words(words("-n")));
    }

    #[test]
    fn argument_files_come_last() {
        assert_eq!(options("-H -I args").command, Command::File("args".into()));
        assert_eq!(problem("-I args more"), OptionProblem::NotLast("more".into()));
    }

    #[test]
    fn problems_name_the_option() {
        assert_eq!(problem("-H -n").to_string(), "-n argument missing");
        for letter in ["-t", "-z", "-Z"] {
            assert!(matches!(
                problem(&format!("{letter} prog")),
                OptionProblem::Unsupported(_)
            ));
        }
        for bad in ["-k x p", "-K 0 p", "-K -3 p"] {
            assert!(matches!(problem(bad), OptionProblem::Value { .. }), "{bad}");
        }
        let error = parse(words("-n tr -B 0 prog")).unwrap_err();
        assert_eq!(error.options.transformation.unwrap(), b"tr");
    }

    #[test]
    fn usage_and_version() {
        for line in ["", "-h", "-?", "-H", "--"] {
            assert_eq!(parse(words(line)).unwrap(), Request::Usage, "{line}");
        }
        assert_eq!(parse(words("-V")).unwrap(), Request::CompatibleVersion);
        assert_eq!(parse(words("-H --version")).unwrap(), Request::Version);
        assert_eq!(parse(words("--help")).unwrap(), Request::Help);
    }

    #[test]
    fn the_manual_shows_the_usage() {
        let page = include_str!("../../../docs/manual/pegasus-kickstart.md");
        let usage = usage();
        assert!(
            page.contains(usage.trim_end()),
            "docs/manual/pegasus-kickstart.md is stale:\n{usage}"
        );
    }
}
