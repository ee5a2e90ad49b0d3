//! Options of a TASK line, between the name and the program.

mod values;

use std::borrow::Cow;
use std::time::Duration;

use crate::checkpoint::{Checkpoint, CheckpointSignal, checkpoint_exit};
use crate::error::DagErrorKind;
use crate::gang::{Gang, GangId, GangOptions};
use crate::number;
use crate::retry_delay::RetryDelay;
use crate::text::lossy;
use crate::words::Words;
use values::{abort_on, add, count, exit_code, invalid, message, request, seconds, tries};

/// Resources that a task requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// It needs no directory in common with the master: what it reads beside the DAG file is sent to it, and
    /// what it writes there is sent back.
    pub anywhere: bool,
    /// GPUs.
    pub gpus: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MB; 0 if not requested.
    pub memory_mb: u64,
}

/// Variable and path of a `-f VAR=PATH`, or source and destination of a `-F SRC=DEST`.
pub type Forward = (Vec<u8>, Vec<u8>);

/// `--abort-on CODE[=RETURN]`: the end of a task that ends the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AbortOn {
    /// Exit code of the task, or the negative number of the signal that ended it.
    pub code: i16,
    /// Exit code of the run.
    pub exit: u8,
}

impl AbortOn {
    /// Returns whether an attempt with this raw wait status ends the run.
    #[must_use]
    pub fn applies_to(self, status: i32) -> bool {
        is_code(self.code, status)
    }
}

/// Returns whether a raw wait status is that of this exit code, or of the signal with this negative number.
pub(crate) fn is_code(code: i16, status: i32) -> bool {
    let signal = status & 0x7f;
    let found = if signal == 0 { status >> 8 & 0xff } else { -signal };
    i32::from(code) == found
}

/// `--stdin push|FILE`: where the standard input of a task comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stdin {
    /// From tools that push it while the task runs.
    Push,
    /// From a file.
    File(Vec<u8>),
}

/// Name in MAXJOBS that stands for all tasks.
pub(crate) const ALL_TASKS: &[u8] = b"*";

/// Number of a category whose running tasks are limited, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CategoryId(pub u32);

impl CategoryId {
    /// Returns the number as an index into arrays over all categories.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the scheduler must know of tasks with the same options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OptionSet {
    /// Resources that each requests.
    pub request: Request,
    /// Category, if the number of its running tasks is limited.
    pub category: Option<CategoryId>,
    /// Priority; larger values first.
    pub priority: i64,
    /// Its ranks and hosts, if it may have several. Then the request is that of a rank.
    pub gang: Option<GangId>,
}

/// Options of a task, in one cache line, because each task may have its own set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub(crate) struct Options {
    pub(crate) memory_mb: u32,
    pub(crate) cpus: u32,
    pub(crate) gpus: u32,
    /// [`Request::anywhere`].
    pub(crate) anywhere: bool,
    pub(crate) tries: Option<u32>,
    pub(crate) priority: i64,
    pub(crate) runtime_limit: Option<Duration>,
    /// Category, once the whole file is read.
    pub(crate) category: Option<CategoryId>,
    pub(crate) rare: Option<Box<RareOptions>>,
}

/// Options that few tasks have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RareOptions {
    /// Sorted by variable.
    pub(crate) pipes: Vec<Forward>,
    /// Sorted by source.
    pub(crate) files: Vec<Forward>,
    pub(crate) abort_on: Option<AbortOn>,
    /// `--unless-exit CODE`: no attempt follows one that ended so.
    pub(crate) unless_exit: Option<i16>,
    /// `--checkpoint-signal`, `--checkpoint-exit`.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// `-e/--expected-time SECONDS`.
    pub(crate) expected_time: Option<Duration>,
    /// Name of the category; empty for none.
    pub(crate) category: Vec<u8>,
    /// Percent of its memory that the task requests after an attempt that ran out of memory.
    pub(crate) more_memory: Option<u32>,
    /// `--retry-delay SECONDS[,FACTOR[,MAX]]`.
    pub(crate) retry_delay: Option<RetryDelay>,
    /// `--request-expression REQUEST=EXPRESSION`, sorted by request.
    pub(crate) request_expressions: Vec<Forward>,
    /// `--expression-value NAME=VALUE`, sorted by name.
    pub(crate) expression_values: Vec<Forward>,
    pub(crate) stdin: Option<Stdin>,
    /// `--io relay`.
    pub(crate) relay: bool,
    /// Texts in the output that make the task fail.
    pub(crate) failure_messages: Vec<Vec<u8>>,
    /// Texts without which the task has failed.
    pub(crate) success_messages: Vec<Vec<u8>>,
    /// `-N`, `--ranks`, `--ranks-per-node`, `--exclusive`, `--on`.
    pub(crate) gang: GangOptions,
    /// What these ask for, once the whole file is read.
    pub(crate) gang_id: Option<GangId>,
}

