//! `s3` and `s3s`: stores that speak the protocol of Amazon S3.
//!
//! A URL is `s3://IDENTITY@SITE/BUCKET/OBJECT`. The credentials file (`PEGASUS_CREDENTIALS`, or that of the site
//! label) has a section `[SITE]` with the `endpoint` and perhaps the `region`, and a section `[IDENTITY@SITE]` with
//! `access_key`, `secret_key` and perhaps `session_token`.

mod store;

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use object_store::aws::AwsCredential;

use super::Environment;
use super::credentials::Credentials;
use super::http::{Client, Download, Downloads};
use super::objects::{ClientAdapter, PartSize};
use crate::error::{Retry, TransferError};
use crate::local::open_source;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::spec::Location;
use crate::url::Url;
use store::Store;

pub(super) use store::failure;

/// Region of stores that have none.
const DEFAULT_REGION: &str = "us-east-1";

pub(super) struct S3 {
    environment: Arc<Environment>,
    client: Arc<Client>,
    downloads: Downloads,
    files: Mutex<HashMap<PathBuf, Arc<Credentials>>>,
    /// Regions of buckets at Amazon.
    regions: Mutex<HashMap<String, String>>,
    part: PartSize,
}

impl S3 {
    pub(super) fn new(environment: Arc<Environment>, client: Arc<Client>) -> Self {
        let part = PartSize::of(&environment);
        Self {
            environment,
            client,
            downloads: Downloads::default(),
            files: Mutex::new(HashMap::new()),
            regions: Mutex::new(HashMap::new()),
            part,
        }
    }

    fn credentials(&self, site: &str) -> Result<Arc<Credentials>, TransferError> {
        const NAME: &str = "PEGASUS_CREDENTIALS";
        let path = self
            .environment
            .for_site(NAME, site)
            .map(PathBuf::from)
            .ok_or_else(|| {
                TransferError::Credentials(format!("s3 URLs need {NAME}_{site} or {NAME}, which is not set"))
            })?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = files.get(&path) {
            return Ok(Arc::clone(known));
        }
        let read = Arc::new(Credentials::read(&path).map_err(TransferError::Credentials)?);
        files.insert(path, Arc::clone(&read));
        Ok(read)
    }

    /// The store of a place, as the credentials file describes it.
    fn configured_store(&self, place: &Location) -> Result<Store, TransferError> {
        let identity = place.url.host();
        let Some((_, site)) = identity.split_once('@') else {
            return Err(TransferError::Credentials(format!(
                "{}: s3://IDENTITY@SITE/BUCKET/OBJECT is needed",
                place.url.shown()
            )));
        };
        let credentials = self.credentials(&place.site)?;
        let option = |section: &str, name: &str| {
            credentials.get(section, name).map(str::to_owned).ok_or_else(|| {
                TransferError::Credentials(format!(
                    "the credentials file has no '{name}' in a section [{section}]"
                ))
            })
        };
        let endpoint = option(site, "endpoint")?;
        let region = match credentials.get(site, "region") {
            Some(region) => region.to_owned(),
            None => region_of_endpoint(&endpoint).unwrap_or(DEFAULT_REGION).to_owned(),
        };
        let key = AwsCredential {
            key_id: option(identity, "access_key")?,
            secret_key: option(identity, "secret_key")?,
            token: credentials.get(identity, "session_token").map(str::to_owned),
        };
        Store::new(&endpoint, region, key)
    }

    /// The same, for a bucket: at Amazon, requests must go to the region of the bucket.
    fn store(&self, place: &Location, bucket: &str) -> Result<Store, TransferError> {
        let mut store = self.configured_store(place)?;
        if !store.is_amazon() {
            return Ok(store);
        }
        let regions = || self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = regions().get(bucket).cloned();
        let region = match known {
            Some(region) => region,
            None => {
                let reported = store.region_of(&self.client, bucket)?;
                let region = reported.unwrap_or_else(|| store.region.clone());
                regions().insert(bucket.to_owned(), region.clone());
                region
            }
        };
        if region != store.region {
            store.set_endpoint(&format!("https://s3.{region}.amazonaws.com"));
            store.region = region;
        }
        Ok(store)
    }

    fn transfer_one(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (pair.source, pair.destination());
        if destination.url.is_local() {
            self.get(context, pair)
        } else if source.url.is_local() {
            self.put(context, &context.path(&source.url), destination)
        } else {
            self.copy_remote(context, pair)
        }
    }

    fn get(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (bucket, object) = object(&pair.source.url)?;
        let store = self.store(pair.source, bucket)?;
        let proxied = store.is_secure() && pair.attempt == 1;
        let adapter = ClientAdapter::new(&self.client, context.cancel).through_proxy(proxied);
        let (library, path) = store.library(&adapter, (bucket, object), false)?;
        let download = Download {
            name: &store.address(bucket, object),
            destination: &context.path(&pair.destination().url),
            hash: pair.transfer.generate_checksum,
            cancel: context.cancel,
        };
        self.downloads
            .fetch(&download, &|rest| adapter.open(&library, &path, rest))
    }

    fn put(&self, context: &Context<'_>, source: &Path, place: &Location) -> Result<Done, TransferError> {
        let (file, meta) = open_source(source)?;
        if !meta.is_file() {
            return Err(TransferError::SpecialFile(source.to_owned()));
        }
        let (bucket, object) = object(&place.url)?;
        let store = self.store(place, bucket)?;
        let adapter = ClientAdapter::new(&self.client, context.cancel);
        let in_parts = self.part.is_less_than(meta.len());
        let (library, path) = store.library(&adapter, (bucket, object), in_parts)?;
        let put = || adapter.put(&library, &path, (&file, meta.len()), self.part);
        match put() {
            Err(error) if store::is_no_bucket(&error) => {
                store.make_bucket(&self.client, bucket)?;
                put()?;
            }
            other => other?,
        }
        Ok(Done {
            bytes: Some(meta.len()),
            ..Done::default()
        })
    }

