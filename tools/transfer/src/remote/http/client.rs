//! HTTP requests: connections, proxies, redirections, classification of failures.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ureq::http::uri::{self, Scheme};
use ureq::http::{HeaderMap, Uri};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector as _, RustlsConnector, TcpConnector};
use ureq::{Agent, BodyReader, Proxy, SendBody};

use super::pace::{Limited, Receiving, Sending, Slow, Timeouts};
use super::{address, forward_proxy, tls};
use crate::cancel::Cancel;
use crate::error::{Retry, TransferError};
use crate::remote::Environment;
use crate::shown;

/// Maximum redirections followed.
const MAX_REDIRECTS: u32 = 10;
/// Bodies of at least this size wait for `100 Continue`, bytes.
const EXPECT_CONTINUE_SIZE: u64 = 1 << 20;
/// Maximum bytes read of a response that is text.
const MAX_TEXT_SIZE: u64 = 16 << 20;

/// Body of a request.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    None,
    Bytes(&'a [u8]),
    /// The first `length` bytes of a file.
    File {
        file: &'a File,
        length: u64,
    },
}

impl<'a> Payload<'a> {
    /// Returns the data and their length in bytes.
    fn content(self) -> Option<(Box<dyn Read + 'a>, u64)> {
        match self {
            Payload::None => None,
            Payload::Bytes(bytes) => Some((Box::new(bytes), bytes.len() as u64)),
            Payload::File { file, length } => {
                let reader = FileReader {
                    file,
                    position: 0,
                    left: length,
                };
                Some((Box::new(reader), length))
            }
        }
    }
}

/// A request.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) address: String,
    pub(crate) headers: Vec<(String, String)>,
    /// Headers sent only to the host of `address`.
    pub(crate) secrets: Vec<(String, String)>,
    pub(crate) payload: Payload<'a>,
    /// A `GET` uses the proxy of the environment.
    pub(crate) proxied: bool,
    /// Certificates are not verified.
    pub(crate) insecure: bool,
    /// Redirections are followed.
    pub(crate) follow: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn new(method: &'a str, address: String) -> Self {
        Self {
            method,
            address,
            headers: Vec::new(),
            secrets: Vec::new(),
            payload: Payload::None,
            proxied: false,
            insecure: false,
            follow: true,
        }
    }
}

/// A response of any status.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Receiving<BodyReader<'static>>,
    /// The response came through a proxy.
    pub(crate) proxied: bool,
}

