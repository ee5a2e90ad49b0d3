//! Requests over HTTP: connections, redirections, and what failures mean.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ureq::http::uri::{self, Scheme};
use ureq::http::{HeaderMap, Uri};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body, Proxy, SendBody};

use super::{address, forward_proxy, tls};
use crate::cancel::Cancel;
use crate::error::{Retry, TransferError};
use crate::remote::Environment;
use crate::shown;

/// Most redirections that are followed.
const MAX_REDIRECTS: u32 = 10;
/// Bodies from this size on are only sent after the server has agreed to take them.
const EXPECT_CONTINUE_SIZE: u64 = 1 << 20;
/// Most bytes of an answer that is read as a text.
const MAX_TEXT_SIZE: u64 = 16 << 20;

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a name to be resolved, and for a connection.
    pub connect: Duration,
    /// For the next bytes to come or go, or an answer to begin.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(60),
            idle: Duration::from_secs(300),
        }
    }
}

/// What goes along with a request.
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

/// A request.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) address: String,
    pub(crate) headers: Vec<(String, String)>,
    /// Headers that only the host of `address` may see.
    pub(crate) secrets: Vec<(String, String)>,
    pub(crate) payload: Payload<'a>,
    /// Whether the proxy of the environment is used, if this is a `GET`.
    pub(crate) proxied: bool,
    /// Whether certificates are not checked.
    pub(crate) insecure: bool,
    /// Whether redirections are followed.
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

/// An answer, of whatever status.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// Whether it came through a proxy.
    pub(crate) proxied: bool,
}

