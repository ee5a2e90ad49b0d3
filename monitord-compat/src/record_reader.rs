//! Reads the invocation records of kickstart (see [`crate::invocation_record`]), as far as monitoring uses
//! them.
//!
//! Kickstart writes a small part of YAML: block mappings, one key a line, two blanks of indentation a level.
//! A line reader takes such a record in a few microseconds. Any other record goes to a YAML parser.
//! A syntax error costs the fields after it only.

use std::borrow::Cow;

use chrono::DateTime;

use crate::yaml_reader::{self, ITEM};

/// An invocation record. Missing texts are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Transformation.
    pub transformation: Option<String>,
    /// Id of the task in the abstract workflow, or `null`.
    pub derivation: Option<String>,
    /// Site.
    pub resource: Option<String>,
    /// Address of the host.
    pub host_address: Option<String>,
    /// Name of the host.
    pub host_name: Option<String>,
    /// User whose account ran the job.
    pub user: Option<String>,
    /// Working directory.
    pub cwd: Option<String>,
    /// The main job.
    pub main: MainJob,
    /// System, release and architecture of the machine.
    pub uname: [Option<String>; 3],
    /// Main memory, KiB.
    pub ram_total: Option<i64>,
    /// Files that the job wrote.
    pub outputs: Vec<OutputFile>,
    /// File of standard input, if it is a named one.
    pub stdin: Option<String>,
    /// Captured standard output.
    pub stdout: Option<String>,
    /// Captured standard error.
    pub stderr: Option<String>,
    /// Where standard output and standard error went.
    pub streams: [StreamFile; 2],
    /// The file entry being read.
    entry: Entry,
}

/// The program of the task itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MainJob {
    /// Seconds since the epoch.
    pub start: Option<f64>,
    /// Seconds.
    pub duration: Option<f64>,
    /// CPU seconds in user mode.
    pub user_time: Option<f64>,
    /// CPU seconds in the kernel.
    pub system_time: Option<f64>,
    /// Largest resident set, KiB.
    pub max_rss: Option<i64>,
    /// Raw wait status; negative if the program did not start.
    pub raw_status: Option<i64>,
    /// Why the program did not start: error number and text.
    pub start_error: Option<String>,
    /// Description of the signal that killed it.
    pub signal_name: Option<String>,
    /// Program file.
    pub executable: Option<String>,
    /// Arguments, without the name of the program.
    pub arguments: Vec<String>,
}

/// A file that the job wrote. All values are the texts of the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputFile {
    /// Logical file name.
    pub lfn: String,
    /// Owner.
    pub user: Option<String>,
    /// Bytes.
    pub size: Option<String>,
    /// Time of the last change.
    pub ctime: Option<String>,
    /// SHA-256.
    pub sha256: Option<String>,
    /// Seconds that the checksum took.
    pub checksum_timing: Option<String>,
}

/// The file that an output stream of the job went to. A missing number is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamFile {
    /// The file that the job was asked to write into; `None` if kickstart captured the stream.
    pub name: Option<String>,
    /// Bytes.
    pub size: Option<u64>,
    /// Number of the file on its file system.
    pub inode: Option<u64>,
    /// The record has only the last part of what was captured.
    pub is_truncated: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Entry {
    key: String,
    is_output: bool,
    file: OutputFile,
}

/// Damage of a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A syntax error.
    #[error("line {line} of the record: {message}")]
    NotYaml {
        /// Line of the record, counted from 1.
        line: usize,
        /// Message of the parser.
        message: String,
    },
    /// The record has no status of its main job.
    #[error("the record ends before the status of its job")]
    Incomplete,
}

impl Record {
    /// Reads one record, with or without its first line `- invocation: True`. An error comes with the
    /// fields before it.
    #[must_use]
    pub fn read(text: &str) -> (Self, Option<RecordError>) {
        let mut record = Self::default();
        let mut error = None;
        if let Err(unsupported) = Lines::new(text).walk(|path, value| record.set(path, value)) {
            let mut parsed = Self::default();
            let walked = yaml_reader::walk(text, |path, value| {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                parsed.set(&path, Cow::Borrowed(value.unwrap_or_default()));
            });
            match walked {
                Ok(()) => record = parsed,
                Err((line, message)) => {
                    let line = line.max(unsupported);
                    error = Some(RecordError::NotYaml { line, message });
                }
            }
        }
        record.end_entry();
        if error.is_none() && record.main.raw_status.is_none() {
            error = Some(RecordError::Incomplete);
        }
        (record, error)
    }

    fn set(&mut self, path: &[&str], value: Cow<'_, str>) {
        let text = |value: Cow<'_, str>| Some(value.into_owned());
        match path {
            ["transformation"] => self.transformation = text(value),
            ["derivation"] => self.derivation = text(value),
            ["resource"] => self.resource = text(value),
            ["hostaddr"] => self.host_address = text(value),
            ["hostname"] => self.host_name = text(value),
            ["user"] => self.user = text(value),
            ["cwd"] => self.cwd = text(value),
            ["mainjob", rest @ ..] => self.main.set(rest, value),
            ["machine", key] => match *key {
                "uname_system" => self.uname[0] = text(value),
                "uname_release" => self.uname[1] = text(value),
                "uname_machine" => self.uname[2] = text(value),
                "ram_total" => self.ram_total = value.parse().ok(),
                _ => {}
            },
            ["files", entry, key] => self.set_file(entry, key, value),
            _ => {}
        }
    }

