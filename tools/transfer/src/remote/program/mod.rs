//! External programs, for protocols that have a standard one.
//!
//! Programs are started directly, never by a shell: a name can be no command, whatever it holds. What could be
//! taken for an option is written in another way or refused.

mod ftp;
mod gfal;
mod globus;
mod gridftp;
mod images;
mod irods;
mod osdf;
mod scp;

pub(super) use ftp::Ftp;
pub(super) use gfal::Gfal;
pub(super) use globus::Globus;
pub(super) use gridftp::GridFtp;
pub(super) use images::{Apptainer, Docker};
pub(super) use irods::Irods;
pub(super) use osdf::Osdf;
pub(super) use scp::Scp;

use std::ffi::{OsStr, OsString};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::Environment;
use crate::error::{Retry, TransferError};
use crate::local::{IncomingDirectory, open_source};
use crate::observer::Event;
use crate::protocol::{Context, Done, Pair};
use crate::shown;

/// How long a program may run.
const TIME_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// Time between asking a program to end and killing it.
const KILL_DELAY: Duration = Duration::from_secs(3);
/// Bytes of a program's output that are looked at, from its end.
const MAX_OUTPUT: u64 = 64 << 10;

/// A program to run.
pub(super) struct Tool<'a> {
    program: &'a Path,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    input: Vec<u8>,
    limit: Duration,
}

/// What became of a program.
pub(super) struct Outcome {
    pub(super) status: ExitStatus,
    /// The end of its output, standard error included.
    pub(super) output: String,
}

impl<'a> Tool<'a> {
    pub(super) fn new(program: &'a Path) -> Self {
        Self {
            program,
            arguments: Vec::new(),
            environment: Vec::new(),
            input: Vec::new(),
            limit: TIME_LIMIT,
        }
    }

