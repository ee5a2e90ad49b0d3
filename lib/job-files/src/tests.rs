//! What is written is what was read.

use std::path::PathBuf;

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z/:.]{0,9}", any::<String>()]
}

fn value() -> impl Strategy<Value = Option<Text>> {
    of(text().prop_map(Text::from))
}

fn flag() -> impl Strategy<Value = Option<Flag>> {
    of(any::<bool>().prop_map(Flag))
}

fn place() -> impl Strategy<Value = Place> {
    let parts = (
        value(),
        value(),
        of(any::<i64>().prop_map(Number)),
        value(),
        flag(),
    );
    parts.prop_map(|(site_label, url, priority, image, recursive)| Place {
        site_label,
        url,
        priority,
        checkpoint: None,
        image,
        recursive,
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let texts = (value(), value(), value());
    let flags = (flag(), flag(), flag(), flag());
    let places = (of(vec(place(), 0..3)), of(vec(place(), 0..3)));
    let transfer = (texts, flags, places).prop_map(|(texts, flags, places)| Entry {
        kind: texts.0,
        linkage: texts.1,
        lfn: texts.2,
        verify_symlink_source: flags.0,
        generate_checksum: flags.1,
        verify_checksum_remote: flags.2,
        optional: flags.3,
        attributes: None,
        src_urls: places.0,
        dest_urls: places.1,
        target: None,
    });
    prop_oneof![
        transfer,
        (text(), place()).prop_map(|(kind, target)| Entry::target(&kind, target)),
    ]
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    vec(entry(), 0..4)
}

fn path() -> impl Strategy<Value = PathBuf> {
    text().prop_map(PathBuf::from)
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..3)
}

fn verified() -> impl Strategy<Value = Vec<Verified>> {
    let one = (text(), of(text()), of(path())).prop_map(|(lfn, sha256, checksum_file)| Verified {
        lfn,
        sha256,
        checksum_file,
    });
    vec(one, 0..3)
}

fn run() -> impl Strategy<Value = Run> {
    let words = || vec(text(), 1..4);
    prop_oneof![words().prop_map(Run::Kickstart), words().prop_map(Run::Program)]
}

fn container() -> impl Strategy<Value = Container> {
    let kind = proptest::sample::select(vec![
        ContainerKind::Docker,
        ContainerKind::Podman,
        ContainerKind::Singularity,
        ContainerKind::Shifter,
    ]);
    let names = (kind, text(), text(), any::<bool>(), any::<bool>());
    let words = (texts(), texts(), texts(), texts());
    let rest = (btree_map(text(), text(), 0..3), entries(), verified());
    (names, words, rest).prop_map(|(names, words, rest)| Container {
        kind: names.0,
        image: names.1,
        directory: names.2,
        mounts: words.0,
        arguments: words.1,
        launcher: words.2,
        gpus: names.3,
        environment: rest.0,
        secrets: words.3,
        fetch: rest.1,
        verify: rest.2,
        transfers_inside: names.4,
    })
}

fn description() -> impl Strategy<Value = Description> {
    let names = (text(), path(), any::<bool>(), run(), of(container()));
    let paths = (of(path()), of(path()), of(path()), of(path()), vec(path(), 0..3));
    let words = (texts(), texts(), texts(), texts(), texts());
    let lists = (entries(), entries(), entries(), entries(), verified());
    let rest = (btree_map(text(), text(), 0..3), of(any::<u64>()), any::<bool>());
    (names, paths, words, lists, rest).prop_map(|(names, paths, words, lists, rest)| Description {
        format: FORMAT,
        job: names.0,
        scratch: paths.0,
        env_source: paths.1,
        transfer_arguments: words.0,
        container: names.4,
        work_directory: paths.2,
        run_key: names.1,
        in_cluster: names.2,
        in_start_directory: rest.2,
        environment: rest.0,
        unset: words.1,
        stage_in: lists.0,
        shared: words.2,
        cache_limit: rest.1,
        checkpoint_in: lists.1,
        executables: paths.4,
        verify: lists.4,
        run: names.3,
        required: words.3,
        stage_out: lists.2,
        checkpoint_out: lists.3,
        hashed: words.4,
        checksum_file: paths.3,
    })
}

proptest! {
    #[test]
    fn written_lists_are_read(list in entries()) {
        let mut text = String::new();
        write_list(list.clone(), &mut text);
        prop_assert_eq!(read_list(text.as_bytes()).unwrap(), list, "{}", text);
    }

    #[test]
    fn written_descriptions_are_read(description in description()) {
        let text = description.to_json().unwrap();
        prop_assert_eq!(Description::parse(text.as_bytes()).unwrap(), description, "{}", text);
    }
}

#[test]
fn lists_look_like_those_of_pegasus() {
    let source = |url: &str, priority| Place {
        priority: Some(Number(priority)),
        ..Place::new("local", url)
    };
    let sources = vec![source("file:///a", 2), source("http://h/\"a", 1)];
    let transfer = Entry {
        optional: Some(Flag(true)),
        attributes: Some(vec![("size".into(), "3".into()), ("k".into(), "v".into())]),
        ..Entry::transfer("f.a", "input", sources, Place::new("hpc", "file:///w/f.a"))
    };
    let mut text = String::new();
    write_list([transfer.clone(), transfer], &mut text);
    let entry = r#" { "type": "transfer",
   "linkage": "input",
   "lfn": "f.a",
   "id": N,
   "optional": true,
   "attributes": {
     "size":"3",
     "k":"v"
   },
   "src_urls": [
     { "site_label": "local", "url": "file:///a", "priority": 2 },
     { "site_label": "local", "url": "http://h/\"a", "priority": 1 }
   ],
   "dest_urls": [
     { "site_label": "hpc", "url": "file:///w/f.a" }
   ] }
"#;
    let [first, second] = ["1", "2"].map(|number| entry.replace('N', number));
    assert_eq!(text, format!("[\n{first} ,\n{second}]\n"));

    let target = |kind: &str, recursive| {
        let place = Place {
            recursive,
            ..Place::new("hpc", "file:///w")
        };
        Entry::target(kind, place)
    };
    text.clear();
    write_list(
        [target("mkdir", None), target("remove", Some(Flag(true)))],
        &mut text,
    );
    let expected = r#"[
  {
    "id": 1,
    "type": "mkdir",
    "target": { "site_label": "hpc", "url": "file:///w" } }
  ,
  {
    "id": 2,
    "type": "remove",
    "target": { "site_label": "hpc", "url": "file:///w", "recursive": "True" } }
]
"#;
    assert_eq!(text, expected);
}

