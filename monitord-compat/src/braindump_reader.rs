//! Reads `braindump.yml`; see [`crate::braindump`].

use std::collections::BTreeMap;

use crate::yaml_reader;

/// The values of the file. Absent values (`null`) are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Braindump(BTreeMap<String, String>);

/// The file is not YAML.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct BraindumpError {
    /// Line, counted from 1.
    pub line: usize,
    /// Message of the parser.
    pub message: String,
}

impl Braindump {
    /// Reads the text of the file. Nested values, which no version writes, are skipped.
    ///
    /// # Errors
    /// The text is not YAML.
    pub fn read(text: &str) -> Result<Self, BraindumpError> {
        let mut map = BTreeMap::new();
        yaml_reader::walk(text, |path, value| {
            if let ([key], Some(value)) = (path, value) {
                map.insert((*key).clone(), value.to_owned());
            }
        })
        .map_err(|(line, message)| BraindumpError { line, message })?;
        Ok(Self(map))
    }

    /// Returns a value.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nested_values_are_skipped() {
        let read = Braindump::read("user: \"r\\\"t\"\ngrid_dn: null\ndax_index: 0\nx:\n  y: z\n").unwrap();
        assert_eq!(read.get("user"), Some("r\"t"));
        assert_eq!(read.get("grid_dn"), None);
        assert_eq!(read.get("dax_index"), Some("0"));
        assert_eq!(read.get("y"), None);
    }

    #[test]
    fn an_error_names_the_line() {
        let error = Braindump::read("a: 1\nb: \"torn\n").unwrap_err();
        assert!(error.line >= 2, "{error}");
    }

    proptest! {
        #[test]
        fn reads_what_is_written(value in any::<String>()) {
            let text = crate::braindump::write(&[("dax".to_owned(), Some(value.clone()))]);
            let read = Braindump::read(&text).unwrap();
            prop_assert_eq!(read.get("dax"), Some(&*value));
        }

        #[test]
        fn never_panics(text in "([a-c:\"'\n>|&*\\-\\[\\]{} ]|\\PC){0,80}") {
            let _ = Braindump::read(&text);
        }
    }
}
