//! Handler for `scp` and `sftp` with OpenSSH, and for `gsiscp` with GSI-OpenSSH.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Tool, concat, is_plain, local_argument, not_an_option, publish, quote, upload_source, uploaded};
use crate::error::{Retry, TransferError};
use crate::local::IncomingDirectory;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Environment;
use crate::spec::Location;

/// Variable that says how keys of hosts are checked.
const HOST_KEYS: &str = "PEGASUS_SSH_HOST_KEYS";
/// Maximum files of one call.
const MAX_SET: usize = 64;

/// Copies files with `scp`, makes directories and removes files with `ssh`.
pub(in crate::remote) struct Scp {
    environment: Arc<Environment>,
    /// Use GSI-OpenSSH with grid credentials.
    grid: bool,
    /// Hosts and directories made in this run.
    existing: Mutex<HashSet<(String, Vec<u8>)>>,
    /// `scp` supports the SFTP protocol. Set on first use.
    supports_sftp: OnceLock<bool>,
}

/// A path on the remote host as an argument of `scp`.
struct Remote {
    /// `host:path`.
    argument: OsString,
    /// The argument is quoted for the SFTP protocol.
    needs_sftp: bool,
}

impl Scp {
    pub(in crate::remote) fn new(environment: Arc<Environment>, grid: bool) -> Self {
        Self {
            environment,
            grid,
            existing: Mutex::new(HashSet::new()),
            supports_sftp: OnceLock::new(),
        }
    }

    fn program(&self, name: &str) -> Result<PathBuf, TransferError> {
        let (name, protocol) = if self.grid {
            (format!("gsi{name}"), "gsiscp")
        } else {
            (name.to_owned(), "scp")
        };
        self.environment.require_program(&[&name], protocol)
    }

    /// Adds the options that both programs need. `port` is the name of the option for the port.
    fn prepare(
        &self,
        tool: &mut Tool<'_>,
        context: &Context<'_>,
        place: &Location,
        port: &str,
    ) -> Result<(), TransferError> {
        tool.args(host_keys(&self.environment, &place.site)?);
        if self.grid {
            if let Some(proxy) =
                self.environment
                    .key_file("X509_USER_PROXY", &place.site, context.observer)?
            {
                tool.env("X509_USER_PROXY", proxy);
            }
        } else if let Some(key) =
            self.environment
                .key_file("SSH_PRIVATE_KEY", &place.site, context.observer)?
        {
            tool.arg("-i").arg(key);
        }
        tool.arg(port).arg(host(place)?.1);
        Ok(())
    }

    /// Runs the command `words` on the remote host, quoted for its shell.
    fn ssh(&self, context: &Context<'_>, place: &Location, words: &[&[u8]]) -> Result<(), TransferError> {
        let program = self.program("ssh")?;
        let mut tool = Tool::new(&program);
        tool.args(["-o", "BatchMode=yes"]);
        self.prepare(&mut tool, context, place, "-p")?;
        tool.arg(host(place)?.0);
        let mut line: Vec<u8> = Vec::new();
        for word in words {
            if !line.is_empty() {
                line.push(b' ');
            }
            if is_plain(word) {
                line.extend_from_slice(word);
            } else {
                line.extend(quote(word));
            }
        }
        tool.arg(OsStr::from_bytes(&line));
        let outcome = tool.outcome(&self.environment, context)?;
        if outcome.status.success() {
            return Ok(());
        }
        // 255: the connection failed.
        let retry = if outcome.status.code() == Some(255) {
            Retry::Later
        } else {
            Retry::Never
        };
        Err(failure(&tool, &outcome, retry))
    }

