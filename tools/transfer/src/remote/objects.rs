//! Adapter that runs `object_store` on the HTTP client of this crate.
//!
//! `object_store` signs requests, gets tokens, splits uploads into parts and retries parts. Connections,
//! proxies, certificates, timeouts and cancellation are those of [`Client`], which blocks. The async runtime
//! of an operation serves only the timers of `object_store` and starts no thread.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body, Frame};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::path::Path;
use object_store::{
    BackoffConfig, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload,
    RetryConfig,
};
use tokio::runtime::{Builder, Runtime};
use ureq::http::header::{ETAG, LAST_MODIFIED};
use ureq::http::request::Parts;
use ureq::http::{HeaderValue, Method, Uri};

use super::Environment;
use super::http::{Client, Opened, Payload, RemoteBody, Request, ResumePoint, encode};
use crate::cancel::Cancel;
use crate::error::{Retry, TransferError};

/// Default size of the parts of an upload, bytes. Smaller files are sent in one request.
/// A part is in memory while it is sent.
const DEFAULT_PART_SIZE: u64 = 16 << 20;
/// Maximum size of a part, bytes.
const MAX_PART_SIZE: u64 = 512 << 20;
/// Maximum parts of an upload that stores accept.
const MAX_PARTS: u64 = 10_000;
/// Maximum retries of a part.
const PART_RETRIES: usize = 2;
/// Interval between checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const BUFFER_SIZE: usize = 256 << 10;
/// Maximum bytes read of a response to other requests than `GET`: they become part of addresses.
const MAX_SHORT_BODY: u64 = 16 << 10;

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

    /// Returns whether a file of `length` bytes is sent in parts.
    pub(super) fn is_less_than(self, length: u64) -> bool {
        self.0 < length
    }
}

/// HTTP connector for one operation of `object_store`.
#[derive(Clone)]
pub(super) struct ClientAdapter {
    client: Arc<Client>,
    cancel: Cancel,
    /// Downloads use the proxy of the environment.
    proxied: bool,
    /// Failure of the last request.
    failure: Arc<Mutex<Option<TransferError>>>,
}

impl std::fmt::Debug for ClientAdapter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Bridge")
    }
}

impl HttpConnector for ClientAdapter {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for ClientAdapter {
    async fn call(&self, library_request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = library_request.into_parts();
        let body = collect_body(body);
        let mut request = to_request(&parts, &body);
        request.proxied = self.proxied;
        let response = self.client.send(&request).map_err(|error| {
            let kind = match error.retry() {
                Retry::Never => HttpErrorKind::Unknown,
                _ => HttpErrorKind::Connect,
            };
            let shown = io::Error::other(error.to_string());
            self.set_failure(error);
            HttpError::new(kind, shown)
        })?;
        let status = response.status;
        let mut library_response = ureq::http::Response::builder().status(status);
        if let Some(headers) = library_response.headers_mut() {
            headers.clone_from(&response.headers);
            // `object_store` requires these headers, but not all stores send them. Nothing uses their values.
            // A part of an upload (with a query) must have its own tag.
            let some = |text| HeaderValue::from_static(text);
            headers
                .entry(LAST_MODIFIED)
                .or_insert_with(|| some("Thu, 01 Jan 1970 00:00:00 GMT"));
            if parts.uri.query().is_none() {
                headers.entry(ETAG).or_insert_with(|| some("none"));
            }
        }
        let body = if (200..300).contains(&status) {
            // Discard the failure of an earlier attempt.
            self.take_failure();
            let all = response.body;
            let reader: Box<dyn Read + Send> = if parts.method == Method::GET {
                Box::new(all)
            } else {
                Box::new(all.take(MAX_SHORT_BODY))
            };
            HttpResponseBody::new(Incoming(Mutex::new(reader)))
        } else {
            self.set_failure(super::s3::failure(response));
            Bytes::new().into()
        };
        library_response
            .body(body)
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))
    }
}

impl ClientAdapter {
    pub(super) fn new(client: &Arc<Client>, cancel: &Cancel) -> Self {
        Self {
            client: Arc::clone(client),
            cancel: cancel.clone(),
            proxied: false,
            failure: Arc::default(),
        }
    }

    pub(super) fn through_proxy(mut self, proxied: bool) -> Self {
        self.proxied = proxied;
        self
    }

