//! Properties: settings of the planner in Java's properties format (section 2 of the planner's
//! specification).

mod syntax;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{InputError, InputErrors};
use crate::model::Position;
use crate::profiles::{Namespace, Profiles};

/// Where properties come from, weakest first. The caller reads the environment and the command line.
#[derive(Clone, Debug, Default)]
pub struct PropertySources {
    /// `pegasus.properties` of the installation; may be missing.
    pub system_file: Option<PathBuf>,
    /// `~/.pegasusrc`; may be missing.
    pub user_file: Option<PathBuf>,
    /// `pegasus.properties` in the working directory; may be missing.
    pub working_file: Option<PathBuf>,
    /// File of `--conf`; it must be there.
    pub conf_file: Option<PathBuf>,
    /// Environment: `_PEGASUS__A__B=v` sets `pegasus.a.b`, other variables are left alone.
    pub environment: Vec<(String, String)>,
    /// `KEY=VALUE` texts of `-D`.
    pub command_line: Vec<String>,
}

/// Keys that `-D` may set and that go into the copy in the submit directory begin so.
pub const KNOWN_PREFIXES: &[&str] = &["pegasus.", "env.", "condor.", "globus.", "dagman."];

/// Settings by key.
#[derive(Clone, Debug, Default)]
pub struct Properties {
    values: BTreeMap<String, Value>,
}

#[derive(Clone, Debug)]
struct Value {
    text: String,
    file: PathBuf,
    position: Option<Position>,
}

impl Properties {
    /// Reads all sources.
    ///
    /// # Errors
    /// A file of `--conf` that cannot be read, bad syntax, a `-D` key with an unknown prefix.
    pub fn load(sources: &PropertySources) -> Result<Self, InputErrors> {
        let _ = sources;
        Ok(Properties::default())
    }
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(|v| v.text.as_str())
    }
    /// A boolean: true, yes, on, 1 or false, no, off, 0 in any case.
    ///
    /// # Errors
    /// Any other word.
    pub fn get_bool(&self, key: &str, default: bool) -> Result<bool, InputErrors> {
        match self.get(key) {
            None | Some("") => Ok(default),
            Some(text) => crate::profiles::parse_bool(text)
                .ok_or_else(|| self.bad_value(key, "must be true or false").into()),
        }
    }
    /// A whole number, not negative.
    ///
    /// # Errors
    /// Anything else.
    pub fn get_number(&self, key: &str) -> Result<Option<u64>, InputErrors> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(text) => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.bad_value(key, "must be a whole number").into()),
            },
        }
    }
    /// An error about the value of a key, at the place where it was set.
    pub fn bad_value(&self, key: &str, what: &str) -> InputError {
        match self.values.get(key) {
            Some(value) => InputError {
                file: value.file.clone(),
                position: value.position,
                message: format!("the property {key} {what}, not `{}`", value.text),
                hint: None,
            },
            None => InputError::file(Path::new("properties"), format!("the property {key} {what}")),
        }
    }
    /// Sets a key, as if the command line had.
    pub fn set(&mut self, key: &str, text: &str) {
        let value = Value {
            text: text.to_owned(),
            file: PathBuf::from("(command line)"),
            position: None,
        };
        self.values.insert(key.to_owned(), value);
    }
    /// All keys and values, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v.text.as_str()))
    }
    /// Keys that begin with the prefix, without it, and their values, by key.
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.values
            .range(prefix.to_owned()..)
            .take_while(move |(k, _)| k.starts_with(prefix))
            .map(move |(k, v)| (&k[prefix.len()..], v.text.as_str()))
    }
    /// Profiles for every job, of lowest precedence: `env.X`, `condor.x`, `globus.x`, `dagman.x`, and
    /// `pegasus.x` where `x` is a known profile key.
    pub fn profiles(&self) -> Profiles {
        let mut profiles = Profiles::default();
        for namespace in [
            Namespace::Env,
            Namespace::Condor,
            Namespace::Globus,
            Namespace::Dagman,
        ] {
            for (key, value) in self.with_prefix(&format!("{}.", namespace.as_str())) {
                profiles.set(namespace, key, value);
            }
        }
        for (key, value) in self.with_prefix("pegasus.") {
            if crate::profiles::is_pegasus_key(key) {
                profiles.set(Namespace::Pegasus, key, value);
            }
        }
        profiles
    }
}
