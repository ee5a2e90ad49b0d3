//! A small HTTP server with scripted replies and failures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Request {
    /// Method and target: `GET /x`.
    pub line: String,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(known, _)| known == name);
        header.map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Close the connection after this number of bytes of the body.
    pub cut: Option<usize>,
    /// Send the body byte by byte, with this time between two of them.
    pub trickle: Option<Duration>,
    /// Stop sending after this number of bytes of the body, but keep the connection open.
    pub stall: Option<usize>,
}

pub fn status(status: u16) -> Reply {
    Reply {
        status,
        ..Reply::default()
    }
}

pub fn body(bytes: impl Into<Vec<u8>>) -> Reply {
    Reply {
        status: 200,
        body: bytes.into(),
        ..Reply::default()
    }
}

impl Reply {
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// Serves a file with `Range` and `If-Range`. `cut` applies to each reply.
pub fn file(request: &Request, bytes: &[u8], tag: &str, cut: Option<usize>) -> Reply {
    let same = request.header("if-range") == Some(tag);
    range(request, same, bytes, cut).with("ETag", tag)
}

/// Serves the requested range of a file, or the whole file without a range or if not `ranges`.
pub fn range(request: &Request, ranges: bool, bytes: &[u8], cut: Option<usize>) -> Reply {
    let start = request.header("range").filter(|_| ranges).and_then(|range| {
        let start = range.strip_prefix("bytes=")?.strip_suffix('-')?;
        start.parse::<usize>().ok()
    });
    let mut reply = match start {
        Some(start) => {
            let content_range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
            let mut reply = body(&bytes[start..]).with("Content-Range", &content_range);
            reply.status = 206;
            reply
        }
        None => body(bytes),
    };
    reply.cut = cut;
    reply
}

pub struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Starts a server on a free port. `respond` gets each request and its number, from 0.
    pub fn start(respond: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, respond) = (Arc::clone(&requests), Arc::new(respond));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, respond) = (Arc::clone(&seen), Arc::clone(&respond));
                std::thread::spawn(move || serve(stream, &seen, &*respond));
            }
        });
        Self { address, requests }
    }

    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic").clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.line).collect()
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<Request>>, respond: &dyn Fn(&Request, usize) -> Reply) {
    let mut reader = BufReader::new(stream.try_clone().expect("clone"));
    let mut writer = stream;
    while let Some(request) = read(&mut reader, &mut writer) {
        let number = {
            let mut seen = seen.lock().expect("no panic");
            seen.push(request.clone());
            seen.len() - 1
        };
        let reply = respond(&request, number);
        let mut head = format!("HTTP/1.1 {} Text\r\n", reply.status);
        for (name, value) in &reply.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !reply.headers.iter().any(|(name, _)| *name == "Transfer-Encoding") {
            head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
        }
        head.push_str("\r\n");
        let end = reply
            .cut
            .or(reply.stall)
            .unwrap_or(reply.body.len())
            .min(reply.body.len());
        let written = writer
            .write_all(head.as_bytes())
            .and_then(|()| match reply.trickle {
                None => writer.write_all(&reply.body[..end]),
                Some(wait) => reply.body[..end].iter().try_for_each(|byte| {
                    std::thread::sleep(wait);
                    writer.write_all(&[*byte])
                }),
            });
        if reply.stall.is_some() {
            std::thread::sleep(Duration::from_secs(30));
        }
        if written.is_err() || reply.cut.is_some() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>, writer: &mut TcpStream) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let line = line.trim_end().strip_suffix(" HTTP/1.1")?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = Request {
        line,
        headers,
        body: Vec::new(),
    };
    if request.header("expect").is_some() {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let length = request
        .header("content-length")
        .and_then(|length| length.parse().ok());
    request.body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}
