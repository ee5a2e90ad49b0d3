//! Workflows in DAX XML, versions 2.0 to 3.6.

mod catalogs;
mod job;
mod regular;

use super::ReadOptions;
use super::builder::Builder;
use crate::diagnostic::Diagnostic;
use crate::model::{Hook, Position, TransformationName};
use crate::profiles::{Namespace, Profiles};
use crate::syntax::xml::{Element, Result, Xml};

/// Newest supported version.
const NEWEST: Version = Version { major: 3, minor: 6 };

/// Version of the format, from the attribute `version` of `adag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    fn parse(text: &str) -> Option<Version> {
        let (major, minor) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
        Some(Version {
            major: major.parse().ok()?,
            minor: minor.split('.').next()?.parse().ok()?,
        })
    }
    /// Finds the version in a schema location `…/dax-3.6.xsd`.
    fn of_schema(location: &str) -> Option<&str> {
        let (_, rest) = location.rsplit_once("dax-")?;
        rest.strip_suffix(".xsd")
    }
    /// Returns whether a space separates adjacent file names of an argument.
    fn separates_files(self) -> bool {
        self < Version { major: 3, minor: 2 }
    }
}

/// Reader for jobs and dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReaderMode {
    /// The fast reader where elements are regular, else the full reader.
    Fast,
    /// The full reader only.
    #[cfg(test)]
    Full,
}

/// Reads the whole file into the builder.
pub(super) fn read(
    xml: &mut Xml<'_>,
    builder: &mut Builder,
    options: &ReadOptions,
    mode: ReaderMode,
) -> Result<()> {
    let Some(root) = xml.element()? else {
        xml.problem(Position { line: 1, column: 1 }, "the file contains no element");
        return Ok(());
    };
    if root.name() != "adag" {
        let message = format!("not a workflow: expected the element adag, not {}", root.name());
        xml.problem(root.position, message);
        return Ok(());
    }
    let mut reader = Dax {
        xml,
        builder,
        version: NEWEST,
        mode,
        rules: job::Rules::default(),
        chunk: String::new(),
        use_name: TransformationName::default(),
        found: regular::Found::default(),
    };
    reader.root(&root)?;
    reader.rules = job::Rules {
        separates_files: reader.version.separates_files(),
        preserve_linebreaks: options.preserve_linebreaks,
    };
    reader.content()
}

struct Dax<'r, 'a> {
    xml: &'r mut Xml<'a>,
    builder: &'r mut Builder,
    version: Version,
    mode: ReaderMode,
    rules: job::Rules,
    /// Buffer for arguments.
    chunk: String,
    /// Buffer for file uses.
    use_name: TransformationName,
    /// Buffer for regular elements.
    found: regular::Found<'a>,
}

