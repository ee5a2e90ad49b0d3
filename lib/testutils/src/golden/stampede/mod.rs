//! Golden cases of the database of a run: executed submit directories, and what Pegasus' monitoring stored
//! of them.

mod dump;
mod run;

use serde_json::Value;

use super::text::matches_any;
use super::{Case, Problem};
pub use run::{Executed, Loaded, execute, load};

/// Returns the database that a case expects.
///
/// # Panics
/// The case is malformed.
pub fn expected(case: &Case) -> Value {
    serde_json::from_str(case.file("expected.json")).expect("JSON")
}

/// Compares two databases, and returns a problem for each value that differs: `PATH: OLD, got NEW`. Values
/// whose paths match one of the shell patterns do not count.
pub fn compare(expected: &Value, got: &Value, ignored: &[String]) -> Vec<Problem> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    flatten(expected, "", &mut old);
    flatten(got, "", &mut new);
    let find = |values: &[(String, Value)], path: &str| -> Option<Value> {
        let index = values.binary_search_by(|(key, _)| key.as_str().cmp(path)).ok()?;
        Some(values[index].1.clone())
    };
    old.sort_by(|a, b| a.0.cmp(&b.0));
    new.sort_by(|a, b| a.0.cmp(&b.0));
    let additional = new.iter().filter(|(path, _)| find(&old, path).is_none());
    let mut problems = Vec::new();
    for (path, _) in old.iter().chain(additional) {
        let (old, new) = (find(&old, path), find(&new, path));
        if old != new && !matches_any(ignored, path) {
            let shown = |value: Option<Value>| value.map_or("(absent)".to_owned(), |value| value.to_string());
            problems.push(Problem::new(format!(
                "{path}: {}, got {}",
                shown(old),
                shown(new)
            )));
        }
    }
    problems
}

/// Makes a list of the values in nested data, with their paths.
fn flatten(value: &Value, path: &str, flat: &mut Vec<(String, Value)>) {
    let below = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}/{key}")
        }
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                flatten(value, &below(key), flat);
            }
        }
        Value::Array(list) => {
            flat.push((below("length"), list.len().into()));
            for (index, value) in list.iter().enumerate() {
                flatten(value, &below(&index.to_string()), flat);
            }
        }
        _ => flat.push((path.to_owned(), value.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_compared_one_by_one() {
        let old = json!({"job": {"a": {"exit": 1, "tags": []}, "b": {"exit": 0}}, "host": ["x"]});
        let new = json!({"job": {"a": {"exit": 2, "tags": []}, "c": null}, "host": ["x", "y"]});
        let found: Vec<String> = compare(&old, &new, &[])
            .into_iter()
            .map(|problem| problem.what)
            .collect();
        assert_eq!(
            found,
            [
                "host/length: 1, got 2",
                "job/a/exit: 1, got 2",
                "job/b/exit: 0, got (absent)",
                "host/1: (absent), got \"y\"",
                "job/c: (absent), got null",
            ]
        );
        let ignored = ["job/*".to_owned(), "host/?".to_owned()];
        assert_eq!(compare(&old, &new, &ignored).len(), 1);
        assert_eq!(compare(&old, &old, &[]), []);
    }
}
