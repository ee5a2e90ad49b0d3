//! A database on a PostgreSQL server.
//!
//! Several workflows may share it. An advisory lock of the server allows one loader per workflow.
//! Rows are held back ([`batch`]) and sent table by table, so that a transaction takes few round trips.
//! Ids of attempts are fetched from the server in advance.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;

use monitord_compat::database::{INDEXES, POSTGRESQL_TABLES, VERSION};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio_postgres::Statement;

use super::host_ids::HostIds;
use super::{Position, Purpose, StoreError};
use crate::fixed_hash::fnv1a;
use crate::server::Server;

mod batch;
mod client;
mod connecting;
mod error;
mod lookup;
mod rows;
mod tls;

use batch::Batches;
use client::Client;
use connecting::connect;
use lookup::JobCache;

pub use error::ServerError;

/// Key of the lock for creating the tables.
const TABLES_LOCK: i64 = 0x706d_635f_6462;
const LOADER: &str = "
CREATE TABLE IF NOT EXISTS pmc_loader (
    wf_id BIGINT PRIMARY KEY REFERENCES workflow ON DELETE CASCADE,
    log_bytes BIGINT NOT NULL, log_lines BIGINT NOT NULL, log_head BIGINT NOT NULL, log_tail BIGINT NOT NULL,
    jobstate_bytes BIGINT NOT NULL)";

/// A workflow and those nested in it, the innermost ones first.
const NESTED: &str = "
WITH RECURSIVE tree (wf_id, depth) AS (
    SELECT $1::bigint, 0
    UNION ALL SELECT workflow.wf_id, depth + 1 FROM workflow JOIN tree ON parent_wf_id = tree.wf_id)
SELECT wf_id FROM tree ORDER BY depth DESC";

/// Statements that remove a workflow, in the order of their references. The last one cascades.
const REMOVE_WORKFLOW: [&str; 9] = [
    "DELETE FROM workflow_files WHERE wf_id = $1",
    "DELETE FROM tag WHERE wf_id = $1",
    "DELETE FROM integrity WHERE wf_id = $1",
    "DELETE FROM invocation WHERE wf_id = $1",
    "DELETE FROM job_instance WHERE job_id IN (SELECT job_id FROM job WHERE wf_id = $1)",
    "DELETE FROM task WHERE wf_id = $1",
    "DELETE FROM job WHERE wf_id = $1",
    "DELETE FROM host WHERE wf_id = $1",
    "DELETE FROM workflow WHERE wf_id = $1",
];

/// A database on a server.
pub struct Postgresql {
    client: RefCell<Client>,
    at: String,
    wf: i64,
    /// The outermost workflow, which has the hosts of all.
    root: i64,
    hosts: HostIds,
    batches: RefCell<Batches>,
    in_transaction: Cell<bool>,
    /// Unused ids of attempts from the server, in order.
    attempt_ids: RefCell<VecDeque<i64>>,
    /// Jobs that are likely to be looked up next.
    jobs: RefCell<JobCache>,
    /// Hashes of the names of all planned jobs and tasks, to detect events about unknown ones.
    planned: RefCell<FxHashSet<u64>>,
    /// Number of truncated texts.
    truncated: Cell<u64>,
    /// Prepared queries.
    statements: RefCell<FxHashMap<&'static str, Statement>>,
}

impl fmt::Debug for Postgresql {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Postgresql")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl Postgresql {
    /// Connects to the database, creates its tables if it has none, and takes the lock of the workflow
    /// `uuid`. `loader` is the name of this program for others.
    ///
    /// With [`Purpose::Live`], returns the position of the previous loader if this one can continue.
    /// Otherwise all rows of the workflow are removed, in the same transaction as the next rows.
    ///
    /// # Errors
    /// The server cannot be reached or refuses a statement, the tables have another version, or another
    /// loader holds the workflow.
    pub fn open(
        server: &Server,
        uuid: &str,
        purpose: Purpose,
        loader: &str,
        now: i64,
    ) -> Result<(Self, Option<Position>), StoreError> {
        let at = server.to_string();
        let open = || -> Result<_, ServerError> {
            let mut client = connect(server, loader)?;
            create_tables(&mut client, now)?;
            lock(&mut client, uuid)?;
            client.batch_execute("BEGIN")?;
            let found = client.query_opt(
                "SELECT wf_id, log_bytes, log_lines, log_head, log_tail, jobstate_bytes, COALESCE(root_wf_id, wf_id)
                 FROM workflow LEFT JOIN pmc_loader USING (wf_id) WHERE wf_uuid = $1",
                &[&uuid],
            )?;
            let mut known = None;
            if let Some(row) = found {
                let wf: i64 = row.get(0);
                let number = |column| row.get::<_, Option<i64>>(column);
                match (purpose, number(1)) {
                    (Purpose::Live, Some(bytes)) => {
                        let rest = |column| number(column).unwrap_or_default();
                        let position = Position {
                            log_bytes: bytes.cast_unsigned(),
                            log_lines: rest(2).cast_unsigned(),
                            log_head: rest(3),
                            log_tail: rest(4),
                            jobstate_bytes: rest(5).cast_unsigned(),
                        };
                        known = Some(((wf, row.get::<_, i64>(6)), position));
                    }
                    _ => {
                        remove(&mut client, wf)?;
                    }
                }
            }
            Ok((client, known))
        };
        match open() {
            Ok((client, known)) => Ok((
                Self {
                    client: RefCell::new(client),
                    at,
                    wf: known.map_or(0, |((wf, _), _)| wf),
                    root: known.map_or(0, |((_, root), _)| root),
                    hosts: HostIds::default(),
                    batches: RefCell::new(Batches::new(&rows::TABLES)),
                    in_transaction: Cell::new(true),
                    attempt_ids: RefCell::default(),
                    jobs: RefCell::default(),
                    planned: RefCell::default(),
                    truncated: Cell::new(0),
                    statements: RefCell::default(),
                },
                known.map(|(_, position)| position),
            )),
            Err(problem) => Err(StoreError::Server {
                at,
                problem: Box::new(problem),
            }),
        }
    }