impl Options {
    /// Returns whether standard input comes from a file.
    fn reads_file(&self) -> bool {
        let stdin = self.rare.as_ref().and_then(|rare| rare.stdin.as_ref());
        matches!(stdin, Some(Stdin::File(_)))
    }

    /// Returns what the task needs, if it may have several hosts.
    pub(crate) fn gang(&self, name: &[u8]) -> Result<Option<Gang>, DagErrorKind> {
        let gang = self.rare.as_ref().map_or(Ok(None), |rare| rare.gang.gang());
        gang.map_err(|why| DagErrorKind::Gang {
            task: lossy(name),
            why,
        })
    }

    pub(crate) fn request(&self) -> Request {
        Request {
            anywhere: self.anywhere,
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
            anywhere: false,
            tries: None,
            priority: 0,
            runtime_limit: None,
            category: None,
            rare: None,
        }
    }
}

const PIPE: (&str, &str) = ("-f/--pipe-forward", "VAR=PATH");
const FILE: (&str, &str) = ("-F/--file-forward", "SRC=DEST");
const EXPRESSION: (&str, &str) = ("--request-expression", "REQUEST=EXPRESSION");
const EXPRESSION_VALUE: (&str, &str) = ("--expression-value", "NAME=VALUE");

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
            let is_gang = options.gang(name)?.is_some();
            let is_lite = !is_gang && pmc_calls::is_lite(&word, words.clone());
            options.anywhere = is_lite && !options.reads_file();
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
                options.tries = Some(tries(&value("-t/--tries", "N")?, name)?);
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
                let rare = options.rare.get_or_insert_default();
                add(&mut rare.pipes, PIPE, &value, name)?;
            }
            b"-F" | b"--file-forward" => {
                let value = value(FILE.0, FILE.1)?;
                let rare = options.rare.get_or_insert_default();
                add(&mut rare.files, FILE, &value, name)?;
            }
            option => {
                let rare = options.rare.get_or_insert_default();
                if !parse_rare(option, rare, name, &mut value)? {
                    return Err(DagErrorKind::Argument {
                        argument: lossy(option),
                        task: lossy(name),
                    });
                }
            }
        }
    }
}

