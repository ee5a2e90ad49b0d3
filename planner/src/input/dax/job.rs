//! Jobs of a DAX, with their arguments and files.

use super::{Dax, put};
use crate::diagnostic::Diagnostic;
use crate::input::builder::{NoSize, default_use};
use crate::model::{
    Arguments, FileId, FileKind, FileUse, Job, JobKind, Link, TransferFlag, TransformationName,
};
use crate::profiles::Namespace;
use crate::syntax::xml::{Element, Part, Result};

const LEGAL_CHILDREN: &str = "argument, profile, metadata, stdin, stdout, stderr, uses, invoke";

impl<'a> Dax<'_, 'a> {
    pub(super) fn job(&mut self, element: &Element<'a>) -> Result<()> {
        let position = element.position;
        let mut job = Job {
            position,
            kind: match element.name() {
                "dax" => JobKind::SubWorkflow,
                "dag" => JobKind::SubDag,
                _ => JobKind::Compute,
            },
            arguments: Arguments::Raw(String::new()),
            ..Job::default()
        };
        let mut name = TransformationName::default();
        let builder = &mut *self.builder;
        self.xml.attributes(element, |_, key, value| match key {
            "id" => value.clone_into(&mut job.id),
            "namespace" => name.namespace = Some(value.to_owned()).filter(|v| !v.is_empty()),
            "name" => value.clone_into(&mut name.name),
            "version" => name.version = Some(value.to_owned()).filter(|v| !v.is_empty()),
            "file" => job.file = Some(builder.file(value, position)),
            _ => {}
        })?;
        self.check_target(&mut job, &mut name);
        job.transformation = self.builder.transformation(name);
        while let Some(inner) = self.xml.element()? {
            match inner.name() {
                "argument" => job.arguments = Arguments::Raw(self.argument()?),
                "profile" => self.profile(&inner, &mut job.profiles)?,
                // Old versions request a site by `<execution key="site">S</execution>`.
                "execution" => {
                    let (key, value) = self.keyed(&inner)?;
                    job.profiles
                        .set(Namespace::Selector, &format!("execution.{key}"), &value);
                }
                "metadata" => {
                    let (key, value) = self.keyed(&inner)?;
                    put(&mut job.metadata, key, value);
                }
                "stdin" => job.stdin = self.stream(&inner)?,
                "stdout" => job.stdout = self.stream(&inner)?,
                "stderr" => job.stderr = self.stream(&inner)?,
                "uses" => {
                    if let Some(found) = self.file_use(&inner)? {
                        self.builder.add_use(&mut job, found);
                    }
                }
                "invoke" => job.hooks.extend(self.invoke(&inner)?),
                _ => self.xml.illegal_element(&inner, element.name(), LEGAL_CHILDREN)?,
            }
        }
        // The file of a sub-workflow is an implicit input.
        if let (Some(file), true) = (job.file, job.kind != JobKind::Compute) {
            self.builder.add_use(&mut job, default_use(file, Link::Input));
        }
        self.builder.add_job(job, position);
        Ok(())
    }

    fn check_target(&mut self, job: &mut Job, name: &mut TransformationName) {
        if job.kind == JobKind::Compute {
            job.file = None;
            if name.name.is_empty() {
                let message = format!("job {} needs the attribute name", job.id);
                self.xml.problem(job.position, message);
            }
        } else {
            *name = job.kind.planner_name();
            if job.file.is_none() {
                let message = format!("job {} needs the attribute file", job.id);
                self.xml.problem(job.position, message);
            }
        }
    }

    /// Reads an argument: text and file names. `rules` say what becomes of white space.
    fn argument(&mut self) -> Result<String> {
        let mut all = String::new();
        let rules = self.rules;
        let mut chunk = std::mem::take(&mut self.chunk);
        let mut after_file = false;
        while let Some(part) = self.xml.part()? {
            let element = match part {
                Part::Text(text) => {
                    chunk.push_str(&text);
                    continue;
                }
                Part::Element(element) => element,
            };
            if !matches!(element.name(), "file" | "filename") {
                self.xml.illegal_element(&element, "argument", "file")?;
                continue;
            }
            let name = self.file_name(&element)?;
            self.xml.skip()?;
            if after_file && chunk.is_empty() && rules.separates_files {
                all.push(' ');
            }
            rules.add_chunk(&mut all, &chunk);
            chunk.clear();
            all.push_str(&name.unwrap_or_default());
            after_file = true;
        }
        rules.add_chunk(&mut all, &chunk);
        chunk.clear();
        self.chunk = chunk;
        all.shrink_to_fit();
        Ok(all)
    }

    /// Reads the attribute `name`, or `file` in old versions.
    fn file_name(&mut self, element: &Element<'a>) -> Result<Option<String>> {
        let mut name = None;
        self.xml.attributes(element, |_, key, value| {
            if key == "name" || (key == "file" && name.is_none()) {
                name = Some(value.to_owned());
            }
        })?;
        if name.is_none() {
            self.xml.problem(
                element.position,
                format!("the element {} needs the attribute name", element.name()),
            );
        }
        Ok(name)
    }

    fn stream(&mut self, element: &Element<'a>) -> Result<Option<FileId>> {
        let name = self.file_name(element)?;
        self.xml.skip()?;
        Ok(name.map(|name| self.builder.file(&name, element.position)))
    }

    pub(super) fn file_use(&mut self, element: &Element<'a>) -> Result<Option<FileUse>> {
        let position = element.position;
        let mut found = default_use(FileId::new(0), Link::None);
        let mut name = std::mem::take(&mut self.use_name);
        name.name.clear();
        (name.namespace, name.version) = (None, None);
        let mut file = None;
        let mut temporary = false;
        let builder = &mut *self.builder;
        self.xml.attributes(element, |xml, key, value| match key {
            // The name of an executable consists of three attributes.
            "name" | "file" => {
                value.clone_into(&mut name.name);
            }
            "namespace" => name.namespace = Some(value.to_owned()).filter(|v| !v.is_empty()),
            "version" => name.version = Some(value.to_owned()).filter(|v| !v.is_empty()),
            "link" => match link(value) {
                Some(parsed) => found.link = parsed,
                None => {
                    let message = format!("`{value}` is not a link of a file");
                    let error = Diagnostic::at(xml.file(), position, message);
                    xml.problems
                        .push(error.with_hint("links are input, output, inout, checkpoint, none"));
                }
            },
            "type" if value == "executable" => found.kind = FileKind::Executable,
            "executable" if xml.boolean(position, key, value) == Some(true) => {
                found.kind = FileKind::Executable;
            }
            "optional" => found.optional = xml.boolean(position, key, value).unwrap_or(false),
            "register" => found.register = xml.boolean(position, key, value).unwrap_or(true),
            "dontRegister" => found.register = !xml.boolean(position, key, value).unwrap_or(false),
            "transfer" => {
                found.transfer = match (value, xml_transfer(value)) {
                    ("optional", _) => TransferFlag::Optional,
                    (_, Some(true)) => TransferFlag::Mandatory,
                    (_, Some(false)) => TransferFlag::Not,
                    _ => {
                        let message =
                            format!("the attribute transfer must be true, false or optional, not `{value}`");
                        xml.problem(position, message);
                        TransferFlag::Mandatory
                    }
                }
            }
            "dontTransfer" => {
                found.transfer = match xml_transfer(value) {
                    Some(true) => TransferFlag::Not,
                    Some(false) => TransferFlag::Mandatory,
                    None => TransferFlag::Optional,
                }
            }
            "isTemporary" | "temporaryHint" => {
                temporary |= crate::profiles::parse_bool(value).unwrap_or(false);
            }
            "size" => match builder.size(value, position) {
                Ok(size) => found.size = size,
                Err(NoSize) => xml.problem(
                    position,
                    format!("the attribute size must be a number of bytes, not `{value}`"),
                ),
            },
            _ => {}
        })?;
        if name.name.is_empty() {
            self.xml
                .problem(position, "the element uses needs the attribute name");
        } else if found.kind == FileKind::Executable {
            file = Some(builder.file(&name.to_string(), position));
        } else {
            file = Some(builder.file(&name.name, position));
        }
        self.use_name = name;
        finish_use(&mut found, temporary);
        self.use_metadata(&mut found)?;
        Ok(file.map(|file| FileUse { file, ..found }))
    }

    fn use_metadata(&mut self, found: &mut FileUse) -> Result<()> {
        while let Some(inner) = self.xml.element()? {
            if inner.name() == "metadata" {
                let (key, value) = self.keyed(&inner)?;
                put(&mut found.metadata, key, value);
            } else {
                self.xml.illegal_element(&inner, "uses", "metadata")?;
            }
        }
        Ok(())
    }
}

