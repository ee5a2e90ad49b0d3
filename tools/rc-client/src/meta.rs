//! Metadata files `JOB.meta` of finished jobs: a JSON array of
//! `{"_id": LFN, "_type": "file", "_attributes": {…}}`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;

use crate::entry::Entry;

/// Metadata by logical name.
#[derive(Debug, Default)]
pub struct Metadata(HashMap<String, BTreeMap<String, String>>);

/// An error in a metadata file.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file is malformed.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "_id")]
    id: String,
    #[serde(rename = "_attributes", default)]
    attributes: BTreeMap<String, serde_json::Value>,
}

impl Metadata {
    /// Adds the metadata of a file.
    pub fn load(&mut self, path: &Path) -> Result<(), MetaError> {
        let file = pmc_files::open_input(path)?;
        self.add(&pmc_files::read_rest(&file, pmc_files::MAX_LIST)?)
    }

    fn add(&mut self, json: &[u8]) -> Result<(), MetaError> {
        for item in serde_json::from_slice::<Vec<Item>>(json)? {
            let attributes = item.attributes.into_iter().map(|(key, value)| match value {
                serde_json::Value::String(text) => (key, text),
                other => (key, other.to_string()),
            });
            self.0.entry(item.id).or_default().extend(attributes);
        }
        Ok(())
    }

    /// Adds to an entry the metadata of its logical file.
    pub fn complete(&self, entry: &mut Entry) {
        if let Some(attributes) = self.0.get(&entry.lfn) {
            entry
                .attributes
                .extend(attributes.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_reach_the_entries_of_their_file() {
        let mut metadata = Metadata::default();
        let json = r#"[{"_id":"f","_type":"file","_attributes":{"size":"3","n":4}},{"_id":"g"}]"#;
        metadata.add(json.as_bytes()).expect("valid");
        assert!(metadata.add(b"{}").is_err());
        let mut entries = ["f", "g", "h"].map(|lfn| Entry {
            lfn: lfn.into(),
            ..Entry::default()
        });
        entries.iter_mut().for_each(|entry| metadata.complete(entry));
        let expected: BTreeMap<_, _> = [("n", "4"), ("size", "3")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        assert_eq!(entries[0].attributes, expected);
        assert!(entries[1].attributes.is_empty() && entries[2].attributes.is_empty());
    }
}
