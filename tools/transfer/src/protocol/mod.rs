//! Handlers: each carries out the transfers of some protocols.
//!
//! The engine asks [`Registry`] for the handler of a pair of protocols and gives it one or several entries.
//! Handlers return failures as values. They know nothing of attempts, order or statistics.

mod local;

use std::path::{Path, PathBuf};

use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::observer::{Event, Observer};
use crate::spec::{Location, Transfer};
use crate::url::Url;

/// Parameters of the run that handlers need.
pub struct Context<'a> {
    /// Create links instead of copies where both sides are local files.
    pub symlink: bool,
    /// Base of relative paths; the working directory of the process if `None`.
    pub base: Option<&'a Path>,
    /// Local directories stay when only files were to be removed; otherwise that is a failure.
    pub keeps_directories: bool,
    /// Directory for temporary files.
    pub temporary: &'a Path,
    /// Set to stop the run.
    pub cancel: &'a Cancel,
    /// Receives the events of the run.
    pub observer: &'a dyn Observer,
}

impl Context<'_> {
    /// Returns the local path of a URL.
    #[must_use]
    pub fn path(&self, url: &Url) -> PathBuf {
        match self.base {
            Some(base) => base.join(url.path()),
            None => url.path().to_owned(),
        }
    }
}

/// A transfer and the source of this attempt.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The entry.
    pub transfer: &'a Transfer,
    /// One of its sources.
    pub source: &'a Location,
    /// Number of the attempt of the entry, from 1.
    pub attempt: u32,
}

impl<'a> Pair<'a> {
    /// Returns the destination.
    #[must_use]
    pub fn destination(&self) -> &'a Location {
        &self.transfer.destination
    }
}

/// A finished transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Size of the file in bytes, if known.
    pub bytes: Option<u64>,
    /// SHA-256 of the source, if requested and computed while copying.
    pub sha256: Option<[u8; 32]>,
    /// Local path of the copy, if it differs from the path of the destination.
    pub path: Option<PathBuf>,
}

/// Reports a directory that is to be removed and stays, which is no failure: a run that has done its work
/// must not fail for what it leaves behind on a staging site.
pub(crate) fn stays(context: &Context<'_>, place: &Location, reason: &str) {
    let url = place.url.shown();
    let text = format!("{url} stays, with what is in it: {reason}");
    context.observer.event(&Event::Warning(text));
}

/// Carries out the transfers of some protocols.
pub trait Handler: Sync {
    /// Returns whether it transfers from one protocol to another. For a container image that becomes a file,
    /// `to` is `file::` and the kind of image.
    fn transfers(&self, from: &str, to: &str) -> bool;

    /// Returns whether it creates directories and removes files of a protocol.
    fn manages(&self, _scheme: &str) -> bool {
        false
    }

    /// Returns whether it uses a network service. Then waits between attempts are longer, and many failures
    /// end the run early.
    fn is_remote(&self) -> bool {
        true
    }

    /// Maximum entries per call.
    fn set_size(&self) -> usize {
        1
    }

    /// Transfers one entry.
    fn transfer(&self, _context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (&pair.source.url, &pair.destination().url);
        Err(unsupported(source.scheme(), destination.scheme(), destination))
    }

    /// Transfers entries with the same two protocols: all at once, or with [`Handler::transfer`]. Returns one
    /// result per entry, in order.
    fn transfer_set(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        pairs.iter().map(|pair| self.transfer(context, pair)).collect()
    }

    /// Creates a directory and its parents.
    fn make_directory(&self, _context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        Err(not_managed(place))
    }

    /// Removes a file, or with `recursive` a directory. A missing file counts as removed.
    fn remove(
        &self,
        _context: &Context<'_>,
        place: &Location,
        _recursive: bool,
    ) -> Result<(), TransferError> {
        Err(not_managed(place))
    }

