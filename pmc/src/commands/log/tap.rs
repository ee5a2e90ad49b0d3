//! Reads what kickstart captures while a task runs: from the open file, if the run passes it on, or in
//! portions.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monitord_compat::record_reader::StreamFile;
use pmc_control::{ControlError, Output, Position, StreamOutput, TapRequest, Tool};
use pmc_terminal::message;

use super::{Stream, Take};

/// Bytes of one read.
const CHUNK: usize = 64 << 10;
/// Maximum bytes of a file that are passed on at a time, so that a fast task does not hold up others.
const TURN: u64 = 1 << 20;
/// Time until the run is asked whether the task has begun another program.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// Time until the run is asked again after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// An answer that took longer came from a worker that had waited for output.
const LONG_ANSWER: Duration = Duration::from_millis(50);

/// After an answer with this many bytes there is more.
const LARGE: usize = 128 << 10;
/// Maximum answers that are taken before the caller does something else.
const MAX_ANSWERS: usize = 16;

/// The captured output of a running attempt.
pub struct Tap {
    dag: PathBuf,
    task: String,
    /// The command of the task is a program that captures output.
    is_captured: bool,
    /// What is read is the output of the attempt itself, which goes to a pack at the end.
    is_own: bool,
    /// The run has answered, or a message says that it does not.
    has_reported: bool,
    tool: Option<Tool>,
    /// Worker and attempt, once the run has named them.
    attempt: Option<(u32, u64)>,
    /// Files of standard output and standard error. The last one grows.
    files: [Vec<Captured>; 2],
    /// Numbers of the last files whose records have come: an answer to an earlier request may still bring
    /// them.
    finished: [Option<u64>; 2],
    next: Instant,
}

/// A file that captures a stream.
struct Captured {
    number: u64,
    /// Bytes that were printed.
    seen: u64,
    /// `None` if its bytes come from the run.
    file: Option<File>,
    /// Its record has come. The last file stays known nevertheless: the run still has it.
    is_done: bool,
}

impl Captured {
    fn new(number: u64, file: Option<File>) -> Self {
        Self {
            number,
            seen: 0,
            file,
            is_done: false,
        }
    }
}

impl Tap {
    /// A reader for the attempt of a task that runs.
    pub fn new(dag: &Path, task: String, is_captured: bool) -> Self {
        Self {
            dag: dag.to_owned(),
            task,
            is_captured,
            is_own: false,
            has_reported: false,
            tool: None,
            attempt: None,
            files: [Vec::new(), Vec::new()],
            finished: [None, None],
            next: Instant::now(),
        }
    }

    /// A reader for an attempt that runs and whose output goes to a pack at the end.
    pub fn own(dag: &Path, task: String) -> Self {
        Self {
            is_own: true,
            ..Self::new(dag, task, false)
        }
    }

    /// Passes on what was added to the open files. Returns whether there was anything.
    pub fn read(&mut self, take: &mut Take<'_>) -> bool {
        let mut has_found = false;
        for (stream, files) in Stream::ALL.into_iter().zip(&mut self.files) {
            if let Some(last) = files.last_mut() {
                has_found |= last.read(TURN, &mut |bytes| take(stream, bytes));
            }
        }
        has_found
    }

    /// Returns the open files that grow.
    pub fn growing(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter_map(|files| files.last()?.file.as_ref())
    }

    /// Returns whether the command of the task is a program that captures output.
    pub fn is_captured(&self) -> bool {
        self.is_captured
    }

    /// Passes new bytes on. Returns whether there were any, or another file.
    pub fn poll(&mut self, take: &mut Take<'_>) -> bool {
        let mut has_found = self.read(take);
        if has_found || Instant::now() < self.next {
            return has_found;
        }
        for _ in 0..MAX_ANSWERS {
            let asked = Instant::now();
            match self.ask() {
                Ok(Some(output)) => {
                    let is_large = output.streams.iter().any(is_large);
                    let has_new = self.accept(output, take);
                    has_found |= has_new;
                    self.next = Instant::now();
                    if !has_new && asked.elapsed() <= LONG_ANSWER {
                        self.next += ASK_INTERVAL;
                    }
                    if is_large {
                        continue;
                    }
                }
                Ok(None) => self.next = asked + ASK_INTERVAL,
                Err(error) => {
                    self.next = asked + RETRY_INTERVAL;
                    if self.is_captured && !std::mem::replace(&mut self.has_reported, true) {
                        message(format!(
                            "pmc: kickstart hands the output over when the task has ended: {error}"
                        ));
                    }
                }
            }
            break;
        }
        has_found
    }

    /// Returns what to ask the run for.
    pub fn request(&self, may_wait: bool) -> TapRequest {
        let after = self.files.each_ref().map(|files| {
            files.last().map_or(Position::default(), |last| Position {
                file: last.number,
                offset: last.seen,
            })
        });
        TapRequest {
            task: self.task.clone(),
            attempt: self.attempt,
            after,
            is_own: self.is_own,
            may_wait,
        }
    }

