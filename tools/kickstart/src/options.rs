//! The command line.
//!
//! Options are single letters; a value is glued to its letter or the next word. Only the letter after the dash
//! counts, so flags cannot be bundled. Parsing ends at the first word without dash, after `--`, or at an unknown
//! option, which is then the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Characters of captured output that are kept unless `-B` says otherwise.
pub const DEFAULT_PAYLOAD: usize = 262_144;

/// Seconds between the first signal and SIGKILL unless `-K` says otherwise.
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
    /// `-f`: environment and limits even on success.
    pub long_form: bool,
    /// `-q`: leave out captured output on success.
    pub quiet: bool,
    /// `-F`: force the record to disk.
    pub sync: bool,
    /// `-B`: characters of captured output to keep; `None` keeps all.
    pub payload_limit: Option<usize>,
    /// `-i`: standard input.
    pub stdin: Input,
    /// `-o`: standard output.
    pub stdout: Output,
    /// `-e`: standard error.
    pub stderr: Output,
    /// `-l`: file the record is appended to; `None` is standard output.
    pub log: Option<PathBuf>,
    /// `-w`, `-W`: working directory.
    pub directory: Option<PathBuf>,
    /// `-W`: make the working directory.
    pub make_directory: bool,
    /// `-S`: files to look at before, each `[lfn=]pfn` or `@list`.
    pub before: Vec<Vec<u8>>,
    /// `-s`: files to look at and checksum after.
    pub after: Vec<Vec<u8>>,
    /// `-X`: make the program executable if it is not.
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
    /// `-I`: a file with program and arguments, one a line.
    File(PathBuf),
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run a program.
    Run(Box<Options>),
    /// `-V`.
    Version,
    /// `-h`, `-?`, or nothing to run.
    Usage,
}

/// What is wrong with a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionProblem {
    /// A value is missing.
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

/// A command line that cannot be followed, with the options read up to there: they label the record.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{problem}")]
pub struct OptionError {
    /// What is wrong.
    pub problem: OptionProblem,
    /// Options before the problem.
    pub options: Box<Options>,
}

/// Reads the words after the program name.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Request, OptionError> {
    let mut options = Box::new(Options::default());
    match Reader::new(words.into_iter().collect()).read(&mut options) {
        Ok(Some(request)) => Ok(request),
        Ok(None) => Ok(Request::Run(options)),
        Err(problem) => Err(OptionError { problem, options }),
    }
}

struct Reader {
    words: std::vec::IntoIter<OsString>,
}

impl Reader {
    fn new(words: Vec<OsString>) -> Self {
        Self {
            words: words.into_iter(),
        }
    }

    fn read(&mut self, options: &mut Options) -> Result<Option<Request>, OptionProblem> {
        while let Some(word) = self.words.as_slice().first() {
            let bytes = word.as_bytes();
            let [b'-', letter, glued @ ..] = bytes else {
                break;
            };
            if bytes == b"--" {
                self.words.next();
                break;
            }
            let (letter, glued) = (*letter, glued.to_vec());
            if !b"nNRLTHfqBioelwWSsIXkKtzZVhFc?".contains(&letter) {
                break;
            }
            self.words.next();
            if let Some(request) = self.option(letter, glued, options)? {
                return Ok(Some(request));
            }
            if matches!(options.command, Command::File(_)) {
                return match self.words.next() {
                    Some(word) => Err(OptionProblem::NotLast(word.to_string_lossy().into_owned())),
                    None => Ok(None),
                };
            }
        }
        let rest: Vec<OsString> = self.words.by_ref().collect();
        if rest.is_empty() {
            return Ok(Some(Request::Usage));
        }
        options.command = Command::Words(rest);
        Ok(None)
    }

    fn option(
        &mut self,
        letter: u8,
        glued: Vec<u8>,
        options: &mut Options,
    ) -> Result<Option<Request>, OptionProblem> {
        let mut value = || {
            if glued.is_empty() {
                let word = self
                    .words
                    .next()
                    .ok_or(OptionProblem::Missing(char::from(letter)))?;
                Ok(word.into_vec())
            } else {
                Ok(glued.clone())
            }
        };
        match letter {
            b'n' => options.transformation = Some(unquoted(value()?)),
            b'N' => options.derivation = Some(unquoted(value()?)),
            b'R' => options.resource = Some(unquoted(value()?)),
            b'L' => options.label = Some(unquoted(value()?)),
            b'T' => options.stamp = Some(unquoted(value()?)),
            b'w' | b'W' => {
                options.directory = Some(path(unquoted(value()?)));
                options.make_directory = letter == b'W';
            }
            b'H' => options.omit_machine = true,
            b'f' => options.long_form = true,
            b'q' => options.quiet = true,
            b'F' => options.sync = true,
            b'c' => {}
            b'X' => options.make_executable = true,
            b'B' => options.payload_limit = payload_limit(&value()?)?,
            b'k' => {
                let seconds = seconds('k', &value()?)?;
                options.term_after = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            b'K' => {
                let text = value()?;
                options.kill_delay = match seconds('K', &text)? {
                    0 => return Err(wrong('K', &text, "expected a number of seconds, at least 1")),
                    seconds => Duration::from_secs(seconds),
                };
            }
            b'i' => {
                let name = value()?;
                options.stdin = if name == b"-" {
                    Input::Inherit
                } else {
                    Input::File(path(name))
                };
            }
            b'o' => options.stdout = output(&value()?),
            b'e' => options.stderr = output(&value()?),
            b'l' => {
                let name = value()?;
                options.log = (name != b"-").then(|| path(name));
            }
            b'S' => options.before.push(value()?),
            b's' => options.after.push(value()?),
            b'I' => options.command = Command::File(path(value()?)),
            b'V' => return Ok(Some(Request::Version)),
            b'h' | b'?' => return Ok(Some(Request::Usage)),
            _ => return Err(OptionProblem::Unsupported(char::from(letter))),
        }
        Ok(None)
    }
}

fn path(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

/// Takes one pair of enclosing quotes off.
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
    fn the_line_of_the_planner() {
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
    fn later_directory_wins() {
        let options = options("-W a -w b prog");
        assert_eq!(
            (options.directory.unwrap(), options.make_directory),
            (PathBuf::from("b"), false)
        );
    }

    #[test]
    fn streams_and_log() {
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
    fn payload_limits() {
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
        assert_eq!(parse(words("-V")).unwrap(), Request::Version);
    }
}
