//! Warnings about keys in input files.

use std::path::Path;

use rustc_hash::FxHashSet;

use crate::diagnostic::{Diagnostic, Position};
use crate::error::near_spelling;
use crate::profiles::{Namespace, OLD_KEYS, megabytes};
use crate::task_request;

use super::{Key, State, is_old, of_namespace, profile, property, similar_property};

/// Checks profiles as they are read, and warns of each key once.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    /// Keys of each namespace that need no further check.
    checked: [FxHashSet<Box<str>>; Namespace::COUNT],
    /// Expressions that have been checked.
    expressions: FxHashSet<Box<str>>,
    pub(crate) warnings: Vec<Diagnostic>,
}

impl Checker {
    /// Checks one profile.
    ///
    /// # Errors
    /// A value that cannot be used.
    pub(crate) fn check(
        &mut self,
        file: &Path,
        namespace: Namespace,
        key: &str,
        value: &str,
        position: Position,
    ) -> Result<(), Diagnostic> {
        if matches!(namespace, Namespace::Env | Namespace::Metadata) {
            return Ok(());
        }
        if namespace == Namespace::Pegasus
            && (key.eq_ignore_ascii_case("memory") || key.eq_ignore_ascii_case("diskspace"))
            && !value.bytes().all(|b| b.is_ascii_digit())
            && megabytes(value).is_none()
        {
            return Err(Diagnostic::at(
                file,
                position,
                format!("the profile pegasus::{key} must be a whole number of MiB, not `{value}`"),
            ));
        }
        if namespace == Namespace::Pegasus
            && let Some(request) = key.strip_suffix(".expr")
            && pmc_expressions::Amount::parse(request).is_some()
            && self.expressions.insert(value.into())
            && let Err(error) = pmc_expressions::check(value)
        {
            let message = format!("the profile pegasus::{key} will be skipped: {error}");
            self.warnings.push(Diagnostic::at(file, position, message));
        }
        let checked = &mut self.checked[namespace as usize];
        if checked.contains(key) {
            return Ok(());
        }
        match about_profile(namespace, key, value) {
            None if super::is_plain(namespace, key) => {
                checked.insert(key.into());
            }
            None => {}
            Some((message, hint)) => {
                let warning = Diagnostic::at(file, position, message);
                self.warnings.push(Diagnostic { hint, ..warning });
                checked.insert(key.into());
            }
        }
        Ok(())
    }
}

/// A message and a hint.
type Warning = (String, Option<String>);

/// Returns the warning about a profile.
fn about_profile(namespace: Namespace, key: &str, value: &str) -> Option<Warning> {
    let subject = format!("the profile {}::{key}", namespace.as_str());
    let Some(known) = profile(namespace, key) else {
        let names = of_namespace(namespace).iter().map(|key| key.name);
        let near = near_spelling(key, names.filter(|name| !name.contains('*')));
        let hint = near.map(|near| format!("did you mean {}::{near}?", namespace.as_str()));
        return Some((format!("{subject} is not known and has no effect"), hint));
    };
    if is_old(namespace, key) && !matches!(known.state, State::Ignored { .. }) {
        let hint = format!("use {}::{}", namespace.as_str(), known.name);
        return Some((format!("{subject} has an old name"), Some(hint)));
    }
    // Of those that tasks can request, the warning names the job.
    if namespace == Namespace::Condor
        && known.name == "request_disk"
        && !value.trim().is_empty()
        && !task_request::is_number(known.name, value)
    {
        let message =
            format!("{subject} has no effect: {value} is not a number, and only HTCondor knows expressions");
        return Some((message, None));
    }
    no_effect(known, value).map(|why| (format!("{subject} has no effect: {why}"), None))
}

/// Returns why a value of a key has no effect.
fn no_effect(key: &Key, value: &str) -> Option<&'static str> {
    let (idle, why) = match key.state {
        State::Ignored { idle, why } => (idle, why),
        State::EffectiveFor { values, why, .. } => (values, why),
        _ => return None,
    };
    let value = value.trim();
    let is_idle = value.is_empty() || idle.split('|').any(|idle| idle.eq_ignore_ascii_case(value));
    (!is_idle).then_some(why)
}

/// Returns whether a warning is about a known key without effect.
pub(crate) fn is_without_effect(message: &str) -> bool {
    is_about_key(message) && message.contains(" has no effect: ")
}

/// Returns whether a warning is about a key. One such warning is enough for all input files.
pub(crate) fn is_about_key(message: &str) -> bool {
    message.starts_with("the profile ") || message.starts_with("the property ")
}

/// Returns the warning about a property. Properties of other programs cause none.
fn about_property(key: &str, value: &str) -> Option<Warning> {
    let subject = format!("the property {key}");
    let Some(known) = property(key) else {
        let near = similar_property(key);
        let is_ours = ["pegasus.", "pmc."].iter().any(|prefix| key.starts_with(prefix));
        if near.is_none() && !is_ours && !is_profile_but_free(key) {
            return None;
        }
        let hint = near.map(|near| format!("did you mean {near}?"));
        return Some((format!("{subject} is not known and has no effect"), hint));
    };
    if let State::OldName(new) = known.state {
        return Some((format!("{subject} has an old name"), Some(format!("use {new}"))));
    }
    if let Some((namespace, rest)) = key.split_once('.')
        && let Some(namespace) = Namespace::parse(namespace)
        && let Some((.., new)) = OLD_KEYS
            .iter()
            .find(|(of, old, _)| *of == namespace && *old == rest)
    {
        let hint = format!("use {}.{new}", namespace.as_str());
        return Some((format!("{subject} has an old name"), Some(hint)));
    }
    let value_shown = pmc_secrets::shown_value(key, value.trim());
    no_effect(known, value).map(|why| (format!("{subject} = {value_shown} has no effect: {why}"), None))
}

/// Returns the new name of a property that has an old one.
pub(crate) fn new_name(key: &str) -> Option<String> {
    let known = property(key)?;
    let State::OldName(new) = known.state else {
        return None;
    };
    match (known.name.split_once('*'), new.split_once('*')) {
        (Some((start, end)), Some((new_start, new_end))) => {
            let middle = key.strip_prefix(start)?.strip_suffix(end)?;
            Some(format!("{new_start}{middle}{new_end}"))
        }
        _ => Some(new.to_owned()),
    }
}

/// Returns whether a property has the name of a namespace with fixed keys.
fn is_profile_but_free(key: &str) -> bool {
    ["dagman.", "globus.", "selector.", "hints."]
        .iter()
        .any(|prefix| key.starts_with(prefix))
}

/// Returns the warnings about properties: key, value, and where it was set.
pub(crate) fn of_properties<'p>(
    properties: impl Iterator<Item = (&'p str, &'p str, (&'p Path, Option<Position>))>,
) -> Vec<Diagnostic> {
    properties
        .filter_map(|(key, value, (file, position))| {
            let (message, hint) = about_property(key, value)?;
            Some(Diagnostic {
                position,
                hint,
                ..Diagnostic::in_file(file, message)
            })
        })
        .collect()
}