impl Response {
    /// Returns a header that is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Reads the body as text.
    pub(crate) fn text(&mut self) -> Result<String, TransferError> {
        let mut bytes = Vec::new();
        (&mut self.body)
            .take(MAX_TEXT_SIZE)
            .read_to_end(&mut bytes)
            .map_err(|error| read_error(&error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Converts an unexpected status to an error.
    pub(crate) fn failure(mut self) -> TransferError {
        let retry = retry_for_status(self.status, self.proxied);
        let reason = ureq::http::StatusCode::from_u16(self.status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .unwrap_or("an unknown status");
        let mut message = format!("the server answered {} {reason}", self.status);
        if self.proxied {
            message.push_str(" (through a proxy)");
        }
        let schemes = self.header("www-authenticate").unwrap_or_default();
        if self.status == 401 && !schemes.is_empty() && !schemes.to_ascii_lowercase().contains("basic") {
            message.push_str("; it wants an authentication scheme other than Basic");
        }
        // Some servers explain the failure in the body.
        let is_text = self.header("content-type").is_some_and(|kind| {
            kind.starts_with("text/plain") || kind.contains("xml") || kind.contains("json")
        });
        if is_text && let Ok(text) = self.text() {
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            if !line.is_empty() {
                let end = line.char_indices().nth(300).map_or(line.len(), |(at, _)| at);
                message.push_str(": ");
                message.push_str(&shown::bytes(&line.as_bytes()[..end]).to_string());
            }
        }
        TransferError::remote(message, retry)
    }
}

/// Classifies a status by when a retry makes sense.
fn retry_for_status(status: u16, proxied: bool) -> Retry {
    match status {
        408 | 421 | 423 | 425 | 429 => Retry::Later,
        501 | 505 => Retry::Never,
        500..=599 => Retry::Later,
        // The proxy may have refused, and the next attempt bypasses it.
        400 | 403 | 407 if proxied => Retry::Soon,
        _ => Retry::Never,
    }
}

/// Sends requests. Threads share its pool of connections.
pub(crate) struct Client {
    environment: Arc<Environment>,
    timeouts: Timeouts,
    agents: Mutex<HashMap<AgentKey, Agent>>,
    cancel: Cancel,
}

/// Properties of connections that use separate agents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AgentKey {
    /// Proxy for a `CONNECT` tunnel.
    tunnel: Option<String>,
    /// Requests go to a proxy, in absolute form.
    forward_proxy: bool,
    secure: bool,
    insecure: bool,
}

impl Client {
    pub(crate) fn new(environment: Arc<Environment>, timeouts: Timeouts, cancel: Cancel) -> Self {
        Self {
            environment,
            timeouts,
            agents: Mutex::new(HashMap::new()),
            cancel,
        }
    }

    /// Sends a request and follows redirections. An error status is not an `Err`.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Response, TransferError> {
        let mut address = request.address.clone();
        for _ in 0..=MAX_REDIRECTS {
            if self.cancel.is_cancelled() {
                return Err(TransferError::Cancelled);
            }
            let response = self.send_once(request, &address)?;
            let redirects = matches!(response.status, 301 | 302 | 303 | 307 | 308) && request.follow;
            let Some(location) = response.header("location").filter(|_| redirects) else {
                return Ok(response);
            };
            let name = || shown::bytes(location.as_bytes());
            let next = address::resolve(&address, location).ok_or_else(|| {
                TransferError::remote(format!("the server redirects to '{}'", name()), Retry::Never)
            })?;
            if address::is_secure(&address) && !address::is_secure(&next) {
                let message = format!(
                    "the server redirects from https to '{}', which is not encrypted",
                    name()
                );
                return Err(TransferError::remote(message, Retry::Never));
            }
            address = next;
        }
        Err(TransferError::remote(
            format!("the server redirects more than {MAX_REDIRECTS} times"),
            Retry::Never,
        ))
    }

    fn send_once(&self, request: &Request<'_>, address: &str) -> Result<Response, TransferError> {
        let invalid = || {
            let name = shown::bytes(address.as_bytes());
            TransferError::remote(format!("'{name}' is not a valid address"), Retry::Never)
        };
        let (scheme, host, _) = address::split(address).ok_or_else(invalid)?;
        let secure = address::is_secure(address);
        let proxy = if request.proxied && request.method == "GET" {
            self.proxy(secure, host)
        } else {
            None
        };
        let proxied = proxy.is_some();
        // A proxy tunnels TLS and forwards plain requests.
        let (tunnel, forward) = if secure { (proxy, None) } else { (None, proxy) };
        let agent = self.agent(AgentKey {
            tunnel,
            forward_proxy: forward.is_some(),
            secure,
            insecure: secure && request.insecure,
        })?;
        let mut builder = ureq::http::Request::builder().method(request.method);
        builder = match &forward {
            None => builder.uri(address),
            Some(proxy) => {
                let (uri, login) = forward_request(proxy, address).ok_or_else(|| invalid_proxy(proxy))?;
                if let Some(login) = login {
                    builder = builder.header("proxy-authorization", login);
                }
                builder.uri(uri).header("host", host)
            }
        };
        for (name, value) in &request.headers {
            builder = builder.header(name.as_str(), value.as_str());
        }
        if address::split(&request.address)
            .is_some_and(|(first, name, _)| name == host && (first.eq_ignore_ascii_case(scheme) || secure))
        {
            for (name, value) in &request.secrets {
                builder = builder.header(name.as_str(), value.as_str());
            }
        }
        let response = match request.payload.content() {
            None => agent.run(builder.body(()).map_err(|_| invalid())?),
            Some((content, length)) => {
                let is_length = |(name, _): &(String, String)| name.eq_ignore_ascii_case("content-length");
                if !request.headers.iter().any(is_length) {
                    builder = builder.header("content-length", length.to_string());
                }
                if length >= EXPECT_CONTINUE_SIZE {
                    builder = builder.header("expect", "100-continue");
                }
                let mut content = Sending::new(content, self.timeouts);
                let body = SendBody::from_reader(&mut content);
                agent.run(builder.body(body).map_err(|_| invalid())?)
            }
        };
        match response {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                Ok(Response {
                    status: parts.status.as_u16(),
                    headers: parts.headers,
                    body: Receiving::new(body.into_reader(), self.timeouts),
                    proxied,
                })
            }
            Err(_) if self.cancel.is_cancelled() => Err(TransferError::Cancelled),
            Err(error) => Err(connection_error(host, &error)),
        }
    }

    /// Returns the proxy of the environment for a host.
    fn proxy(&self, secure: bool, host: &str) -> Option<String> {
        let first_of = |names: &[&str]| names.iter().find_map(|name| self.environment.text(name));
        if is_in_no_proxy(host, first_of(&["no_proxy", "NO_PROXY"]).unwrap_or("")) {
            return None;
        }
        let names = if secure {
            ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
        } else {
            ["http_proxy", "OSG_SQUID_LOCATION", "all_proxy", "ALL_PROXY"]
        };
        first_of(&names)
            .filter(|proxy| *proxy != "UNAVAILABLE")
            .map(str::to_owned)
    }

    fn agent(&self, key: AgentKey) -> Result<Agent, TransferError> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agents.get(&key) {
            return Ok(agent.clone());
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .allow_non_standard_methods(true)
            .user_agent(concat!("pegasus-transfer/", env!("CARGO_PKG_VERSION")))
            .accept("*/*")
            .accept_encoding("identity")
            .max_idle_connections_per_host(16)
            .timeout_resolve(Some(self.timeouts.connect))
            .timeout_connect(Some(self.timeouts.connect))
            .timeout_recv_response(Some(self.timeouts.idle))
            .timeout_per_read(Some(self.timeouts.idle))
            .timeout_per_write(Some(self.timeouts.idle))
            .proxy(None);
        if key.secure {
            config = config.tls_config(tls::config(&self.environment, key.insecure));
        }
        if let Some(proxy) = &key.tunnel {
            let address = if proxy.contains("://") {
                proxy.clone()
            } else {
                format!("http://{proxy}")
            };
            let tunnel = Proxy::new(&address).map_err(|_| invalid_proxy(proxy))?;
            config = config.proxy(Some(tunnel));
        }
        let config = config.build();
        let resolver = DefaultResolver::default();
        let agent = if key.forward_proxy {
            Agent::with_parts(config, forward_proxy::connector(), resolver)
        } else {
            let connector =
                ().chain(ConnectProxyConnector::default())
                    .chain(TcpConnector::default())
                    .chain(Limited)
                    .chain(RustlsConnector::default());
            Agent::with_parts(config, connector, resolver)
        };
        self.abort_on_cancel(&agent);
        agents.insert(key, agent.clone());
        Ok(agent)
    }

    /// Aborts the requests of an agent on cancellation. Otherwise they would wait for their timeouts.
    fn abort_on_cancel(&self, agent: &Agent) {
        let (agent, cancel, client) = (
            agent.clone(),
            self.cancel.clone(),
            Arc::downgrade(&self.environment),
        );
        let watch = move || {
            while client.strong_count() > 0 {
                if cancel.is_cancelled() {
                    agent.shutdown();
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        // Without this thread, cancellation takes effect between two blocks of data.
        let _ = std::thread::Builder::new().spawn(watch);
    }
}

/// Returns the address for a request through a forward proxy, and its `Proxy-Authorization` header.
fn forward_request(proxy: &str, address: &str) -> Option<(Uri, Option<String>)> {
    let (scheme, host, _) = address::split(proxy).unwrap_or(("http", proxy.trim_end_matches('/'), ""));
    let (login, host) = match host.rsplit_once('@') {
        Some((login, host)) => (Some(address::basic_auth(&address::decode(login))), host),
        None => (None, host),
    };
    let mut parts = uri::Parts::default();
    parts.scheme = Some(scheme.parse().ok().filter(|scheme| *scheme == Scheme::HTTP)?);
    parts.authority = Some(host.parse().ok()?);
    parts.path_and_query = Some(format!("/{address}").parse().ok()?);
    Some((Uri::from_parts(parts).ok()?, login))
}

fn invalid_proxy(proxy: &str) -> TransferError {
    let host = proxy.rsplit('@').next().unwrap_or(proxy);
    TransferError::remote(
        format!(
            "the proxy of the environment, '{}', is not the address of an HTTP proxy",
            shown::bytes(host.as_bytes())
        ),
        Retry::Soon,
    )
}

/// Reader over the part of a file to send.
struct FileReader<'a> {
    file: &'a File,
    position: u64,
    left: u64,
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..limit], self.position)?;
        if read == 0 && limit > 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file shrank while it was sent",
            ));
        }
        self.position += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Returns whether `list` (`host,.domain,domain:port,*`) exempts a host with port from the proxy.