    fn set_failure(&self, error: TransferError) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn take_failure(&self) -> Option<TransferError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Runs an operation until it ends or the run is cancelled.
    pub(super) fn run<T>(
        &self,
        runtime: &Runtime,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, TransferError> {
        let stopped = async {
            while !self.cancel.is_cancelled() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let done = runtime.block_on(async {
            tokio::select! {
                biased;
                done = work => Some(done),
                () = stopped => None,
            }
        });
        match done {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) if !self.cancel.is_cancelled() => {
                Err(to_transfer_error(self.take_failure(), &error))
            }
            _ => Err(TransferError::Cancelled),
        }
    }

    /// Uploads a file, in parts if it is large.
    pub(super) fn put(
        &self,
        store: &dyn ObjectStore,
        path: &Path,
        (file, length): (&File, u64),
        part: PartSize,
    ) -> Result<(), TransferError> {
        let part = part.0.max(length.div_ceil(MAX_PARTS));
        let runtime = runtime()?;
        if length <= part {
            let payload = read(file, 0, length)?;
            return self.run(&runtime, store.put(path, payload)).map(drop);
        }
        let mut upload = self.run(&runtime, store.put_multipart(path))?;
        let sent = self.put_parts(&runtime, upload.as_mut(), (file, length), part);
        if sent.is_err() {
            // Leftover parts cost money. A failure to remove them is not reported.
            let _ = runtime.block_on(upload.abort());
        }
        sent
    }

    fn put_parts(
        &self,
        runtime: &Runtime,
        upload: &mut dyn MultipartUpload,
        (file, length): (&File, u64),
        part: u64,
    ) -> Result<(), TransferError> {
        let mut start = 0;
        while start < length {
            let size = part.min(length - start);
            let payload = read(file, start, size)?;
            self.run(runtime, upload.put_part(payload))?;
            start += size;
        }
        self.run(runtime, upload.complete()).map(drop)
    }

    /// Requests an object, or the rest of it.
    pub(super) fn open(
        &self,
        store: &dyn ObjectStore,
        path: &Path,
        resume: Option<ResumePoint<'_>>,
    ) -> Result<Opened, TransferError> {
        let runtime = runtime()?;
        let options = match resume {
            // The rest must belong to the same version.
            Some(resume) => GetOptions::new()
                .with_range(Some(GetRange::Offset(resume.offset)))
                .with_if_match(Some(resume.version)),
            None => GetOptions::new(),
        };
        let object = match runtime.block_on(store.get_opts(path, options)) {
            Ok(object) => object,
            Err(_) if self.cancel.is_cancelled() => return Err(TransferError::Cancelled),
            Err(error) => {
                let failure = self.take_failure();
                // Another version, or a store without range requests: download the whole object.
                let retry_whole =
                    matches!(error, object_store::Error::Precondition { .. }) || failure.is_none();
                if resume.is_some() && retry_whole {
                    return self.open(store, path, None);
                }
                return Err(to_transfer_error(failure, &error));
            }
        };
        let (start, total, version) = (object.range.start, object.meta.size, object.meta.e_tag.clone());
        let version = version.filter(|tag| tag.starts_with('"') && tag.len() > 2);
        // Some stores ignore the condition, and send the rest of another version.
        let is_other = |resume: &ResumePoint<'_>| version.as_deref().is_some_and(|now| now != resume.version);
        if start > 0 && resume.as_ref().is_some_and(is_other) {
            return Ok(Opened::Changed);
        }
        Ok(Opened::Body(RemoteBody {
            start,
            total: Some(total),
            version,
            body: Box::new(ObjectReader {
                runtime,
                stream: object.into_stream(),
                chunk: Bytes::new(),
            }),
        }))
    }
}

/// Returns the failure of the last request, else converts the error of `object_store`.
fn to_transfer_error(last_failure: Option<TransferError>, error: &object_store::Error) -> TransferError {
    last_failure.unwrap_or_else(|| {
        let retry = match error {
            object_store::Error::Generic { .. } => Retry::Later,
            _ => Retry::Never,
        };
        let text = error.to_string();
        TransferError::remote(crate::shown::bytes(text.as_bytes()).to_string(), retry)
    })
}

/// Returns the retry settings. `object_store` retries only parts of uploads; the engine retries the rest.
pub(super) fn retry_config(in_parts: bool) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(3),
            base: 2.0,
        },
        max_retries: if in_parts { PART_RETRIES } else { 0 },
        // All retries use the same signature, which is valid for 15 minutes.
        retry_timeout: Duration::from_secs(600),
    }
}

/// Creates a runtime that has only timers.
pub(super) fn runtime() -> Result<Runtime, TransferError> {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.map_err(|error| TransferError::remote(format!("cannot wait for a store: {error}"), Retry::Soon))
}

/// Converts a request of `object_store`. It follows no redirections: a signature is valid for one address.
pub(super) fn to_request<'a>(parts: &'a Parts, body: &'a [u8]) -> Request<'a> {
    // `object_store` encodes too much for GCS, even in bucket names, which some servers reject.
    let plain = [("%2D", "-"), ("%2E", "."), ("%5F", "_"), ("%7E", "~")];
    let address = plain
        .iter()
        .fold(parts.uri.to_string(), |address, (code, plain)| {
            address.replace(code, plain)
        });
    let mut request = Request::new(parts.method.as_str(), address);
    request.headers = parts
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
        .collect();
    request.follow = false;
    if matches!(parts.method.as_str(), "PUT" | "POST") {
        request.payload = Payload::Bytes(body);
    }
    request
}

