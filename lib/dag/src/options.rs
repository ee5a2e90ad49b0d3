//! Options of a TASK line, between the name and the program.

use std::time::Duration;

use crate::error::DagErrorKind;
use crate::number;
use crate::text::lossy;
use crate::words::Words;

/// Resources that a task requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// GPUs.
    pub gpus: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MB; 0 if not requested.
    pub memory_mb: u64,
}

/// Variable and path of a `-f VAR=PATH`, or source and destination of a `-F SRC=DEST`.
pub type Forward = (Vec<u8>, Vec<u8>);

/// Options of a task, in one cache line, because each task may have its own set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub(crate) struct Options {
    pub(crate) memory_mb: u32,
    pub(crate) cpus: u32,
    pub(crate) gpus: u32,
    pub(crate) tries: Option<u32>,
    pub(crate) priority: i64,
    pub(crate) runtime_limit: Option<Duration>,
    // Boxed, because few tasks forward data.
    pub(crate) forwards: Option<Box<Forwards>>,
}

/// Forwards of a task, sorted by variable or source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Forwards {
    pub(crate) pipes: Vec<Forward>,
    pub(crate) files: Vec<Forward>,
}

impl Options {
    pub(crate) fn request(&self) -> Request {
        Request {
            gpus: self.gpus,
            cpus: self.cpus,
            memory_mb: u64::from(self.memory_mb),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_mb: 0,
            cpus: 1,
            gpus: 0,
            tries: None,
            priority: 0,
            runtime_limit: None,
            forwards: None,
        }
    }
}

const PIPE: (&str, &str) = ("-f/--pipe-forward", "VAR=PATH");
const FILE: (&str, &str) = ("-F/--file-forward", "SRC=DEST");

/// Parses the options at the start of `rest`, the part of a TASK line after the name.
///
/// Returns the options and the command: the unchanged rest from the first word that does not begin with `-`.
pub(crate) fn parse<'a>(name: &[u8], rest: &'a [u8]) -> Result<(Options, &'a [u8]), DagErrorKind> {
    let mut options = Options::default();
    let mut words = Words::new(rest);
    loop {
        let command = words.rest();
        let Some(word) = words.next() else {
            return Err(DagErrorKind::MissingProgram(lossy(name)));
        };
        if word.first() != Some(&b'-') {
            return Ok((options, command));
        }
        let mut value = |option, what| {
            words.next().ok_or_else(|| DagErrorKind::MissingValue {
                option,
                what,
                task: lossy(name),
            })
        };
        match &*word {
            b"-m" | b"--request-memory" => {
                let value = value("-m/--request-memory", "N")?;
                options.memory_mb = request("memory requirement", &value, name)?;
            }
            b"-c" | b"--request-cpus" => {
                let value = value("-c/--request-cpus", "N")?;
                options.cpus = request("CPU requirement", &value, name)?;
            }
            b"-g" | b"--request-gpus" => {
                let value = value("-g/--request-gpus", "N")?;
                options.gpus = request("GPU requirement", &value, name)?;
            }
            b"-t" | b"--tries" => {
                let value = value("-t/--tries", "N")?;
                let tries = number::integer(&value).ok_or_else(|| invalid("tries", &value, name))?;
                if tries < 0 {
                    return Err(DagErrorKind::Negative {
                        what: "tries",
                        task: lossy(name),
                    });
                }
                options.tries = Some(u32::try_from(tries).unwrap_or(u32::MAX));
            }
            b"-p" | b"--priority" => {
                let value = value("-p/--priority", "N")?;
                options.priority =
                    number::integer(&value).ok_or_else(|| invalid("priority", &value, name))?;
            }
            b"-T" | b"--runtime-limit" => {
                let value = value("-T/--runtime-limit", "SECONDS")?;
                options.runtime_limit = Some(seconds("runtime limit", &value, name)?);
            }
            b"-f" | b"--pipe-forward" => {
                let value = value(PIPE.0, PIPE.1)?;
                add(
                    &mut options.forwards.get_or_insert_default().pipes,
                    PIPE,
                    &value,
                    name,
                )?;
            }
            b"-F" | b"--file-forward" => {
                let value = value(FILE.0, FILE.1)?;
                add(
                    &mut options.forwards.get_or_insert_default().files,
                    FILE,
                    &value,
                    name,
                )?;
            }
            _ => {
                return Err(DagErrorKind::Argument {
                    argument: lossy(&word),
                    task: lossy(name),
                });
            }
        }
    }
}