fn is_in_no_proxy(host: &str, list: &str) -> bool {
    let without_port = |host: &str| match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name.to_ascii_lowercase(),
        _ => host.to_ascii_lowercase(),
    };
    let name = without_port(host);
    list.split([',', ' '])
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .any(|entry| {
            let domain = without_port(entry);
            let domain = domain.trim_start_matches('*').trim_start_matches('.');
            entry == "*" || (!domain.is_empty() && (name == domain || name.ends_with(&format!(".{domain}"))))
        })
}

/// Converts a failure before the response to an error.
fn connection_error(host: &str, error: &ureq::Error) -> TransferError {
    use ureq::Error as E;
    let host = host.rsplit('@').next().unwrap_or(host);
    let certificate = |error: &rustls::Error| {
        matches!(
            error,
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented
        )
    };
    let untrusted = match error {
        E::Rustls(error) => certificate(error),
        E::Io(error) => error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
            .is_some_and(certificate),
        _ => false,
    };
    let retry = match error {
        E::BadUri(_) | E::Http(_) | E::Tls(_) | E::Pem(_) | E::InvalidProxyUrl => Retry::Never,
        _ if untrusted => Retry::Never,
        _ => Retry::Later,
    };
    let why = match error {
        E::Io(error) => match slow(error) {
            Some(slow) => format!("it takes {slow}"),
            None => error.to_string(),
        },
        E::Timeout(_) => "it does not answer in time".to_owned(),
        error => error.to_string(),
    };
    let hint = if untrusted {
        "; if you trust it, add its authority to SSL_CERT_FILE"
    } else {
        ""
    };
    TransferError::remote(format!("no answer from {host}: {why}{hint}"), retry)
}

