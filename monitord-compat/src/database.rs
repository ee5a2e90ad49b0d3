//! The SQL schema of Pegasus' databases: STAMPEDE, the list of workflows, and the replica catalog.
//!
//! Pegasus' programs accept a database only if it has all tables, so there is one schema for all purposes.

/// Version of the schema. Readers check it in the table `dbversion`.
pub const VERSION: u32 = 14;

/// Creates all missing tables.
pub const TABLES: &str = include_str!("database/tables.sql");

/// Creates all missing indexes. With many rows, creating them at the end is faster.
pub const INDEXES: &str = include_str!("database/indexes.sql");

/// Creates the tables on a PostgreSQL server. None of them may exist.
pub const POSTGRESQL_TABLES: &str = include_str!("database/postgresql.sql");

/// Inserts the version: as number, as text, and the time in seconds since the epoch.
pub const INSERT_VERSION: &str =
    "INSERT INTO dbversion (version_number, version, version_timestamp) VALUES (?1, ?2, ?3)";
