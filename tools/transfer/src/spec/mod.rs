//! The specification: a list of files to transfer and remove, and of directories to create.
//!
//! There are two forms: the JSON array of Pegasus 5 ([`json`]), and the older text form of pairs of lines
//! ([`text`]).

mod json;
mod text;

use crate::url::{Lookup, Url, UrlError};

pub use json::work_of;

/// One entry of a specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Copy, link or move a file.
    Transfer(Transfer),
    /// Create a directory and its parents.
    Mkdir(Location),
    /// Remove a file, or with `recursive` a directory and all in it.
    Remove {
        /// The file or directory to remove.
        target: Location,
        /// Whether directories are removed with their content.
        recursive: bool,
    },
}

/// A transfer of a file from one of several sources to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Logical name; empty if not given. Key of checksums.
    pub lfn: Vec<u8>,
    /// `input`, `output`, …: label of integrity metrics.
    pub linkage: String,
    /// Sources, best first. Not empty.
    pub sources: Vec<Location>,
    /// Destination.
    pub destination: Location,
    /// Whether a link's source must exist and be readable.
    pub verify_symlink_source: bool,
    /// Whether to publish the SHA-256 for the invocation record.
    pub generate_checksum: bool,
    /// Whether the source may be missing. Then nothing is transferred, which is no failure.
    pub optional: bool,
    /// Whether to read the copy again and compare it with the known checksum.
    pub verify_checksum: bool,
}

/// A URL on a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Label of the site; `-` is written `_`, as in the names of environment variables.
    pub site: String,
    /// Its URL.
    pub url: Url,
    /// Kind of a container image (`docker`, `singularity`, …), if it is one.
    pub image: Option<String>,
}

/// An error in a specification.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Not JSON, or not of the expected shape.
    #[error("line {line}, column {column}: {message}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 at the start of a line.
        column: usize,
        /// The error.
        message: String,
    },
    /// An invalid entry.
    #[error("entry {entry}: {message}")]
    Entry {
        /// Number of the entry, from 1.
        entry: usize,
        /// The error.
        message: String,
    },
    /// An invalid URL in an entry of the JSON form.
    #[error("entry {entry}: {source}")]
    Url {
        /// Number of the entry, from 1.
        entry: usize,
        /// The error.
        source: UrlError,
    },
    /// An invalid line of the text form.
    #[error("line {line}: {message}")]
    Line {
        /// Line, from 1.
        line: usize,
        /// The error.
        message: String,
    },
}

/// Returns a priority between 1 and 100 for a source without one.
pub type Priorities<'a> = &'a mut dyn FnMut() -> i64;

/// Parses a specification in either form.
///
/// `env` replaces variables in local paths. `priorities` orders sources without a priority.
pub fn parse(input: &[u8], env: Lookup<'_>, priorities: Priorities<'_>) -> Result<Vec<Work>, SpecError> {
    if input.starts_with(b"# src") {
        text::parse(input, env)
    } else {
        json::parse(input, env, priorities)
    }
}

/// Writes a site label as in the names of environment variables.
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