/// Converts a failure while reading a response to an error.
pub(crate) fn read_error(error: &io::Error) -> TransferError {
    match slow(error) {
        // The next attempt may have another source. It continues where this one ends.
        Some(slow) => TransferError::remote(format!("the server sends {slow}"), Retry::Soon),
        None => TransferError::remote(format!("the connection broke: {error}"), Retry::Later),
    }
}

/// Returns whether an error says that the other side is too slow.
pub(crate) fn slow(error: &io::Error) -> Option<Slow> {
    error.get_ref()?.downcast_ref().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_exempts_hosts_and_domains() {
        let list = "localhost, .example.org,*.other.net,1.2.3.4:80";
        for (host, expected) in [
            ("localhost:8080", true),
            ("a.example.org", true),
            ("example.org", true),
            ("badexample.org", false),
            ("X.Other.net:1", true),
            ("1.2.3.4", true),
            ("5.6.7.8", false),
        ] {
            assert_eq!(is_in_no_proxy(host, list), expected, "{host}");
        }
        assert!(is_in_no_proxy("h", "*") && !is_in_no_proxy("h", ""));
    }

    #[test]
    fn forward_requests_contain_the_absolute_address() {
        let (uri, login) = forward_request("http://me:p%40w@cache:3128/", "http://h:1/a?b").expect("valid");
        assert_eq!(uri.host(), Some("cache"));
        assert_eq!(
            uri.path_and_query().map(|all| all.as_str()),
            Some("/http://h:1/a?b")
        );
        assert_eq!(login.as_deref(), Some("Basic bWU6cEB3"));
        assert!(forward_request("cache:3128", "http://h/").is_some());
        assert!(forward_request("socks5://cache", "http://h/").is_none());
        assert!(forward_request("no host", "http://h/").is_none());
    }

    #[test]
    fn statuses_decide_about_retries() {
        for (status, proxied, retry) in [
            (404, false, Retry::Never),
            (403, false, Retry::Never),
            (403, true, Retry::Soon),
            (404, true, Retry::Never),
            (503, false, Retry::Later),
            (500, true, Retry::Later),
            (429, false, Retry::Later),
            (501, false, Retry::Never),
        ] {
            assert_eq!(retry_for_status(status, proxied), retry, "{status}");
        }
    }
}
