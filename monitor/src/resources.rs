//! Use of hosts, from the executor's `.resource` log of free resources.
//!
//! The executor writes a line for each host when a run starts, then a line for each start and end of a task,
//! in the order of its main log. So the n-th change in the main log belongs to the n-th line here, which has
//! the host and the time in microseconds. Each pair is checked: a start takes a slot of the host, an end
//! frees one. An attempt that is lost with its worker ends, too. Lines with signs are no changes: they say
//! what came to a host or left it, with workers that came or went. Neither are lines with `=`: they say what
//! is free on the other hosts of a task that has several.

mod parts;

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use pmc_files::LineReader;
use rustc_hash::FxHashMap;

use crate::events::{Micros, SECOND, micros};

/// Index of a host in [`Hosts::all`].
pub type HostNumber = u16;

/// Unknown host.
pub const NO_HOST: HostNumber = HostNumber::MAX;

/// Free resources or capacity of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Slots.
    pub slots: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MB.
    pub memory_mb: u64,
}

/// A host and its use over all runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Name.
    pub name: String,
    /// Capacity in its latest run.
    pub capacity: Amount,
    /// Free resources.
    pub free: Amount,
    /// Seconds in which it took part.
    pub seconds: f64,
    /// Slots in use × seconds.
    pub slot_seconds: f64,
    /// CPUs in use × seconds.
    pub cpu_seconds: f64,
    /// Memory in use in MB × seconds.
    pub memory_seconds: f64,
    /// Available slots × seconds.
    pub slot_seconds_there: f64,
    /// Available CPUs × seconds.
    pub cpu_seconds_there: f64,
    /// Available memory in MB × seconds.
    pub memory_seconds_there: f64,
    /// Peak of slots in use.
    pub peak_slots: u32,
    /// Peak of CPUs in use.
    pub peak_cpus: u32,
    /// Peak of memory in use, in MB.
    pub peak_memory_mb: u64,
    /// Number of started attempts.
    pub started: u64,
    /// Time of the last line.
    last: Micros,
    /// It has a line in the current run.
    present: bool,
}

/// A host comes, or gets more slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The host.
    pub host: HostNumber,
    /// When.
    pub time: Micros,
    /// The slots that it has then.
    pub slots: u32,
}

/// A change in the main log, to be matched with a line of this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A run starts.
    Run {
        /// Start of the run.
        start: Micros,
        /// End or last event of the run before.
        before: Option<Micros>,
    },
    /// The attempt with this index starts.
    Start(u32),
    /// The attempt with this index ends.
    End(u32),
}

/// A change in the queue. Kept small: there are millions.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    Run,
    Start(u32),
    End(u32),
}

/// A matched change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Index of the attempt.
    pub attempt: u32,
    /// True for a start, false for an end.
    pub start: bool,
    /// Host.
    pub host: HostNumber,
    /// Time.
    pub time: Micros,
}

/// All hosts, and the position in the log.
#[derive(Debug, Default)]
pub struct Hosts {
    hosts: Vec<Host>,
    known: FxHashMap<Vec<u8>, HostNumber>,
    arrivals: Vec<Arrival>,
    reader: Option<LineReader>,
    /// Changes without a line.
    changes: VecDeque<Awaited>,
    /// Start of each run among them, and end of the run before.
    runs: VecDeque<(Micros, Option<Micros>)>,
    /// New runs: start in the main log and in this log.
    run_starts: Vec<(Micros, Micros)>,
    /// Lines without a change.
    lines: VecDeque<(Micros, HostNumber, Line)>,
    /// The two logs of this run do not match.
    mismatch: bool,
    /// Only use is counted, without changes of the main log.
    without_attempts: bool,
}

impl Hosts {
    /// Counts the use of hosts only. The only changes it needs are [`Change::Run`].
    #[must_use]
    pub fn without_attempts() -> Self {
        Self {
            without_attempts: true,
            ..Self::default()
        }
    }

    /// All hosts, in the order of their first lines.
    #[must_use]
    pub fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns when hosts have come, in the order of the log: in each run again.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// Returns all hosts with their use up to a time, such as the end of the run.
    #[must_use]
    pub fn used_until(&self, time: Micros) -> Vec<Host> {
        let mut hosts = self.hosts.clone();
        for host in hosts.iter_mut().filter(|host| host.present) {
            host.account(time, host.free);
        }
        hosts
    }

    /// Name of a host.
    #[must_use]
    pub fn name(&self, host: HostNumber) -> Option<&str> {
        self.hosts.get(usize::from(host)).map(|host| host.name.as_str())
    }

    /// Adds a change of the main log.
    pub fn expect(&mut self, change: Change) {
        self.changes.push_back(match change {
            Change::Run { start, before } => {
                self.runs.push_back((start, before));
                Awaited::Run
            }
            Change::Start(number) => Awaited::Start(number),
            Change::End(number) => Awaited::End(number),
        });
    }

