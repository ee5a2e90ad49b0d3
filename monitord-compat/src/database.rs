//! The schema of Pegasus' databases: STAMPEDE, the list of workflows, and the replica catalog.
//!
//! Pegasus' programs accept a database only if it has all tables, whatever it is used for, so there
//! is one schema for all. SQL text only; who runs it is elsewhere. Everything that exists stays.

/// Version of the schema, as readers check it in the table `dbversion`.
pub const VERSION: u32 = 14;

/// Makes all tables that are missing.
pub const TABLES: &str = include_str!("database/tables.sql");

/// Makes all indexes that are missing. With many rows it is faster to make them at the end.
pub const INDEXES: &str = include_str!("database/indexes.sql");

/// Makes the tables of a database on a PostgreSQL server. None of them may be there.
pub const POSTGRESQL_TABLES: &str = include_str!("database/postgresql.sql");

/// Notes the version: its number, the same as text, and the time in seconds since the epoch.
pub const INSERT_VERSION: &str =
    "INSERT INTO dbversion (version_number, version, version_timestamp) VALUES (?1, ?2, ?3)";
