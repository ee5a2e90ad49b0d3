//! Warnings about Pegasus properties that have no effect here.

use crate::properties::Properties;

/// A property, the values that equal the behaviour here, and why it has no effect.
type Unused = (&'static str, &'static [&'static str], &'static str);

const UNUSED: &[Unused] = &[
    (
        "pegasus.gridstart",
        &["kickstart", "none"],
        "jobs share the work directory, so they are started by pegasus-kickstart alone",
    ),
    (
        "pegasus.transfer.worker.package",
        &["false"],
        "the programs of the installation that each site names (PEGASUS_HOME) are used, none are staged",
    ),
    (
        "pegasus.dir.staging.mapper",
        &["flat"],
        "jobs find their files in the work directory by name, so files lie there by name",
    ),
    (
        "pegasus.file.cleanup.impl",
        &["cleanup"],
        "files are removed by pegasus-transfer",
    ),
    (
        "pegasus.file.cleanup.scope",
        &["fullahead"],
        "sub-workflows are part of the plan, so all of it is known when clean-up is planned",
    ),
    (
        "pegasus.catalog.site.repo.file",
        &[],
        "the planner loads nothing from the network; put the sites into the site catalog",
    ),
];

/// Returns a warning for each of these properties with another value.
pub(crate) fn warnings(properties: &Properties) -> Vec<String> {
    let is_set = |key: &str, idle: &[&str]| {
        let value = properties
            .get(key)
            .map(str::trim)
            .filter(|value| !value.is_empty())?;
        let is_idle = idle.iter().any(|same| same.eq_ignore_ascii_case(value));
        (!is_idle).then_some(value)
    };
    let warnings = |&(key, idle, why): &Unused| {
        let value = is_set(key, idle)?;
        Some(format!("the property {key} = {value} has no effect: {why}"))
    };
    UNUSED.iter().filter_map(warnings).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_nothing_is_told() {
        let mut properties = Properties::default();
        assert!(warnings(&properties).is_empty());
        for (key, value) in [
            ("pegasus.gridstart", "Kickstart"),
            ("pegasus.file.cleanup.impl", "RM"),
            ("pegasus.dir.staging.mapper", "Hashed"),
            ("pegasus.transfer.worker.package", "false"),
        ] {
            properties.set(key, value);
        }
        let warnings = warnings(&properties);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings[0].starts_with("the property pegasus.dir.staging.mapper = Hashed has no effect"),
            "{warnings:?}"
        );
    }
}
