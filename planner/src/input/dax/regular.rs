//! Fast reader for jobs and dependencies in the form that programs write: several times faster than full XML.
//!
//! It scans the text of a whole `job` or `child` element once. On anything unusual (an entity, a comment, a
//! rare element or attribute, an error) it gives up, and the full reader reads the element from its start.
//! Both give the same workflow. Files of an abandoned element may have numbers already, in the order of the
//! full reader.

use std::sync::Arc;

use super::job::{Rules, finish_use, link, xml_transfer};
use super::{Dax, put};
use crate::input::builder::{Builder, default_use, parse_size};
use crate::keys;
use crate::model::{
    Arguments, FileId, FileKind, FileUse, Job, JobKind, Link, Position, TransferFlag, TransformationName,
};
use crate::profiles::{Namespace, Profiles, parse_bool};
use crate::syntax::xml::Xml;

/// Maximum attributes of an element; the full reader handles more.
const MAX_ATTRIBUTES: usize = 8;

/// Buffers for the parts of a job that is being read.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    /// All file uses of a job.
    pub(super) uses: Vec<FileUse>,
    /// Parents of a child: offset in the text, and id.
    pub(super) parents: Vec<(usize, &'a str)>,
    arguments: String,
}

/// A job before it is added; its files are in [`Found::uses`].
#[derive(Debug, Default)]
pub(super) struct PartialJob<'a> {
    id: &'a str,
    /// Namespace, name and version of its transformation.
    pub(super) runs: (Option<&'a str>, &'a str, Option<&'a str>),
    arguments: String,
    profiles: Profiles,
    metadata: Vec<(String, String)>,
    /// Standard input, output, error.
    streams: [Option<FileId>; 3],
}

impl PartialJob<'_> {
    /// Returns the job without file uses and position.
    pub(super) fn with(self, transformation: Arc<TransformationName>) -> Job {
        let [stdin, stdout, stderr] = self.streams;
        Job {
            id: self.id.to_owned(),
            kind: JobKind::Compute,
            nested: None,
            transformation,
            file: None,
            arguments: Arguments::Raw(self.arguments),
            stdin,
            stdout,
            stderr,
            uses: Vec::new(),
            profiles: self.profiles,
            metadata: self.metadata,
            hooks: Vec::new(),
            position: Position::default(),
        }
    }
}

/// A position in the text.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

/// How a start tag ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Close {
    /// `>`
    Open,
    /// `/>`
    Empty,
}

impl<'a> Scan<'a> {
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn blanks(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Skips a text if it comes next.
    fn eat(&mut self, expected: &str) -> bool {
        let comes = self.text.as_bytes()[self.at..].starts_with(expected.as_bytes());
        if comes {
            self.at += expected.len();
        }
        comes
    }

    fn need(&mut self, expected: &str) -> Option<()> {
        self.eat(expected).then_some(())
    }

    /// Reads the name of the next start tag.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        self.need("<")?;
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().position(|b| !b.is_ascii_alphabetic())?;
        let name = self.text.get(self.at..self.at + length)?;
        self.at += length;
        matches!(self.byte()?, b' ' | b'\n' | b'\t' | b'/' | b'>').then_some(name)
    }

    /// Calls `each` with name and value of each attribute, up to the end of the tag.
    fn attributes(&mut self, mut each: impl FnMut(&'a str, &'a str) -> Option<()>) -> Option<Close> {
        let mut names = [""; MAX_ATTRIBUTES];
        let mut count = 0;
        loop {
            let before = self.at;
            self.blanks();
            match self.byte()? {
                b'>' => {
                    self.at += 1;
                    return Some(Close::Open);
                }
                b'/' => {
                    self.need("/>")?;
                    return Some(Close::Empty);
                }
                _ if before == self.at => return None,
                _ => {}
            }
            let rest = &self.text.as_bytes()[self.at..];
            let length = rest
                .iter()
                .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')))?;
            let name = self.text.get(self.at..self.at + length)?;
            self.at += length;
            self.need("=")?;
            let quote = self.byte().filter(|b| matches!(b, b'"' | b'\''))?;
            self.at += 1;
            let length = memchr::memchr(quote, &self.text.as_bytes()[self.at..])?;
            let value = self.text.get(self.at..self.at + length)?;
            self.at += length + 1;
            // Entities and white space other than spaces need replacement.
            if name.is_empty() || has_special(value) || names[..count].contains(&name) {
                return None;
            }
            *names.get_mut(count)? = name;
            count += 1;
            each(name, value)?;
        }
    }

