//! Downloads that go on where they broke off.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::client::{Client, Request, Response, read_error};
use crate::cancel::Cancel;
use crate::error::{Retry, TransferError};
use crate::local::Incoming;
use crate::protocol::Done;

/// How often a download is resumed within one attempt, as long as each time brings something.
const MAX_RESUMES: u32 = 20;
const BUFFER_SIZE: usize = 256 << 10;

/// Downloads of a run, with those that are not complete: another attempt goes on with them.
#[derive(Default)]
pub(crate) struct Downloads(Mutex<HashMap<(String, PathBuf), Partial>>);

/// What has arrived of a file.
struct Partial {
    incoming: Incoming,
    /// Bytes that have arrived.
    have: u64,
    /// Tells whether the server still has the same file (an entity tag or a time).
    version: Option<String>,
    hasher: Option<Sha256>,
}

impl Partial {
    fn new(destination: &Path, hash: bool) -> Result<Self, TransferError> {
        Ok(Self {
            incoming: Incoming::create(destination)?,
            have: 0,
            version: None,
            hasher: hash.then(Sha256::new),
        })
    }

    fn restart(&mut self) -> Result<(), TransferError> {
        let Incoming { file, .. } = &mut self.incoming;
        let emptied = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0)));
        emptied.map_err(|error| TransferError::io("write", self.incoming.path(), error))?;
        self.have = 0;
        self.version = None;
        self.hasher = self.hasher.as_ref().map(|_| Sha256::new());
        Ok(())
    }
}

/// The rest of a file, from a byte on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest<'a> {
    pub(crate) from: u64,
    /// Of which version of the file.
    pub(crate) version: &'a str,
}

/// What a server has for us.
pub(crate) enum Opened {
    RemoteBody(RemoteBody),
    /// There is no more: all of the file is here.
    Complete,
    /// It has another version now.
    Changed,
}

/// A file, or the rest of it, that begins to arrive.
pub(crate) struct RemoteBody {
    /// Number of its first byte.
    pub(crate) start: u64,
    /// Bytes of the whole file.
    pub(crate) total: Option<u64>,
    /// Tells whether the server still has the same file (an entity tag or a time).
    pub(crate) version: Option<String>,
    pub(crate) body: Box<dyn Read>,
}

/// What to download.
pub(crate) struct Download<'a> {
    /// The address, also the name under which an incomplete download is kept.
    pub(crate) name: &'a str,
    pub(crate) destination: &'a Path,
    /// Whether the SHA-256 is computed on the way.
    pub(crate) hash: bool,
    pub(crate) cancel: &'a Cancel,
}

