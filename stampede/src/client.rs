//! What connections to PostgreSQL servers take from the environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Variables of the environment that are read: the file of passwords, then those of PostgreSQL's client
/// library that may demand security. The URL has no option for most of them, so none of them is followed.
pub const VARIABLES: [&str; 12] = [
    "PGPASSFILE",
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGSSLCRL",
    "PGSSLCRLDIR",
    "PGSSLCERTMODE",
    "PGSSLMINPROTOCOLVERSION",
    "PGCHANNELBINDING",
    "PGREQUIREAUTH",
    "PGREQUIREPEER",
];

/// Values that demand no more than each connection has.
const HARMLESS: [&str; 7] = ["", "disable", "allow", "prefer", "TLSv1", "TLSv1.1", "TLSv1.2"];

/// Settings in the environment for connections to PostgreSQL servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// File of passwords.
    pub passwords: Option<PathBuf>,
    /// Variables that demand security, which is refused unless the URL has the option.
    pub demands: Vec<&'static str>,
}

/// A variable of the environment demands security that no option of the URL demands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the variable {0} is not supported; unset it, and add to the URL what the connection needs: sslmode=require, \
     or sslmode=verify-full&sslrootcert=FILE"
)]
pub struct VariableError(pub &'static str);

impl ClientSettings {
    /// Reads the variables of the environment. `home` is the home directory.
    pub fn new(home: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let demands = |name: &&str| {
            variable(name).is_some_and(|value| HARMLESS.iter().all(|harmless| value != *harmless))
        };
        let file = variable(VARIABLES[0]).filter(|value| !value.is_empty());
        Self {
            passwords: file.map(PathBuf::from).or_else(|| Some(home?.join(".pgpass"))),
            demands: VARIABLES.into_iter().skip(1).filter(demands).collect(),
        }
    }

    /// Reads the variables from names and values.
    #[must_use]
    pub fn of_pairs(home: Option<&Path>, pairs: &[(impl AsRef<OsStr>, OsString)]) -> Self {
        let value = |variable: &str| {
            let found = pairs.iter().find(|(name, _)| name.as_ref() == variable);
            found.map(|(_, value)| value.clone())
        };
        Self::new(home, value)
    }
}
