//! `gs`: Google Cloud Storage.
//!
//! With the JSON key of a service account (`GOOGLE_PKCS12`, or `gs_service_key_file` in the file of `BOTO_CONFIG`; each
//! with `_SITE` for a site) this program talks to the service itself: the library gets and puts objects and makes tokens,
//! and what it does not offer (buckets, copies between them, listings as they are) goes over the JSON interface. For keys
//! in the older format PKCS#12 it runs `gsutil`.

mod gsutil;

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use object_store::StaticCredentialProvider;
use object_store::gcp::{
    GcpCredential, GcpCredentialProvider, GoogleCloudStorage, GoogleCloudStorageBuilder,
};
use object_store::path::Path as Name;
use serde_json::Value;

use super::Environment;
use super::credentials::Credentials;
use super::environment::check_key_file;
use super::http::{Client, Download, Downloads, Payload, Request, Response, encode};
use super::objects::{
    ClientAdapter, PartSize, check_address, join_directory, retry_config, runtime, split_name,
};
use crate::error::TransferError;
use crate::local::open_source;
use crate::protocol::{Context, Done, Handler, Pair};
use crate::spec::Location;
use crate::url::Url;
use gsutil::Gsutil;

const SERVICE: &str = "https://storage.googleapis.com";

pub(super) struct Gs {
    environment: Arc<Environment>,
    client: Arc<Client>,
    downloads: Downloads,
    /// What makes tokens, and keeps them; by key file.
    tokens: Mutex<HashMap<PathBuf, GcpCredentialProvider>>,
    part: PartSize,
}

/// How to reach the storage for a site.
enum Backend {
    Service(Service),
    Gsutil(Gsutil),
}

/// The service and what opens it.
struct Service {
    service: String,
    /// None for an emulator.
    credentials: Option<GcpCredentialProvider>,
    project: String,
}

impl Service {
    /// A request over the JSON interface.
    fn request<'a>(
        &self,
        adapter: &ClientAdapter,
        method: &'a str,
        rest: &str,
    ) -> Result<Request<'a>, TransferError> {
        let mut request = Request::new(method, format!("{}{rest}", self.service));
        if let Some(credentials) = &self.credentials {
            let token = adapter.run(&runtime()?, credentials.get_credential())?;
            request
                .secrets
                .push(("authorization".to_owned(), format!("Bearer {}", token.bearer)));
        }
        Ok(request)
    }

    /// The library's store for an object, and the name of the object in it.
    fn library(
        &self,
        adapter: &ClientAdapter,
        (bucket, object): (&str, &[u8]),
        in_parts: bool,
    ) -> Result<(GoogleCloudStorage, Name), TransferError> {
        let (directory, name) = split_name(object)?;
        // The library's bucket is the last directory, and its service all before that.
        let (service, bucket) = match directory {
            None => (self.service.clone(), bucket.to_owned()),
            Some(directory) => {
                let bucket = format!("{}/{}", self.service, encode(bucket.as_bytes(), false));
                let forward_proxy = join_directory(&bucket, Some(directory));
                let last = directory.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                let service = forward_proxy.rsplit_once('/').map_or("", |(service, _)| service);
                (service.to_owned(), String::from_utf8_lossy(last).into_owned())
            }
        };
        check_address(&service)?;
        let none = || {
            let bearer = String::new();
            Arc::new(StaticCredentialProvider::new(GcpCredential { bearer })) as GcpCredentialProvider
        };
        let library = GoogleCloudStorageBuilder::new()
            .with_base_url(&service)
            .with_bucket_name(bucket)
            .with_credentials(self.credentials.clone().unwrap_or_else(none))
            .with_retry(retry_config(in_parts))
            .with_http_connector(adapter.clone())
            .build();
        let library = library.map_err(|error| TransferError::Credentials(error.to_string()))?;
        Ok((library, name))
    }
}