/// Rules for white space in arguments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    /// A space separates adjacent file names.
    pub(super) separates_files: bool,
    /// Line breaks are kept.
    pub(super) preserve_linebreaks: bool,
}

impl Rules {
    /// Appends a chunk. White space at its ends becomes one space, as does a line break with its indentation.
    pub(super) fn add_chunk(self, all: &mut String, chunk: &str) {
        let blank = |c: Option<char>| c.is_some_and(char::is_whitespace);
        if blank(chunk.chars().next()) {
            all.push(' ');
        }
        let inner = chunk.trim();
        if self.preserve_linebreaks {
            all.push_str(inner);
        } else {
            for (n, line) in inner.split('\n').enumerate() {
                if n > 0 {
                    all.push(' ');
                }
                all.push_str(if n > 0 { line.trim_start() } else { line });
            }
        }
        if chunk.chars().nth(1).is_some() && blank(chunk.chars().next_back()) {
            all.push(' ');
        }
    }
}

/// Completes a file use after all its attributes are read.
pub(super) fn finish_use(found: &mut FileUse, temporary: bool) {
    if temporary {
        found.transfer = TransferFlag::Not;
        found.register = false;
    }
    if found.link == Link::Checkpoint {
        found.kind = FileKind::Checkpoint;
        found.optional = true;
    }
    if found.link.writes() && found.optional && found.transfer == TransferFlag::Mandatory {
        found.transfer = TransferFlag::Optional;
    }
}

pub(super) fn link(value: &str) -> Option<Link> {
    Some(match value {
        "input" => Link::Input,
        "output" => Link::Output,
        "inout" => Link::InOut,
        "checkpoint" => Link::Checkpoint,
        "none" | "" => Link::None,
        _ => return None,
    })
}

pub(super) fn xml_transfer(value: &str) -> Option<bool> {
    crate::profiles::parse_bool(value)
}
