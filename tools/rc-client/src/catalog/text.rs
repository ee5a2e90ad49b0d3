//! The text catalog: one entry per line. Changes keep comments and blank lines.

use std::path::PathBuf;

use super::lock::{self, Locked};
use super::{Catalog, CatalogError, Pattern};
use crate::entry::{self, Entry};

/// A catalog in a text file.
#[derive(Debug)]
pub struct TextCatalog {
    path: PathBuf,
}

impl TextCatalog {
    /// Creates a catalog for `path`, which need not exist.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads the lines, each with its entry.
    fn read(&self) -> Result<Vec<(String, Option<Entry>)>, CatalogError> {
        let text = lock::read(&self.path)?;
        let parse = |(index, line): (usize, &str)| match entry::parse(line) {
            Ok(entry) => Ok((line.to_owned(), entry)),
            Err(error) => Err(CatalogError::Content {
                path: self.path.clone(),
                message: format!("line {}: {error}", index + 1),
            }),
        };
        text.lines().enumerate().map(parse).collect()
    }

    fn write(&self, locked: &Locked, lines: &[(String, Option<Entry>)]) -> Result<(), CatalogError> {
        let content: String = lines.iter().flat_map(|(line, _)| [line, "\n"]).collect();
        locked.replace(&content)
    }
}

impl Catalog for TextCatalog {
    fn insert(&mut self, entries: &[Entry]) -> Result<(), CatalogError> {
        let locked = Locked::wait(&self.path)?;
        let mut lines = self.read()?;
        let mut positions = std::collections::HashMap::new();
        for (index, (_, entry)) in lines.iter().enumerate() {
            if let Some(entry) = entry {
                positions.insert((entry.lfn.clone(), entry.pfn.clone(), entry.site.clone()), index);
            }
        }
        for new in entries {
            let key = (new.lfn.clone(), new.pfn.clone(), new.site.clone());
            let index = *positions.entry(key).or_insert_with(|| {
                lines.push((String::new(), None));
                lines.len() - 1
            });
            let merged = match lines[index].1.take() {
                Some(mut old) => {
                    old.attributes.extend(new.attributes.clone());
                    old
                }
                None => new.clone(),
            };
            lines[index] = (merged.to_line(), Some(merged));
        }
        self.write(&locked, &lines)
    }

    fn list(&mut self) -> Result<Vec<Entry>, CatalogError> {
        Ok(self.read()?.into_iter().filter_map(|(_, entry)| entry).collect())
    }

    fn delete(&mut self, patterns: &[Pattern]) -> Result<usize, CatalogError> {
        let locked = Locked::wait(&self.path)?;
        let mut lines = self.read()?;
        let before = lines.len();
        lines.retain(|(_, entry)| {
            !entry
                .as_ref()
                .is_some_and(|entry| patterns.iter().any(|pattern| pattern.matches(entry)))
        });
        let removed = before - lines.len();
        if removed > 0 {
            self.write(&locked, &lines)?;
        }
        Ok(removed)
    }
}
