//! Downloads that resume after an interruption.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::client::{Client, Request, Response, read_error};
use crate::cancel::Cancel;
use crate::error::{Retry, TransferError};
use crate::local::Incoming;
use crate::protocol::{Context, Done, Pair};

/// Maximum resumptions of a download within one attempt. Each must have received some data.
const MAX_RESUMES: u32 = 20;
/// Size of reads, bytes.
const BUFFER_SIZE: usize = 256 << 10;

/// Incomplete downloads of a run, kept so that the next attempt can resume them.
#[derive(Default)]
pub(crate) struct Downloads(Mutex<HashMap<(String, PathBuf), Partial>>);

/// Received part of a file.
struct Partial {
    incoming: Incoming,
    /// Bytes received.
    received: u64,
    /// Version of the file on the server: an entity tag or a time.
    version: Option<String>,
    announced: Option<Announced>,
    hasher: Option<Sha256>,
}

/// What the first answer said of the file. It counts in all attempts of a run: a later answer may call a part
/// the whole file.
struct Announced {
    /// Size of the file, bytes.
    size: u64,
    version: Option<String>,
}

impl Partial {
    fn new(destination: &Path, checksum: bool) -> Result<Self, TransferError> {
        Ok(Self {
            incoming: Incoming::create(destination)?,
            received: 0,
            version: None,
            announced: None,
            hasher: checksum.then(Sha256::new),
        })
    }

    /// Size of the file that the server has announced, bytes.
    fn size(&self) -> Option<u64> {
        self.announced.as_ref().map(|announced| announced.size)
    }

    /// Forgets the data, but not what the server has announced.
    fn restart(&mut self) -> Result<(), TransferError> {
        let Incoming { file, .. } = &mut self.incoming;
        let truncated = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0)));
        truncated.map_err(|error| TransferError::io("write", self.incoming.path(), error))?;
        self.received = 0;
        self.version = None;
        self.hasher = self.hasher.as_ref().map(|_| Sha256::new());
        Ok(())
    }
}

/// Position at which a download resumes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResumePoint<'a> {
    pub(crate) offset: u64,
    /// Expected version of the file.
    pub(crate) version: &'a str,
}

/// Result of a request for a file.
pub(crate) enum Opened {
    Body(RemoteBody),
    /// The file has been received completely.
    Complete,
    /// The server has another version now.
    Changed,
}

/// Data of a file, from its start or from a later position.
pub(crate) struct RemoteBody {
    /// Position of its first byte in the file.
    pub(crate) start: u64,
    /// Size of the whole file, bytes.
    pub(crate) total: Option<u64>,
    /// Version of the file on the server: an entity tag or a time.
    pub(crate) version: Option<String>,
    pub(crate) body: Box<dyn Read>,
}

/// One file to download.
pub(crate) struct Download<'a> {
    /// Address of the file. It identifies an incomplete download.
    address: String,
    destination: PathBuf,
    /// Compute the SHA-256 on the way.
    checksum: bool,
    cancel: &'a Cancel,
}

impl<'a> Download<'a> {
    pub(crate) fn new(context: &Context<'a>, pair: &Pair<'_>, address: String) -> Self {
        Self {
            address,
            destination: context.path(&pair.destination().url),
            checksum: pair.transfer.generate_checksum,
            cancel: context.cancel,
        }
    }
}

