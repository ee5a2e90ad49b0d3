//! A database on a PostgreSQL server.
//!
//! Several workflows may share it, and each has one loader at a time, by an advisory lock of the server.
//! Rows are held back ([`batch`]) and go to the server table by table, so that a transaction takes a few
//! round trips, however many rows it has. Numbers of tries are taken from the server in advance.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;

use monitord_compat::database::{INDEXES, POSTGRESQL_TABLES, VERSION};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;

use super::host_ids::HostIds;
use super::{Position, Purpose, StoreError};
use crate::client::SslMode;
use crate::destination::Server;
use crate::fixed_hash::fnv1a;

mod batch;
mod client;
mod connecting;
mod lookup;
mod rows;
mod tls;

use batch::Batches;
use client::Client;
use connecting::connect;
use lookup::Ahead;

/// Lock while the tables are made.
const MAKING_TABLES: i64 = 0x706d_635f_6462;
/// Numbers of tries to take at a time.
const TRIES: i32 = 500;

const LOADER: &str = "
CREATE TABLE IF NOT EXISTS pmc_loader (
    wf_id BIGINT PRIMARY KEY REFERENCES workflow ON DELETE CASCADE,
    log_bytes BIGINT NOT NULL, log_lines BIGINT NOT NULL, log_head BIGINT NOT NULL, log_tail BIGINT NOT NULL,
    jobstate_bytes BIGINT NOT NULL)";

/// Rows of a workflow in the order in which they can go; the last one takes what is left with it.
const REMOVE: [&str; 9] = [
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

/// What is wrong with a server or the database on it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Nobody answers.
    #[error("cannot be reached: {0}; is the server running, and does it take connections from this host?")]
    Unreachable(String),
    /// Something takes connections and says nothing.
    #[error(
        "has not answered within {0} s; is it a PostgreSQL server that is well? connect_timeout=SECONDS waits longer"
    )]
    Silent(u64),
    /// The server knows the account not, or its password is another.
    #[error("the server refuses the account: {0}; check user and password of the URL")]
    Refused(String),
    /// Files or settings for an encrypted connection are not as they must be.
    #[error("{0}")]
    Tls(String),
    /// An encrypted connection is wanted, and the server has none.
    #[error(
        "the server takes no encrypted connections, and sslmode={0} wants one; have ssl turned on there, or use sslmode=prefer"
    )]
    NoTls(SslMode),
    /// The server's certificate is not accepted.
    #[error(
        "the server's certificate is not accepted: {0}; check sslmode and sslrootcert, and the host that the URL names"
    )]
    Certificate(String),
    /// There is no such database.
    #[error("{0}; make it first: createdb")]
    NoDatabase(String),
    /// Its tables are of another version of Pegasus.
    #[error(
        "its tables are of version {found}, and {VERSION} is written here; {}",
        advice(found)
    )]
    Version {
        /// Version of the tables.
        found: String,
    },
    /// Another loader is at work.
    #[error("the workflow is loaded already by {holder}")]
    Held {
        /// Program, process and host.
        holder: String,
    },
    /// Anything else that the server says.
    #[error("{}", said(.0))]
    Server(#[from] tokio_postgres::Error),
}

fn advice(found: &str) -> &'static str {
    if found.parse::<f64>().is_ok_and(|found| found < f64::from(VERSION)) {
        "update it with pegasus-db-admin"
    } else {
        "use a newer version of this program, or another database"
    }
}

/// What the server says, with its details, which the error itself leaves out.
fn said(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => match said.detail() {
            Some(detail) => format!("{} ({detail})", said.message()),
            None => said.message().to_owned(),
        },
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

impl ServerError {
    /// Whether it may be better later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Silent(_) => true,
            Self::Refused(_)
            | Self::Tls(_)
            | Self::NoTls(_)
            | Self::Certificate(_)
            | Self::NoDatabase(_)
            | Self::Version { .. }
            | Self::Held { .. } => false,
            Self::Server(error) => match error.code() {
                // The connection failed; the server is shut down, starts up, has too many connections,
                // or chose this transaction to end a deadlock.
                Some(code) => {
                    code.code().starts_with("08")
                        || code.code().starts_with("57P")
                        || code.code().starts_with("40")
                        || *code == SqlState::TOO_MANY_CONNECTIONS
                }
                None => true,
            },
        }
    }

    /// Whether another address of the host may do.
    fn is_of_network(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Silent(_))
    }
}

