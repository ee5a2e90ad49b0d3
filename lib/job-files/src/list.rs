//! Lists of what a job transfers, makes and removes: a JSON array of objects. Unknown keys are ignored.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::is_default;
use crate::values::{Flag, Number, Text};

/// One entry. Readers decide which of its parts they need. Its number in the list is only written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct Entry {
    /// `transfer`, `mkdir` or `remove`.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub kind: Option<Text>,
    /// `input` or `output`.
    #[serde(skip_serializing_if = "is_default")]
    pub linkage: Option<Text>,
    /// Logical name of the file.
    #[serde(skip_serializing_if = "is_default")]
    pub lfn: Option<Text>,
    /// Whether a link's source must exist and be readable, which it must unless the list says otherwise.
    #[serde(skip_serializing_if = "is_default")]
    pub verify_symlink_source: Option<Flag>,
    /// Whether to publish the SHA-256.
    #[serde(skip_serializing_if = "is_default")]
    pub generate_checksum: Option<Flag>,
    /// Whether to read the copy again and compare it with the known checksum.
    #[serde(skip_serializing_if = "is_default")]
    pub verify_checksum_remote: Option<Flag>,
    /// Whether the source may be missing.
    #[serde(skip_serializing_if = "is_default")]
    pub optional: Option<Flag>,
    /// Metadata of the file for Pegasus' own programs. It is only written.
    #[serde(skip)]
    pub attributes: Option<Vec<(String, String)>>,
    /// Where copies are.
    #[serde(skip_serializing_if = "is_default")]
    pub src_urls: Option<Vec<Place>>,
    /// Where the copy shall be: one place.
    #[serde(skip_serializing_if = "is_default")]
    pub dest_urls: Option<Vec<Place>>,
    /// What is made or removed.
    #[serde(skip_serializing_if = "is_default")]
    pub target: Option<Place>,
}

/// A URL on a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Label of the site.
    #[serde(skip_serializing_if = "is_default")]
    pub site_label: Option<Text>,
    /// URL or path.
    #[serde(skip_serializing_if = "is_default")]
    pub url: Option<Text>,
    /// The source with the highest one is tried first.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: Option<Number>,
    /// Whether the file is one with the state of a job: `true` or `false`. It is only written, and in
    /// descriptions only.
    #[serde(skip_deserializing, skip_serializing_if = "is_default")]
    pub checkpoint: Option<&'static str>,
    /// Kind of a container image, if it is one.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub image: Option<Text>,
    /// Whether a directory is removed with all in it.
    #[serde(skip_serializing_if = "is_default")]
    pub recursive: Option<Flag>,
}

impl Place {
    /// A URL on a site, and nothing else.
    #[must_use]
    pub fn new(site: &str, url: impl Into<Text>) -> Self {
        Place {
            site_label: Some(site.into()),
            url: Some(url.into()),
            ..Place::default()
        }
    }
}

impl Entry {
    /// A transfer between these places.
    #[must_use]
    pub fn transfer(lfn: &str, linkage: &str, sources: Vec<Place>, destination: Place) -> Self {
        Entry {
            kind: Some("transfer".into()),
            linkage: Some(linkage.into()),
            lfn: Some(lfn.into()),
            src_urls: Some(sources),
            dest_urls: Some(vec![destination]),
            ..Entry::default()
        }
    }

    /// Something that is done with one place: `mkdir` or `remove`.
    #[must_use]
    pub fn target(kind: &str, target: Place) -> Self {
        Entry {
            kind: Some(kind.into()),
            target: Some(target),
            ..Entry::default()
        }
    }

    /// Returns whether the entry has this logical name.
    #[must_use]
    pub fn is_of(&self, lfn: &str) -> bool {
        self.lfn.as_ref().is_some_and(|own| own.0 == lfn.as_bytes())
    }
}

/// Reads a list.
///
/// # Errors
/// It is no JSON, or no list of entries.
pub fn read_list(text: &[u8]) -> Result<Vec<Entry>, serde_json::Error> {
    serde_json::from_slice(text)
}

