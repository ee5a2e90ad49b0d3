//! How the output of tasks is printed.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, Local, SecondsFormat};
use pmc_terminal::{CopyWriter, escape};
use serde::Serialize;

use crate::cli;
use crate::commands::log::Stream;
use crate::commands::log::show::Writers;

/// Bytes that are written at a time, if there are that many.
const WRITE_SIZE: usize = 64 << 10;

/// Where output comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Name of the task.
    pub task: String,
    /// Number of the attempt, counted from 1.
    pub attempt: u32,
    /// Host; empty if it is not known.
    pub host: String,
    /// Submit number of the attempt.
    #[cfg_attr(
        not(feature = "pmix"),
        expect(dead_code, reason = "a tool for PMIx sees it as the rank")
    )]
    pub submit_number: u32,
}

/// Takes output that is not printed.
pub trait Receiver {
    /// Returns whether it takes lines; else it takes bytes.
    fn has_lines(&self) -> bool;
    /// Takes bytes as they come.
    fn raw(&mut self, origin: &Origin, stream: Stream, bytes: &[u8]);
    /// Takes a line without its end, or a part of one that has no end yet.
    fn line(&mut self, origin: &Origin, stream: Stream, line: &[u8], is_part: bool);
    /// Takes note that nothing more comes from there.
    fn end(&mut self, origin: &Origin);
    /// Passes on what it has gathered.
    fn flush(&mut self);
}

/// Prints.
pub struct Printer {
    form: Form,
    has_time: bool,
    /// Time for the lines that come, in microseconds since the epoch, instead of the present.
    source_time: Option<u64>,
}

enum Form {
    /// Bytes as they come.
    Raw(Writers),
    /// Lines.
    Lines {
        kind: Kind,
        wanted: [bool; 2],
        out: CopyWriter,
        text: String,
    },
    /// To another part of the program.
    Passed(Box<dyn Receiver>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Only with a time.
    Plain,
    Tagged,
    Xml,
    Json,
}

/// A line of `--json`.
#[derive(Serialize)]
struct JsonLine<'a> {
    task: &'a str,
    attempt: u32,
    host: &'a str,
    stream: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Instead of `text` if that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

impl Printer {
    /// Prints as the command line asks for.
    pub fn new(arguments: &cli::Attach, run: &Path) -> Self {
        let kind = match arguments {
            cli::Attach { xml: true, .. } => Kind::Xml,
            cli::Attach { json: true, .. } => Kind::Json,
            cli::Attach { tag: true, .. } => Kind::Tagged,
            _ => Kind::Plain,
        };
        let has_time = arguments.timestamp.is_some();
        if kind == Kind::Plain && !has_time {
            let form = Form::Raw(Writers::new(arguments.stdout, arguments.stderr));
            return Self {
                form,
                has_time,
                source_time: None,
            };
        }
        let mut text = String::new();
        if kind == Kind::Xml {
            let run = xml(&run.to_string_lossy()).into_owned();
            let _ = writeln!(
                text,
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<output run=\"{run}\">"
            );
        }
        Self {
            form: Form::Lines {
                kind,
                wanted: match (arguments.stdout, arguments.stderr) {
                    (true, false) => [true, false],
                    (false, true) => [false, true],
                    _ => [true, true],
                },
                out: CopyWriter::to_stdout(),
                text,
            },
            has_time,
            source_time: None,
        }
    }

    /// Sets the time of the lines that come, in microseconds since the epoch; `None` for the present.
    pub fn set_time(&mut self, time: Option<u64>) {
        self.source_time = time;
    }

    /// Passes everything on.
    #[cfg_attr(not(feature = "pmix"), expect(dead_code, reason = "for tools of PMIx"))]
    pub fn passing(receiver: Box<dyn Receiver>) -> Self {
        Self {
            form: Form::Passed(receiver),
            has_time: false,
            source_time: None,
        }
    }

    /// Returns which streams are printed.
    pub fn wanted(&self) -> [bool; 2] {
        match &self.form {
            Form::Raw(writers) => writers.wanted(),
            Form::Lines { wanted, .. } => *wanted,
            Form::Passed(_) => [true, true],
        }
    }

    /// Returns whether [`Self::line`] is to be called; else [`Self::raw`] is.
    pub fn has_lines(&self) -> bool {
        match &self.form {
            Form::Raw(_) => false,
            Form::Lines { .. } => true,
            Form::Passed(receiver) => receiver.has_lines(),
        }
    }

    /// Prints bytes as they are.
    pub fn raw(&mut self, origin: &Origin, stream: Stream, bytes: &[u8]) {
        match &mut self.form {
            Form::Raw(writers) => writers.write(stream, bytes),
            Form::Lines { .. } => {}
            Form::Passed(receiver) => receiver.raw(origin, stream, bytes),
        }
    }

    /// Takes note that an attempt has ended.
    pub fn end_of(&mut self, origin: &Origin) {
        if let Form::Passed(receiver) = &mut self.form {
            receiver.end(origin);
        }
    }

