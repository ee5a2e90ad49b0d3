//! Handler for `webdav` and `webdavs`: downloads, uploads, collections, removals.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Access, Client, Download, Downloads, HTTP, Payload, Response, open_download, split};
use crate::error::{Retry, TransferError};
use crate::protocol::{Context, Done, Handler, Pair};
use crate::remote::Environment;
use crate::remote::local_side::{open_upload, uploaded};
use crate::spec::Location;
use crate::url::Url;

/// WebDAV handler. It never uses a proxy.
pub(crate) struct Webdav {
    pub(crate) environment: Arc<Environment>,
    pub(crate) client: Arc<Client>,
    pub(crate) downloads: Downloads,
    /// Addresses of collections known to exist.
    existing: Mutex<HashSet<String>>,
}

impl Webdav {
    pub(crate) fn new(environment: Arc<Environment>, client: Arc<Client>) -> Self {
        Self {
            environment,
            client,
            downloads: Downloads::default(),
            existing: Mutex::new(HashSet::new()),
        }
    }

    fn access(&self, url: &Url) -> Result<Access, TransferError> {
        let scheme = if url.scheme() == "webdavs" {
            "https"
        } else {
            "http"
        };
        Ok(Access::of(url, scheme, self.environment.credentials()?))
    }

    fn put(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (file, length) = open_upload(&context.path(&pair.source.url))?;
        let access = self.access(&pair.destination().url)?;
        if let Some(parent) = parent(&access.address) {
            self.make_if_possible(&access.at(parent))?;
        }
        let mut request = access.request("PUT");
        request.payload = Payload::File { file: &file, length };
        let response = self.client.send(&request)?;
        match response.status {
            200..=299 => Ok(uploaded(length)),
            _ => Err(response.failure()),
        }
    }

    /// Makes a collection and its parents, unless they exist.
    fn make(&self, access: &Access) -> Result<(), TransferError> {
        let existing = || self.existing.lock().unwrap_or_else(PoisonError::into_inner);
        if existing().contains(&access.address) {
            return Ok(());
        }
        let response = self.client.send(&access.request("MKCOL"))?;
        let response = match (response.status, parent(&access.address)) {
            // The parent is missing.
            (409 | 404, Some(parent)) => {
                self.make_if_possible(&access.at(parent))?;
                self.client.send(&access.request("MKCOL"))?
            }
            _ => response,
        };
        if !is_success(&response) {
            return Err(response.failure());
        }
        existing().insert(access.address.clone());
        Ok(())
    }

    /// Like [`make`](Self::make), but ignores refusals: an existing collection may not permit MKCOL.
    fn make_if_possible(&self, access: &Access) -> Result<(), TransferError> {
        match self.make(access) {
            Err(error) if error.retry() != Retry::Never => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns whether the collection exists after MKCOL. 405 means that it existed before.
fn is_success(response: &Response) -> bool {
    matches!(response.status, 200..=299 | 405)
}

/// Returns whether a PROPFIND response describes a collection.
fn is_collection(xml: &str) -> bool {
    xml.match_indices("collection").any(|(at, word)| {
        xml[..at].ends_with(['<', ':']) && xml[at + word.len()..].starts_with(['/', '>', ' '])
    })
}

/// Returns the parent collection of an address, `None` for the root.
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

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        if pair.destination().url.is_local() {
            let access = self.access(&pair.source.url)?;
            let request = |headers| {
                let mut request = access.request("GET");
                request.headers = headers;
                Ok(request)
            };
            let download = Download::new(context, pair, access.address.clone());
            self.downloads.fetch(&download, &|resume| {
                open_download(&self.client, &HTTP, resume, request)
            })
        } else {
            self.put(context, pair)
        }
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
            // DELETE removes a collection with its contents.
            let mut query = access.request("PROPFIND");
            query.headers.push(("depth".to_owned(), "0".to_owned()));
            let mut response = self.client.send(&query)?;
            if response.status == 207 && is_collection(&response.text()?) {
                return Err(TransferError::IsADirectory(place.url.path().to_owned()));
            }
        }
        let response = self.client.send(&access.request("DELETE"))?;
        match response.status {
            200..=299 | 404 | 410 => Ok(()),
            // nginx wants a slash after the name of a collection.
            409 | 301 if recursive => {
                let access = access.at(format!("{}/", access.address.trim_end_matches('/')));
                match self.client.send(&access.request("DELETE"))? {
                    response if matches!(response.status, 200..=299 | 404 | 410) => Ok(()),
                    response => Err(response.failure()),
                }
            }
            _ => Err(response.failure()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_differ_from_files() {
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
    fn parents_of_addresses() {
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
