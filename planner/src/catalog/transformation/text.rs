//! Transformation catalogs as text: blocks `tr NAME { … site NAME { … } }` and `cont NAME { … }`.

use std::iter::Peekable;
use std::path::Path;
use std::str::CharIndices;

use pmc_job_files::ContainerKind;

use super::container::Draft;
use super::{TransformationCatalog, TransformationEntry, TransformationKind, normal_pfn};
use crate::catalog::site::SysInfo;
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::keys::Checker;
use crate::model::{Position, TransformationName};
use crate::profiles::{Namespace, Profiles};

/// Reads a whole file. A problem inside a block does not hide problems of later blocks; a broken block
/// structure is fatal.
pub(super) fn read(path: &Path, text: &str) -> Result<TransformationCatalog, InputErrors> {
    let mut parser = Parser {
        file: path,
        tokens: tokens(path, text)?.into_iter().peekable(),
        end: crate::diagnostic::position_of(text, text.len()),
        checker: Checker::default(),
        catalog: TransformationCatalog::default(),
        problems: Vec::new(),
    };
    if let Err(stop) = parser.file() {
        parser.problems.push(*stop);
    }
    InputErrors::check(parser.problems)?;
    parser.catalog.warnings = parser.checker.warnings;
    Ok(parser.catalog)
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Open,
    Close,
    /// A word or a quoted text.
    Text(String),
}

fn tokens(file: &Path, text: &str) -> Result<Vec<(Token, Position)>, Diagnostic> {
    let mut tokens = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let number = u32::try_from(n + 1).unwrap_or(u32::MAX);
        let mut chars = line.char_indices().peekable();
        // Offset up to which characters are counted: one line may be the whole file.
        let (mut counted, mut characters) = (0, 1);
        while let Some(&(start, c)) = chars.peek() {
            characters += line[counted..start].chars().count();
            counted = start;
            let column = u32::try_from(characters).unwrap_or(u32::MAX);
            let position = Position { line: number, column };
            match c {
                '#' => break,
                '{' | '}' => {
                    chars.next();
                    tokens.push((if c == '{' { Token::Open } else { Token::Close }, position));
                }
                '"' => {
                    chars.next();
                    let Some(quoted) = quoted(&mut chars) else {
                        return Err(Diagnostic::at(
                            file,
                            position,
                            "the quoted text does not end on its line",
                        ));
                    };
                    tokens.push((Token::Text(quoted), position));
                }
                c if c.is_whitespace() => {
                    chars.next();
                }
                _ => {
                    let mut word = String::new();
                    while let Some((_, c)) =
                        chars.next_if(|(_, c)| !c.is_whitespace() && !matches!(c, '{' | '}' | '"' | '#'))
                    {
                        word.push(c);
                    }
                    tokens.push((Token::Text(word), position));
                }
            }
        }
    }
    Ok(tokens)
}

/// Reads the text up to the closing quotation mark. `\"` and `\\` denote the second character.
fn quoted(chars: &mut Peekable<CharIndices<'_>>) -> Option<String> {
    let mut text = String::new();
    loop {
        match chars.next()?.1 {
            '"' => return Some(text),
            '\\' => match chars.next()?.1 {
                c @ ('"' | '\\') => text.push(c),
                c => {
                    text.push('\\');
                    text.push(c);
                }
            },
            c => text.push(c),
        }
    }
}

type Stop = Box<Diagnostic>;

struct Parser<'a> {
    file: &'a Path,
    tokens: Peekable<std::vec::IntoIter<(Token, Position)>>,
    end: Position,
    checker: Checker,
    catalog: TransformationCatalog,
    problems: Vec<Diagnostic>,
}