    /// Prints a line, or a part of one that has no end yet.
    pub fn line(&mut self, origin: &Origin, stream: Stream, line: &[u8], is_part: bool) {
        if let Form::Passed(receiver) = &mut self.form {
            return receiver.line(origin, stream, line, is_part);
        }
        let Form::Lines {
            kind,
            wanted,
            text,
            out,
        } = &mut self.form
        else {
            return;
        };
        if !wanted[stream as usize] {
            return;
        }
        let source = self.source_time;
        let time = self.has_time.then(|| {
            let source = source.and_then(|time| DateTime::from_timestamp_micros(i64::try_from(time).ok()?));
            let time = source.map_or_else(Local::now, |time| time.with_timezone(&Local));
            time.to_rfc3339_opts(SecondsFormat::Micros, false)
        });
        let name = match stream {
            Stream::Out => "stdout",
            Stream::Err => "stderr",
        };
        match kind {
            Kind::Plain | Kind::Tagged => {
                if let Some(time) = time {
                    let _ = write!(text, "{time} ");
                }
                if *kind == Kind::Tagged {
                    let task = escape(&origin.task);
                    let _ = write!(
                        text,
                        "[{task}.{}@{},{name}] ",
                        origin.attempt,
                        escape(&origin.host)
                    );
                }
                text.push_str(&readable(line));
                text.push('\n');
            }
            Kind::Xml => {
                let (task, host) = (xml(&origin.task), xml(&origin.host));
                let attempt = origin.attempt;
                let _ = write!(
                    text,
                    "<{name} task=\"{task}\" attempt=\"{attempt}\" host=\"{host}\""
                );
                if let Some(time) = time {
                    let _ = write!(text, " time=\"{time}\"");
                }
                if is_part {
                    text.push_str(" partial=\"true\"");
                }
                let _ = writeln!(text, ">{}</{name}>", xml(&readable(line)));
            }
            Kind::Json => {
                let utf8 = std::str::from_utf8(line);
                let line = JsonLine {
                    task: &origin.task,
                    attempt: origin.attempt,
                    host: &origin.host,
                    stream: name,
                    time,
                    text: utf8.ok(),
                    base64: utf8.is_err().then(|| BASE64_STANDARD.encode(line)),
                    partial: is_part,
                };
                // This structure has nothing that JSON lacks.
                text.push_str(&serde_json::to_string(&line).unwrap_or_default());
                text.push('\n');
            }
        }
        if text.len() >= WRITE_SIZE {
            out.write(text.as_bytes());
            text.clear();
        }
    }

    /// Writes what has gathered.
    pub fn flush(&mut self) {
        match &mut self.form {
            Form::Lines { out, text, .. } if !text.is_empty() => {
                out.write(text.as_bytes());
                text.clear();
            }
            Form::Passed(receiver) => receiver.flush(),
            _ => {}
        }
    }

    /// Returns whether nobody reads what is printed, or a part of it.
    pub fn is_closed(&self) -> bool {
        match &self.form {
            Form::Raw(writers) => writers.is_one_closed(),
            Form::Lines { out, .. } => !out.is_open(),
            Form::Passed(_) => false,
        }
    }

    /// Ends the document.
    pub fn end(mut self) {
        if let Form::Lines {
            kind: Kind::Xml,
            text,
            ..
        } = &mut self.form
        {
            text.push_str("</output>\n");
        }
        self.flush();
        match self.form {
            Form::Raw(writers) => writers.end(),
            Form::Lines { out, .. } => out.end(),
            Form::Passed(_) => {}
        }
    }
}

/// Returns a line as text: control characters and bytes that are not UTF-8 are escaped.
pub fn readable(line: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(line) {
        return escape(text);
    }
    let mut text = String::with_capacity(line.len() + 16);
    for chunk in line.utf8_chunks() {
        text.push_str(&escape(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\u{byte:04x}");
        }
    }
    text.into()
}

/// Returns text for a document or an attribute. XML has no control characters and no U+FFFE and U+FFFF.
pub fn xml(text: &str) -> Cow<'_, str> {
    let safe = escape(text);
    if !safe.contains(['<', '>', '&', '"', '\'', '\n', '\t', '\u{fffe}', '\u{ffff}']) {
        return safe;
    }
    let safe = safe.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff");
    quick_xml::escape::escape(safe.as_str()).into_owned().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quick_xml::Reader;
    use quick_xml::events::Event;

    use super::*;

    #[test]
    fn what_is_no_text_is_escaped() {
        assert_eq!(readable(b"plain \xc3\xa9\ttext"), "plain é\ttext");
        assert_eq!(readable(b"\x1b[2J\xff\r"), "\\u001b[2J\\u00ff\\u000d");
        assert_eq!(
            xml("a<b>&\"'\u{1}\u{ffff}"),
            "a&lt;b&gt;&amp;&quot;&apos;\\u0001\\uffff"
        );
    }

    proptest! {
        #[test]
        fn any_line_is_well_formed_xml(line in proptest::collection::vec(any::<u8>(), 0..60)) {
            let text = format!("<a>{}</a>", xml(&readable(&line)));
            let mut reader = Reader::from_str(&text);
            loop {
                match reader.read_event() {
                    Ok(Event::Eof) => break,
                    Ok(_) => {}
                    Err(error) => prop_assert!(false, "{error}: {text}"),
                }
            }
            let allowed = |c: char| matches!(c, '\t' | '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
            prop_assert!(text.chars().all(allowed), "{text}");
        }
    }
}