    /// Removes several files of one protocol, site and host: all at once, or with [`Handler::remove`].
    /// Returns one result per file, in order.
    fn remove_set(
        &self,
        context: &Context<'_>,
        places: &[&Location],
        recursive: bool,
    ) -> Vec<Result<(), TransferError>> {
        places
            .iter()
            .map(|place| self.remove(context, place, recursive))
            .collect()
    }
}

/// The error of a handler that only transfers.
fn not_managed(place: &Location) -> TransferError {
    unsupported("", place.url.scheme(), &place.url)
}

/// The handlers of one transfer.
#[derive(Clone, Copy)]
pub enum Route<'a> {
    /// One handler.
    Direct(&'a dyn Handler),
    /// The first handler writes a temporary local file, the second transfers that file.
    Staged(&'a dyn Handler, &'a dyn Handler),
}

/// The handlers of a run; by default only that of local files.
pub struct Registry(Vec<Box<dyn Handler>>);

impl Default for Registry {
    fn default() -> Self {
        Self(vec![Box::new(local::Local)])
    }
}

impl Registry {
    /// Creates a registry of the local handler and `handlers`. The first handler that fits is used.
    #[must_use]
    pub fn with_local(handlers: Vec<Box<dyn Handler>>) -> Self {
        let mut all: Vec<Box<dyn Handler>> = vec![Box::new(local::Local)];
        all.extend(handlers);
        Self(all)
    }

    /// Creates a registry of `handlers` only, without local files. The first handler that fits is used.
    #[must_use]
    pub fn new(handlers: Vec<Box<dyn Handler>>) -> Self {
        Self(handlers)
    }

    fn find(&self, from: &str, to: &str) -> Option<&dyn Handler> {
        self.0
            .iter()
            .map(Box::as_ref)
            .find(|handler| handler.transfers(from, to))
    }

    /// Finds the handlers of a transfer.
    pub fn route(&self, pair: &Pair<'_>) -> Result<Route<'_>, TransferError> {
        let (source, destination) = (&pair.source.url, &pair.destination().url);
        let (from, to) = (source.scheme(), destination.scheme());
        let image = pair.destination().image.as_deref();
        let image = image.filter(|_| matches!(from, "docker" | "shub" | "library" | "oras"));
        let as_file = image.map_or_else(|| "file".to_owned(), |image| format!("file::{image}"));
        let direct = if to == "file" { as_file.as_str() } else { to };
        // A checksum can only be computed from data that passes through this machine.
        let bypasses_machine = from == "gsiftp" && to == "gsiftp" && pair.transfer.generate_checksum;
        if let Some(handler) = self.find(from, direct).filter(|_| !bypasses_machine) {
            return Ok(Route::Direct(handler));
        }
        // A link to a temporary file would dangle.
        let onward = if to == "symlink" { "file" } else { to };
        if source.is_local() {
            return Err(unsupported(from, to, destination));
        }
        match (self.find(from, &as_file), self.find("file", onward)) {
            (Some(first), Some(second)) => Ok(Route::Staged(first, second)),
            (None, _) => Err(unsupported(from, to, source)),
            (_, None) => Err(unsupported(from, to, destination)),
        }
    }

    /// Finds the handler that downloads files of a protocol.
    #[must_use]
    pub fn for_download(&self, scheme: &str) -> Option<&dyn Handler> {
        self.find(scheme, "file")
    }

    /// Finds the handler that creates and removes files of the URL's protocol.
    pub fn for_url(&self, url: &Url) -> Result<&dyn Handler, TransferError> {
        self.0
            .iter()
            .map(Box::as_ref)
            .find(|handler| handler.manages(url.scheme()))
            .ok_or_else(|| unsupported("", url.scheme(), url))
    }
}

fn unsupported(from: &str, to: &str, url: &Url) -> TransferError {
    TransferError::Unsupported {
        from: from.to_owned(),
        to: to.to_owned(),
        url: url.shown(),
    }
}