    pub(super) fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub(super) fn args<T: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = T>) -> &mut Self {
        for argument in arguments {
            self.arg(argument);
        }
        self
    }

    pub(super) fn env(&mut self, name: &'static str, value: impl AsRef<OsStr>) -> &mut Self {
        self.environment.push((name, value.as_ref().to_owned()));
        self
    }

    fn name(&self) -> String {
        self.program
            .file_name()
            .map_or_else(String::new, |name| shown::bytes(name.as_bytes()).to_string())
    }

    /// Runs the program to its end, and logs what it was and said. Success is exit status 0.
    pub(super) fn run(
        &self,
        environment: &Environment,
        context: &Context<'_>,
    ) -> Result<String, TransferError> {
        let outcome = self.outcome(environment, context)?;
        if outcome.status.success() {
            return Ok(outcome.output);
        }
        Err(self.failure(&outcome, Retry::Later))
    }

    /// The failure that an outcome is: status and last line.
    pub(super) fn failure(&self, outcome: &Outcome, retry: Retry) -> TransferError {
        use std::os::unix::process::ExitStatusExt;
        let status = match (outcome.status.code(), outcome.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        let last = outcome
            .output
            .lines()
            .map(str::trim)
            .rfind(|line| !line.is_empty());
        TransferError::External {
            program: self.name(),
            message: match last {
                Some(line) => format!("{status}: {}", shown::bytes(line.as_bytes())),
                None => status,
            },
            retry,
        }
    }

    /// The same, whatever the exit status.
    pub(super) fn outcome(
        &self,
        environment: &Environment,
        context: &Context<'_>,
    ) -> Result<Outcome, TransferError> {
        context.observer.event(&Event::Note(self.line()));
        let io_failure = |error: std::io::Error| TransferError::External {
            program: self.name(),
            message: error.to_string(),
            retry: Retry::Soon,
        };
        let mut said = tempfile::tempfile_in(context.temporary).map_err(io_failure)?;
        let mut command = Command::new(self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(environment.program_variables())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdout(said.try_clone().map_err(io_failure)?)
            .stderr(said.try_clone().map_err(io_failure)?)
            .stdin(self.standard_input(context).map_err(io_failure)?);
        let mut child = command.spawn().map_err(io_failure)?;
        let status = self.wait(&mut child, context)?;
        let length = said.metadata().map_err(io_failure)?.len();
        let mut output = Vec::new();
        said.seek(SeekFrom::Start(length.saturating_sub(MAX_OUTPUT)))
            .and_then(|_| said.read_to_end(&mut output))
            .map_err(io_failure)?;
        let output: String = String::from_utf8_lossy(&output)
            .lines()
            .filter(|line| {
                !line.contains("Could not create directory") && !line.contains("Permanently added")
            })
            .fold(String::new(), |text, line| text + line + "\n");
        if !output.trim().is_empty() {
            context.observer.event(&Event::Note(output.trim().to_owned()));
        }
        if !status.success() {
            let code = status.code().unwrap_or(-1);
            let name = self.name();
            context.observer.event(&Event::Warning(format!(
                "Command exited with non-zero exit code ({code}): {name}"
            )));
        }
        Ok(Outcome { status, output })
    }

    fn standard_input(&self, context: &Context<'_>) -> std::io::Result<Stdio> {
        if self.input.is_empty() {
            return Ok(Stdio::null());
        }
        let mut file = tempfile::tempfile_in(context.temporary)?;
        file.write_all(&self.input)?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file.into())
    }

    fn wait(&self, child: &mut Child, context: &Context<'_>) -> Result<ExitStatus, TransferError> {
        let io_failure = |error: std::io::Error| TransferError::External {
            program: self.name(),
            message: error.to_string(),
            retry: Retry::Soon,
        };
        let start = Instant::now();
        let mut step = Duration::from_millis(1);
        loop {
            if let Some(status) = child.try_wait().map_err(io_failure)? {
                return Ok(status);
            }
            let late = start.elapsed() > self.limit;
            if late || context.cancel.is_cancelled() {
                end(child);
                if !late {
                    return Err(TransferError::Cancelled);
                }
                return Err(TransferError::External {
                    program: self.name(),
                    message: format!("not finished after {} seconds", self.limit.as_secs()),
                    retry: Retry::Later,
                });
            }
            std::thread::sleep(step);
            step = (step * 2).min(Duration::from_millis(50));
        }
    }

    /// The command for the log: words that need it in apostrophes.
    fn line(&self) -> String {
        let mut line = shown::path(self.program).to_string();
        for argument in &self.arguments {
            let text = shown::bytes(argument.as_bytes()).to_string();
            line.push(' ');
            if is_plain(argument.as_bytes()) {
                line.push_str(&text);
            } else {
                line.push_str(&format!("'{}'", text.replace('\'', "'\\''")));
            }
        }
        line
    }
}

/// Ends a program and all that it started.
fn end(child: &mut Child) {
    let Ok(group) = i32::try_from(child.id()).map(Pid::from_raw) else {
        return;
    };
    // A group that is gone needs no signal.
    let _ = killpg(group, Signal::SIGTERM);
    let start = Instant::now();
    while start.elapsed() < KILL_DELAY {
        if !matches!(child.try_wait(), Ok(None)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
}

/// Whether a shell, a glob or a reader of addresses would take a name as it is.
fn is_plain(name: &[u8]) -> bool {
    !name.is_empty()
        && name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte >= 0x80 || b"/._-+,=@%:".contains(byte))
}

/// A local path as an argument that is no option, no address and no other host's file.
fn local_argument(path: &Path) -> PathBuf {
    if path.is_absolute() {
        path.to_owned()
    } else {
        Path::new(".").join(path)
    }
}

/// The address `file://…` of a local path.
fn file_address(path: &Path) -> Result<String, TransferError> {
    let path = std::path::absolute(path).map_err(|error| TransferError::io("find", path, error))?;
    let encoded = super::http::encode(path.as_os_str().as_bytes(), true);
    Ok(format!("file://{encoded}"))
}

/// A word in apostrophes, for a shell on another host.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in word {
        if *byte == b'\'' {
            out.extend_from_slice(b"'\\''");
        } else {
            out.push(*byte);
        }
    }
    out.push(b'\'');
    out
}

fn concat(parts: &[&[u8]]) -> OsString {
    OsString::from_vec(parts.concat())
}

