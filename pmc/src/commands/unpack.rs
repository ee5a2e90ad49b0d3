//! `pmc unpack`: makes the two files of each attempt from packed output.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use pmc_dag::reason;
use pmc_files::Folder;
use pmc_packed::{Channel, Packed, TaskOutput, relative_file};
use pmc_terminal::message;

use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::text;

/// Maximum messages about attempts that cannot be unpacked.
const MAX_MESSAGES: usize = 10;
/// Maximum submissions without output between two attempts of a task that get empty files.
const MAX_GAP: usize = 1000;

/// Bytes that become a hole if all of them are zero: a block of most file systems.
const BLOCK: usize = 4096;

/// Permissions of output files, before the umask.
const FILE_MODE: u32 = 0o644;

/// Makes the files that are missing. Returns the exit code.
pub fn unpack(arguments: &cli::Unpack) -> Result<u8, Failure> {
    let run = layout::given_or_latest(arguments.run.as_deref(), false);
    let dir = layout::find_run(&run)?.dir;
    let folder = Folder::open(&dir)
        .with_context(|| format!("cannot open {}", dir.display()))
        .or_code(exit::NOT_RUN)?;
    let mut output = TaskOutput::new(&dir);
    output
        .refresh()
        .context("cannot read the packed output")
        .or_code(exit::NOT_RUN)?;
    let attempts = output.packed();
    let mut done = Done::default();
    let mut limits = Limits {
        bytes: output.packed_bytes(),
        gaps: attempts.len().saturating_add(MAX_GAP),
    };
    let mut last: Option<&Packed> = None;
    for attempt in &attempts {
        let same = last.filter(|last| last.task == attempt.task);
        let first = same.map_or(0, |last| last.number.saturating_add(1));
        let gap = (first..attempt.number).take(MAX_GAP.min(limits.gaps));
        for number in gap {
            limits.gaps -= 1;
            done.note(fill_gap(&folder, &attempt.task, number).map(|()| false));
        }
        for channel in [Channel::Out, Channel::Err] {
            done.note(unpack_stream(&folder, &mut output, attempt, channel, &mut limits));
        }
        last = Some(attempt);
    }
    let Done { files, failed } = done;
    for (pack, bytes) in output.left_over() {
        message(format!(
            "pmc: warning: {bytes} bytes of {} are those of attempts that did not end: they are skipped",
            pack.display()
        ));
    }
    if failed > 0 {
        let error = anyhow!("{} cannot be made", text::count(failed, "file"));
        return Err(Failure::new(exit::NOT_RUN, error));
    }
    pmc_terminal::print(&format!(
        "{} of {} in {}\n",
        text::count(files, "new file"),
        text::count(attempts.len(), "packed attempt"),
        dir.display()
    ));
    Ok(exit::SUCCESS)
}

/// What the files may take together. A pack of somebody else can have the same bytes in any number of
/// entries.
struct Limits {
    bytes: u64,
    gaps: usize,
}

/// What was done.
#[derive(Default)]
struct Done {
    /// New files.
    files: usize,
    /// Files that cannot be made.
    failed: usize,
}

impl Done {
    /// Takes whether a file is new, or why it cannot be made.
    fn note(&mut self, made: Result<bool, (PathBuf, io::Error)>) {
        match made {
            Ok(is_new) => self.files += usize::from(is_new),
            Err((path, error)) => {
                self.failed += 1;
                if self.failed <= MAX_MESSAGES {
                    message(format!("pmc: {}: {}", path.display(), reason(&error)));
                }
            }
        }
    }
}

/// Makes an empty file for a submission without output, which shows that its number is taken.
fn fill_gap(folder: &Folder, task: &[u8], number: u32) -> Result<(), (PathBuf, io::Error)> {
    let path = relative_file(task, Channel::Out, number);
    let make = || {
        let file = folder.destination(&path)?;
        if !file.exists() {
            file.create_new(FILE_MODE)?;
        }
        Ok(())
    };
    make().map_err(|error| (path, error))
}

/// Makes a file, unless it exists. Returns whether it is new. A file is there as a whole or not at all.
fn unpack_stream(
    folder: &Folder,
    output: &mut TaskOutput,
    attempt: &Packed,
    channel: Channel,
    limits: &mut Limits,
) -> Result<bool, (PathBuf, io::Error)> {
    let path = relative_file(&attempt.task, channel, attempt.number);
    let mut copy = || {
        let file = folder.destination(&path)?;
        if file.exists() {
            return Ok(false);
        }
        let stream = output.open(&attempt.task, channel, attempt.number)?;
        let new = file.replacement(".unpack.", FILE_MODE)?;
        let copied = copy_blocks(stream.take(limits.bytes.saturating_add(1)), new.file())?;
        limits.bytes = limits.bytes.checked_sub(copied).ok_or_else(|| {
            io::Error::other(
                "the entries of the packs have more bytes than the packs: they overlap, or the packs are \
                 sparse files",
            )
        })?;
        new.file().set_len(copied)?;
        new.publish_new()?;
        Ok(true)
    };
    copy().map_err(|error| (path, error))
}

/// Copies a stream, but leaves out blocks of zeros, which become holes: a sparse pack fills no disk. Returns
/// its length, which the file may not have yet.
fn copy_blocks(mut from: impl Read, to: &File) -> io::Result<u64> {
    let mut buffer = [0; 16 * BLOCK];
    let mut at = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(at),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        for block in buffer[..read].chunks(BLOCK) {
            if block != &[0; BLOCK][..block.len()] {
                to.write_all_at(block, at)?;
            }
            at += block.len() as u64;
        }
    }
}