    /// Within one store by the store itself, else through a temporary file.
    fn copy_remote(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (pair.source, pair.destination());
        if source.url.host() == destination.url.host() && source.site == destination.site {
            let (from, to) = (object(&source.url)?, object(&destination.url)?);
            let store = self.store(destination, to.0)?;
            let copied = match store.copy(&self.client, from, to) {
                Err(error) if store::is_no_bucket(&error) => {
                    store.make_bucket(&self.client, to.0)?;
                    store.copy(&self.client, from, to)
                }
                other => other,
            };
            // Stores do not copy very large objects, nor from other regions, at one go.
            match copied {
                Ok(()) => return Ok(Done::default()),
                Err(error) if !is_too_large(&error) => return Err(error),
                Err(_) => {}
            }
        }
        let directory = tempfile::Builder::new()
            .prefix("pegasus-transfer-")
            .tempdir_in(context.temporary)
            .map_err(|error| TransferError::io("create a directory in", context.temporary, error))?;
        let path = directory.path().join("data");
        let mut fetch = pair.transfer.clone();
        fetch.destination.url = Url::file(path.clone());
        self.get(
            context,
            &Pair {
                transfer: &fetch,
                ..*pair
            },
        )?;
        let done = self.put(context, &path, destination);
        drop(fs::remove_file(&path));
        done
    }
}

fn is_too_large(error: &TransferError) -> bool {
    matches!(error, TransferError::Remote { message, .. }
        if message.contains(" InvalidRequest: ") || message.contains(" EntityTooLarge: "))
}

/// `s3.REGION.amazonaws.com` and `s3-REGION.amazonaws.com`.
fn region_of_endpoint(endpoint: &str) -> Option<&str> {
    let host = endpoint.split("://").nth(1)?.trim_end_matches('/');
    let name = host.strip_suffix(".amazonaws.com")?;
    let region = name.strip_prefix("s3.").or_else(|| name.strip_prefix("s3-"))?;
    (!region.is_empty()).then_some(region)
}

/// Bucket and name of the object that a URL names; the latter may be empty.
fn parts(url: &Url) -> Result<(&str, &[u8]), TransferError> {
    let path = url.path().as_os_str().as_bytes();
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    let bucket = std::str::from_utf8(&path[..end]).unwrap_or_default();
    if bucket.is_empty() || bucket == "." || bucket == ".." {
        return Err(TransferError::Credentials(format!(
            "{}: there is no bucket",
            url.shown()
        )));
    }
    Ok((bucket, path.get(end + 1..).unwrap_or_default()))
}

/// The same; the name must not be empty.
fn object(url: &Url) -> Result<(&str, &[u8]), TransferError> {
    let (bucket, object) = parts(url)?;
    if object.is_empty() {
        return Err(TransferError::Credentials(format!(
            "{}: there is no name of an object",
            url.shown()
        )));
    }
    Ok((bucket, object))
}

impl Handler for S3 {
    fn transfers(&self, from: &str, to: &str) -> bool {
        let here = |scheme| scheme == "file" || self.manages(scheme);
        here(from) && here(to) && (from, to) != ("file", "file")
    }

    fn manages(&self, scheme: &str) -> bool {
        matches!(scheme, "s3" | "s3s")
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn transfer(&self, context: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        pairs
            .iter()
            .map(|pair| self.transfer_one(context, pair))
            .collect()
    }

    /// Makes the bucket; there are no directories.
    fn make_directory(&self, _: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        let (bucket, _) = parts(&place.url)?;
        self.configured_store(place)?.make_bucket(&self.client, bucket)
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        if !recursive {
            let (bucket, object) = object(&place.url)?;
            return self.store(place, bucket)?.remove(&self.client, bucket, object);
        }
        let (bucket, object) = parts(&place.url)?;
        let store = self.store(place, bucket)?;
        let mut prefix = object.trim_ascii_end().to_vec();
        while prefix.last() == Some(&b'/') {
            prefix.pop();
        }
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        let mut before = Vec::new();
        loop {
            let names = store.list(&self.client, bucket, &prefix)?;
            if names.is_empty() {
                return Ok(());
            }
            if names == before {
                return Err(TransferError::remote(
                    "the store still lists what was removed",
                    Retry::Later,
                ));
            }
            for name in &names {
                if context.cancel.is_cancelled() {
                    return Err(TransferError::Cancelled);
                }
                store.remove(&self.client, bucket, name.as_bytes())?;
            }
            before = names;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_and_objects() {
        let url = |text: &str| Url::parse(text.as_bytes(), &|_| None).expect(text);
        for (text, expected) in [
            ("s3://me@site/bucket/a/b", Some(("bucket", &b"a/b"[..]))),
            ("s3://me@site/bucket/", Some(("bucket", b""))),
            ("s3://me@site/bucket", Some(("bucket", b""))),
            ("s3://me@site/", None),
            ("s3://me@site", None),
            ("s3://me@site/../x", None),
        ] {
            assert_eq!(parts(&url(text)).ok(), expected, "{text}");
        }
        assert!(object(&url("s3://me@site/bucket/")).is_err());
    }

    #[test]
    fn regions_of_endpoints() {
        for (endpoint, expected) in [
            ("https://s3.eu-west-1.amazonaws.com/", Some("eu-west-1")),
            ("https://s3-us-west-2.amazonaws.com", Some("us-west-2")),
            ("https://s3.amazonaws.com", None),
            ("http://store:9000", None),
        ] {
            assert_eq!(region_of_endpoint(endpoint), expected, "{endpoint}");
        }
    }
}
