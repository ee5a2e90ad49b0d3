//! What a run says to tasks that save their state: the file `notice` of its store.

use serde::{Deserialize, Serialize};

/// Maximum bytes of the file.
pub(crate) const MAX_SIZE: u64 = 4 << 10;

/// What a run says to its tasks. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// When the run was asked to start no more tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<f64>,
    /// When the tasks that still run will be asked to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<f64>,
}

impl Notice {
    /// Returns the text of the file.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Reads the file; `None` if it is incomplete.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text.strip_suffix('\n')?).ok()
    }

    /// Returns what both say: the first drain, and the end that the newer one names.
    #[must_use]
    pub fn or(self, older: Self) -> Self {
        Self {
            drained: self.drained.or(older.drained),
            ends: self.ends.or(older.ends),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_as_it_was_written() {
        let drained = Some(5.0);
        for (notice, text) in [
            (Notice::default(), "{}\n"),
            (Notice { drained, ends: None }, "{\"drained\":5.0}\n"),
            (
                Notice {
                    drained: None,
                    ends: Some(7.5),
                },
                "{\"ends\":7.5}\n",
            ),
        ] {
            assert_eq!(notice.text(), text);
            assert_eq!(Notice::parse(text), Some(notice));
            assert_eq!(Notice::parse(text.trim_end()), None);
        }
        assert_eq!(Notice::parse("drained\n"), None);
    }
}
