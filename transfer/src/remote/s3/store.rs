//! Requests to a store that speaks the protocol of Amazon S3.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use chrono::Utc;
use sha2::{Digest, Sha256};

use super::sign::{self, Key, UNSIGNED, Unsigned};
use crate::cancel::Cancel;
use crate::error::{Retry, TransferError};
use crate::integrity::hex;
use crate::remote::http::{Answer, Call, Client, Payload, encode, split};

/// Files from this size on are sent in parts.
const WHOLE: u64 = 256 << 20;
/// Size of a part, if the file is not too large for that.
const PART: u64 = 64 << 20;
/// Most parts that a store takes.
const PARTS: u64 = 10_000;
/// How often a part is sent before the upload fails.
const TRIES: u32 = 3;

/// Sizes of uploads, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Files from this size on are sent in parts.
    pub(super) whole: u64,
    /// Size of a part.
    pub(super) part: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            whole: WHOLE,
            part: PART,
        }
    }
}

/// A store, and who we are there.
#[derive(Clone)]
pub(super) struct Store {
    /// `http://host:port`, perhaps with a path.
    pub(super) endpoint: String,
    pub(super) region: String,
    pub(super) key: Key,
}

/// A request to a store.
pub(super) struct Ask<'a> {
    pub(super) method: &'a str,
    pub(super) bucket: &'a str,
    /// Empty for the bucket itself.
    pub(super) object: &'a [u8],
    pub(super) query: &'a [(&'a str, String)],
    pub(super) headers: Vec<(String, String)>,
    pub(super) payload: Payload<'a>,
}

impl<'a> Ask<'a> {
    pub(super) fn new(method: &'a str, bucket: &'a str, object: &'a [u8]) -> Self {
        Self {
            method,
            bucket,
            object,
            query: &[],
            headers: Vec::new(),
            payload: Payload::None,
        }
    }
}

impl Store {
    /// The address of an object.
    pub(super) fn address(&self, bucket: &str, object: &[u8]) -> String {
        let endpoint = self.endpoint.trim_end_matches('/');
        let bucket = encode(bucket.as_bytes(), false);
        if object.is_empty() {
            format!("{endpoint}/{bucket}")
        } else {
            format!("{endpoint}/{bucket}/{}", encode(object, true))
        }
    }

