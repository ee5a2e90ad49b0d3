//! Handlers that run the standard external program of a protocol.
//!
//! Programs are started without a local shell, so file names are never run as commands. Arguments that look
//! like options are rewritten or refused.

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
pub(super) use super::local_side::uploaded;
use super::local_side::{open_upload, publish};
use crate::error::{Retry, TransferError};
use crate::local::IncomingDirectory;
use crate::observer::Event;
use crate::protocol::{Context, Done, Pair};
use crate::shown;

/// Default time limit of a program.
const TIME_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// Time between `SIGTERM` and `SIGKILL`.
const KILL_DELAY: Duration = Duration::from_secs(3);
/// Maximum bytes kept of the end of a program's output.
const MAX_OUTPUT: u64 = 64 << 10;

/// An external program with its arguments.
pub(super) struct Tool<'a> {
    program: &'a Path,
    arguments: Vec<OsString>,
    /// Arguments that no log shows.
    secrets: Vec<OsString>,
    variables: Vec<(&'static str, OsString)>,
    input: Vec<u8>,
    limit: Duration,
}

/// Result of a program.
pub(super) struct Outcome {
    pub(super) status: ExitStatus,
    /// The end of its standard output and standard error.
    pub(super) output: String,
}

impl<'a> Tool<'a> {
    pub(super) fn new(program: &'a Path) -> Self {
        Self {
            program,
            arguments: Vec::new(),
            secrets: Vec::new(),
            variables: Vec::new(),
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

    /// Hides an argument from the log. Other users of the host can see it while the program runs, so this is
    /// for programs that take it in no other way.
    pub(super) fn hide(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.secrets.push(argument.as_ref().to_owned());
        self
    }

    pub(super) fn env(&mut self, name: &'static str, value: impl AsRef<OsStr>) -> &mut Self {
        self.variables.push((name, value.as_ref().to_owned()));
        self
    }

    fn name(&self) -> String {
        self.program
            .file_name()
            .map_or_else(String::new, |name| shown::bytes(name.as_bytes()).to_string())
    }

    /// Runs the program and returns its output. Fails unless the exit status is 0.
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

    /// Converts an outcome to an error with the status and the last line of output.
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

    /// Runs the program and logs its command and output. Any exit status is `Ok`.
    pub(super) fn outcome(
        &self,
        environment: &Environment,
        context: &Context<'_>,
    ) -> Result<Outcome, TransferError> {
        context.observer.event(&Event::Note(self.command_line()));
        let io_failure = |error| self.io_failure(&error);
        let mut output_file = tempfile::tempfile_in(context.temporary).map_err(io_failure)?;
        let mut command = Command::new(self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(environment.program_variables())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdout(output_file.try_clone().map_err(io_failure)?)
            .stderr(output_file.try_clone().map_err(io_failure)?)
            .stdin(self.standard_input(context).map_err(io_failure)?)
            .current_dir(context.base.unwrap_or(Path::new(".")));
        let mut child = command.spawn().map_err(io_failure)?;
        let status = self.wait(&mut child, context)?;
        let length = output_file.metadata().map_err(io_failure)?.len();
        let mut output = Vec::new();
        output_file
            .seek(SeekFrom::Start(length.saturating_sub(MAX_OUTPUT)))
            .and_then(|_| output_file.read_to_end(&mut output))
            .map_err(io_failure)?;
        let output: String = String::from_utf8_lossy(&output)
            .lines()
            .filter(|line| {
                !line.contains("Could not create directory") && !line.contains("Permanently added")
            })
            .fold(String::new(), |text, line| text + line + "\n");
        let output = pmc_secrets::urls_without_secrets(&output);
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

    fn io_failure(&self, error: &std::io::Error) -> TransferError {
        TransferError::External {
            program: self.name(),
            message: error.to_string(),
            retry: Retry::Soon,
        }
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
        let io_failure = |error| self.io_failure(&error);
        let start = Instant::now();
        let mut interval = Duration::from_millis(1);
        loop {
            if let Some(status) = child.try_wait().map_err(io_failure)? {
                return Ok(status);
            }
            let timed_out = start.elapsed() > self.limit;
            if timed_out || context.cancel.is_cancelled() {
                terminate(child);
                if !timed_out {
                    return Err(TransferError::Cancelled);
                }
                return Err(TransferError::External {
                    program: self.name(),
                    message: format!("not finished after {} seconds", self.limit.as_secs()),
                    retry: Retry::Later,
                });
            }
            std::thread::sleep(interval);
            interval = (interval * 2).min(Duration::from_millis(50));
        }
    }

    /// Returns the command line for the log, quoted where necessary.
    fn command_line(&self) -> String {
        let mut line = shown::path(self.program).to_string();
        for argument in &self.arguments {
            line.push(' ');
            if self.secrets.contains(argument) {
                line.push_str("XXX");
                continue;
            }
            let text = pmc_secrets::urls_without_secrets(&shown::bytes(argument.as_bytes()).to_string());
            if is_plain(argument.as_bytes()) {
                line.push_str(&text);
            } else {
                line.push_str(&format!("'{}'", text.replace('\'', "'\\''")));
            }
        }
        line
    }
}

/// Ends the process group of a program.
fn terminate(child: &mut Child) {
    let Ok(group) = i32::try_from(child.id()).map(Pid::from_raw) else {
        return;
    };
    // Fails only if the group has ended already.
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

/// Returns whether a name has no special characters for shells, patterns and addresses.
fn is_plain(name: &[u8]) -> bool {
    !name.is_empty()
        && name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte >= 0x80 || b"/._-+,=@%:".contains(byte))
}

/// Returns a local path that cannot be read as an option, an address or a path on another host.
fn local_argument(path: &Path) -> PathBuf {
    if path.is_absolute() {
        path.to_owned()
    } else {
        Path::new(".").join(path)
    }
}

/// Returns the address `file://…` of a local path.
fn file_address(path: &Path) -> Result<String, TransferError> {
    let path = std::path::absolute(path).map_err(|error| TransferError::io("find", path, error))?;
    let encoded = super::http::encode(path.as_os_str().as_bytes(), true);
    Ok(format!("file://{encoded}"))
}

/// Quotes a word for the shell of a remote host.
fn quote(word: &[u8]) -> Vec<u8> {
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

/// Checks that the source is a readable local file. Returns its path as an argument, and its size in bytes.
pub(super) fn upload_source(context: &Context<'_>, pair: &Pair<'_>) -> Result<(PathBuf, u64), TransferError> {
    let path = context.path(&pair.source.url);
    let (_, bytes) = open_upload(&path)?;
    Ok((local_argument(&path), bytes))
}

/// Downloads a file: `fetch` writes it into a temporary directory, from where it is moved to its final name.
pub(super) fn download(
    context: &Context<'_>,
    pair: &Pair<'_>,
    fetch: impl FnOnce(&Path) -> Result<(), TransferError>,
) -> Result<Done, TransferError> {
    let destination = context.path(&pair.destination().url);
    let directory = IncomingDirectory::create(&destination)?;
    let name = Path::new(destination.file_name().unwrap_or(OsStr::new("file")));
    fetch(&local_argument(&directory.file(name)))?;
    publish(&directory, name, &destination)
}

/// Creates a temporary input file for a program.
pub(super) fn temporary_file(
    context: &Context<'_>,
    suffix: &str,
    content: &[u8],
) -> Result<tempfile::NamedTempFile, TransferError> {
    let file = tempfile::Builder::new()
        .prefix("pegasus-transfer-")
        .suffix(suffix)
        .tempfile_in(context.temporary)
        .and_then(|mut file| file.write_all(content).map(|()| file));
    file.map_err(|error| TransferError::io("write a temporary file into", context.temporary, error))
}

/// Refuses words that a program would read as an option.
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
            keeps_directories: false,
            temporary: Path::new("/tmp"),
            cancel,
            observer: &Silent,
        }
    }

    #[test]
    fn arguments_are_passed_unchanged() {
        let cancel = Cancel::new();
        let environment = Environment::default();
        let mut tool = Tool::new(Path::new("/usr/bin/printf"));
        let arguments = ["$(id)", "a b'c\"", "x\ny", "-n", ";rm", "*"];
        tool.arg("%s|").args(arguments);
        let output = tool.run(&environment, &context(&cancel)).expect("runs");
        assert_eq!(output.trim_end(), format!("{}|", arguments.join("|")));
        assert_eq!(
            tool.command_line(),
            r#"/usr/bin/printf '%s|' '$(id)' 'a b'\''c"' 'x\ny' -n ';rm' '*'"#
        );
    }

    #[test]
    fn failures_report_status_and_last_line() {
        let cancel = Cancel::new();
        let environment = Environment::default();
        let mut tool = Tool::new(Path::new("/bin/sh"));
        tool.args(["-c", "cat; echo out; echo last >&2; exit 3"]);
        tool.input = b"in\n".to_vec();
        let error = tool.run(&environment, &context(&cancel)).expect_err("fails");
        assert_eq!(error.to_string(), "sh failed: exit status 3: last");
    }

    #[test]
    fn the_process_group_ends_on_timeout_and_cancellation() {
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