/// Splits an object name into directory and last part. Paths of `object_store` cannot represent some valid
/// names (`a//b`, `a/`), but its root may be any such directory.
pub(super) fn split_name(object: &[u8]) -> Result<(Option<&[u8]>, Path), TransferError> {
    let (directory, last) = match object.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (Some(&object[..at]), &object[at + 1..]),
        None => (None, object),
    };
    // Addresses are limited in length, and encoding may triple the name.
    const MAX_NAME: usize = 8 << 10;
    let refused = |why: &str| {
        let name = crate::shown::bytes(object);
        TransferError::Credentials(format!("the name of the object '{name}' {why}"))
    };
    if object.len() > MAX_NAME {
        return Err(refused("is too long"));
    }
    let mut parts = directory.unwrap_or_default().split(|byte| *byte == b'/');
    if parts.any(|part| part == b"." || part == b"..") {
        return Err(refused("has a part '.' or '..'"));
    }
    let last = std::str::from_utf8(last).map_err(|_| refused("is not UTF-8"))?;
    let path = Path::parse(last).map_err(|_| refused("ends in '.' or '..', or has a control character"))?;
    Ok((directory, path))
}

/// Appends a directory to an address.
pub(super) fn join_directory(address: &str, directory: Option<&[u8]>) -> String {
    match directory {
        Some(directory) => format!("{address}/{}", encode(directory, true)),
        None => address.to_owned(),
    }
}

/// Refuses invalid addresses, on which `object_store` would panic.
pub(super) fn check_address(address: &str) -> Result<(), TransferError> {
    if address.parse::<Uri>().is_ok() && url::Url::parse(address).is_ok_and(|url| url.has_host()) {
        return Ok(());
    }
    let name = crate::shown::bytes(address.as_bytes());
    Err(TransferError::Credentials(format!(
        "'{name}' is not the address of a store"
    )))
}

/// Reads a part of a file.
fn read(file: &File, start: u64, length: u64) -> Result<PutPayload, TransferError> {
    let fail =
        |error: io::Error| TransferError::remote(format!("cannot read the file: {error}"), Retry::Soon);
    let size = usize::try_from(length).map_err(|_| fail(io::ErrorKind::FileTooLarge.into()))?;
    let mut bytes = vec![0; size];
    match file.read_exact_at(&mut bytes, start) {
        Ok(()) => Ok(PutPayload::from(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(TransferError::remote(
            "the file shrank while it was sent",
            Retry::Soon,
        )),
        Err(error) => Err(fail(error)),
    }
}

/// Collects the body of a request.
fn collect_body(mut body: HttpRequestBody) -> Bytes {
    let mut all = Bytes::new();
    let mut context = Context::from_waker(std::task::Waker::noop());
    if let Some(bytes) = body.as_bytes() {
        return bytes.clone();
    }
    while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
        match frame.into_data() {
            Ok(next) if all.is_empty() => all = next,
            Ok(next) => all = [all, next].concat().into(),
            Err(_) => {}
        }
    }
    all
}

/// Response body, read on demand. The lock is never contended: it only makes the type `Sync`.
struct Incoming(Mutex<Box<dyn Read + Send>>);

impl Body for Incoming {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let reader = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = vec![0; BUFFER_SIZE];
        Poll::Ready(match reader.read(&mut buffer) {
            Ok(0) => None,
            Ok(read) => {
                buffer.truncate(read);
                Some(Ok(Frame::data(buffer.into())))
            }
            Err(error) => Some(Err(HttpError::new(HttpErrorKind::Interrupted, error))),
        })
    }
}

/// Reader over the stream of an object.
struct ObjectReader {
    runtime: Runtime,
    stream: Pin<Box<dyn Stream<Item = object_store::Result<Bytes>> + Send>>,
    chunk: Bytes,
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            let stream = &mut self.stream;
            let next = std::future::poll_fn(|context| stream.as_mut().poll_next(context));
            match self.runtime.block_on(next) {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => return Err(cause(&error)),
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.chunk.len());
        let piece = self.chunk.split_to(length);
        buffer[..length].copy_from_slice(&piece);
        Ok(length)
    }
}

/// Returns the innermost cause of an error.
fn cause(error: &(dyn Error + 'static)) -> io::Error {
    let mut inner = error;
    while let Some(next) = inner.source() {
        inner = next;
    }
    let slow = inner.downcast_ref().and_then(super::http::slow);
    slow.map_or_else(|| io::Error::other(inner.to_string()), io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_or_refused() {
        for (name, expected) in [
            (&b"a"[..], Some((None, "a"))),
            (b"d/e/a b+\xc3\xa9=%", Some((Some(&b"d/e"[..]), "a b+\u{e9}=%"))),
            (b"/a", Some((Some(b""), "a"))),
            (b"d//a", Some((Some(b"d/"), "a"))),
            (b"d/", Some((Some(b"d"), ""))),
            (b"d/..", None),
            (b"../a", None),
            (b"d/a\nb", None),
            (b"d/\xff", None),
        ] {
            let split = split_name(name).ok();
            let split = split
                .as_ref()
                .map(|(directory, last)| (*directory, last.as_ref()));
            assert_eq!(split, expected, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn bodies_in_several_chunks_are_joined() {
        let payload: PutPayload = [Bytes::from("ab"), Bytes::from("cd")].into_iter().collect();
        assert_eq!(collect_body(payload.into()), "abcd");
        assert_eq!(collect_body(Bytes::from("x").into()), "x");
    }
}
