//! Texts in the output of a task that decide whether it has succeeded, as `pegasus-exitcode` searches them.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use memchr::memmem::Finder;
use pmc_dag::reason;

use super::stdio::TaskFiles;
use crate::protocol::Assignment;

/// Bytes that are read at a time.
const READ_SIZE: usize = 1 << 16;

/// What is looked for in the output of an attempt.
pub(super) struct OutputCheck<'a> {
    task: &'a Assignment,
    /// Files, and their lengths when the attempt began.
    files: [(&'a Path, u64); 2],
}

impl<'a> OutputCheck<'a> {
    /// To be called before the attempt starts. `None` if the task has no messages.
    pub(super) fn begin(task: &'a Assignment, files: &'a TaskFiles) -> Option<Self> {
        if task.failure_messages.is_empty() && task.success_messages.is_empty() {
            return None;
        }
        let end = |mut file: &File| file.seek(SeekFrom::End(0)).unwrap_or(0);
        Some(Self {
            task,
            files: [
                (&files.out_path, end(&files.out)),
                (&files.err_path, end(&files.err)),
            ],
        })
    }

    /// Returns why an attempt with this status failed nevertheless, as a sentence without subject.
    pub(super) fn problem(&self, status: i32) -> Option<String> {
        if status != 0 {
            return None;
        }
        let Assignment {
            failure_messages,
            success_messages,
            ..
        } = self.task;
        let messages: Vec<&[u8]> = failure_messages
            .iter()
            .chain(success_messages)
            .map(Vec::as_slice)
            .collect();
        let mut found = vec![false; messages.len()];
        for (path, start) in self.files {
            if let Err(error) = search(path, start, &messages, &mut found) {
                return Some(format!("Unable to read {}: {}", path.display(), reason(&error)));
            }
        }
        let (failures, successes) = found.split_at(failure_messages.len());
        let shown = |message: &[u8]| String::from_utf8_lossy(message).into_owned();
        if let Some(at) = failures.iter().position(|found| *found) {
            let text = shown(&failure_messages[at]);
            return Some(format!("its output has the failure message \"{text}\""));
        }
        let at = successes.iter().position(|found| !found)?;
        let text = shown(&success_messages[at]);
        Some(format!("its output lacks the success message \"{text}\""))
    }
}

/// Notes which of the messages are in a file from a position on.
fn search(path: &Path, start: u64, messages: &[&[u8]], found: &mut [bool]) -> io::Result<()> {
    let mut file = pmc_files::open(path)?;
    // What processes that are left write meanwhile does not count.
    let length = file.metadata()?.len().saturating_sub(start);
    file.seek(SeekFrom::Start(start))?;
    let mut file = file.take(length);
    let finders: Vec<Finder<'_>> = messages.iter().map(Finder::new).collect();
    // A message may lie across two chunks.
    let overlap = messages.iter().map(|message| message.len()).max().unwrap_or(1) - 1;
    let mut text = Vec::with_capacity(READ_SIZE + overlap);
    loop {
        let kept = text.len();
        if (&mut file).take(READ_SIZE as u64).read_to_end(&mut text)? == 0 {
            return Ok(());
        }
        for (finder, found) in finders.iter().zip(&mut *found) {
            *found = *found || finder.find(&text).is_some();
        }
        debug_assert!(text.len() > kept, "something was read");
        text.drain(..text.len().saturating_sub(overlap));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn messages_are_found_across_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut text = vec![b'x'; 3 * READ_SIZE];
        text[READ_SIZE - 2..READ_SIZE + 2].copy_from_slice(b"Boom");
        text[3 * READ_SIZE - 3..].copy_from_slice(b"end");
        fs::write(&path, &text).unwrap();
        let found = |start, messages: &[&[u8]]| {
            let mut found = vec![false; messages.len()];
            search(&path, start, messages, &mut found).unwrap();
            found
        };
        assert_eq!(
            found(0, &[b"Boom", b"end", b"boom", b"x"]),
            [true, true, false, true]
        );
        assert_eq!(found(READ_SIZE as u64, &[b"Boom", b"om"]), [false, true]);
        assert_eq!(found(0, &[&text]), [true]);
        assert_eq!(found(text.len() as u64, &[b"x"]), [false]);
    }
}