/// Parses one of the options that few tasks have. `value` returns the next word, the value of an option with
/// this name. Returns false if there is no such option.
fn parse_rare<'a>(
    option: &[u8],
    rare: &mut RareOptions,
    name: &[u8],
    value: &mut dyn FnMut(&'static str, &'static str) -> Result<Cow<'a, [u8]>, DagErrorKind>,
) -> Result<bool, DagErrorKind> {
    match option {
        b"--abort-on" => {
            let value = value("--abort-on", "CODE[=RETURN]")?;
            let abort_on = abort_on(&value).ok_or_else(|| invalid("abort code", &value, name))?;
            rare.abort_on = Some(abort_on);
        }
        b"--unless-exit" => {
            let value = value("--unless-exit", "CODE")?;
            let code = exit_code(&value).ok_or_else(|| invalid("exit code", &value, name))?;
            rare.unless_exit = Some(code);
        }
        b"--checkpoint-signal" => {
            let value = value("--checkpoint-signal", "SIG[@SECONDS]")?;
            let signal = std::str::from_utf8(&value).ok().and_then(CheckpointSignal::parse);
            let signal = signal.ok_or_else(|| invalid("checkpoint signal", &value, name))?;
            rare.checkpoint.get_or_insert_default().signal = Some(signal);
        }
        b"--checkpoint-exit" => {
            let value = value("--checkpoint-exit", "CODE")?;
            let code = std::str::from_utf8(&value).ok().and_then(checkpoint_exit);
            let code = code.ok_or_else(|| invalid("checkpoint exit code", &value, name))?;
            rare.checkpoint.get_or_insert_default().exit = Some(code);
        }
        b"-e" | b"--expected-time" => {
            let value = value("-e/--expected-time", "SECONDS")?;
            rare.expected_time = Some(seconds("expected time", &value, name)?);
        }
        b"--category" => {
            let value = value("--category", "NAME")?;
            if value.is_empty() {
                return Err(invalid("category", &value, name));
            }
            rare.category = value.into_owned();
        }
        b"--stdin" => {
            let value = value("--stdin", "push|FILE")?;
            rare.stdin = Some(match &*value {
                b"" => return Err(invalid("standard input", &value, name)),
                b"push" => Stdin::Push,
                file => Stdin::File(file.to_vec()),
            });
        }
        b"--io" => {
            let value = value("--io", "files|relay")?;
            rare.relay = match &*value {
                b"files" => false,
                b"relay" => true,
                _ => return Err(invalid("way of the output", &value, name)),
            };
        }
        b"--more-memory" => {
            let value = value("--more-memory", "FACTOR")?;
            let percent = number::factor(&value).ok_or_else(|| invalid("memory factor", &value, name))?;
            rare.more_memory = Some(percent);
        }
        b"--retry-delay" => {
            let value = value("--retry-delay", "SECONDS[,FACTOR[,MAX]]")?;
            let delay = RetryDelay::parse(&value).ok_or_else(|| invalid("retry delay", &value, name))?;
            rare.retry_delay = Some(delay);
        }
        b"--request-expression" => {
            let value = value(EXPRESSION.0, EXPRESSION.1)?;
            add(&mut rare.request_expressions, EXPRESSION, &value, name)?;
        }
        b"--expression-value" => {
            let value = value(EXPRESSION_VALUE.0, EXPRESSION_VALUE.1)?;
            add(&mut rare.expression_values, EXPRESSION_VALUE, &value, name)?;
        }
        b"--failure-message" => {
            let value = message(value("--failure-message", "TEXT")?, name)?;
            rare.failure_messages.push(value);
        }
        b"--success-message" => {
            let value = message(value("--success-message", "TEXT")?, name)?;
            rare.success_messages.push(value);
        }
        option => return parse_gang(option, &mut rare.gang, name, value),
    }
    Ok(true)
}

