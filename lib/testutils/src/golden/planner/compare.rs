//! Compares files of a plan by their meaning.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::diff;
use super::super::text::regex;
use super::{dag, events, yaml};

/// Values by key, for files of settings.
type Settings = BTreeMap<String, Value>;

/// Returns the group of a file, which decides how it is compared.
pub fn group(path: &str) -> &'static str {
    const SUFFIXES: [(&str, &str); 13] = [
        (".json", "lite"),
        (".dag", "dag"),
        (".pbs", "pbs"),
        (".lof", "lof"),
        (".in", "in"),
        (".bp", "bp"),
        (".cache", "cache"),
        (".output.map", "cache"),
        (".replica.store", "cache"),
        (".metrics", "metrics"),
        (".properties", "props"),
        (".yml", "wf"),
        (".dax", "wf"),
    ];
    if path.contains("/catalogs/") {
        return "catalogs";
    }
    if path.ends_with("/braindump.yml") {
        return "braindump";
    }
    let found = SUFFIXES.iter().find(|(suffix, _)| path.ends_with(suffix));
    found.map_or("other", |(_, group)| group)
}

/// Compares two files of a group, and returns the problems.
pub fn files(group: &str, expected: &str, got: &str) -> Vec<String> {
    match group {
        "dag" => dag::compare(expected, got),
        "in" => compare_input(expected, got),
        "lof" => compare_lines(expected, &without_comments(got)),
        "lite" => compare_facts(expected, got),
        "cache" => compare_lines(expected, got),
        "bp" => events::compare(expected, got),
        "braindump" => compare_braindump(expected, got),
        "metrics" => compare_metrics(expected, got),
        "props" => compare_settings(&parse_properties(expected), &parse_properties(got), |_| true),
        "catalogs" => compare_catalogs(expected, got),
        _ => compare_exactly(expected, got),
    }
}

/// Returns a list without comments, which kickstart skips.
fn without_comments(list: &str) -> String {
    let lines = list.split_inclusive('\n');
    lines.filter(|line| !line.starts_with('#')).collect()
}

/// Puts in order what the original writes in random order: the list behind `--meta` of a registration job,
/// and the files behind `chmod +x`.
pub fn settle_words(mut words: Vec<String>) -> Vec<String> {
    if let Some(chmod) = words.iter().position(|word| word == "/bin/chmod") {
        let start = words.len().min(chmod + 2);
        words[start..].sort();
    }
    for i in 1..words.len() {
        if words[i - 1] == "--meta" {
            let mut list: Vec<&str> = words[i].split(',').collect();
            list.sort_unstable();
            words[i] = list.join(",");
        }
    }
    words
}

/// Returns the words of a text with one blank between them, settled.
pub fn squeeze(text: &str) -> String {
    settle_words(text.split_whitespace().map(str::to_owned).collect()).join(" ")
}

/// Compares multisets.
fn compare_counts(
    expected: impl IntoIterator<Item = String>,
    got: impl IntoIterator<Item = String>,
    label: &str,
) -> Vec<String> {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for item in expected {
        *counts.entry(item).or_default() += 1;
    }
    for item in got {
        *counts.entry(item).or_default() -= 1;
    }
    let mut problems = Vec::new();
    for (item, count) in counts {
        let problem = if count > 0 { "missing" } else { "extra  " };
        problems.extend((0..count.abs()).map(|_| format!("{problem} {label}: {item}")));
    }
    // Those that are missing come first.
    problems.sort_by_key(|problem| problem.starts_with("extra"));
    problems
}

/// Compares sets.
pub fn compare_sets(expected: &BTreeSet<String>, got: &BTreeSet<String>, label: &str) -> Vec<String> {
    compare_counts(expected.iter().cloned(), got.iter().cloned(), label)
}

/// Compares lines in any order. White space inside a line does not count.
pub fn compare_lines(expected: &str, got: &str) -> Vec<String> {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines.map(squeeze).collect()
    };
    compare_counts(lines(expected), lines(got), "line")
}

/// Compares lines in any order.
fn compare_facts(expected: &str, got: &str) -> Vec<String> {
    let facts = |text: &str| text.lines().map(str::to_owned).collect();
    compare_sets(&facts(expected), &facts(got), "fact")
}

fn compare_exactly(expected: &str, got: &str) -> Vec<String> {
    if expected == got {
        return Vec::new();
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), got.lines().collect());
    let mut problems = Vec::new();
    for change in diff::changes(&old, &new) {
        problems.extend(old[change.old].iter().map(|line| format!("-{line}")));
        problems.extend(new[change.new].iter().map(|line| format!("+{line}")));
    }
    if problems.is_empty() {
        problems.push("only line ends or the final newline differ".to_owned());
    }
    problems
}

