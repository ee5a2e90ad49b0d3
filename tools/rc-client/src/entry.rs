//! One location of a file as a line: `LFN PFN key="value" …`.
//!
//! Blanks separate words. A word, or the value after `=`, may be in double quotes, with `\` before `"` and
//! `\`. A `#` at the start of a word begins a comment. The attribute `site` (or the older `pool`) is the
//! site, all others are metadata.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A logical file, one of its physical locations, and its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// Logical name.
    pub lfn: String,
    /// Physical location, a URL or path.
    pub pfn: String,
    /// Site of the location.
    pub site: Option<String>,
    /// Metadata of the file.
    pub attributes: BTreeMap<String, String>,
}

/// The reason why a line is not an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// A quoted word does not end on its line.
    #[error("a double quote is not closed")]
    OpenQuote,
    /// Only one word.
    #[error("a logical name and a location are needed")]
    TooShort,
}

/// Parses a line; `None` if it has only blanks and comments.
pub fn parse(line: &str) -> Result<Option<Entry>, LineError> {
    let mut words = words(line)?.into_iter();
    let Some(lfn) = words.next() else { return Ok(None) };
    let pfn = words.next().ok_or(LineError::TooShort)?;
    let mut entry = Entry {
        lfn: lfn.text,
        pfn: pfn.text,
        ..Entry::default()
    };
    for word in words {
        match word.equals {
            None => entry.site = Some(word.text),
            Some(at) => {
                let (key, value) = (word.text[..at].to_owned(), word.text[at + 1..].to_owned());
                if key == "site" || key == "pool" {
                    entry.site = Some(value);
                } else {
                    entry.attributes.insert(key, value);
                }
            }
        }
    }
    Ok(Some(entry))
}

/// Parses the first word of a line, the logical name.
pub fn parse_name(line: &str) -> Result<Option<String>, LineError> {
    Ok(words(line)?.into_iter().next().map(|word| word.text))
}

/// Returns whether a line is a logical name without a location.
pub fn is_name_only(line: &str) -> bool {
    words(line).is_ok_and(|words| words.len() == 1)
}

struct Word {
    text: String,
    /// Position of the first `=` outside quotes.
    equals: Option<usize>,
}

fn words(line: &str) -> Result<Vec<Word>, LineError> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        match chars.peek() {
            None | Some('#') => return Ok(words),
            Some(_) => {}
        }
        let mut word = Word {
            text: String::new(),
            equals: None,
        };
        let mut quoted = false;
        while let Some(c) = chars.next_if(|c| quoted || !c.is_whitespace()) {
            match c {
                '"' => quoted = !quoted,
                '\\' if quoted => word.text.extend(chars.next()),
                '=' if !quoted && word.equals.is_none() => {
                    word.equals = Some(word.text.len());
                    word.text.push(c);
                }
                c => word.text.push(c),
            }
        }
        if quoted {
            return Err(LineError::OpenQuote);
        }
        words.push(word);
    }
}

impl Entry {
    /// Formats the entry as a line without line end, for [`parse`]. Line ends inside become blanks.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line = format!("{} {}", word(&self.lfn), word(&self.pfn));
        let site = self.site.as_ref().map(|site| ("site", site));
        let attributes = self.attributes.iter().map(|(key, value)| (key.as_str(), value));
        for (key, value) in site.into_iter().chain(attributes) {
            let _ = write!(line, " {}={}", word(key), quoted(value));
        }
        line
    }

    /// Removes the mark `optional="true"`, which planners give to files that a job need not write. Returns
    /// false for such a file if it is missing in a local directory that exists.
    pub(crate) fn settle_optional(&mut self) -> bool {
        if self.attributes.get("optional").map(String::as_str) != Some("true") {
            return true;
        }
        self.attributes.remove("optional");
        let path = self.pfn.strip_prefix("file://").unwrap_or(&self.pfn);
        let path = std::path::Path::new(path);
        !path.is_absolute() || path.exists() || !path.parent().is_some_and(std::path::Path::is_dir)
    }

    /// Returns whether both are the same location of the same file.
    #[must_use]
    pub fn same_location(&self, other: &Self) -> bool {
        (&self.lfn, &self.pfn, &self.site) == (&other.lfn, &other.pfn, &other.site)
    }
}

