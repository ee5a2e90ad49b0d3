//! The database catalog, in SQLite: tables `rc_lfn`, `rc_pfn` and `rc_meta` of the Pegasus schema.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monitord_compat::database::{INDEXES, INSERT_VERSION, TABLES, VERSION};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::{Catalog, CatalogError, Pattern, new_database};
use crate::entry::Entry;

/// How often to look whether others still change the database: for a minute.
const LOOKS: i32 = 1_280;

/// Waits before the next look, or gives up. Others take about a millisecond, which is SQLite's own first pause, so
/// the first pauses are shorter; ten of each length, up to 50 milliseconds.
fn wait_for_others(looks: i32) -> bool {
    let doubled = u32::try_from(looks / 10).map_or(0, |times| times.min(9));
    std::thread::sleep(Duration::from_micros(100 << doubled).min(Duration::from_millis(50)));
    looks < LOOKS
}

/// The database of the last catalog, still open: SQLite reads all tables of a database that is opened, which is half of
/// what a small change takes. Nothing of it is locked meanwhile.
#[derive(Debug, Default)]
pub struct Kept {
    open: Option<Connection>,
    place: Option<Place>,
}

/// Which file a database is, and by which name SQLite knows it and its journal.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    fn of(path: &Path) -> Option<Self> {
        let status = fs::metadata(path).ok()?;
        Some(Self {
            path: std::path::absolute(path).ok()?,
            device: status.dev(),
            inode: status.ino(),
        })
    }
}

impl Kept {
    /// Whether the database of this name is open. Any other is closed.
    fn has(&mut self, path: &Path) -> bool {
        let has = self.place.is_some() && self.place == Place::of(path);
        if !has {
            *self = Self::default();
        }
        has
    }

    /// The open database, which is that of this name.
    fn connection(&mut self, path: &Path) -> rusqlite::Result<&mut Connection> {
        let connection = if let Some(connection) = self.open.take() {
            connection
        } else {
            // Before it is opened: should another file get the name meanwhile, this one is not taken for it later.
            self.place = Place::of(path);
            connect(path)?
        };
        Ok(self.open.insert(connection))
    }
}

/// A catalog in an SQLite database.
#[derive(Debug)]
pub struct SqliteCatalog<'a> {
    path: PathBuf,
    /// Not open as long as the database does not exist and nobody has asked for it.
    kept: &'a mut Kept,
}

impl<'a> SqliteCatalog<'a> {
    /// Opens a database, unless it is the one that was kept. One that does not exist is made with the first entries, or
    /// when it is read: each change waits for the disk several times.
    pub fn open(path: &Path, kept: &'a mut Kept) -> Result<Self, CatalogError> {
        let found = kept.has(path);
        let mut catalog = Self {
            path: path.to_owned(),
            kept,
        };
        if !found && !new_database::can_create(path) {
            catalog.connection()?;
        }
        Ok(catalog)
    }

    fn failed(&self) -> impl FnOnce(rusqlite::Error) -> CatalogError + use<> {
        let path = self.path.clone();
        move |source| CatalogError::Sqlite { path, source }
    }

    fn connection(&mut self) -> Result<&mut Connection, CatalogError> {
        let failed = self.failed();
        self.kept.connection(&self.path).map_err(failed)
    }

    fn change<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, CatalogError> {
        let failed = self.failed();
        let connection = self.connection()?;
        let run = || {
            // Taking the write lock at once, not at the first write, keeps two writers from waiting for
            // each other.
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Looked at below the lock: others may make them at the same time.
            if !has_tables(&transaction)? {
                create_tables(&transaction)?;
            }
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        };
        run().map_err(failed)
    }