    /// Takes the starts of new runs: time in the main log, and time in this log with fractions of seconds.
    pub fn take_run_starts(&mut self) -> Vec<(Micros, Micros)> {
        std::mem::take(&mut self.run_starts)
    }

    /// Reads new lines and calls `take` for each matched change.
    ///
    /// # Errors
    /// The log exists but cannot be read.
    pub fn read(&mut self, path: &Path, mut take: impl FnMut(Found)) -> io::Result<()> {
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => match LineReader::open(path) {
                Ok(reader) => reader,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // Either there will be none, or the next run creates it.
                    self.changes.clear();
                    self.runs.clear();
                    self.mismatch = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        while let Some((time, host, free)) = self.lines.pop_front() {
            if !self.line(time, host, free, &mut take) {
                self.lines.push_front((time, host, free));
                break;
            }
        }
        let result = reader.read(|_, line| {
            let Some((time, sign, free, name)) = parse(line) else {
                return;
            };
            let Some(host) = self.host(name) else { return };
            let free = match sign {
                Sign::None => Line::Free(free),
                Sign::Plus => Line::Came(free),
                Sign::Minus => Line::Left(free),
                Sign::Equals => Line::Beside(free),
            };
            if !self.lines.is_empty() || !self.line(time, host, free, &mut take) {
                self.lines.push_back((time, host, free));
            }
        });
        self.reader = Some(reader);
        result
    }

    fn host(&mut self, name: &[u8]) -> Option<HostNumber> {
        if let Some(&number) = self.known.get(name) {
            return Some(number);
        }
        let number = HostNumber::try_from(self.hosts.len())
            .ok()
            .filter(|n| *n != NO_HOST)?;
        self.hosts.push(Host {
            name: String::from_utf8_lossy(name).into_owned(),
            ..Host::default()
        });
        self.known.insert(name.to_owned(), number);
        Some(number)
    }

    /// Handles a line. Returns false if its change is not known yet.
    fn line(&mut self, time: Micros, number: HostNumber, line: Line, take: &mut impl FnMut(Found)) -> bool {
        // A run never starts in the second in which another ended.
        while let Some(&(start, before)) = self.runs.front().filter(|(start, _)| *start <= time) {
            self.runs.pop_front();
            self.run_starts.push((start, time));
            while !matches!(self.changes.pop_front(), None | Some(Awaited::Run)) {}
            for host in self.hosts.iter_mut().filter(|host| host.present) {
                host.account(before.unwrap_or(host.last), host.free);
                host.present = false;
            }
            self.mismatch = false;
        }
        let host = &mut self.hosts[usize::from(number)];
        let free = match line {
            Line::Free(free) => free,
            Line::Came(amount) => {
                host.resize(time, amount, u32::saturating_add, u64::saturating_add);
                self.arrivals.push(host.arrival(number, time));
                return true;
            }
            Line::Left(amount) => {
                host.resize(time, amount, u32::saturating_sub, u64::saturating_sub);
                return true;
            }
            Line::Beside(free) => {
                // A line before the first one of its host says nothing of its capacity.
                if host.present {
                    host.account(time, free);
                }
                return true;
            }
        };
        if !host.present {
            host.present = true;
            host.capacity = free;
            host.free = free;
            host.last = time;
            self.arrivals.push(host.arrival(number, time));
            return true;
        }
        let start = if free.slots.checked_add(1) == Some(host.free.slots) {
            true
        } else if host.free.slots.checked_add(1) == Some(free.slots) {
            false
        } else {
            self.mismatch = true;
            host.account(time, free);
            return true;
        };
        if !self.mismatch && !self.without_attempts {
            let found = match (self.changes.front(), start) {
                (None, _) => return false,
                (Some(Awaited::Start(attempt)), true) | (Some(Awaited::End(attempt)), false) => Found {
                    attempt: *attempt,
                    start,
                    host: number,
                    time,
                },
                // The main log ends earlier, or one of them has lost lines.
                (Some(_), _) => {
                    self.mismatch = true;
                    host.account(time, free);
                    return true;
                }
            };
            self.changes.pop_front();
            take(found);
        }
        let host = &mut self.hosts[usize::from(number)];
        host.started += u64::from(start);
        host.account(time, free);
        true
    }
}

impl Host {
    fn arrival(&self, host: HostNumber, time: Micros) -> Arrival {
        Arrival {
            host,
            time,
            slots: self.capacity.slots,
        }
    }