/// Who makes tokens with a key, and the project that the key belongs to.
fn token_provider(
    adapter: ClientAdapter,
    key: &Path,
    text: &[u8],
) -> Result<GcpCredentialProvider, TransferError> {
    let unusable = |error: &dyn std::fmt::Display| {
        let why = error.to_string();
        let (key, why) = (crate::shown::path(key), crate::shown::bytes(why.as_bytes()));
        TransferError::Credentials(format!(
            "the key of a service account in {key} cannot be used: {why}"
        ))
    };
    let text = std::str::from_utf8(text).map_err(|error| unusable(&error))?;
    let library = GoogleCloudStorageBuilder::new()
        .with_service_account_key(text)
        .with_bucket_name("any")
        .with_http_connector(adapter)
        .build();
    let library = library.map_err(|error| unusable(&error))?;
    Ok(Arc::clone(library.credentials()))
}

/// The path of an object in the interface.
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
            tokens: Mutex::new(HashMap::new()),
            part,
        }
    }

    fn backend(&self, context: &Context<'_>, place: &Location) -> Result<Backend, TransferError> {
        if let Some(service) = self.environment.text("STORAGE_EMULATOR_HOST") {
            let service = if service.contains("://") {
                service.trim_end_matches('/').to_owned()
            } else {
                format!("http://{}", service.trim_end_matches('/'))
            };
            return Ok(Backend::Service(Service {
                service,
                credentials: None,
                project: self
                    .environment
                    .text("GOOGLE_CLOUD_PROJECT")
                    .unwrap_or("test")
                    .to_owned(),
            }));
        }
        let boto = self
            .environment
            .for_site("BOTO_CONFIG", &place.site)
            .map(PathBuf::from);
        let boto_text = match &boto {
            Some(path) => {
                check_key_file(path, context.observer)?;
                let text = fs::read(path).map_err(|error| TransferError::io("read", path, error))?;
                Some(String::from_utf8_lossy(&text).into_owned())
            }
            None => None,
        };
        let named = match &boto_text {
            Some(text) => Credentials::parse(text)
                .map_err(|(line, message)| {
                    TransferError::Credentials(format!("BOTO_CONFIG, line {line}: {message}"))
                })?
                .get("Credentials", "gs_service_key_file")
                .map(PathBuf::from),
            None => None,
        };
        let key = self
            .environment
            .for_site("GOOGLE_PKCS12", &place.site)
            .map(PathBuf::from)
            .or(named)
            .ok_or_else(|| {
                let site = &place.site;
                TransferError::Credentials(format!(
                    "gs URLs need the key of a service token_provider: in GOOGLE_PKCS12_{site} or GOOGLE_PKCS12, or named by \
                     BOTO_CONFIG_{site} or BOTO_CONFIG"
                ))
            })?;
        check_key_file(&key, context.observer)?;
        let text = fs::read(&key).map_err(|error| TransferError::io("read", &key, error))?;
        if text.trim_ascii_start().first() != Some(&b'{') {
            let boto = boto_text.unwrap_or_default();
            return Gsutil::new(&self.environment, context, &boto, &key).map(Backend::Gsutil);
        }
        let configured_store: Value = serde_json::from_slice(&text)
            .map_err(|error| TransferError::Credentials(format!("{}: {error}", crate::shown::path(&key))))?;
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let credentials = match tokens.get(&key) {
            Some(known) => Arc::clone(known),
            None => {
                let adapter = ClientAdapter::new(&self.client, context.cancel);
                let credentials = token_provider(adapter, &key, &text)?;
                tokens.insert(key, Arc::clone(&credentials));
                credentials
            }
        };
        Ok(Backend::Service(Service {
            service: SERVICE.to_owned(),
            credentials: Some(credentials),
            project: configured_store["project_id"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        }))
    }

    fn send_json(&self, request: &Request<'_>) -> Result<Value, TransferError> {
        let mut response = self.client.send(request)?;
        if !(200..300).contains(&response.status) {
            return Err(failure(response));
        }
        let text = response.text()?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    fn transfer_one(&self, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (source, destination) = (pair.source, pair.destination());
        let remote = if source.url.is_local() {
            destination
        } else {
            source
        };
        let service = match self.backend(context, remote)? {
            Backend::Gsutil(gsutil) => return gsutil.copy(context, pair),
            Backend::Service(service) => service,
        };
        if destination.url.is_local() {
            self.get(&service, context, pair)
        } else if source.url.is_local() {
            self.put(&service, context, &context.path(&source.url), &destination.url)
        } else {
            self.copy_remote(&service, context, &source.url, &destination.url)
        }
    }

    fn get(&self, service: &Service, context: &Context<'_>, pair: &Pair<'_>) -> Result<Done, TransferError> {
        let (bucket, object) = object(&pair.source.url)?;
        let adapter = ClientAdapter::new(&self.client, context.cancel).through_proxy(pair.attempt == 1);
        let (library, path) = service.library(&adapter, (bucket, object), false)?;
        let download = Download {
            name: &format!("{}{}", service.service, object_path(bucket, object)),
            destination: &context.path(&pair.destination().url),
            hash: pair.transfer.generate_checksum,
            cancel: context.cancel,
        };
        self.downloads
            .fetch(&download, &|rest| adapter.open(&library, &path, rest))
    }

    fn put(
        &self,
        service: &Service,
        context: &Context<'_>,
        source: &Path,
        url: &Url,
    ) -> Result<Done, TransferError> {
        let (file, meta) = open_source(source)?;
        if !meta.is_file() {
            return Err(TransferError::SpecialFile(source.to_owned()));
        }
        let (bucket, object) = object(url)?;
        let adapter = ClientAdapter::new(&self.client, context.cancel);
        let (library, path) =
            service.library(&adapter, (bucket, object), self.part.is_less_than(meta.len()))?;
        let put = || adapter.put(&library, &path, (&file, meta.len()), self.part);
        match put() {
            Err(TransferError::Remote { message, .. }) if message.contains(" 404 ") => {
                self.make_bucket(service, &adapter, bucket)?;
                put()?;
            }
            other => other?,
        }
        Ok(Done {
            bytes: Some(meta.len()),
            ..Done::default()
        })
    }

    fn copy_remote(
        &self,
        service: &Service,
        context: &Context<'_>,
        from: &Url,
        to: &Url,
    ) -> Result<Done, TransferError> {
        let adapter = ClientAdapter::new(&self.client, context.cancel);
        let (from, to) = (object(from)?, object(to)?);
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
            let mut request = service.request(&adapter, "POST", &path)?;
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

    fn make_bucket(
        &self,
        service: &Service,
        adapter: &ClientAdapter,
        bucket: &str,
    ) -> Result<(), TransferError> {
        let path = format!(
            "/storage/v1/b?project={}",
            encode(service.project.as_bytes(), false)
        );
        let mut request = service.request(adapter, "POST", &path)?;
        request
            .headers
            .push(("content-type".to_owned(), "application/json".to_owned()));
        let body = serde_json::json!({ "name": bucket }).to_string();
        request.payload = Payload::Bytes(body.as_bytes());
        let response = self.client.send(&request)?;
        match response.status {
            // 409: it exists. If it is another's, the next request will tell.
            200..=299 | 409 => Ok(()),
            _ => Err(failure(response)),
        }
    }

    fn delete(
        &self,
        service: &Service,
        adapter: &ClientAdapter,
        bucket: &str,
        object: &[u8],
    ) -> Result<(), TransferError> {
        let request = service.request(adapter, "DELETE", &object_path(bucket, object))?;
        let response = self.client.send(&request)?;
        match response.status {
            200..=299 | 404 => Ok(()),
            _ => Err(failure(response)),
        }
    }

    /// Removes all objects whose names start with `prefix`.
    fn delete_all(
        &self,
        service: &Service,
        context: &Context<'_>,
        bucket: &str,
        prefix: &str,
    ) -> Result<(), TransferError> {
        let adapter = ClientAdapter::new(&self.client, context.cancel);
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
            let list = match self.send_json(&service.request(&adapter, "GET", &path)?) {
                Err(TransferError::Remote { message, .. }) if message.contains(" 404 ") => return Ok(()),
                other => other?,
            };
            let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            for name in items.iter().filter_map(|item| item["name"].as_str()) {
                if context.cancel.is_cancelled() {
                    return Err(TransferError::Cancelled);
                }
                self.delete(service, &adapter, bucket, name.as_bytes())?;
            }
            match list["nextPageToken"].as_str() {
                Some(next) => page = Some(next.to_owned()),
                None => return Ok(()),
            }
        }
    }
}

/// The failure that an answer is.
fn failure(response: Response) -> TransferError {
    response.failure()
}

/// Bucket and name of the object that a URL names.
fn object(url: &Url) -> Result<(&str, &[u8]), TransferError> {
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
    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        match self.backend(context, place)? {
            Backend::Gsutil(gsutil) => gsutil.make_bucket(context, place.url.host()),
            Backend::Service(service) => {
                let adapter = ClientAdapter::new(&self.client, context.cancel);
                self.make_bucket(&service, &adapter, place.url.host())
            }
        }
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        let (bucket, name) = object(&place.url)?;
        let adapter = ClientAdapter::new(&self.client, context.cancel);
        match self.backend(context, place)? {
            Backend::Gsutil(gsutil) => gsutil.remove(context, place, recursive),
            Backend::Service(service) if recursive => {
                self.delete(&service, &adapter, bucket, name)?;
                let name = String::from_utf8_lossy(name);
                self.delete_all(
                    &service,
                    context,
                    bucket,
                    &format!("{}/", name.trim_end_matches('/')),
                )
            }
            Backend::Service(service) => self.delete(&service, &adapter, bucket, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::cancel::Cancel;
    use crate::remote::http::Timeouts;

    fn adapter() -> ClientAdapter {
        let (environment, cancel) = (Arc::new(Environment::default()), Cancel::new());
        let client = Client::new(environment, Timeouts::default(), cancel.clone());
        ClientAdapter::new(&Arc::new(client), &cancel)
    }

    #[test]
    fn a_key_makes_tokens_without_asking_anybody() {
        // A key of nobody, made for this test.
        let key = serde_json::json!({"client_email": "me@project", "private_key_id": "k",
            "private_key": include_str!("test-key.pem")});
        let credentials =
            token_provider(adapter(), Path::new("key"), key.to_string().as_bytes()).expect("a key");
        let runtime = runtime().expect("a runtime");
        let token = adapter()
            .run(&runtime, credentials.get_credential())
            .expect("a token");
        let parts: Vec<Vec<u8>> = token
            .bearer
            .split('.')
            .map(|part| URL_SAFE_NO_PAD.decode(part).expect("encoded"))
            .collect();
        let claims: Value = serde_json::from_slice(&parts[1]).expect("JSON");
        assert_eq!(claims["iss"], "me@project");
        assert!(claims["scope"].is_string(), "{claims}");
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[2].len(), 256, "an RSA signature of 2,048 bits");
        let again = adapter().run(&runtime, credentials.get_credential());
        assert_eq!(again.expect("a token").bearer, token.bearer, "kept");
    }

    #[test]
    fn any_bucket_and_name_is_an_address_or_refused() {
        let service = Service {
            service: "http://h:1".to_owned(),
            credentials: None,
            project: String::new(),
        };
        for (bucket, object) in [
            ("b", &b"a"[..]),
            ("b", b"d//a"),
            ("b", b"d/"),
            ("a b\n", b"d/e/\xff/a"),
        ] {
            assert!(
                service.library(&adapter(), (bucket, object), false).is_ok(),
                "{bucket}"
            );
        }
        assert!(
            service
                .library(&adapter(), ("b", &[b'a'; 10_000]), false)
                .is_err()
        );
    }
}
