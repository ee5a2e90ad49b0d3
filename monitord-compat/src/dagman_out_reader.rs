//! Reads lines of `.dagman.out`: those of [`crate::dagman_out`], and the same ones of HTCondor's DAGMan.
//!
//! A line begins with a time: `M/D/YY h:mm:ss` in the local zone, or ISO 8601. Pegasus' reader takes the last
//! time anywhere in a line, so a task whose name looks like a time moves its own events. This reader looks at
//! the beginning only.

use chrono::{DateTime, NaiveDate, NaiveDateTime};

use crate::reason::Reason;

/// Beginning of a line with the reason of an end, after its time.
const REASON: &[u8] = b"Reason for Node ";

/// Time of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Time in the zone of the machine that wrote the log.
    Local(NaiveDateTime),
    /// Seconds since the epoch.
    Epoch(i64),
}

/// A line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Time.
    pub time: Time,
    /// Content.
    pub what: What<'a>,
}

/// Content of a line. Names are any bytes without a blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// The master starts.
    StartingUp {
        /// Its HTCondor id, `0.0` without HTCondor.
        id: &'a [u8],
    },
    /// Process id of the master.
    Pid(u32),
    /// A run begins.
    Start,
    /// A run ends.
    Finish {
        /// 0 or 1; HTCondor has other values.
        status: i32,
    },
    /// A new state of a job, its end excepted.
    Event {
        /// Name of the state without `ULOG_`, for instance `SUBMIT`.
        state: &'a [u8],
        /// Job.
        job: &'a [u8],
        /// HTCondor id of the attempt, for instance `17.0`.
        number: &'a [u8],
    },
    /// A job ended.
    Ended {
        /// Job.
        job: &'a [u8],
        /// HTCondor id of the attempt, for instance `17.0`.
        number: &'a [u8],
        /// 0 for success. pegasus-mpi-cluster writes raw wait statuses.
        status: i32,
    },
    /// The PRE script of a job begins: of a nested sub-workflow, the command that plans it.
    ScriptStarted {
        /// Job.
        job: &'a [u8],
    },
    /// The PRE script of a job has ended.
    ScriptEnded {
        /// Job.
        job: &'a [u8],
        /// 0 for success. pegasus-mpi-cluster writes raw wait statuses.
        status: i32,
    },
    /// Why the attempt of a job ends with one of the next lines.
    Reason {
        /// Job.
        job: &'a [u8],
        /// HTCondor id of the attempt, for instance `17.0`.
        number: &'a [u8],
        /// The reason.
        reason: Reason,
    },
    /// A line without a meaning for monitoring.
    Other,
}

/// Reads one line, with or without its line feed. `None` if it does not begin with a time.
#[must_use]
pub fn read(line: &[u8]) -> Option<Line<'_>> {
    let line = line.trim_ascii_end();
    let (time, rest) = american(line).or_else(|| iso(line))?;
    let what = content(rest).unwrap_or(What::Other);
    Some(Line { time, what })
}

/// Reads the rest of a line after its time and a blank.
#[must_use]
pub fn read_rest(text: &[u8]) -> What<'_> {
    content(text.trim_ascii_end()).unwrap_or(What::Other)
}

/// Reads a number of one or two digits.
fn short_number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text
        .iter()
        .take(2)
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let value = number(text.get(..digits)?)?;
    Some((u32::try_from(value).ok()?, &text[digits..]))
}

fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_i64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Reads `M/D/YY h:mm:ss` and a blank.
fn american(line: &[u8]) -> Option<(Time, &[u8])> {
    let (month, rest) = short_number(line)?;
    let (day, rest) = short_number(rest.strip_prefix(b"/")?)?;
    let rest = rest.strip_prefix(b"/")?;
    let digits = rest
        .iter()
        .take(4)
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let mut year = i32::try_from(number(&rest[..digits])?).ok()?;
    if digits <= 2 {
        year += 2000;
    }
    let (hour, rest) = short_number(rest[digits..].strip_prefix(b" ")?)?;
    let (minute, rest) = short_number(rest.strip_prefix(b":")?)?;
    let (second, rest) = short_number(rest.strip_prefix(b":")?)?;
    let time = NaiveDate::from_ymd_opt(year, month, day)?.and_hms_opt(hour, minute, second)?;
    Some((Time::Local(time), rest.strip_prefix(b" ").unwrap_or(rest)))
}

/// Reads ISO 8601, with or without a zone.
fn iso(line: &[u8]) -> Option<(Time, &[u8])> {
    let length = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    let (stamp, rest) = line.split_at(length);
    let stamp = std::str::from_utf8(stamp).ok()?;
    let time = match DateTime::parse_from_rfc3339(stamp) {
        Ok(time) => Time::Epoch(time.timestamp()),
        Err(_) => match DateTime::parse_from_str(stamp, "%Y-%m-%dT%H:%M:%S%.f%z") {
            Ok(time) => Time::Epoch(time.timestamp()),
            Err(_) => Time::Local(NaiveDateTime::parse_from_str(stamp, "%Y-%m-%dT%H:%M:%S%.f").ok()?),
        },
    };
    Some((time, rest.strip_prefix(b" ").unwrap_or(rest)))
}