    fn set_file(&mut self, entry: &str, key: &str, value: Cow<'_, str>) {
        if self.entry.key != entry {
            self.end_entry();
            entry.clone_into(&mut self.entry.key);
        }
        let stream = match entry {
            "stdout" => Some(&mut self.streams[0]),
            "stderr" => Some(&mut self.streams[1]),
            _ => None,
        };
        if let Some(stream) = stream {
            match key {
                "file_name" => stream.name = Some(value.clone().into_owned()),
                "size" => stream.size = value.parse().ok(),
                "inode" => stream.inode = value.parse().ok(),
                "data_truncated" => stream.is_truncated = value.eq_ignore_ascii_case("true"),
                _ => {}
            }
        }
        let file = &mut self.entry.file;
        match key {
            "lfn" => file.lfn = value.into_owned(),
            "user" => file.user = Some(value.into_owned()),
            "size" => file.size = Some(value.into_owned()),
            "ctime" => file.ctime = Some(value.into_owned()),
            "sha256" => file.sha256 = Some(value.into_owned()),
            "checksum_timing" => file.checksum_timing = Some(value.into_owned()),
            "output" => self.entry.is_output = value.eq_ignore_ascii_case("true"),
            "file_name" if entry == "stdin" => self.stdin = Some(value.into_owned()),
            "data" if entry == "stdout" => self.stdout = Some(value.into_owned()),
            "data" if entry == "stderr" => self.stderr = Some(value.into_owned()),
            _ => {}
        }
    }

    fn end_entry(&mut self) {
        let mut entry = std::mem::take(&mut self.entry);
        if entry.is_output {
            if entry.file.lfn.is_empty() {
                entry.file.lfn = entry.key;
            }
            self.outputs.push(entry.file);
        }
    }
}

impl MainJob {
    fn set(&mut self, path: &[&str], value: Cow<'_, str>) {
        match path {
            ["start"] => self.start = epoch(&value),
            ["duration"] => self.duration = finite(&value),
            ["usage", "utime"] => self.user_time = finite(&value),
            ["usage", "stime"] => self.system_time = finite(&value),
            ["usage", "maxrss"] => self.max_rss = value.parse().ok(),
            ["status", "raw"] => self.raw_status = value.parse().ok(),
            ["status", "failure_error"] => self.start_error = Some(value.into_owned()),
            ["status", "signalled_name" | "singalled_name"] => self.signal_name = Some(value.into_owned()),
            ["executable", "file_name"] => self.executable = Some(value.into_owned()),
            ["argument_vector", ITEM] => self.arguments.push(value.into_owned()),
            _ => {}
        }
    }
}

/// Converts ISO 8601 with a zone to seconds since the epoch, with milliseconds.
#[must_use]
pub fn epoch(text: &str) -> Option<f64> {
    let time = DateTime::parse_from_rfc3339(text).ok()?;
    // Milliseconds since the epoch are far below 2^53.
    #[expect(clippy::cast_precision_loss, reason = "see above")]
    Some(time.timestamp_millis() as f64 / 1000.0)
}

/// Reads a number that is neither infinite nor NaN.
pub(crate) fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Reads block mappings line by line.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

/// Number of the first line that needs a YAML parser.
type Unsupported = usize;