/// A database on a server.
pub struct Postgresql {
    client: RefCell<Client>,
    at: String,
    wf: i64,
    hosts: HostIds,
    batches: RefCell<Batches>,
    in_transaction: Cell<bool>,
    /// Numbers for tries that were taken from the server, in order.
    tries: RefCell<VecDeque<i64>>,
    /// Jobs that were read and will be asked for.
    ahead: RefCell<Ahead>,
    /// Hashes of the names of jobs and tasks that were planned, to know while the plan is read whether
    /// an event speaks of what is there.
    planned: RefCell<FxHashSet<u64>>,
    cut: Cell<u64>,
    /// Prepared questions.
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
    /// Connects to the database, makes its tables if it has none, and takes the lock of the workflow
    /// `uuid`. With [`Purpose::Live`] comes the position of the loader before, if there is one that this
    /// can go on with; everything else that is known of the workflow is removed, in one transaction with
    /// the rows to come. `me` is the name under which others see this program.
    ///
    /// # Errors
    /// The server cannot be reached or refuses something, the tables are of another version, or another
    /// loader has the workflow.
    pub fn open(
        server: &Server,
        uuid: &str,
        purpose: Purpose,
        me: &str,
        now: i64,
    ) -> Result<(Self, Option<Position>), StoreError> {
        let at = server.to_string();
        let open = || -> Result<_, ServerError> {
            let mut client = connect(server, me)?;
            make_tables(&mut client, now)?;
            lock(&mut client, uuid)?;
            client.batch_execute("BEGIN")?;
            let found = client.query_opt(
                "SELECT wf_id, log_bytes, log_lines, log_head, log_tail, jobstate_bytes
                 FROM workflow LEFT JOIN pmc_loader USING (wf_id) WHERE wf_uuid = $1",
                &[&uuid],
            )?;
            let mut at = None;
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
                        at = Some((wf, position));
                    }
                    _ => {
                        for statement in REMOVE {
                            client.execute(statement, &[&wf])?;
                        }
                    }
                }
            }
            Ok((client, at))
        };
        match open() {
            Ok((client, known)) => Ok((
                Self {
                    client: RefCell::new(client),
                    at,
                    wf: known.map_or(0, |(wf, _)| wf),
                    hosts: HostIds::default(),
                    batches: RefCell::default(),
                    in_transaction: Cell::new(true),
                    tries: RefCell::default(),
                    ahead: RefCell::default(),
                    planned: RefCell::default(),
                    cut: Cell::new(0),
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

    /// Does something with the server, in a transaction if it writes.
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

/// Makes the tables unless they are there, and checks their version.
fn make_tables(client: &mut Client, now: i64) -> Result<(), ServerError> {
    let there = |client: &mut Client, table: &str| -> Result<bool, ServerError> {
        let row = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table])?;
        Ok(row.get(0))
    };
    if !there(client, "public.dbversion")? || !there(client, "public.pmc_loader")? {
        // Should it fail, the connection ends, and the transaction with it.
        client.batch_execute("BEGIN")?;
        client.execute("SELECT pg_advisory_xact_lock($1)", &[&MAKING_TABLES])?;
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

/// Key of the advisory lock of a workflow: the hash FNV-1a, 64 bits with sign, of `pmc_loader `, a blank at its
/// end, and the UUID. Loaders of all versions must agree on it.
fn lock_key(uuid: &str) -> i64 {
    fnv1a(&[b"pmc_loader ", uuid.as_bytes()]).cast_signed()
}

/// Takes the lock of a workflow for as long as the connection lasts.
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
    fn the_key_of_a_lock_stays_the_same() {
        assert_eq!(
            lock_key("5d0b1c52-0000-4000-8000-0000000000aa"),
            -8_964_810_585_860_483_177
        );
    }
}
