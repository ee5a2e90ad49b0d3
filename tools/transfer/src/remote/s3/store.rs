//! One store with the Amazon S3 protocol.
//!
//! `object_store` downloads and uploads objects. Requests that it does not offer (buckets, plain listings,
//! copies between buckets) are built here and signed by it.

use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequestBody;
use object_store::path::Path;

use crate::error::{Retry, TransferError};
use crate::remote::http::{Client, Response, encode};
use crate::remote::objects::{
    ClientAdapter, check_address, join_directory, retry_config, split_name, to_request,
};

/// A store with the key to use it.
pub(super) struct Store {
    /// `http://host:port`, optionally with a path, without a trailing slash.
    endpoint: String,
    pub(super) region: String,
    key: AwsCredential,
}

/// A request to the store.
pub(super) struct StoreRequest<'a> {
    method: &'a str,
    bucket: &'a str,
    /// Empty for the bucket itself.
    object: &'a [u8],
    query: &'a [(&'a str, &'a str)],
    copy_source: Option<String>,
    body: String,
}

impl<'a> StoreRequest<'a> {
    fn new(method: &'a str, bucket: &'a str, object: &'a [u8]) -> Self {
        Self {
            method,
            bucket,
            object,
            query: &[],
            copy_source: None,
            body: String::new(),
        }
    }
}

