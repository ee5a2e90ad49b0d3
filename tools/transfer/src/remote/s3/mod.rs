//! `s3` and `s3s`: stores that speak the Amazon S3 protocol.
//!
//! A URL is `s3://IDENTITY@SITE/BUCKET/OBJECT`. The credentials file (`PEGASUS_CREDENTIALS_LABEL` for the
//! site label of the location, else `PEGASUS_CREDENTIALS`, else `~/.pegasus/credentials.conf`) has a section
//! `[SITE]` with `endpoint` and optionally `region`, and a section `[IDENTITY@SITE]` with `access_key`,
//! `secret_key` and optionally `session_token`.

mod sign;
mod store;

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::Environment;
use super::credentials::Credentials;
use super::http::{Client, Download, Downloads};
use super::local_side::{open_upload, uploaded};
use super::objects::answers::is_no_bucket;
use super::objects::{Object, PartSize};
use crate::error::{Retry, TransferError};
use crate::protocol::{Context, Done, Handler, Pair};
use crate::spec::Location;
use crate::url::Url;
use sign::Key;
use store::Store;

/// Region used if neither the credentials file nor the endpoint gives one.
const DEFAULT_REGION: &str = "us-east-1";

pub(super) struct S3 {
    environment: Arc<Environment>,
    client: Arc<Client>,
    downloads: Downloads,
    files: Mutex<HashMap<PathBuf, Arc<Credentials>>>,
    /// Region of each known bucket at Amazon.
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
            .or_else(|| self.environment.usual_credentials())
            .ok_or_else(|| {
                TransferError::Credentials(format!(
                    "s3 URLs need the file ~/.pegasus/credentials.conf, or one that {NAME}_{site} or {NAME} names"
                ))
            })?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = files.get(&path) {
            return Ok(Arc::clone(known));
        }
        let read = Arc::new(Credentials::read(&path)?);
        files.insert(path, Arc::clone(&read));
        Ok(read)
    }

    /// Returns the store of a location as configured in the credentials file.
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
        let key = Key {
            id: option(identity, "access_key")?,
            secret: option(identity, "secret_key")?,
            token: credentials.get(identity, "session_token").map(str::to_owned),
        };
        Store::new(&endpoint, region, key)
    }

    /// Returns the store for a bucket. At Amazon, requests must go to the region of the bucket.
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

    fn download(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (bucket, object) = bucket_and_object(&pair.source.url)?;
        let store = self.store(pair.source, bucket)?;
        let proxied = store.is_secure() && pair.attempt == 1;
        let object = Object {
            store: &store,
            client: &self.client,
            cancel: context.cancel,
            bucket,
            name: object,
        };
        let download = Download::new(context, pair, store.address(bucket, object.name));
        self.downloads
            .fetch(&download, &|resume| object.open(resume, proxied))
    }

    fn upload(&self, context: &Context<'_>, source: &Path, place: &Location) -> Result<Done, TransferError> {
        let (file, length) = open_upload(source)?;
        let (bucket, object) = bucket_and_object(&place.url)?;
        let store = self.store(place, bucket)?;
        let object = Object {
            store: &store,
            client: &self.client,
            cancel: context.cancel,
            bucket,
            name: object,
        };
        let put = || object.put(&file, length, self.part);
        match put() {
            Err(error) if is_no_bucket(&error) => {
                store.make_bucket(&self.client, bucket)?;
                put()?;
            }
            other => other?,
        }
        Ok(uploaded(length))
    }

    /// Copies between two objects: inside the store if possible, else through a temporary file.
    fn copy_remote(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (pair.source, pair.destination());
        if source.url.host() == destination.url.host() && source.site == destination.site {
            let (from, to) = (
                bucket_and_object(&source.url)?,
                bucket_and_object(&destination.url)?,
            );
            let store = self.store(destination, to.0)?;
            let copied = match store.copy(&self.client, from, to) {
                Err(error) if is_no_bucket(&error) => {
                    store.make_bucket(&self.client, to.0)?;
                    store.copy(&self.client, from, to)
                }
                other => other,
            };
            // A store refuses to copy very large objects, or objects of another region, in one request.
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
        self.download(
            context,
            &Pair {
                transfer: &fetch,
                ..*pair
            },
        )?;
        let done = self.upload(context, &path, destination);
        drop(fs::remove_file(&path));
        done
    }
}