impl Response {
    /// A header that is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as text.
    pub(crate) fn text(&mut self) -> Result<String, TransferError> {
        let mut bytes = Vec::new();
        self.body
            .as_reader()
            .take(MAX_TEXT_SIZE)
            .read_to_end(&mut bytes)
            .map_err(|error| read_error(&error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The failure that an unwanted status is.
    pub(crate) fn failure(mut self) -> TransferError {
        let retry = retry_for_status(self.status, self.proxied);
        let words = ureq::http::StatusCode::from_u16(self.status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .unwrap_or("an unknown status");
        let mut message = format!("the server answered {} {words}", self.status);
        if self.proxied {
            message.push_str(" (through a proxy)");
        }
        let schemes = self.header("www-authenticate").unwrap_or_default();
        if self.status == 401 && !schemes.is_empty() && !schemes.to_ascii_lowercase().contains("basic") {
            message.push_str("; it wants a kind of authentication other than Basic");
        }
        // Some say why in the body.
        let plain = self.header("content-type").is_some_and(|kind| {
            kind.starts_with("text/plain") || kind.contains("xml") || kind.contains("json")
        });
        if plain && let Ok(text) = self.text() {
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

/// Whether a status may be another one later.
fn retry_for_status(status: u16, proxied: bool) -> Retry {
    match status {
        408 | 421 | 423 | 425 | 429 => Retry::Later,
        501 | 505 => Retry::Never,
        500..=599 => Retry::Later,
        // The next attempt goes without the proxy, which may be the one that refuses.
        400 | 403 | 407 if proxied => Retry::Soon,
        _ => Retry::Never,
    }
}

/// Makes requests. Connections are kept and shared by threads.
pub(crate) struct Client {
    environment: Arc<Environment>,
    timeouts: Timeouts,
    agents: Mutex<HashMap<Kind, Agent>>,
    cancel: Cancel,
}

/// Connections that must not be mixed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    /// The proxy to tunnel through.
    tunnel: Option<String>,
    /// Whether a proxy is asked, with the whole address.
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

    /// Sends a request, follows redirections, and returns what is answered. Statuses are no failures here.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Response, TransferError> {
        let mut address = request.address.clone();
        for _ in 0..=MAX_REDIRECTS {
            if self.cancel.is_cancelled() {
                return Err(TransferError::Cancelled);
            }
            let response = self.send_once(request, &address)?;
            let elsewhere = matches!(response.status, 301 | 302 | 303 | 307 | 308) && request.follow;
            let Some(location) = response.header("location").filter(|_| elsewhere) else {
                return Ok(response);
            };
            address = address::resolve(&address, location).ok_or_else(|| {
                let name = shown::bytes(location.as_bytes());
                TransferError::remote(format!("the server redirects to '{name}'"), Retry::Never)
            })?;
        }
        Err(TransferError::remote(
            format!("the server redirects more than {MAX_REDIRECTS} times"),
            Retry::Never,
        ))
    }

    fn send_once(&self, request: &Request<'_>, address: &str) -> Result<Response, TransferError> {
        let bad = || {
            let name = shown::bytes(address.as_bytes());
            TransferError::remote(format!("'{name}' is not an address"), Retry::Never)
        };
        let (scheme, host, _) = address::split(address).ok_or_else(bad)?;
        let secure = scheme.eq_ignore_ascii_case("https");
        let proxy = if request.proxied && request.method == "GET" {
            self.proxy(secure, host)
        } else {
            None
        };
        let proxied = proxy.is_some();
        // Proxies tunnel what is encrypted, and are asked for the rest.
        let (tunnel, asked) = if secure { (proxy, None) } else { (None, proxy) };
        let agent = self.agent(Kind {
            tunnel,
            forward_proxy: asked.is_some(),
            secure,
            insecure: secure && request.insecure,
        })?;
        let mut builder = ureq::http::Request::builder().method(request.method);
        builder = match &asked {
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
        let response = match request.payload {
            Payload::None => agent.run(builder.body(()).map_err(|_| bad())?),
            Payload::Bytes(bytes) => {
                if bytes.len() as u64 >= EXPECT_CONTINUE_SIZE {
                    builder = builder.header("expect", "100-continue");
                }
                agent.run(builder.body(bytes).map_err(|_| bad())?)
            }
            Payload::File { file, length } => {
                builder = builder.header("content-length", length.to_string());
                if length >= EXPECT_CONTINUE_SIZE {
                    builder = builder.header("expect", "100-continue");
                }
                let mut content = FileReader {
                    file,
                    position: 0,
                    left: length,
                };
                let body = SendBody::from_reader(&mut content);
                agent.run(builder.body(body).map_err(|_| bad())?)
            }
        };
        match response {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                Ok(Response {
                    status: parts.status.as_u16(),
                    headers: parts.headers,
                    body,
                    proxied,
                })
            }
            Err(_) if self.cancel.is_cancelled() => Err(TransferError::Cancelled),
            Err(error) => Err(connection_error(host, &error)),
        }
    }

    /// The proxy for a host, if the environment names one.
    fn proxy(&self, secure: bool, host: &str) -> Option<String> {
        let environment = &self.environment;
        let skip = environment
            .text("no_proxy")
            .or_else(|| environment.text("NO_PROXY"))
            .unwrap_or("");
        if is_in_no_proxy(host, skip) {
            return None;
        }
        let of_scheme = if secure {
            environment
                .text("https_proxy")
                .or_else(|| environment.text("HTTPS_PROXY"))
        } else {
            environment
                .text("http_proxy")
                .or_else(|| environment.text("OSG_SQUID_LOCATION"))
        };
        of_scheme
            .or_else(|| environment.text("all_proxy"))
            .or_else(|| environment.text("ALL_PROXY"))
            .filter(|proxy| *proxy != "UNAVAILABLE")
            .map(str::to_owned)
    }

    fn agent(&self, kind: Kind) -> Result<Agent, TransferError> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agents.get(&kind) {
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
            .timeout_per_read(Some(self.timeouts.idle))
            .timeout_per_write(Some(self.timeouts.idle))
            .proxy(None);
        if kind.secure {
            config = config.tls_config(tls::config(&self.environment, kind.insecure));
        }
        if let Some(proxy) = &kind.tunnel {
            let address = if proxy.contains("://") {
                proxy.clone()
            } else {
                format!("http://{proxy}")
            };
            let tunnel = Proxy::new(&address).map_err(|_| invalid_proxy(proxy))?;
            config = config.proxy(Some(tunnel));
        }
        let config = config.build();
        let agent = if kind.forward_proxy {
            Agent::with_parts(config, forward_proxy::connector(), DefaultResolver::default())
        } else {
            config.new_agent()
        };
        self.abort_on_cancel(&agent);
        agents.insert(kind, agent.clone());
        Ok(agent)
    }

    /// Ends the requests of an agent when the run is cancelled: they would wait on for their time-outs.
    fn abort_on_cancel(&self, agent: &Agent) {
        let (agent, cancel, over) = (
            agent.clone(),
            self.cancel.clone(),
            Arc::downgrade(&self.environment),
        );
        let watch = move || {
            while over.strong_count() > 0 {
                if cancel.is_cancelled() {
                    agent.shutdown();
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        // Without that thread a request to stop is seen between two blocks of data.
        let _ = std::thread::Builder::new().spawn(watch);
    }
}

/// The request to a proxy for an address, which it wants whole, and the login if the proxy's own address has one.
fn forward_request(proxy: &str, address: &str) -> Option<(Uri, Option<String>)> {
    let (scheme, host, _) = address::split(proxy).unwrap_or(("http", proxy.trim_end_matches('/'), ""));
    let (login, host) = match host.rsplit_once('@') {
        Some((login, host)) => (Some(address::basic(&address::decode(login))), host),
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

/// What is sent of a file, as a request reads it.
struct FileReader<'a> {
    file: &'a File,
    position: u64,
    left: u64,
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.position)?;
        if read == 0 && most > 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was sent",
            ));
        }
        self.position += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Whether `list` (`host,.domain,domain:port,*`) excepts a host with port.
fn is_in_no_proxy(host: &str, list: &str) -> bool {
    let bare = |host: &str| match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name.to_ascii_lowercase(),
        _ => host.to_ascii_lowercase(),
    };
    let name = bare(host);
    list.split([',', ' '])
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .any(|entry| {
            let domain = bare(entry);
            let domain = domain.trim_start_matches('*').trim_start_matches('.');
            entry == "*" || (!domain.is_empty() && (name == domain || name.ends_with(&format!(".{domain}"))))
        })
}

/// A failure before any answer.
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
        E::Io(error) => error.to_string(),
        E::Timeout(_) => "it does not answer in time".to_owned(),
        error => error.to_string(),
    };
    let hint = if untrusted {
        "; if it is right all the same, name its authority in SSL_CERT_FILE"
    } else {
        ""
    };
    TransferError::remote(format!("no answer from {host}: {why}{hint}"), retry)
}

/// A connection that broke while an answer was read.
pub(crate) fn read_error(error: &io::Error) -> TransferError {
    TransferError::remote(format!("the connection broke: {error}"), Retry::Later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_proxy() {
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
    fn a_proxy_is_asked_for_the_whole_address() {
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
    fn statuses_are_sorted() {
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
