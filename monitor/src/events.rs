//! Events from the executor's log: start and end of runs, ready, started and ended tasks.
//!
//! The log is `.dagman.out`, which every planned run has, or else `jobstate.log`. Times in `.dagman.out` are
//! whole seconds; [`crate::resources`] has microseconds.

use std::io;
use std::path::Path;

use monitord_compat::dagman_out_reader::{self, What};
use monitord_compat::log_clock::LogClock;
use monitord_compat::reason::Reason;
use pmc_files::LineReader;

/// Microseconds since the epoch.
pub type Micros = i64;

/// Microseconds in a second.
pub const SECOND: Micros = 1_000_000;

/// An event in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Process of the executor in the next run.
    Process(u32),
    /// A run starts.
    RunStart,
    /// A run ends with this status; 0 if all tasks are done.
    RunEnd(i32),
    /// A task is ready.
    Queued(TaskRef<'a>),
    /// An attempt of a task starts.
    Started(TaskRef<'a>),
    /// The command that makes a sub-workflow has failed with this raw wait status, and so has the attempt.
    Unplanned(TaskRef<'a>, i32),
    /// Why an attempt ends with one of the next events.
    Reason(TaskRef<'a>, Reason),
    /// An attempt ends with this raw wait status.
    Ended(TaskRef<'a>, i32),
    /// An attempt is lost with its worker. Its task will be queued again.
    Lost(TaskRef<'a>),
    /// An attempt is lost with its worker. Its task has failed, because that happened too often.
    Abandoned(TaskRef<'a>),
}

/// A task in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRef<'a> {
    /// Name of the task.
    pub name: &'a [u8],
    /// Submit number of the attempt, unique in its run; 0 if unknown.
    pub submit_number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    DagmanOut,
    JobState,
}

/// The log and the position in it.
#[derive(Debug)]
pub struct EventLog {
    reader: LineReader,
    format: Format,
    clock: LogClock,
    stamp: Stamp,
}

/// Time stamp of the last line. Most lines repeat it.
#[derive(Debug, Default)]
struct Stamp {
    text: Vec<u8>,
    time: Micros,
}

impl EventLog {
    /// Opens the first of the two logs that exists. `None` without a log: nothing has run yet.
    ///
    /// # Errors
    /// A log exists but cannot be read.
    pub fn open(dagman_out: &Path, jobstate: &Path) -> io::Result<Option<Self>> {
        for (path, format) in [(dagman_out, Format::DagmanOut), (jobstate, Format::JobState)] {
            match LineReader::open(path) {
                Ok(reader) => {
                    return Ok(Some(Self {
                        reader,
                        format,
                        clock: LogClock::new(0),
                        stamp: Stamp::default(),
                    }));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Reads new lines and calls `take` for each event.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn read(&mut self, mut take: impl FnMut(Micros, Event<'_>)) -> io::Result<()> {
        let Self {
            reader,
            format,
            clock,
            stamp,
        } = self;
        reader.read(|_, line| {
            let event = match format {
                Format::DagmanOut => dagman_line(line, clock, stamp),
                Format::JobState => jobstate_line(line),
            };
            if let Some((time, event)) = event {
                take(time, event);
            }
        })
    }

    /// Returns whether times are whole seconds.
    #[must_use]
    pub fn has_whole_seconds(&self) -> bool {
        self.format == Format::DagmanOut
    }

    /// Returns whether another file has replaced the log.
    #[must_use]
    pub fn was_replaced(&self) -> bool {
        self.reader.was_replaced()
    }
}

fn dagman_line<'a>(line: &'a [u8], clock: &mut LogClock, stamp: &mut Stamp) -> Option<(Micros, Event<'a>)> {
    /// `MM/DD/YY hh:mm:ss `
    const STAMP_LENGTH: usize = 18;
    let (time, what) = if stamp.text.len() == STAMP_LENGTH
        && let Some(rest) = line.strip_prefix(stamp.text.as_slice())
    {
        // These lines repeat others.
        if rest.starts_with(b"Submitting ") || rest.starts_with(b"Event: ULOG_JOB_TERMINATED") {
            return None;
        }
        (stamp.time, dagman_out_reader::read_rest(rest))
    } else {
        let line = dagman_out_reader::read(line).map(|read| (read, line));
        let (read, line) = line?;
        let time = clock.epoch(read.time).saturating_mul(SECOND);
        stamp.text.clear();
        if let Some(text) = line.get(..STAMP_LENGTH).filter(|text| text.ends_with(b" ")) {
            stamp.text.extend_from_slice(text);
            stamp.time = time;
        }
        (time, read.what)
    };
    let event = match what {
        What::Pid(pid) => Event::Process(pid),
        What::Start => Event::RunStart,
        What::Finish { status } => Event::RunEnd(status),
        What::Event {
            state: b"SUBMIT",
            job,
            number,
        } => Event::Queued(task(job, number)),
        What::Event {
            state: b"EXECUTE",
            job,
            number,
        } => Event::Started(task(job, number)),
        What::Event {
            state: b"JOB_EVICTED",
            job,
            number,
        } => Event::Lost(task(job, number)),
        What::Event {
            state: b"JOB_ABORTED",
            job,
            number,
        } => Event::Abandoned(task(job, number)),
        What::Reason { job, number, reason } => Event::Reason(task(job, number), reason),
        What::Ended { job, number, status } => Event::Ended(task(job, number), status),
        What::ScriptStarted { job } => Event::Queued(task(job, b"")),
        What::ScriptEnded { job, status } if status != 0 => Event::Unplanned(task(job, b""), status),
        What::Event { .. } | What::StartingUp { .. } | What::ScriptEnded { .. } | What::Other => return None,
    };
    Some((time, event))
}

/// Reads the submit number in `17.0`.
fn task<'a>(name: &'a [u8], number: &[u8]) -> TaskRef<'a> {
    let digits = number.split(|byte| *byte == b'.').next().unwrap_or_default();
    let submit_number = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok());
    TaskRef {
        name,
        submit_number: submit_number.unwrap_or(0),
    }
}

/// `1700000000.042000 NAME STATE VALUE SITE WALL NUMBER`
/// Words after the state in a line of `jobstate.log`: a value, site, wall time and number.
const WORDS_AFTER_STATE: usize = 4;

fn jobstate_line(line: &[u8]) -> Option<(Micros, Event<'_>)> {
    let (time, rest) = word(line);
    let time = micros(time)?;
    let (name, rest) = word(rest);
    if name == b"INTERNAL" {
        let (program, rest) = word(rest.strip_prefix(b"*** ")?);
        let event = match program {
            b"PMC_STARTED" | b"DAGMAN_STARTED" => Event::RunStart,
            b"PMC_REASON" => {
                let (name, rest) = word(rest);
                let (number, rest) = word(rest);
                Event::Reason(
                    task(name, number),
                    Reason::decode(std::str::from_utf8(rest).ok()?)?,
                )
            }
            b"PMC_FINISHED" | b"DAGMAN_FINISHED" => Event::RunEnd(number(word(rest).0)?),
            _ => return None,
        };
        return Some((time, event));
    }
    let (state, rest) = word(rest);
    // A line that a full disk has cut off has fewer words.
    if name.is_empty() || rest.iter().filter(|byte| **byte == b' ').count() < WORDS_AFTER_STATE - 1 {
        return None;
    }
    let numbered = task(name, word(rest).0);
    let task = TaskRef {
        submit_number: 0,
        ..numbered
    };
    let event = match state {
        b"SUBMIT" => Event::Queued(numbered),
        b"PRE_SCRIPT_STARTED" => Event::Queued(task),
        b"PRE_SCRIPT_FAILURE" => Event::Unplanned(task, number(word(rest).0).unwrap_or(256)),
        b"EXECUTE" => Event::Started(numbered),
        b"JOB_EVICTED" => Event::Lost(task),
        // The line about the failure follows, and changes nothing.
        b"JOB_ABORTED" => Event::Abandoned(task),
        b"JOB_SUCCESS" => Event::Ended(task, 0),
        b"JOB_FAILURE" => Event::Ended(task, number(word(rest).0).unwrap_or(256)),
        _ => return None,
    };
    Some((time, event))
}

fn number(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads seconds since the epoch with up to six decimals.
pub(crate) fn micros(text: &[u8]) -> Option<Micros> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let digits = |text: &[u8]| {
        (!text.is_empty() && text.len() < 13).then_some(())?;
        text.iter().try_fold(0_i64, |value, byte| {
            byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
        })
    };
    let seconds = digits(parts.next()?)?;
    let fraction = match parts.next() {
        None => 0,
        Some(text) => {
            let text = &text[..text.len().min(6)];
            let scale = 10_i64.pow(6 - u32::try_from(text.len()).ok()?);
            digits(text)? * scale
        }
    };
    Some(seconds * SECOND + fraction)
}

/// Splits a text at its first blank.
#[must_use]
pub(crate) fn word(text: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b' ', text) {
        Some(end) => (&text[..end], text[end + 1..].trim_ascii_start()),
        None => (text, b""),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use monitord_compat::dagman_out;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn jobstate_log() {
        let mut out = Vec::new();
        let at = Duration::new(1_700_000_000, 42_000_000);
        monitord_compat::jobstate_log::start(&mut out, at);
        monitord_compat::jobstate_log::queued(&mut out, at, b"a", 1);
        monitord_compat::jobstate_log::started(&mut out, at, b"a", 1);
        monitord_compat::jobstate_log::ended(&mut out, at, b"a", 1, 768);
        monitord_compat::jobstate_log::ended(&mut out, at, b"b", 2, 0);
        monitord_compat::jobstate_log::preparing(&mut out, at, b"a", 3);
        monitord_compat::jobstate_log::prepared(&mut out, at, b"a", 3, 512);
        monitord_compat::jobstate_log::finish(&mut out, at, false);
        let events: Vec<_> = out
            .split(|byte| *byte == b'\n')
            .filter_map(jobstate_line)
            .collect();
        let task = |name| TaskRef {
            name,
            submit_number: 0,
        };
        let numbered = TaskRef {
            name: b"a",
            submit_number: 1,
        };
        let expected = [
            Event::RunStart,
            Event::Queued(numbered),
            Event::Started(numbered),
            Event::Ended(task(b"a"), 768),
            Event::Ended(task(b"b"), 0),
            Event::Queued(task(b"a")),
            Event::Unplanned(task(b"a"), 512),
            Event::RunEnd(1),
        ];
        assert!(events.iter().all(|(time, _)| *time == 1_700_000_000_042_000));
        assert_eq!(
            events.iter().map(|(_, event)| *event).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn dagman_out_log() {
        let local = at_second(5);
        let mut out = Vec::new();
        dagman_out::start(&mut out, &local, 42, b"x.dag");
        dagman_out::queued(&mut out, &local, b"a", 17);
        dagman_out::started(&mut out, &local, b"a", 17);
        dagman_out::ended(&mut out, &at_second(6), b"a", 17, 9);
        dagman_out::preparing(&mut out, &at_second(6), b"b");
        dagman_out::prepared(&mut out, &at_second(6), b"b", 0);
        dagman_out::prepared(&mut out, &at_second(6), b"b", 256);
        dagman_out::finish(&mut out, &at_second(6), 42, false);
        let (mut clock, mut stamp) = (LogClock::new(0), Stamp::default());
        let events: Vec<_> = out
            .split(|byte| *byte == b'\n')
            .filter_map(|line| dagman_line(line, &mut clock, &mut stamp))
            .collect();
        let task = TaskRef {
            name: b"a",
            submit_number: 17,
        };
        let nested = TaskRef {
            name: b"b",
            submit_number: 0,
        };
        let expected = [
            Event::Process(42),
            Event::RunStart,
            Event::Queued(task),
            Event::Started(task),
            Event::Ended(task, 9),
            Event::Queued(nested),
            Event::Unplanned(nested, 256),
            Event::RunEnd(1),
        ];
        assert_eq!(
            events.iter().map(|(_, event)| *event).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(
            (events[3].0 - events[2].0, events[4].0 - events[3].0),
            (0, SECOND)
        );
    }

    fn at_second(second: u32) -> dagman_out::Stamp {
        let day = chrono::NaiveDate::from_ymd_opt(2026, 3, 4).unwrap();
        dagman_out::Stamp::new(day.and_hms_opt(5, 6, second).unwrap())
    }

    #[test]
    fn times_with_decimals() {
        assert_eq!(micros(b"12"), Some(12_000_000));
        assert_eq!(micros(b"12.5"), Some(12_500_000));
        assert_eq!(micros(b"1.0000019"), Some(1_000_001));
        for bad in ["", ".", "1.", "x", "99999999999999999999", "1.x"] {
            assert_eq!(micros(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(line in "[0-9. A-Z*_a-]{0,60}") {
            let _ = jobstate_line(line.as_bytes());
            let _ = dagman_line(line.as_bytes(), &mut LogClock::new(0), &mut Stamp::default());
        }
    }
}
