//! Runs the program as a job of the workflow.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::content::Digest;
use crate::{TASK_VARIABLE, table};

/// Executes the table entry of a task: reads, waits, writes, all in the working directory.
pub fn run(table: &Path, task: &str) -> Result<()> {
    let begin = Instant::now();
    if task.is_empty() {
        bail!("{TASK_VARIABLE} is not set: the executor names the task in it");
    }
    let text =
        std::fs::read_to_string(table).with_context(|| format!("table of jobs {}", table.display()))?;
    let Some(entry) = table::find(&text, task)? else {
        bail!("{}: no task {task}", table.display());
    };

    let mut digest = Digest::new();
    let mut bytes_read = 0;
    for (name, size) in &entry.reads {
        let found = digest
            .add_file(Path::new(name))
            .with_context(|| format!("input {name}"))?;
        if found != *size {
            bail!("input {name}: {found} bytes, expected {size}");
        }
        bytes_read += found;
    }
    if let Some(rest) = Duration::from_millis(entry.milliseconds).checked_sub(begin.elapsed()) {
        std::thread::sleep(rest);
    }
    let mut bytes_written = 0;
    for (name, size) in &entry.writes {
        let mut digest = digest;
        digest.add(name.as_bytes());
        let path = Path::new(name);
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).with_context(|| format!("output {name}"))?;
        }
        digest
            .write_file(path, *size)
            .with_context(|| format!("output {name}"))?;
        bytes_written += size;
    }
    println!(
        "{task}: read {} files, {bytes_read} bytes; wrote {} files, {bytes_written} bytes",
        entry.reads.len(),
        entry.writes.len()
    );
    Ok(())
}
