//! What becomes of sub-workflows.

use super::{Abilities, Choices, text};
use crate::properties::Properties;

/// What becomes of sub-workflows: `pegasus.subworkflow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subworkflows {
    /// Part of the plan if that changes nothing, else planned when their turn comes; with DAGMan nested.
    Auto,
    /// Part of the plan.
    Inline,
    /// Planned when their turn comes.
    Nested,
}

/// Values of `pegasus.subworkflow`.
const SUBWORKFLOWS: &[(&str, Subworkflows)] = &[
    ("auto", Subworkflows::Auto),
    ("inline", Subworkflows::Inline),
    ("nested", Subworkflows::Nested),
];

/// Values of `pegasus.file.cleanup.scope`: whether a sub-workflow leaves the files alone that later ones
/// read.
const CLEANUP_SCOPES: &[(&str, bool)] = &[("fullahead", false), ("deferred", true)];

/// Property with the scope of clean-up.
const SCOPE: &str = "pegasus.file.cleanup.scope";

/// Returns the warning about an unknown scope, with which the default counts, as in Pegasus.
pub(super) fn unknown_scope(properties: &Properties) -> Option<String> {
    let name = text(properties, SCOPE)?;
    let is_known = CLEANUP_SCOPES
        .iter()
        .any(|(known, _)| known.eq_ignore_ascii_case(&name));
    (!is_known).then(|| {
        format!(
            "{SCOPE} = {name} is no scope, so that fullahead counts: scopes are fullahead and deferred; \
             pegasus.file.cleanup.strategy says when files are removed"
        )
    })
}

impl Choices<'_> {
    /// Returns whether nested sub-workflows clean up after themselves.
    fn cleanup_scope(&self) -> Option<bool> {
        let name = text(self.properties, SCOPE)?;
        let mut scopes = CLEANUP_SCOPES.iter();
        scopes
            .find(|(known, _)| known.eq_ignore_ascii_case(&name))
            .map(|(_, is_deferred)| *is_deferred)
    }

    /// Returns what becomes of sub-workflows, and whether nested ones clean up after themselves.
    pub(super) fn subworkflows(&mut self, generator: Abilities) -> (Subworkflows, bool) {
        const KEY: &str = "pegasus.subworkflow";
        let cleanup_deferred = self.cleanup_scope().unwrap_or_default();
        let chosen = self.one_of(KEY, Subworkflows::Auto, SUBWORKFLOWS);
        if generator.nests {
            // DAGMan has always run sub-workflows in its own way, which users know.
            let is_dagman = chosen == Subworkflows::Auto && generator.runs_dagman;
            return (
                if is_dagman { Subworkflows::Nested } else { chosen },
                cleanup_deferred,
            );
        }
        if chosen == Subworkflows::Nested {
            let message = format!("cannot be nested with the code generator {}", generator.name);
            self.problems.push(self.properties.bad_value(KEY, &message));
        }
        (Subworkflows::Inline, cleanup_deferred)
    }
}