/// Compares inputs of jobs: transfers, members of a cluster, registrations.
fn compare_input(expected: &str, got: &str) -> Vec<String> {
    if let Ok(json) = serde_json::from_str::<Value>(expected)
        && (json.is_array() || json.is_object())
    {
        return compare_json(&json, got);
    }
    if regex!(r"(?m)^TASK ").is_match(expected) {
        return dag::compare(expected, got);
    }
    if regex!(r"(?m)^#@ ").is_match(expected) {
        return compare_counts(commands(expected), commands(got), "command");
    }
    compare_lines(expected, got)
}

/// Returns each command with the numbered comment in front of it, without the number.
fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut comment = String::new();
    for line in text.lines().map(squeeze) {
        if line.starts_with("#@") {
            comment = line.split(' ').skip(2).collect::<Vec<_>>().join(" ");
        } else if !line.is_empty() && !line.starts_with('#') {
            commands.push(format!("({}) {line}", std::mem::take(&mut comment)));
        }
    }
    commands
}

/// Compares JSON. The entries of a list have any order, but their ids are 1, 2, ….
fn compare_json(expected: &Value, got: &str) -> Vec<String> {
    let got: Value = match serde_json::from_str(got) {
        Ok(got) => got,
        Err(e) => return vec![format!("is not JSON: {e}")],
    };
    let entries = |value: &Value| -> Option<Vec<Value>> {
        let list = value.as_array()?;
        list.iter().all(Value::is_object).then(|| list.clone())
    };
    let (Some(old), Some(new)) = (entries(expected), entries(&got)) else {
        return if *expected == got {
            Vec::new()
        } else {
            vec![format!("JSON data differs: {expected} -> {got}")]
        };
    };
    let mut problems = Vec::new();
    let ids: Vec<Option<u64>> = new.iter().map(|entry| entry["id"].as_u64()).collect();
    let has_ids = new.iter().any(|entry| !entry["id"].is_null());
    if has_ids && !ids.iter().copied().eq((1..=new.len() as u64).map(Some)) {
        problems.push(format!("ids are {ids:?}, not 1..{}", new.len()));
    }
    let without_ids = |entries: Vec<Value>| {
        entries.into_iter().map(|mut entry| {
            entry.as_object_mut().map(|entry| entry.remove("id"));
            entry.to_string()
        })
    };
    problems.extend(compare_counts(without_ids(old), without_ids(new), "entry"));
    problems
}

fn compare_settings(expected: &Settings, got: &Settings, value_counts: impl Fn(&str) -> bool) -> Vec<String> {
    let keys: BTreeSet<&String> = expected.keys().chain(got.keys()).collect();
    let mut problems = Vec::new();
    for key in keys {
        match (expected.get(key), got.get(key)) {
            (Some(old), None) => problems.push(format!("missing key {key} (= {})", shown(old))),
            (None, Some(new)) => problems.push(format!("extra   key {key} (= {})", shown(new))),
            (Some(old), Some(new)) if old != new && value_counts(key) => {
                problems.push(format!("{key}: {} -> {}", shown(old), shown(new)));
            }
            _ => {}
        }
    }
    problems
}

/// Shows a text without quotes, other values as JSON.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Compares `braindump.yml`. The values of some keys describe the program or the host, not the plan.
fn compare_braindump(expected: &str, got: &str) -> Vec<String> {
    const NOT_OF_THE_PLAN: [&str; 5] = [
        "planner",
        "planner_version",
        "pegasus_build",
        "submit_hostname",
        "grid_dn",
    ];
    let settings = |text: &str| -> Result<Settings, String> {
        match yaml::parse(text)?.pop() {
            Some(Value::Object(map)) => Ok(map.into_iter().collect()),
            _ => Err("no mapping".to_owned()),
        }
    };
    let expected = settings(expected).expect("the expected file is YAML");
    match settings(got) {
        Ok(got) => compare_settings(&expected, &got, |key| !NOT_OF_THE_PLAN.contains(&key)),
        Err(e) => vec![format!("is not YAML: {e}")],
    }
}

/// Compares metrics: all keys, and the values that describe the plan.
fn compare_metrics(expected: &str, got: &str) -> Vec<String> {
    const OF_THE_PLAN: [&str; 5] = ["/exitcode", "/data_config", "/uses_pmc", "/type", "/wf_api"];
    let flat = |text: &str| -> Result<Settings, serde_json::Error> {
        let mut flat = Settings::new();
        flatten(&serde_json::from_str(text)?, "", &mut flat);
        Ok(flat)
    };
    let expected = flat(expected).expect("the expected file is JSON");
    match flat(got) {
        Ok(got) => compare_settings(&expected, &got, |key| {
            key.starts_with("/wf_metrics/") || OF_THE_PLAN.contains(&key)
        }),
        Err(e) => vec![format!("is not JSON: {e}")],
    }
}

