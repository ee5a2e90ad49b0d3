//! Tests of the tables: they are in order, complete, and true.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

/// Documented properties and profile keys of Pegasus 5.1: the names in its configuration reference.
const DOCUMENTED: &str = include_str!("documented.txt");

#[test]
fn tables_are_sorted() {
    let is_sorted = |keys: &[Key]| keys.windows(2).all(|pair| pair[0].name < pair[1].name);
    assert!(is_sorted(PROPERTIES));
    for (namespace, keys) in PROFILES {
        assert!(is_sorted(keys), "{namespace:?}");
    }
    assert_eq!(PROFILES.len(), Namespace::COUNT);
}

#[test]
fn every_documented_key_is_in_the_tables() {
    let missing: Vec<&str> = DOCUMENTED
        .lines()
        .filter(|name| property(&name.replace("[]", "x")).is_none())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(DOCUMENTED.lines().count() > 150);
}

#[test]
fn patterns_and_old_names_are_found() {
    let ignored = |key: &str| matches!(property(key).expect(key).state, State::Ignored { .. });
    assert!(ignored("pegasus.log.manager.formatter") && ignored("dagman.post.path.mine"));
    assert!(ignored("condor.+ProjectName") && ignored("pegasus.x509_user_proxy"));
    assert!(is_plain(Namespace::Pegasus, "Runtime") && is_plain(Namespace::Env, "PATH"));
    assert!(!is_plain(Namespace::Pegasus, "job.runtime") && !is_plain(Namespace::Pegasus, "memory"));
    assert!(!is_plain(Namespace::Condor, "universe") && !is_plain(Namespace::Pegasus, "nothing"));
    assert!(property("pegasus.log.").is_none() && property("pegasus.unknown").is_none());
    for (name, new) in [
        (
            "pegasus.transformation.selector",
            Some("pegasus.selector.transformation"),
        ),
        (
            "pegasus.replica.isi.prefer.stagein.sites",
            Some("pegasus.selector.replica.isi.prefer.stagein.sites"),
        ),
        (
            "pegasus.replica.*.ignore.stagein.sites",
            Some("pegasus.selector.replica.*.ignore.stagein.sites"),
        ),
        ("pegasus.catalog.*.db.url", Some("pegasus.catalog.replica.db.url")),
        ("pegasus.site.selector.env.A", Some("pegasus.selector.site.env.A")),
        ("pegasus.selector.transformation", None),
    ] {
        assert_eq!(new_name(name).as_deref(), new, "{name}");
    }
}

#[test]
fn new_names_are_in_the_tables() {
    for key in PROPERTIES {
        if let State::OldName(new) = key.state {
            let entry = PROPERTIES.iter().find(|key| key.name == new).expect(new);
            assert!(matches!(entry.state, State::Effective(_)), "{new}");
        }
    }
    for (namespace, old, new) in OLD_KEYS {
        let entry = profile(*namespace, old).expect(old);
        assert_eq!(entry.name, *new);
        assert!(
            of_namespace(*namespace).iter().all(|key| key.name != *old),
            "{old}"
        );
    }
}

/// Adds the text of all sources below a directory, but not their tests.
fn add_sources(directory: &Path, all: &mut String) {
    for entry in fs::read_dir(directory).expect("a source directory") {
        let path = entry.expect("an entry").path();
        if ["keys", "tests", "tests.rs"]
            .iter()
            .any(|name| path.ends_with(name))
        {
            continue;
        }
        if path.is_dir() {
            add_sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            all.push_str(text.split("#[cfg(test)]").next().unwrap_or_default());
        }
    }
}

/// Returns the literals of a text.
fn literals(text: &str) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split('"').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

#[test]
fn keys_that_are_read_are_in_the_tables() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    add_sources(&root.join("src"), &mut text);
    let is_name = |text: &str| {
        let mut parts = text.split('.').skip(1);
        let is_word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphabetic());
        text.starts_with("pegasus.") | text.starts_with("pmc.") && parts.all(is_word)
    };
    let names: BTreeSet<String> = literals(&text).into_iter().filter(|text| is_name(text)).collect();
    assert!(names.len() > 50, "{names:?}");
    let is_start = |name: &str| {
        PROPERTIES
            .iter()
            .any(|key| key.name.starts_with(&format!("{name}.")))
    };
    let unknown: Vec<&String> = names
        .iter()
        .filter(|name| *name != "pegasus.properties" && property(name).is_none() && !is_start(name))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn effective_keys_have_readers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace");
    let mut text = String::new();
    for directory in ["planner/src", "stampede/src", "src", "pmc/src"] {
        add_sources(&root.join(directory), &mut text);
    }
    let literals = literals(&text);
    // Parts of names that are put together, such as `{key}.file`, `.seed` and `{direction}.clusters`.
    let parts: BTreeSet<String> = literals
        .iter()
        .filter(|literal| literal.contains('.'))
        .map(|literal| literal.rsplit(['{', '}']).next().unwrap_or_default().to_owned())
        .filter(|part| part.starts_with('.'))
        .collect();
    let is_read = |name: &str| {
        let name = name.trim_end_matches('*');
        let fixed = name.rsplit('*').next().unwrap_or(name);
        let short = name.strip_prefix("pegasus.batch.").unwrap_or(fixed);
        let mut dots = name.match_indices('.').map(|(at, _)| name.split_at(at + 1));
        literals.contains(name)
            || literals.contains(name.trim_end_matches('.'))
            || literals.contains(short)
            || dots.any(|(start, end)| literals.contains(start) && literals.contains(end))
            || parts.iter().any(|part| fixed.ends_with(part.as_str()))
    };
    let unread = |keys: &[Key]| -> Vec<&str> {
        keys.iter()
            .filter(|key| {
                matches!(
                    key.state,
                    State::Effective(_) | State::EffectiveFor { .. } | State::Refused(_)
                )
            })
            .map(|key| key.name)
            .filter(|name| *name != "*" && !is_read(name))
            .collect()
    };
    assert_eq!(unread(PROPERTIES), Vec::<&str>::new());
    for (namespace, keys) in PROFILES {
        assert_eq!(unread(keys), Vec::<&str>::new(), "{namespace:?}");
    }
}