impl Parser<'_> {
    fn problem(&mut self, position: Position, message: impl Into<String>) {
        self.problems.push(Diagnostic::at(self.file, position, message));
    }

    fn expected(&self, what: &str, found: Option<(Token, Position)>) -> Stop {
        let (found, position) = match found {
            Some((Token::Text(text), position)) => (format!("`{text}`"), position),
            Some((Token::Open, position)) => ("`{`".into(), position),
            Some((Token::Close, position)) => ("`}`".into(), position),
            None => ("the end of the file".into(), self.end),
        };
        let message = format!("{what} is expected here, not {found}");
        Box::new(Diagnostic::at(self.file, position, message))
    }

    fn text(&mut self, what: &str) -> Result<(String, Position), Stop> {
        match self.tokens.next() {
            Some((Token::Text(text), position)) => Ok((text, position)),
            other => Err(self.expected(what, other)),
        }
    }

    fn open(&mut self) -> Result<(), Stop> {
        match self.tokens.next() {
            Some((Token::Open, _)) => Ok(()),
            other => Err(self.expected("`{`", other)),
        }
    }

    /// Returns the next key of a block, `None` at its end.
    fn key(&mut self) -> Result<Option<(String, Position)>, Stop> {
        match self.tokens.next() {
            Some((Token::Text(text), position)) => Ok(Some((text, position))),
            Some((Token::Close, _)) => Ok(None),
            other => Err(self.expected("`}`", other)),
        }
    }

    fn file(&mut self) -> Result<(), Stop> {
        while self.tokens.peek().is_some() {
            let (word, position) = self.text("tr or cont")?;
            match word.to_ascii_lowercase().as_str() {
                "tr" => self.transformation()?,
                "cont" => self.container()?,
                _ => {
                    let found = Some((Token::Text(word), position));
                    return Err(self.expected("tr or cont", found));
                }
            }
        }
        Ok(())
    }

    fn transformation(&mut self) -> Result<(), Stop> {
        let (name, position) = self.text("the name of a transformation")?;
        let name = TransformationName::parse(&name);
        if name.name.is_empty() {
            self.problem(position, "the transformation has no name");
        }
        self.open()?;
        let mut profiles = Profiles::default();
        let mut metadata = Vec::new();
        let first = self.catalog.entries.len();
        while let Some((key, position)) = self.key()? {
            match key.to_ascii_lowercase().as_str() {
                "profile" => self.profile(&mut profiles)?,
                "metadata" => metadata.push(self.pair()?),
                "site" => self.site(&name)?,
                "requires" => {
                    let (required, _) = self.text("the name of a transformation")?;
                    let required = TransformationName::parse(&required);
                    match self.catalog.compounds.iter_mut().find(|(n, _)| *n == name) {
                        Some((_, all)) => all.push(required),
                        None => self.catalog.compounds.push((name.clone(), vec![required])),
                    }
                }
                _ => return Err(self.unknown(&key, position, "profile, metadata, site, requires")),
            }
        }
        // Profiles of the transformation may follow its sites.
        for entry in &mut self.catalog.entries[first..] {
            entry.profiles.fill_from(&profiles);
            for pair in &metadata {
                if !entry.metadata.iter().any(|(key, _)| *key == pair.0) {
                    entry.metadata.push(pair.clone());
                }
            }
        }
        Ok(())
    }

    fn unknown(&self, key: &str, position: Position, known: &str) -> Stop {
        let message = format!("`{key}` is not known here");
        Box::new(Diagnostic::at(self.file, position, message).with_hint(format!("known are {known}")))
    }

    fn pair(&mut self) -> Result<(String, String), Stop> {
        let (key, _) = self.text("a key")?;
        let (value, _) = self.text("a value")?;
        Ok((key, value))
    }

    fn profile(&mut self, profiles: &mut Profiles) -> Result<(), Stop> {
        let (namespace, position) = self.text("the namespace of a profile")?;
        let (key, value) = self.pair()?;
        let Some(namespace) = Namespace::parse(&namespace) else {
            let (message, hint) = Namespace::unknown(&namespace);
            self.problems
                .push(Diagnostic::at(self.file, position, message).with_hint(hint));
            return Ok(());
        };
        let checked = self.checker.check(self.file, namespace, &key, &value, position);
        self.problems.extend(checked.err());
        profiles.set(namespace, &key, &value);
        Ok(())
    }

    fn site(&mut self, name: &TransformationName) -> Result<(), Stop> {
        let (site, position) = self.text("the name of a site")?;
        self.open()?;
        let mut entry = TransformationEntry {
            name: name.clone(),
            site,
            pfn: String::new(),
            kind: TransformationKind::Installed,
            sysinfo: SysInfo::default(),
            profiles: Profiles::default(),
            metadata: Vec::new(),
            hooks: Vec::new(),
            container: None,
            bypass: false,
        };
        let mut pfn_position = position;
        while let Some((key, position)) = self.key()? {
            let key = key.to_ascii_lowercase();
            match key.as_str() {
                "profile" => {
                    self.profile(&mut entry.profiles)?;
                    continue;
                }
                "metadata" => {
                    let pair = self.pair()?;
                    entry.metadata.push(pair);
                    continue;
                }
                "pfn" | "arch" | "os" | "osrelease" | "osversion" | "glibc" | "type" | "container" => {}
                _ => {
                    let known = "profile, metadata, pfn, arch, os, osrelease, osversion, type, container";
                    return Err(self.unknown(&key, position, known));
                }
            }
            let (value, position) = self.text("a value")?;
            match key.as_str() {
                "pfn" => {
                    pfn_position = position;
                    entry.pfn = value;
                }
                "arch" => entry.sysinfo.arch = value.to_lowercase(),
                "os" => entry.sysinfo.os = value.to_lowercase(),
                "osrelease" => entry.sysinfo.os_release = Some(value),
                "osversion" => entry.sysinfo.os_version = Some(value),
                "glibc" => entry.sysinfo.glibc = Some(value),
                "container" => entry.container = Some(value),
                _ => match TransformationKind::parse(&value) {
                    Some(kind) => entry.kind = kind,
                    None => self.problem(
                        position,
                        format!("`{value}` is not a type of transformation, but INSTALLED or STAGEABLE"),
                    ),
                },
            }
        }
        if entry.pfn.is_empty() {
            self.problem(
                position,
                format!("transformation {name} has no pfn at site {}", entry.site),
            );
            return Ok(());
        }
        match normal_pfn(entry.kind, &entry.pfn) {
            Ok(pfn) => {
                entry.pfn = pfn;
                self.catalog.entries.push(entry);
            }
            Err(message) => self.problem(pfn_position, format!("transformation {name}: {message}")),
        }
        Ok(())
    }

    fn container(&mut self) -> Result<(), Stop> {
        let (name, at) = self.text("the name of a container")?;
        let mut image_at = at;
        let mut draft = Draft {
            name,
            ..Draft::default()
        };
        self.open()?;
        while let Some((key, position)) = self.key()? {
            let key = key.to_ascii_lowercase();
            match key.as_str() {
                "profile" => {
                    self.profile(&mut draft.profiles)?;
                    continue;
                }
                "type" | "image" | "image_site" | "mount" | "dockerfile" | "checksum" => {}
                _ => return Err(self.unknown(&key, position, "type, image, image_site, mount, profile")),
            }
            let (value, position) = self.text("a value")?;
            match key.as_str() {
                "type" => {
                    draft.kind = ContainerKind::parse(&value);
                    if draft.kind.is_none() {
                        let message = format!("`{value}` is not a type of container");
                        let hint = format!("types are {}", ContainerKind::NAMES);
                        self.problems
                            .push(Diagnostic::at(self.file, position, message).with_hint(hint));
                    }
                }
                "image" => {
                    image_at = position;
                    draft.image = value;
                }
                "image_site" => draft.image_site = Some(value),
                "mount" => draft.mounts.push(value),
                _ => {}
            }
        }
        for (key, is_there) in [("type", draft.kind.is_some()), ("image", !draft.image.is_empty())] {
            if !is_there {
                self.problem(at, format!("the container {} needs the key {key}", draft.name));
                return Ok(());
            }
        }
        match draft.finish() {
            Ok(container) => self.catalog.containers.extend(container),
            Err(error) => self
                .problems
                .push(Diagnostic::at(self.file, image_at, error.to_string()).with_hint(error.hint())),
        }
        Ok(())
    }
}
