//! The database catalog, in SQLite: tables `rc_lfn`, `rc_pfn` and `rc_meta` of the Pegasus schema.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use monitord_compat::database::{INDEXES, INSERT_VERSION, TABLES, VERSION};
use pmc_sqlite::{Shared, open_untrusted};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};

use super::lock::is_locked_by;
use super::{Catalog, CatalogError, Pattern, new_database};
use crate::entry::Entry;

/// Maximum polls while another process changes the database; about a minute.
const MAX_POLLS: i32 = 1_280;

/// Maximum bytes of the text of a catalog of another user.
const MAX_FOREIGN_TEXT: usize = 512 << 20;

/// Pauses before the next poll; returns false to give up. A change takes about a millisecond, which is
/// SQLite's own first pause. So the first pauses are shorter: ten of each length, up to 50 milliseconds.
fn wait_for_writers(polls: i32) -> bool {
    let doublings = u32::try_from(polls / 10).map_or(0, |times| times.min(9));
    std::thread::sleep(Duration::from_micros(100 << doublings).min(Duration::from_millis(50)));
    polls < MAX_POLLS
}

/// The database of the last catalog, still open but not locked. Opening makes SQLite read the whole schema,
/// which is half the time of a small change.
#[derive(Debug, Default)]
pub struct OpenDatabase {
    connection: Option<(Shared, Connection)>,
    file: Option<FileIdentity>,
}

/// Identity of a database file, and the path under which SQLite opened it and its journal.
#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(path: &Path) -> Option<Self> {
        let status = fs::metadata(path).ok()?;
        Some(Self {
            path: std::path::absolute(path).ok()?,
            device: status.dev(),
            inode: status.ino(),
        })
    }
}

impl OpenDatabase {
    /// Returns whether the database at `path` is open. Closes any other.
    fn is_at(&mut self, path: &Path) -> bool {
        let is_open = self.file.is_some() && self.file == FileIdentity::of(path);
        if !is_open {
            *self = Self::default();
        }
        is_open
    }

    /// Returns the open connection, or opens the database at `path`.
    fn connection(&mut self, path: &Path) -> rusqlite::Result<&mut Connection> {
        let (shared, mut connection) = if let Some(open) = self.connection.take() {
            open
        } else {
            // Identify the file before opening: if another file takes the name meanwhile, the two are not
            // confused.
            self.file = FileIdentity::of(path);
            let shared = Shared::find(path)?;
            let connection = connect(&shared)?;
            (shared, connection)
        };
        // Each use has its own limit.
        shared.limit(&mut connection)?;
        let (_, connection) = self.connection.insert((shared, connection));
        Ok(connection)
    }
}

/// A catalog in an SQLite database.
#[derive(Debug)]
pub struct SqliteCatalog<'a> {
    path: PathBuf,
    /// Not open until the database exists or is read.
    database: &'a mut OpenDatabase,
}

impl<'a> SqliteCatalog<'a> {
    /// Opens a database, or reuses the open one. A missing database is created with the first entries, or
    /// when it is read, because each change waits for the disk several times.
    pub fn open(path: &Path, database: &'a mut OpenDatabase) -> Result<Self, CatalogError> {
        let is_open = database.is_at(path);
        let mut catalog = Self {
            path: path.to_owned(),
            database,
        };
        // That of another user is opened when it is known for what.
        let is_own = catalog.is_of_other().is_ok_and(|is_of_other| !is_of_other);
        if !is_open && is_own && !new_database::can_create(path) {
            catalog.connection()?;
        }
        Ok(catalog)
    }

