//! The manual page of all keys.

use std::fmt::Write as _;

use crate::profiles::OLD_KEYS;

use super::{Key, PROFILES, PROPERTIES, State};

const HEAD: &str = "# pmc-plan-keys(5)

<!-- Written by `cargo xtask generate` from the tables in planner/src/keys. -->

## Name

pmc-plan-keys – properties and profiles of pmc-plan

## Description

Every property and profile key of Pegasus 5.1, and those of pmc-plan. A key that is *without effect* causes one
warning with the reason, unless its value is one of those in parentheses. A key that is not in the tables causes a
warning, too, with the most similar name. Values that are refused end the planning.

Plans for HTCondor (`pegasus.code.generator` = `Condor`) know more keys: what is said in the column *for HTCondor* counts for them. Where
that is empty, a key does the same in all plans.

`*` stands for any text. Every profile key is also a property, with the namespace before it: `pegasus.runtime`,
`dagman.retry`, `env.PATH`. Profiles take precedence in the order properties, job, site, transformation; the last
one wins. Of the keys for one task option, those named `pmc_…` win, then those of the namespace `pegasus`, then those of
`condor`, then those of `globus`.

";

/// Returns the manual page, as Markdown.
pub fn page() -> String {
    let mut page = String::from(HEAD);
    section(&mut page, "Properties", PROPERTIES.iter().copied());
    page.push_str("## Profiles\n\n");
    for (namespace, keys) in PROFILES {
        let old = OLD_KEYS.iter().filter(|(of, ..)| of == namespace);
        let mut all: Vec<Key> = old.map(|(_, old, new)| super::old(old, new)).collect();
        all.extend_from_slice(keys);
        all.sort_by_key(|key| key.name);
        section(
            &mut page,
            &format!("Namespace {}", namespace.as_str()),
            all.into_iter(),
        );
    }
    page.push_str("## See also\n\n[pmc-plan](pmc-plan.md), [compatibility](../compatibility.md)\n");
    page
}

fn section(page: &mut String, title: &str, keys: impl Iterator<Item = Key>) {
    let depth = if title.starts_with("Namespace") {
        "###"
    } else {
        "##"
    };
    // Writing into a String cannot fail.
    let _ = writeln!(
        page,
        "{depth} {title}\n\n| key | what it does | for HTCondor |\n|---|---|---|"
    );
    for key in keys {
        let text = match key.state {
            State::Effective(what) => what.to_owned(),
            State::EffectiveFor { values, what, why } => {
                format!(
                    "{what}: {}; other values are *without effect*: {why}",
                    values.replace('|', ", ")
                )
            }
            State::Copied(reader) => format!("for {reader}, which reads it in the submit directory"),
            State::Ignored { idle: "", why } => format!("*without effect*: {why}"),
            State::Ignored { idle, why } => format!("*without effect* ({}): {why}", idle.replace('|', ", ")),
            State::Refused(but) => format!("{but}; other values are *refused*"),
            State::OldName(new) => format!("old name of `{new}`"),
        };
        let condor = key.for_htcondor.unwrap_or_default();
        let _ = writeln!(
            page,
            "| `{}` | {} | {condor} |",
            key.name,
            text.replace('|', "\\|")
        );
    }
    page.push('\n');
}