fn compare_catalogs(expected: &str, got: &str) -> Vec<String> {
    if !regex!(r"(?m)^(pegasus|x-pegasus|sites|replicas|transformations):").is_match(expected) {
        return compare_lines(expected, got);
    }
    let Ok(expected) = yaml::parse(expected) else {
        return compare_lines(expected, got);
    };
    let got = match yaml::parse(got) {
        Ok(got) => got,
        Err(e) => return vec![format!("is not YAML: {e}")],
    };
    if expected == got {
        return Vec::new();
    }
    let flat = |documents: Vec<Value>| {
        let mut flat = Settings::new();
        flatten(&Value::Array(documents), "", &mut flat);
        flat
    };
    let problems = compare_settings(&flat(expected), &flat(got), |_| true);
    if problems.is_empty() {
        vec!["data differs in its structure".to_owned()]
    } else {
        problems
    }
}

/// Makes a flat map of nested data. The keys are paths.
fn flatten(value: &Value, path: &str, flat: &mut Settings) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                flatten(value, &format!("{path}/{key}"), flat);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (index, value) in list.iter().enumerate() {
                let name = ["name", "lfn", "id"].iter().find_map(|key| value[*key].as_str());
                let name = name.map(|name| format!(":{name}")).unwrap_or_default();
                flatten(value, &format!("{path}[{index}{name}]"), flat);
            }
        }
        _ => {
            flat.insert(path.to_owned(), value.clone());
        }
    }
}

/// Parses a properties file.
fn parse_properties(text: &str) -> Settings {
    let mut properties = Settings::new();
    let mut pending = String::new();
    for line in text.lines() {
        let line = std::mem::take(&mut pending) + line.trim_start();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            line[..line.len() - 1].clone_into(&mut pending);
            continue;
        }
        let mut key = String::new();
        let mut rest = line.chars();
        loop {
            let before = rest.as_str();
            match rest.next() {
                Some('\\') => key.extend(rest.next()),
                Some('=' | ':' | ' ' | '\t') => {
                    rest = before.chars();
                    break;
                }
                Some(c) => key.push(c),
                None => break,
            }
        }
        let value = rest.as_str().trim_start_matches([' ', '\t']);
        let value = value.strip_prefix(['=', ':']).unwrap_or(value);
        let value = unescape(value.trim_start_matches([' ', '\t']));
        properties.insert(key, Value::String(value));
    }
    properties
}

fn unescape(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        result.push(match c {
            '\\' => match rest.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            _ => c,
        });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_plans_may_look_different() {
        let same: [(&str, &str, &str); 6] = [
            ("lof", "b=2\na  =1\n", "a =1\nb=2\n"),
            (
                "in",
                r#"[{"id":1,"type":"mkdir"},{"id":2,"type":"remove"}]"#,
                r#"[{"type":"remove","id":1},{"type":"mkdir","id":2}]"#,
            ),
            ("in", "#@ 1 a\nx --meta b,a\n", "#@ 2 a\nx  --meta a,b\n"),
            ("props", "a.b = c\\:d\n", "# 1\na.b=c:d"),
            (
                "braindump",
                "planner: /a\nroot: \"x\"\n",
                "root: x\nplanner: /b\n",
            ),
            (
                "metrics",
                r#"{"start":1,"exitcode":0}"#,
                r#"{"start":2,"exitcode":0}"#,
            ),
        ];
        for (group, expected, got) in same {
            assert_eq!(files(group, expected, got), Vec::<String>::new(), "{group}");
        }
    }

    #[test]
    fn each_difference_is_a_problem() {
        let different: [(&str, &str, &str, &[&str]); 8] = [
            ("lof", "a\na\n", "a\nb\n", &["missing line: a", "extra   line: b"]),
            (
                "in",
                r#"[{"id":1,"x":1}]"#,
                r#"[{"id":2,"x":1}]"#,
                &["ids are [Some(2)], not 1..1"],
            ),
            (
                "in",
                "#@ 1 a\nx\n",
                "#@ 1 b\nx\n",
                &["missing command: (a) x", "extra   command: (b) x"],
            ),
            ("props", "a=1\n", "a=2\n", &["a: 1 -> 2"]),
            (
                "braindump",
                "uses_pmc: false\n",
                "uses_pmc: true\n",
                &["uses_pmc: false -> true"],
            ),
            (
                "metrics",
                r#"{"a":1,"exitcode":0}"#,
                r#"{"exitcode":1}"#,
                &["missing key /a (= 1)", "/exitcode: 0 -> 1"],
            ),
            (
                "catalogs",
                "pegasus: 5\nsites: [{name: a, b: 1}]\n",
                "pegasus: 5\nsites: [{name: a, b: 2}]\n",
                &["[0]/sites[0:a]/b: 1 -> 2"],
            ),
            ("pbs", "a\nb\n", "a\nc", &["-b", "+c"]),
        ];
        for (group, expected, got, problems) in different {
            assert_eq!(files(group, expected, got), problems, "{group}");
        }
    }
}