    fn error(&self) -> impl FnOnce(rusqlite::Error) -> CatalogError + use<> {
        let path = self.path.clone();
        let start = Instant::now();
        move |source| {
            if source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) {
                // Any user who may read the database can delay a change of it.
                let file = fs::metadata(&path).ok();
                let reason = is_locked_by(file.as_ref(), "POSIX", start.elapsed());
                return CatalogError::Busy { path, reason };
            }
            CatalogError::Sqlite { path, source }
        }
    }

    fn connection(&mut self) -> Result<&mut Connection, CatalogError> {
        let error = self.error();
        self.database.connection(&self.path).map_err(error)
    }

    fn change<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, CatalogError> {
        let error = self.error();
        let connection = self.connection()?;
        let run = || {
            // Taking the write lock at once, not at the first write, prevents a deadlock of two writers.
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Check under the lock: another process may create them at the same time.
            if !has_tables(&transaction)? {
                create_tables(&transaction)?;
            }
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        };
        run().map_err(error)
    }

    fn select(
        &mut self,
        condition: &str,
        parameters: &[&dyn rusqlite::ToSql],
    ) -> Result<Vec<Entry>, CatalogError> {
        let error = self.error();
        if self.is_of_other().map_err(self.error())? {
            // Nothing is written there, and nothing of it is kept open.
            let read = open_untrusted(&self.path)
                .and_then(|connection| read(&connection, condition, parameters, MAX_FOREIGN_TEXT));
            return read.map_err(error);
        }
        if !has_tables(self.connection()?).map_err(self.error())? {
            self.change(|_| Ok(()))?;
        }
        let connection = self.connection()?;
        read(connection, condition, parameters, usize::MAX).map_err(error)
    }

    /// Returns whether there is a database, and another user has made it, or could have.
    fn is_of_other(&self) -> rusqlite::Result<bool> {
        Ok(self.path.exists() && Shared::find(&self.path)?.is_of_other())
    }
}
/// Reads the entries that satisfy a condition, at most this many bytes of text.
fn read(
    connection: &Connection,
    condition: &str,
    parameters: &[&dyn rusqlite::ToSql],
    max: usize,
) -> rusqlite::Result<Vec<Entry>> {
    let sql = format!(
        "SELECT l.lfn_id, l.lfn, p.pfn, p.site FROM rc_lfn l JOIN rc_pfn p ON p.lfn_id = l.lfn_id \
         {condition} ORDER BY p.pfn_id"
    );
    let mut entries = connection.prepare(&sql)?;
    let mut meta = connection.prepare("SELECT \"key\", value FROM rc_meta WHERE lfn_id = ?1")?;
    let mut left = max;
    let rows = entries.query_map(parameters, |row| {
        let id: i64 = row.get(0)?;
        let mut entry = Entry {
            lfn: row.get(1)?,
            pfn: row.get(2)?,
            site: row.get(3)?,
            attributes: BTreeMap::new(),
        };
        let mut length = entry.lfn.len() + entry.pfn.len() + entry.site.as_ref().map_or(0, String::len);
        for attribute in meta.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))? {
            let (key, value): (String, String) = attribute?;
            length += key.len() + value.len();
            entry.attributes.insert(key, value);
            if length > left {
                break;
            }
        }
        left = left.checked_sub(length).ok_or_else(too_large)?;
        Ok(entry)
    })?;
    rows.collect()
}

fn too_large() -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_TOOBIG);
    let what = "has more text than is read of a catalog of another user";
    rusqlite::Error::SqliteFailure(code, Some(what.to_owned()))
}

fn connect(shared: &Shared) -> rusqlite::Result<Connection> {
    let mut connection = shared.open()?;
    connection.busy_handler(Some(wait_for_writers))?;
    // A write-ahead log needs shared memory, which network file systems do not have between hosts, and users
    // who may only read the catalog could not open it.
    connection.pragma_update(None, "journal_mode", "truncate")?;
    // A power cut may lose the entries of the last seconds, as it may lose the files themselves. The catalog
    // stays intact. The strictest mode would wait for the disk twice as often.
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

/// Creates the tables that are missing, and records the version of the schema.
fn create_tables(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
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
        let seconds = i64::try_from(now).unwrap_or(0);
        transaction.execute(INSERT_VERSION, params![VERSION, VERSION.to_string(), seconds])?;
    }
    Ok(())
}