    /// Changes the capacity, and what is free of it.
    fn resize(&mut self, time: Micros, by: Amount, small: fn(u32, u32) -> u32, large: fn(u64, u64) -> u64) {
        if self.present {
            self.account(time, self.free);
        } else {
            // Its first line in this run is lost.
            (self.present, self.last) = (true, time);
            (self.capacity, self.free) = (Amount::default(), Amount::default());
        }
        for amount in [&mut self.capacity, &mut self.free] {
            amount.slots = small(amount.slots, by.slots);
            amount.cpus = small(amount.cpus, by.cpus);
            amount.memory_mb = large(amount.memory_mb, by.memory_mb);
        }
    }

    /// Adds the use since the last line.
    fn account(&mut self, time: Micros, free: Amount) {
        let seconds = time.saturating_sub(self.last).max(0) as f64 / SECOND as f64;
        let used = |all: u64, free: u64| all.saturating_sub(free) as f64;
        let (slots, cpus) = (u64::from(self.capacity.slots), u64::from(self.capacity.cpus));
        if slots > 0 {
            // Without workers, it takes no part.
            self.seconds += seconds;
        }
        self.slot_seconds += seconds * used(slots, u64::from(self.free.slots));
        self.cpu_seconds += seconds * used(cpus, u64::from(self.free.cpus));
        self.memory_seconds += seconds * used(self.capacity.memory_mb, self.free.memory_mb);
        self.slot_seconds_there += seconds * slots as f64;
        self.cpu_seconds_there += seconds * cpus as f64;
        self.memory_seconds_there += seconds * self.capacity.memory_mb as f64;
        self.free = free;
        self.last = self.last.max(time);
        let capacity = self.capacity;
        self.peak_slots = self.peak_slots.max(capacity.slots.saturating_sub(free.slots));
        self.peak_cpus = self.peak_cpus.max(capacity.cpus.saturating_sub(free.cpus));
        self.peak_memory_mb = self
            .peak_memory_mb
            .max(capacity.memory_mb.saturating_sub(free.memory_mb));
    }
}

/// What a line is about.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// Free resources.
    Free(Amount),
    /// Resources that came.
    Came(Amount),
    /// Resources that left.
    Left(Amount),
    /// Free resources where no task has started or ended.
    Beside(Amount),
}

/// The sign of the numbers in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    None,
    Plus,
    Minus,
    Equals,
}