    fn select(
        &mut self,
        condition: &str,
        parameters: &[&dyn rusqlite::ToSql],
    ) -> Result<Vec<Entry>, CatalogError> {
        if !has_tables(self.connection()?).map_err(self.failed())? {
            self.change(|_| Ok(()))?;
        }
        let failed = self.failed();
        let connection = self.connection()?;
        let run = || -> rusqlite::Result<Vec<Entry>> {
            let sql = format!(
                "SELECT l.lfn_id, l.lfn, p.pfn, p.site FROM rc_lfn l JOIN rc_pfn p ON p.lfn_id = l.lfn_id \
                 {condition} ORDER BY p.pfn_id"
            );
            let mut entries = connection.prepare(&sql)?;
            let mut meta = connection.prepare("SELECT \"key\", value FROM rc_meta WHERE lfn_id = ?1")?;
            let rows = entries.query_map(parameters, |row| {
                let id: i64 = row.get(0)?;
                let attributes = meta.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let attributes: BTreeMap<String, String> = attributes.collect::<rusqlite::Result<_>>()?;
                Ok(Entry {
                    lfn: row.get(1)?,
                    pfn: row.get(2)?,
                    site: row.get(3)?,
                    attributes,
                })
            })?;
            rows.collect()
        };
        run().map_err(failed)
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open(path)?;
    connection.busy_handler(Some(wait_for_others))?;
    // A write-ahead log needs shared memory, which network file systems do not have between hosts.
    connection.pragma_update(None, "journal_mode", "truncate")?;
    // A power cut leaves a whole catalog, but perhaps without what was entered in the seconds before: no better and no
    // worse than the files that it names. The strictest mode waits for the disk twice as often.
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(connection)
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    let sql =
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('rc_lfn', 'rc_pfn', 'rc_meta')";
    connection
        .prepare_cached(sql)?
        .query_row([], |row| row.get::<_, i64>(0))
        .map(|count| count == 3)
}

pub(super) fn create_tables(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(TABLES)?;
    transaction.execute_batch(INDEXES)?;
    let known: Option<i64> = transaction
        .query_row("SELECT id FROM dbversion LIMIT 1", [], |row| row.get(0))
        .optional()?;
    if known.is_none() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        insert_version(transaction, i64::try_from(now).unwrap_or(0))?;
    }
    Ok(())
}

/// Notes the version of the schema.
fn insert_version(connection: &Connection, seconds: i64) -> rusqlite::Result<()> {
    connection
        .execute(INSERT_VERSION, params![VERSION, VERSION.to_string(), seconds])
        .map(drop)
}

/// Adds entries to a database with tables.
fn insert(db: &Connection, entries: &[Entry]) -> rusqlite::Result<()> {
    let mut add_lfn =
        db.prepare_cached("INSERT INTO rc_lfn (lfn) VALUES (?1) ON CONFLICT (lfn) DO NOTHING")?;
    let mut find_lfn = db.prepare_cached("SELECT lfn_id FROM rc_lfn WHERE lfn = ?1")?;
    // The constraint does not see two locations without site as equal.
    let mut add_pfn = db.prepare_cached(
        "INSERT INTO rc_pfn (lfn_id, pfn, site) SELECT ?1, ?2, ?3 WHERE NOT EXISTS \
         (SELECT 1 FROM rc_pfn WHERE lfn_id = ?1 AND pfn = ?2 AND site IS ?3)",
    )?;
    let mut add_meta = db.prepare_cached(
        "INSERT INTO rc_meta (lfn_id, \"key\", value) VALUES (?1, ?2, ?3) \
         ON CONFLICT (lfn_id, \"key\") DO UPDATE SET value = excluded.value",
    )?;
    for entry in entries {
        add_lfn.execute([&entry.lfn])?;
        let id: i64 = find_lfn.query_row([&entry.lfn], |row| row.get(0))?;
        add_pfn.execute(params![id, entry.pfn, entry.site])?;
        for (key, value) in &entry.attributes {
            add_meta.execute(params![id, key, value])?;
        }
    }
    Ok(())
}