/// Adds entries to a database with tables.
fn insert(db: &Connection, entries: &[Entry]) -> rusqlite::Result<()> {
    let mut add_lfn =
        db.prepare_cached("INSERT INTO rc_lfn (lfn) VALUES (?1) ON CONFLICT (lfn) DO NOTHING")?;
    let mut find_lfn = db.prepare_cached("SELECT lfn_id FROM rc_lfn WHERE lfn = ?1")?;
    // The table's constraint treats two locations without a site as different.
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
        let fill = |db: &Transaction<'_>| create_tables(db).and_then(|()| insert(db, entries));
        if self.database.connection.is_none() && new_database::create(&self.path, fill) {
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
            // The foreign key deletes the metadata with the logical name.
            let mut delete_unused_lfn = db.prepare_cached(
                "DELETE FROM rc_lfn WHERE lfn = ?1 \
                 AND NOT EXISTS (SELECT 1 FROM rc_pfn WHERE rc_pfn.lfn_id = rc_lfn.lfn_id)",
            )?;
            for pattern in patterns {
                removed += delete.execute(params![pattern.lfn, pattern.pfn, pattern.site])?;
                delete_unused_lfn.execute([&pattern.lfn])?;
            }
            Ok(removed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(path: &Path, name: &str, database: &mut OpenDatabase) {
        let entry = Entry {
            lfn: name.to_owned(),
            pfn: format!("/data/{name}"),
            ..Entry::default()
        };
        SqliteCatalog::open(path, database)
            .unwrap()
            .insert(&[entry])
            .unwrap();
    }

    /// The logical names in a database, read through a new connection.
    fn names(path: &Path) -> Vec<String> {
        let mut database = OpenDatabase::default();
        let entries = SqliteCatalog::open(path, &mut database).unwrap().list().unwrap();
        entries.into_iter().map(|entry| entry.lfn).collect()
    }

    #[test]
    fn open_database_is_replaced_when_the_path_names_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one.db"), folder.path().join("two.db"));
        let mut database = OpenDatabase::default();
        for (path, name) in [(&one, "a"), (&one, "b"), (&one, "c"), (&two, "d"), (&one, "e")] {
            insert(path, name, &mut database);
        }
        assert_eq!(names(&one), ["a", "b", "c", "e"]);
        assert_eq!(names(&two), ["d"]);
        assert!(database.is_at(&one));

        // Another file takes the name, the file is removed, and the file moves to a folder.
        insert(&one, "f", &mut database);
        fs::rename(&two, &one).unwrap();
        insert(&one, "g", &mut database);
        assert_eq!(names(&one), ["d", "g"]);
        fs::remove_file(&one).unwrap();
        insert(&one, "h", &mut database);
        insert(&one, "i", &mut database);
        assert_eq!(names(&one), ["h", "i"]);
        let below = folder.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::rename(&one, below.join("one.db")).unwrap();
        insert(&below.join("one.db"), "j", &mut database);
        assert_eq!(names(&below.join("one.db")), ["h", "i", "j"]);
        assert!(!one.exists());
    }

    #[test]
    fn open_database_is_not_locked_and_shows_changes_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let (mut here, mut there) = (OpenDatabase::default(), OpenDatabase::default());
        for name in ["a", "b", "c"] {
            insert(&path, name, &mut here);
            insert(&path, name, &mut there);
        }
        assert_eq!(names(&path), ["a", "b", "c"]);
        // Another process changes the schema.
        let other = Connection::open(&path).unwrap();
        other
            .execute_batch("DROP TABLE rc_meta; DROP TABLE rc_pfn; DROP TABLE rc_lfn")
            .unwrap();
        insert(&path, "d", &mut here);
        assert_eq!(names(&path), ["d"]);
    }
}
