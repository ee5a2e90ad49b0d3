//! A store that speaks the protocol of Amazon S3. What one object needs is the library's work; requests that
//! concern buckets, or objects of several, are made here and signed by the library.

use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequestBody;
use object_store::path::Path;

use crate::error::{Retry, TransferError};
use crate::remote::http::{Client, Response, encode};
use crate::remote::objects::{
    ClientAdapter, check_address, join_directory, retry_config, split_name, to_request,
};

/// A store, and who we are there.
pub(super) struct Store {
    /// `http://host:port`, perhaps with a path; without a slash at the end.
    endpoint: String,
    pub(super) region: String,
    key: AwsCredential,
}

/// A request that is made here.
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
    /// Fails if something cannot be part of a request.
    pub(super) fn new(endpoint: &str, region: String, key: AwsCredential) -> Result<Self, TransferError> {
        let address = url::Url::parse(endpoint)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let address = address.ok_or_else(|| {
            let name = crate::shown::bytes(endpoint.as_bytes());
            TransferError::Credentials(format!("the endpoint '{name}' is not an address"))
        })?;
        for (name, value) in [
            ("access_key", Some(&key.key_id)),
            ("session_token", key.token.as_ref()),
            ("region", Some(&region)),
        ] {
            if value.is_some_and(|value| !value.bytes().all(|byte| byte.is_ascii_graphic())) {
                return Err(TransferError::Credentials(format!(
                    "the '{name}' in the credentials file has characters that it cannot have"
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

    /// The address of an object.
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

    /// The library's store for an object, and the name of the object in it.
    pub(super) fn library(
        &self,
        adapter: &ClientAdapter,
        (bucket, object): (&str, &[u8]),
        in_parts: bool,
    ) -> Result<(AmazonS3, Path), TransferError> {
        let (directory, path) = split_name(object)?;
        let root = join_directory(&self.bucket(bucket), directory);
        check_address(&root)?;
        let mut builder = AmazonS3Builder::new()
            // So the endpoint is taken as the address of the bucket.
            .with_virtual_hosted_style_request(true)
            .with_endpoint(root)
            .with_bucket_name(bucket)
            .with_region(&self.region)
            .with_access_key_id(&self.key.key_id)
            .with_secret_access_key(&self.key.secret_key)
            // A connection that is encrypted protects the data.
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
            TransferError::remote(format!("'{name}' cannot be asked for"), Retry::Never)
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

    /// Sends a request that must succeed; returns the body of the answer.
    fn send_checked(&self, client: &Client, request: StoreRequest<'_>) -> Result<String, TransferError> {
        let mut response = self.send(client, request)?;
        if !(200..300).contains(&response.status) {
            return Err(failure(response));
        }
        let text = response.text()?;
        // Long operations start to answer before they know how they end.
        if text.contains("<Error>") {
            return Err(store_error(500, &text));
        }
        Ok(text)
    }

    /// The region of a bucket, if the store tells.
    pub(super) fn region_of(&self, client: &Client, bucket: &str) -> Result<Option<String>, TransferError> {
        let response = self.send(client, StoreRequest::new("HEAD", bucket, b""))?;
        // It becomes part of an address.
        let plain = |region: &&str| {
            region
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let region = response.header("x-amz-bucket-region").filter(plain);
        Ok(region.map(str::to_owned))
    }

    /// Makes a bucket; one that is already ours is fine.
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
        if first(&text, "Code").as_deref() == Some("BucketAlreadyOwnedByYou") {
            return Ok(());
        }
        Err(store_error(response.status, &text))
    }

    /// Copies within the store.
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

    /// Removes an object; none is fine.
    pub(super) fn remove(&self, client: &Client, bucket: &str, object: &[u8]) -> Result<(), TransferError> {
        let response = self.send(client, StoreRequest::new("DELETE", bucket, object))?;
        match response.status {
            200..=299 | 404 => Ok(()),
            _ => Err(failure(response)),
        }
    }

    /// Names of up to 1,000 objects that start with `prefix`.
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
            200 => Ok(all(&response.text()?, "Key")),
            404 => Ok(Vec::new()),
            _ => Err(failure(response)),
        }
    }
}

/// The failure that an answer is: the code and message of the store, if it gives some.
pub(in crate::remote) fn failure(mut response: Response) -> TransferError {
    let text = response.text().unwrap_or_default();
    if first(&text, "Code").is_none() {
        return response.failure();
    }
    store_error(response.status, &text)
}

fn store_error(status: u16, text: &str) -> TransferError {
    let code = first(text, "Code").unwrap_or_default();
    let message = first(text, "Message").unwrap_or_default();
    let passing = [
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
    ];
    let retry = if status >= 500 || status == 429 || passing.contains(&code.as_str()) {
        Retry::Later
    } else {
        Retry::Never
    };
    let shown = crate::shown::bytes(message.as_bytes()).to_string();
    TransferError::remote(format!("the store answered {status} {code}: {shown}"), retry)
}

/// Whether a failure says that the bucket does not exist.
pub(super) fn is_no_bucket(error: &TransferError) -> bool {
    matches!(error, TransferError::Remote { message, .. } if message.contains(" NoSuchBucket: "))
}

/// The text of the first element of a name.
fn first(xml: &str, name: &str) -> Option<String> {
    all(xml, name).into_iter().next()
}

/// The texts of all elements of a name. Nothing of what cannot be read.
fn all(xml: &str, name: &str) -> Vec<String> {
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
    fn texts_of_elements() {
        let xml =
            "<?xml version=\"1.0\"?><a xmlns=\"x\"><Key>a&amp;b&#33;</Key><b><Key>c d</Key></b><Key/></a>";
        assert_eq!(all(xml, "Key"), ["a&b!", "c d"]);
        assert_eq!(all("<Key>broken", "Key"), [""; 0]);
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