fn content(text: &[u8]) -> Option<What<'_>> {
    match text.first()? {
        b'E' => event(text),
        b'N' => ended(text),
        b'P' => match text.strip_prefix(b"Parsing ") {
            Some(_) => Some(What::Start),
            None => script_ended(text),
        },
        b'R' if text.starts_with(REASON) => reason(text),
        b'R' => {
            let job = text.strip_prefix(b"Running PRE script of Node ")?;
            let job = job.strip_suffix(b"...").filter(|job| !job.is_empty())?;
            Some(What::ScriptStarted { job })
        }
        b'*' => master(text),
        _ => None,
    }
}

/// Reads `Event: ULOG_SUBMIT for Condor Node x (3.0)`.
fn event(text: &[u8]) -> Option<What<'_>> {
    let (state, rest) = word(text.strip_prefix(b"Event: ULOG_")?);
    let rest = node(rest.strip_prefix(b"for ")?)?;
    let (job, rest) = word(rest);
    let number = rest.strip_prefix(b"(")?;
    let end = number.iter().position(|byte| *byte == b')')?;
    let is_complete = !state.is_empty() && !job.is_empty();
    is_complete.then_some(What::Event {
        state,
        job,
        number: &number[..end],
    })
}

/// Reads `Condor Node ` in the spellings of all versions.
fn node(text: &[u8]) -> Option<&[u8]> {
    let rest = text
        .strip_prefix(b"HT")
        .unwrap_or(text)
        .strip_prefix(b"Condor ")?;
    rest.strip_prefix(b"Node ").or_else(|| rest.strip_prefix(b"Job "))
}

/// Reads `Node x job proc (3.0) completed successfully.` or `… failed with status 256.`.
fn ended(text: &[u8]) -> Option<What<'_>> {
    let (job, rest) = word(text.strip_prefix(b"Node ")?);
    let rest = rest.strip_prefix(b"job proc (")?;
    let end = rest.iter().position(|byte| *byte == b')')?;
    let (number, rest) = (&rest[..end], rest[end + 1..].strip_prefix(b" ")?);
    let status = status(rest)?;
    (!job.is_empty()).then_some(What::Ended { job, number, status })
}

/// Reads `Reason for Node x (3.0): time_limit 1000`.
fn reason(text: &[u8]) -> Option<What<'_>> {
    let (job, rest) = word(text.strip_prefix(REASON)?);
    let rest = rest.strip_prefix(b"(")?;
    let end = memchr::memmem::find(rest, b"): ")?;
    let reason = Reason::decode(std::str::from_utf8(&rest[end + 3..]).ok()?)?;
    (!job.is_empty()).then_some(What::Reason {
        job,
        number: &rest[..end],
        reason,
    })
}

/// Reads `PRE Script of Node x completed successfully.` or `… failed with status 256.`.
fn script_ended(text: &[u8]) -> Option<What<'_>> {
    let (job, rest) = word(text.strip_prefix(b"PRE Script of Node ")?);
    let status = status(rest)?;
    (!job.is_empty()).then_some(What::ScriptEnded { job, status })
}

/// Reads `completed successfully.` or `failed with status 256.`.
fn status(text: &[u8]) -> Option<i32> {
    if text.starts_with(b"completed successfully.") {
        return Some(0);
    }
    let rest = text.strip_prefix(b"failed with ")?;
    let rest = rest
        .strip_prefix(b"status ")
        .or_else(|| rest.strip_prefix(b"signal "))?;
    signed(rest.strip_suffix(b".")?)
}

fn master(text: &[u8]) -> Option<What<'_>> {
    let text = text.trim_ascii_start().strip_prefix(b"**")?;
    let text = text.strip_prefix(b"**").unwrap_or(text).strip_prefix(b" ")?;
    if let Some(pid) = text.strip_prefix(b"PID = ") {
        return Some(What::Pid(u32::try_from(number(pid)?).ok()?));
    }
    let (program, rest) = word(text.strip_prefix(b"condor_scheduniv_exec.")?);
    if rest.ends_with(b"(CONDOR_DAGMAN) STARTING UP") {
        return Some(What::StartingUp { id: program });
    }
    rest.strip_prefix(b"(condor_DAGMAN) ")?;
    const MARK: &[u8] = b" EXITING WITH STATUS ";
    let at = memchr::memmem::find(rest, MARK)?;
    let status = signed(&rest[at + MARK.len()..])?;
    Some(What::Finish { status })
}

fn signed(text: &[u8]) -> Option<i32> {
    let value = match text.strip_prefix(b"-") {
        Some(digits) => -number(digits)?,
        None => number(text)?,
    };
    i32::try_from(value).ok()
}

