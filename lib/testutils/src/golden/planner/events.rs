//! Compares the events that describe a plan for monitoring (`.static.bp`).

use std::collections::BTreeMap;

use super::super::diff;
use super::super::text::regex;
use super::compare::squeeze;

type Attributes = BTreeMap<String, String>;
/// How often each event occurs, by its name and its attributes.
type Events = BTreeMap<(String, Attributes), usize>;

/// Compares events in any order, without times.
pub fn compare(expected: &str, got: &str) -> Vec<String> {
    let (expected, got) = (parse(expected), parse(got));
    let missing = subtract(&expected, &got);
    let mut additional = subtract(&got, &expected);
    let mut problems = Vec::new();
    for (name, old) in missing {
        // An additional event that describes the same thing shows what has changed.
        let identity = identity(&old);
        let mate = additional.iter().position(|(other, new)| {
            *other == name && !identity.is_empty() && self::identity(new) == identity
        });
        match mate {
            Some(index) => {
                let (_, new) = additional.remove(index);
                problems.extend(changed(&name, &identity, &old, &new));
            }
            None => problems.push(format!("missing {name}: {}", shown(&old))),
        }
    }
    let additional = additional.iter();
    problems.extend(additional.map(|(name, attributes)| format!("extra   {name}: {}", shown(attributes))));
    problems
}

fn parse(text: &str) -> Events {
    let mut events = Events::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut attributes = parse_attributes(line);
        attributes.remove("ts");
        let name = attributes
            .remove("event")
            .unwrap_or_else(|| "(no event)".to_owned());
        if let Some(arguments) = attributes.get_mut("argv") {
            *arguments = squeeze(arguments);
        }
        *events.entry((name, attributes)).or_default() += 1;
    }
    events
}

/// Parses `name=value name="value with blanks"`.
fn parse_attributes(line: &str) -> Attributes {
    let mut attributes = Attributes::new();
    let mut rest = line;
    while let Some(found) = regex!(r"([\w.]+)=").captures(rest) {
        let name = found[1].to_owned();
        rest = &rest[found.get(0).expect("a match").end()..];
        let (value, length) = match quoted(rest) {
            Some(length) => (&rest[1..length - 1], length),
            None => {
                let length = rest
                    .find(|c: char| c.is_whitespace() || c == '"')
                    .unwrap_or(rest.len());
                (&rest[..length], length)
            }
        };
        attributes.insert(name, value.to_owned());
        rest = &rest[length..];
    }
    attributes
}

/// Returns the length of a value in quotes. Quotes inside may be escaped, or else an attribute or the end of
/// the line must follow.
fn quoted(text: &str) -> Option<usize> {
    let found = regex!(r#"^"(?:[^"\\]|\\.)*"(?:\s|$)"#).find(text);
    let found = found.or_else(|| regex!(r#"^".*?"(?:\s+[\w.]+=|\s*$)"#).find(text))?;
    found.as_str().rfind('"').map(|at| at + 1)
}

/// Returns what the first has more often than the second.
fn subtract(first: &Events, second: &Events) -> Vec<(String, Attributes)> {
    let mut result = Vec::new();
    for (event, count) in first {
        let remaining = count.saturating_sub(second.get(event).copied().unwrap_or(0));
        result.extend(std::iter::repeat_n(event.clone(), remaining));
    }
    result
}

/// Returns the values that say what an event describes.
fn identity(attributes: &Attributes) -> String {
    const NAMES: [&str; 8] = [
        "task.id",
        "job.id",
        "parent.task.id",
        "child.task.id",
        "parent.job.id",
        "child.job.id",
        "lfn.id",
        "key",
    ];
    let values: Vec<&str> = NAMES
        .iter()
        .filter_map(|name| attributes.get(*name).map(String::as_str))
        .collect();
    values.join(" ")
}

fn changed(name: &str, identity: &str, old: &Attributes, new: &Attributes) -> Vec<String> {
    let mut problems = Vec::new();
    let additional = new.keys().filter(|key| !old.contains_key(*key));
    for key in old.keys().chain(additional) {
        let change = match (old.get(key), new.get(key)) {
            (old, new) if old == new => continue,
            (Some(old), Some(new)) if key == "argv" => diff::words(
                &old.split_whitespace().collect::<Vec<_>>(),
                &new.split_whitespace().collect::<Vec<_>>(),
            ),
            (old, new) => {
                let value = |value: Option<&String>| value.map_or("null", String::as_str).to_owned();
                format!("{} -> {}", value(old), value(new))
            }
        };
        problems.push(format!("{name} {identity}: {key}: {change}"));
    }
    problems
}

fn shown(attributes: &Attributes) -> String {
    let attributes = attributes.iter().filter(|(name, _)| *name != "xwf.id");
    let attributes: Vec<String> = attributes
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    attributes.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_values_with_quotes() {
        let line = r#"ts=1 event=a.b argv="say "hello" now" x="a\"b" empty= y="" z=1"#;
        let attributes = parse_attributes(line);
        let expected = [
            ("argv", r#"say "hello" now"#),
            ("empty", ""),
            ("event", "a.b"),
            ("ts", "1"),
            ("x", r#"a\"b"#),
            ("y", ""),
            ("z", "1"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(attributes, Attributes::from(expected));
    }

    #[test]
    fn each_difference_is_a_problem() {
        let expected = "ts=1 event=task.info task.id=a argv=\"-w x\"\nts=1 event=task.info task.id=b\n";
        let same = "ts=2 event=task.info task.id=b\nts=3 event=task.info task.id=a argv=\"-w x\"\n";
        assert_eq!(compare(expected, same), Vec::<String>::new());
        let other = "ts=2 event=task.info task.id=c\nts=3 event=task.info task.id=a argv=\"-w y\"\n";
        assert_eq!(
            compare(expected, other),
            [
                "task.info a: argv: -w [x] -> [y]",
                "missing task.info: task.id=b",
                "extra   task.info: task.id=c",
            ]
        );
    }
}
