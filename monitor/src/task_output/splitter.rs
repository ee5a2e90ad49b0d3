//! Takes the standard output of a task apart while it grows.

use monitord_compat::cluster_record_reader::{self as cluster, ClusterTask};
use monitord_compat::record_reader::Record;

const INVOCATION: &[u8] = b"- invocation:";
/// First line of a part that a job script added.
const MULTIPART: &[u8] = b"---------------pegasus-multipart";
const TASK: &[u8] = cluster::TASK.as_bytes();
const MARKERS: [&[u8]; 3] = [INVOCATION, MULTIPART, TASK];

/// Maximum bytes of an invocation record. Kickstart keeps 256 KiB of each stream unless asked for more.
const MAX_RECORD: usize = 64 << 20;
/// Maximum bytes of the executor's record.
const MAX_LINE: usize = 64 << 10;

/// A piece of the file.
#[derive(Debug, PartialEq)]
pub enum Piece<'a> {
    /// What a process printed.
    Text(&'a [u8]),
    /// Kickstart's record of a program, with what it printed.
    Record(Box<Record>),
    /// A record that is too large to be read.
    LargeRecord,
    /// The record of the executor.
    Task(ClusterTask),
}

/// Takes the bytes of a file in any portions. Its memory is bounded: text passes at once, but for the start
/// of what may be a record.
#[derive(Debug)]
pub struct Splitter {
    /// Bytes that have not been passed on.
    buffer: Vec<u8>,
    part: Part,
    /// The buffer begins at the start of a line.
    at_line_start: bool,
    /// Bytes of the buffer whose lines belong to the record.
    scanned: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Text,
    Invocation,
    /// The rest of a record that is too large.
    Dropped,
    Multipart,
}

impl Default for Splitter {
    fn default() -> Self {
        Self {
            buffer: Vec::new(),
            part: Part::Text,
            at_line_start: true,
            scanned: 0,
        }
    }
}