    fn prepare_directory(
        &self,
        context: &Context<'_>,
        place: &Location,
        directory: &Path,
    ) -> Result<(), TransferError> {
        let key = (
            place.url.host().to_owned(),
            directory.as_os_str().as_bytes().to_vec(),
        );
        let existing = || self.existing.lock().unwrap_or_else(PoisonError::into_inner);
        if existing().contains(&key) {
            return Ok(());
        }
        match self.ssh(context, place, &[b"/bin/mkdir", b"-p", &key.1]) {
            // Some hosts allow only copies. If the directory is missing, the copy fails.
            Err(error) if error.retry() != Retry::Never => Err(error),
            _ => {
                existing().insert(key);
                Ok(())
            }
        }
    }

    /// Returns whether `scp` has the option `-s` (OpenSSH 8.7) for SFTP, which needs no remote shell.
    fn supports_sftp(&self, context: &Context<'_>) -> bool {
        *self.supports_sftp.get_or_init(|| {
            let Ok(program) = self.program("ssh") else {
                return false;
            };
            let mut tool = Tool::new(&program);
            tool.arg("-V");
            let output = tool.run(&self.environment, context).unwrap_or_default();
            version(&output).is_some_and(|version| version >= (8, 7))
        })
    }

    fn remote(
        &self,
        context: &Context<'_>,
        place: &Location,
        path: &Path,
        source: bool,
    ) -> Result<Remote, TransferError> {
        let (host, _) = host(place)?;
        let path = path.as_os_str().as_bytes();
        if is_plain(path) {
            return Ok(Remote {
                argument: concat(&[host.as_bytes(), b":", path]),
                needs_sftp: false,
            });
        }
        let supports_sftp = self.supports_sftp(context);
        let escaped = match (supports_sftp, source) {
            // Only sources are read as patterns.
            (true, true) => escape(path, |byte| b"\\*?[]".contains(&byte)),
            (true, false) => path.to_vec(),
            (false, _) if path.contains(&b'\n') => {
                return Err(TransferError::remote(
                    "a name with a line break needs OpenSSH 8.7 or newer",
                    Retry::Never,
                ));
            }
            // The shell of the remote host reads the name.
            (false, _) => escape(path, |byte| !is_plain(&[byte])),
        };
        Ok(Remote {
            argument: concat(&[host.as_bytes(), b":", &escaped]),
            needs_sftp: supports_sftp,
        })
    }

    /// Runs `scp` from `sources` to `target`.
    fn copy(
        &self,
        context: &Context<'_>,
        place: &Location,
        sources: &[OsString],
        target: &OsStr,
        sftp: bool,
    ) -> Result<(), TransferError> {
        let program = self.program("scp")?;
        let mut tool = Tool::new(&program);
        tool.args(["-r", "-B"]);
        if sftp {
            tool.arg("-s");
        }
        self.prepare(&mut tool, context, place, "-P")?;
        tool.args(sources).arg(target);
        let outcome = tool.outcome(&self.environment, context)?;
        if outcome.status.success() {
            return Ok(());
        }
        let permanent = [
            "No such file or directory",
            "not a regular file",
            "Is a directory",
        ];
        let is_permanent = permanent.iter().any(|words| outcome.output.contains(words))
            && !outcome.output.contains("lost connection");
        let retry = if is_permanent { Retry::Never } else { Retry::Later };
        Err(failure(&tool, &outcome, retry))
    }