impl Downloads {
    /// Downloads a file. `open` asks for it, or for the rest of it; it is called again for each connection.
    pub(crate) fn fetch(
        &self,
        download: &Download<'_>,
        open: &dyn Fn(Option<Rest<'_>>) -> Result<Opened, TransferError>,
    ) -> Result<Done, TransferError> {
        let key = (download.name.to_owned(), download.destination.to_owned());
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let mut partial = match kept {
            Some(partial) => partial,
            None => Partial::new(download.destination, download.hash)?,
        };
        let mut resumes = 0;
        loop {
            let before = partial.have;
            let error = match connection(&mut partial, download, open) {
                Ok(()) => break,
                Err(error) => error,
            };
            if download.cancel.is_cancelled() {
                return Err(TransferError::Cancelled);
            }
            let resumable = partial.version.is_some() && partial.have > 0;
            if resumable && partial.have > before && error.retry() == Retry::Later && resumes < MAX_RESUMES {
                resumes += 1;
                continue;
            }
            if resumable && error.retry() != Retry::Never {
                self.0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(key, partial);
            }
            return Err(error);
        }
        let path = partial.incoming.publish()?;
        Ok(Done {
            bytes: Some(partial.have),
            sha256: partial.hasher.map(|hasher| hasher.finalize().into()),
            path: Some(path),
        })
    }
}

/// Gets as much as one connection brings. Success means that all of the file is here.
fn connection(
    partial: &mut Partial,
    download: &Download<'_>,
    open: &dyn Fn(Option<Rest<'_>>) -> Result<Opened, TransferError>,
) -> Result<(), TransferError> {
    let version = partial.version.clone().filter(|_| partial.have > 0);
    if version.is_none() && partial.have > 0 {
        partial.restart()?;
    }
    let rest = version.as_deref().map(|version| Rest {
        from: partial.have,
        version,
    });
    let RemoteBody {
        start,
        total,
        version,
        mut body,
    } = match open(rest)? {
        Opened::RemoteBody(arriving) => arriving,
        Opened::Complete => return Ok(()),
        Opened::Changed => {
            partial.restart()?;
            return Err(TransferError::remote(
                "the file on the server has changed",
                Retry::Soon,
            ));
        }
    };
    if start == 0 && partial.have > 0 {
        partial.restart()?;
    }
    // Not what was asked for: once more from the start.
    if start != partial.have {
        partial.restart()?;
        return Err(TransferError::remote(
            "the server sent another part of the file",
            Retry::Soon,
        ));
    }
    if partial.version.is_none() {
        partial.version = version;
    }
    let mut buffer = vec![0; BUFFER_SIZE];
    loop {
        if download.cancel.is_cancelled() {
            return Err(TransferError::Cancelled);
        }
        let read = body.read(&mut buffer).map_err(|error| read_error(&error))?;
        if read == 0 {
            break;
        }
        partial
            .incoming
            .file
            .write_all(&buffer[..read])
            .map_err(|error| TransferError::io("write", partial.incoming.path(), error))?;
        if let Some(hasher) = &mut partial.hasher {
            hasher.update(&buffer[..read]);
        }
        partial.have += read as u64;
    }
    if download.cancel.is_cancelled() {
        return Err(TransferError::Cancelled);
    }
    match total {
        Some(total) if total != partial.have => Err(TransferError::remote(
            format!("only {} of {total} bytes arrived", partial.have),
            Retry::Later,
        )),
        _ => Ok(()),
    }
}

/// Asks a server for a file, with the request that `call` makes, given headers that ask for the rest.
pub(crate) fn open(
    client: &Client,
    rest: Option<Rest<'_>>,
    failure: fn(Response) -> TransferError,
    request: impl FnOnce(Vec<(String, String)>) -> Result<Request<'static>, TransferError>,
) -> Result<Opened, TransferError> {
    let mut headers = Vec::new();
    if let Some(rest) = rest {
        headers.push(("range".to_owned(), format!("bytes={}-", rest.from)));
        headers.push(("if-range".to_owned(), rest.version.to_owned()));
    }
    let response = client.send(&request(headers)?)?;
    let (start, total) = match (response.status, rest) {
        (200, _) => (0, length(&response)),
        // Some servers give parts of whatever they have now.
        (206, Some(rest)) if is_changed(&response, rest.version) => return Ok(Opened::Changed),
        // A part that nobody can tell the place of is one too many.
        (206, Some(_)) => content_range(&response).unwrap_or((u64::MAX, None)),
        (416, Some(rest)) => {
            let total = response
                .header("content-range")
                .and_then(|range| range.strip_prefix("bytes */"));
            let complete = total.is_some_and(|total| total == rest.from.to_string());
            return Ok(if complete {
                Opened::Complete
            } else {
                Opened::Changed
            });
        }
        _ => return Err(failure(response)),
    };
    Ok(Opened::RemoteBody(RemoteBody {
        start,
        total,
        version: version(&response),
        body: Box::new(response.body.into_reader()),
    }))
}

/// Length of the whole file that a 200 announces. An encoded body has another one.
fn length(response: &Response) -> Option<u64> {
    if response.header("transfer-encoding").is_some() {
        return None;
    }
    response.header("content-length")?.trim().parse().ok()
}

/// Start of the part, and length of the whole if known: `bytes 5-9/10`.
fn content_range(response: &Response) -> Option<(u64, Option<u64>)> {
    let (part, total) = response
        .header("content-range")?
        .trim()
        .strip_prefix("bytes ")?
        .split_once('/')?;
    let (start, _) = part.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

/// Whether an answer is of another version than `version`. Those of parts need not tell theirs.
fn is_changed(response: &Response, version: &str) -> bool {
    let header = if version.starts_with('"') {
        "etag"
    } else {
        "last-modified"
    };
    response.header(header).is_some_and(|now| now != version)
}

/// What `If-Range` takes: a strong entity tag, else the time of the last change.
fn version(response: &Response) -> Option<String> {
    let tag = response
        .header("etag")
        .filter(|tag| tag.starts_with('"') && tag.len() > 2);
    tag.or_else(|| response.header("last-modified"))
        .map(str::to_owned)
}