/// What is to be sent: a local file that can be read. Returns its path as an argument, and its size.
pub(super) fn upload_source(context: &Context<'_>, pair: &Pair<'_>) -> Result<(PathBuf, u64), TransferError> {
    let path = context.path(&pair.source.url);
    let (_, meta) = open_source(&path)?;
    if !meta.is_file() {
        return Err(TransferError::SpecialFile(path));
    }
    Ok((local_argument(&path), meta.len()))
}

pub(super) fn sent(bytes: u64) -> Done {
    Done {
        bytes: Some(bytes),
        ..Done::default()
    }
}

/// Lets `bring` write a file into a temporary directory, and gives it its final name.
pub(super) fn incoming(
    context: &Context<'_>,
    pair: &Pair<'_>,
    bring: impl FnOnce(&Path) -> Result<(), TransferError>,
) -> Result<Done, TransferError> {
    let destination = context.path(&pair.destination().url);
    let directory = IncomingDirectory::create(&destination)?;
    let name = Path::new(destination.file_name().unwrap_or(OsStr::new("file")));
    bring(&local_argument(&directory.file(name)))?;
    let (path, bytes) = directory.publish(name, &destination)?;
    Ok(Done {
        bytes: Some(bytes),
        path: Some(path),
        ..Done::default()
    })
}

/// A file for a program to read, removed when dropped.
pub(super) fn temporary_file(
    context: &Context<'_>,
    suffix: &str,
    content: &[u8],
) -> Result<tempfile::NamedTempFile, TransferError> {
    let made = tempfile::Builder::new()
        .prefix("pegasus-transfer-")
        .suffix(suffix)
        .tempfile_in(context.temporary)
        .and_then(|mut file| file.write_all(content).map(|()| file));
    made.map_err(|error| TransferError::io("write a list into", context.temporary, error))
}

/// Refuses what a program would take for an option.
fn not_an_option(word: &str, what: &str) -> Result<(), TransferError> {
    if word.starts_with('-') {
        return Err(TransferError::remote(
            format!(
                "a {what} must not start with '-': {}",
                shown::bytes(word.as_bytes())
            ),
            Retry::Never,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::observer::Silent;

    fn context(cancel: &Cancel) -> Context<'_> {
        Context {
            symlink: false,
            base: None,
            temporary: Path::new("/tmp"),
            cancel,
            observer: &Silent,
        }
    }

    #[test]
    fn arguments_reach_a_program_as_they_are() {
        let cancel = Cancel::new();
        let environment = Environment::default();
        let mut tool = Tool::new(Path::new("/usr/bin/printf"));
        let nasty = ["$(id)", "a b'c\"", "x\ny", "-n", ";rm", "*"];
        tool.arg("%s|").args(nasty);
        let output = tool.run(&environment, &context(&cancel)).expect("runs");
        assert_eq!(output.trim_end(), format!("{}|", nasty.join("|")));
        assert_eq!(
            tool.line(),
            r#"/usr/bin/printf '%s|' '$(id)' 'a b'\''c"' 'x\ny' -n ';rm' '*'"#
        );
    }

    #[test]
    fn failures_say_status_and_last_line() {
        let cancel = Cancel::new();
        let environment = Environment::default();
        let mut tool = Tool::new(Path::new("/bin/sh"));
        tool.args(["-c", "cat; echo out; echo last >&2; exit 3"]);
        tool.input = b"in\n".to_vec();
        let error = tool.run(&environment, &context(&cancel)).expect_err("fails");
        assert_eq!(error.to_string(), "sh failed: exit status 3: last");
    }

    #[test]
    fn slow_programs_are_ended_with_all_that_they_started() {
        let environment = Environment::default();
        for stop in [false, true] {
            let cancel = Cancel::new();
            let mut tool = Tool::new(Path::new("/bin/sh"));
            tool.args(["-c", "sleep 60 & sleep 60"]);
            tool.limit = Duration::from_millis(if stop { 60_000 } else { 50 });
            if stop {
                let cancel = cancel.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(50));
                    cancel.cancel();
                });
            }
            let start = Instant::now();
            let error = tool.run(&environment, &context(&cancel)).expect_err("is ended");
            assert_eq!(matches!(error, TransferError::Cancelled), stop, "{error}");
            assert!(start.elapsed() < Duration::from_secs(10));
        }
    }
}
