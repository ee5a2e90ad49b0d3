//! `webdav` and `webdavs`: downloads, uploads, collections, removals.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Access, Answer, Client, Downloads, Payload, Wanted, open, split};
use crate::error::{Retry, TransferError};
use crate::local::open_source;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Surroundings;
use crate::spec::Location;
use crate::url::Url;

/// WebDAV. Never through a proxy.
pub(crate) struct Webdav {
    pub(crate) surroundings: Arc<Surroundings>,
    pub(crate) client: Arc<Client>,
    pub(crate) downloads: Downloads,
    /// Addresses of collections that exist for sure.
    made: Mutex<HashSet<String>>,
}

impl Webdav {
    pub(crate) fn new(surroundings: Arc<Surroundings>, client: Arc<Client>) -> Self {
        Self {
            surroundings,
            client,
            downloads: Downloads::default(),
            made: Mutex::new(HashSet::new()),
        }
    }

    fn access(&self, url: &Url) -> Result<Access, TransferError> {
        let scheme = if url.scheme() == "webdavs" {
            "https"
        } else {
            "http"
        };
        Ok(Access::of(url, scheme, self.surroundings.credentials()?))
    }

    fn one(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        if pair.destination().url.is_local() {
            let access = self.access(&pair.source.url)?;
            let call = |headers| {
                let mut call = access.call("GET");
                call.headers = headers;
                Ok(call)
            };
            let wanted = Wanted {
                name: &access.address,
                destination: &context.path(&pair.destination().url),
                hash: pair.transfer.generate_checksum,
                cancel: context.cancel,
            };
            self.downloads
                .fetch(&wanted, &|rest| open(&self.client, rest, Answer::failure, call))
        } else {
            self.put(context, pair)
        }
    }

    fn put(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let source = context.path(&pair.source.url);
        let (file, meta) = open_source(&source)?;
        if !meta.is_file() {
            return Err(TransferError::SpecialFile(source));
        }
        let access = self.access(&pair.destination().url)?;
        if let Some(parent) = parent(&access.address) {
            self.make_if_possible(&access.at(parent))?;
        }
        let mut call = access.call("PUT");
        call.payload = Payload::File {
            file: &file,
            length: meta.len(),
        };
        let answer = self.client.send(&call)?;
        match answer.status {
            200..=299 => Ok(Done {
                bytes: Some(meta.len()),
                ..Done::default()
            }),
            _ => Err(answer.failure()),
        }
    }

    /// Makes a collection and those above it. One that exists is fine.
    fn make(&self, access: &Access) -> Result<(), TransferError> {
        let made = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made().contains(&access.address) {
            return Ok(());
        }
        let answer = self.client.send(&access.call("MKCOL"))?;
        let answer = match (answer.status, parent(&access.address)) {
            // The one above is missing.
            (409 | 404, Some(above)) => {
                self.make_if_possible(&access.at(above))?;
                self.client.send(&access.call("MKCOL"))?
            }
            _ => answer,
        };
        if !is_there(&answer) {
            return Err(answer.failure());
        }
        made().insert(access.address.clone());
        Ok(())
    }

    /// The same. A refusal may mean that it exists but is not ours to make: what comes next will tell.
    fn make_if_possible(&self, access: &Access) -> Result<(), TransferError> {
        match self.make(access) {
            Err(error) if error.retry() != Retry::Never => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whether an answer to MKCOL says that the collection exists now. 405: something is there already.
fn is_there(answer: &Answer) -> bool {
    matches!(answer.status, 200..=299 | 405)
}

/// Whether the answer to PROPFIND is about a collection.
fn is_collection(xml: &str) -> bool {
    xml.match_indices("collection").any(|(at, word)| {
        xml[..at].ends_with(['<', ':']) && xml[at + word.len()..].starts_with(['/', '>', ' '])
    })
}

/// The collection that an address is in; none for the root.
fn parent(address: &str) -> Option<String> {
    let (scheme, host, path) = split(address)?;
    let path = path.split('?').next()?.trim_end_matches('/');
    let end = path.rfind('/')?;
    (end > 0).then(|| format!("{scheme}://{host}{}/", &path[..end]))
}

impl Handler for Webdav {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!(
            (from, to),
            ("webdav" | "webdavs", "file") | ("file", "webdav" | "webdavs")
        )
    }

    fn manages(&self, scheme: &str) -> bool {
        matches!(scheme, "webdav" | "webdavs")
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn transfer(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        pairs.iter().map(|pair| self.one(context, pair)).collect()
    }

    fn make_directory(&self, _: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        let access = self.access(&place.url)?;
        let collection = format!("{}/", access.address.trim_end_matches('/'));
        self.make(&access.at(collection))
    }

    fn remove(&self, _: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        let path = place.url.path().as_os_str().as_bytes();
        if path
            .split(|byte| *byte == b'/')
            .all(|part| part.is_empty() || part == b".")
        {
            return Err(TransferError::RefusedRemoval(place.url.path().to_owned()));
        }
        let access = self.access(&place.url)?;
        if !recursive {
            // DELETE would take a collection with all in it.
            let mut look = access.call("PROPFIND");
            look.headers.push(("depth".to_owned(), "0".to_owned()));
            let mut answer = self.client.send(&look)?;
            if answer.status == 207 && is_collection(&answer.text()?) {
                return Err(TransferError::IsADirectory(place.url.path().to_owned()));
            }
        }
        let answer = self.client.send(&access.call("DELETE"))?;
        match answer.status {
            200..=299 | 404 | 410 => Ok(()),
            // nginx: a collection without a slash at its end.
            409 | 301 if recursive => {
                let access = access.at(format!("{}/", access.address.trim_end_matches('/')));
                match self.client.send(&access.call("DELETE"))? {
                    answer if matches!(answer.status, 200..=299 | 404 | 410) => Ok(()),
                    answer => Err(answer.failure()),
                }
            }
            _ => Err(answer.failure()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_are_told_from_files() {
        for (xml, expected) in [
            ("<D:resourcetype><D:collection/></D:resourcetype>", true),
            (
                "<resourcetype><collection xmlns='DAV:'></collection></resourcetype>",
                true,
            ),
            ("<D:href>/my-collection</D:href><D:resourcetype/>", false),
        ] {
            assert_eq!(is_collection(xml), expected, "{xml}");
        }
    }

    #[test]
    fn parents() {
        for (address, expected) in [
            ("http://h/a/b/c", Some("http://h/a/b/")),
            ("http://h/a/b/", Some("http://h/a/")),
            ("http://h/a?b/c", None),
            ("http://h/a/", None),
            ("http://h/", None),
            ("http://h", None),
        ] {
            assert_eq!(parent(address).as_deref(), expected, "{address}");
        }
    }
}
