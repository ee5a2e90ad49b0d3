//! Sizes of files and room on sites, for the clean-up strategy constraint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::exec::{Exec, Place};
use crate::model::{FileId, Position, Workflow};
use crate::properties::Properties;
use crate::syntax::text;

/// Prefix of the properties.
const PREFIX: &str = "pegasus.file.cleanup.constraint.";
/// Default room of a site: 10 GiB.
const DEFAULT_ROOM: u64 = 10 << 30;
/// Default size of a file: 10 MiB.
const DEFAULT_SIZE: u64 = 10 << 20;

/// Maximum files whose size is read from the file system, which may be slow.
const MEASURED: usize = 20_000;

/// The settings of the strategy, all in bytes.
#[derive(Clone, Debug)]
pub(crate) struct SpaceSettings {
    room: u64,
    room_of: BTreeMap<String, u64>,
    default_size: u64,
    csv: Option<PathBuf>,
}

impl Default for SpaceSettings {
    fn default() -> Self {
        SpaceSettings {
            room: DEFAULT_ROOM,
            room_of: BTreeMap::new(),
            default_size: DEFAULT_SIZE,
            csv: None,
        }
    }
}

impl SpaceSettings {
    /// Reads the settings from the properties. Relative file names start at `here`.
    ///
    /// # Errors
    /// Values that are no sizes.
    pub(crate) fn new(properties: &Properties, here: &Path) -> Result<Self, InputErrors> {
        let mut this = SpaceSettings::default();
        let mut problems = Vec::new();
        for (key, value) in properties.with_prefix(PREFIX) {
            if value.trim().is_empty() {
                continue;
            }
            let mut size = || {
                let size = parse_bytes(value);
                if size.is_none() {
                    problems.push(properties.bad_value(
                        &format!("{PREFIX}{key}"),
                        "must be a number of bytes, or one with K, M, G or T behind it",
                    ));
                }
                size
            };
            match key {
                "maxspace" => this.room = size().unwrap_or(this.room),
                "filesize" => this.default_size = size().unwrap_or(this.default_size),
                "csv" => this.csv = Some(here.join(value.trim())),
                _ => {
                    if let Some(site) = key.strip_suffix(".maxspace")
                        && let Some(size) = size()
                    {
                        this.room_of.insert(site.to_owned(), size);
                    }
                }
            }
        }
        InputErrors::check(problems)?;
        Ok(this)
    }

    /// Bytes that the work directory of a site may hold.
    pub(crate) fn room(&self, site: &str) -> u64 {
        self.room_of.get(site).copied().unwrap_or(self.room)
    }
}

/// Size of every file, in bytes.
#[derive(Debug)]
pub(crate) struct Sizes {
    known: Vec<Option<u64>>,
    /// Size of a file whose size is not known.
    pub(crate) default_size: u64,
}

impl Sizes {
    /// Takes sizes from the list of sizes, else from the workflow, else from the replica catalog.
    ///
    /// # Errors
    /// A list that cannot be read or parsed.
    pub(crate) fn new(
        workflow: &Workflow,
        exec: &Exec,
        settings: &SpaceSettings,
    ) -> Result<Self, InputErrors> {
        let mut known: Vec<Option<u64>> = vec![None; workflow.files.len()];
        if let Some(path) = &settings.csv {
            for (name, size) in read_list(path)? {
                if let Some(file) = workflow.files.find(&name) {
                    known[file] = Some(size);
                }
            }
        }
        Ok(Self::of_workflow(workflow, exec, known, settings.default_size))
    }

    fn of_workflow(workflow: &Workflow, exec: &Exec, mut known: Vec<Option<u64>>, default_size: u64) -> Self {
        for u in workflow.jobs.iter().flat_map(|job| &job.uses) {
            let slot = &mut known[u.file];
            if slot.is_none() {
                *slot = u.size.or_else(|| size_in(&u.metadata));
            }
        }
        for moved in exec.transfers.iter().flat_map(|set| &set.files) {
            let slot = &mut known[moved.file];
            if slot.is_none() {
                *slot = moved.metadata.as_deref().and_then(size_in);
            }
        }
        Sizes { known, default_size }
    }

