//! File names can neither escape the work directory nor change a command.

use std::fs;
use std::path::{Component, Path};

use crate::common::Case;

/// Names with a special meaning for shells, command lines, the DAG, and file lists.
const SPECIAL_NAMES: &[&str] = &[
    "-rf",
    "--help",
    "a b",
    "it's",
    "say \"hi\"",
    "$HOME",
    "@list",
    "k=v",
    "#x",
    "a;b",
    "a\\b",
    "`id`",
    "a|b",
    "&",
    "*",
    "~",
    "!x",
    "%s",
    "{}",
    "é/ü",
    "a/./b",
    "..a",
    "a..",
];

/// A workflow of two jobs: the first writes the file as its standard output, the second reads it.
fn workflow(name: &str) -> String {
    let name = serde_json::Value::from(name);
    format!(
        "{{\"pegasus\": \"5.0\", \"name\": \"names\", \"jobs\": [\
         {{\"type\": \"job\", \"id\": \"A\", \"name\": \"first\", \"stdout\": {name}, \"arguments\": [\"-o\"], \
           \"uses\": [{{\"lfn\": {name}, \"type\": \"output\"}}]}},\
         {{\"type\": \"job\", \"id\": \"B\", \"name\": \"second\", \"stdin\": {name}, \
           \"uses\": [{{\"lfn\": {name}, \"type\": \"input\"}}]}}]}}"
    )
}

#[test]
fn special_names_stay_single_words() {
    for name in SPECIAL_NAMES {
        let case = Case::new(&workflow(name));
        case.programs(&["first", "second"]).replicas(&[]);
        let plan = case.plan("-o local --dir submit").expect(name);
        let words = plan.command("first_A");
        let at = words
            .iter()
            .position(|word| word == "-o")
            .expect("an option for the output");
        assert_eq!(words[at + 1], *name);
        assert_eq!(words[words.len() - 2..], ["/bin/first", "-o"], "{name}");
        let words = plan.command("second_B");
        let at = words
            .iter()
            .position(|word| word == "-i")
            .expect("an option for the input");
        assert!(
            words[at + 1].ends_with(&format!("/./{name}")),
            "{name}: {}",
            words[at + 1]
        );
        assert_eq!(words.last().map(String::as_str), Some("/bin/second"), "{name}");
        assert_urls_below(case.path(), &plan.planned.submit_dir);
    }
}

/// Fails unless every URL of the auxiliary jobs is below `base`.
fn assert_urls_below(base: &Path, submit: &Path) {
    let mut count = 0;
    for entry in fs::read_dir(submit.join("00/00")).expect("a directory of orders") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        let Ok(orders) = serde_json::from_str::<serde_json::Value>(&text) else {
            continue;
        };
        let mut open = vec![&orders];
        while let Some(value) = open.pop() {
            match value {
                serde_json::Value::Array(all) => open.extend(all),
                serde_json::Value::Object(all) => {
                    open.extend(all.values());
                    if let Some(url) = all.get("url").and_then(serde_json::Value::as_str) {
                        let file = Path::new(url.strip_prefix("file://").expect("a local URL"));
                        assert!(file.starts_with(base), "{url}");
                        assert!(
                            file.components().all(|part| part != Component::ParentDir),
                            "{url}"
                        );
                        count += 1;
                    }
                }
                _ => {}
            }
        }
    }
    assert!(count > 2, "{count} URLs");
}

#[test]
fn names_outside_the_work_directory_are_refused() {
    for (name, reason) in [
        ("../x", "leads out of the work directory"),
        ("a/../../x", "leads out of the work directory"),
        ("..", "leads out of the work directory"),
        ("/etc/passwd", "leads out of the work directory"),
        ("a\nb", "contains a control character"),
        ("a\u{7f}", "contains a control character"),
        ("", "a file name is empty"),
    ] {
        let case = Case::new(&workflow(name));
        case.programs(&["first", "second"]).replicas(&[]);
        let message = case.fail("-o local --dir submit");
        assert!(message.contains(reason), "{name:?}: {message}");
        assert!(message.contains("workflow.yml:1:"), "{message}");
        assert!(!case.path().join("submit").exists(), "{name:?}");
    }
}

/// A plan of more than a thousand jobs collects its lists in a few files.
#[test]
fn large_plans_have_few_files() {
    let jobs: Vec<String> = (0..1200)
        .map(|n| {
            format!(
                "{{\"type\": \"job\", \"id\": \"J{n}\", \"name\": \"first\", \"uses\": [\
                 {{\"lfn\": \"in {n}\", \"type\": \"input\"}}, {{\"lfn\": \"out{n}\", \"type\": \"output\"}}]}}"
            )
        })
        .collect();
    let case = Case::new(&format!(
        "{{\"pegasus\": \"5.0\", \"name\": \"large\", \"jobs\": [{}]}}",
        jobs.join(",")
    ));
    let names: Vec<String> = (0..1200).map(|n| format!("in {n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    case.programs(&["first"]).replicas(&names);
    let plan = case.plan("-o local --dir submit").expect("a plan");
    let words = plan.command("first_J7");
    let after = |option: &str| {
        let at = words.iter().position(|word| word == option).expect("the option");
        words[at + 1].clone()
    };
    assert_eq!(
        (after("-S").as_str(), after("-s").as_str()),
        ("in 7=in 7", "out7=out7")
    );
    assert!(words.contains(&"-M".to_owned()), "{words:?}");
    // Lists of transfers are parts of one file; those of registrations are beside the DAG for monitoring.
    let submit = &plan.planned.submit_dir;
    let orders = fs::read_to_string(submit.join("large-0.orders")).expect("orders");
    let mut parts = 0;
    for task in plan.tasks() {
        let words = plan.command(&task);
        if let Some(at) = words.iter().position(|word| word == "--part") {
            assert_eq!(words[at - 1], submit.join("large-0.orders").display().to_string());
            let (start, length) = words[at + 1].split_once(':').expect("two numbers");
            let start: usize = start.parse().expect("a number");
            let length: usize = length.parse().expect("a number");
            let part: serde_json::Value = serde_json::from_str(&orders[start..start + length]).expect("JSON");
            assert!(part.as_array().is_some_and(|all| !all.is_empty()));
            parts += 1;
        }
        if let Some(at) = words.iter().position(|word| word == "--insert") {
            assert_eq!(
                words[at + 1],
                submit.join(format!("{task}.in")).display().to_string()
            );
            assert!(submit.join(format!("{task}.in")).is_file());
        }
    }
    assert!(parts > 200, "{parts} jobs read a part");
    assert!(fs::read_dir(submit.join("00/05")).map_or(0, Iterator::count) == 0);
    // Separate lists are written on request.
    let plan = case
        .plan("-o local --dir other -D pegasus.gridstart.generate.lof=true")
        .expect("a plan");
    assert_eq!(plan.file("00/00/first_J7.in.lof"), "in 7=in 7\n");
    assert!(!plan.planned.submit_dir.join("large-0.orders").exists());
}
