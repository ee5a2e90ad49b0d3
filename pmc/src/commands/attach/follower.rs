//! Follows the output of one attempt.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::inotify::WatchDescriptor;
use pmc_control::{Output, StreamOutput};
use pmc_monitor::plan::TaskNumber;

use super::changes::Changes;
use super::format::{Origin, Printer};
use super::lines::{Lines, Tail};
use crate::cli::From;
use crate::commands::log::Stream;
use crate::commands::log::decode::Decoder;
use crate::commands::log::find::{Reader, Unreadable};
use crate::commands::log::tap::Tap;

/// Reads of the files in a turn.
const READS: usize = 16;
/// An answer with this many bytes may not have all that there is.
const LARGE: usize = 256 << 10;
/// An answer that took longer came from a worker that had waited for output.
const LONG_ANSWER: Duration = Duration::from_millis(50);
/// Least time between two requests for an attempt.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// The same if the open file is known: only another program of the task has another file.
const RENEW_INTERVAL: Duration = Duration::from_millis(250);
/// The same if the task seems not to capture its output, or the run does not answer.
const RARE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two requests of this tool: what bounds the work of the run, however many attempts there are.
const PACE: Duration = Duration::from_millis(5);

/// Output of an attempt that goes to a pack at its end.
enum Unpacked {
    /// Kickstart captures it. It writes to the files of the attempt at its end only.
    Captured,
    /// The run has the files of the attempt.
    Own(Box<Tap>),
}

/// An attempt whose output is shown.
pub struct Follower {
    /// Task.
    pub task: TaskNumber,
    /// Index among all attempts of the run.
    pub index: usize,
    /// Number among the attempts of the task, from 0, as far as the log shows it.
    pub number: u32,
    /// Its output, as it is shown.
    pub shown: Shown,
    decoder: Decoder,
    reader: Option<Reader>,
    /// Set while the output is in files without names, on the way to a pack.
    unpacked: Option<Unpacked>,
    /// Bytes of the entry in the pack that were shown before.
    seen: [usize; 2],
    /// All is known that was captured at the start.
    has_answer: bool,
    watches: Vec<WatchDescriptor>,
    watched: HashSet<u64>,
    /// A request is on its way.
    pub is_asked: bool,
    /// The last request was for output of the attempt itself.
    has_asked_own: bool,
    /// Time of the next request.
    pub next_ask: Instant,
}

impl Follower {
    /// An attempt. `from` is where its output begins.
    pub fn new(
        task: TaskNumber,
        index: usize,
        number: u32,
        origin: Origin,
        decoder: Decoder,
        from: From,
    ) -> Self {
        let tails = match from {
            From::Start => None,
            From::Last(lines) => Some([Tail::new(lines), Tail::new(lines)]),
        };
        Self {
            task,
            index,
            number,
            shown: Shown {
                origin,
                lines: [Lines::default(), Lines::default()],
                tails,
            },
            decoder,
            reader: None,
            unpacked: None,
            seen: [0, 0],
            has_answer: false,
            watches: Vec::new(),
            watched: HashSet::new(),
            is_asked: false,
            has_asked_own: false,
            next_ask: Instant::now(),
        }
    }

    /// Takes what reads the files of the attempt, or its entry in a pack.
    pub fn open(&mut self, reader: Reader) {
        self.reader = Some(reader);
        self.unpacked = None;
    }

    /// Takes note that the output goes to a pack at the end. Until then, the run of this DAG has it.
    pub fn begin_unpacked(&mut self, dag: &Path) {
        if self.unpacked.is_none() {
            self.unpacked = Some(match self.decoder.tap().is_captured() {
                true => Unpacked::Captured,
                false => Unpacked::Own(Box::new(Tap::own(dag, self.shown.origin.task.clone()))),
            });
        }
    }

    /// Returns whether the output is on the way to a pack.
    pub fn is_unpacked(&self) -> bool {
        self.unpacked.is_some()
    }

    /// Returns whether the files are known.
    pub fn is_open(&self) -> bool {
        self.reader.is_some()
    }

    /// Returns whether the executor's record has come, after which nothing comes.
    pub fn has_record(&self) -> bool {
        self.decoder.has_record_of(&self.shown.origin.task)
    }

    /// Returns whether the output comes through kickstart, as far as the command shows it.
    pub fn is_captured(&mut self) -> bool {
        self.decoder.tap().is_captured()
    }

    /// Returns whether output comes from the run.
    pub fn is_tapped(&mut self) -> bool {
        matches!(self.unpacked, Some(Unpacked::Own(_))) || self.is_captured()
    }

    /// What reads the output that comes from the run.
    fn tap(&mut self) -> &mut Tap {
        match &mut self.unpacked {
            Some(Unpacked::Own(own)) => own,
            _ => self.decoder.tap(),
        }
    }

    /// Prints what is new, a bounded part of it. Returns whether there was anything.
    pub fn read(&mut self, printer: &mut Printer) -> Result<bool, Unreadable> {
        let Self {
            decoder,
            shown,
            seen,
            unpacked,
            ..
        } = self;
        let mut take = |stream, bytes: &[u8]| shown.take(stream, bytes, printer);
        let mut has_found = decoder.tap().read(&mut take);
        if let Some(Unpacked::Own(own)) = unpacked {
            has_found |= own.read(&mut |stream, bytes| {
                seen[stream as usize] += bytes.len();
                decoder.push(stream, bytes, &mut take);
            });
        }
        if let Some(reader) = &mut self.reader {
            for _ in 0..READS {
                let mut push = |stream, bytes: &[u8]| {
                    let skipped = bytes.len().min(seen[stream as usize]);
                    seen[stream as usize] -= skipped;
                    decoder.push(stream, &bytes[skipped..], &mut take);
                };
                if !reader.read(&mut push)? {
                    break;
                }
                has_found = true;
            }
        }
        if !has_found && self.has_answer {
            self.shown.end_tails(printer);
        }
        Ok(has_found)
    }

