//! The sidecar of a file: what the file must be, and whose it is.

use serde::{Deserialize, Serialize};

use crate::{Prefix, seconds};

/// The word by which a sidecar is recognized.
const FORMAT: &str = "pmc-checkpoint";

/// The version of the format.
const VERSION: u32 = 1;

/// Maximum bytes of a sidecar: that of a file of some TiB.
pub(crate) const MAX_SIZE: u64 = 64 << 20;

/// Text that is no sidecar that can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSidecar {
    /// It is no JSON of this shape.
    #[error("it is no sidecar of a checkpoint file: {0}")]
    Json(#[from] serde_json::Error),
    /// Another program has written it.
    #[error("it has the format {format:?} in version {version}, not {FORMAT:?} in version {VERSION}")]
    Version {
        /// The format that it names.
        format: String,
        /// Its version.
        version: u32,
    },
    /// It contradicts itself, or its place.
    #[error("it is the sidecar of another file")]
    OtherFile,
    /// It belongs to another store.
    #[error("it is the sidecar of another run")]
    OtherRun,
}

/// What a checkpoint file is. It is stored beside the file as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sidecar {
    /// Always `pmc-checkpoint`.
    pub(crate) format: String,
    /// Version of the format.
    pub(crate) version: u32,
    /// The id of the store.
    pub run: String,
    /// Directory of the task: see [`task_directory`](crate::task_directory).
    pub task: String,
    /// Submit number of the attempt that has written the file.
    pub submit: u64,
    /// Rank of the process that has written it.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Prefix of the file.
    pub prefix: Prefix,
    /// Number of the series.
    pub series: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// CRC-32 of each MiB.
    pub crc32: Vec<u32>,
    /// When it was closed: seconds since 1970, as text in whole milliseconds.
    #[serde(serialize_with = "seconds::write_rounded")]
    pub closed: f64,
    /// Host on which it was written.
    pub host: String,
}

impl Sidecar {
    /// A sidecar of the present version without a place: callers fill in what differs.
    #[must_use]
    pub fn new(run: String, task: String, prefix: Prefix) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            run,
            task,
            submit: 0,
            rank: 0,
            ranks: 1,
            prefix,
            series: 0,
            bytes: 0,
            crc32: Vec::new(),
            closed: 0.0,
            host: String::new(),
        }
    }

    /// Returns the text of the sidecar.
    #[must_use]
    pub fn text(&self) -> String {
        // Numbers and texts have a form in JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Reads a sidecar.
    ///
    /// # Errors
    /// It is none, is incomplete, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, InvalidSidecar> {
        let sidecar: Self = serde_json::from_str(text)?;
        let Self { format, version, .. } = &sidecar;
        if format != FORMAT || *version != VERSION {
            let (format, version) = (format.clone(), *version);
            return Err(InvalidSidecar::Version { format, version });
        }
        let blocks = sidecar.bytes.div_ceil(crate::BLOCK as u64);
        if sidecar.rank >= sidecar.ranks || sidecar.series == 0 || sidecar.crc32.len() as u64 != blocks {
            return Err(InvalidSidecar::OtherFile);
        }
        Ok(sidecar)
    }

    /// Returns the name of the file.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.prefix, self.rank)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sidecar() -> Sidecar {
        Sidecar {
            submit: 7,
            rank: 1,
            ranks: 4,
            series: 3,
            bytes: 5,
            crc32: vec![17],
            closed: 12.5,
            host: "n1".to_owned(),
            ..Sidecar::new("ab".to_owned(), "t".to_owned(), Prefix::try_from("p").unwrap())
        }
    }

    #[test]
    fn a_sidecar_has_these_bytes() {
        let text = "{\"format\":\"pmc-checkpoint\",\"version\":1,\"run\":\"ab\",\"task\":\"t\",\"submit\":7,\"rank\":1,\
                    \"ranks\":4,\"prefix\":\"p\",\"series\":3,\"bytes\":5,\"crc32\":[17],\"closed\":12.5,\
                    \"host\":\"n1\"}\n";
        assert_eq!(sidecar().text(), text);
        assert_eq!(Sidecar::parse(text).unwrap(), sidecar());
        assert_eq!(sidecar().file_name(), "p.1");
    }

    #[test]
    fn what_is_no_sidecar_is_refused() {
        let text = sidecar().text();
        for length in 0..text.len() - 1 {
            assert!(Sidecar::parse(&text[..length]).is_err(), "{length}");
        }
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("pmc-checkpoint", "other"),
            ("\"rank\":1", "\"rank\":4"),
            ("\"series\":3", "\"series\":0"),
            ("\"bytes\":5", "\"bytes\":2000000"),
            ("\"prefix\":\"p\"", "\"prefix\":\"../p\""),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(Sidecar::parse(&text.replace(from, to)).is_err(), "{to}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_no_panic(text in ".*") {
            let _ = Sidecar::parse(&text);
        }
    }
}
