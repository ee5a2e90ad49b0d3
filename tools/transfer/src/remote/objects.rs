//! Objects of stores. S3 and Google Cloud Storage take the same requests about an object; only what proves
//! the right to make them differs. All of them go through [`Client`]: connections, proxies, certificates,
//! timeouts and cancellation are its own.

pub(super) mod answers;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::Environment;
use super::http::{Client, Dialect, Opened, Payload, Request, Response, ResumePoint, encode, open_download};
use crate::cancel::Cancel;
use crate::error::{Retry, TransferError};
use answers::{failure, first_text, store_error};

/// Default size of the parts of an upload, bytes. Smaller files are sent in one request.
/// A part is in memory while it is sent.
const DEFAULT_PART_SIZE: u64 = 16 << 20;
/// Maximum size of a part, bytes.
const MAX_PART_SIZE: u64 = 512 << 20;
/// Maximum parts of an upload that stores accept.
const MAX_PARTS: u64 = 10_000;
/// Wait before each further attempt to send a part. The engine sends whole files again.
const PART_WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Maximum bytes of what a store calls an upload: they become part of addresses.
const MAX_UPLOAD_ID: usize = 4 << 10;
/// Maximum bytes of the name of an object. Encoding may triple it, and addresses are limited in length.
const MAX_NAME: usize = 8 << 10;

/// How a store says that it has another version of an object, and why it refuses something.
const STORE: Dialect = Dialect {
    if_tag: "if-match",
    if_time: "if-unmodified-since",
    failure,
};

/// Configured size of the parts of an upload, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartSize(pub(super) u64);

impl PartSize {
    /// Reads the size from the environment, for stores with other limits and for tests.
    pub(super) fn of(environment: &Environment) -> Self {
        let megabytes = environment
            .text("PEGASUS_TRANSFER_S3_PART_MB")
            .and_then(|text| text.parse().ok())
            .filter(|number: &u64| *number > 0);
        Self(megabytes.map_or(DEFAULT_PART_SIZE, |number| {
            number.saturating_mul(1 << 20).min(MAX_PART_SIZE)
        }))
    }
}

/// A request about an object, or about its bucket if the name of the object is empty.
pub(super) struct ObjectRequest<'a> {
    pub(super) method: &'static str,
    pub(super) bucket: &'a str,
    pub(super) object: &'a [u8],
    /// Names and values, not encoded.
    pub(super) query: Vec<(&'static str, &'a str)>,
    pub(super) headers: Vec<(String, String)>,
    /// Sent by `PUT` and `POST`, also if it is empty.
    pub(super) body: &'a [u8],
}

impl<'a> ObjectRequest<'a> {
    pub(super) fn new(method: &'static str, bucket: &'a str, object: &'a [u8]) -> Self {
        Self {
            method,
            bucket,
            object,
            query: Vec::new(),
            headers: Vec::new(),
            body: b"",
        }
    }

    /// Returns the request to the service at this address, with no proof of a right. It follows no
    /// redirections: a signature is valid for one address.
    pub(super) fn at(self, service: &str) -> Result<Request<'a>, TransferError> {
        check_name(self.object)?;
        let mut address = address(service, self.bucket, self.object);
        for (number, (name, value)) in self.query.iter().enumerate() {
            let mark = if number == 0 { '?' } else { '&' };
            address.push_str(&format!("{mark}{name}={}", encode(value.as_bytes(), false)));
        }
        if !url::Url::parse(&address).is_ok_and(|url| url.has_host()) {
            let name = crate::shown::bytes(address.as_bytes());
            return Err(TransferError::Credentials(format!(
                "'{name}' is not the address of a store"
            )));
        }
        let mut request = Request::new(self.method, address);
        request.headers = self.headers;
        request.follow = false;
        if matches!(self.method, "PUT" | "POST") {
            request.payload = Payload::Bytes(self.body);
        }
        Ok(request)
    }
}

/// Returns the address of an object, or of its bucket if the name of the object is empty.
pub(super) fn address(service: &str, bucket: &str, object: &[u8]) -> String {
    let bucket = encode(bucket.as_bytes(), false);
    match object {
        b"" => format!("{service}/{bucket}"),
        object => format!("{service}/{bucket}/{}", encode(object, true)),
    }
}

/// Refuses names that programs on the way could take for others.
fn check_name(object: &[u8]) -> Result<(), TransferError> {
    let mut parts = object.split(|byte| *byte == b'/');
    let why = if object.len() > MAX_NAME {
        "is too long"
    } else if parts.any(|part| part == b"." || part == b"..") {
        "has a part '.' or '..'"
    } else if object.iter().any(u8::is_ascii_control) {
        "has a control character"
    } else {
        return Ok(());
    };
    let name = crate::shown::bytes(object);
    Err(TransferError::Credentials(format!(
        "the name of the object '{name}' {why}"
    )))
}

/// A service with the right to use it.
pub(super) trait ObjectStore {
    /// Returns a request to the service, with the proof of the right to make it.
    fn sign<'a>(&self, request: ObjectRequest<'a>) -> Result<Request<'a>, TransferError>;
}

/// An object of a store.
pub(super) struct Object<'a> {
    pub(super) store: &'a dyn ObjectStore,
    pub(super) client: &'a Client,
    pub(super) cancel: &'a Cancel,
    pub(super) bucket: &'a str,
    pub(super) name: &'a [u8],
}

impl<'a> Object<'a> {
    /// Requests the object, or the rest of it.
    pub(super) fn open(
        &self,
        resume: Option<ResumePoint<'_>>,
        proxied: bool,
    ) -> Result<Opened, TransferError> {
        open_download(self.client, &STORE, resume, |headers| {
            let mut request = self.request("GET");
            request.headers = headers;
            let mut signed = self.store.sign(request)?;
            signed.proxied = proxied;
            Ok(signed)
        })
    }

