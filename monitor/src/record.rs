//! What a task left in its output files: the invocation record of its program.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The part of an invocation record that explains a failure.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Record {
    /// Name of the transformation.
    pub transformation: Option<String>,
    /// Identifier of the job in the workflow.
    pub derivation: Option<String>,
    /// Directory the program ran in.
    pub cwd: Option<String>,
    /// Machine.
    pub hostname: Option<String>,
    /// The program.
    pub mainjob: MainJob,
    /// Files by logical name; `stdout` and `stderr` carry data.
    pub files: BTreeMap<String, FileEntry>,
}

/// How the program ran.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct MainJob {
    /// Seconds.
    pub duration: f64,
    /// How it ended.
    pub status: Status,
    /// Its file.
    pub executable: FileEntry,
    /// What it used.
    pub usage: Usage,
    /// Its arguments, without the program's name.
    pub argument_vector: Option<Vec<String>>,
}

/// What a program used.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Usage {
    /// Largest resident set, KiB.
    pub maxrss: Option<u64>,
}

/// How a program ended.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Status {
    /// Status as `wait` gives it, -1 if the program could not be started.
    pub raw: Option<i32>,
    /// Why the program could not be started.
    pub failure_error: Option<String>,
}

/// A file in a record.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct FileEntry {
    /// Path.
    pub file_name: Option<String>,
    /// Captured contents.
    pub data: Option<String>,
}

impl Record {
    /// Captured standard output or standard error.
    #[must_use]
    pub fn captured(&self, stream: &str) -> &str {
        self.files
            .get(stream)
            .and_then(|file| file.data.as_deref())
            .unwrap_or("")
    }

    /// The program failed or could not be started.
    fn failed(&self) -> bool {
        self.mainjob.status.raw != Some(0)
    }
}

/// The record of the program that failed, in the text of a task's output file: the first that failed,
/// as clusters stop there, else the last one. Records that cannot be read are passed over.
#[must_use]
pub fn find(text: &str) -> Option<Record> {
    let mut last = None;
    for chunk in chunks(text) {
        let Ok(mut records) = serde_saphyr::from_str::<Vec<Record>>(&chunk) else {
            continue;
        };
        let Some(record) = records.pop() else { continue };
        if record.failed() {
            return Some(record);
        }
        last = Some(record);
    }
    last
}

/// What the output file holds besides records: output of tasks without kickstart.
#[must_use]
pub fn outside(text: &str) -> String {
    let mut rest = String::new();
    let mut inside = false;
    for line in text.lines() {
        if line.contains("- invocation:") {
            inside = true;
        } else if line.starts_with("[cluster-") {
            inside = false;
            continue;
        }
        if !inside {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    rest
}

/// The texts of the records. One begins with `- invocation:` and ends before a line of the executor.
fn chunks(text: &str) -> Vec<String> {
    let mut chunks: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(start) = line.find("- invocation:") {
            // A program's own output without a final line feed may stand before it.
            if start == 0 || !inside {
                chunks.push(String::new());
                inside = true;
                if let Some(chunk) = chunks.last_mut() {
                    chunk.push_str(&line[start..]);
                    chunk.push('\n');
                }
                continue;
            }
        } else if line.starts_with("[cluster-") {
            inside = false;
        }
        if let (true, Some(chunk)) = (inside, chunks.last_mut()) {
            chunk.push_str(line);
            chunk.push('\n');
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORD: &str = r#"- invocation: True
  version: 3.0
  transformation: "work"
  derivation: "ID0000002"
  hostname: node1
  mainjob:
    duration: 0.004
    status:
      raw: 768
      regular_exitcode: 3
    executable:
      file_name: /opt/step
      mode: 0o100755
    argument_vector:
      - "-i"
      - "left file"
    procs:
  files:
    left.txt:
      error: 2
      lfn: "left.txt"
    stderr:
      data_truncated: false
      data: |
        told to fail
        - invocation: not a record
        
  environment:
    "HOME": "/"
"#;

    #[test]
    fn reads_what_failed() {
        let good = RECORD.replace("raw: 768", "raw: 0").replace("work", "fine");
        let text = format!("text before {good}{RECORD}[cluster-task id=4, name=x]\n");
        let record = find(&text).expect("there is a record");
        assert_eq!(record.transformation.as_deref(), Some("work"));
        assert_eq!(record.mainjob.status.raw, Some(768));
        assert_eq!(
            record.mainjob.argument_vector.as_deref(),
            Some(&["-i".to_owned(), "left file".to_owned()][..])
        );
        assert_eq!(
            record.captured("stderr"),
            "told to fail\n- invocation: not a record\n"
        );
        assert_eq!(record.captured("stdout"), "");
    }

    #[test]
    fn output_without_a_record() {
        let text = "hello\nworld\n[cluster-task id=4, name=x]\n";
        assert_eq!(find(text), None);
        assert_eq!(outside(text), "hello\nworld\n");
    }

    #[test]
    fn a_broken_record_is_passed_over() {
        assert_eq!(find("- invocation: True\n  version: [\n"), None);
    }

    /// Text that looks like output files, whole or cut off anywhere, with what programs may print.
    fn output() -> impl Strategy<Value = String> {
        let line = prop_oneof![
            Just("- invocation: True".to_owned()),
            Just("  mainjob:".to_owned()),
            Just("    status: {raw: 768}".to_owned()),
            Just("  files: {stderr: {data: \"x\"}}".to_owned()),
            Just("[cluster-task name=t]".to_owned()),
            ".{0,12}",
        ];
        proptest::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
    }

    proptest! {
        #[test]
        fn no_output_is_too_odd(text in output()) {
            // Every line outside of records is kept, none of a record is.
            let rest = outside(&text);
            prop_assert!(!rest.contains("- invocation: True"));
            prop_assert!(rest.lines().count() <= text.lines().count());
            if let Some(record) = find(&text) {
                prop_assert!(text.contains("- invocation:"), "{:?}", record);
            }
        }

        #[test]
        fn a_record_is_found_behind_any_text(before in "[^\\[]{0,40}") {
            prop_assume!(!before.contains("- invocation:"));
            let text = format!("{before}\n{RECORD}[cluster-task name=t]\n");
            let record = find(&text);
            prop_assert_eq!(record.and_then(|record| record.mainjob.status.raw), Some(768));
        }
    }
}
