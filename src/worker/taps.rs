//! Answers tools that read output of running tasks which is in files without names: in portions, one for
//! each request, so a slow tool costs no memory.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use pmc_control::Position;

use super::captures;
use super::kill::KillSwitch;
use crate::protocol::{Chunk, SubmitId, Tap, Tapped};

/// Maximum bytes of a stream in an answer.
const MAX_CHUNK: usize = 512 << 10;
/// Time after which a request is answered if nothing has come.
const PATIENCE: Duration = Duration::from_millis(500);
/// Interval between looks for the file of another program of the same task.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Time after an answer with output in which the tool may ask again.
const BUSY: Duration = Duration::from_millis(20);
/// Time for which a file is kept that no tool reads.
const KEEP: Duration = Duration::from_secs(60);
/// Maximum files that are kept.
const MAX_HELD: usize = 64;

/// Requests that wait for output, and the files that tools read.
#[derive(Debug, Default)]
pub(super) struct Taps {
    waiting: Vec<Waiting>,
    held: Vec<Held>,
    /// The attempt whose files were looked for, and when.
    looked: Option<(Of, Instant)>,
    busy_until: Option<Instant>,
}

/// An attempt, and whether its own streams are meant.
type Of = (SubmitId, bool);

fn of(tap: &Tap) -> Of {
    (tap.submit, tap.is_own)
}

#[derive(Debug)]
struct Waiting {
    tap: Tap,
    until: Instant,
    next_look: Instant,
}

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

impl Taps {
    /// Returns whether there is nothing to do.
    pub(super) fn are_idle(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty()
    }

    /// Returns whether a tool may ask again soon.
    pub(super) fn are_busy(&self) -> bool {
        self.busy_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns whether a tool waits for an answer.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes a request.
    pub(super) fn begin(&mut self, tap: Tap) {
        let now = Instant::now();
        let until = if tap.may_wait { now + PATIENCE } else { now };
        self.waiting.push(Waiting {
            tap,
            until,
            next_look: now,
        });
    }

    /// Returns the answers that are due.
    pub(super) fn answers(&mut self, kill: &KillSwitch) -> Vec<Tapped> {
        let now = Instant::now();
        let mut answers = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|waiting| {
            let mut chunks = self.read(&waiting.tap, now);
            let mut is_running = true;
            let is_awaited = chunks.iter().all(is_empty) && waiting.next_look <= now;
            // Also while there is something to read: a tool that is behind must not miss the next file.
            if is_awaited || self.is_look_due(of(&waiting.tap), now) {
                waiting.next_look = now + LOOK_INTERVAL;
                is_running = self.look(&waiting.tap, kill, now);
                chunks = self.read(&waiting.tap, now);
            }
            let has_output = !chunks.iter().all(is_empty);
            let is_due = has_output || !is_running || waiting.until <= now;
            if has_output {
                self.busy_until = Some(now + BUSY);
            }
            if is_due {
                let number = waiting.tap.number;
                answers.push(Tapped { number, chunks });
            }
            !is_due
        });
        self.waiting = waiting;
        self.held.retain(|held| now.duration_since(held.used) < KEEP);
        answers
    }

    fn is_look_due(&self, of: Of, now: Instant) -> bool {
        self.looked
            .is_none_or(|(looked, at)| looked != of || now >= at + LOOK_INTERVAL)
    }

    /// Opens the files that capture the output of the attempt now. Returns whether it runs.
    fn look(&mut self, tap: &Tap, kill: &KillSwitch, now: Instant) -> bool {
        self.looked = Some((of(tap), now));
        let Some(captures) = kill.captures(tap.submit, tap.is_own) else {
            return false;
        };
        for (stream, file) in captures.into_iter().enumerate() {
            let Some(file) = file else { continue };
            let number = captures::number(&file);
            if self.find(of(tap), stream, number).is_none() && self.held.len() < MAX_HELD {
                self.held.push(Held {
                    of: of(tap),
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
    fn read(&mut self, tap: &Tap, now: Instant) -> [Chunk; 2] {
        [0, 1].map(|stream| {
            let after = tap.after[stream];
            let current = self.find(of(tap), stream, after.file);
            // Files come in the order in which they are opened.
            let next = current.map_or(0, |at| at + 1);
            let is_later = |held: &Held| (held.of, held.stream) == (of(tap), stream);
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

    fn tap(after: Position) -> Tap {
        Tap {
            number: 1,
            submit: SubmitId(3),
            after: [after, Position::default()],
            is_own: false,
            may_wait: true,
        }
    }

    fn hold(taps: &mut Taps, number: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        taps.held.push(Held {
            of: (SubmitId(3), false),
            stream: 0,
            number,
            file: file.try_clone().unwrap(),
            used: Instant::now(),
        });
        file
    }

    /// Answers one request and returns position and text.
    fn ask(taps: &mut Taps, after: Position) -> (Position, String) {
        taps.begin(tap(after));
        let [answer] = taps.answers(&KillSwitch::new()).try_into().unwrap();
        let [out, err] = answer.chunks;
        assert_eq!(err, Chunk::default());
        (out.position, String::from_utf8(out.bytes).unwrap())
    }

    #[test]
    fn the_files_of_a_task_are_read_one_after_the_other() {
        let at = |file, offset| Position { file, offset };
        let mut taps = Taps::default();
        assert!(taps.are_idle());
        let mut first = hold(&mut taps, 7);
        first.write_all(b"abc").unwrap();
        assert_eq!(ask(&mut taps, Position::default()), (at(7, 0), "abc".into()));
        assert_eq!(ask(&mut taps, at(7, 1)), (at(7, 1), "bc".into()));
        // The attempt has ended: nothing comes.
        assert_eq!(ask(&mut taps, at(7, 3)), (Position::default(), String::new()));
        let mut second = hold(&mut taps, 5);
        second.write_all(b"d").unwrap();
        assert_eq!(ask(&mut taps, at(7, 3)), (at(5, 0), "d".into()));
        first.write_all(b"e").unwrap();
        assert_eq!(ask(&mut taps, at(7, 3)), (at(7, 3), "e".into()));
    }

    #[test]
    fn an_answer_is_bounded() {
        let mut taps = Taps::default();
        hold(&mut taps, 7).set_len(1 << 40).unwrap();
        assert_eq!(ask(&mut taps, Position::default()).1.len(), MAX_CHUNK);
    }
}
