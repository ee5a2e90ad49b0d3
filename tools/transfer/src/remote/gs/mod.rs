//! `gs`: Google Cloud Storage.
//!
//! The key of a service account comes from the file `GOOGLE_PKCS12`, or from `gs_service_key_file` in the
//! file `BOTO_CONFIG` (each with `_SITE` for one site). With a JSON key, `object_store` transfers objects and
//! makes tokens; other requests (buckets, copies, plain listings) use the JSON interface. A key in the
//! older PKCS#12 format is refused.

use std::collections::HashMap;
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
use super::credentials::{Credentials, MAX_CREDENTIALS};
use super::environment::check_key_file;
use super::http::{Client, Download, Downloads, Payload, Request, encode};
use super::local_side::{open_upload, uploaded};
use super::objects::{
    ClientAdapter, PartSize, check_address, join_directory, retry_config, runtime, split_name,
};
use crate::error::{Retry, TransferError};
use crate::protocol::{Context, Done, Handler, Pair};
use crate::spec::Location;
use crate::url::Url;

const GOOGLE_URL: &str = "https://storage.googleapis.com";

pub(super) struct Gs {
    environment: Arc<Environment>,
    client: Arc<Client>,
    downloads: Downloads,
    /// Token provider of each key file. A provider caches its token.
    tokens: Mutex<HashMap<PathBuf, GcpCredentialProvider>>,
    part: PartSize,
}

/// Google's service or an emulator, with credentials.
struct Service {
    base_url: String,
    /// `None` for an emulator.
    credentials: Option<GcpCredentialProvider>,
    project: String,
}

impl Service {
    /// Creates a request to the JSON interface.
    fn request<'a>(
        &self,
        adapter: &ClientAdapter,
        method: &'a str,
        rest: &str,
    ) -> Result<Request<'a>, TransferError> {
        let mut request = Request::new(method, format!("{}{rest}", self.base_url));
        if let Some(credentials) = &self.credentials {
            let token = adapter.run(&runtime()?, credentials.get_credential())?;
            request
                .secrets
                .push(("authorization".to_owned(), format!("Bearer {}", token.bearer)));
        }
        Ok(request)
    }

    /// Returns an `object_store` whose root contains the object, and the name of the object below that root.
    fn object_store(
        &self,
        adapter: &ClientAdapter,
        (bucket, object): (&str, &[u8]),
        in_parts: bool,
    ) -> Result<(GoogleCloudStorage, Name), TransferError> {
        let (directory, name) = split_name(object)?;
        // For `object_store`, the last directory is the bucket and everything before it the service.
        let (service, bucket) = match directory {
            None => (self.base_url.clone(), bucket.to_owned()),
            Some(directory) => {
                let bucket = format!("{}/{}", self.base_url, encode(bucket.as_bytes(), false));
                let root = join_directory(&bucket, Some(directory));
                let last = directory.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                let service = root.rsplit_once('/').map_or("", |(service, _)| service);
                (service.to_owned(), String::from_utf8_lossy(last).into_owned())
            }
        };
        check_address(&service)?;
        let anonymous = || {
            let bearer = String::new();
            Arc::new(StaticCredentialProvider::new(GcpCredential { bearer })) as GcpCredentialProvider
        };
        let store = GoogleCloudStorageBuilder::new()
            .with_base_url(&service)
            .with_bucket_name(bucket)
            .with_credentials(self.credentials.clone().unwrap_or_else(anonymous))
            .with_retry(retry_config(in_parts))
            .with_http_connector(adapter.clone())
            .build();
        let store = store.map_err(|error| TransferError::Credentials(error.to_string()))?;
        Ok((store, name))
    }
}

/// Creates the provider of tokens for the key of a service account.
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
    let store = GoogleCloudStorageBuilder::new()
        .with_service_account_key(text)
        .with_bucket_name("any")
        .with_http_connector(adapter)
        .build();
    let store = store.map_err(|error| unusable(&error))?;
    Ok(Arc::clone(store.credentials()))
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
            tokens: Mutex::new(HashMap::new()),
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
        let account: Value = serde_json::from_slice(&text)
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
        Ok(Service {
            base_url: GOOGLE_URL.to_owned(),
            credentials: Some(credentials),
            project: account["project_id"].as_str().unwrap_or_default().to_owned(),
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
            credentials: None,
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
        let adapter = ClientAdapter::new(&self.client, context.cancel).through_proxy(pair.attempt == 1);
        let (store, path) = service.object_store(&adapter, (bucket, object), false)?;
        let address = format!("{}{}", service.base_url, object_path(bucket, object));
        let download = Download::new(context, pair, address);
        self.downloads
            .fetch(&download, &|resume| adapter.open(&store, &path, resume))
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
        let adapter = ClientAdapter::new(&self.client, context.cancel);
        let (store, path) =
            service.object_store(&adapter, (bucket, object), self.part.is_less_than(length))?;
        let put = || adapter.put(&store, &path, (&file, length), self.part);
        match put() {
            Err(TransferError::Remote { message, .. }) if message.contains(" 404 ") => {
                self.make_bucket(service, &adapter, bucket)?;
                put()?;
            }
            other => other?,
        }
        Ok(uploaded(length))
    }

    fn copy_remote(
        &self,
        service: &Service,
        context: &Context<'_>,
        from: &Url,
        to: &Url,
    ) -> Result<Done, TransferError> {
        let adapter = ClientAdapter::new(&self.client, context.cancel);
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
            // 409: the bucket exists. If it belongs to somebody else, the next request fails.
            200..=299 | 409 => Ok(()),
            _ => Err(response.failure()),
        }
    }

    fn delete_object(
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
            if list["kind"].as_str() != Some("storage#objects") && !list["items"].is_array() {
                let what = "the answer of the service is no list of objects";
                return Err(TransferError::remote(what, Retry::Later));
            }
            let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            for name in items.iter().filter_map(|item| item["name"].as_str()) {
                if context.cancel.is_cancelled() {
                    return Err(TransferError::Cancelled);
                }
                self.delete_object(service, &adapter, bucket, name.as_bytes())?;
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
            self.copy_remote(&service, context, &source.url, &destination.url)
        }
    }

    /// Makes the bucket. An object store has no directories.
    fn make_directory(&self, context: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        let service = self.service(context, place)?;
        let adapter = ClientAdapter::new(&self.client, context.cancel);
        self.make_bucket(&service, &adapter, place.url.host())
    }

    fn remove(&self, context: &Context<'_>, place: &Location, recursive: bool) -> Result<(), TransferError> {
        let (bucket, name) = bucket_and_object(&place.url)?;
        let adapter = ClientAdapter::new(&self.client, context.cancel);
        let service = self.service(context, place)?;
        self.delete_object(&service, &adapter, bucket, name)?;
        if !recursive {
            return Ok(());
        }
        let name = String::from_utf8_lossy(name);
        let prefix = format!("{}/", name.trim_end_matches('/'));
        self.delete_prefix(&service, context, bucket, &prefix)
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
    fn a_key_makes_tokens_without_a_request() {
        // Generated for this test and used nowhere else.
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
        assert_eq!(again.expect("a token").bearer, token.bearer, "cached");
    }

    #[test]
    fn unusual_names_are_addressable_or_refused() {
        let service = Service {
            base_url: "http://h:1".to_owned(),
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
                service.object_store(&adapter(), (bucket, object), false).is_ok(),
                "{bucket}"
            );
        }
        assert!(
            service
                .object_store(&adapter(), ("b", &[b'a'; 10_000]), false)
                .is_err()
        );
    }
}