impl Catalog for SqliteCatalog<'_> {
    fn insert(&mut self, entries: &[Entry]) -> Result<(), CatalogError> {
        if self.kept.open.is_none() && new_database::create(&self.path, |db| insert(db, entries)) {
            return Ok(());
        }
        self.change(|db| insert(db, entries))
    }

    fn lookup(&mut self, lfn: &str) -> Result<Vec<Entry>, CatalogError> {
        self.select("WHERE l.lfn = ?1", &[&lfn])
    }

    fn list(&mut self) -> Result<Vec<Entry>, CatalogError> {
        self.select("", &[])
    }

    fn delete(&mut self, patterns: &[Pattern]) -> Result<usize, CatalogError> {
        self.change(|db| {
            let mut removed = 0;
            let mut delete = db.prepare_cached(
                "DELETE FROM rc_pfn WHERE lfn_id = (SELECT lfn_id FROM rc_lfn WHERE lfn = ?1) \
                 AND (?2 IS NULL OR pfn = ?2) AND (?3 IS NULL OR site = ?3)",
            )?;
            // Metadata go with the logical name, by the foreign key.
            let mut forget = db.prepare_cached(
                "DELETE FROM rc_lfn WHERE lfn = ?1 \
                 AND NOT EXISTS (SELECT 1 FROM rc_pfn WHERE rc_pfn.lfn_id = rc_lfn.lfn_id)",
            )?;
            for pattern in patterns {
                removed += delete.execute(params![pattern.lfn, pattern.pfn, pattern.site])?;
                forget.execute([&pattern.lfn])?;
            }
            Ok(removed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(path: &Path, name: &str, kept: &mut Kept) {
        let entry = Entry {
            lfn: name.to_owned(),
            pfn: format!("/data/{name}"),
            ..Entry::default()
        };
        SqliteCatalog::open(path, kept).unwrap().insert(&[entry]).unwrap();
    }

    /// The logical names in a database, seen from elsewhere.
    fn names(path: &Path) -> Vec<String> {
        let mut kept = Kept::default();
        let entries = SqliteCatalog::open(path, &mut kept).unwrap().list().unwrap();
        entries.into_iter().map(|entry| entry.lfn).collect()
    }

    #[test]
    fn a_database_that_stays_open_is_the_one_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one.db"), folder.path().join("two.db"));
        let mut kept = Kept::default();
        for (path, name) in [(&one, "a"), (&one, "b"), (&one, "c"), (&two, "d"), (&one, "e")] {
            insert(path, name, &mut kept);
        }
        assert_eq!(names(&one), ["a", "b", "c", "e"]);
        assert_eq!(names(&two), ["d"]);
        assert!(kept.has(&one));

        // Another file of this name, none, and a folder that was moved.
        insert(&one, "f", &mut kept);
        fs::rename(&two, &one).unwrap();
        insert(&one, "g", &mut kept);
        assert_eq!(names(&one), ["d", "g"]);
        fs::remove_file(&one).unwrap();
        insert(&one, "h", &mut kept);
        insert(&one, "i", &mut kept);
        assert_eq!(names(&one), ["h", "i"]);
        let below = folder.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::rename(&one, below.join("one.db")).unwrap();
        insert(&below.join("one.db"), "j", &mut kept);
        assert_eq!(names(&below.join("one.db")), ["h", "i", "j"]);
        assert!(!one.exists());
    }

    #[test]
    fn a_database_that_stays_open_is_not_locked_and_shows_what_others_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let (mut here, mut there) = (Kept::default(), Kept::default());
        for name in ["a", "b", "c"] {
            insert(&path, name, &mut here);
            insert(&path, name, &mut there);
        }
        assert_eq!(names(&path), ["a", "b", "c"]);
        // A schema that others have changed.
        let other = Connection::open(&path).unwrap();
        other
            .execute_batch("DROP TABLE rc_meta; DROP TABLE rc_pfn; DROP TABLE rc_lfn")
            .unwrap();
        insert(&path, "d", &mut here);
        assert_eq!(names(&path), ["d"]);
    }
}