    /// Asks the run. `None` if it refuses.
    fn ask(&mut self) -> Result<Option<Output>, ControlError> {
        let request = self.request(true);
        // The run closes a connection that is not used, for instance while nobody reads what is printed.
        let old = self.tool.take().map(|tool| self.ask_over(tool, request.clone()));
        let output = match old {
            Some(Ok(output)) => output,
            _ => self.ask_over(Tool::connect(&self.dag)?, request)?,
        };
        self.has_reported = true;
        Ok(output)
    }

    fn ask_over(&mut self, mut tool: Tool, request: TapRequest) -> Result<Option<Output>, ControlError> {
        let output = tool.tap(request)?.ok();
        self.tool = Some(tool);
        Ok(output)
    }

    /// Takes an answer. Returns whether there is something new in it.
    pub fn accept(&mut self, output: Output, take: &mut Take<'_>) -> bool {
        self.attempt = Some((output.worker, output.attempt));
        let mut has_new = false;
        let streams = Stream::ALL.into_iter().zip(&mut self.files).zip(&self.finished);
        for (output, ((stream, files), finished)) in output.streams.into_iter().zip(streams) {
            match output {
                StreamOutput::None => {}
                StreamOutput::File(file) => {
                    let number = file.metadata().map_or(0, |data| data.ino());
                    if *finished != Some(number) && files.iter().all(|known| known.number != number) {
                        has_new = true;
                        add(files, Captured::new(number, Some(file)));
                    }
                }
                StreamOutput::Bytes { position, bytes } => {
                    let Position { file, offset } = position;
                    if *finished == Some(file) {
                        continue;
                    }
                    if files.iter().all(|known| known.number != file) {
                        add(files, Captured::new(file, None));
                    }
                    let Some(captured) = files.iter_mut().find(|known| known.number == file) else {
                        continue;
                    };
                    let skipped = captured.seen.saturating_sub(offset);
                    let skipped = usize::try_from(skipped).unwrap_or(bytes.len());
                    if let Some(new) = bytes.get(skipped..).filter(|new| !new.is_empty()) {
                        has_new = true;
                        captured.seen = offset.saturating_add(bytes.len() as u64);
                        take(stream, new);
                    }
                }
            }
        }
        has_new
    }

    /// Passes on what is left of the files of a program, now that its record has come. Returns how many bytes
    /// of each were passed on at all.
    pub fn finish(&mut self, files: &[StreamFile; 2], take: &mut Take<'_>) -> [u64; 2] {
        let known = [0, 1].map(|stream| {
            let is_same = |known: &Captured| Some(known.number) == files[stream].inode && !known.is_done;
            self.files[stream].iter().position(is_same)
        });
        for ((at, stream), files) in known.iter().zip(Stream::ALL).zip(&mut self.files) {
            if let Some(at) = *at {
                files[at].read(u64::MAX, &mut |bytes| take(stream, bytes));
            }
        }
        let seen = |tap: &Self| [0, 1].map(|stream| known[stream].map_or(0, |at| tap.files[stream][at].seen));
        let is_missing = |tap: &Self| {
            (0..2).any(|stream| {
                known[stream].is_some_and(|at| {
                    let captured = &tap.files[stream][at];
                    captured.file.is_none() && files[stream].size.is_some_and(|size| captured.seen < size)
                })
            })
        };
        // The worker keeps its files for a while.
        while is_missing(self) {
            let before = seen(self);
            let Ok(Some(output)) = self.ask() else { break };
            self.accept(output, take);
            if seen(self) == before {
                break;
            }
        }
        for (stream, at) in known.iter().enumerate() {
            if let Some(at) = *at {
                self.files[stream][at].is_done = true;
            }
            self.finished[stream] = files[stream].inode;
        }
        seen(self)
    }
}

impl Captured {
    /// Passes new bytes on, about `most` of them. Returns whether there were any.
    fn read(&mut self, most: u64, take: &mut dyn FnMut(&[u8])) -> bool {
        let Some(file) = &self.file else { return false };
        let mut buffer = vec![0; CHUNK];
        let before = self.seen;
        while self.seen - before < most {
            match file.read_at(&mut buffer, self.seen) {
                Ok(0) => break,
                Ok(count) => {
                    take(&buffer[..count]);
                    self.seen += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The record has the rest.
                Err(_) => break,
            }
        }
        self.seen > before
    }
}

fn is_large(stream: &StreamOutput) -> bool {
    matches!(stream, StreamOutput::Bytes { bytes, .. } if bytes.len() >= LARGE)
}

/// Adds a file, and forgets those before whose records have come.
fn add(files: &mut Vec<Captured>, file: Captured) {
    files.retain(|known| !known.is_done);
    files.push(file);
}
