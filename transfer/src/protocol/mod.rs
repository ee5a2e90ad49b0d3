//! Who carries out a transfer: one handler for each kind of protocol.
//!
//! The engine asks [`Registry`] for the handler of a pair of protocols and hands it one or several entries.
//! Handlers return failures as values, and know nothing of attempts, order or statistics.

mod local;

use std::path::{Path, PathBuf};

use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::spec::{Location, Transfer};
use crate::url::Url;

/// What handlers need to know of the run.
#[derive(Debug)]
pub struct Context<'a> {
    /// Make links instead of copies where both sides are local files.
    pub symlink: bool,
    /// Where relative paths start; the working directory of the process if `None`.
    pub base: Option<&'a Path>,
    /// Set when the run shall stop.
    pub cancel: &'a Cancel,
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
    /// Whether it transfers from one protocol to another.
    fn transfers(&self, from: &str, to: &str) -> bool;

    /// Whether it makes directories and removes files of a protocol.
    fn manages(&self, scheme: &str) -> bool;

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
    fn make_directory(&self, context: &Context<'_>, url: &Url) -> Result<(), TransferError>;

    /// Removes a file, or with `recursive` a directory; what is missing counts as removed.
    fn remove(&self, context: &Context<'_>, url: &Url, recursive: bool) -> Result<(), TransferError>;
}

/// The handlers of a run; by default all that this crate has.
pub struct Registry(Vec<Box<dyn Handler>>);

impl Default for Registry {
    fn default() -> Self {
        Self(vec![Box::new(local::Local)])
    }
}

impl Registry {
    /// These handlers; of several that fit, the first is taken.
    #[must_use]
    pub fn new(handlers: Vec<Box<dyn Handler>>) -> Self {
        Self(handlers)
    }

    /// The handler of a transfer.
    pub fn for_transfer(&self, pair: &Pair<'_>) -> Result<&dyn Handler, TransferError> {
        let (source, destination) = (&pair.source.url, &pair.destination().url);
        let (from, to) = (source.scheme(), destination.scheme());
        self.0
            .iter()
            .map(Box::as_ref)
            .find(|handler| handler.transfers(from, to))
            .ok_or_else(|| {
                let url = if source.is_local() { destination } else { source };
                TransferError::Unsupported {
                    from: from.to_owned(),
                    to: to.to_owned(),
                    url: url.shown(),
                }
            })
    }

    /// The handler that makes and removes what a URL names.
    pub fn for_url(&self, url: &Url) -> Result<&dyn Handler, TransferError> {
        self.0
            .iter()
            .map(Box::as_ref)
            .find(|handler| handler.manages(url.scheme()))
            .ok_or_else(|| TransferError::Unsupported {
                from: String::new(),
                to: url.scheme().to_owned(),
                url: url.shown(),
            })
    }
}
