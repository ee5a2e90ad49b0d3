//! The command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, ValueEnum};

use crate::frames::Input;
use crate::loadfile::MAX_RANKS;
use crate::strace::StraceOptions;
use crate::world::Wanted;
use crate::{NAME, USAGE};

/// Starts the processes of a parallel program on the hosts of a task or batch job, or on this machine
///
/// In a task over several hosts it stands in place of mpirun: without numbers, it starts all ranks of the
/// task. In a batch job, `pmc launch` shares the nodes with other launches; without numbers, it starts one
/// rank. Elsewhere, ranks run on this machine. In place of a program, a load file can name several ones.
#[derive(Debug, Parser)]
#[command(name = NAME, version, after_help = AFTER)]
pub struct Options {
    /// Number of all ranks
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: Option<u32>,
    /// Number of hosts; with -n, the ranks are spread over them
    #[arg(short = 'N', long, value_name = "NODES", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// Most ranks of a host
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_node: Option<u32>,
    /// Only on these hosts, such as n[1-4,7]
    #[arg(long, value_name = "HOSTS", value_parser = parse_hosts)]
    on: Option<Hosts>,
    /// CPUs of a rank, in a batch job
    #[arg(short = 'c', long, value_name = "CPUS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// MiB of memory of a rank, in a batch job
    #[arg(short = 'm', long, value_name = "MIB", default_value_t = 0)]
    memory: u64,
    /// In this run of pmc serve, in place of a batch job
    #[arg(long, value_name = "DIR", conflicts_with = "dry_run")]
    run: Option<PathBuf>,
    /// In a batch job, give up if other launches hold what this one needs
    #[arg(long)]
    immediate: bool,
    /// In a batch job, seconds that the session lives after its last launch
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    linger: u32,
    /// How ranks find each other
    #[arg(long, value_enum, default_value_t)]
    pub(crate) pmi: Pmi,
    /// Which CPUs ranks get: each its part of those of the task, in order, or all of them
    #[arg(long, value_enum, default_value_t)]
    pub(crate) bind: Bind,
    /// Which ranks get the standard input
    #[arg(long = "stdin", value_enum, default_value_t, value_name = "RANKS")]
    pub(crate) input: Input,
    /// Write the rank before each line of output
    #[arg(long)]
    pub(crate) tag: bool,
    /// Write the time before each line of output
    #[arg(long)]
    pub(crate) timestamp: bool,
    /// Write output into files; %r is the rank
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<String>,
    /// Go on if a rank has failed
    #[arg(long, conflicts_with = "wait")]
    pub(crate) keep_going: bool,
    /// Seconds between SIGTERM and SIGKILL for the others if a rank has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) wait: u32,
    /// Say in which function, file and line ranks were that a signal has ended
    #[arg(short = 'g', long)]
    pub(crate) trace: bool,
    /// How often ranks are started on other hosts of the task if some of the chosen ones cannot start them
    #[arg(long, value_name = "TRIES", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) load_tries: u32,
    /// Send programs to hosts that do not see them (auto, also without a value), or to all hosts
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "auto")]
    pub(crate) bcast: Option<Bcast>,
    /// With --bcast, send libraries, too: those that the loader of a program finds outside /lib and /usr
    #[arg(long, requires = "bcast")]
    pub(crate) send_libs: bool,
    /// With --bcast, send these files, too: ranks find them in the directory PMC_LAUNCH_FILES
    #[arg(long, value_delimiter = ',', requires = "bcast")]
    pub(crate) files: Vec<PathBuf>,
    /// Write host, process and end of each rank into a file, a JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Say how long each step took
    #[arg(long)]
    pub(crate) timing: bool,
    /// Say where each rank would run, and start nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Set variables by which ranks of other systems find each other
    #[arg(long, value_enum, value_name = "SYSTEM")]
    pub(crate) set: Option<Set>,
    /// Stop ranks before their first instruction until Enter is pressed, so that debuggers can be attached
    #[arg(long, conflicts_with = "trace")]
    pub(crate) hold: bool,
    #[command(flatten)]
    pub(crate) strace: StraceOptions,
    /// Say nothing of ranks that have ended well
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Program with its arguments, or a load file: a file that cannot be executed
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) words: Vec<OsString>,
}

