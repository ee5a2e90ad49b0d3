//! What becomes of sub-workflows.

use super::{Choices, Generator};

/// What becomes of sub-workflows: `pegasus.subworkflow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subworkflows {
    /// Part of the plan if that changes nothing, else planned when their turn comes.
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

impl Choices<'_> {
    /// Returns what becomes of sub-workflows, and whether nested ones clean up after themselves. A shell
    /// script cannot plan them.
    pub(super) fn subworkflows(&mut self, generator: Generator) -> (Subworkflows, bool) {
        const KEY: &str = "pegasus.subworkflow";
        let cleanup_deferred = self.one_of("pegasus.file.cleanup.scope", false, CLEANUP_SCOPES);
        let mode = match (self.one_of(KEY, Subworkflows::Auto, SUBWORKFLOWS), generator) {
            (Subworkflows::Nested, Generator::Shell) => {
                let message = "cannot be nested with the code generator Shell";
                self.problems.push(self.properties.bad_value(KEY, message));
                Subworkflows::Inline
            }
            (_, Generator::Shell) => Subworkflows::Inline,
            (chosen, Generator::Pmc) => chosen,
        };
        (mode, cleanup_deferred)
    }
}
