//! The open files that hold output of running tasks and have no names: what tools read of them, in portions,
//! one for each request, so a slow tool costs no memory.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

use pmc_control::Position;

use super::AttemptHandle;
use crate::protocol::{Chunk, SubmitId};

/// Maximum bytes of a stream in an answer.
const MAX_CHUNK: usize = 512 << 10;
/// Interval between looks for the file of another program of the same task.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which a file is kept that no tool reads.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum files that are kept.
const MAX_FILES: usize = 64;

/// The files that tools read.
#[derive(Debug, Default)]
pub(super) struct ReadFiles {
    held: Vec<Held>,
    /// The attempt whose files were looked for, and when.
    looked: Option<(Of, Instant)>,
}

/// An attempt, and whether its own streams are meant.
pub(super) type Of = (SubmitId, bool);

/// A file that captures a stream. It stays readable after its program has ended.
#[derive(Debug)]
struct Held {
    of: Of,
    /// 0 for standard output, 1 for standard error.
    stream: usize,
    number: u64,
    file: File,
    used: Instant,
}

impl ReadFiles {
    /// Returns whether no file is kept.
    pub(super) fn are_none(&self) -> bool {
        self.held.is_empty()
    }

    /// Closes the files that no tool has read for a while.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.held
            .retain(|held| now.duration_since(held.used) < UNREAD_TIMEOUT);
    }

    /// Returns what comes after the positions that a tool has, and whether more may come. `next_look` is when
    /// the request looks for more files.
    pub(super) fn next(
        &mut self,
        of: Of,
        after: [Position; 2],
        next_look: &mut Instant,
        attempt: &dyn AttemptHandle,
        now: Instant,
    ) -> ([Chunk; 2], bool) {
        let chunks = self.read(of, after, now);
        let is_awaited = chunks.iter().all(is_empty) && *next_look <= now;
        // Also while there is something to read: a tool that is behind must not miss the next file.
        if !is_awaited && !self.is_look_due(of, now) {
            return (chunks, true);
        }
        *next_look = now + LOOK_INTERVAL;
        let is_running = self.look(of, attempt, now);
        (self.read(of, after, now), is_running)
    }

    fn is_look_due(&self, of: Of, now: Instant) -> bool {
        self.looked
            .is_none_or(|(looked, at)| looked != of || now >= at + LOOK_INTERVAL)
    }

    /// Opens the files that capture the output of the attempt now. Returns whether it runs.
    fn look(&mut self, of: Of, attempt: &dyn AttemptHandle, now: Instant) -> bool {
        self.looked = Some((of, now));
        let Some(captures) = attempt.captures(of.0, of.1) else {
            return false;
        };
        for (stream, file) in captures.into_iter().enumerate() {
            let Some(file) = file else { continue };
            let number = file.metadata().map_or(0, |data| data.ino());
            if self.find(of, stream, number).is_none() && self.held.len() < MAX_FILES {
                self.held.push(Held {
                    of,
                    stream,
                    number,
                    file,
                    used: now,
                });
            }
        }
        true
    }

    fn find(&self, of: Of, stream: usize, number: u64) -> Option<usize> {
        self.held
            .iter()
            .position(|held| (held.of, held.stream, held.number) == (of, stream, number))
    }

    /// Reads what comes after the positions of a request: the rest of the file, or the next one.
    fn read(&mut self, of: Of, after: [Position; 2], now: Instant) -> [Chunk; 2] {
        [0, 1].map(|stream| {
            let after = after[stream];
            let current = self.find(of, stream, after.file);
            // Files come in the order in which they are opened.
            let next = current.map_or(0, |at| at + 1);
            let is_later = |held: &Held| (held.of, held.stream) == (of, stream);
            let later = (next..self.held.len()).find(|at| is_later(&self.held[*at]));
            let chunk = current
                .map(|at| self.chunk(at, after.offset, now))
                .filter(|chunk| !is_empty(chunk));
            match (chunk, later) {
                (Some(chunk), _) => chunk,
                (None, Some(later)) => self.chunk(later, 0, now),
                (None, None) => Chunk::default(),
            }
        })
    }

    fn chunk(&mut self, at: usize, offset: u64, now: Instant) -> Chunk {
        let held = &mut self.held[at];
        held.used = now;
        let size = held.file.metadata().map_or(0, |data| data.len());
        let left = size.saturating_sub(offset).min(MAX_CHUNK as u64);
        let mut bytes = vec![0; usize::try_from(left).unwrap_or(MAX_CHUNK)];
        // What cannot be read is in the record.
        let count = held.file.read_at(&mut bytes, offset).unwrap_or(0);
        bytes.truncate(count);
        let file = held.number;
        Chunk {
            position: Position { file, offset },
            bytes,
        }
    }
}

fn is_empty(chunk: &Chunk) -> bool {
    chunk.bytes.is_empty()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::protocol::{Captures, RedirectAnswer, WriteAnswer};
    use crate::relay::Relay;

    /// No attempt runs.
    struct NoAttempt;

    impl AttemptHandle for NoAttempt {
        fn notify(&self, _: SubmitId, _: i32) {}

        fn signal(&self, _: SubmitId, _: i32) {}

        fn captures(&self, _: SubmitId, _: bool) -> Option<Captures> {
            None
        }

        fn leader(&self, _: SubmitId) -> Option<nix::unistd::Pid> {
            None
        }

        fn write(&self, _: SubmitId, _: &[u8], _: bool) -> WriteAnswer {
            WriteAnswer::Ended
        }

        fn relay(&self, _: SubmitId) -> Result<Relay, RedirectAnswer> {
            Err(RedirectAnswer::NotRunning)
        }
    }

    fn hold(files: &mut ReadFiles, number: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        files.held.push(Held {
            of: (SubmitId(3), false),
            stream: 0,
            number,
            file: file.try_clone().unwrap(),
            used: Instant::now(),
        });
        file
    }

    /// Reads once and returns position and text.
    fn read(files: &mut ReadFiles, after: Position) -> (Position, String) {
        let now = Instant::now();
        let of = (SubmitId(3), false);
        let ([out, err], _) = files.next(
            of,
            [after, Position::default()],
            &mut now.clone(),
            &NoAttempt,
            now,
        );
        assert_eq!(err, Chunk::default());
        (out.position, String::from_utf8(out.bytes).unwrap())
    }

    #[test]
    fn the_files_of_a_task_are_read_one_after_the_other() {
        let at = |file, offset| Position { file, offset };
        let mut files = ReadFiles::default();
        assert!(files.are_none());
        let mut first = hold(&mut files, 7);
        first.write_all(b"abc").unwrap();
        assert_eq!(read(&mut files, Position::default()), (at(7, 0), "abc".into()));
        assert_eq!(read(&mut files, at(7, 1)), (at(7, 1), "bc".into()));
        // The attempt has ended: nothing comes.
        assert_eq!(read(&mut files, at(7, 3)), (Position::default(), String::new()));
        let mut second = hold(&mut files, 5);
        second.write_all(b"d").unwrap();
        assert_eq!(read(&mut files, at(7, 3)), (at(5, 0), "d".into()));
        first.write_all(b"e").unwrap();
        assert_eq!(read(&mut files, at(7, 3)), (at(7, 3), "e".into()));
    }

    #[test]
    fn an_answer_is_bounded() {
        let mut files = ReadFiles::default();
        hold(&mut files, 7).set_len(1 << 40).unwrap();
        assert_eq!(read(&mut files, Position::default()).1.len(), MAX_CHUNK);
    }
}
