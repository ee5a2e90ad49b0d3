//! Handler for `gsiftp` and `sshftp` with `globus-url-copy`. The gfal tools are preferred for `gsiftp`.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Gfal, Tool, file_address, publish, temporary_file, upload_source};
use crate::error::{Retry, TransferError};
use crate::local::IncomingDirectory;
use crate::protocol::{Context, Done, Handler, Pair, stays};
use crate::remote::Environment;
use crate::remote::environment::check_key_file;
use crate::remote::http::encode;
use crate::spec::Location;
use crate::url::Url;

/// Maximum files of one list.
const MAX_LIST: usize = 1000;

pub(in crate::remote) struct GridFtp {
    environment: Arc<Environment>,
    gfal: Gfal,
    /// A transfer has failed, so options that some servers reject are left out.
    failed: AtomicBool,
}

/// One file of a list.
struct Entry {
    from: String,
    to: String,
    /// Size of an uploaded file, bytes.
    bytes: Option<u64>,
    /// For a download: temporary directory, name in it, and destination.
    download: Option<(IncomingDirectory, PathBuf, PathBuf)>,
}

fn address(url: &Url) -> String {
    let path = encode(url.path().as_os_str().as_bytes(), true);
    format!("{}://{}{path}", url.scheme(), url.host())
}

impl GridFtp {
    pub(in crate::remote) fn new(environment: Arc<Environment>) -> Self {
        Self {
            gfal: Gfal {
                environment: Arc::clone(&environment),
            },
            environment,
            failed: AtomicBool::new(false),
        }
    }

    fn prefers_gfal(&self, schemes: [&str; 2]) -> bool {
        !schemes.contains(&"sshftp")
            && self.environment.variable("PEGASUS_FORCE_GUC").is_none()
            && self.environment.program("gfal-copy").is_some()
    }

    /// Adds the credentials. Returns whether source and destination have different ones.
    fn credentials(
        &self,
        tool: &mut Tool<'_>,
        context: &Context<'_>,
        source: &Location,
        destination: &Location,
    ) -> Result<bool, TransferError> {
        let schemes = [source.url.scheme(), destination.url.scheme()];
        if !schemes.contains(&"gsiftp") {
            if schemes.contains(&"sshftp") {
                let place = if source.url.is_local() {
                    destination
                } else {
                    source
                };
                let key = self
                    .environment
                    .key_file("SSH_PRIVATE_KEY", &place.site, context.observer)?;
                if let Some(key) = key {
                    tool.env("SSH_PRIVATE_KEY", key);
                }
            }
            return Ok(false);
        }
        const NAME: &str = "X509_USER_PROXY";
        let credential = |place: &Location| self.environment.only_for_site(NAME, &place.site);
        let (from, to) = (credential(source), credential(destination));
        if from.is_none() && to.is_none() {
            return Ok(false);
        }
        // A side without its own credential uses the general one, else that of the other side.
        let general = self.environment.variable(NAME);
        let (Some(transfer_one), Some(other)) = (from.or(general).or(to), to.or(general).or(from)) else {
            return Ok(false);
        };
        for key in [transfer_one, other] {
            check_key_file(key.as_ref(), context.observer)?;
        }
        tool.arg("-src-cred")
            .arg(transfer_one)
            .arg("-dst-cred")
            .arg(other);
        Ok(transfer_one != other)
    }

