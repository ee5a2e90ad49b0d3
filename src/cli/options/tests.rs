use std::collections::BTreeSet;

use super::*;

#[test]
fn manual_page_describes_every_option_and_no_other() {
    let manual = include_str!("../../../docs/manual/pegasus-mpi-cluster.md");
    let (_, section) = manual.split_once("\n## Options\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let names = |line: &str| -> Option<String> {
        let cell = line.strip_prefix("| `")?.split('|').next()?;
        let names = cell.split('`').filter_map(|name| name.split(' ').next());
        let names: Vec<&str> = names.filter(|name| name.starts_with('-')).collect();
        Some(names.join("|"))
    };
    // The first column begins with a backquote, which `names` removes.
    let described: BTreeSet<String> = section.lines().filter_map(names).collect();
    let known: BTreeSet<String> = OPTIONS.iter().map(OptionSpec::names).collect();
    assert_eq!(described, known);
}

#[test]
fn names_are_unique() {
    let mut names = BTreeSet::new();
    for option in OPTIONS {
        assert!(names.insert(option.long.to_owned()), "{}", option.long);
        if let Some(short) = option.short {
            assert!(names.insert(short.to_string()), "{short}");
        }
    }
}

#[test]
fn words_name_options_only_as_a_whole() {
    let long = |word: &str| find(OsStr::new(word)).map(|option| option.long);
    assert_eq!(long("-s"), Some("skip-rescue"));
    assert_eq!(long("--skip-rescue"), Some("skip-rescue"));
    for word in ["-", "--", "-sn", "s", "--skip", "--s", "-skip-rescue", ""] {
        assert_eq!(long(word), None, "{word}");
    }
}