    /// Downloads files of one host into one directory with one call.
    fn download(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Result<Vec<Done>, TransferError> {
        let Some(first) = pairs.first() else {
            return Ok(Vec::new());
        };
        let destination = context.path(&first.destination().url);
        let directory = IncomingDirectory::create(&destination)?;
        let mut sources = Vec::with_capacity(pairs.len());
        let mut sftp = false;
        for pair in pairs {
            let remote = self.remote(context, pair.source, pair.source.url.path(), true)?;
            sftp |= remote.needs_sftp;
            sources.push(remote.argument);
        }
        let name =
            |pair: &Pair<'_>| PathBuf::from(pair.source.url.path().file_name().unwrap_or(OsStr::new("file")));
        let target = match pairs {
            [pair] => directory.file(&name(pair)),
            _ => directory.file(Path::new("")),
        };
        self.copy(
            context,
            first.source,
            &sources,
            local_argument(&target).as_os_str(),
            sftp,
        )?;
        pairs
            .iter()
            .map(|pair| {
                let destination = context.path(&pair.destination().url);
                publish(&directory, &name(pair), &destination)
            })
            .collect()
    }

    /// Uploads files to one directory of one host with one call.
    fn upload(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Result<Vec<Done>, TransferError> {
        let Some(first) = pairs.first() else {
            return Ok(Vec::new());
        };
        let mut sources = Vec::with_capacity(pairs.len());
        let mut done = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let (path, bytes) = upload_source(context, pair)?;
            sources.push(path.into_os_string());
            done.push(uploaded(bytes));
        }
        let place = first.destination();
        let path = place.url.path();
        let parent = path.parent().unwrap_or(Path::new("/"));
        self.prepare_directory(context, place, parent)?;
        let target = match pairs {
            [_] => path.to_owned(),
            _ => parent.join(""),
        };
        let target = self.remote(context, place, &target, false)?;
        self.copy(context, place, &sources, &target.argument, target.needs_sftp)?;
        Ok(done)
    }
}

/// Returns the options about keys of hosts. Without a variable, the user's configuration of OpenSSH counts,
/// which refuses unknown keys unless it says otherwise: nobody is there to be asked.
fn host_keys(environment: &Environment, site: &str) -> Result<&'static [&'static str], TransferError> {
    let value = environment.for_site(HOST_KEYS, site).map(OsStr::as_bytes);
    match value {
        None | Some(b"check") => Ok(&[]),
        Some(b"new") => Ok(&["-o", "StrictHostKeyChecking=accept-new"]),
        Some(b"ignore") => Ok(&[
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "StrictHostKeyChecking=no",
        ]),
        Some(other) => Err(TransferError::Credentials(format!(
            "{HOST_KEYS} must be check, new or ignore, not '{}'",
            crate::shown::bytes(other)
        ))),
    }
}

/// Converts an outcome to an error. An unknown host key is explained.
fn failure(tool: &Tool<'_>, outcome: &super::Outcome, retry: Retry) -> TransferError {
    if !outcome.output.contains("Host key verification failed") {
        return tool.failure(outcome, retry);
    }
    TransferError::External {
        program: tool.name(),
        message: format!(
            "the key of the host is unknown or has changed: check it and put it into ~/.ssh/known_hosts \
             (ssh-keyscan), or set {HOST_KEYS}=new to accept unknown keys"
        ),
        retry: Retry::Never,
    }
}

/// Splits the host part of a URL into user with host, and port.
fn host(place: &Location) -> Result<(&str, &str), TransferError> {
    let authority = place.url.host();
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, port),
        None => (authority, "22"),
    };
    not_an_option(host, "host")?;
    if host.is_empty() || port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TransferError::remote(
            format!("'{authority}' is not a host with a port"),
            Retry::Never,
        ));
    }
    Ok((host, port))
}

