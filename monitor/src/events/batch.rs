//! Events for another thread.

use super::{Event, EventLog, Micros, Name};
use std::io;

/// Events of a log that another thread reads, in little room.
#[derive(Debug, Default)]
pub struct Batch {
    events: Vec<Packed>,
    /// Times of the events for which it is another one than before.
    times: Vec<Micros>,
    /// Hashes of the names, and the names, one behind the other.
    hashes: Vec<(u64, u32)>,
    names: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Packed {
    Time,
    Process(u32),
    RunStart,
    RunEnd(i32),
    Queued(Task),
    Started(Task),
    Ended(Task, i32),
}

#[derive(Clone, Copy, Debug)]
enum Task {
    /// The task that this number was last given with.
    Number(u32),
    /// A name comes with it.
    Named(u32),
}

/// Which names were given with which numbers, so that most events need no name. Whoever takes the events keeps the same list.
#[derive(Debug, Default)]
struct Given {
    hashes: Vec<u64>,
}

impl Given {
    /// Whether this name was given with its number.
    fn is_known(&mut self, name: Name<'_>) -> bool {
        let number = name.number as usize;
        if number > 0 && self.hashes.get(number) == Some(&name.hash) {
            return true;
        }
        if number == self.hashes.len() {
            self.hashes.push(name.hash);
        }
        false
    }

    fn start(&mut self) {
        self.hashes.clear();
        self.hashes.push(0);
    }
}

impl Batch {
    fn push(&mut self, event: Event<'_>, given: &mut Given) {
        let mut keep = |name: Name<'_>| {
            if given.is_known(name) {
                return Task::Number(name.number);
            }
            // Lines are shorter than that.
            let length = u32::try_from(name.name.len()).unwrap_or(0);
            self.hashes.push((name.hash, length));
            self.names.extend_from_slice(name.name);
            Task::Named(name.number)
        };
        let packed = match event {
            Event::Process(process) => Packed::Process(process),
            Event::RunStart => Packed::RunStart,
            Event::RunEnd(status) => Packed::RunEnd(status),
            Event::Queued(name) => Packed::Queued(keep(name)),
            Event::Started(name) => Packed::Started(keep(name)),
            Event::Ended(name, status) => Packed::Ended(keep(name), status),
        };
        if matches!(packed, Packed::RunStart) {
            given.start();
        }
        self.events.push(packed);
    }

    fn clear(&mut self) {
        self.events.clear();
        self.times.clear();
        self.hashes.clear();
        self.names.clear();
    }

    /// Hashes of all names in it.
    pub fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        self.hashes.iter().map(|(hash, _)| *hash)
    }

    /// Gives the events to `take` in their order. A name is empty if it is the same that came with its number before.
    pub fn each(&self, mut take: impl FnMut(Micros, Event<'_>)) {
        let mut rest = self.names.as_slice();
        let mut hashes = self.hashes.iter();
        let mut times = self.times.iter();
        let mut time = 0;
        for packed in &self.events {
            let mut name = |task: Task| match task {
                Task::Number(number) => Name::known(number),
                Task::Named(number) => {
                    let (hash, length) = hashes.next().copied().unwrap_or_default();
                    let (name, others) = rest.split_at_checked(length as usize).unwrap_or((rest, b""));
                    rest = others;
                    Name { name, number, hash }
                }
            };
            let event = match *packed {
                Packed::Time => {
                    time = times.next().copied().unwrap_or(time);
                    continue;
                }
                Packed::Process(process) => Event::Process(process),
                Packed::RunStart => Event::RunStart,
                Packed::RunEnd(status) => Event::RunEnd(status),
                Packed::Queued(task) => Event::Queued(name(task)),
                Packed::Started(task) => Event::Started(name(task)),
                Packed::Ended(task, status) => Event::Ended(name(task), status),
            };
            take(time, event);
        }
    }
}