#[test]
fn descriptions_of_other_versions_and_without_a_program_are_refused() {
    let parse = |text: &str| Description::parse(text.as_bytes()).map_err(|error| error.to_string());
    assert!(parse(r#"{"format": 1, "job": "a", "run": {"program": ["/bin/true"]}}"#).is_ok());
    let error = parse(r#"{"format": 9, "job": "a", "run": {"program": ["/bin/true"]}}"#).unwrap_err();
    assert!(error.contains("its format is 9"), "{error}");
    let error = parse(r#"{"format": 1, "job": "a", "run": {"kickstart": []}}"#).unwrap_err();
    assert_eq!(error, "it names no program");
    assert!(parse("{").is_err());
    assert!(parse("").is_err());
}

/// A walk over all keys took variables of the container for files of the run.
#[test]
fn files_of_a_job_are_found_where_the_format_has_them() {
    let words = [
        "-S",
        "@/s/x.in.lof",
        "-s@/s/y.out.lof",
        "-s",
        "a=a",
        "./a",
        "-s",
        "@/s/z.out.lof",
    ];
    let variables = json!({"env_source": "/v/env", "checksum_file": "/v/a.meta"});
    let given = json!({
        "format": 1, "job": "a", "env_source": "/s/env", "checksum_file": "/s/a.meta",
        "verify": [{"lfn": "x", "checksum_file": "/s/b.meta"}, {"lfn": "y", "sha256": "00"}],
        "environment": variables,
        "container": {
            "kind": "docker", "image": "i", "directory": "/scratch", "environment": variables,
            "verify": [{"lfn": "i", "checksum_file": "/s/c.meta"}],
        },
        "run": {"kickstart": words},
    });
    let mut description = Description::parse(given.to_string().as_bytes()).unwrap();
    let mut found = Vec::new();
    description.each_file(&mut |what, path| {
        found.push((what, path.display().to_string()));
        *path = PathBuf::from(format!("/new{}", path.display()));
    });
    found.sort_by(|a, b| a.1.cmp(&b.1));
    let found: Vec<_> = found.iter().map(|(what, path)| (*what, path.as_str())).collect();
    let expected = [
        (FileUse::Written, "/s/a.meta"),
        (FileUse::Read, "/s/b.meta"),
        (FileUse::Read, "/s/c.meta"),
        (FileUse::Script, "/s/env"),
        (FileUse::Read, "/s/x.in.lof"),
        (FileUse::Read, "/s/y.out.lof"),
    ];
    assert_eq!(found, expected);
    let mut changed = serde_json::to_value(&description).unwrap();
    assert_eq!(changed["container"]["environment"], variables);
    assert_eq!(changed["environment"], variables);
    assert_eq!(changed["env_source"], "/new/s/env");
    assert_eq!(changed["verify"][0]["checksum_file"], "/new/s/b.meta");
    let words = changed["run"]["kickstart"].take();
    assert_eq!(words[1], "@/new/s/x.in.lof");
    assert_eq!(words[2], "-s@/new/s/y.out.lof");
    assert_eq!(words[7], "@/s/z.out.lof", "an argument of the program");
}

#[test]
fn truth_values_and_numbers_have_several_forms() {
    let flag = |text: &str| serde_json::from_str::<Flag>(text).map(|flag| flag.0);
    for text in ["true", "1", "\"Yes\"", "\"T\"", "\"1\""] {
        assert!(flag(text).unwrap(), "{text}");
    }
    for text in ["false", "0", "\"no\"", "\"F\""] {
        assert!(!flag(text).unwrap(), "{text}");
    }
    let error = flag("\"maybe\"").unwrap_err().to_string();
    assert!(error.contains("`maybe` is not true or false"), "{error}");
    assert!(flag("2").is_err() && flag("[]").is_err() && flag("null").is_err());
    let number = |text: &str| serde_json::from_str::<Number>(text).map(|number| number.0);
    for (text, value) in [
        ("-7", -7),
        ("2.9", 2),
        ("\" 12 \"", 12),
        ("18446744073709551615", i64::MAX),
    ] {
        assert_eq!(number(text).unwrap(), value, "{text}");
    }
    let error = number("true").unwrap_err().to_string();
    assert!(error.contains("`true` is not a whole number"), "{error}");
    assert!(number("\"x\"").is_err() && number("{}").is_err());
}