    /// Reads the unknown sizes of inputs on visible file systems.
    pub(crate) fn measure(&mut self, exec: &Exec) {
        let mut left = MEASURED;
        for moved in exec.transfers.iter().flat_map(|set| &set.files) {
            let Some(slot @ None) = self.known.get_mut(moved.file.index()) else {
                continue;
            };
            let Some((Place::Url(url, _), _)) = moved.sources.first() else {
                continue;
            };
            let path = url.strip_prefix("file://").unwrap_or(url);
            if left > 0 && path.starts_with('/') {
                left -= 1;
                *slot = std::fs::metadata(path)
                    .ok()
                    .filter(|m| m.is_file())
                    .map(|m| m.len());
            }
        }
    }

    /// Returns the size of a file, or the default.
    pub(crate) fn of(&self, file: FileId) -> u64 {
        self.known(file).unwrap_or(self.default_size)
    }
    /// Returns the size of a file, if known.
    pub(crate) fn known(&self, file: FileId) -> Option<u64> {
        self.known.get(file.index()).copied().flatten()
    }
}

/// The entry `size` of a file's metadata.
fn size_in(metadata: &[(String, String)]) -> Option<u64> {
    let (_, value) = metadata.iter().find(|(key, _)| key == "size")?;
    value.trim().parse().ok()
}

/// Bytes: a whole number, with K, M, G or T for powers of 1024 (`10G`, `10GiB`).
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c.is_whitespace());
    let unit = text[digits.len()..].trim().to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Parses `NAME,SIZE` lines. Empty lines, lines with `#` and a title line are ignored. A name may be in
/// double quotes.
fn read_list(path: &Path) -> Result<Vec<(String, u64)>, InputErrors> {
    let bytes = text::read(path)
        .map_err(|e| Diagnostic::in_file(path, format!("cannot read the list of file sizes: {e}")))?;
    let text = text::decode(path, bytes)?;
    let mut sizes = Vec::new();
    let mut problems = Vec::new();
    let mut first = true;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // A name may have commas in it, a size has none.
        let entry = line
            .rsplit_once(',')
            .and_then(|(name, size)| Some((unquoted(name.trim()), parse_bytes(size)?)));
        match entry {
            Some(entry) => sizes.push(entry),
            None if first => {}
            None => problems.push(Diagnostic::at(
                path,
                Position {
                    line: number as u32 + 1,
                    column: 0,
                },
                format!("expected the name of a file, a comma and its size in bytes, not `{line}`"),
            )),
        }
        first = false;
    }
    InputErrors::check(problems)?;
    Ok(sizes)
}

fn unquoted(name: &str) -> String {
    match name.strip_prefix('"').and_then(|n| n.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => name.to_owned(),
    }
}

/// Formats a number of bytes, exact and rounded.
pub(crate) fn bytes(n: u64) -> String {
    match short_bytes(n) {
        short if n >= 1024 => format!("{n} bytes ({short})"),
        _ => format!("{n} bytes"),
    }
}

/// Formats a rounded number of bytes.
pub(crate) fn short_bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_may_have_units() {
        for (text, size) in [
            ("6000", Some(6000)),
            (" 10 G ", Some(10 << 30)),
            ("2KiB", Some(2048)),
            ("3mb", Some(3 << 20)),
            ("1T", Some(1 << 40)),
            ("99999999999T", None),
            ("-1", None),
            ("1.5G", None),
            ("many", None),
            ("", None),
        ] {
            assert_eq!(parse_bytes(text), size, "{text}");
        }
    }

    #[test]
    fn a_list_of_sizes() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("sizes.csv");
        std::fs::write(&path, "lfn,size\n# measured\na, 5\n\"b,c\",2K\n\nd,e,7\n")?;
        let expected = [("a", 5), ("b,c", 2048), ("d,e", 7)].map(|(n, s)| (n.to_owned(), s));
        assert_eq!(read_list(&path)?, expected);
        std::fs::write(&path, "a,5\nb five\nc,\n")?;
        let message = read_list(&path).expect_err("two bad lines").to_string();
        assert_eq!(message.lines().count(), 2, "{message}");
        assert!(message.contains("sizes.csv:2: "), "{message}");
        // It has no end.
        assert!(read_list(Path::new("/dev/zero")).is_err());
        Ok(())
    }

    #[test]
    fn bytes_are_told_both_ways() {
        assert_eq!(bytes(400), "400 bytes");
        assert_eq!(bytes(6000), "6000 bytes (5.9 KiB)");
        assert_eq!(short_bytes(10 << 30), "10.0 GiB");
    }
}