/// Like [`parse_rare`], for the options of tasks over several hosts.
fn parse_gang<'a>(
    option: &[u8],
    gang: &mut GangOptions,
    name: &[u8],
    value: &mut dyn FnMut(&'static str, &'static str) -> Result<Cow<'a, [u8]>, DagErrorKind>,
) -> Result<bool, DagErrorKind> {
    match option {
        b"-N" | b"--nodes" => {
            let value = value("-N/--nodes", "N")?;
            gang.nodes = Some(count("number of nodes", &value, name)?);
        }
        b"--ranks" => {
            let value = value("--ranks", "R")?;
            gang.ranks = Some(count("number of ranks", &value, name)?);
        }
        b"--ranks-per-node" => {
            let value = value("--ranks-per-node", "K")?;
            gang.per_node = Some(count("number of ranks", &value, name)?);
        }
        b"--exclusive" => gang.exclusive = true,
        b"--on" => {
            let value = value("--on", "HOSTS")?;
            let hosts = std::str::from_utf8(&value).map_err(|_| invalid("list of hosts", &value, name))?;
            gang.on = Some(hosts.to_owned());
        }
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_end_the_run_are_parsed() {
        let parsed = |value: &str| abort_on(value.as_bytes()).map(|abort| (abort.code, abort.exit));
        assert_eq!(parsed("3"), Some((3, 3)));
        assert_eq!(parsed("0=7"), Some((0, 7)));
        assert_eq!((parsed("-9"), parsed("-9=0")), (Some((-9, 137)), Some((-9, 0))));
        for value in ["", "=", "3=", "=3", "256", "-65", "3=256", "3=-1", "3 ", "three"] {
            assert_eq!(parsed(value), None, "{value}");
        }
        let applies = |value: &str, status| abort_on(value.as_bytes()).unwrap().applies_to(status);
        assert!(applies("3", 3 << 8) && applies("0", 0) && applies("-9", 9) && applies("-11", 128 + 11));
        assert!(!applies("3", 3) && !applies("0", 9) && !applies("9", 9) && !applies("-9", 9 << 8));
    }

    #[test]
    fn codes_that_end_retries_are_parsed() {
        let code = |rest: &str| {
            let (options, _) = parse(b"t", rest.as_bytes()).map_err(|error| error.to_string())?;
            Ok::<_, String>(options.rare.and_then(|rare| rare.unless_exit))
        };
        assert_eq!(code("--unless-exit 3 x"), Ok(Some(3)));
        assert_eq!(code("-t 2 --unless-exit -9 x"), Ok(Some(-9)));
        assert_eq!(code("-t 2 x"), Ok(None));
        for wrong in ["--unless-exit 256 x", "--unless-exit 3=1 x", "--unless-exit"] {
            assert!(code(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lite_jobs_run_anywhere() {
        let anywhere = |rest: &str| parse(b"t", rest.as_bytes()).unwrap().0.request().anywhere;
        for line in [
            "pegasus-lite a.json",
            "-m 1 /opt/bin/pegasus-lite --part 0:9 a",
            "'/a b/pegasus-lite' a",
            "/usr/bin/env A=b 'C=d e' /opt/pegasus-lite a",
        ] {
            assert!(anywhere(line), "{line}");
        }
        for line in [
            "x pegasus-lite",
            "/opt/my-pegasus-lite a",
            "pegasus-lite2 a",
            "pegasus-lite --cluster a",
            "/usr/bin/env A=b pegasus-lite --cluster --part 0:9 a",
            "/usr/bin/env pegasus-kickstart /opt/pegasus-lite a",
            "/bin/sh w-0.secrets /opt/pegasus-lite a",
            "--stdin a.in pegasus-lite a",
        ] {
            assert!(!anywhere(line), "{line}");
        }
    }

    #[test]
    fn pauses_of_tasks_are_parsed() {
        let first = |rest: &str| {
            let (options, _) = parse(b"t", rest.as_bytes()).map_err(|error| error.to_string())?;
            Ok::<_, String>(
                options
                    .rare
                    .and_then(|rare| rare.retry_delay.map(|delay| delay.first)),
            )
        };
        assert_eq!(
            first("--retry-delay 5,2,60 -t 3 x"),
            Ok(Some(Duration::from_secs(5)))
        );
        assert_eq!(first("--retry-delay 0 x"), Ok(Some(Duration::ZERO)));
        assert_eq!(first("-t 3 x"), Ok(None));
        assert_eq!(
            first("--retry-delay soon x"),
            Err("Invalid retry delay 'soon' for task t".to_owned())
        );
    }

    #[test]
    fn expressions_are_split_at_the_first_equals_sign() {
        let rest = "--request-expression 'memory=8 if exitcode == 1 else 4' --expression-value pegasus_site=a=b \
                    --request-expression memory=2 --request-expression cores=1 x";
        let rare = *parse(b"t", rest.as_bytes()).unwrap().0.rare.unwrap();
        let text = |pairs: Vec<Forward>| pairs.into_iter().map(|(key, value)| (lossy(&key), lossy(&value)));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let expressions: Vec<_> = text(rare.request_expressions).collect();
        assert_eq!(expressions, [pair("cores", "1"), pair("memory", "2")]);
        let values: Vec<_> = text(rare.expression_values).collect();
        assert_eq!(values, [pair("pegasus_site", "a=b")]);
        for wrong in ["--request-expression memory x", "--expression-value"] {
            assert!(parse(b"t", wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn expected_times_are_parsed() {
        let expected = |rest: &str| {
            let (options, _) = parse(b"t", rest.as_bytes()).map_err(|error| error.to_string())?;
            Ok::<_, String>(options.rare.and_then(|rare| rare.expected_time))
        };
        assert_eq!(expected("-c 2 x"), Ok(None));
        assert_eq!(expected("-e 90 x"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(
            expected("-c 2 --expected-time 0.5 -t 2 x"),
            Ok(Some(Duration::from_millis(500)))
        );
        assert_eq!(expected("-e 0 x"), Ok(Some(Duration::ZERO)));
        for (rest, message) in [
            ("-e", "-e/--expected-time requires SECONDS for task t"),
            ("-e soon x", "Invalid expected time 'soon' for task t"),
            ("-e nan x", "Invalid expected time 'nan' for task t"),
            ("-e 1e30 x", "Invalid expected time '1e30' for task t"),
            ("-e -1 x", "Negative expected time not allowed for task t"),
        ] {
            assert_eq!(expected(rest), Err(message.to_owned()));
        }
    }

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