/// Appends a list, with the spaces and line ends of Pegasus. What is not UTF-8 is replaced.
pub fn write_list(entries: impl IntoIterator<Item = Entry>, text: &mut String) {
    let (mut between, mut end) = ("[\n", "[\n]\n");
    for (entry, number) in entries.into_iter().zip(1_u64..) {
        text.push_str(between);
        match &entry.target {
            Some(target) => {
                push_target(&entry, target, number, text);
                (between, end) = ("\n  ,\n", "\n]\n");
            }
            None => {
                push_transfer(&entry, number, text);
                (between, end) = (" ,\n", "]\n");
            }
        }
    }
    text.push_str(end);
}

fn push_target(entry: &Entry, target: &Place, number: u64, text: &mut String) {
    // Writing into a String cannot fail.
    let _ = write!(text, "  {{\n    \"id\": {number}");
    push_members([("type", &entry.kind)], [",\n    ", ""], text);
    text.push_str(",\n    \"target\": ");
    push_place(target, text);
    text.push_str(" }");
}

fn push_transfer(entry: &Entry, number: u64, text: &mut String) {
    let members = [
        ("type", &entry.kind),
        ("linkage", &entry.linkage),
        ("lfn", &entry.lfn),
    ];
    let before = push_members(members, [" { ", ",\n   "], text);
    let _ = write!(text, "{before}\"id\": {number}");
    for (key, flag) in [
        ("verify_symlink_source", entry.verify_symlink_source),
        ("generate_checksum", entry.generate_checksum),
        ("verify_checksum_remote", entry.verify_checksum_remote),
        ("optional", entry.optional),
    ] {
        if let Some(Flag(value)) = flag {
            let _ = write!(text, ",\n   \"{key}\": {value}");
        }
    }
    if let Some(attributes) = &entry.attributes {
        text.push_str(",\n   \"attributes\": {");
        for (n, (key, value)) in attributes.iter().enumerate() {
            text.push_str(if n > 0 { ",\n     " } else { "\n     " });
            push_text(key.as_bytes(), text);
            text.push(':');
            push_text(value.as_bytes(), text);
        }
        text.push_str("\n   }");
    }
    for (key, places) in [("src_urls", &entry.src_urls), ("dest_urls", &entry.dest_urls)] {
        let Some(places) = places else { continue };
        let _ = write!(text, ",\n   \"{key}\": [");
        for (n, place) in places.iter().enumerate() {
            text.push_str(if n > 0 { ",\n     " } else { "\n     " });
            push_place(place, text);
        }
        text.push_str("\n   ]");
    }
    text.push_str(" }\n");
}

fn push_place(place: &Place, text: &mut String) {
    let recursive = place
        .recursive
        .map(|Flag(is_so)| Text::from(if is_so { "True" } else { "False" }));
    let members = [
        ("site_label", &place.site_label),
        ("url", &place.url),
        ("type", &place.image),
        ("recursive", &recursive),
    ];
    text.push('{');
    let between = push_members(members, [" ", ", "], text);
    if let Some(Number(priority)) = place.priority {
        let _ = write!(text, "{between}\"priority\": {priority}");
    }
    text.push_str(" }");
}

/// Appends those members of an object that have a value. Returns what comes before the next one.
fn push_members<'b, const N: usize>(
    members: [(&str, &Option<Text>); N],
    [mut before, between]: [&'b str; 2],
    text: &mut String,
) -> &'b str {
    for (key, value) in members {
        if let Some(value) = value {
            let _ = write!(text, "{before}\"{key}\": ");
            push_text(&value.0, text);
            before = between;
        }
    }
    before
}

/// Appends a JSON string.
fn push_text(value: &[u8], text: &mut String) {
    let value = String::from_utf8_lossy(value);
    let special = |b: u8| (b < b' ') | (b == b'"') | (b == b'\\');
    if value.bytes().fold(false, |found, b| found | special(b)) {
        text.push_str(&serde_json::Value::from(&*value).to_string());
    } else {
        text.push('"');
        text.push_str(&value);
        text.push('"');
    }
}
