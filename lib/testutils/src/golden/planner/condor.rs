//! Plans for HTCondor: DAGMan files and submit descriptions, as sorted lines of facts.

use std::collections::BTreeMap;

use super::super::text::regex;
use super::compare::squeeze;

/// Returns the group of a file in a plan for HTCondor, `None` for one that all plans have.
pub fn group(path: &str) -> Option<&'static str> {
    const SUFFIXES: [(&str, &str); 3] = [
        (".dag.condor.sub", "dagmansub"),
        (".sub", "sub"),
        (".dag", "dagman"),
    ];
    let found = SUFFIXES.iter().find(|(suffix, _)| path.ends_with(suffix));
    found.map(|(_, group)| *group)
}

/// Compares two files of a group, and returns the problems.
pub fn files(group: &str, expected: &str, got: &str) -> Vec<String> {
    let facts = |text: &str| match group {
        "dagman" => dag(text),
        "dagmansub" => {
            let mut facts = description(text);
            facts.retain(|key, _| {
                key.starts_with("+pegasus") || key == "executable" || key.starts_with("environment ")
            });
            facts.retain(|key, _| !key.starts_with("environment _CONDOR_"));
            let options = regex!(r"(?m)^# condor_submit_dag.*$").find(text);
            let words: Vec<&str> = options
                .map_or("", |line| line.as_str())
                .split_whitespace()
                .collect();
            for pair in words.windows(2).filter(|pair| pair[0].starts_with("-Max")) {
                facts.insert(format!("option {}", pair[0]), pair[1].to_owned());
            }
            facts
        }
        _ => description(text),
    };
    let (expected, got) = (facts(expected), facts(got));
    let mut problems = Vec::new();
    for (key, value) in &expected {
        match got.get(key) {
            None => problems.push(format!("missing {key} = {value}")),
            Some(other) if other != value => problems.push(format!("{key}: {value} -> {other}")),
            Some(_) => {}
        }
    }
    let extra = got.iter().filter(|(key, _)| !expected.contains_key(*key));
    problems.extend(extra.map(|(key, value)| format!("extra   {key} = {value}")));
    problems
}

/// Returns the records of a DAGMan file.
fn dag(text: &str) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let line = collapsed(line);
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(record) = words.first() else { continue };
        let names = match *record {
            "PARENT" => words.len(),
            "SCRIPT" => 3,
            "SUBDAG" => 3,
            _ => 2,
        };
        let (names, values) = words.split_at(names.min(words.len()));
        let value = values.join(" ").replace(" .//", " ./").replace("My.", "+");
        facts.insert(names.join(" "), value);
    }
    facts
}

/// Returns the commands of a submit description. The last one of a name counts.
fn description(text: &str) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        let (name, value) = (name.trim(), collapsed(value.trim()));
        let name = match name.starts_with('+') {
            true => name.to_owned(),
            false => name.to_ascii_lowercase(),
        };
        match name.as_str() {
            "environment" | "+remote_environment" => {
                facts.retain(|key: &String, _| !key.starts_with(&format!("{name} ")));
                let inner = value.trim_matches('"');
                // As a string of ClassAds, too.
                let inner = inner.replace("\\\"", "\"\"");
                for word in words(&inner) {
                    let (variable, value) = word.split_once('=').unwrap_or((&word, ""));
                    facts.insert(format!("{name} {variable}"), settled(variable, value));
                }
            }
            "+remote_cerequirements" => {
                let mut parts: Vec<&str> = value.split("&&").map(str::trim).collect();
                parts.sort_unstable();
                facts.insert(name, parts.join(" && "));
            }
            "arguments" => {
                let words = match value.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
                    Some(inner) => words(inner),
                    None => value.split_whitespace().map(str::to_owned).collect(),
                };
                facts.insert(name, squeeze(&words.join(" ")));
            }
            "transfer_input_files" | "transfer_output_files" | "encrypt_input_files" => {
                facts.insert(name, sorted(&value));
            }
            _ => {
                facts.insert(name, value.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    facts
}

/// Puts in order what has any order in the value of a variable.
fn settled(variable: &str, value: &str) -> String {
    match variable {
        "GRIDSTART_CLEANUP" => {
            let mut words: Vec<&str> = value.split_whitespace().collect();
            words.sort_unstable();
            words.join(" ")
        }
        _ if variable.starts_with("_PEGASUS_TRANSFER_") => sorted(value),
        _ => value.to_owned(),
    }
}

fn sorted(list: &str) -> String {
    let mut names: Vec<&str> = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    names.sort_unstable();
    names.join(",")
}

/// Collapses the double slashes and single dots in paths, but not those of URLs.
fn collapsed(text: &str) -> String {
    regex!(r"([\w.@)-])//+")
        .replace_all(text, "$1/")
        .replace(" .//", " ./")
        .replace("/./", "/")
}

/// Splits a text in HTCondor's new syntax.
fn words(text: &str) -> Vec<String> {
    let (mut all, mut word, mut is_quoted) = (Vec::new(), None::<String>, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if chars.next_if_eq(&'"').is_some() => word.get_or_insert_default().push('"'),
            '\'' if is_quoted && chars.next_if_eq(&'\'').is_some() => word.get_or_insert_default().push('\''),
            '\'' => {
                word.get_or_insert_default();
                is_quoted = !is_quoted;
            }
            c if c.is_whitespace() && !is_quoted => all.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    all.extend(word);
    all
}