/// Reads `1700000000.500000,2,16,24104,host`, or the same with a sign before each amount.
fn parse(line: &[u8]) -> Option<(Micros, Sign, Amount, &[u8])> {
    let mut parts = line.splitn(5, |byte| *byte == b',').peekable();
    let time = micros(parts.next()?)?;
    let sign = match parts.peek()?.first() {
        Some(b'+') => Sign::Plus,
        Some(b'-') => Sign::Minus,
        Some(b'=') => Sign::Equals,
        _ => Sign::None,
    };
    let mut number = || {
        let text = parts.next()?;
        let text = match sign {
            Sign::None => text,
            Sign::Plus => text.strip_prefix(b"+")?,
            Sign::Minus => text.strip_prefix(b"-")?,
            Sign::Equals => text.strip_prefix(b"=")?,
        };
        let text = Some(text).filter(|text| (1..19).contains(&text.len()))?;
        text.iter().try_fold(0_u64, |value, byte| {
            byte.is_ascii_digit().then(|| value * 10 + u64::from(byte - b'0'))
        })
    };
    let free = Amount {
        slots: u32::try_from(number()?).ok()?,
        cpus: u32::try_from(number()?).ok()?,
        memory_mb: number()?,
    };
    let host = parts.next()?.trim_ascii_end();
    (!host.is_empty()).then_some((time, sign, free, host))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(start: i64, before: Option<i64>) -> Change {
        Change::Run {
            start: start * SECOND,
            before: before.map(|before| before * SECOND),
        }
    }

    fn read(hosts: &mut Hosts, text: &str) -> Vec<Found> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut found = Vec::new();
        hosts.read(file.path(), |change| found.push(change)).unwrap();
        found
    }

    #[test]
    fn lines_give_hosts_and_times() {
        let mut hosts = Hosts::default();
        let run = run(100, None);
        for change in [run, Change::Start(0), Change::Start(1), Change::End(0)] {
            hosts.expect(change);
        }
        let text = "100.2,2,4,100,a\n100.2,1,4,100,b\n100.3,1,2,50,a\n100.4,0,3,100,b\n102.3,2,4,100,a\n";
        let found = read(&mut hosts, text);
        let at = |found: &Found| (found.attempt, found.start, hosts.name(found.host), found.time);
        assert_eq!(at(&found[0]), (0, true, Some("a"), 100_300_000));
        assert_eq!(at(&found[1]), (1, true, Some("b"), 100_400_000));
        assert_eq!(at(&found[2]), (0, false, Some("a"), 102_300_000));
        let a = &hosts.all()[0];
        assert!(
            (a.seconds - 2.1).abs() < 1e-6 && (a.slot_seconds - 2.0).abs() < 1e-6,
            "{a:?}"
        );
        assert!((a.cpu_seconds - 4.0).abs() < 1e-6 && (a.memory_seconds - 100.0).abs() < 1e-6);
        assert_eq!((a.peak_slots, a.peak_cpus, a.started), (1, 2, 1));
    }

    #[test]
    fn a_run_after_a_killed_run_is_matched() {
        let mut hosts = Hosts::default();
        // The log of the first run lacks the end that the other has.
        for change in [
            run(100, None),
            Change::Start(0),
            Change::Start(1),
            run(200, Some(110)),
            Change::Start(2),
        ] {
            hosts.expect(change);
        }
        let text = "100.2,2,4,100,a\n100.3,1,4,100,a\n200.1,2,4,100,a\n200.5,1,4,100,a\n";
        let found = read(&mut hosts, text);
        assert_eq!(found.iter().map(|f| f.attempt).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn workers_come_and_go() {
        let mut hosts = Hosts::default();
        // Attempt 0 is lost with its worker, which is an end.
        for change in [
            run(100, None),
            Change::Start(0),
            Change::Start(1),
            Change::End(0),
            Change::End(1),
        ] {
            hosts.expect(change);
        }
        let text = "100.0,1,4,100,a\n101.0,+1,+0,+0,a\n102.0,1,3,100,a\n102.0,1,8,200,b\n102.5,0,7,200,b\n\
                    104.0,2,4,100,a\n104.0,-1,-0,-0,a\n105.0,-1,-4,-100,a\n107.0,1,8,200,b\n";
        let found = read(&mut hosts, text);
        let at = |found: &Found| (found.attempt, found.start, hosts.name(found.host));
        let expected = [
            (0, true, Some("a")),
            (1, true, Some("b")),
            (0, false, Some("a")),
            (1, false, Some("b")),
        ];
        assert_eq!(found.iter().map(at).collect::<Vec<_>>(), expected);
        let a = &hosts.used_until(200 * SECOND)[0];
        assert!(
            (a.seconds - 5.0).abs() < 1e-6,
            "its workers were there until 105: {a:?}"
        );
        assert!((a.slot_seconds_there - 8.0).abs() < 1e-6 && (a.slot_seconds - 2.0).abs() < 1e-6);
        assert_eq!((a.capacity, a.free), (Amount::default(), Amount::default()));
    }

    #[test]
    fn the_other_hosts_of_a_task_are_in_use_without_a_change() {
        let mut hosts = Hosts::default();
        for change in [
            run(100, None),
            Change::Start(0),
            Change::Start(1),
            Change::End(0),
            Change::End(1),
        ] {
            hosts.expect(change);
        }
        // Attempt 0 has a and b. Attempt 1 starts on b beside it.
        let text = "100.0,2,4,100,a\n100.0,2,4,100,b\n101.0,=1,=2,=50,a\n101.0,=1,=2,=50,b\n102.5,=2,=2,=50,a\n\
                    102.5,1,2,50,a\n103.0,0,1,50,b\n104.0,2,4,100,a\n104.5,=1,=3,=100,b\n105.0,2,4,100,b\n";
        let found = read(&mut hosts, text);
        let at = |found: &Found| (found.attempt, found.start, hosts.name(found.host));
        let expected = [
            (0, true, Some("a")),
            (1, true, Some("b")),
            (0, false, Some("a")),
            (1, false, Some("b")),
        ];
        assert_eq!(found.iter().map(at).collect::<Vec<_>>(), expected);
        let b = &hosts.all()[1];
        assert!((b.slot_seconds - (2.0 + 2.0 * 1.5 + 0.5)).abs() < 1e-6, "{b:?}");
        assert_eq!(b.started, 1);
    }

    #[test]
    fn lines_are_kept_until_their_changes_come() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "100.2,2,4,100,a\n100.3,1,4,100,a\n").unwrap();
        let mut hosts = Hosts::default();
        hosts.expect(run(100, None));
        let mut found = Vec::new();
        hosts.read(file.path(), |change| found.push(change)).unwrap();
        assert_eq!(found, []);
        hosts.expect(Change::Start(7));
        hosts.read(file.path(), |change| found.push(change)).unwrap();
        assert_eq!(found.len(), 1);
    }

    proptest! {
        #[test]
        fn never_panics(text in "([0-9]{1,3},[+=-]?[0-3],[+=-]?[0-3],[+=-]?[0-9],[ab]\n|[0-9,.a\n]{0,9}){0,20}", runs in 0..3_i64) {
            let mut hosts = Hosts::default();
            for run in 0..runs {
                hosts.expect(super::tests::run(run * 300, None));
                hosts.expect(Change::Start(0));
                hosts.expect(Change::End(0));
            }
            let _ = read(&mut hosts, &text);
        }
    }
}
