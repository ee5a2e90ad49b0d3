//! The kinds of replica catalogs: SQLite, text and YAML.

mod lock;
mod new_database;
mod sqlite;
mod text;
mod yaml;

use std::path::{Path, PathBuf};

use crate::entry::Entry;
use crate::properties::Properties;

pub use sqlite::{OpenDatabase, SqliteCatalog};
pub use text::TextCatalog;
pub use yaml::YamlCatalog;

/// A replica catalog. A change is made completely or not at all, and several processes may change a catalog
/// at the same time.
pub trait Catalog {
    /// Adds entries. An existing entry only gets the new metadata.
    fn insert(&mut self, entries: &[Entry]) -> Result<(), CatalogError>;

    /// Returns all locations of a logical file.
    fn lookup(&mut self, lfn: &str) -> Result<Vec<Entry>, CatalogError> {
        let mut entries = self.list()?;
        entries.retain(|entry| entry.lfn == lfn);
        Ok(entries)
    }

    /// Returns all entries.
    fn list(&mut self) -> Result<Vec<Entry>, CatalogError>;

    /// Deletes the locations that match, and returns their number. Metadata of a file is deleted with its
    /// last location.
    fn delete(&mut self, patterns: &[Pattern]) -> Result<usize, CatalogError>;
}

/// Selects the locations to delete: those of a logical file, optionally restricted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pattern {
    /// Logical name.
    pub lfn: String,
    /// Only this location.
    pub pfn: Option<String>,
    /// Only on this site.
    pub site: Option<String>,
}

impl Pattern {
    /// Returns whether an entry is selected.
    #[must_use]
    pub fn matches(&self, entry: &Entry) -> bool {
        self.lfn == entry.lfn
            && self.pfn.as_ref().is_none_or(|pfn| *pfn == entry.pfn)
            && self
                .site
                .as_ref()
                .is_none_or(|site| entry.site.as_ref() == Some(site))
    }
}

/// Why a catalog cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The properties name no catalog, or an unknown kind.
    #[error("{0}")]
    Configuration(String),
    /// SQLite failed.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// Its error.
        source: rusqlite::Error,
    },
    /// Another process keeps the database locked.
    #[error("{}: {reason}; end that process, or try again", path.display())]
    Busy {
        /// The database.
        path: PathBuf,
        /// For how long, and by whom.
        reason: String,
    },
    /// The catalog file cannot be read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The failed action, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The catalog file is malformed.
    #[error("{}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The defect, with the line.
        message: String,
    },
}

impl CatalogError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// Opens the catalog that the properties starting with `prefix` describe.
///
/// `PREFIX` is `JDBCRC` (with `PREFIX.db.url`), `File` or `YAML` (with `PREFIX.file`). If it is not set, the
/// kind follows from the database URL or from the extension of the file. A database stays open in `database`
/// for the next call.
pub fn open<'a>(
    properties: &Properties,
    prefix: &str,
    database: &'a mut OpenDatabase,
) -> Result<Box<dyn Catalog + 'a>, CatalogError> {
    let key = |name: &str| format!("{prefix}.{name}");
    let file = || {
        properties.get(&key("file")).map(PathBuf::from).ok_or_else(|| {
            CatalogError::Configuration(format!("the property {} must name the catalog file", key("file")))
        })
    };
    let url = properties.get(&key("db.url"));
    match properties.get(prefix).map(str::to_ascii_lowercase).as_deref() {
        kind if kind == Some("jdbcrc") || kind.is_none() && url.is_some() => {
            let path = database_path(url, &key("db.url"))?;
            Ok(Box::new(SqliteCatalog::open(&path, database)?))
        }
        Some("file" | "simplefile" | "regex") => Ok(Box::new(TextCatalog::new(file()?))),
        Some("yaml") => Ok(Box::new(YamlCatalog::new(file()?))),
        Some(other) => Err(CatalogError::Configuration(format!(
            "{prefix} is '{other}': entries can be kept in JDBCRC (SQLite), File and YAML catalogs"
        ))),
        None => {
            let path = file().map_err(|_| {
                CatalogError::Configuration(format!(
                    "the property {prefix} is not set: it must be JDBCRC, File or YAML"
                ))
            })?;
            let yaml = path
                .extension()
                .is_some_and(|extension| extension == "yml" || extension == "yaml");
            Ok(if yaml {
                Box::new(YamlCatalog::new(path))
            } else {
                Box::new(TextCatalog::new(path))
            })
        }
    }
}

/// Returns the path in a database URL: `jdbc:sqlite:PATH` or `sqlite:///PATH`.
fn database_path(url: Option<&str>, key: &str) -> Result<PathBuf, CatalogError> {
    let url = url.ok_or_else(|| CatalogError::Configuration(format!("the property {key} is not set")))?;
    // Python writes sqlite:///relative and sqlite:////absolute.
    let path = url
        .strip_prefix("jdbc:sqlite:")
        .or_else(|| url.strip_prefix("sqlite:///"));
    match path.filter(|path| !path.is_empty()) {
        Some(path) => Ok(path.into()),
        None => Err(CatalogError::Configuration(format!(
            "{key} is '{}': only SQLite databases (jdbc:sqlite:PATH) can be used",
            pmc_secrets::shown_value(key, url)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_catalog(text: &str) -> Result<(), String> {
        let mut database = OpenDatabase::default();
        let result = open(&Properties::parse(text), "rc", &mut database);
        result.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn errors_name_the_wrong_property() {
        for (text, message) in [
            ("", "the property rc is not set: it must be JDBCRC, File or YAML"),
            ("rc=JDBCRC", "the property rc.db.url is not set"),
            ("rc=File", "the property rc.file must name the catalog file"),
            (
                "rc=MRC",
                "rc is 'mrc': entries can be kept in JDBCRC (SQLite), File and YAML catalogs",
            ),
            (
                "rc.db.url=jdbc\\:mysql\\://u:pw@h/x",
                "rc.db.url is 'jdbc:mysql://u:XXX@h/x': only SQLite databases (jdbc:sqlite:PATH) can be used",
            ),
        ] {
            assert_eq!(open_catalog(text), Err(message.to_owned()), "{text}");
        }
        assert_eq!(open_catalog("rc.file=/x/rc.yml"), Ok(()));
    }

    #[test]
    fn database_urls_give_paths() {
        for (url, path) in [
            ("jdbc:sqlite:/a/b.db", "/a/b.db"),
            ("jdbc:sqlite:b.db", "b.db"),
            ("sqlite:////a/b.db", "/a/b.db"),
        ] {
            assert_eq!(database_path(Some(url), "k").expect(url), PathBuf::from(path));
        }
    }
}
