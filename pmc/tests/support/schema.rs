//! The schemas in `share/schemas`.

use std::path::PathBuf;

use serde_json::Value;

/// Reads the schema NAME. Unlike the published one, it permits only the keys that it names: those are all.
fn closed(name: &str) -> Value {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../share/schemas");
    let path = root.join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut schema = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    close(&mut schema);
    schema
}

fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            let has_keys = object
                .get("properties")
                .is_some_and(|keys| keys.get("const").is_none());
            // A condition names only some keys.
            for (key, value) in object.iter_mut().filter(|(key, _)| *key != "if") {
                if key == "properties" {
                    value
                        .as_object_mut()
                        .into_iter()
                        .flatten()
                        .for_each(|(_, value)| close(value));
                } else {
                    close(value);
                }
            }
            if has_keys && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".into(), false.into());
            }
        }
        Value::Array(all) => all.iter_mut().for_each(close),
        _ => {}
    }
}

/// Returns what in a value is not as the schema NAME says, and the keys that it does not name.
pub fn problems(name: &str, value: &Value) -> Vec<String> {
    let validator =
        jsonschema::validator_for(&closed(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let errors = validator.iter_errors(value);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// Asserts that a value is as the schema NAME says, and has no key that it does not name.
#[track_caller]
pub fn check(name: &str, value: &Value) {
    let problems = problems(name, value);
    assert!(problems.is_empty(), "{name}: {problems:#?}\n{value:#}");
}