impl<'a> Dax<'_, 'a> {
    fn root(&mut self, root: &Element<'a>) -> Result<()> {
        let (mut version, mut schema, mut index) = (None, None, None);
        let builder = &mut *self.builder;
        self.xml.attributes(root, |_, name, value| match name {
            "name" => builder.set_label(value, root.position, &['.', '+']),
            "version" => version = Some(value.to_owned()),
            "schemaLocation" => schema = Version::of_schema(value).map(str::to_owned),
            "index" => index = Some(value.to_owned()),
            _ => {}
        })?;
        if let Some(index) = index.filter(|index| !index.is_empty()) {
            if index
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            {
                self.builder.workflow.index = index;
            } else {
                let message = format!("the attribute index must be a number, not `{index}`");
                self.builder.problem(root.position, message);
            }
        }
        let Some(version) = version.or(schema) else {
            let file = self.xml.file();
            self.builder.workflow.warnings.push(
                Diagnostic::at(file, root.position, "the workflow has no version")
                    .with_hint("3.6 is assumed; add version=\"3.6\" to adag"),
            );
            return Ok(());
        };
        match Version::parse(&version) {
            Some(parsed) if parsed.major >= 2 && parsed <= NEWEST => self.version = parsed,
            _ => self.xml.problem(
                root.position,
                format!("DAX version {version} cannot be read, only versions 2.0 to 3.6"),
            ),
        }
        self.builder.workflow.version = version;
        Ok(())
    }

    fn content(&mut self) -> Result<()> {
        loop {
            if self.mode == ReaderMode::Fast {
                self.regular();
            }
            let Some(element) = self.xml.element()? else {
                break;
            };
            match element.name() {
                "job" | "dax" | "dag" => self.job(&element)?,
                "child" => self.dependencies(&element)?,
                "metadata" => {
                    let (key, value) = self.keyed(&element)?;
                    put(&mut self.builder.workflow.metadata, key, value);
                }
                "invoke" => {
                    let hook = self.invoke(&element)?;
                    self.builder.workflow.hooks.extend(hook);
                }
                "file" => self.replica(&element)?,
                "executable" => self.executable(&element)?,
                "transformation" => self.compound(&element)?,
                // Old versions list all files here; the jobs repeat them.
                "filename" => self.xml.skip()?,
                _ => self.xml.illegal_element(
                    &element,
                    "adag",
                    "metadata, invoke, file, executable, transformation, job, dax, dag, child",
                )?,
            }
        }
        let metadata = &mut self.builder.workflow.metadata;
        if !metadata.iter().any(|(key, _)| key == "wf.api") {
            metadata.push(("wf.api".into(), "xml".into()));
        }
        Ok(())
    }

    /// Reads an element with a key and text.
    fn keyed(&mut self, element: &Element<'a>) -> Result<(String, String)> {
        let key = self.xml.attribute(element, "key")?.unwrap_or_default();
        if key.is_empty() {
            self.xml.problem(
                element.position,
                format!("the element {} needs the attribute key", element.name()),
            );
        }
        Ok((key, self.xml.text()?))
    }

    fn invoke(&mut self, element: &Element<'a>) -> Result<Option<Hook>> {
        let when = self.xml.attribute(element, "when")?.unwrap_or_default();
        let command = self.xml.text()?;
        if !Hook::EVENTS.contains(&when.as_str()) {
            let message = format!("`{when}` is not an event of an invoke element");
            self.xml.problems.push(
                Diagnostic::at(self.xml.file(), element.position, message)
                    .with_hint(format!("events are {}", Hook::EVENTS.join(", "))),
            );
            return Ok(None);
        }
        Ok(Some(Hook { when, command }))
    }

    fn profile(&mut self, element: &Element<'a>, profiles: &mut Profiles) -> Result<()> {
        let namespace = self.xml.attribute(element, "namespace")?.unwrap_or_default();
        let (key, value) = self.keyed(element)?;
        let Some(namespace) = Namespace::parse(&namespace) else {
            let (message, hint) = Namespace::unknown(&namespace);
            self.xml
                .problems
                .push(Diagnostic::at(self.xml.file(), element.position, message).with_hint(hint));
            return Ok(());
        };
        let checked = self
            .builder
            .checker
            .check(self.xml.file(), namespace, &key, &value, element.position);
        self.xml.problems.extend(checked.err());
        profiles.set(namespace, &key, &value);
        Ok(())
    }

    fn dependencies(&mut self, element: &Element<'a>) -> Result<()> {
        let child = self.reference(element)?;
        while let Some(inner) = self.xml.element()? {
            if inner.name() != "parent" {
                self.xml.illegal_element(&inner, "child", "parent")?;
                continue;
            }
            let parent = self.reference(&inner)?;
            self.xml.skip()?;
            if let (Some(parent), Some(child)) = (parent, &child) {
                self.builder.add_dependency(&parent, child, inner.position);
            }
        }
        Ok(())
    }

    fn reference(&mut self, element: &Element<'a>) -> Result<Option<String>> {
        let id = self.xml.attribute(element, "ref")?;
        if id.is_none() {
            self.xml.problem(
                element.position,
                format!("the element {} needs the attribute ref", element.name()),
            );
        }
        Ok(id)
    }
}

/// Sets a key. The last value wins; the first mention determines the order.
fn put(pairs: &mut Vec<(String, String)>, key: String, value: String) {
    match pairs.iter_mut().find(|(known, _)| *known == key) {
        Some((_, known)) => *known = value,
        None => pairs.push((key, value)),
    }
}