    fn copy(
        &self,
        context: &Context<'_>,
        pair: &Pair<'_>,
        entries: &[&Entry],
        create: bool,
    ) -> Result<(), TransferError> {
        let program = self
            .environment
            .require_program(&["globus-url-copy"], pair.source.url.scheme())?;
        let mut tool = Tool::new(&program);
        let (source, destination) = (pair.source, pair.destination());
        let different = self.credentials(&mut tool, context, source, destination)?;
        tool.arg("-r");
        if self.environment.debug {
            tool.arg("-verbose");
        }
        if create {
            tool.arg("-create-dest");
        }
        let failed = self.failed.load(Ordering::Relaxed);
        if !source.url.is_local() && !destination.url.is_local() {
            if !failed {
                tool.arg("-pipeline");
            }
            tool.args(["-parallel", "4", "-fast"]);
            match (different, failed) {
                (true, false) => drop(tool.args(["-data-cred", "auto"])),
                (true, true) => drop(tool.arg("-no-data-channel-authentication")),
                (false, _) => {}
            }
        } else {
            tool.args(["-no-third-party-transfers", "-no-data-channel-authentication"]);
        }
        let lines: String = entries
            .iter()
            .map(|entry| format!("{} {}\n", entry.from, entry.to))
            .collect();
        let list = temporary_file(context, ".lst", lines.as_bytes())?;
        tool.arg("-f").arg(list.path());
        let result = tool.run(&self.environment, context).map(drop);
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn entry(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Entry, TransferError> {
        let (source, destination) = (&pair.source.url, &pair.destination().url);
        let (from, bytes) = if source.is_local() {
            let (path, bytes) = upload_source(context, pair)?;
            (file_address(&path)?, Some(bytes))
        } else {
            (address(source), None)
        };
        let (to, download) = if destination.is_local() {
            let path = context.path(destination);
            let directory = IncomingDirectory::create(&path)?;
            let name = PathBuf::from("data");
            let address = file_address(&directory.file(&name))?;
            (address, Some((directory, name, path)))
        } else {
            (address(destination), None)
        };
        Ok(Entry {
            from,
            to,
            bytes,
            download,
        })
    }

    /// Transfers files between two directories: first one file, which makes the directory, then the others.
    fn group(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        let entries: Vec<_> = pairs.iter().map(|pair| self.entry(context, pair)).collect();
        let valid: Vec<&Entry> = entries.iter().flatten().collect();
        let Some(((first, rest), pair)) = valid.split_first().zip(pairs.first()) else {
            return entries
                .into_iter()
                .map(|entry| entry.map(|_| Done::default()))
                .collect();
        };
        let create = !pair.destination().url.is_local();
        let attempts = if pair.attempt <= 1 { 3 } else { 1 };
        let mut outcome = Ok(());
        for _ in 0..attempts {
            outcome = self.copy(context, pair, &[first], create);
            if !matches!(&outcome, Err(error) if error.retry() == Retry::Later) {
                break;
            }
        }
        // One result for each valid entry. A list succeeds or fails as a whole.
        let failed = |error: &TransferError| TransferError::External {
            program: "globus-url-copy".to_owned(),
            message: format!("a file of its list failed: {error}"),
            retry: error.retry(),
        };
        let mut results = vec![outcome];
        for list in rest.chunks(MAX_LIST) {
            let outcome = self.copy(context, pair, list, false);
            results.extend(list.iter().map(|_| outcome.as_ref().copied().map_err(failed)));
        }
        let mut results = results.into_iter();
        entries
            .into_iter()
            .map(|entry| {
                let entry = entry?;
                results.next().unwrap_or(Ok(()))?;
                let Some((directory, name, path)) = entry.download else {
                    return Ok(Done {
                        bytes: entry.bytes,
                        ..Done::default()
                    });
                };
                publish(&directory, &name, &path)
            })
            .collect()
    }
}

impl Handler for GridFtp {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!(
            (from, to),
            ("file", "gsiftp" | "sshftp")
                | ("gsiftp", "file" | "gsiftp" | "ftp")
                | ("sshftp", "file" | "sshftp")
                | ("ftp", "ftp" | "gsiftp")
        )
    }

    fn manages(&self, scheme: &str) -> bool {
        matches!(scheme, "gsiftp" | "sshftp")
    }

    fn set_size(&self) -> usize {
        MAX_LIST
    }

    fn transfer_set(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        if let Some(pair) = pairs.first()
            && self.prefers_gfal([pair.source.url.scheme(), pair.destination().url.scheme()])
        {
            return self.gfal.transfer_set(context, pairs);
        }
        let mut groups: BTreeMap<(PathBuf, PathBuf), Vec<usize>> = BTreeMap::new();
        for (index, pair) in pairs.iter().enumerate() {
            let directory = |url: &Url| url.path().parent().map(PathBuf::from).unwrap_or_default();
            let key = (directory(&pair.source.url), directory(&pair.destination().url));
            groups.entry(key).or_default().push(index);
        }
        let mut results: Vec<_> = pairs
            .iter()
            .map(|_| Err(TransferError::Skipped("its handler gave no answer")))
            .collect();
        for group in groups.into_values() {
            let members: Vec<Pair<'_>> = group.iter().map(|index| pairs[*index]).collect();
            for (index, result) in group.into_iter().zip(self.group(context, &members)) {
                results[index] = result;
            }
        }
        results
    }

    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        if self.prefers_gfal([place.url.scheme(); 2]) {
            return self.gfal.make_directory(context, place);
        }
        let program = self
            .environment
            .require_program(&["globus-url-copy"], place.url.scheme())?;
        let mut tool = Tool::new(&program);
        self.credentials(&mut tool, context, place, place)?;
        let marker = format!("{}/.create-dir", address(&place.url).trim_end_matches('/'));
        tool.args(["-create-dest", "file:///dev/null", &marker]);
        tool.run(&self.environment, context).map(drop)
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        if self.prefers_gfal([place.url.scheme(); 2]) {
            return self.gfal.remove(context, place, recursive);
        }
        if recursive {
            let reason = "globus-url-copy cannot remove directories: the gfal tools are needed";
            stays(context, place, reason);
            return Ok(());
        }
        // globus-url-copy cannot remove files, so it empties them.
        let program = self
            .environment
            .require_program(&["globus-url-copy"], place.url.scheme())?;
        let mut tool = Tool::new(&program);
        self.credentials(&mut tool, context, place, place)?;
        tool.args(["file:///dev/null", &address(&place.url)]);
        tool.run(&self.environment, context).map(drop)
    }
}