/// Formats a word, in quotes if necessary.
fn word(text: &str) -> String {
    let plain = !text.is_empty()
        && !text.starts_with('#')
        && !text.contains(|c: char| c.is_whitespace() || c == '"' || c == '=' || c == '\\');
    // `=` is special only in the words after the location, but quotes are always valid.
    let plain = plain
        || (!text.is_empty()
            && text.contains("://")
            && !text.contains(|c: char| c.is_whitespace() || c == '"' || c == '\\'));
    if plain { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' | '\r' => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(line: &str) -> Entry {
        parse(line).expect("valid").expect("an entry")
    }

    #[test]
    fn line_of_a_register_job_is_parsed() {
        let entry = read("f.c2 file:///keep/f.c2 site=\"local\" size=\"12\" note=\"a \\\"b\\\" \\\\c\"");
        assert_eq!(
            (entry.lfn.as_str(), entry.pfn.as_str()),
            ("f.c2", "file:///keep/f.c2")
        );
        assert_eq!(entry.site.as_deref(), Some("local"));
        assert_eq!(entry.attributes["size"], "12");
        assert_eq!(entry.attributes["note"], "a \"b\" \\c");
    }

    #[test]
    fn older_and_unusual_forms_are_parsed() {
        assert_eq!(read("a b pool=x").site.as_deref(), Some("x"));
        assert_eq!(read("a b x").site.as_deref(), Some("x"));
        assert_eq!(read("a \"http://h/x y\" # site=\"no\"").pfn, "http://h/x y");
        assert_eq!(read("a http://h/x#y?z=1 site=\"s\"").pfn, "http://h/x#y?z=1");
        assert_eq!(read("it's file:///a'b").pfn, "file:///a'b");
        assert_eq!(parse("  # comment"), Ok(None));
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("alone"), Err(LineError::TooShort));
        assert_eq!(parse("a \"b"), Err(LineError::OpenQuote));
    }

    #[test]
    fn missing_optional_files_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        std::fs::write(&there, "").unwrap();
        let settle = |pfn: &str, mark: &str| {
            let mut entry = read(&format!("f {pfn} site=\"s\" {mark}"));
            let keep = entry.settle_optional();
            assert!(entry.attributes.is_empty() || !keep || mark.contains("false"));
            keep
        };
        let gone = format!("file://{}/gone", dir.path().display());
        assert!(!settle(&gone, "optional=\"true\""));
        assert!(settle(&gone, "") && settle(&gone, "optional=\"false\""));
        assert!(settle(
            &format!("file://{}", there.display()),
            "optional=\"true\""
        ));
        assert!(settle("file:///no/such/directory/f", "optional=\"true\""));
        assert!(settle("https://example.org/f", "optional=\"true\""));
    }

    proptest! {
        #[test]
        fn formatted_lines_are_parsed_back(
            lfn in "[^\n\r]{1,12}", pfn in "[^\n\r]{1,12}", site in proptest::option::of("[^\n\r]{0,8}"),
            attributes in proptest::collection::btree_map("[a-z.=\" ]{1,6}", "[^\n\r]{0,8}", 0..3),
        ) {
            let mut entry = Entry { lfn, pfn, site, attributes };
            entry.attributes.remove("pool");
            entry.attributes.remove("site");
            prop_assert_eq!(parse(&entry.to_line()), Ok(Some(entry)));
        }

        #[test]
        fn no_line_panics(line in "\\PC{0,40}|[ab\"\\\\= #]{0,20}") {
            let _ = parse(&line);
        }
    }
}