    /// The signed request.
    pub(super) fn call<'a>(&self, ask: &Ask<'a>) -> Result<Call<'a>, TransferError> {
        let address = self.address(ask.bucket, ask.object);
        let (scheme, host, path) = split(&address).ok_or_else(|| {
            TransferError::Credentials(format!("the endpoint '{}' is not an address", self.endpoint))
        })?;
        let hash = match ask.payload {
            Payload::None => sign::sha256(b""),
            Payload::Bytes(bytes) => sign::sha256(bytes),
            // The connection protects the data.
            Payload::File { .. } if scheme.eq_ignore_ascii_case("https") => UNSIGNED.to_owned(),
            Payload::File { file, start, length } => hash_part(file, start, length).map_err(|error| {
                TransferError::remote(format!("cannot read the file: {error}"), Retry::Soon)
            })?,
        };
        let headers = sign::headers(
            &Unsigned {
                method: ask.method,
                host,
                path,
                query: ask.query,
                headers: &ask.headers,
                payload: &hash,
                region: &self.region,
                time: Utc::now(),
            },
            &self.key,
        );
        let query = sign::query(ask.query);
        let whole = if query.is_empty() {
            address.clone()
        } else {
            format!("{address}?{query}")
        };
        let mut call = Call::new(ask.method, whole);
        call.headers = headers;
        call.payload = ask.payload;
        // A signature is for one address.
        call.follow = false;
        call.proxied = scheme.eq_ignore_ascii_case("https");
        Ok(call)
    }

    fn send(&self, client: &Client, ask: &Ask<'_>) -> Result<Answer, TransferError> {
        client.send(&self.call(ask)?)
    }

    /// Sends a request that must succeed; returns the body of the answer.
    fn ask(&self, client: &Client, ask: &Ask<'_>) -> Result<String, TransferError> {
        let mut answer = self.send(client, ask)?;
        if !(200..300).contains(&answer.status) {
            return Err(failure(answer));
        }
        let text = answer.text()?;
        // Long operations start to answer before they know how they end.
        if text.contains("<Error>") {
            return Err(refusal(500, &text));
        }
        Ok(text)
    }

    /// The region of a bucket, if the store tells.
    pub(super) fn region_of(&self, client: &Client, bucket: &str) -> Result<Option<String>, TransferError> {
        let answer = self.send(client, &Ask::new("HEAD", bucket, b""))?;
        Ok(answer.header("x-amz-bucket-region").map(str::to_owned))
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
        let mut ask = Ask::new("PUT", bucket, b"");
        ask.payload = Payload::Bytes(body.as_bytes());
        let mut answer = self.send(client, &ask)?;
        if (200..300).contains(&answer.status) {
            return Ok(());
        }
        let text = answer.text()?;
        if first(&text, "Code").as_deref() == Some("BucketAlreadyOwnedByYou") {
            return Ok(());
        }
        Err(refusal(answer.status, &text))
    }

    /// Sends a file.
    pub(super) fn put(
        &self,
        client: &Client,
        (bucket, object): (&str, &[u8]),
        (file, length): (&File, u64),
        sizes: Sizes,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        if length < sizes.whole {
            let mut ask = Ask::new("PUT", bucket, object);
            ask.payload = if length == 0 {
                Payload::Bytes(b"")
            } else {
                Payload::File {
                    file,
                    start: 0,
                    length,
                }
            };
            return self.ask(client, &ask).map(drop);
        }
        let mut ask = Ask::new("POST", bucket, object);
        let query = [("uploads", String::new())];
        ask.query = &query;
        ask.payload = Payload::Bytes(b"");
        let started = self.ask(client, &ask)?;
        let id = first(&started, "UploadId")
            .ok_or_else(|| TransferError::remote("the store gave no id for an upload", Retry::Later))?;
        let result = self.put_parts(client, (bucket, object), (file, length), (sizes, &id), cancel);
        if result.is_err() {
            // Parts that are left over cost money; more than asking cannot be done.
            let query = [("uploadId", id)];
            let mut ask = Ask::new("DELETE", bucket, object);
            ask.query = &query;
            let _ = self.send(client, &ask);
        }
        result
    }

    fn put_parts(
        &self,
        client: &Client,
        (bucket, object): (&str, &[u8]),
        (file, length): (&File, u64),
        (sizes, id): (Sizes, &str),
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        let size = sizes.part.max(length.div_ceil(PARTS));
        let mut list = String::from("<CompleteMultipartUpload>");
        for (number, start) in (1u64..).zip((0..length).step_by(usize::try_from(size).unwrap_or(usize::MAX)))
        {
            let query = [("partNumber", number.to_string()), ("uploadId", id.to_owned())];
            let mut ask = Ask::new("PUT", bucket, object);
            ask.query = &query;
            ask.payload = Payload::File {
                file,
                start,
                length: size.min(length - start),
            };
            let tag = self.put_part(client, &ask, cancel)?;
            let tag = quick_xml::escape::escape(tag.as_str()).into_owned();
            list.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
            ));
        }
        list.push_str("</CompleteMultipartUpload>");
        let query = [("uploadId", id.to_owned())];
        let mut ask = Ask::new("POST", bucket, object);
        ask.query = &query;
        ask.payload = Payload::Bytes(list.as_bytes());
        self.ask(client, &ask).map(drop)
    }

    /// Sends one part; returns its entity tag.
    fn put_part(&self, client: &Client, ask: &Ask<'_>, cancel: &Cancel) -> Result<String, TransferError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let answer = self.send(client, ask).and_then(|answer| match answer.status {
                200..=299 => Ok(answer),
                _ => Err(failure(answer)),
            });
            match answer {
                Ok(answer) => {
                    return answer.header("etag").map(str::to_owned).ok_or_else(|| {
                        TransferError::remote("the store gave no entity tag for a part", Retry::Later)
                    });
                }
                Err(error) if error.retry() == Retry::Never || tries >= TRIES => return Err(error),
                Err(_) if !cancel.sleep(Duration::from_secs(u64::from(tries))) => {
                    return Err(TransferError::Cancelled);
                }
                Err(_) => {}
            }
        }
    }

    /// Copies within the store.
    pub(super) fn copy(
        &self,
        client: &Client,
        (bucket, object): (&str, &[u8]),
        (to_bucket, to_object): (&str, &[u8]),
    ) -> Result<(), TransferError> {
        let source = format!("/{}/{}", encode(bucket.as_bytes(), false), encode(object, true));
        let mut ask = Ask::new("PUT", to_bucket, to_object);
        ask.headers.push(("x-amz-copy-source".to_owned(), source));
        ask.payload = Payload::Bytes(b"");
        self.ask(client, &ask).map(drop)
    }

    /// Removes an object; none is fine.
    pub(super) fn remove(&self, client: &Client, bucket: &str, object: &[u8]) -> Result<(), TransferError> {
        let answer = self.send(client, &Ask::new("DELETE", bucket, object))?;
        match answer.status {
            200..=299 | 404 => Ok(()),
            _ => Err(failure(answer)),
        }
    }

    /// Names of up to 1,000 objects that start with `prefix`.
    pub(super) fn list(
        &self,
        client: &Client,
        bucket: &str,
        prefix: &[u8],
    ) -> Result<Vec<String>, TransferError> {
        let prefix = String::from_utf8_lossy(prefix).into_owned();
        let query = [("list-type", "2".to_owned()), ("prefix", prefix)];
        let mut ask = Ask::new("GET", bucket, b"");
        ask.query = &query;
        let mut answer = self.send(client, &ask)?;
        match answer.status {
            200 => Ok(all(&answer.text()?, "Key")),
            404 => Ok(Vec::new()),
            _ => Err(failure(answer)),
        }
    }
}

/// The failure that an answer is: the code and message of the store, if it gives some.
pub(super) fn failure(mut answer: Answer) -> TransferError {
    let text = answer.text().unwrap_or_default();
    if first(&text, "Code").is_none() {
        return answer.failure();
    }
    refusal(answer.status, &text)
}

fn refusal(status: u16, text: &str) -> TransferError {
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

/// SHA-256 of a part of a file, in hexadecimal.
fn hash_part(file: &File, start: u64, length: u64) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let (mut position, end) = (start, start + length);
    while position < end {
        let most = usize::try_from(end - position)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = file.read_at(&mut buffer[..most], position)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&buffer[..read]);
        position += read as u64;
    }
    Ok(hex(&hasher.finalize().into()))
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
        assert_eq!(refusal(503, slow).retry(), Retry::Later);
        assert_eq!(
            refusal(400, slow).to_string(),
            "the store answered 400 SlowDown: less"
        );
        let gone = "<Error><Code>NoSuchBucket</Code></Error>";
        assert!(is_no_bucket(&refusal(404, gone)));
    }
}
