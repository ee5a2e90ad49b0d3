//! The list of work: what to copy, make and remove.
//!
//! Two forms are read: the JSON array that planners of Pegasus 5 write ([`json`]), and the older text form
//! of pairs of lines ([`text`]).

mod json;
mod text;

use crate::url::{Lookup, Url, UrlError};

/// One entry of a specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Copy, link or move a file.
    Transfer(Transfer),
    /// Make a directory and its parents.
    Mkdir(Location),
    /// Remove a file, or with `recursive` a directory and all in it.
    Remove {
        /// What to remove.
        target: Location,
        /// Whether directories are removed with their content.
        recursive: bool,
    },
}

/// A file to bring from one of several sources to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Logical name; empty if not given. Key of checksums.
    pub lfn: Vec<u8>,
    /// `input`, `output`, …: label of integrity metrics.
    pub linkage: String,
    /// Sources, best first. Not empty.
    pub sources: Vec<Location>,
    /// Where to.
    pub destination: Location,
    /// Whether a link's source must exist and be readable.
    pub verify_symlink_source: bool,
    /// Whether the SHA-256 is to be published for the invocation record.
    pub generate_checksum: bool,
    /// Whether the copy is to be read again and compared with the known checksum.
    pub verify_checksum: bool,
}

/// A URL on a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Label of the site; `-` is written `_`, as in the names of environment variables.
    pub site: String,
    /// Where.
    pub url: Url,
    /// Kind of a container image (`docker`, `singularity`, …), if it is one.
    pub image: Option<String>,
}

/// Why a specification cannot be used. Nothing of it has been done.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Not JSON, or not of the expected shape.
    #[error("line {line}, column {column}: {message}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 at the start of a line.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// An entry lacks something.
    #[error("entry {entry}: {message}")]
    Entry {
        /// Number of the entry, from 1.
        entry: usize,
        /// What is wrong.
        message: String,
    },
    /// An unusable URL in an entry of the JSON form.
    #[error("entry {entry}: {source}")]
    Url {
        /// Number of the entry, from 1.
        entry: usize,
        /// What is wrong.
        source: UrlError,
    },
    /// A line of the text form cannot be understood.
    #[error("line {line}: {message}")]
    Line {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
}

/// Gives sources without priority one between 1 and 100.
pub type Priorities<'a> = &'a mut dyn FnMut() -> i64;

/// Reads a specification in either form.
///
/// `env` replaces variables in local paths; `priorities` orders sources that have no priority of their own.
pub fn parse(input: &[u8], env: Lookup<'_>, priorities: Priorities<'_>) -> Result<Vec<Work>, SpecError> {
    if input.starts_with(b"# src") {
        text::parse(input, env)
    } else {
        json::parse(input, env, priorities)
    }
}

/// Writes a site label as environment variables are named.
fn site_label(label: &str) -> String {
    label.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_input_panics(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&input, &|_| None, &mut || 1);
        }

        #[test]
        fn no_text_input_panics(lines in "(# src [0-9]? ?[a-z]*\n|# dst 1 b\n|[a-z:/]{0,9}\n|#+ *\n){0,12}") {
            let _ = parse(format!("# src{lines}").as_bytes(), &|_| None, &mut || 1);
        }

        #[test]
        fn no_json_input_panics(value in json_value()) {
            let _ = parse(value.to_string().as_bytes(), &|_| None, &mut || 1);
        }
    }

    /// JSON that is nearly a specification: right keys, values of any kind.
    fn json_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            "transfer|mkdir|remove|True|/a|file:///b|x:y|[^a]{0,3}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            let key = "type|lfn|src_urls|dest_urls|target|url|site_label|recursive|priority|k";
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                proptest::collection::vec((key, inner), 0..6)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }
}
