//! Output of the ranks: whole lines, unless it goes to a pipe or to files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Event, spawn};
use crate::arguments::Options;
use crate::error::LaunchError;
use crate::frames::Stream;

/// Longest part of a line that is kept until the rest comes.
const MAX_LINE: usize = 64 << 10;

/// A thread that writes.
pub(super) struct Outputs {
    parts: Option<Sender<Part>>,
    thread: Option<JoinHandle<()>>,
}

enum Part {
    Bytes {
        proxy: usize,
        rank: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    /// A rank has ended.
    End(u32),
}

/// How output is written.
#[derive(Clone, Debug, Default)]
struct Style {
    has_tag: bool,
    has_time: bool,
    /// Name of the file of each rank, with `%r`.
    files: Option<String>,
}

/// Writes the output.
struct Writer {
    style: Style,
    /// Lines that have begun.
    begun: BTreeMap<(u32, u8), Vec<u8>>,
    files: BTreeMap<u32, File>,
    has_failed: bool,
}

fn number_of(stream: Stream) -> u8 {
    match stream {
        Stream::Out => 0,
        Stream::Err => 1,
    }
}

impl Outputs {
    pub(super) fn start(options: &Options, events: Sender<Event>) -> Result<Self, LaunchError> {
        if options.output.as_ref().is_some_and(|name| !name.contains("%r")) {
            let why = "the name that --output gets must have %r for the rank";
            return Err(LaunchError::Usage(why.to_owned()));
        }
        let mut writer = Writer {
            style: Style {
                has_tag: options.tag,
                has_time: options.timestamp,
                files: options.output.clone(),
            },
            begun: BTreeMap::new(),
            files: BTreeMap::new(),
            has_failed: false,
        };
        let (parts, taken) = channel();
        let thread = spawn("output", move || writer.run(&taken, &events))?;
        Ok(Self {
            parts: Some(parts),
            thread: Some(thread),
        })
    }

    pub(super) fn write(&self, proxy: usize, rank: u32, stream: Stream, bytes: Vec<u8>) {
        self.send(Part::Bytes {
            proxy,
            rank,
            stream,
            bytes,
        });
    }

    /// A rank has ended: a line that it has begun is complete.
    pub(super) fn end(&self, rank: u32) {
        self.send(Part::End(rank));
    }

    fn send(&self, part: Part) {
        if let Some(parts) = &self.parts {
            // The thread ends last.
            let _ = parts.send(part);
        }
    }

    /// Waits until all is written.
    pub(super) fn finish(&mut self) {
        self.parts = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

impl Writer {
    fn run(&mut self, parts: &Receiver<Part>, events: &Sender<Event>) {
        for part in parts {
            let written = match part {
                Part::Bytes {
                    proxy,
                    rank,
                    stream,
                    bytes,
                } => {
                    let written = self.write(rank, stream, &bytes);
                    let _ = events.send(Event::Written { proxy, rank, stream });
                    written
                }
                Part::End(rank) => self.end(rank),
            };
            if let Err(error) = written
                && !std::mem::replace(&mut self.has_failed, true)
            {
                let why = pmc_dag::reason(&error);
                pmc_terminal::message(format_args!("output of ranks cannot be written: {why}"));
            }
        }
    }

    fn write(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if self.style.files.is_some() {
            return self.write_to_file(rank, bytes);
        }
        let is_terminal = match stream {
            Stream::Out => io::stdout().is_terminal(),
            Stream::Err => io::stderr().is_terminal(),
        };
        if !(is_terminal || self.style.has_tag || self.style.has_time) {
            return put(stream, bytes);
        }
        let begun = self.begun.entry((rank, number_of(stream))).or_default();
        begun.extend_from_slice(bytes);
        let whole = match begun.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => begun.drain(..=end).collect(),
            None if begun.len() > MAX_LINE => std::mem::take(begun),
            None => return Ok(()),
        };
        put(stream, &self.style.lines(rank, &whole))
    }

    fn end(&mut self, rank: u32) -> io::Result<()> {
        self.files.remove(&rank);
        for stream in [Stream::Out, Stream::Err] {
            let begun = self.begun.remove(&(rank, number_of(stream)));
            if let Some(mut begun) = begun.filter(|begun| !begun.is_empty()) {
                begun.push(b'\n');
                put(stream, &self.style.lines(rank, &begun))?;
            }
        }
        Ok(())
    }

    fn write_to_file(&mut self, rank: u32, bytes: &[u8]) -> io::Result<()> {
        if !self.files.contains_key(&rank) {
            let name = self.style.files.as_deref().unwrap_or_default();
            let name = name.replace("%r", &rank.to_string());
            self.files.insert(rank, pmc_files::create_anew(Path::new(&name))?);
        }
        match self.files.get_mut(&rank) {
            Some(file) => file.write_all(bytes),
            None => Ok(()),
        }
    }
}

impl Style {
    /// Lines with what stands before each of them.
    fn lines(&self, rank: u32, whole: &[u8]) -> Vec<u8> {
        if !(self.has_tag || self.has_time) {
            return whole.to_vec();
        }
        let mut before = String::new();
        if self.has_time {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            before.push_str(&format!("{}.{:03} ", now.as_secs(), now.subsec_millis()));
        }
        if self.has_tag {
            before.push_str(&format!("[{rank}] "));
        }
        let lines = whole.split_inclusive(|byte| *byte == b'\n');
        lines
            .flat_map(|line| [before.as_bytes(), line].concat())
            .collect()
    }
}

fn put(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Stream::Err => io::stderr().lock().write_all(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_stand_before_each_line() {
        let style = Style {
            has_tag: true,
            ..Style::default()
        };
        assert_eq!(style.lines(3, b"a\nb\n"), b"[3] a\n[3] b\n");
        assert_eq!(Style::default().lines(3, b"a\nb"), b"a\nb");
        let timed = Style {
            has_time: true,
            has_tag: true,
            ..Style::default()
        };
        let text = String::from_utf8(timed.lines(0, b"x\n")).unwrap();
        let (seconds, rest) = text.split_once('.').unwrap();
        assert!(
            seconds.parse::<u64>().unwrap() > 0 && rest.ends_with(" [0] x\n"),
            "{text}"
        );
    }
}