/// Splits a text at the first blank.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b' ') {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, b""),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dagman_out::{self, Stamp};

    fn what(line: &str) -> Option<What<'_>> {
        read(line.as_bytes()).map(|line| line.what)
    }

    #[test]
    fn lines_of_the_writer_are_read() {
        let local = NaiveDate::from_ymd_opt(2026, 3, 4)
            .unwrap()
            .and_hms_opt(5, 6, 7)
            .unwrap();
        let stamp = Stamp::new(local);
        let mut out = Vec::new();
        dagman_out::start(&mut out, &stamp, 42, b"x.dag");
        dagman_out::queued(&mut out, &stamp, b"a", 1);
        dagman_out::started(&mut out, &stamp, b"a", 1);
        dagman_out::ended(&mut out, &stamp, b"a", 1, 0);
        let reason = Reason::TimeLimit {
            limit: std::time::Duration::from_secs(1),
        };
        dagman_out::reason(&mut out, &stamp, b"b", 20, reason);
        dagman_out::ended(&mut out, &stamp, b"b", 20, 768);
        dagman_out::preparing(&mut out, &stamp, b"c");
        dagman_out::prepared(&mut out, &stamp, b"c", 0);
        dagman_out::prepared(&mut out, &stamp, b"c", 256);
        dagman_out::finish(&mut out, &stamp, 42, false);
        let event = |state, job, number| What::Event { state, job, number };
        let expected = [
            What::Other,
            What::StartingUp { id: b"0.0" },
            What::Pid(42),
            What::Start,
            What::Other,
            event(b"SUBMIT", b"a", b"1.0"),
            event(b"EXECUTE", b"a", b"1.0"),
            event(b"JOB_TERMINATED", b"a", b"1.0"),
            What::Ended {
                job: b"a",
                number: b"1.0",
                status: 0,
            },
            What::Reason {
                job: b"b",
                number: b"20.0",
                reason,
            },
            event(b"JOB_TERMINATED", b"b", b"20.0"),
            What::Ended {
                job: b"b",
                number: b"20.0",
                status: 768,
            },
            What::ScriptStarted { job: b"c" },
            What::ScriptEnded { job: b"c", status: 0 },
            What::ScriptEnded {
                job: b"c",
                status: 256,
            },
            What::Finish { status: 1 },
        ];
        let lines: Vec<_> = out
            .split_inclusive(|byte| *byte == b'\n')
            .map(|line| read(line).unwrap())
            .collect();
        assert!(lines.iter().all(|line| line.time == Time::Local(local)));
        assert_eq!(lines.iter().map(|line| line.what).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn spellings_of_other_versions_are_read() {
        let event = Some(What::Event {
            state: b"SUBMIT",
            job: b"x",
            number: b"3.0.0",
        });
        assert_eq!(
            what("1/2/26 3:04:05 Event: ULOG_SUBMIT for HTCondor Node x (3.0.0) {x}"),
            event
        );
        assert_eq!(
            what("2026-01-02T03:04:05+01:00 Event: ULOG_SUBMIT for Condor Job x (3.0.0)"),
            event
        );
        let signal = Some(What::Ended {
            job: b"x",
            number: b"3.0.0",
            status: 9,
        });
        assert_eq!(
            what("01/02/26 03:04:05 Node x job proc (3.0.0) failed with signal 9."),
            signal
        );
    }

    #[test]
    fn a_line_begins_with_a_time() {
        let time = |line: &str| read(line.as_bytes()).map(|line| line.time);
        assert_eq!(
            time("2026-01-02T03:04:05.9+01:00 x"),
            Some(Time::Epoch(1_767_319_445))
        );
        let local = NaiveDate::from_ymd_opt(2026, 1, 2).unwrap().and_hms_opt(3, 4, 5);
        assert_eq!(time("1/2/26 3:04:05 x"), local.map(Time::Local));
        assert_eq!(time("2026-01-02T03:04:05 x"), local.map(Time::Local));
        for bad in [
            "",
            "13/01/26 00:00:00 x",
            "01/02/26 25:00:00 x",
            "hello 01/02/26 03:04:05 x",
            "1/2",
        ] {
            assert_eq!(time(bad), None, "{bad}");
        }
        // A task with a name like a time has the time of its line.
        assert_eq!(
            time("1/2/26 3:04:05 Node 12/31/30 23:59:59 job proc (1.0) failed with status 1."),
            local.map(Time::Local)
        );
    }

    #[test]
    fn a_torn_end_is_ignored() {
        for torn in [
            "failed with status 25",
            "failed with status .",
            "completed success",
        ] {
            assert_eq!(
                what(&format!("1/2/26 3:04:05 Node x job proc (3.0) {torn}")),
                Some(What::Other)
            );
        }
    }

    proptest! {
        #[test]
        fn never_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&line);
        }

        #[test]
        fn never_panics_near_the_format(
            stamp in prop_oneof![Just("11/21/26 07:28:43 "), Just("2026-11-21T07:28:43 ")],
            text in "(\\*{0,5}|Event: ULOG_|Node |Running PRE script of Node |PRE Script of Node | for |Condor |x|\\(|\\)|condor_scheduniv_exec\\.|job proc | failed with status |-|[0-9]{0,30}|\\.| ){0,9}",
        ) {
            let line = format!("{stamp}{text}");
            prop_assert!(read(line.as_bytes()).is_some());
        }
    }
}
