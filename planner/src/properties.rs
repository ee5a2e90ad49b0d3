//! Properties: settings of the planner in Java's properties format.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use monitord_compat::properties::settings;
use pmc_secrets::shown_value;

use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::expand::ExpandEnv;
use crate::keys::{self, Checker, is_pegasus_key};
use crate::model::Position;
use crate::profiles::{Namespace, Profiles};
use crate::syntax::text;

/// Sources of properties, weakest first. The caller reads the environment and the command line.
#[derive(Clone, Debug, Default)]
pub struct PropertySources {
    /// `pegasus.properties` of the installation; may be missing.
    pub system_file: Option<PathBuf>,
    /// `~/.pegasusrc`; may be missing.
    pub user_file: Option<PathBuf>,
    /// `pegasus.properties` in the working directory; may be missing.
    pub working_file: Option<PathBuf>,
    /// File of `--conf`; must exist.
    pub conf_file: Option<PathBuf>,
    /// Environment: `_PEGASUS__A__B=v` sets `pegasus.a.b`. Other variables are ignored.
    pub environment: Vec<(String, String)>,
    /// `KEY=VALUE` texts of `-D`.
    pub command_line: Vec<String>,
    /// The file of `--conf` is that of a plan: the planner has added properties for other programs.
    pub is_conf_of_plan: bool,
}

/// Returns whether the planner adds a property to those of a plan for other programs only.
fn is_added(key: &str) -> bool {
    key == "dagman.maxpre" || key.starts_with("pegasus.home.")
}

/// Prefixes of the keys that `-D` may set and that are copied into the submit directory.
pub const KNOWN_PREFIXES: &[&str] = &[
    "pegasus.",
    "pmc.",
    "env.",
    "condor.",
    "globus.",
    "dagman.",
    "selector.",
    "hints.",
];

/// Prefix of the properties with secrets among the `-D` options of nested sub-workflows.
pub(crate) const SECRET: &str = "pmc.secret.";
/// The property of the command line that names a file with such properties, for a sub-workflow whose file of
/// `--conf` does not have them.
pub(crate) const SECRETS_FILE: &str = "pmc.secrets.file";

/// Settings by key.
#[derive(Clone, Debug, Default)]
pub struct Properties {
    values: BTreeMap<String, Value>,
    /// Keys without effect, and old names.
    warnings: Vec<Diagnostic>,
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
    /// An unreadable file of `--conf`, bad syntax, a `-D` key with an unknown prefix.
    pub fn load(sources: &PropertySources) -> Result<Self, InputErrors> {
        let environment = ExpandEnv::new(sources.environment.iter().map(|(k, v)| (k, v.clone())));
        let mut loader = Loader {
            environment,
            conf_of_plan: sources.conf_file.clone().filter(|_| sources.is_conf_of_plan),
            ..Loader::default()
        };
        loader.read_command_line(&sources.command_line);
        loader.read_secrets();
        for file in [&sources.system_file, &sources.user_file, &sources.working_file]
            .into_iter()
            .flatten()
        {
            loader.read_file(file, false);
        }
        if let Some(file) = &sources.conf_file {
            loader.read_file(file, true);
        }
        for (name, value) in &sources.environment {
            if let Some(key) = key_of_variable(name) {
                let value = loader.substitute(value, 0);
                let origin = PathBuf::from(format!("(environment variable {name})"));
                loader.properties.insert(key, value, origin, None);
            }
        }
        for (key, value) in std::mem::take(&mut loader.command_line) {
            let value = loader.substitute(&value, 0);
            let origin = PathBuf::from(format!("-D{key}"));
            loader.properties.insert(key, value, origin, None);
        }
        loader.finish()
    }
    /// Reads the text of one file.
    ///
    /// # Errors
    /// Bad syntax; invalid values of profiles.
    pub fn parse(file: &Path, text: &str) -> Result<Self, InputErrors> {
        let mut loader = Loader::default();
        loader.read_text(file, text);
        loader.finish()
    }
    fn insert(&mut self, key: String, text: String, file: PathBuf, position: Option<Position>) {
        self.values.insert(key, Value { text, file, position });
    }
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(|v| v.text.as_str())
    }
    /// Returns a boolean: true, yes, on, 1 or false, no, off, 0, case-insensitive.
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
    /// Returns a non-negative integer.
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
    /// Returns an error about the value of a key, with the position where it was set.
    pub fn bad_value(&self, key: &str, what: &str) -> Diagnostic {
        match self.values.get(key) {
            Some(value) => {
                let shown = shown_value(key, &value.text);
                let message = format!("the property {key} {what}, not `{shown}`");
                Diagnostic {
                    position: value.position,
                    ..Diagnostic::in_file(&value.file, message)
                }
            }
            None => Diagnostic::in_file(Path::new("properties"), format!("the property {key} {what}")),
        }
    }
    /// Returns an error about a key, with the position where it was set.
    pub fn bad_key(&self, key: &str, what: &str) -> Diagnostic {
        let (file, position) = self.origin(key);
        Diagnostic {
            position,
            ..Diagnostic::in_file(file, format!("the property {key}: {what}"))
        }
    }
    /// Returns the file and position where a key was set.
    pub fn origin(&self, key: &str) -> (&Path, Option<Position>) {
        match self.values.get(key) {
            Some(value) => (&value.file, value.position),
            None => (Path::new("properties"), None),
        }
    }
    /// Returns the warnings about keys, one for each.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }
    /// Sets a key as the command line does.
    pub fn set(&mut self, key: &str, text: &str) {
        self.insert(
            key.to_owned(),
            text.to_owned(),
            PathBuf::from("(command line)"),
            None,
        );
    }
    /// Returns all keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v.text.as_str()))
    }
    /// Returns keys with this prefix, without it, and their values, sorted by key.
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.values
            .range(prefix.to_owned()..)
            .take_while(move |(k, _)| k.starts_with(prefix))
            .map(move |(k, v)| (&k[prefix.len()..], v.text.as_str()))
    }
    /// Returns the profiles for every job, of lowest precedence: `env.X`, `condor.x`, `globus.x`, `dagman.x`,
    /// and `pegasus.x` if `x` is a known profile key.
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
            if is_pegasus_key(key) {
                profiles.set(Namespace::Pegasus, key, value);
            }
        }
        profiles
    }
}