fn invalid(what: &'static str, value: &[u8], name: &[u8]) -> DagErrorKind {
    DagErrorKind::Value {
        what,
        value: lossy(value),
        task: lossy(name),
    }
}

/// Parses memory in MB or a number of CPUs or GPUs: in single precision, rounded up, at most 32 bits. Beyond
/// that, the original's conversion is undefined.
fn request(what: &'static str, value: &[u8], name: &[u8]) -> Result<u32, DagErrorKind> {
    let number = number::float(value).ok_or_else(|| invalid(what, value, name))?;
    if number < 0.0 {
        return Err(DagErrorKind::Negative {
            what,
            task: lossy(name),
        });
    }
    let number = f64::from(number).ceil();
    if number > f64::from(u32::MAX) {
        return Err(invalid(what, value, name));
    }
    Ok(number as u32)
}

/// Parses a time in seconds, rounded to milliseconds.
fn seconds(what: &'static str, value: &[u8], name: &[u8]) -> Result<Duration, DagErrorKind> {
    let number = number::float(value).ok_or_else(|| invalid(what, value, name))?;
    if number < 0.0 {
        return Err(DagErrorKind::Negative {
            what,
            task: lossy(name),
        });
    }
    let milliseconds = (f64::from(number) * 1000.0).round();
    if milliseconds > f64::from(u32::MAX) * 1000.0 {
        return Err(invalid(what, value, name));
    }
    // Zero means no limit, so a tiny limit must not become zero.
    let min = u64::from(number > 0.0);
    Ok(Duration::from_millis((milliseconds as u64).max(min)))
}

/// Adds a forward, split at the first `=`. The last of several with the same key wins.
fn add(
    forwards: &mut Vec<Forward>,
    (option, format): (&'static str, &'static str),
    value: &[u8],
    name: &[u8],
) -> Result<(), DagErrorKind> {
    let Some(equals) = value.iter().position(|b| *b == b'=') else {
        return Err(DagErrorKind::Forward {
            option,
            format,
            task: lossy(name),
            value: lossy(value),
        });
    };
    let (key, path) = (value[..equals].to_vec(), value[equals + 1..].to_vec());
    match forwards.binary_search_by(|(other, _)| other.cmp(&key)) {
        Ok(at) => forwards[at].1 = path,
        Err(at) => forwards.insert(at, (key, path)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_limits_are_parsed() {
        let limit = |rest: &str| {
            let parsed = parse(b"t", rest.as_bytes());
            parsed
                .map(|(options, _)| options.runtime_limit)
                .map_err(|error| error.to_string())
        };
        assert_eq!(limit("x"), Ok(None));
        assert_eq!(limit("-T 90 x"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(
            limit("--runtime-limit 0.5s x"),
            Ok(Some(Duration::from_millis(500)))
        );
        assert_eq!(limit("-T 0.2 x"), Ok(Some(Duration::from_millis(200))));
        assert_eq!(limit("-T 1e-9 x"), Ok(Some(Duration::from_millis(1))));
        assert_eq!(limit("-T 0 x"), Ok(Some(Duration::ZERO)));
        for (rest, message) in [
            ("-T", "-T/--runtime-limit requires SECONDS for task t"),
            ("-T soon x", "Invalid runtime limit 'soon' for task t"),
            ("-T 1e30 x", "Invalid runtime limit '1e30' for task t"),
            ("-T -1 x", "Negative runtime limit not allowed for task t"),
        ] {
            assert_eq!(limit(rest), Err(message.to_owned()));
        }
    }
}