impl EventLog {
    /// Reads all there is in batches of so many events, for another thread, until `take` wants no more. It gives a
    /// batch to be filled again.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn read_batches(
        &mut self,
        size: usize,
        mut take: impl FnMut(Batch) -> Option<Batch>,
    ) -> io::Result<()> {
        let mut given = Given::default();
        let mut batch = Some(Batch::default());
        let mut last = None;
        self.read(|time, event| {
            let Some(filled) = &mut batch else { return };
            if last != Some(time) {
                last = Some(time);
                filled.times.push(time);
                filled.events.push(Packed::Time);
            }
            filled.push(event, &mut given);
            if filled.events.len() >= size {
                batch = batch.take().and_then(&mut take);
                if let Some(empty) = &mut batch {
                    empty.clear();
                    last = None;
                }
            }
        })?;
        if let Some(batch) = batch.filter(|batch| !batch.events.is_empty()) {
            take(batch);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// What the events say, names put in by those who take them.
    fn told(log: &mut EventLog, size: usize) -> (Vec<String>, usize) {
        let (mut told, mut batches) = (Vec::new(), 0);
        let mut named: Vec<Vec<u8>> = Vec::new();
        let all = log.read_batches(size, |batch| {
            batches += 1;
            batch.each(|time, event| {
                let mut name = |name: Name<'_>| {
                    let number = name.number as usize;
                    let text = match name.name {
                        b"" => named[number].clone(),
                        text => text.to_owned(),
                    };
                    if number == named.len() {
                        named.push(text.clone());
                    }
                    String::from_utf8(text).unwrap()
                };
                told.push(match event {
                    Event::Queued(task) => format!("{time} queued {}", name(task)),
                    Event::Started(task) => format!("{time} started {}", name(task)),
                    Event::Ended(task, status) => format!("{time} ended {} {status}", name(task)),
                    other => format!("{time} {other:?}"),
                });
                if event == Event::RunStart {
                    named.clear();
                    named.push(Vec::new());
                }
            });
            // What is in it is of no interest any more.
            Some(batch)
        });
        all.unwrap();
        (told, batches)
    }

    fn plain(log: &mut EventLog) -> Vec<String> {
        let mut told = Vec::new();
        let name = |name: Name<'_>| String::from_utf8(name.name.to_owned()).unwrap();
        let all = log.read(|time, event| {
            told.push(match event {
                Event::Queued(task) => format!("{time} queued {}", name(task)),
                Event::Started(task) => format!("{time} started {}", name(task)),
                Event::Ended(task, status) => format!("{time} ended {} {status}", name(task)),
                other => format!("{time} {other:?}"),
            });
        });
        all.unwrap();
        told
    }

    #[test]
    fn batches_are_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let (states, dagman) = (dir.path().join("jobstate.log"), dir.path().join("dagman.out"));
        let mut text = String::from("1 INTERNAL *** PMC_STARTED ***\n");
        for number in 0..50 {
            text.push_str(&format!(
                "2 t{number} SUBMIT 1.0 - - 1\n3 t{number} JOB_FAILURE 256 - - 1\n"
            ));
        }
        text.push_str("9 INTERNAL *** PMC_FINISHED 1 ***\n");
        std::fs::write(&states, text).unwrap();
        let mut log = Vec::new();
        for run in 0..2_u32 {
            let second = |second| {
                let day = chrono::NaiveDate::from_ymd_opt(2026, 3, 4 + run).unwrap();
                monitord_compat::dagman_out::Stamp::new(day.and_hms_opt(5, 6, second).unwrap())
            };
            monitord_compat::dagman_out::start(&mut log, &second(1), 42, b"x.dag");
            for number in 1..50_u32 {
                // Other names in the second run; some numbers are given twice, or not in their order.
                let name = format!("t{}", number + run);
                let given = u64::from(if number % 10 == 3 { number - 1 } else { number });
                monitord_compat::dagman_out::queued(&mut log, &second(2), name.as_bytes(), given);
                monitord_compat::dagman_out::started(&mut log, &second(3), name.as_bytes(), given);
                monitord_compat::dagman_out::ended(&mut log, &second(number), name.as_bytes(), given, 1);
            }
            monitord_compat::dagman_out::finish(&mut log, &second(59), 42, false);
        }
        std::fs::write(&dagman, log).unwrap();
        let none = dir.path().join("none");
        let open = |dagman: &Path| EventLog::open(dagman, &states).unwrap().unwrap();
        for (log, events) in [(&none, 102), (&dagman, 2 * 150)] {
            for size in [1, 50, 1000] {
                let (told, batches) = told(&mut open(log), size);
                assert_eq!(told, plain(&mut open(log)));
                assert!(told.len() == events && batches >= events / size, "{}", told.len());
            }
        }
    }
}