    fn error(&self, problem: impl Into<ServerError>) -> StoreError {
        StoreError::Server {
            at: self.at.clone(),
            problem: Box::new(problem.into()),
        }
    }

    /// Calls `work` with the connection, in a transaction if it writes.
    fn with<T>(
        &self,
        writes: bool,
        work: impl FnOnce(&mut Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, StoreError> {
        let mut client = self.client.borrow_mut();
        let run = || {
            if writes && !self.in_transaction.replace(true) {
                client.batch_execute("BEGIN")?;
            }
            work(&mut client)
        };
        run().map_err(|source| self.error(source))
    }
}

/// Removes a workflow with those nested in it.
fn remove(client: &mut Client, wf: i64) -> Result<(), ServerError> {
    for row in client.query(NESTED, &[&wf])? {
        for statement in REMOVE_WORKFLOW {
            client.execute(statement, &[&row.get::<_, i64>(0)])?;
        }
    }
    Ok(())
}

/// Creates the tables unless they exist, and checks their version.
fn create_tables(client: &mut Client, now: i64) -> Result<(), ServerError> {
    let exists = |client: &mut Client, table: &str| -> Result<bool, ServerError> {
        let row = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table])?;
        Ok(row.get(0))
    };
    if !exists(client, "public.dbversion")? || !exists(client, "public.pmc_loader")? {
        // On failure the connection ends, and the transaction with it.
        client.batch_execute("BEGIN")?;
        client.execute("SELECT pg_advisory_xact_lock($1)", &[&TABLES_LOCK])?;
        let row = client.query_one("SELECT to_regclass('public.dbversion') IS NULL", &[])?;
        if row.get(0) {
            client.batch_execute(POSTGRESQL_TABLES)?;
            client.batch_execute(INDEXES)?;
            let number = i32::try_from(VERSION).unwrap_or(i32::MAX);
            client.execute(
                "INSERT INTO dbversion (version_number, version, version_timestamp) VALUES ($1, $2, $3)",
                &[
                    &number,
                    &VERSION.to_string(),
                    &i32::try_from(now).unwrap_or(i32::MAX),
                ],
            )?;
        }
        client.batch_execute(LOADER)?;
        client.batch_execute("COMMIT")?;
    }
    let version = client.query_opt("SELECT version FROM dbversion ORDER BY id DESC LIMIT 1", &[])?;
    let found: String = version.map_or_else(|| "unknown".to_owned(), |row| row.get(0));
    if found
        .parse::<f64>()
        .is_ok_and(|found| found == f64::from(VERSION))
    {
        Ok(())
    } else {
        Err(ServerError::Version { found })
    }
}

/// Returns the key of the advisory lock of a workflow: the signed 64-bit hash FNV-1a of `pmc_loader `, with
/// the blank, and the UUID. Loaders of all versions must agree on it.
fn lock_key(uuid: &str) -> i64 {
    fnv1a(&[b"pmc_loader ", uuid.as_bytes()]).cast_signed()
}

/// Locks a workflow until the connection ends.
fn lock(client: &mut Client, uuid: &str) -> Result<(), ServerError> {
    let key = lock_key(uuid);
    if client
        .query_one("SELECT pg_try_advisory_lock($1)", &[&key])?
        .get(0)
    {
        return Ok(());
    }
    let holder = client.query_opt(
        "SELECT COALESCE(NULLIF(application_name, ''), 'process ' || pid || ' of the server')
         FROM pg_locks JOIN pg_stat_activity USING (pid)
         WHERE locktype = 'advisory' AND objsubid = 1 AND granted
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND classid = (($1::bigint >> 32) & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid LIMIT 1",
        &[&key],
    )?;
    let holder = holder.and_then(|row| row.get::<_, Option<String>>(0));
    Err(ServerError::Held {
        holder: holder.unwrap_or_else(|| "another program".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_lock_never_changes() {
        assert_eq!(
            lock_key("5d0b1c52-0000-4000-8000-0000000000aa"),
            -8_964_810_585_860_483_177
        );
    }
}
