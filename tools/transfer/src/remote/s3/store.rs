//! One store with the Amazon S3 protocol.

use super::sign::{self, Key};
use crate::error::{Retry, TransferError};
use crate::remote::http::{Client, Payload, Request, Response, encode};
use crate::remote::objects::answers::{
    all_texts, failure, first_text, is_listing, is_no_bucket, store_error,
};
use crate::remote::objects::{ObjectRequest, ObjectStore, address};

/// A store with the key to use it.
pub(super) struct Store {
    /// `http://host:port`, optionally with a path, without a trailing slash.
    endpoint: String,
    pub(super) region: String,
    key: Key,
}

impl ObjectStore for Store {
    fn sign<'a>(&self, request: ObjectRequest<'a>) -> Result<Request<'a>, TransferError> {
        let mut request = request.at(&self.endpoint)?;
        let body = match request.payload {
            Payload::Bytes(bytes) => bytes,
            _ => b"",
        };
        // TLS protects the body already.
        let body = (!self.is_secure()).then_some(body);
        let signed = sign::headers(&self.key, &self.region, &request, body, chrono::Utc::now());
        request.headers.extend(signed);
        Ok(request)
    }
}

impl Store {
    /// Creates a store. Fails if the endpoint or a part of the key cannot be sent in a request.
    pub(super) fn new(endpoint: &str, region: String, key: Key) -> Result<Self, TransferError> {
        let address = url::Url::parse(endpoint)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let address = address.ok_or_else(|| {
            let name = crate::shown::bytes(endpoint.as_bytes());
            TransferError::Credentials(format!("the endpoint '{name}' is not a valid address"))
        })?;
        for (name, value) in [
            ("access_key", Some(&key.id)),
            ("session_token", key.token.as_ref()),
            ("region", Some(&region)),
        ] {
            if value.is_some_and(|value| !value.bytes().all(|byte| byte.is_ascii_graphic())) {
                return Err(TransferError::Credentials(format!(
                    "'{name}' in the credentials file has invalid characters"
                )));
            }
        }
        let mut store = Self {
            endpoint: String::new(),
            region,
            key,
        };
        store.set_endpoint(address.as_str());
        Ok(store)
    }

    pub(super) fn set_endpoint(&mut self, address: &str) {
        address.trim_end_matches('/').clone_into(&mut self.endpoint);
    }

    pub(super) fn is_amazon(&self) -> bool {
        self.endpoint.ends_with("amazonaws.com")
    }

    pub(super) fn is_secure(&self) -> bool {
        self.endpoint.starts_with("https:")
    }

    /// Returns the address of an object.
    pub(super) fn address(&self, bucket: &str, object: &[u8]) -> String {
        address(&self.endpoint, bucket, object)
    }

    fn send(&self, client: &Client, request: ObjectRequest<'_>) -> Result<Response, TransferError> {
        let mut request = self.sign(request)?;
        request.proxied = self.is_secure();
        client.send(&request)
    }

    /// Sends a request that must succeed and returns the body of the response.
    fn send_checked(&self, client: &Client, request: ObjectRequest<'_>) -> Result<String, TransferError> {
        let mut response = self.send(client, request)?;
        if !(200..300).contains(&response.status) {
            return Err(failure(response));
        }
        let text = response.text()?;
        // Long operations send the status before they know the result.
        if text.contains("<Error>") {
            return Err(store_error(500, &text));
        }
        Ok(text)
    }

    /// Returns the region of a bucket if the store reports it.
    pub(super) fn region_of(&self, client: &Client, bucket: &str) -> Result<Option<String>, TransferError> {
        let response = self.send(client, ObjectRequest::new("HEAD", bucket, b""))?;
        // The region becomes part of an address.
        let is_safe = |region: &&str| {
            region
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let region = response.header("x-amz-bucket-region").filter(is_safe);
        Ok(region.map(str::to_owned))
    }

    /// Makes a bucket, unless the user already owns it.
    pub(super) fn make_bucket(&self, client: &Client, bucket: &str) -> Result<(), TransferError> {
        let body = if self.region == "us-east-1" {
            String::new()
        } else {
            format!(
                "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                 <LocationConstraint>{}</LocationConstraint></CreateBucketConfiguration>",
                self.region
            )
        };
        let mut request = ObjectRequest::new("PUT", bucket, b"");
        request.body = body.as_bytes();
        let mut response = self.send(client, request)?;
        if (200..300).contains(&response.status) {
            return Ok(());
        }
        let text = response.text()?;
        if first_text(&text, "Code").as_deref() == Some("BucketAlreadyOwnedByYou") {
            return Ok(());
        }
        Err(store_error(response.status, &text))
    }

    /// Copies an object within the store.
    pub(super) fn copy(
        &self,
        client: &Client,
        (bucket, object): (&str, &[u8]),
        (to_bucket, to_object): (&str, &[u8]),
    ) -> Result<(), TransferError> {
        let source = format!("/{}/{}", encode(bucket.as_bytes(), false), encode(object, true));
        let mut request = ObjectRequest::new("PUT", to_bucket, to_object);
        request.headers.push(("x-amz-copy-source".to_owned(), source));
        self.send_checked(client, request).map(drop)
    }

    /// Removes an object. A missing object counts as removed.
    pub(super) fn remove(&self, client: &Client, bucket: &str, object: &[u8]) -> Result<(), TransferError> {
        let response = self.send(client, ObjectRequest::new("DELETE", bucket, object))?;
        match response.status {
            200..=299 | 404 => Ok(()),
            _ => Err(failure(response)),
        }
    }

    /// Lists up to 1,000 object names that start with `prefix`.
    pub(super) fn list(
        &self,
        client: &Client,
        bucket: &str,
        prefix: &[u8],
    ) -> Result<Vec<String>, TransferError> {
        let prefix = String::from_utf8_lossy(prefix);
        let mut request = ObjectRequest::new("GET", bucket, b"");
        request.query = vec![("list-type", "2"), ("prefix", &prefix)];
        let mut response = self.send(client, request)?;
        match response.status {
            200 => {
                let text = response.text()?;
                if is_listing(&text) {
                    return Ok(all_texts(&text, "Key"));
                }
                let what = format!("the answer of {} is no list of objects", self.endpoint);
                Err(TransferError::remote(what, Retry::Later))
            }
            _ => match failure(response) {
                missing if is_no_bucket(&missing) => Ok(Vec::new()),
                error => Err(error),
            },
        }
    }
}
