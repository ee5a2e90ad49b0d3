//! Options of the commands that ask a run, or change its course.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pmc_control::FIRST_WEIGHT;

/// Exit codes of these commands.
const EXIT: &str = "\
Exit codes:
  0    the run answered
  2    the command line is wrong, or RUN is not the directory of a run
  4    the run does not go on, cannot be asked from here, or refuses";

/// Exit codes of `pmc nodes`.
const NODES_EXIT: &str = "\
Exit codes:
  0    the run answered
  1    with --ping: hosts do not answer
  2    the command line is wrong, or RUN is not the directory of a run
  4    the run does not go on, cannot be asked from here, or refuses";

/// `pmc nodes`.
#[derive(Args, Clone, Debug)]
#[command(after_help = NODES_EXIT)]
pub struct Nodes {
    /// Directory of the run [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// Start no more tasks on this host, and let its agent go when the running ones have ended
    #[arg(long, value_name = "HOST")]
    pub drain: Option<String>,
    /// Start only tasks on these hosts that name them, and let the running ones go on: a name, or `n[1-3,7]`
    #[arg(long, value_name = "HOSTS", conflicts_with = "drain")]
    pub reserve: Option<String>,
    /// Start all tasks on these hosts again
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["drain", "reserve"])]
    pub unreserve: Option<String>,
    /// This host is lost: go on without it, and run its tasks elsewhere once they must have ended there
    #[arg(long, value_name = "HOST", conflicts_with_all = ["drain", "reserve", "unreserve"])]
    pub gone: Option<String>,
    /// Say which of these hosts do not answer, and exit with 1 if there are any: a name, or `n[1-3,7]`
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["drain", "reserve", "unreserve", "gone"])]
    pub ping: Option<String>,
    /// Only the hosts on which this task runs
    #[arg(long, value_name = "TASK", conflicts_with_all = ["drain", "reserve", "unreserve", "gone", "ping"])]
    pub of: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["drain", "reserve", "unreserve", "gone", "ping"])]
    pub json: bool,
}

/// `pmc drain`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Drain {
    /// Directory of the run [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// Go on for this time first: seconds, or a number with s, m or h
    #[arg(long = "in", value_name = "TIME", value_parser = time)]
    pub after: Option<Duration>,
}

/// `pmc submit`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Submit {
    /// The workflow: a submit directory of pmc-plan, or the directory of a run that is to go on
    #[arg(value_name = "OTHER")]
    pub other: PathBuf,
    /// Directory of the running workflow [default: the working directory if it is one, else the latest run
    /// below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// The same
    #[arg(long = "run", value_name = "RUN", hide = true, conflicts_with = "run")]
    pub run_option: Option<PathBuf>,
    /// Its share of the slots while both have tasks to start, compared with the running workflow, which has
    /// 1; from 0.01 to 100
    #[arg(long, value_name = "N", default_value = "1", value_parser = weight)]
    pub weight: u32,
}

/// `pmc kill`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = EXIT,
    override_usage = "pmc kill [OPTIONS] <TASK> [RUN]\n       pmc kill [OPTIONS] --host <HOST> [RUN]"
)]
pub struct Kill {
    /// Running task
    #[arg(value_name = "TASK", required_unless_present = "host")]
    pub task: Option<String>,
    /// Directory of the run [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// All tasks that run on this host, also those that hold other hosts at the same time
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Signal, by name or number
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    pub signal: i32,
}

/// `pmc why`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Why {
    /// Task
    #[arg(value_name = "TASK")]
    pub task: String,
    /// Directory of the run [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pmc stack`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Stack {
    /// Running task
    #[arg(value_name = "TASK")]
    pub task: String,
    /// Directory of the run [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Show all threads, not only the first one of each process
    #[arg(long)]
    pub threads: bool,
    /// Show also what a call of MPI does inside its library, and what has called main
    #[arg(long)]
    pub full: bool,
    /// Only these ranks of an MPI program, such as 0-3,7
    #[arg(long, value_name = "RANKS", value_parser = ranks)]
    pub ranks: Option<Ranks>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Some ranks of an MPI program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks(Vec<RangeInclusive<u32>>);

impl Ranks {
    /// True if it has this one.
    #[must_use]
    pub fn has(&self, rank: u32) -> bool {
        self.0.iter().any(|range| range.contains(&rank))
    }
}

fn ranks(text: &str) -> Result<Ranks, &'static str> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    ranges
        .map(Ranks)
        .ok_or("ranks are numbers and ranges of them, such as 0-3,7")
}

/// Parses a weight and returns it in hundredths.
fn weight(text: &str) -> Result<u32, &'static str> {
    let number: f64 = text.parse().unwrap_or(0.0);
    if (0.01..=100.0).contains(&number) {
        return Ok((number * f64::from(FIRST_WEIGHT)).round() as u32);
    }
    Err("a weight is a number from 0.01 to 100")
}

pub(super) fn time(text: &str) -> Result<Duration, &'static str> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("a time is a number of seconds, or a number with s, m or h, such as 20m"),
    };
    let number: Option<u64> = digits.parse().ok();
    let seconds = number.and_then(|number| number.checked_mul(factor));
    seconds
        .map(Duration::from_secs)
        .ok_or("a time is a number of seconds, or a number with s, m or h, such as 20m")
}

fn signal(text: &str) -> Result<i32, &'static str> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = || format!("SIG{name}").parse::<nix::sys::signal::Signal>().ok();
    let by_number = || nix::sys::signal::Signal::try_from(text.parse::<i32>().ok()?).ok();
    by_number()
        .or_else(by_name)
        .map(|signal| signal as i32)
        .ok_or("there is no such signal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(time("20m"), Ok(Duration::from_secs(1200)));
        assert_eq!(time("5"), Ok(Duration::from_secs(5)));
        assert_eq!(time("2h"), Ok(Duration::from_secs(7200)));
        for wrong in [
            "",
            "m",
            "1d",
            "-1",
            "99999999999999999999",
            "9999999999999999999h",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(signal(text), Ok(15));
        }
        assert!(signal("NONE").is_err() && signal("0").is_err() && signal("99").is_err());
    }
}