const AFTER: &str = "\
Load files have lines of one of three kinds, with words as in DAG files; # begins a comment:
  yod      [-sz RANKS] [-l HOSTS] PROGRAM ARGUMENTS
  srun     RANKS PROGRAM ARGUMENTS     RANKS such as 0-3,7 or *; %t is the rank, %o its number in the line
  mpiexec  -n RANKS PROGRAM ARGUMENTS

With --bcast, files are in the first of $PMC_PROGRAM_DIR, /dev/shm, $TMPDIR and /tmp of each host that has room.
If a host has none, all hosts take them from below $PARALLEL_FILE_SYSTEM, else from .programs in this directory.

Signals: USR1 and USR2 go to all ranks. INT sends them TERM, a second one KILL, the third ends this program.

Environment:
  PMC_USAGE_LOG  a file to which a line of JSON is added at the start and at the end of each launch

Exit codes:
  0  all ranks have ended with 0
  2  the command line is wrong
  4  nothing has run
  N  exit code of the rank that has failed first, or 128 and the signal that ended it";

/// How ranks find each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pmi {
    /// PMIx if a program needs Open MPI, else 1
    #[default]
    Auto,
    /// PMI-1: MPICH, Intel MPI, MVAPICH
    #[value(name = "1")]
    One,
    /// PMIx: Open MPI
    Pmix,
    /// Not at all
    None,
}

/// Which CPUs ranks get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bind {
    /// As cpus if the task has CPUs of its own
    #[default]
    Auto,
    /// Each rank has CPUs of its own
    Cpus,
    /// All ranks of a host have the same
    None,
}

/// A system whose processes find each other by variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Set {
    /// PyTorch: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    Torch,
}

/// Which programs are sent to hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bcast {
    /// Those that some host does not see, to those hosts
    Auto,
    /// All programs, to all hosts
    Always,
    /// No program
    #[default]
    Never,
}

/// Names of hosts.
#[derive(Clone, Debug)]
struct Hosts(Vec<String>);

fn parse_hosts(text: &str) -> Result<Hosts, String> {
    pmc_hosts::parse_hosts(text, 100_000)
        .map(Hosts)
        .map_err(|error| error.to_string())
}

impl Options {
    /// What it says of ranks and hosts.
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted {
            ranks: self.ranks,
            nodes: self.nodes,
            per_node: self.ranks_per_node,
            on: self.on.as_ref().map(|hosts| hosts.0.clone()).unwrap_or_default(),
        }
    }
}

/// What a launch needs of a batch job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of all ranks.
    pub ranks: u32,
    /// Number of hosts.
    pub nodes: Option<u32>,
    /// Most ranks of a host.
    pub per_node: Option<u32>,
    /// Only these hosts; empty for any.
    pub on: Vec<String>,
    /// CPUs of a rank.
    pub cpus: u32,
    /// MiB of memory of a rank.
    pub memory: u64,
    /// It waits for no other launches.
    pub is_immediate: bool,
    /// It reads from standard input.
    pub has_input: bool,
    /// Seconds between two signals that end ranks.
    pub wait: u32,
    /// Seconds that a session lives after its last launch.
    pub linger: u32,
    /// The program, or the load file.
    pub name: String,
}

impl Options {
    /// True if nothing is started.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Directory of the run that takes the launch, if the person names one.
    #[must_use]
    pub fn run_directory(&self) -> Option<&Path> {
        self.run.as_deref()
    }

