//! Reads YAML as JSON values. Scalars without quotes that are neither null nor booleans stay texts.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

use super::super::text::regex;

/// Parses all documents of a text.
///
/// # Errors
/// The text is not YAML, or has an alias or a key that is no scalar.
pub fn parse(text: &str) -> Result<Vec<Value>, String> {
    // A placeholder at the beginning of a scalar would not be YAML.
    let text = regex!(r"@(\w+)@").replace_all(text, "_${1}_");
    let mut documents = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(&text) {
        let (event, _) = event.map_err(|e| e.to_string())?;
        let value = match event {
            Event::Scalar(text, style, ..) => scalar(&text, style == ScalarStyle::Plain),
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Map(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(list)) => Value::Array(list),
                Some(Open::Map(map, _)) => Value::Object(map),
                None => return Err("a collection ends twice".to_owned()),
            },
            Event::Alias(_) => return Err("aliases are not supported".to_owned()),
            _ => continue,
        };
        match open.last_mut() {
            None => documents.push(value),
            Some(Open::List(list)) => list.push(value),
            Some(Open::Map(map, key)) => match key.take() {
                Some(key) => {
                    map.insert(key, value);
                }
                None => *key = Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
            },
        }
    }
    Ok(documents)
}

/// A collection that is not at its end, a mapping with the key whose value follows.
enum Open {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

fn scalar(text: &str, is_plain: bool) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" if is_plain => Value::Null,
        _ if is_plain && regex!(r"^(?:yes|Yes|YES|true|True|TRUE|on|On|ON)$").is_match(text) => true.into(),
        _ if is_plain && regex!(r"^(?:no|No|NO|false|False|FALSE|off|Off|OFF)$").is_match(text) => {
            false.into()
        }
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scalars_are_texts_but_for_null_and_booleans() {
        let text = "a: 1.0\nb: [yes, 'yes', ~]\n@C@: @D@\n---\n- x: {}\n";
        assert_eq!(
            parse(text),
            Ok(vec![
                json!({"a": "1.0", "b": [true, "yes", null], "_C_": "_D_"}),
                json!([{"x": {}}])
            ])
        );
        assert!(parse("a: [").is_err());
    }
}