impl Downloads {
    /// Downloads a file. `open` requests the file or the rest of it, once for each connection.
    pub(crate) fn fetch(
        &self,
        download: &Download<'_>,
        open: &dyn Fn(Option<ResumePoint<'_>>) -> Result<Opened, TransferError>,
    ) -> Result<Done, TransferError> {
        let key = (download.address.clone(), download.destination.clone());
        let incomplete = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let mut partial = match incomplete {
            Some(partial) => partial,
            None => Partial::new(&download.destination, download.checksum)?,
        };
        let mut resumes = 0;
        loop {
            let previously_received = partial.received;
            let error = match receive(&mut partial, download, open) {
                Ok(()) => break,
                Err(error) => error,
            };
            if download.cancel.is_cancelled() {
                return Err(TransferError::Cancelled);
            }
            let resumable = partial.version.is_some() && partial.received > 0;
            if resumable
                && partial.received > previously_received
                && error.retry() == Retry::Later
                && resumes < MAX_RESUMES
            {
                resumes += 1;
                continue;
            }
            if (resumable || partial.announced.is_some()) && error.retry() != Retry::Never {
                self.0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(key, partial);
            }
            return Err(error);
        }
        let path = partial.incoming.publish()?;
        Ok(Done {
            bytes: Some(partial.received),
            sha256: partial.hasher.map(|hasher| hasher.finalize().into()),
            path: Some(path),
        })
    }
}

/// Receives data over one connection. Returns `Ok` if the file is complete.
fn receive(
    partial: &mut Partial,
    download: &Download<'_>,
    open: &dyn Fn(Option<ResumePoint<'_>>) -> Result<Opened, TransferError>,
) -> Result<(), TransferError> {
    let version = partial.version.clone().filter(|_| partial.received > 0);
    if version.is_none() && partial.received > 0 {
        partial.restart()?;
    }
    let resume = version.as_deref().map(|version| ResumePoint {
        offset: partial.received,
        version,
    });
    let RemoteBody {
        start,
        total,
        version,
        mut body,
    } = match open(resume)? {
        Opened::Body(arriving) => arriving,
        Opened::Complete => {
            let received = partial.received;
            return check_size(partial, received, None);
        }
        Opened::Changed => {
            partial.restart()?;
            return Err(TransferError::remote(
                "the file on the server has changed",
                Retry::Soon,
            ));
        }
    };
    if start == 0 && partial.received > 0 {
        partial.restart()?;
    }
    // The server ignored the requested range.
    if start != partial.received {
        partial.restart()?;
        return Err(TransferError::remote(
            "the server sent another range than requested",
            Retry::Soon,
        ));
    }
    if let Some(total) = total {
        // A range has the version of what came before it.
        let version = version.as_deref().filter(|_| start == 0);
        check_size(partial, total, version)?;
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
        partial.received += read as u64;
        if let Some(total) = partial.size().filter(|size| partial.received > *size) {
            partial.restart()?;
            return Err(TransferError::remote(
                format!("more than the {total} bytes of the file arrived"),
                Retry::Soon,
            ));
        }
    }
    if download.cancel.is_cancelled() {
        return Err(TransferError::Cancelled);
    }
    // The first answer counts: a later one may announce less.
    match partial.size() {
        Some(total) if total != partial.received => Err(TransferError::remote(
            format!("only {} of {total} bytes arrived", partial.received),
            Retry::Later,
        )),
        _ => Ok(()),
    }
}

/// Remembers the size of the file, or checks that it is the one that the server has announced before, unless
/// the answer names another version of the file than that one.
fn check_size(partial: &mut Partial, size: u64, version: Option<&str>) -> Result<(), TransferError> {
    let before = partial.announced.as_ref();
    let is_other = |then: &str, now: &str| then.starts_with('"') == now.starts_with('"') && then != now;
    let before = before.filter(|before| {
        let versions = before.version.as_deref().zip(version);
        !versions.is_some_and(|(then, now)| is_other(then, now))
    });
    match before.map(|before| before.size) {
        Some(announced) if announced != size => {
            partial.restart()?;
            Err(TransferError::remote(
                format!("the server has announced {announced} bytes, and now says that the file has {size}"),
                Retry::Soon,
            ))
        }
        Some(_) => Ok(()),
        None => {
            let version = version.map(str::to_owned);
            partial.announced = Some(Announced { size, version });
            Ok(())
        }
    }
}

/// How kinds of servers are asked for the rest of one version of a file, and say why they refuse.
pub(crate) struct Dialect {
    /// Header with the entity tag of the version.
    pub(crate) if_tag: &'static str,
    /// Header with its time, if it has no tag.
    pub(crate) if_time: &'static str,
    /// Converts an unexpected answer to an error.
    pub(crate) failure: fn(Response) -> TransferError,
}

/// Servers of HTTP and WebDAV: they send the whole file if they have another version.
pub(crate) const HTTP: Dialect = Dialect {
    if_tag: "if-range",
    if_time: "if-range",
    failure: Response::failure,
};

/// Requests a file, or the rest of it. `request` builds the request with the given headers.
pub(crate) fn open_download<'r>(
    client: &Client,
    dialect: &Dialect,
    resume: Option<ResumePoint<'_>>,
    request: impl FnOnce(Vec<(String, String)>) -> Result<Request<'r>, TransferError>,
) -> Result<Opened, TransferError> {
    let mut headers = Vec::new();
    if let Some(resume) = resume {
        headers.push(("range".to_owned(), format!("bytes={}-", resume.offset)));
        let condition = match resume.version.starts_with('"') {
            true => dialect.if_tag,
            false => dialect.if_time,
        };
        headers.push((condition.to_owned(), resume.version.to_owned()));
    }
    let response = client.send(&request(headers)?)?;
    let (start, total) = match (response.status, resume) {
        (200, _) => (0, file_size(&response)),
        // Some servers ignore `If-Range` and send a range of the present version.
        (206, Some(resume)) if is_changed(&response, resume.version) => return Ok(Opened::Changed),
        // A range at an unknown position, or of an unknown file, is useless.
        (206, Some(_)) => match content_range(&response) {
            Some((start, total)) => (start, Some(total)),
            None => (u64::MAX, None),
        },
        (412, Some(_)) => return Ok(Opened::Changed),
        (416, Some(resume)) => {
            let total = response
                .header("content-range")
                .and_then(|range| range.strip_prefix("bytes */"));
            let complete = total.is_some_and(|total| total == resume.offset.to_string());
            return Ok(if complete {
                Opened::Complete
            } else {
                Opened::Changed
            });
        }
        _ => return Err((dialect.failure)(response)),
    };
    Ok(Opened::Body(RemoteBody {
        start,
        total,
        version: version(&response),
        body: Box::new(response.body),
    }))
}

/// Returns the file size announced with status 200. It is not the length of an encoded body.
fn file_size(response: &Response) -> Option<u64> {
    if response.header("transfer-encoding").is_some() {
        return None;
    }
    response.header("content-length")?.trim().parse().ok()
}

/// Returns the start of a range and the size of the file: `bytes 5-9/10`.
fn content_range(response: &Response) -> Option<(u64, u64)> {
    parse_range(response.header("content-range")?)
}

fn parse_range(text: &str) -> Option<(u64, u64)> {
    let (part, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = part.split_once('-')?;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (start, end, total) = (number(start)?, number(end)?, number(total)?);
    (start <= end && end < total).then_some((start, total))
}

/// Returns whether a response has another version. A response with a range may omit its version.
fn is_changed(response: &Response, version: &str) -> bool {
    let header = if version.starts_with('"') {
        "etag"
    } else {
        "last-modified"
    };
    response.header(header).is_some_and(|now| now != version)
}

/// Returns a version for `If-Range`: a strong entity tag, else the modification time.
fn version(response: &Response) -> Option<String> {
    let tag = response
        .header("etag")
        .filter(|tag| tag.starts_with('"') && tag.len() > 2);
    tag.or_else(|| response.header("last-modified"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranges_of_a_known_file_count() {
        assert_eq!(parse_range("bytes 5-9/10"), Some((5, 10)));
        assert_eq!(parse_range(" bytes 0 - 0 / 1 "), Some((0, 1)));
        for text in [
            "bytes 5-9/*",
            "bytes */10",
            "bytes 5-/10",
            "bytes 9-5/10",
            "bytes 5-10/10",
            "5-9/10",
            "bytes 5-9",
            "bytes -5-9/10",
            "bytes 5-9/18446744073709551616",
            "",
        ] {
            assert_eq!(parse_range(text), None, "{text}");
        }
    }
}