    /// Returns what the launch needs.
    ///
    /// # Errors
    /// The load file cannot be read: a sentence.
    pub fn shape(&self) -> Result<Shape, String> {
        let (lines, is_file) = crate::lines::of_words(&self.words).map_err(|error| error.to_string())?;
        let default = match (self.nodes, self.ranks_per_node) {
            (Some(nodes), each) => nodes.saturating_mul(each.unwrap_or(1)),
            (None, each) => each.unwrap_or(1),
        };
        let of_file = is_file.then(|| crate::loadfile::ranks_of(&lines)).flatten();
        let mut on = self.wanted().on;
        if on.is_empty() && is_file && lines.iter().all(|line| !line.hosts.is_empty()) {
            on = lines.iter().flat_map(|line| line.hosts.clone()).collect();
            on.sort_unstable();
            on.dedup();
        }
        let name = self.words.first().map(|word| word.to_string_lossy().into_owned());
        Ok(Shape {
            ranks: self.ranks.or(of_file).unwrap_or(default),
            nodes: self.nodes,
            per_node: self.ranks_per_node,
            on,
            cpus: self.cpus,
            memory: self.memory,
            is_immediate: self.immediate,
            has_input: self.input != Input::None || self.hold,
            wait: self.wait,
            linger: self.linger,
            name: name.unwrap_or_default(),
        })
    }
}

/// Returns the description of the command line.
#[must_use]
pub fn command() -> clap::Command {
    Options::command()
}

/// Reads the command line; else writes why that is not possible, or what was asked for.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Options, ExitCode> {
    Options::try_parse_from(arguments).map_err(|error| {
        let code = if error.use_stderr() { USAGE } else { 0 };
        match error.print() {
            Ok(()) => ExitCode::from(code),
            Err(_) => ExitCode::from(pmc_terminal::NOT_WRITTEN),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Options {
        let all = std::iter::once(&NAME).chain(words);
        Options::try_parse_from(all).unwrap()
    }

    #[test]
    fn the_words_of_the_program_are_its_own() {
        let options = parsed(&["-n", "4", "--tag", "./a", "-n", "7", "--help"]);
        assert_eq!(options.words, ["./a", "-n", "7", "--help"]);
        assert_eq!(options.wanted().ranks, Some(4));
        assert_eq!(parsed(&["--on", "n[1-2]", "a"]).wanted().on, ["n1", "n2"]);
        let sent = parsed(&["--bcast", "--files", "f,g", "--files", "h", "a"]);
        assert_eq!((sent.bcast, sent.files.len()), (Some(Bcast::Auto), 3));
        assert_eq!(parsed(&["--bcast=always", "a"]).bcast, Some(Bcast::Always));
        assert_eq!(parsed(&["a"]).bcast, None);
    }

    #[test]
    fn contradictions_and_nonsense_are_refused() {
        for words in [
            &["-n", "0", "a"][..],
            &["-n", "4294967296", "a"],
            &["--on", "n[", "a"],
            &["--keep-going", "--wait", "3", "a"],
            &["-n", "3"],
            &["--run", "r", "--dry-run", "a"],
            &["--hold", "-g", "a"],
            &["--send-libs", "a"],
            &["--files", "f", "a"],
            &["--bcast=often", "a"],
        ] {
            let all = std::iter::once(&NAME).chain(words);
            assert!(Options::try_parse_from(all).is_err(), "{words:?}");
        }
        command().debug_assert();
    }

    #[test]
    fn a_launch_says_what_it_needs_of_a_batch_job() {
        let shape = |words: &[&str]| parsed(words).shape().unwrap();
        assert_eq!(shape(&["a"]).ranks, 1);
        assert_eq!(shape(&["-N", "3", "--ranks-per-node", "2", "a"]).ranks, 6);
        assert_eq!(
            (
                shape(&["-n", "5", "-c", "2", "a"]).ranks,
                shape(&["-c", "2", "a"]).cpus
            ),
            (5, 2)
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("load");
        std::fs::write(&file, "-sz 2 -l n[1-2] a\n-l n3 b\n").unwrap();
        let of_file = shape(&[file.to_str().unwrap()]);
        assert_eq!(
            (of_file.ranks, of_file.on),
            (3, ["n1", "n2", "n3"].map(str::to_owned).to_vec())
        );
        std::fs::write(&file, "0,5 a\n1-4 b\n").unwrap();
        assert_eq!(shape(&[file.to_str().unwrap()]).ranks, 6);
    }
}
