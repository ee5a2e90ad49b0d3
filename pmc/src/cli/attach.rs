//! Options of `pmc attach`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum, value_parser};
use pmc_control::RedirectOptions;

/// Exit codes of `pmc attach`.
const EXIT: &str = "\
A task is given by its name, or by a pattern with * (any characters) and ? (one character). Without a
selection, the output of all tasks is shown.

Without --tag, --timestamp, --xml or --json, standard output and standard error of the tasks go to those
of pmc as they come: byte for byte, or with control characters escaped if that is a terminal. With one
of these, everything goes to standard output, lines stay whole, and control characters and bytes that
are not UTF-8 are escaped.

Exit codes:
  0    the run has ended, or all tasks that were named have
  2    the command line is wrong, RUN is not the directory of a run, or it has no such task
  4    the run does not go on, a task has ended before it took all input, the run belongs to another user, was killed, or something cannot be read
  69   the tasks of the run share files, so that their output cannot be told apart; or a task takes no
       input, or its output cannot be redirected
  130  stopped by Ctrl-C (143: by SIGTERM)";

/// `pmc attach`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = EXIT,
    override_usage = "pmc attach [OPTIONS] [TASK]... [RUN]",
    group = ArgGroup::new("selection").multiple(false)
)]
pub struct Attach {
    /// Tasks, by name or pattern, and last the directory of the run [default: the working directory if it is
    /// one, else the latest run below pmc-runs]
    #[arg(value_name = "TASK")]
    pub tasks: Vec<String>,
    /// The directory, when it has been taken from these words
    #[arg(skip)]
    pub run: Option<PathBuf>,
    /// All tasks; those that start later are joined
    #[arg(long, group = "selection")]
    pub all: bool,
    /// The tasks that run now
    #[arg(long, group = "selection")]
    pub running: bool,
    /// Tasks of a transformation; those that start later are joined
    #[arg(long, value_name = "NAME", group = "selection")]
    pub transformation: Option<String>,
    /// Tasks on a host; those that start there later are joined
    #[arg(long, value_name = "HOST", group = "selection")]
    pub host: Option<String>,
    /// Get the output instead of the files of the tasks; when this ends, it goes there again. Tasks need the
    /// task option --io relay, or --tail
    #[arg(long, conflicts_with_all = ["stdin", "from"])]
    pub redirect: bool,
    /// Tasks, by name or pattern. With --redirect, those that start from now on need no option, and are
    /// redirected from the first byte. May be repeated
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["all", "running", "transformation", "host"])]
    pub tail: Vec<String>,
    /// Bytes of a stream that may wait for pmc
    #[arg(long, value_name = "BYTES", value_parser = value_parser!(u32).range(4096..=i64::from(RedirectOptions::MAX_BUFFER)), default_value_t = RedirectOptions::BUFFER, requires = "redirect")]
    pub buffer_size: u32,
    /// Milliseconds for which a full buffer may hold up the task until half of it is free
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(..=i64::from(RedirectOptions::MAX_PATIENCE_MS)), default_value_t = RedirectOptions::PATIENCE_MS, requires = "redirect")]
    pub buffer_time: u32,
    /// What happens then
    #[arg(long, value_enum, default_value_t, requires = "redirect")]
    pub on_overflow: OnOverflow,
    /// Push the standard input of pmc to tasks that have the task option --stdin push
    #[arg(long)]
    pub stdin: bool,
    /// Task that gets the input, or all: those that run now. May be repeated [default: the tasks that are
    /// named]
    #[arg(long, value_name = "TASK|all", requires = "stdin")]
    pub to: Vec<String>,
    /// At the end of the input, end that of the tasks, too. Without it, other tools may go on
    #[arg(long, requires = "stdin")]
    pub complete: bool,
    /// Show standard output only
    #[arg(long)]
    pub stdout: bool,
    /// Show standard error only, on standard output
    #[arg(long)]
    pub stderr: bool,
    /// Of tasks that run already, show all (start), the last N lines of each stream (-N), or only what
    /// comes (now)
    #[arg(long, value_name = "start|now|-N", value_parser = from, default_value = "start", allow_hyphen_values = true)]
    pub from: From,
    /// Begin each line with [TASK.ATTEMPT@HOST,STREAM]
    #[arg(long, conflicts_with_all = ["xml", "json"])]
    pub tag: bool,
    /// Begin each line with the time at which pmc read it; with --redirect, `source` is the time at which the
    /// worker did
    #[arg(long, value_name = "received|source", num_args = 0..=1, require_equals = true, default_missing_value = "received", value_enum)]
    pub timestamp: Option<Timestamp>,
    /// Print an XML document with an element for each line
    #[arg(long, conflicts_with = "json")]
    pub xml: bool,
    /// Print a line of JSON for each line
    #[arg(long)]
    pub json: bool,
}

/// Which time a line begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Timestamp {
    /// When this program read it.
    Received,
    /// When the worker read it.
    Source,
}

/// What happens when the buffer of a redirect is full for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnOverflow {
    /// The rest goes to the file.
    #[default]
    File,
    /// The older half of the buffer is lost.
    DropOldest,
    /// What comes is lost.
    DropNewest,
}

/// Where the output of a task that runs already begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At its start.
    Start,
    /// This number of lines before its end.
    Last(usize),
}

fn from(text: &str) -> Result<From, &'static str> {
    let lines = |count: &str| count.parse().ok().map(From::Last);
    match text {
        "start" => Some(From::Start),
        "now" => Some(From::Last(0)),
        other => other.strip_prefix('-').and_then(lines),
    }
    .ok_or("give start, now, or - and a number of lines")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_a_word_or_a_number_of_lines() {
        assert_eq!(from("start"), Ok(From::Start));
        assert_eq!(from("now"), Ok(From::Last(0)));
        assert_eq!(from("-20"), Ok(From::Last(20)));
        for wrong in ["", "-", "20", "--1", "end", "-99999999999999999999"] {
            assert!(from(wrong).is_err(), "{wrong}");
        }
    }
}