    /// Prints what is left when nothing comes any more.
    pub fn finish(&mut self, printer: &mut Printer) -> Result<(), Unreadable> {
        while self.read(printer)? {}
        let Self { decoder, shown, .. } = self;
        decoder.finish(&mut |stream, bytes| shown.take(stream, bytes, printer));
        shown.end_tails(printer);
        for (stream, lines) in Stream::ALL.into_iter().zip(&mut shown.lines) {
            lines.finish(|line, is_part| printer.line(&shown.origin, stream, line, is_part));
        }
        printer.end_of(&shown.origin);
        Ok(())
    }

    /// Returns what to ask the run for.
    pub fn request(&mut self, may_wait: bool) -> pmc_control::TapRequest {
        self.is_asked = true;
        self.has_asked_own = matches!(self.unpacked, Some(Unpacked::Own(_)));
        self.tap().request(may_wait)
    }

    /// Takes the answer of the run: nothing if it refused. `time` is how long it took, `followers` how many
    /// attempts are followed.
    pub fn accept(
        &mut self,
        output: Option<Output>,
        time: Duration,
        followers: usize,
        printer: &mut Printer,
    ) {
        self.is_asked = false;
        let is_small = |stream: &StreamOutput| !matches!(stream, StreamOutput::Bytes { bytes, .. } if bytes.len() >= LARGE);
        self.has_answer |= output
            .as_ref()
            .is_none_or(|output| output.streams.iter().all(is_small));
        let has_new = output.is_some_and(|output| self.take_answer(output, printer));
        let pace = PACE.saturating_mul(u32::try_from(followers).unwrap_or(u32::MAX));
        let is_known = self.tap().growing().next().is_some();
        let wait = if is_known {
            RENEW_INTERVAL.max(pace * 4)
        } else if has_new || time > LONG_ANSWER {
            Duration::ZERO
        } else if self.is_tapped() {
            ASK_INTERVAL.max(pace)
        } else {
            RARE_INTERVAL.max(pace)
        };
        self.next_ask = Instant::now() + wait;
    }

    /// Prints what an answer has brought. Returns whether there was anything.
    fn take_answer(&mut self, output: Output, printer: &mut Printer) -> bool {
        let Self {
            decoder,
            shown,
            seen,
            unpacked,
            ..
        } = self;
        let mut take = |stream, bytes: &[u8]| shown.take(stream, bytes, printer);
        match unpacked {
            Some(Unpacked::Own(own)) => own.accept(output, &mut |stream, bytes| {
                seen[stream as usize] += bytes.len();
                decoder.push(stream, bytes, &mut take);
            }),
            // It came too late: the pack has it.
            _ if self.has_asked_own => false,
            _ => decoder.tap().accept(output, &mut take),
        }
    }

    /// Takes note that the run does not answer.
    pub fn note_failure(&mut self) {
        self.is_asked = false;
        self.has_answer = true;
        self.next_ask = Instant::now() + RARE_INTERVAL;
    }

    /// Watches the open files that capture the output. Returns the new watches.
    pub fn watch_captures(&mut self, changes: &Changes) -> Vec<WatchDescriptor> {
        let number = |file: &File| file.metadata().map_or(0, |data| data.ino());
        let mut new = Vec::new();
        let tap = match &mut self.unpacked {
            Some(Unpacked::Own(own)) => own,
            _ => self.decoder.tap(),
        };
        for file in tap.growing() {
            if self.watched.insert(number(file)) {
                new.extend(changes.watch_open(file));
            }
        }
        self.watches.extend(&new);
        new
    }

    /// Takes note of watches of the files of the attempt.
    pub fn note_watches(&mut self, watches: &[WatchDescriptor]) {
        self.watches.extend(watches);
    }

    /// Its watches.
    pub fn watches(&self) -> &[WatchDescriptor] {
        &self.watches
    }
}

/// Output of an attempt on its way to the terminal.
pub struct Shown {
    /// Where it comes from.
    pub origin: Origin,
    lines: [Lines; 2],
    /// The last lines, until all that was there at the start is read.
    tails: Option<[Tail; 2]>,
}

impl Shown {
    fn take(&mut self, stream: Stream, bytes: &[u8], printer: &mut Printer) {
        if let Some(tails) = &mut self.tails {
            tails[stream as usize].push(bytes);
        } else if printer.has_lines() {
            self.lines[stream as usize].push(bytes, |line, is_part| {
                printer.line(&self.origin, stream, line, is_part)
            });
        } else {
            printer.raw(&self.origin, stream, bytes);
        }
    }

    /// Prints the last lines from before the start. From now on, everything is printed at once.
    fn end_tails(&mut self, printer: &mut Printer) {
        for (stream, tail) in Stream::ALL
            .into_iter()
            .zip(self.tails.take().into_iter().flatten())
        {
            self.take(stream, &tail.finish(), printer);
        }
    }
}
