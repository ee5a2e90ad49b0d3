//! `gs`: Google Cloud Storage.
//!
//! The key of a service account comes from the file `GOOGLE_PKCS12`, or from `gs_service_key_file` in the
//! file `BOTO_CONFIG` (each with `_SITE` for one site). A key in the older format PKCS#12 is refused. Objects
//! travel by the requests that S3 has, too; buckets, copies and listings use the JSON interface.

mod account;

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::Environment;
use super::credentials::{Credentials, MAX_CREDENTIALS};
use super::environment::check_key_file;
use super::http::{Client, Download, Downloads, Payload, Request, encode};
use super::local_side::{open_upload, uploaded};
use super::objects::{Object, ObjectRequest, ObjectStore, PartSize};
use crate::error::{Retry, TransferError};
use crate::protocol::{Context, Done, Handler, Pair};
use crate::spec::Location;
use crate::url::Url;
use account::Account;

const GOOGLE_URL: &str = "https://storage.googleapis.com";

pub(super) struct Gs {
    environment: Arc<Environment>,
    client: Arc<Client>,
    downloads: Downloads,
    /// The service account of each key file.
    accounts: Mutex<HashMap<PathBuf, Arc<Account>>>,
    part: PartSize,
}

/// Google's service or an emulator.
struct Service {
    base_url: String,
    /// `None` for an emulator.
    account: Option<Arc<Account>>,
    project: String,
}

impl Service {
    /// Creates a request to the JSON interface.
    fn request<'a>(&self, method: &'a str, rest: &str) -> Result<Request<'a>, TransferError> {
        let mut request = Request::new(method, format!("{}{rest}", self.base_url));
        self.authorize(&mut request)?;
        Ok(request)
    }

    fn authorize(&self, request: &mut Request<'_>) -> Result<(), TransferError> {
        if let Some(account) = &self.account {
            let token = account
                .token(chrono::Utc::now())
                .map_err(TransferError::Credentials)?;
            request
                .secrets
                .push(("authorization".to_owned(), format!("Bearer {token}")));
        }
        Ok(())
    }
}

impl ObjectStore for Service {
    fn sign<'a>(&self, request: ObjectRequest<'a>) -> Result<Request<'a>, TransferError> {
        let mut request = request.at(&self.base_url)?;
        self.authorize(&mut request)?;
        Ok(request)
    }
}

/// Returns the path of an object in the JSON interface.
fn object_path(bucket: &str, object: &[u8]) -> String {
    let bucket = encode(bucket.as_bytes(), false);
    format!("/storage/v1/b/{bucket}/o/{}", encode(object, false))
}

impl Gs {
    pub(super) fn new(environment: Arc<Environment>, client: Arc<Client>) -> Self {
        let part = PartSize::of(&environment);
        Self {
            environment,
            client,
            downloads: Downloads::default(),
            accounts: Mutex::new(HashMap::new()),
            part,
        }
    }