/// Converts the name of a variable to a key: `_PEGASUS__A__B` gives `pegasus.a.b`.
fn key_of_variable(name: &str) -> Option<String> {
    let rest = name
        .strip_prefix('_')
        .filter(|rest| rest.starts_with("PEGASUS__"))?;
    Some(rest.to_lowercase().replace("__", "."))
}

/// Maximum depth of nested references; deeper ones are circular.
const MAX_SUBSTITUTION_DEPTH: usize = 16;
/// Limits on the number of references and their bytes: references can grow values exponentially.
const BUDGET: Budget = Budget {
    references: 1 << 15,
    bytes: 1 << 22,
};

#[derive(Clone, Copy, Debug)]
struct Budget {
    references: usize,
    bytes: usize,
}

struct Loader {
    properties: Properties,
    environment: ExpandEnv,
    command_line: BTreeMap<String, String>,
    problems: Vec<Diagnostic>,
    conf_of_plan: Option<PathBuf>,
    /// Remaining budget.
    budget: Cell<Budget>,
}

impl Default for Loader {
    fn default() -> Self {
        Loader {
            properties: Properties::default(),
            environment: ExpandEnv::default(),
            command_line: BTreeMap::new(),
            problems: Vec::new(),
            conf_of_plan: None,
            budget: Cell::new(BUDGET),
        }
    }
}