    /// Reads the end of an element without content.
    fn end_of(&mut self, close: Close, end: &str) -> Option<()> {
        if close == Close::Open {
            self.blanks();
            self.need(end)?;
        }
        Some(())
    }

    /// Reads text up to the next `<`.
    fn characters(&mut self) -> Option<&'a str> {
        let length = memchr::memchr(b'<', &self.text.as_bytes()[self.at..])?;
        let text = self.text.get(self.at..self.at + length)?;
        self.at += length;
        let special = |b: u8| (b == b'&') | (b == b'\r');
        (!text.bytes().fold(false, |found, b| found | special(b))).then_some(text)
    }

    /// Reads the text of an element with a key, trimmed.
    fn keyed_text(&mut self, close: Close, end: &str) -> Option<&'a str> {
        if close == Close::Empty {
            return Some("");
        }
        let text = self.characters()?;
        self.need(end)?;
        Some(text.trim())
    }
}

fn has_special(value: &str) -> bool {
    let special = |b: u8| (b < b' ') | (b == b'&') | (b == b'<') | (b == b'>');
    value.bytes().fold(false, |found, b| found | special(b))
}

fn known(value: &str) -> Option<&str> {
    Some(value).filter(|v| !v.is_empty())
}

impl<'a> Dax<'_, 'a> {
    /// Reads jobs and dependencies while they are regular.
    pub(super) fn regular(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        while let Some((text, start)) = self.xml.rest() {
            let mut scan = Scan { text, at: start };
            scan.blanks();
            let start = scan.at;
            let read = match scan.name() {
                Some("job") => self.regular_job(&mut scan, start, &mut found),
                Some("child") => self.regular_child(&mut scan, &mut found),
                _ => None,
            };
            if read.is_none() {
                break;
            }
            self.xml.pass(scan.at);
        }
        self.found = found;
    }

    fn regular_job(&mut self, scan: &mut Scan<'a>, start: usize, found: &mut Found<'a>) -> Option<()> {
        let partial = job(scan, self.rules, self.builder, found)?;
        // No step below can fail.
        let (namespace, name, version) = partial.runs;
        let mut job = partial.with(self.builder.transformation_of(namespace, name, version));
        job.position = self.xml.position(start);
        job.uses.reserve_exact(found.uses.len());
        for used in found.uses.drain(..) {
            self.builder.add_use(&mut job, used);
        }
        let position = job.position;
        self.builder.add_job(job, position);
        Some(())
    }

    fn regular_child(&mut self, scan: &mut Scan<'a>, found: &mut Found<'a>) -> Option<()> {
        let child = child(scan, found)?;
        add_child(self.xml, self.builder, child, &found.parents);
        Some(())
    }
}

/// Adds the dependencies of a child.
pub(super) fn add_child(xml: &mut Xml<'_>, builder: &mut Builder, child: &str, parents: &[(usize, &str)]) {
    let number = builder.job(child);
    for &(start, parent) in parents {
        match (builder.job(parent), number) {
            (Some(parent), Some(child)) if parent != child => {
                builder.workflow.edges.push((parent, child));
            }
            _ => {
                let position = xml.position(start);
                builder.add_dependency(parent, child, position);
            }
        }
    }
}

/// Reads a job after the name of its start tag.
pub(super) fn job<'a>(
    scan: &mut Scan<'a>,
    rules: Rules,
    names: &mut Builder,
    found: &mut Found<'a>,
) -> Option<PartialJob<'a>> {
    let (mut id, mut namespace, mut name, mut version) = ("", None, "", None);
    let close = scan.attributes(|key, value| {
        match key {
            "id" => id = value,
            "name" => name = value,
            "namespace" => namespace = known(value),
            "version" => version = known(value),
            "file" => return None,
            _ => {}
        }
        Some(())
    })?;
    if name.is_empty() {
        return None;
    }
    let mut job = PartialJob::default();
    found.uses.clear();
    found.arguments.clear();
    loop {
        scan.blanks();
        if close == Close::Empty || scan.eat("</job>") {
            break;
        }
        match scan.name()? {
            "uses" => {
                let used = file_use(names, scan)?;
                found.uses.push(used);
            }
            "argument" => {
                found.arguments.clear();
                argument(scan, rules, &mut found.arguments)?;
            }
            "profile" => {
                let (mut namespace, mut key) = ("", "");
                let close = scan.attributes(|name, value| {
                    match name {
                        "namespace" => namespace = value,
                        "key" => key = value,
                        _ => {}
                    }
                    Some(())
                })?;
                let value = scan.keyed_text(close, "</profile>")?;
                let namespace = Namespace::parse(namespace).filter(|_| !key.is_empty())?;
                // Other keys cause warnings, and numbers may be invalid.
                if !keys::is_plain(namespace, key) {
                    return None;
                }
                job.profiles.set(namespace, key, value);
            }
            "metadata" => {
                let mut key = "";
                let close = scan.attributes(|name, value| {
                    if name == "key" {
                        key = value;
                    }
                    Some(())
                })?;
                let value = scan.keyed_text(close, "</metadata>")?;
                put(&mut job.metadata, known(key)?.to_owned(), value.to_owned());
            }
            "stdin" => job.streams[0] = Some(stream(scan, names, "</stdin>")?),
            "stdout" => job.streams[1] = Some(stream(scan, names, "</stdout>")?),
            "stderr" => job.streams[2] = Some(stream(scan, names, "</stderr>")?),
            _ => return None,
        }
    }
    job.id = id;
    job.runs = (namespace, name, version);
    job.arguments = found.arguments.as_str().into();
    Some(job)
}