    fn service(&self, context: &Context<'_>, place: &Location) -> Result<Service, TransferError> {
        if let Some(address) = self.environment.text("STORAGE_EMULATOR_HOST") {
            return Ok(self.emulator(address.trim_end_matches('/')));
        }
        let boto = self.boto_configuration(context, &place.site)?;
        let key = self.key_file(&place.site, &boto)?;
        let file = check_key_file(&key, context.observer)?;
        let text = pmc_files::read_rest(&file, MAX_CREDENTIALS);
        let text = text.map_err(|error| TransferError::io("read", &key, error))?;
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(TransferError::Credentials(format!(
                "{}: not a key in JSON; keys in PKCS#12 are not supported, make one in JSON for the same service \
                 account",
                crate::shown::path(&key)
            )));
        }
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let account = match accounts.get(&key) {
            Some(known) => Arc::clone(known),
            None => {
                let account = Account::parse(&text).map_err(|why| {
                    let why = crate::shown::bytes(why.as_bytes());
                    TransferError::Credentials(format!(
                        "the key of a service account in {} cannot be used: {why}",
                        crate::shown::path(&key)
                    ))
                })?;
                let account = Arc::new(account);
                accounts.insert(key, Arc::clone(&account));
                account
            }
        };
        Ok(Service {
            base_url: GOOGLE_URL.to_owned(),
            project: account.project.clone(),
            account: Some(account),
        })
    }

    fn emulator(&self, address: &str) -> Service {
        let base_url = if address.contains("://") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        let project = self.environment.text("GOOGLE_CLOUD_PROJECT").unwrap_or("test");
        Service {
            base_url,
            account: None,
            project: project.to_owned(),
        }
    }

    /// Returns the content of the file `BOTO_CONFIG`, empty if the variable is not set.
    fn boto_configuration(&self, context: &Context<'_>, site: &str) -> Result<String, TransferError> {
        let Some(path) = self.environment.key_file("BOTO_CONFIG", site, context.observer)? else {
            return Ok(String::new());
        };
        let text = pmc_files::read(&path, MAX_CREDENTIALS);
        let text = text.map_err(|error| TransferError::io("read", &path, error))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the path of the key of a service account.
    fn key_file(&self, site: &str, boto: &str) -> Result<PathBuf, TransferError> {
        let boto = Credentials::parse(boto)
            .map_err(|error| TransferError::Credentials(format!("BOTO_CONFIG, {error}")))?;
        let key = self
            .environment
            .for_site("GOOGLE_PKCS12", site)
            .map(PathBuf::from);
        key.or_else(|| boto.get("Credentials", "gs_service_key_file").map(PathBuf::from))
            .ok_or_else(|| {
                TransferError::Credentials(format!(
                    "gs URLs need the key of a service account: in GOOGLE_PKCS12_{site} or GOOGLE_PKCS12, \
                     or named by BOTO_CONFIG_{site} or BOTO_CONFIG"
                ))
            })
    }

    fn send_json(&self, request: &Request<'_>) -> Result<Value, TransferError> {
        let mut response = self.client.send(request)?;
        if !(200..300).contains(&response.status) {
            return Err(response.failure());
        }
        let text = response.text()?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    fn download(
        &self,
        service: &Service,
        context: &Context<'_>,
        pair: &Pair<'_>,
    ) -> Result<Done, TransferError> {
        let (bucket, object) = bucket_and_object(&pair.source.url)?;
        let address = format!("{}{}", service.base_url, object_path(bucket, object));
        let download = Download::new(context, pair, address);
        let object = self.object(service, context, (bucket, object));
        self.downloads
            .fetch(&download, &|resume| object.open(resume, pair.attempt == 1))
    }

    fn object<'a>(
        &'a self,
        service: &'a Service,
        context: &'a Context<'_>,
        (bucket, name): (&'a str, &'a [u8]),
    ) -> Object<'a> {
        Object {
            store: service,
            client: &self.client,
            cancel: context.cancel,
            bucket,
            name,
        }
    }

    fn upload(
        &self,
        service: &Service,
        context: &Context<'_>,
        source: &Path,
        url: &Url,
    ) -> Result<Done, TransferError> {
        let (file, length) = open_upload(source)?;
        let (bucket, object) = bucket_and_object(url)?;
        let put = || {
            let object = self.object(service, context, (bucket, object));
            object.put(&file, length, self.part)
        };
        match put() {
            Err(TransferError::Remote { message, .. }) if message.contains(" 404 ") => {
                self.make_bucket(service, bucket)?;
                put()?;
            }
            other => other?,
        }
        Ok(uploaded(length))
    }

    fn copy_remote(&self, service: &Service, from: &Url, to: &Url) -> Result<Done, TransferError> {
        let (from, to) = (bucket_and_object(from)?, bucket_and_object(to)?);
        let path = format!(
            "{}/rewriteTo/b/{}/o/{}",
            object_path(from.0, from.1),
            encode(to.0.as_bytes(), false),
            encode(to.1, false)
        );
        let mut token: Option<String> = None;
        loop {
            let path = match &token {
                Some(token) => format!("{path}?rewriteToken={}", encode(token.as_bytes(), false)),
                None => path.clone(),
            };
            let mut request = service.request("POST", &path)?;
            request
                .headers
                .push(("content-type".to_owned(), "application/json".to_owned()));
            request.payload = Payload::Bytes(b"{}");
            let response = self.send_json(&request)?;
            match response["rewriteToken"].as_str() {
                Some(next) if response["done"] != Value::Bool(true) => token = Some(next.to_owned()),
                _ => return Ok(Done::default()),
            }
        }
    }

    fn make_bucket(&self, service: &Service, bucket: &str) -> Result<(), TransferError> {
        let path = format!(
            "/storage/v1/b?project={}",
            encode(service.project.as_bytes(), false)
        );
        let mut request = service.request("POST", &path)?;
        request
            .headers
            .push(("content-type".to_owned(), "application/json".to_owned()));
        let body = serde_json::json!({ "name": bucket }).to_string();
        request.payload = Payload::Bytes(body.as_bytes());
        let response = self.client.send(&request)?;
        match response.status {
            // 409: the bucket exists. If it belongs to somebody else, the next request fails.
            200..=299 | 409 => Ok(()),
            _ => Err(response.failure()),
        }
    }

    fn delete_object(&self, service: &Service, bucket: &str, object: &[u8]) -> Result<(), TransferError> {
        let request = service.request("DELETE", &object_path(bucket, object))?;
        let response = self.client.send(&request)?;
        match response.status {
            200..=299 | 404 => Ok(()),
            _ => Err(response.failure()),
        }
    }

    /// Removes all objects whose names start with `prefix`.
    fn delete_prefix(
        &self,
        service: &Service,
        context: &Context<'_>,
        bucket: &str,
        prefix: &str,
    ) -> Result<(), TransferError> {
        let mut page: Option<String> = None;
        loop {
            let mut path = format!(
                "/storage/v1/b/{}/o?prefix={}",
                encode(bucket.as_bytes(), false),
                encode(prefix.as_bytes(), false)
            );
            if let Some(page) = &page {
                path.push_str(&format!("&pageToken={}", encode(page.as_bytes(), false)));
            }
            let list = match self.send_json(&service.request("GET", &path)?) {
                Err(TransferError::Remote { message, .. }) if message.contains(" 404 ") => return Ok(()),
                other => other?,
            };
            if list["kind"].as_str() != Some("storage#objects") && !list["items"].is_array() {
                let what = "the answer of the service is no list of objects";
                return Err(TransferError::remote(what, Retry::Later));
            }
            let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            for name in items.iter().filter_map(|item| item["name"].as_str()) {
                if context.cancel.is_cancelled() {
                    return Err(TransferError::Cancelled);
                }
                self.delete_object(service, bucket, name.as_bytes())?;
            }
            match list["nextPageToken"].as_str() {
                Some(next) => page = Some(next.to_owned()),
                None => return Ok(()),
            }
        }
    }
}

