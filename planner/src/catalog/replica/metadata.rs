//! Metadata files (`….meta`, type Meta): a sequence of JSON arrays of `{"_id": LFN, "_attributes": {…}}`.

use std::path::Path;

use serde::Deserialize;

use super::{ReplicaCatalog, ReplicaEntry, Wanted};
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::model::{Metadata, Position};

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "_id")]
    id: String,
    #[serde(rename = "_attributes", default)]
    attributes: std::collections::BTreeMap<String, serde_json::Value>,
}

/// Reads entries without locations.
pub(super) fn read(path: &Path, text: &str, wanted: Wanted<'_>) -> Result<ReplicaCatalog, InputErrors> {
    let mut catalog = ReplicaCatalog::default();
    for (lfn, metadata) in items(path, text)? {
        // Only patterns can fail.
        let _ = catalog.push_if(
            wanted,
            ReplicaEntry {
                lfn,
                metadata,
                ..ReplicaEntry::default()
            },
        );
    }
    Ok(catalog)
}

/// Adds metadata from the file to entries of the catalog. Values in the catalog win.
pub(super) fn complete(catalog: &mut ReplicaCatalog, path: &Path, text: &str) -> Result<(), InputErrors> {
    for (lfn, metadata) in items(path, text)? {
        catalog.add_metadata(&lfn, metadata);
    }
    Ok(())
}

fn items(path: &Path, text: &str) -> Result<Vec<(String, Metadata)>, InputErrors> {
    let mut found = Vec::new();
    for items in serde_json::Deserializer::from_str(text).into_iter::<Vec<Item>>() {
        let items = items.map_err(|error| {
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            let position = Position {
                line: number(error.line()),
                column: number(error.column()),
            };
            let text = error.to_string();
            let what = text.split(" at line ").next().unwrap_or_default();
            Diagnostic::at(path, position, format!("not a metadata file: {what}"))
                .with_hint("expected is [{\"_id\": \"LFN\", \"_attributes\": {\"key\": \"value\"}}]")
        })?;
        for item in items {
            let attributes = item.attributes.into_iter().map(|(key, value)| match value {
                serde_json::Value::String(text) => (key, text),
                other => (key, other.to_string()),
            });
            found.push((item.id, attributes.collect()));
        }
    }
    Ok(found)
}
