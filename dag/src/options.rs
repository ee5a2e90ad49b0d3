//! Options of a TASK line, between the name and the program.

use crate::dag::Forward;
use crate::error::DagErrorKind;
use crate::number;
use crate::text::lossy;
use crate::words::Words;

/// What the options of one task ask for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Options {
    pub(crate) memory_mb: u32,
    pub(crate) cpus: u32,
    pub(crate) tries: Option<u32>,
    pub(crate) priority: i64,
    // Boxed, because few tasks have any.
    pub(crate) forwards: Option<Box<Forwards>>,
}

/// Files that a task writes into through the master, sorted by variable or source name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Forwards {
    pub(crate) pipes: Vec<Forward>,
    pub(crate) files: Vec<Forward>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_mb: 0,
            cpus: 1,
            tries: None,
            priority: 0,
            forwards: None,
        }
    }
}

const PIPE: (&str, &str) = ("-f/--pipe-forward", "VAR=PATH");
const FILE: (&str, &str) = ("-F/--file-forward", "SRC=DEST");

/// Reads options from the front of `rest`, the part of a TASK line after the name.
///
/// Gives the options and the command: the remainder from the first word on that does not begin
/// with `-`, as it was written.
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
            b"-t" | b"--tries" => {
                let value = value("-t/--tries", "N")?;
                let tries = number::integer(&value).ok_or_else(|| invalid("tries", &value, name))?;
                if tries < 0 {
                    return Err(DagErrorKind::Negative {
                        what: "tries",
                        task: lossy(name),
                    });
                }
                options.tries = Some(u32::try_from(tries).map_err(|_| invalid("tries", &value, name))?);
            }
            b"-p" | b"--priority" => {
                let value = value("-p/--priority", "N")?;
                options.priority =
                    number::integer(&value).ok_or_else(|| invalid("priority", &value, name))?;
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

/// Memory in MB or a number of CPUs: single precision, rounded up. The limit of 32 bits is ours;
/// beyond it the original's conversion is undefined.
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

/// Splits at the first `=`; of several with the same left side the last one counts.
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
