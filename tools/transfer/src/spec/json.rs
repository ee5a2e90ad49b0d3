//! The JSON form: an array of objects of type `transfer`, `mkdir` or `remove`. Unknown keys are ignored.
//!
//! URLs and logical names are bytes: a name that is not UTF-8 stays unchanged.

use pmc_job_files::{Entry, Flag, Place, read_list};

use super::{Location, Priorities, SpecError, Transfer, Work, site_label};
use crate::shown;
use crate::url::{Lookup, Url};

pub(super) fn parse(
    input: &[u8],
    env: Lookup<'_>,
    priorities: Priorities<'_>,
) -> Result<Vec<Work>, SpecError> {
    let entries = read_list(input).map_err(|error| SpecError::Json {
        line: error.line(),
        column: error.column(),
        message: without_position(&error),
    })?;
    work_of(entries, env, priorities)
}

/// Returns the work that entries ask for. The rest is as for [`super::parse`].
pub fn work_of(
    entries: Vec<Entry>,
    env: Lookup<'_>,
    priorities: Priorities<'_>,
) -> Result<Vec<Work>, SpecError> {
    let mut reader = Reader {
        env,
        priorities,
        entry: 0,
    };
    entries.into_iter().map(|entry| reader.entry(entry)).collect()
}

/// Returns the message of `serde_json` without the position at its end.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

struct Reader<'a> {
    env: Lookup<'a>,
    priorities: Priorities<'a>,
    entry: usize,
}