impl Loader {
    fn read_command_line(&mut self, settings: &[String]) {
        for setting in settings {
            let Some((key, value)) = setting.split_once('=') else {
                self.problems.push(
                    Diagnostic::in_file(Path::new(&format!("-D{setting}")), "no value")
                        .with_hint("a property is set by -Dkey=value"),
                );
                continue;
            };
            let key = key.trim();
            if !KNOWN_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
                let warning = Diagnostic::in_file(
                    Path::new(&format!("-D{key}={}", shown_value(key, value))),
                    format!("`{key}` is not a property of the planner and has no effect"),
                );
                self.properties.warnings.push(warning.with_hint(format!(
                    "keys start with {}; a directory is set by --dir",
                    KNOWN_PREFIXES.join(", ")
                )));
                continue;
            }
            self.command_line.insert(key.to_owned(), value.trim().to_owned());
        }
    }

    /// Reads the secrets that options of the command line refer to, and nothing else of their file.
    fn read_secrets(&mut self) {
        if let Some(file) = self.command_line.get(SECRETS_FILE).map(PathBuf::from) {
            self.read_file(&file, true);
            self.properties.values.retain(|key, _| key.starts_with(SECRET));
        }
    }

    fn read_file(&mut self, file: &Path, required: bool) {
        if !required && !file.exists() {
            return;
        }
        match text::load(file) {
            Ok(text) => self.read_text(file, &text),
            Err(error) => self.problems.push(error),
        }
    }

    fn read_text(&mut self, file: &Path, text: &str) {
        let mut keys = Vec::new();
        for setting in settings(text) {
            match setting {
                Ok(setting) => {
                    let (line, column) = (setting.line, setting.column);
                    keys.push(setting.key.clone());
                    self.properties.insert(
                        setting.key,
                        setting.value,
                        file.to_owned(),
                        Some(Position { line, column }),
                    );
                }
                Err(error) => {
                    let (line, column) = (error.line, error.column);
                    self.problems
                        .push(Diagnostic::at(file, Position { line, column }, error.message));
                }
            }
        }
        // References may name keys defined later.
        for key in keys {
            let raw = self.properties.get(&key).unwrap_or_default().to_owned();
            if raw.contains("${") {
                let text = self.substitute(&raw, 0);
                if let Some(value) = self.properties.values.get_mut(&key) {
                    value.text = text;
                }
            }
        }
    }

    /// Replaces `${name}` by a property, else by one of the command line, else by a variable, else by an
    /// empty text.
    fn substitute(&self, raw: &str, depth: usize) -> String {
        let mut out = String::with_capacity(raw.len());
        let mut rest = raw;
        while let Some(open) = rest.find("${") {
            let Some(length) = rest[open + 2..].find('}') else {
                break;
            };
            out.push_str(&rest[..open]);
            let name = &rest[open + 2..open + 2 + length];
            rest = &rest[open + 3 + length..];
            let mut budget = self.budget.get();
            if depth < MAX_SUBSTITUTION_DEPTH && budget.references > 0 && budget.bytes > 0 {
                budget.references -= 1;
                self.budget.set(budget);
                let value = self.reference(name, depth);
                budget = self.budget.get();
                budget.bytes = budget.bytes.saturating_sub(value.len());
                self.budget.set(budget);
                out.push_str(&value);
            }
        }
        out.push_str(rest);
        out
    }

    fn reference(&self, name: &str, depth: usize) -> String {
        let property = self.properties.get(name);
        if let Some(value) = property.or_else(|| self.command_line.get(name).map(String::as_str)) {
            return if value.contains("${") {
                self.substitute(value, depth + 1)
            } else {
                value.to_owned()
            };
        }
        // Java's names for environment variables.
        let variable = match name {
            "user.home" => "HOME",
            "user.name" => "USER",
            other => other,
        };
        self.environment.get(variable).unwrap_or_default().to_owned()
    }

    /// Returns the properties if there were no problems.
    fn finish(mut self) -> Result<Properties, InputErrors> {
        self.check_profiles();
        self.check_keys();
        let Budget { references, bytes } = self.budget.get();
        if references == 0 || bytes == 0 {
            self.problems.push(Diagnostic::in_file(
                Path::new("properties"),
                format!(
                    "references produce more than {} MB of text or are more than {}: is one circular?",
                    BUDGET.bytes >> 20,
                    BUDGET.references
                ),
            ));
        }
        InputErrors::check(self.problems)?;
        Ok(self.properties)
    }

    /// Warns of keys without effect, and copies values of old names to the new ones that are not set.
    fn check_keys(&mut self) {
        let Properties { values, warnings } = &mut self.properties;
        let all = values.iter().map(|(key, value)| {
            let origin = (value.file.as_path(), value.position);
            (key.as_str(), value.text.as_str(), origin)
        });
        let conf = self.conf_of_plan.as_deref();
        let all = all.filter(|(key, _, (file, _))| !(conf == Some(*file) && is_added(key)));
        warnings.extend(keys::of_properties(all));
        let renamed: Vec<(String, Value)> = values
            .iter()
            .filter_map(|(key, value)| Some((keys::new_name(key)?, value.clone())))
            .collect();
        for (key, value) in renamed {
            values.entry(key).or_insert(value);
        }
    }

    /// Checks profiles as in files. Unknown keys are ordinary properties.
    fn check_profiles(&mut self) {
        let mut checker = Checker::default();
        for (key, value) in &self.properties.values {
            let Some(profile) = key.strip_prefix("pegasus.").filter(|key| is_pegasus_key(key)) else {
                continue;
            };
            let at = value.position.unwrap_or_default();
            if let Err(error) = checker.check(&value.file, Namespace::Pegasus, profile, &value.text, at) {
                self.problems.push(Diagnostic {
                    position: value.position,
                    ..error
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