impl Store {
    /// Creates a store. Fails if the endpoint or a part of the key cannot be sent in a request.
    pub(super) fn new(endpoint: &str, region: String, key: AwsCredential) -> Result<Self, TransferError> {
        let address = url::Url::parse(endpoint)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let address = address.ok_or_else(|| {
            let name = crate::shown::bytes(endpoint.as_bytes());
            TransferError::Credentials(format!("the endpoint '{name}' is not a valid address"))
        })?;
        for (name, value) in [
            ("access_key", Some(&key.key_id)),
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
        let bucket = self.bucket(bucket);
        if object.is_empty() {
            bucket
        } else {
            format!("{bucket}/{}", encode(object, true))
        }
    }

    fn bucket(&self, bucket: &str) -> String {
        format!("{}/{}", self.endpoint, encode(bucket.as_bytes(), false))
    }

    /// Returns an `object_store` whose root contains the object, and the name of the object below that root.
    pub(super) fn object_store(
        &self,
        adapter: &ClientAdapter,
        (bucket, object): (&str, &[u8]),
        in_parts: bool,
    ) -> Result<(AmazonS3, Path), TransferError> {
        let (directory, path) = split_name(object)?;
        let root = join_directory(&self.bucket(bucket), directory);
        check_address(&root)?;
        let mut builder = AmazonS3Builder::new()
            // Makes the endpoint the address of the bucket.
            .with_virtual_hosted_style_request(true)
            .with_endpoint(root)
            .with_bucket_name(bucket)
            .with_region(&self.region)
            .with_access_key_id(&self.key.key_id)
            .with_secret_access_key(&self.key.secret_key)
            // TLS protects the payload already.
            .with_unsigned_payload(self.is_secure())
            .with_retry(retry_config(in_parts))
            .with_http_connector(adapter.clone());
        if let Some(token) = &self.key.token {
            builder = builder.with_token(token);
        }
        let store = builder.build();
        let store = store.map_err(|error| TransferError::Credentials(error.to_string()))?;
        Ok((store, path))
    }

    fn send(&self, client: &Client, request: StoreRequest<'_>) -> Result<Response, TransferError> {
        let mut address = self.address(request.bucket, request.object);
        for (number, (name, value)) in request.query.iter().enumerate() {
            let mark = if number == 0 { '?' } else { '&' };
            address.push_str(&format!("{mark}{name}={}", encode(value.as_bytes(), false)));
        }
        let mut builder = ureq::http::Request::builder()
            .method(request.method)
            .uri(&address);
        if let Some(source) = request.copy_source {
            builder = builder.header("x-amz-copy-source", source);
        }
        let unusable = || {
            let name = crate::shown::bytes(address.as_bytes());
            TransferError::remote(format!("'{name}' is not a valid address"), Retry::Never)
        };
        check_address(&address)?;
        let signed = builder.body(HttpRequestBody::from(request.body));
        let mut signed = signed.map_err(|_| unusable())?;
        AwsAuthorizer::new(&self.key, "s3", &self.region)
            .try_authorize(&mut signed, None)
            .map_err(|_| unusable())?;
        let (parts, body) = signed.into_parts();
        let mut request = to_request(&parts, body.as_bytes().map_or(&b""[..], |bytes| bytes));
        request.proxied = self.is_secure();
        client.send(&request)
    }

    /// Sends a request that must succeed and returns the body of the response.
    fn send_checked(&self, client: &Client, request: StoreRequest<'_>) -> Result<String, TransferError> {
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
        let response = self.send(client, StoreRequest::new("HEAD", bucket, b""))?;
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
        let mut request = StoreRequest::new("PUT", bucket, b"");
        request.body = body;
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
        let mut request = StoreRequest::new("PUT", to_bucket, to_object);
        request.copy_source = Some(source);
        self.send_checked(client, request).map(drop)
    }

    /// Removes an object. A missing object counts as removed.
    pub(super) fn remove(&self, client: &Client, bucket: &str, object: &[u8]) -> Result<(), TransferError> {
        let response = self.send(client, StoreRequest::new("DELETE", bucket, object))?;
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
        let query = [("list-type", "2"), ("prefix", &*prefix)];
        let mut request = StoreRequest::new("GET", bucket, b"");
        request.query = &query;
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

/// Converts a response to an error with the store's own code and message, if there are any.
pub(in crate::remote) fn failure(mut response: Response) -> TransferError {
    let text = response.text().unwrap_or_default();
    if first_text(&text, "Code").is_none() {
        return response.failure();
    }
    store_error(response.status, &text)
}

fn store_error(status: u16, text: &str) -> TransferError {
    let code = first_text(text, "Code").unwrap_or_default();
    let message = first_text(text, "Message").unwrap_or_default();
    let transient = [
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
    ];
    let retry = if status >= 500 || status == 429 || transient.contains(&code.as_str()) {
        Retry::Later
    } else {
        Retry::Never
    };
    let shown = crate::shown::bytes(message.as_bytes()).to_string();
    TransferError::remote(format!("the store answered {status} {code}: {shown}"), retry)
}

/// Returns whether the store reported a missing bucket.
pub(super) fn is_no_bucket(error: &TransferError) -> bool {
    matches!(error, TransferError::Remote { message, .. } if message.contains(" NoSuchBucket: "))
}

/// Returns the text of the first element `name`.
fn first_text(xml: &str, name: &str) -> Option<String> {
    all_texts(xml, name).into_iter().next()
}

/// Returns whether a text is a complete list of objects. Something else, for example the page of a proxy,
/// must not pass for an empty list: then nothing would be removed.
fn is_listing(xml: &str) -> bool {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(xml);
    let (mut depth, mut is_list) = (0_usize, false);
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => {
                if depth == 0 {
                    is_list = tag.local_name().as_ref() == "ListBucketResult";
                }
                depth += 1;
            }
            Ok(Event::Empty(tag)) if depth == 0 => is_list = tag.local_name().as_ref() == "ListBucketResult",
            // The reader refuses ends without a start.
            Ok(Event::End(_)) => depth = depth.saturating_sub(1),
            Ok(Event::Eof) => return is_list && depth == 0,
            Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// Returns the texts of all elements `name`, up to the first syntax error.
fn all_texts(xml: &str, name: &str) -> Vec<String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(xml);
    let mut found = Vec::new();
    let mut text: Option<String> = None;
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) if tag.local_name().as_ref() == name => text = Some(String::new()),
            Ok(Event::Text(part)) => {
                if let Some(text) = &mut text {
                    text.push_str(&part);
                }
            }
            Ok(Event::GeneralRef(reference)) => {
                if let Some(text) = &mut text {
                    let resolved = match reference.resolve_char_ref() {
                        Ok(Some(c)) => Some(c.to_string()),
                        _ => quick_xml::escape::resolve_xml_entity(&reference).map(str::to_owned),
                    };
                    text.push_str(&resolved.unwrap_or_default());
                }
            }
            Ok(Event::End(tag)) if tag.local_name().as_ref() == name => found.extend(text.take()),
            Ok(Event::Eof) | Err(_) => return found,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_and_names_are_read_from_xml() {
        let xml =
            "<?xml version=\"1.0\"?><a xmlns=\"x\"><Key>a&amp;b&#33;</Key><b><Key>c d</Key></b><Key/></a>";
        assert_eq!(all_texts(xml, "Key"), ["a&b!", "c d"]);
        assert_eq!(all_texts("<Key>broken", "Key"), [""; 0]);
        let list = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Key>a</Key></ListBucketResult>";
        assert!(is_listing(list) && is_listing("<ListBucketResult/>"));
        for other in [
            "",
            "<html/>",
            "<a><ListBucketResult/></a>",
            &list[..list.len() - 3],
            "<ListBucketResult>",
        ] {
            assert!(!is_listing(other), "{other}");
        }
        let slow = "<Error><Code>SlowDown</Code><Message>less</Message></Error>";
        assert_eq!(store_error(503, slow).retry(), Retry::Later);
        assert_eq!(
            store_error(400, slow).to_string(),
            "the store answered 400 SlowDown: less"
        );
        let gone = "<Error><Code>NoSuchBucket</Code></Error>";
        assert!(is_no_bucket(&store_error(404, gone)));
    }
}