impl Splitter {
    /// Takes the next bytes of the file.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Piece<'_>)) {
        self.buffer.extend_from_slice(bytes);
        while self.step(false, &mut take) {}
    }

    /// Takes the end of the file.
    pub fn finish(mut self, mut take: impl FnMut(Piece<'_>)) {
        while self.step(true, &mut take) {}
    }

    /// Passes a piece on. Returns false if that needs more bytes.
    fn step(&mut self, is_end: bool, take: &mut impl FnMut(Piece<'_>)) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        match self.part {
            Part::Text => self.text(is_end, take),
            Part::Invocation | Part::Dropped => self.record(is_end, take),
            Part::Multipart => self.multipart(is_end),
        }
    }

    fn text(&mut self, is_end: bool, take: &mut impl FnMut(Piece<'_>)) -> bool {
        let found = MARKERS
            .iter()
            .filter_map(|marker| Some((memchr::memmem::find(&self.buffer, marker)?, *marker)));
        let Some((at, marker)) = found.min_by_key(|(at, _)| *at) else {
            let held = if is_end { 0 } else { self.held() };
            self.pass(self.buffer.len() - held, take);
            return false;
        };
        self.pass(at, take);
        if marker == INVOCATION {
            (self.part, self.scanned) = (Part::Invocation, 0);
        } else if marker == MULTIPART && self.at_line_start {
            self.part = Part::Multipart;
        } else if marker == TASK {
            return self.task(is_end, take);
        } else {
            self.pass(marker.len(), take);
        }
        true
    }

    /// The buffer begins like the executor's record.
    fn task(&mut self, is_end: bool, take: &mut impl FnMut(Piece<'_>)) -> bool {
        let end = memchr::memchr(b'\n', &self.buffer);
        if end.is_none() && !is_end && self.buffer.len() < MAX_LINE {
            return false;
        }
        let length = end.map_or(self.buffer.len(), |end| end + 1);
        let line = String::from_utf8_lossy(&self.buffer[..length]);
        match cluster::task(line.trim_end()) {
            Some(task) if task.name.is_some() => {
                take(Piece::Task(task));
                self.buffer.drain(..length);
                self.at_line_start = true;
            }
            // pegasus-cluster prints such records, too: they are output of the task.
            _ => self.pass(TASK.len(), take),
        }
        true
    }

    fn record(&mut self, is_end: bool, take: &mut impl FnMut(Piece<'_>)) -> bool {
        let mut end = self.end_of_record();
        if end.is_none() && is_end {
            // The record may be torn in the middle of its last line.
            let before = &self.buffer[..self.buffer.len() - 1];
            let last = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
            let torn = memchr::memmem::find(&self.buffer[last..], TASK);
            end = Some(torn.map_or(self.buffer.len(), |at| last + at));
        }
        let Some(end) = end else {
            if self.part == Part::Dropped {
                self.buffer.drain(..self.scanned);
                self.scanned = 0;
            } else if self.buffer.len() > MAX_RECORD {
                take(Piece::LargeRecord);
                self.part = Part::Dropped;
                return true;
            }
            return false;
        };
        if self.part == Part::Invocation {
            let (record, _) = Record::read(&String::from_utf8_lossy(&self.buffer[..end]));
            take(Piece::Record(Box::new(record)));
        }
        self.buffer.drain(..end);
        (self.part, self.at_line_start) = (Part::Text, true);
        true
    }

    /// Returns where the first line is that does not belong to the record: all its lines but the first are
    /// indented.
    fn end_of_record(&mut self) -> Option<usize> {
        loop {
            let rest = &self.buffer[self.scanned..];
            let is_first = self.scanned == 0 && self.part == Part::Invocation;
            if !is_first && !matches!(rest.first()?, b' ' | b'\n') {
                return Some(self.scanned);
            }
            self.scanned += memchr::memchr(b'\n', rest)? + 1;
        }
    }

    /// Drops a line of a part that a job script added.
    fn multipart(&mut self, is_end: bool) -> bool {
        let end = memchr::memchr(b'\n', &self.buffer);
        if end.is_none() && !is_end && self.buffer.len() < MAX_LINE {
            return false;
        }
        let is_inside =
            matches!(self.buffer.first(), Some(b' ' | b'-' | b'\n')) && !self.buffer.starts_with(INVOCATION);
        if is_inside {
            self.buffer.drain(..end.map_or(self.buffer.len(), |end| end + 1));
        } else {
            (self.part, self.at_line_start) = (Part::Text, true);
        }
        true
    }

    /// Passes the first bytes of the buffer on as text.
    fn pass(&mut self, length: usize, take: &mut impl FnMut(Piece<'_>)) {
        let Some(last) = length.checked_sub(1).and_then(|last| self.buffer.get(last)) else {
            return;
        };
        self.at_line_start = *last == b'\n';
        take(Piece::Text(&self.buffer[..length]));
        self.buffer.drain(..length);
    }

    /// Returns how many bytes at the end may be the start of a marker.
    fn held(&self) -> usize {
        let starts_marker = |length: &usize| {
            let tail = &self.buffer[self.buffer.len() - length..];
            MARKERS.iter().any(|marker| marker.starts_with(tail))
        };
        let longest = MULTIPART.len().min(self.buffer.len());
        (1..=longest).rev().find(starts_marker).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TASK_LINE: &str = "[cluster-task name=t, start=\"2026-11-21T07:28:44.084+00:00\", duration=0.051, status=0, app=\"x\"]\n";
    const RECORD: &str = "- invocation: True\n  mainjob:\n    status:\n      raw: 0\n  files:\n    stdout:\n      \
                          data: |\n        caught\n";

    /// What a reader sees: text, `<output>` of a record, `!` for the executor's record.
    fn split<'a>(portions: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut shown = Vec::new();
        let mut take = |piece: Piece<'_>| match piece {
            Piece::Text(text) => shown.extend_from_slice(text),
            Piece::Record(record) => {
                shown.extend_from_slice(format!("<{}>", record.stdout.unwrap_or_default()).as_bytes());
            }
            Piece::LargeRecord => shown.push(b'?'),
            Piece::Task(_) => shown.push(b'!'),
        };
        let mut splitter = Splitter::default();
        for portion in portions {
            splitter.push(portion, &mut take);
        }
        splitter.finish(&mut take);
        String::from_utf8_lossy(&shown).into_owned()
    }

    #[test]
    fn records_are_taken_out_of_the_text() {
        let part = format!(
            "{}\n- integrity_summary:\n    failed: 0\n",
            String::from_utf8_lossy(MULTIPART)
        );
        let text = format!("before\nno end{RECORD}{part}{RECORD}after\n  indented\n{TASK_LINE}");
        assert_eq!(
            split([text.as_bytes()]),
            "before\nno end<caught\n><caught\n>after\n  indented\n!"
        );
    }

    #[test]
    fn records_of_other_programs_are_text() {
        let text =
            "[cluster-task id=1, start=\"x\"]\n[cluster-task\n- invo\na ---------------pegasus-multipart\n";
        assert_eq!(split([text.as_bytes()]), text);
    }

    #[test]
    fn a_torn_record_keeps_what_it_has() {
        let torn = &RECORD[..RECORD.len() - 3];
        assert_eq!(split([torn.as_bytes()]), "<caug\n>");
        assert_eq!(split([format!("{torn}{TASK_LINE}").as_bytes()]), "<caug\n>!");
    }

    #[test]
    fn text_does_not_wait_for_the_end_of_its_line() {
        let mut splitter = Splitter::default();
        let mut shown = Vec::new();
        splitter.push(b"progress 10% [cl", |piece| {
            if let Piece::Text(text) = piece {
                shown.extend_from_slice(text);
            }
        });
        assert_eq!(shown, b"progress 10% ");
    }

    proptest! {
        #[test]
        fn portions_make_no_difference(parts in prop::collection::vec(prop_oneof![
            Just(RECORD.to_owned()), Just(TASK_LINE.to_owned()), Just("---------------pegasus-multipart\n- a:\n  b\n".to_owned()),
            "[a -\\[\n]{0,12}", (0..RECORD.len()).prop_map(|end| RECORD[..end].to_owned()),
            (0..TASK_LINE.len()).prop_map(|end| TASK_LINE[..end].to_owned()),
        ], 0..8), size in 1_usize..40) {
            let text = parts.concat();
            prop_assert_eq!(split(text.as_bytes().chunks(size)), split([text.as_bytes()]));
        }
    }
}
