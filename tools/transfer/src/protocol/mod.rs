//! Who carries out a transfer: one handler for each kind of protocol.
//!
//! The engine asks [`Registry`] for the handler of a pair of protocols and hands it one or several entries.
//! Handlers return failures as values, and know nothing of attempts, order or statistics.

mod local;

use std::path::{Path, PathBuf};

use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::observer::Observer;
use crate::spec::{Location, Transfer};
use crate::url::Url;

/// What handlers need to know of the run.
pub struct Context<'a> {
    /// Make links instead of copies where both sides are local files.
    pub symlink: bool,
    /// Where relative paths start; the working directory of the process if `None`.
    pub base: Option<&'a Path>,
    /// Directory for temporary files.
    pub temporary: &'a Path,
    /// Set when the run shall stop.
    pub cancel: &'a Cancel,
    /// Is told what goes on.
    pub observer: &'a dyn Observer,
}

impl Context<'_> {
    /// The local path of a URL.
    #[must_use]
    pub fn path(&self, url: &Url) -> PathBuf {
        match self.base {
            Some(base) => base.join(url.path()),
            None => url.path().to_owned(),
        }
    }
}

/// A transfer with the source that is tried.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The entry.
    pub transfer: &'a Transfer,
    /// One of its sources.
    pub source: &'a Location,
    /// Which attempt of the entry this is, from 1.
    pub attempt: u32,
}

impl<'a> Pair<'a> {
    /// Where to.
    #[must_use]
    pub fn destination(&self) -> &'a Location {
        &self.transfer.destination
    }
}

/// A finished transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Bytes of the file, if known.
    pub bytes: Option<u64>,
    /// SHA-256 of the source, if it was asked for and computed on the way.
    pub sha256: Option<[u8; 32]>,
    /// The file at the destination, if it is local and not simply the destination's path.
    pub path: Option<PathBuf>,
}

/// Carries out the entries of some protocols.
pub trait Handler: Sync {
    /// Whether it transfers from one protocol to another. Where an image of a container goes to a file, `to`
    /// is `file::` with the kind of image.
    fn transfers(&self, from: &str, to: &str) -> bool;

    /// Whether it makes directories and removes files of a protocol.
    fn manages(&self, _scheme: &str) -> bool {
        false
    }

    /// Whether a service on the network is involved: waits between attempts are then longer, and many
    /// failures end the run early.
    fn is_remote(&self) -> bool;

    /// Most entries that one call takes.
    fn set_size(&self) -> usize {
        1
    }

    /// Transfers the entries, which all have the same two protocols. One answer for each, in order.
    fn transfer(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>>;

    /// Makes a directory with its parents.
    fn make_directory(&self, _context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        Err(not_managed(place))
    }

    /// Removes a file, or with `recursive` a directory; what is missing counts as removed.
    fn remove(
        &self,
        _context: &Context<'_>,
        place: &Location,
        _recursive: bool,
    ) -> Result<(), TransferError> {
        Err(not_managed(place))
    }

    /// Removes several, of one protocol, site and host. One answer for each, in order.
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

/// The answer of a handler that only transfers.
fn not_managed(place: &Location) -> TransferError {
    TransferError::Unsupported {
        from: String::new(),
        to: place.url.scheme().to_owned(),
        url: place.url.shown(),
    }
}

/// How a transfer is carried out.
#[derive(Clone, Copy)]
pub enum Route<'a> {
    /// By one handler.
    Direct(&'a dyn Handler),
    /// To a temporary local file by the first handler, from there by the second.
    Staged(&'a dyn Handler, &'a dyn Handler),
}

/// The handlers of a run; by default those of local files only, which need nothing of their surroundings.
pub struct Registry(Vec<Box<dyn Handler>>);

impl Default for Registry {
    fn default() -> Self {
        Self(vec![Box::new(local::Local)])
    }
}

impl Registry {
    /// The handlers of local files and these; of several that fit, the first is taken.
    #[must_use]
    pub fn with_local(handlers: Vec<Box<dyn Handler>>) -> Self {
        let mut all: Vec<Box<dyn Handler>> = vec![Box::new(local::Local)];
        all.extend(handlers);
        Self(all)
    }

    /// These handlers; of several that fit, the first is taken. Local files are no part of it by themselves.
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

    /// How a transfer is carried out.
    pub fn route(&self, pair: &Pair<'_>) -> Result<Route<'_>, TransferError> {
        let (source, destination) = (&pair.source.url, &pair.destination().url);
        let (from, to) = (source.scheme(), destination.scheme());
        let image = pair.destination().image.as_deref();
        let image = image.filter(|_| matches!(from, "docker" | "shub" | "library"));
        let as_file = image.map_or_else(|| "file".to_owned(), |image| format!("file::{image}"));
        let direct = if to == "file" { as_file.as_str() } else { to };
        // A checksum needs the data to pass through here.
        let passes_by = from == "gsiftp" && to == "gsiftp" && pair.transfer.generate_checksum;
        if let Some(handler) = self.find(from, direct).filter(|_| !passes_by) {
            return Ok(Route::Direct(handler));
        }
        // A link to a temporary file would lead nowhere.
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

    /// The handler that brings files of a protocol here.
    #[must_use]
    pub fn for_download(&self, scheme: &str) -> Option<&dyn Handler> {
        self.find(scheme, "file")
    }

    /// The handler that makes and removes what a URL names.
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
