//! What is left behind: metadata of files, and lines of logs.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use monitord_compat::record_reader::{OutputFile, Record};
use pmc_files::OFlags;
use serde_json::{Map, Value, json};

/// Writes the metadata of the files that a job has written.
///
/// # Errors
/// A failed write.
pub(crate) fn metadata(base: &Path, records: &[Record]) -> io::Result<()> {
    let files = records.iter().flat_map(|record| &record.outputs);
    let entries: Vec<Value> = files
        .map(|file| {
            let attributes: Map<String, Value> = attributes(file)
                .into_iter()
                .map(|(key, value)| (key.to_owned(), Value::from(value)))
                .collect();
            json!({"_id": file.lfn, "_type": "file", "_attributes": attributes})
        })
        .collect();
    let path = PathBuf::from(format!("{}.meta", base.display()));
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    serde_json::to_writer_pretty(&mut file, &entries)?;
    file.write_all(b"\n")?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

/// Returns what is known of a file.
fn attributes(file: &OutputFile) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let mut add = |key, value: &Option<String>| all.extend(value.clone().map(|value| (key, value)));
    add("user", &file.user);
    add("size", &file.size);
    add("ctime", &file.ctime);
    if file.sha256.is_some() {
        add("checksum.type", &Some("sha256".to_owned()));
        add("checksum.value", &file.sha256);
        add(
            "checksum.timing",
            &file.checksum_timing.clone().or(Some("0.0".to_owned())),
        );
    }
    all
}

/// Appends the metadata of files to a log for the whole workflow.
///
/// # Errors
/// A failed write.
pub(crate) fn append_metadata(log: &Path, records: &[Record]) -> io::Result<()> {
    let mut text = String::new();
    for file in records.iter().flat_map(|record| &record.outputs) {
        text.push_str(&format!("{} @@PFN@@", file.lfn.replace(['\n', '\r'], " ")));
        for (key, value) in attributes(file) {
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            text.push_str(&format!(" {key}=\"{value}\""));
        }
        text.push('\n');
    }
    if text.is_empty() {
        return Ok(());
    }
    append(log, &text)
}

/// A line about a job.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) exit_code: u8,
    pub(crate) status: Option<i64>,
    pub(crate) attempt: Option<u32>,
    pub(crate) retry: u32,
    /// What this program has to say.
    pub(crate) notes: &'a str,
}

impl Entry<'_> {
    /// Returns the line.
    pub(crate) fn line(&self) -> String {
        let time = chrono::Local::now().format("%Y-%m-%dT%H:%M:%S%.6f").to_string();
        let value = json!({
            "name": self.name,
            "timestamp": time,
            "exitcode": self.exit_code,
            "app_exitcode": self.status,
            "retry": self.attempt,
            "job_retry": self.retry,
            "std_out": "",
            "std_err": self.notes,
        });
        format!("{value}\n")
    }
}

/// Appends a text to a file, which several processes do at the same time.
///
/// # Errors
/// A failed write.
pub(crate) fn append(path: &Path, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let mut file = pmc_files::open_output(path, flags, 0o666)?;
    // Some file systems know no locks. The end of the process unlocks it, too.
    let _ = file.lock();
    file.write_all(text.as_bytes())
}
