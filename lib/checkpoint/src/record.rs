//! The statistics of checkpoint files: `NAME.dag.checkpoints.jsonl`, a line of JSON for each file that a task
//! has closed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Prefix, seconds};

/// What a task has done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// It has written it.
    Written,
    /// It has read it.
    Read,
}

/// A line of the statistics: a file that a task has closed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Directory of the task: see [`task_name`](crate::task_name).
    pub task: String,
    /// Submit number of the attempt.
    pub submit: u64,
    /// Rank of the process.
    pub rank: u32,
    /// Prefix of the file.
    pub prefix: Prefix,
    /// Number of the series.
    pub series: u64,
    /// What was done with it.
    #[serde(rename = "use")]
    pub usage: Use,
    /// Bytes that were written or read.
    pub bytes: u64,
    /// Seconds that the task spent in opening it.
    #[serde(deserialize_with = "seconds::required")]
    pub open: f64,
    /// Seconds that it spent in reading.
    #[serde(deserialize_with = "seconds::required")]
    pub read: f64,
    /// Seconds that it spent in writing.
    #[serde(deserialize_with = "seconds::required")]
    pub write: f64,
    /// Seconds that it spent in closing it.
    #[serde(deserialize_with = "seconds::required")]
    pub close: f64,
    /// What went wrong: bit 0 for opening, 1 for reading, 2 for writing, 3 for closing. Such a file does not
    /// count.
    pub errors: u8,
    /// When it was closed: seconds since 1970.
    #[serde(deserialize_with = "seconds::required")]
    pub closed: f64,
    /// Seconds since the attempt began.
    #[serde(deserialize_with = "seconds::required")]
    pub elapsed: f64,
    /// Host on which that was.
    pub host: String,
    /// With this file the series was complete: if the task is lost now, it goes on there.
    pub complete: bool,
}

impl FileRecord {
    /// Returns the path of the statistics of a DAG.
    #[must_use]
    pub fn path(dag: &Path) -> PathBuf {
        let mut path = OsString::from(dag);
        path.push(".checkpoints.jsonl");
        path.into()
    }

    /// Returns the line.
    #[must_use]
    pub fn line(&self) -> String {
        // Numbers and texts have a form in JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Reads a line without its end; `None` if it is torn, or of another version.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Returns the seconds for which the file has blocked the task.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.open + self.read + self.write + self.close
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let record = FileRecord {
            task: "a%2Fb".to_owned(),
            submit: 7,
            rank: 0,
            prefix: Prefix::try_from("fields").unwrap(),
            series: 3,
            usage: Use::Written,
            bytes: 4,
            open: 0.5,
            read: 0.0,
            write: 0.25,
            close: 0.125,
            errors: 0,
            closed: 1.5,
            elapsed: 8.0,
            host: "n1".to_owned(),
            complete: true,
        };
        let line = "{\"task\":\"a%2Fb\",\"submit\":7,\"rank\":0,\"prefix\":\"fields\",\"series\":3,\"use\":\"written\",\
                    \"bytes\":4,\"open\":0.5,\"read\":0.0,\"write\":0.25,\"close\":0.125,\"errors\":0,\
                    \"closed\":1.5,\"elapsed\":8.0,\"host\":\"n1\",\"complete\":true}\n";
        assert_eq!(record.line(), line);
        assert_eq!(
            FileRecord::parse(line.trim_end().as_bytes()),
            Some(record.clone())
        );
        for length in 0..line.len() - 2 {
            assert_eq!(FileRecord::parse(&line.as_bytes()[..length]), None);
        }
        assert_eq!(record.seconds(), 0.875);
        assert_eq!(
            FileRecord::path(Path::new("a/w.dag")),
            Path::new("a/w.dag.checkpoints.jsonl")
        );
    }
}
