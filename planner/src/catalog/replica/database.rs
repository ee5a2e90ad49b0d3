//! Replica catalogs in an SQLite database (type JDBCRC): the tables `rc_lfn`, `rc_pfn` and `rc_meta`, filled
//! by pegasus-rc-client and Pegasus' tools. Reads only files of the workflow.

use std::path::{Path, PathBuf};

use pmc_sqlite::{Shared, open_untrusted};
use rusqlite::{Connection, OpenFlags, Row, Statement};

use super::{Replica, ReplicaCatalog, ReplicaEntry};
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::ids::Id as _;
use crate::model::{FileId, Files};
use crate::properties::Properties;

/// Maximum ratio of entries to files of the workflow for a scan of the whole table.
const MAX_SCAN_RATIO: usize = 4;

/// Returns the database file that the properties below `key` name.
pub(super) fn path(properties: &Properties, key: &str, working_dir: &Path) -> Result<PathBuf, InputErrors> {
    let url_key = format!("{key}.db.url");
    let url = properties.get(&url_key).unwrap_or_default().trim();
    let driver_key = format!("{key}.db.driver");
    let driver = properties.get(&driver_key).unwrap_or_default().trim();
    if !driver.is_empty() && !driver.to_ascii_lowercase().contains("sqlite") {
        return Err(properties
            .bad_value(&driver_key, "must be sqlite, other databases are not supported")
            .into());
    }
    if url.is_empty() {
        let what = format!("JDBCRC needs the property {url_key}, for example jdbc:sqlite:/data/replicas.db");
        return Err(properties.bad_key(key, &what).into());
    }
    let url = url.strip_prefix("jdbc:").unwrap_or(url);
    let path = match url.split_once(':') {
        Some((scheme, path)) if scheme.eq_ignore_ascii_case("sqlite") => path,
        None => url,
        Some(_) => {
            let what = "must be jdbc:sqlite:PATH, other databases are not supported";
            return Err(properties.bad_value(&url_key, what).into());
        }
    };
    // SQLAlchemy writes `sqlite:///path`.
    let path = match path.strip_prefix("//") {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    };
    Ok(working_dir.join(path))
}

/// Reads the entries of the files of a workflow.
pub(super) fn read(path: &Path, wanted: &Files) -> Result<ReplicaCatalog, InputErrors> {
    let failed = |error: rusqlite::Error| -> InputErrors {
        let problem = Diagnostic::in_file(path, format!("cannot be read as a replica catalog: {error}"));
        match error {
            rusqlite::Error::SqliteFailure(_, Some(text)) if text.contains("no such table") => {
                problem.with_hint("the database must have the tables rc_lfn, rc_pfn and rc_meta of Pegasus 5")
            }
            _ => problem,
        }
        .into()
    };
    if !path.is_file() {
        return Err(Diagnostic::in_file(path, "no such database").into());
    }
    let open = || {
        if Shared::find(path)?.is_of_other() {
            return open_untrusted(path);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Connection::open_with_flags(path, flags)
    };
    entries(&open().map_err(failed)?, wanted).map_err(failed)
}

fn entries(db: &Connection, wanted: &Files) -> rusqlite::Result<ReplicaCatalog> {
    // Other processes may be writing.
    db.busy_timeout(std::time::Duration::from_secs(60))?;
    let count: i64 = db.query_row("SELECT count(*) FROM rc_lfn", [], |row| row.get(0))?;
    let limit = i64::try_from(MAX_SCAN_RATIO * wanted.len()).unwrap_or(i64::MAX);
    let mut reader = Reader {
        locations: db.prepare("SELECT pfn, site FROM rc_pfn WHERE lfn_id = ?1 ORDER BY pfn_id")?,
        metadata: db.prepare("SELECT \"key\", value FROM rc_meta WHERE lfn_id = ?1")?,
        catalog: ReplicaCatalog::default(),
    };
    let named = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    if count <= limit {
        let mut all = db.prepare("SELECT lfn_id, lfn FROM rc_lfn ORDER BY lfn_id")?;
        for found in all.query_map([], named)? {
            let (id, lfn) = found?;
            if wanted.find(&lfn).is_some() {
                reader.entry(id, lfn)?;
            }
        }
    } else {
        let mut one = db.prepare("SELECT lfn_id, lfn FROM rc_lfn WHERE lfn = ?1")?;
        for file in FileId::first(wanted.len()) {
            for found in one.query_map([wanted.name(file)], named)? {
                let (id, lfn) = found?;
                reader.entry(id, lfn)?;
            }
        }
    }
    Ok(reader.catalog)
}

struct Reader<'d> {
    locations: Statement<'d>,
    metadata: Statement<'d>,
    catalog: ReplicaCatalog,
}

impl Reader<'_> {
    fn entry(&mut self, id: i64, lfn: String) -> rusqlite::Result<()> {
        let location = |row: &Row<'_>| {
            Ok(Replica {
                pfn: row.get(0)?,
                site: row.get::<_, Option<String>>(1)?.filter(|site| !site.is_empty()),
            })
        };
        let entry = ReplicaEntry {
            lfn,
            regex: false,
            replicas: self
                .locations
                .query_map([id], location)?
                .collect::<Result<_, _>>()?,
            metadata: self
                .metadata
                .query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?,
        };
        // Only patterns can fail.
        let _ = self.catalog.push(entry);
        Ok(())
    }
}