/// Longest path that [`Lines::walk`] reports.
const MAX_DEPTH: usize = 4;

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 0 }
    }

    /// Returns the next line without its line feed.
    fn next(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        if rest.is_empty() {
            return None;
        }
        self.line += 1;
        let length = memchr::memchr(b'\n', rest.as_bytes()).unwrap_or(rest.len());
        self.at = (self.at + length + 1).min(self.text.len());
        let line = &rest[..length];
        Some(line.strip_suffix('\r').unwrap_or(line))
    }

    /// Calls `take` for every value with its path, which begins at the fields of the record.
    fn walk(mut self, mut take: impl FnMut(&[&str], Cow<'_, str>)) -> Result<(), Unsupported> {
        let mut take = |path: &[Cow<'a, str>], value| {
            let mut keys = [""; MAX_DEPTH];
            if let Some(keys) = keys.get_mut(..path.len()) {
                keys.iter_mut().zip(path).for_each(|(key, part)| *key = part);
                take(keys, value);
            }
        };
        let mut path: Vec<Cow<'a, str>> = Vec::with_capacity(MAX_DEPTH);
        while let Some(line) = self.next() {
            let content = line.trim_start_matches(' ');
            let indent = line.len() - content.len();
            // Lines without indentation: the record's own first line, or output of another process.
            if content.is_empty() || content.starts_with('#') || (indent == 0 && !content.starts_with("- {"))
            {
                continue;
            }
            if let Some(item) = content.strip_prefix("- ") {
                let value = self.value(item, line.len() - item.len(), indent)?;
                path.push(Cow::Borrowed(ITEM));
                take(&path, value);
                path.pop();
                continue;
            }
            if indent == 0 || indent % 2 != 0 || indent / 2 - 1 > path.len() {
                return Err(self.line);
            }
            let (key, value) = self.key(content)?;
            path.truncate(indent / 2 - 1);
            path.push(key);
            if !value.is_empty() {
                let value = self.value(value, line.len() - value.len(), indent)?;
                take(&path, value);
            }
        }
        Ok(())
    }

    fn key(&self, content: &'a str) -> Result<(Cow<'a, str>, &'a str), Unsupported> {
        let (key, rest) = match content.strip_prefix('"') {
            Some(quoted) => {
                let (key, length) = yaml_reader::double_quoted(quoted).ok_or(self.line)?;
                (key, quoted[length..].strip_prefix(':').ok_or(self.line)?)
            }
            None if content.starts_with(['?', '[', '{', '&', '*', '!', '\'', '|', '>', '%', '@', '`']) => {
                return Err(self.line);
            }
            None => match content.split_once(": ") {
                Some((key, rest)) => (Cow::Borrowed(key), rest),
                None => {
                    let key = content.trim_end().strip_suffix(':').ok_or(self.line)?;
                    (Cow::Borrowed(key), "")
                }
            },
        };
        Ok((key, rest.trim()))
    }

    /// Reads a value that begins at byte `column` of the line just read.
    fn value(&mut self, value: &'a str, column: usize, indent: usize) -> Result<Cow<'a, str>, Unsupported> {
        match value.as_bytes().first() {
            Some(b'"') => {
                if let Some((inner, length)) = yaml_reader::double_quoted(&value[1..])
                    && value[1 + length..].trim().is_empty()
                {
                    return Ok(inner);
                }
                self.long_quoted(column)
            }
            Some(b'|') => self.literal(value, indent),
            Some(b'\'') => {
                let inner = value[1..]
                    .strip_suffix('\'')
                    .filter(|_| value.len() > 1)
                    .ok_or(self.line)?;
                if inner.replace("''", "").contains('\'') {
                    return Err(self.line);
                }
                Ok(Cow::Owned(inner.replace("''", "'")))
            }
            Some(b'>' | b'&' | b'*' | b'!' | b'[' | b'{' | b'%' | b'@' | b'`') => Err(self.line),
            _ => Ok(Cow::Borrowed(value)),
        }
    }

    /// Reads a double-quoted value that continues in the next lines.
    fn long_quoted(&mut self, column: usize) -> Result<Cow<'a, str>, Unsupported> {
        // The line just read ends before `at`; only the last line of a text may lack its line feed.
        let before = &self.text[..self.at];
        let line_end = before.strip_suffix('\n').unwrap_or(before);
        let line_start = line_end.rfind('\n').map_or(0, |at| at + 1);
        let quoted = self.text.get(line_start + column + 1..).ok_or(self.line)?;
        let (value, length) = yaml_reader::double_quoted(quoted).ok_or(self.line)?;
        self.line += quoted[..length].matches('\n').count();
        self.at = self.text.len() - quoted.len() + length;
        // Only blanks may follow the closing quote.
        let rest = &self.text[self.at..];
        let end = memchr::memchr(b'\n', rest.as_bytes()).unwrap_or(rest.len());
        if !rest[..end].trim().is_empty() {
            return Err(self.line);
        }
        self.at = (self.at + end + 1).min(self.text.len());
        Ok(value)
    }

    /// Reads a literal block. `header` is `|` and the rest of its line.
    fn literal(&mut self, header: &str, indent: usize) -> Result<Cow<'a, str>, Unsupported> {
        let mut depth = None;
        let mut chomping = ' ';
        for c in header.chars().skip(1) {
            match c {
                '1'..='9' => depth = c.to_digit(10).map(|digit| indent + digit as usize),
                '-' | '+' => chomping = c,
                _ => return Err(self.line),
            }
        }
        let mut out = String::new();
        let mut breaks = 0;
        loop {
            let (at, number) = (self.at, self.line);
            let Some(line) = self.next() else { break };
            let blanks = line.len() - line.trim_start_matches(' ').len();
            if blanks == line.len() && depth.is_none_or(|depth| blanks <= depth) {
                breaks += 1;
                continue;
            }
            if blanks <= indent {
                (self.at, self.line) = (at, number);
                break;
            }
            // Pegasus' kickstart indents every line by the same amount, even after a first line that begins
            // with blanks. So a line may be indented less than the first.
            let depth = *depth.get_or_insert(blanks);
            (0..breaks).for_each(|_| out.push('\n'));
            breaks = 1;
            out.push_str(&line[depth.min(blanks)..]);
        }
        match chomping {
            '-' => {}
            '+' => (0..breaks).for_each(|_| out.push('\n')),
            _ if out.is_empty() => {}
            _ => out.push('\n'),
        }
        Ok(Cow::Owned(out))
    }
}

#[cfg(test)]
mod tests;