fn argument(scan: &mut Scan<'_>, rules: Rules, all: &mut String) -> Option<()> {
    if scan.attributes(|_, _| Some(()))? == Close::Empty {
        return Some(());
    }
    let mut after_file = false;
    loop {
        let text = scan.characters()?;
        if scan.eat("</argument>") {
            rules.add_chunk(all, text);
            return Some(());
        }
        scan.need("<file ")?;
        scan.at -= 1;
        let mut name = None;
        let close = scan.attributes(|key, value| {
            name = Some(value);
            (key == "name").then_some(())
        })?;
        let name = name?;
        scan.end_of(close, "</file>")?;
        if after_file && text.is_empty() && rules.separates_files {
            all.push(' ');
        }
        rules.add_chunk(all, text);
        all.push_str(name);
        after_file = true;
    }
}

fn stream(scan: &mut Scan<'_>, names: &mut Builder, end: &str) -> Option<FileId> {
    let mut name = None;
    let close = scan.attributes(|key, value| {
        match key {
            "name" => name = Some(value),
            "file" => return None,
            _ => {}
        }
        Some(())
    })?;
    scan.end_of(close, end)?;
    names.harmless_file(name?)
}

/// Reads a child after the name of its start tag. Its parents go to [`Found::parents`].
pub(super) fn child<'a>(scan: &mut Scan<'a>, found: &mut Found<'a>) -> Option<&'a str> {
    let mut child = None;
    if scan.attributes(|name, value| reference(name, value, &mut child))? == Close::Empty {
        return None;
    }
    let child = child?;
    found.parents.clear();
    loop {
        scan.blanks();
        if scan.eat("</child>") {
            return Some(child);
        }
        let start = scan.at;
        if scan.name()? != "parent" {
            return None;
        }
        let mut parent = None;
        let close = scan.attributes(|name, value| reference(name, value, &mut parent))?;
        scan.end_of(close, "</parent>")?;
        found.parents.push((start, parent?));
    }
}

fn reference<'a>(name: &str, value: &'a str, id: &mut Option<&'a str>) -> Option<()> {
    if name == "ref" {
        *id = Some(value);
    }
    Some(())
}

fn file_use(names: &mut Builder, scan: &mut Scan<'_>) -> Option<FileUse> {
    let mut found = default_use(FileId::new(0), Link::None);
    let mut file = "";
    let close = scan.attributes(|name, value| {
        match name {
            "name" | "file" => file = value,
            "link" => found.link = link(value)?,
            "register" => found.register = parse_bool(value)?,
            "transfer" => {
                found.transfer = match value {
                    "optional" => TransferFlag::Optional,
                    _ if xml_transfer(value)? => TransferFlag::Mandatory,
                    _ => TransferFlag::Not,
                };
            }
            "optional" => found.optional = parse_bool(value)?,
            "size" => found.size = Some(parse_size(value)?),
            "type" if value == "executable" => found.kind = FileKind::Executable,
            "executable" if parse_bool(value)? => found.kind = FileKind::Executable,
            "executable" | "type" => {}
            // Old attribute names, and executables whose names have several parts.
            _ => return None,
        }
        Some(())
    })?;
    scan.end_of(close, "</uses>")?;
    found.file = names.harmless_file(known(file)?)?;
    finish_use(&mut found, false);
    Some(found)
}