impl Reader<'_> {
    fn error(&self, message: impl Into<String>) -> SpecError {
        SpecError::Entry {
            entry: self.entry,
            message: message.into(),
        }
    }

    fn entry(&mut self, entry: Entry) -> Result<Work, SpecError> {
        self.entry += 1;
        let Some(kind) = &entry.kind else {
            return Err(self.error("Unknown JSON entry: the key 'type' is missing"));
        };
        match kind.0.as_slice() {
            b"transfer" => self.transfer(entry).map(Work::Transfer),
            b"mkdir" => Ok(Work::Mkdir(self.target(entry)?.0)),
            b"remove" => {
                let (target, recursive) = self.target(entry)?;
                Ok(Work::Remove { target, recursive })
            }
            other => Err(self.error(format!("Unknown JSON entry: type '{}'", shown::bytes(other)))),
        }
    }

    fn transfer(&mut self, entry: Entry) -> Result<Transfer, SpecError> {
        let sources = self.places(entry.src_urls, "src_urls")?;
        let destination = self.places(entry.dest_urls, "dest_urls")?.swap_remove(0);
        let is_set = |flag: Option<Flag>, default| flag.map_or(default, |flag| flag.0);
        Ok(Transfer {
            lfn: entry.lfn.map(|text| text.0).unwrap_or_default(),
            linkage: entry
                .linkage
                .map_or_else(|| "unknown".to_owned(), |text| text.lossy()),
            sources,
            destination,
            verify_symlink_source: is_set(entry.verify_symlink_source, true),
            optional: is_set(entry.optional, false),
            generate_checksum: is_set(entry.generate_checksum, false),
            verify_checksum: is_set(entry.verify_checksum_remote, false),
        })
    }

    /// Returns the locations of a list by descending priority; equal priorities keep the order of the list.
    fn places(&mut self, places: Option<Vec<Place>>, key: &str) -> Result<Vec<Location>, SpecError> {
        let places = places.unwrap_or_default();
        if places.is_empty() {
            return Err(self.error(format!("'{key}' is missing or empty")));
        }
        let mut ranked = Vec::with_capacity(places.len());
        for place in places {
            let priority = place
                .priority
                .as_ref()
                .map_or_else(|| (self.priorities)(), |number| number.0);
            ranked.push((priority, self.location(place)?));
        }
        ranked.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        Ok(ranked.into_iter().map(|(_, location)| location).collect())
    }

    fn target(&mut self, entry: Entry) -> Result<(Location, bool), SpecError> {
        let target = entry.target.ok_or_else(|| self.error("'target' is missing"))?;
        let recursive = target.recursive.as_ref().is_some_and(|flag| flag.0);
        Ok((self.location(target)?, recursive))
    }

    fn location(&self, place: Place) -> Result<Location, SpecError> {
        let site = place
            .site_label
            .ok_or_else(|| self.error("a URL has no 'site_label'"))?;
        let url = place.url.ok_or_else(|| self.error("a place has no 'url'"))?;
        let url = Url::parse(&url.0, self.env).map_err(|source| SpecError::Url {
            entry: self.entry,
            source,
        })?;
        Ok(Location {
            site: site_label(&site.lossy()),
            url,
            image: place.image.map(|text| text.lossy()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn read(text: &[u8]) -> Result<Vec<Work>, String> {
        parse(text, &|_| None, &mut || 50).map_err(|error| error.to_string())
    }

    #[test]
    fn stage_in() {
        let work = read(
            br#"[ { "type": "transfer", "linkage": "input", "lfn": "f.a", "id": 1, "generate_checksum": true,
               "attributes": { "size":"1024" },
               "src_urls": [ { "site_label": "web-1", "url": "http://h/f.a", "priority": 10 },
                             { "site_label": "local", "url": "/data/f.a", "priority": "90", "checkpoint": "true" } ],
               "dest_urls": [ { "site_label": "local", "url": "file:///scratch/./f.a" } ] } ]"#,
        )
        .expect("valid");
        let [Work::Transfer(transfer)] = work.as_slice() else {
            panic!("{work:?}")
        };
        assert_eq!(
            (transfer.lfn.as_slice(), transfer.linkage.as_str()),
            (&b"f.a"[..], "input")
        );
        assert!(transfer.generate_checksum && transfer.verify_symlink_source && !transfer.verify_checksum);
        let sources: Vec<_> = transfer
            .sources
            .iter()
            .map(|s| (s.site.as_str(), s.url.shown()))
            .collect();
        assert_eq!(
            sources,
            [
                ("local", "file:///data/f.a".to_owned()),
                ("web_1", "http://h/f.a".to_owned())
            ]
        );
        assert_eq!(transfer.destination.url.shown(), "file:///scratch/./f.a");
    }

    #[test]
    fn directories_and_removals() {
        let work = read(
            br#"[ {"type":"mkdir","target":{"site_label":"a","url":"file:///d"}},
                  {"type":"remove","target":{"site_label":"a","url":"file:///d","recursive":"True"}},
                  {"type":"remove","target":{"site_label":"a","url":"file:///d","recursive":false}},
                  {"type":"remove","target":{"site_label":"a","url":"file:///d"}} ]"#,
        )
        .expect("valid");
        let recursive: Vec<_> = work
            .iter()
            .map(|w| match w {
                Work::Remove { recursive, .. } => Some(*recursive),
                _ => None,
            })
            .collect();
        assert_eq!(recursive, [None, Some(true), Some(false), Some(false)]);
    }

    #[test]
    fn sources_of_equal_priority_keep_their_order() {
        let work = read(
            br#"[{"type":"transfer","dest_urls":[{"site_label":"s","url":"d"}],"src_urls":[
                {"site_label":"s","url":"x"},{"site_label":"s","url":"y"},{"site_label":"s","url":"z","priority":51}]}]"#,
        )
        .expect("valid");
        let [Work::Transfer(transfer)] = work.as_slice() else {
            panic!("{work:?}")
        };
        let names: Vec<_> = transfer.sources.iter().map(|s| s.url.path().to_owned()).collect();
        assert_eq!(names, ["z", "x", "y"].map(std::path::PathBuf::from));
    }

    #[test]
    fn names_need_not_be_utf8() {
        let work = read(b"[{\"type\":\"mkdir\",\"target\":{\"site_label\":\"a\",\"url\":\"/d\xff\"}}]")
            .expect("valid");
        let [Work::Mkdir(place)] = work.as_slice() else {
            panic!("{work:?}")
        };
        assert_eq!(place.url.path().as_os_str().as_bytes(), b"/d\xff");
    }

    #[test]
    fn errors_have_a_position() {
        for (text, message) in [
            (
                "[{\n\"type\": \"mkdir\",,",
                "line 2, column 17: key must be a string",
            ),
            ("", "line 1, column 0: EOF while parsing a value"),
            ("{}", "line 1, column 0: invalid type: map, expected a sequence"),
            (
                "[{\"type\":\"link\"}]",
                "entry 1: Unknown JSON entry: type 'link'",
            ),
            ("[{}]", "entry 1: Unknown JSON entry: the key 'type' is missing"),
            ("[{\"type\":\"mkdir\"}]", "entry 1: 'target' is missing"),
            (
                "[{\"type\":\"mkdir\",\"target\":{\"url\":\"/a\"}}]",
                "entry 1: a URL has no 'site_label'",
            ),
            (
                "[{\"type\":\"transfer\",\"src_urls\":[]}]",
                "entry 1: 'src_urls' is missing or empty",
            ),
            (
                "[{\"type\":\"mkdir\",\"target\":{\"site_label\":\"s\",\"url\":\"x:y\"}}]",
                "entry 1: 'x:y' is not a URL: a path or PROTOCOL://HOST/PATH is needed",
            ),
            (
                "[{\"type\":\"mkdir\",\"target\":{\"site_label\":\"s\",\"url\":\"/a\\u0000b\"}}]",
                "entry 1: the URL '/a\\u{0}b' contains a zero byte",
            ),
        ] {
            assert_eq!(read(text.as_bytes()), Err(message.to_owned()), "{text}");
        }
        assert_eq!(read(b"[]"), Ok(vec![]));
    }
}