    /// Sends a file, in parts if it is large.
    pub(super) fn put(&self, file: &File, length: u64, part: PartSize) -> Result<(), TransferError> {
        let part = part.0.max(length.div_ceil(MAX_PARTS));
        if length <= part {
            let content = read(file, 0, length)?;
            let mut request = self.request("PUT");
            request.body = &content;
            return self.send(request).map(drop);
        }
        let begun = self.text_of(&|| {
            let mut request = self.request("POST");
            request.query = vec![("uploads", "")];
            request
        })?;
        let upload = first_text(&begun, "UploadId").filter(|id| id.len() <= MAX_UPLOAD_ID);
        let upload = upload.ok_or_else(|| strange("the answer of the store names no upload"))?;
        let sent = self.put_parts(&upload, (file, length), part);
        if sent.is_err() {
            // Leftover parts cost money. A failure to remove them is not reported.
            let mut request = self.request("DELETE");
            request.query = vec![("uploadId", &upload)];
            let _ = self.send(request);
        }
        sent
    }

    fn put_parts(&self, upload: &str, (file, length): (&File, u64), part: u64) -> Result<(), TransferError> {
        let mut list =
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
        for (number, start) in (1_u32..).zip((0..length).step_by(usize::try_from(part).unwrap_or(usize::MAX)))
        {
            let content = read(file, start, part.min(length - start))?;
            let text = number.to_string();
            let answer = self.send_patiently(&|| {
                let mut request = self.request("PUT");
                request.query = vec![("partNumber", &text), ("uploadId", upload)];
                request.body = &content;
                request
            })?;
            let tag = answer.header("etag").map(quick_xml::escape::escape);
            let tag = tag.ok_or_else(|| strange("the store gives a part no tag"))?;
            list.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
            ));
        }
        list.push_str("</CompleteMultipartUpload>");
        let ended = self.text_of(&|| {
            let mut request = self.request("POST");
            request.query = vec![("uploadId", upload)];
            request.body = list.as_bytes();
            request
        })?;
        // The status is sent before the result is known.
        match ended.contains("<Error>") {
            true => Err(store_error(500, &ended)),
            false => Ok(()),
        }
    }

    fn request(&self, method: &'static str) -> ObjectRequest<'a> {
        ObjectRequest::new(method, self.bucket, self.name)
    }

    fn send(&self, request: ObjectRequest<'_>) -> Result<Response, TransferError> {
        let response = self.client.send(&self.store.sign(request)?)?;
        match response.status {
            200..=299 => Ok(response),
            _ => Err(failure(response)),
        }
    }

    /// Sends a request again for a while if the store is busy.
    fn send_patiently<'b>(&self, request: &dyn Fn() -> ObjectRequest<'b>) -> Result<Response, TransferError> {
        for wait in PART_WAITS {
            match self.send(request()) {
                Err(error) if error.retry() == Retry::Later => {}
                other => return other,
            }
            if !self.cancel.sleep(wait) {
                return Err(TransferError::Cancelled);
            }
        }
        self.send(request())
    }

    fn text_of<'b>(&self, request: &dyn Fn() -> ObjectRequest<'b>) -> Result<String, TransferError> {
        self.send_patiently(request)?.text()
    }
}

/// Returns the error of an answer that makes no sense.
fn strange(what: &str) -> TransferError {
    TransferError::remote(what, Retry::Later)
}

/// Reads a part of a file.
fn read(file: &File, start: u64, length: u64) -> Result<Vec<u8>, TransferError> {
    let fail =
        |error: io::Error| TransferError::remote(format!("cannot read the file: {error}"), Retry::Soon);
    let size = usize::try_from(length).map_err(|_| fail(io::ErrorKind::FileTooLarge.into()))?;
    let mut bytes = vec![0; size];
    match file.read_exact_at(&mut bytes, start) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(TransferError::remote(
            "the file shrank while it was sent",
            Retry::Soon,
        )),
        Err(error) => Err(fail(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_names_or_are_refused() {
        for (bucket, name, expected) in [
            (
                "b",
                &b"d/e/a b+\xc3\xa9=%"[..],
                "http://h/b/d/e/a%20b%2B%C3%A9%3D%25",
            ),
            ("b", b"d//a", "http://h/b/d//a"),
            ("b", b"/d/", "http://h/b//d/"),
            ("a b\n", b"d/\xff", "http://h/a%20b%0A/d/%FF"),
            ("b", b"", "http://h/b"),
        ] {
            let request = ObjectRequest::new("GET", bucket, name).at("http://h");
            assert_eq!(
                request.map(|request| request.address).ok().as_deref(),
                Some(expected)
            );
        }
        for name in [&b"d/.."[..], b"../a", b"./a", b"d/a\nb", &[b'a'; 10_000]] {
            let request = ObjectRequest::new("GET", "b", name).at("http://h");
            assert!(request.is_err(), "{}", String::from_utf8_lossy(name));
        }
        for service in ["http://a b", "http://[", ":", ""] {
            assert!(
                ObjectRequest::new("GET", "b", b"a").at(service).is_err(),
                "{service}"
            );
        }
    }

    #[test]
    fn queries_are_encoded() {
        let mut request = ObjectRequest::new("POST", "b", b"x");
        request.query = vec![("uploads", ""), ("uploadId", "a&b")];
        let request = request.at("http://h").expect("an address");
        assert_eq!(request.address, "http://h/b/x?uploads=&uploadId=a%26b");
        assert!(!request.follow);
    }
}