fn is_too_large(error: &TransferError) -> bool {
    matches!(error, TransferError::Remote { message, .. }
        if message.contains(" InvalidRequest: ") || message.contains(" EntityTooLarge: "))
}

/// Returns the region in `s3.REGION.amazonaws.com` or `s3-REGION.amazonaws.com`.
fn region_of_endpoint(endpoint: &str) -> Option<&str> {
    let host = endpoint.split("://").nth(1)?.trim_end_matches('/');
    let name = host.strip_suffix(".amazonaws.com")?;
    let region = name.strip_prefix("s3.").or_else(|| name.strip_prefix("s3-"))?;
    (!region.is_empty()).then_some(region)
}

/// Splits the path of a URL into bucket and object name. The object name may be empty.
fn split_bucket(url: &Url) -> Result<(&str, &[u8]), TransferError> {
    let path = url.path().as_os_str().as_bytes();
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    let bucket = std::str::from_utf8(&path[..end]).unwrap_or_default();
    if bucket.is_empty() || bucket == "." || bucket == ".." {
        return Err(TransferError::Credentials(format!(
            "{}: the bucket is missing",
            url.shown()
        )));
    }
    Ok((bucket, path.get(end + 1..).unwrap_or_default()))
}

/// Splits the path of a URL into bucket and object name, neither of which may be empty.
fn bucket_and_object(url: &Url) -> Result<(&str, &[u8]), TransferError> {
    let (bucket, object) = split_bucket(url)?;
    if object.is_empty() {
        return Err(TransferError::Credentials(format!(
            "{}: the object name is missing",
            url.shown()
        )));
    }
    Ok((bucket, object))
}

impl Handler for S3 {
    fn transfers(&self, from: &str, to: &str) -> bool {
        let supported = |scheme| scheme == "file" || self.manages(scheme);
        supported(from) && supported(to) && (from, to) != ("file", "file")
    }

    fn manages(&self, scheme: &str) -> bool {
        matches!(scheme, "s3" | "s3s")
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (pair.source, pair.destination());
        if destination.url.is_local() {
            self.download(context, pair)
        } else if source.url.is_local() {
            self.upload(context, &context.path(&source.url), destination)
        } else {
            self.copy_remote(context, pair)
        }
    }

    /// Makes the bucket. An object store has no directories.
    fn make_directory(&self, _: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        let (bucket, _) = split_bucket(&place.url)?;
        self.configured_store(place)?.make_bucket(&self.client, bucket)
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        if !recursive {
            let (bucket, object) = bucket_and_object(&place.url)?;
            return self.store(place, bucket)?.remove(&self.client, bucket, object);
        }
        let (bucket, object) = split_bucket(&place.url)?;
        let store = self.store(place, bucket)?;
        let mut prefix = object.trim_ascii_end().to_vec();
        while prefix.last() == Some(&b'/') {
            prefix.pop();
        }
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        let mut previous = Vec::new();
        loop {
            let names = store.list(&self.client, bucket, &prefix)?;
            if names.is_empty() {
                return Ok(());
            }
            if names == previous {
                return Err(TransferError::remote(
                    "the store still lists removed objects",
                    Retry::Later,
                ));
            }
            for name in &names {
                if context.cancel.is_cancelled() {
                    return Err(TransferError::Cancelled);
                }
                store.remove(&self.client, bucket, name.as_bytes())?;
            }
            previous = names;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_bucket_and_object() {
        let url = |text: &str| Url::parse(text.as_bytes(), &|_| None).expect(text);
        for (text, expected) in [
            ("s3://me@site/bucket/a/b", Some(("bucket", &b"a/b"[..]))),
            ("s3://me@site/bucket/", Some(("bucket", b""))),
            ("s3://me@site/bucket", Some(("bucket", b""))),
            ("s3://me@site/", None),
            ("s3://me@site", None),
            ("s3://me@site/../x", None),
        ] {
            assert_eq!(split_bucket(&url(text)).ok(), expected, "{text}");
        }
        assert!(bucket_and_object(&url("s3://me@site/bucket/")).is_err());
    }

    #[test]
    fn regions_are_read_from_amazon_endpoints() {
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