/// Splits a URL into bucket and object name.
fn bucket_and_object(url: &Url) -> Result<(&str, &[u8]), TransferError> {
    let object = url.path().as_os_str().as_bytes();
    let object = object.strip_prefix(b"/").unwrap_or(object);
    if url.host().is_empty() || object.is_empty() {
        return Err(TransferError::Credentials(format!(
            "{}: gs://BUCKET/OBJECT is needed",
            url.shown()
        )));
    }
    Ok((url.host(), object))
}

impl Handler for Gs {
    fn transfers(&self, from: &str, to: &str) -> bool {
        matches!((from, to), ("file", "gs") | ("gs", "file" | "gs"))
    }

    fn manages(&self, scheme: &str) -> bool {
        scheme == "gs"
    }

    fn transfer(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (pair.source, pair.destination());
        let remote = if source.url.is_local() {
            destination
        } else {
            source
        };
        let service = self.service(context, remote)?;
        if destination.url.is_local() {
            self.download(&service, context, pair)
        } else if source.url.is_local() {
            self.upload(&service, context, &context.path(&source.url), &destination.url)
        } else {
            self.copy_remote(&service, &source.url, &destination.url)
        }
    }

    /// Makes the bucket. An object store has no directories.
    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        let service = self.service(context, place)?;
        self.make_bucket(&service, place.url.host())
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        let (bucket, name) = bucket_and_object(&place.url)?;
        let service = self.service(context, place)?;
        self.delete_object(&service, bucket, name)?;
        if !recursive {
            return Ok(());
        }
        let name = String::from_utf8_lossy(name);
        let prefix = format!("{}/", name.trim_end_matches('/'));
        self.delete_prefix(&service, context, bucket, &prefix)
    }
}