fn escape(path: &[u8], special: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len() + 8);
    for byte in path {
        if special(*byte) {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}

/// Parses the version in `OpenSSH_9.2p1 …`.
fn version(output: &str) -> Option<(u32, u32)> {
    let rest = &output[output.find("OpenSSH_")? + 8..];
    let (major, rest) = rest.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the directory shared by files of one call, and the file name if the file may be part of a call.
fn batch_key<'a>(context: &Context<'_>, pair: &Pair<'a>) -> (PathBuf, Option<&'a OsStr>) {
    let (source, destination) = (&pair.source.url, &pair.destination().url);
    if destination.is_local() {
        let path = context.path(destination);
        let parent = path.parent().unwrap_or(Path::new("")).to_owned();
        (parent, source.path().file_name())
    } else {
        let parent = destination.path().parent().unwrap_or(Path::new("/")).to_owned();
        // In one call, files keep their names.
        let same = source.path().file_name() == destination.path().file_name();
        (parent, source.path().file_name().filter(|_| same))
    }
}

impl Handler for Scp {
    fn transfers(&self, from: &str, to: &str) -> bool {
        (self.manages(from) && to == "file") || (from == "file" && self.manages(to))
    }

    fn manages(&self, scheme: &str) -> bool {
        if self.grid {
            scheme == "gsiscp"
        } else {
            matches!(scheme, "scp" | "sftp")
        }
    }

    fn set_size(&self) -> usize {
        MAX_SET
    }

    fn transfer_set(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        let mut results: Vec<Option<Result<Done, TransferError>>> = pairs.iter().map(|_| None).collect();
        let call = |group: &[Pair<'_>]| match group.first() {
            Some(pair) if pair.destination().url.is_local() => self.download(context, group),
            _ => self.upload(context, group),
        };
        let mut remaining: Vec<usize> = (0..pairs.len()).collect();
        while let Some(first) = remaining.first().copied() {
            let (directory, name) = batch_key(context, &pairs[first]);
            let mut names = HashSet::new();
            let mut group = Vec::new();
            remaining.retain(|index| {
                let (other, file) = batch_key(context, &pairs[*index]);
                let fits =
                    name.is_some() && other == directory && file.is_some_and(|file| names.insert(file));
                let fits = fits || *index == first;
                if fits {
                    group.push(*index);
                }
                !fits
            });
            let members: Vec<Pair<'_>> = group.iter().map(|index| pairs[*index]).collect();
            match call(&members) {
                Ok(done) => {
                    for (index, done) in group.into_iter().zip(done) {
                        results[index] = Some(Ok(done));
                    }
                }
                Err(error) if group.len() == 1 => results[first] = Some(Err(error)),
                // Transfer the files one by one to find the failing one.
                Err(_) => {
                    for (index, pair) in group.into_iter().zip(&members) {
                        let transfer_one =
                            call(std::slice::from_ref(pair)).map(|mut done| done.pop().unwrap_or_default());
                        results[index] = Some(transfer_one);
                    }
                }
            }
        }
        results
            .into_iter()
            .map(|result| result.unwrap_or(Err(TransferError::Skipped("its handler gave no answer"))))
            .collect()
    }

    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        self.ssh(
            context,
            place,
            &[b"/bin/mkdir", b"-p", place.url.path().as_os_str().as_bytes()],
        )
    }

    fn remove_set(
        &self,
        context: &Context<'_>,
        places: &[&Location],
        recursive: bool,
    ) -> Vec<Result<(), TransferError>> {
        let remove = |places: &[&Location]| {
            let mut words: Vec<&[u8]> = vec![b"/bin/rm", b"-f"];
            if recursive {
                words.push(b"-r");
            }
            for place in places {
                let path = place.url.path().as_os_str().as_bytes();
                if path.is_empty() || path.iter().all(|byte| b"/.".contains(byte)) {
                    return Err(TransferError::RefusedRemoval(place.url.path().to_owned()));
                }
                words.push(path);
            }
            match places.first() {
                Some(place) => self.ssh(context, place, &words),
                None => Ok(()),
            }
        };
        if places.len() > 1 && remove(places).is_ok() {
            return places.iter().map(|_| Ok(())).collect();
        }
        places.iter().map(|place| remove(&[*place])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openssh_versions_are_parsed() {
        assert_eq!(version("OpenSSH_9.2p1 Debian-2, OpenSSL 3"), Some((9, 2)));
        assert_eq!(version("OpenSSH_8.0p1"), Some((8, 0)));
        assert_eq!(version("Sun_SSH"), None);
    }

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(escape(b"a*[b", |byte| b"*[".contains(&byte)), b"a\\*\\[b");
        assert_eq!(quote(b"it's"), b"'it'\\''s'");
    }
}
