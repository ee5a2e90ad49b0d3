//! The command line: what was args ([`RawArgs`]) and what it means ([`crate::options::Options`]).
//!
//! The grammar is that of pegasus-mpi-cluster 5.1: every option is a word of its own, its value
//! the next word; options may stand before or after the DAG file and the last one wins.

mod help;
mod number;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use crate::options::SERVER_VARIABLES;

pub use help::version;

/// What the words of the command line and the environment say, not yet interpreted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawArgs {
    /// The DAG file.
    pub dag: PathBuf,
    /// `-v` less `-q`.
    pub verbosity: i32,
    /// `-o`.
    pub stdout: Option<PathBuf>,
    /// `-e`.
    pub stderr: Option<PathBuf>,
    /// `-s`.
    pub skip_rescue: bool,
    /// `-m`; 0 for no limit.
    pub max_failures: u32,
    /// `-t`; at least 1 where given.
    pub tries: Option<u32>,
    /// `-n`.
    pub no_lock: bool,
    /// `-r`.
    pub rescue: Option<PathBuf>,
    /// `--host-script` or its variable.
    pub host_script: Option<PathBuf>,
    /// `--host-memory` or its variable, in MB; 0 to find out.
    pub host_memory: u32,
    /// `--host-cpus` or its variable; 0 to find out.
    pub host_cpus: u32,
    /// `--host-gpus` or its variable; 0 to find out.
    pub host_gpus: u32,
    /// `--strict-limits`.
    pub strict_limits: bool,
    /// `--max-wall-time` or its variable, in minutes.
    pub max_wall_time: Option<f64>,
    /// `--per-task-stdio`, also set by `--monitord-hack`.
    pub per_task_stdio: bool,
    /// `--jobstate-log`.
    pub jobstate_log: bool,
    /// `--monitord-hack`.
    pub monitord_hack: bool,
    /// `--stampede`, which also sets `monitord_hack`.
    pub stampede: bool,
    /// The user's directory.
    pub home: Option<PathBuf>,
    /// How to connect to the server of a database: those of [`SERVER_VARIABLES`] that are set.
    pub server_variables: Vec<(&'static str, OsString)>,
    /// `PMC_KICKSTART=exec`: tasks start their kickstart themselves.
    pub exec_kickstart: bool,
    /// `--no-resource-log`.
    pub no_resource_log: bool,
    /// `--no-sleep-on-recv`.
    pub no_sleep_on_recv: bool,
    /// `--maxfds`.
    pub max_fds: Option<u32>,
    /// `--keep-affinity`.
    pub keep_affinity: bool,
    /// `--set-affinity`.
    pub set_affinity: bool,
    /// `--no-forward-journal`.
    pub no_forward_journal: bool,
    /// `--sync-interval`, in milliseconds; 0 for never.
    pub sync_interval_ms: Option<u32>,
    /// `--runtime-limit`, in seconds.
    pub runtime_limit: Option<f64>,
    /// `--drain-grace`, in seconds.
    pub drain_grace: Option<f64>,
    /// `--workers`: run on this machine with so many workers.
    pub workers: Option<u32>,
}

/// What to do instead of running a DAG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EarlyExit {
    /// Print a text to stderr and end with this exit code. In a parallel run every process
    /// does so, or only the first one.
    Print {
        /// The text, with its line feed.
        text: String,
        /// The exit code.
        code: u8,
        /// All processes print.
        everywhere: bool,
    },
}

impl EarlyExit {
    fn refuse(message: &str) -> Self {
        Self::Print {
            text: format!("{message}\n"),
            code: 1,
            everywhere: false,
        }
    }
}

/// Reads the command line; `words` are the arguments without the program, `environment` looks up
/// a variable.
///
/// # Errors
/// There is nothing to run: a help or version text was asked for, or something is wrong.
pub fn parse(
    program: &OsStr,
    words: &[OsString],
    environment: impl Fn(&str) -> Option<OsString>,
    launched: bool,
) -> Result<RawArgs, EarlyExit> {
    let help = |code| {
        let mut text = help::help(program);
        if !launched && !words.iter().any(|w| w == "--workers") {
            text.push_str(help::LOCAL);
        }
        EarlyExit::Print {
            text,
            code,
            everywhere: true,
        }
    };
    if words.is_empty() {
        return Err(help(1));
    }
    if words.iter().any(|w| w == "-h" || w == "--help") {
        return Err(help(0));
    }
    let mut args = RawArgs::default();
    read_environment(&mut args, environment)?;
    if read_words(&mut args, words)?.is_none() {
        return Err(help(1));
    }
    Ok(args)
}

fn read_environment(
    args: &mut RawArgs,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<(), EarlyExit> {
    let invalid = |name| EarlyExit::refuse(&format!("Invalid value for {name}"));
    let value = |name| environment(name).map(OsString::into_vec);
    args.host_script = environment("PMC_HOST_SCRIPT").and_then(path);
    args.home = environment("HOME").map(PathBuf::from);
    args.server_variables = SERVER_VARIABLES
        .into_iter()
        .filter_map(|name| Some((name, environment(name)?)))
        .collect();
    if let Some(text) = value("PMC_HOST_MEMORY") {
        args.host_memory = number::unsigned(&text).ok_or_else(|| invalid("PMC_HOST_MEMORY"))?;
    }
    if let Some(text) = value("PMC_HOST_CPUS") {
        args.host_cpus = number::unsigned(&text).ok_or_else(|| invalid("PMC_HOST_CPUS"))?;
    }
    if let Some(text) = value("PMC_HOST_GPUS") {
        args.host_gpus = number::unsigned(&text).ok_or_else(|| invalid("PMC_HOST_GPUS"))?;
    }
    if let Some(text) = value("PMC_MAX_WALL_TIME") {
        let minutes = number::float(&text).ok_or_else(|| invalid("PMC_MAX_WALL_TIME"))?;
        args.max_wall_time = Some(minutes);
    }
    if let Some(text) = value("PMC_KICKSTART") {
        args.exec_kickstart = match text.as_slice() {
            b"exec" => true,
            b"serve" => false,
            _ => {
                let message = "Invalid value for PMC_KICKSTART: give exec or serve";
                return Err(EarlyExit::refuse(message));
            }
        };
    }
    Ok(())
}

/// Gives whether there was a DAG file.
fn read_words(args: &mut RawArgs, words: &[OsString]) -> Result<Option<()>, EarlyExit> {
    let mut dags = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = |message| words.next().ok_or_else(|| EarlyExit::refuse(message));
        match word.as_bytes() {
            b"-V" | b"--version" => {
                return Err(EarlyExit::Print {
                    text: version(),
                    code: 0,
                    everywhere: false,
                });
            }
            b"-v" | b"--verbose" => args.verbosity += 1,
            b"-q" | b"--quiet" => args.verbosity -= 1,
            b"-o" | b"--stdout" => args.stdout = Some(value("-o/--stdout requires PATH")?.into()),
            b"-e" | b"--stderr" => args.stderr = Some(value("-e/--stderr requires PATH")?.into()),
            b"-s" | b"--skip-rescue" => args.skip_rescue = true,
            b"-m" | b"--max-failures" => {
                let n = value("-m/--max-failures requires N")?;
                let n = number::integer(n.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("N for -m/--max-failures is invalid"))?;
                if n < 0 {
                    return Err(EarlyExit::refuse("N for -m/--max-failures must be >= 0"));
                }
                args.max_failures = u32::try_from(n).unwrap_or(u32::MAX);
            }
            b"-t" | b"--tries" => {
                let n = value("-t/--tries requires N")?;
                let n = number::integer(n.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("N for -t/--tries is invalid"))?;
                if n < 1 {
                    return Err(EarlyExit::refuse("N for -t/--tries must be >= 1"));
                }
                args.tries = Some(u32::try_from(n).unwrap_or(u32::MAX));
            }
            b"-n" | b"--nolock" => args.no_lock = true,
            b"-r" | b"--rescue" => args.rescue = path(value("-r/--rescue requires PATH")?.clone()),
            b"--host-script" => args.host_script = path(value("--host-script requires PATH")?.clone()),
            b"--host-memory" => {
                let n = value("--host-memory requires N")?;
                args.host_memory = number::unsigned(n.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("Invalid value for --host-memory"))?;
                if args.host_memory < 1 {
                    return Err(EarlyExit::refuse("--host-memory must be an integer >= 1"));
                }
            }
            b"--host-cpus" => {
                let n = value("--host-cpus requires N")?;
                args.host_cpus = number::unsigned(n.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("Invalid value for --host-cpus"))?;
            }
            b"--host-gpus" => {
                let n = value("--host-gpus requires N")?;
                args.host_gpus = number::unsigned(n.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("Invalid value for --host-gpus"))?;
            }
            b"--strict-limits" => args.strict_limits = true,
            b"--max-wall-time" => {
                let t = value("--max-wall-time requires T")?;
                let minutes = number::float(t.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("Invalid value for --max-wall-time"))?;
                args.max_wall_time = Some(minutes);
            }
            b"--per-task-stdio" => args.per_task_stdio = true,
            b"--jobstate-log" => args.jobstate_log = true,
            b"--monitord-hack" => {
                args.monitord_hack = true;
                args.per_task_stdio = true;
            }
            b"--stampede" if cfg!(feature = "stampede") => {
                args.stampede = true;
                args.monitord_hack = true;
                args.per_task_stdio = true;
            }
            b"--stampede" => {
                return Err(EarlyExit::refuse(
                    "--stampede: this program was built without the feature `stampede`; use pmc-monitord",
                ));
            }
            b"--no-resource-log" => args.no_resource_log = true,
            b"--no-sleep-on-recv" => args.no_sleep_on_recv = true,
            b"--maxfds" => {
                let n = value("--maxfds requires N")?;
                let n = number::integer(n.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("Invalid value for --maxfds"))?;
                if n < 1 {
                    return Err(EarlyExit::refuse("--maxfds must be at least 1"));
                }
                args.max_fds = Some(u32::try_from(n).unwrap_or(u32::MAX));
            }
            b"--keep-affinity" => args.keep_affinity = true,
            b"--set-affinity" => args.set_affinity = true,
            b"--no-forward-journal" => args.no_forward_journal = true,
            b"--sync-interval" => {
                let n = value("--sync-interval requires MS")?;
                let n = number::integer(n.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("Invalid value for --sync-interval"))?;
                let n = u32::try_from(n)
                    .map_err(|_| EarlyExit::refuse("--sync-interval must be a number of milliseconds"))?;
                args.sync_interval_ms = Some(n);
            }
            b"--runtime-limit" => {
                let t = value("--runtime-limit requires SECONDS")?;
                let seconds = number::float(t.as_bytes()).filter(|seconds| *seconds >= 0.0);
                let seconds =
                    seconds.ok_or_else(|| EarlyExit::refuse("Invalid value for --runtime-limit"))?;
                args.runtime_limit = Some(seconds);
            }
            b"--drain-grace" => {
                let t = value("--drain-grace requires SECONDS")?;
                let seconds = number::float(t.as_bytes()).filter(|seconds| *seconds >= 0.0);
                let seconds = seconds.ok_or_else(|| EarlyExit::refuse("Invalid value for --drain-grace"))?;
                args.drain_grace = Some(seconds);
            }
            b"--workers" => {
                let n = value("--workers requires N")?;
                let n = number::integer(n.as_bytes())
                    .ok_or_else(|| EarlyExit::refuse("Invalid value for --workers"))?;
                if !(0..=MOST_WORKERS).contains(&n) {
                    return Err(EarlyExit::refuse(&format!(
                        "--workers must be at most {MOST_WORKERS}"
                    )));
                }
                args.workers = u32::try_from(n).ok();
            }
            [b'-', ..] => {
                return Err(EarlyExit::refuse(&format!(
                    "Unrecognized argument: {}",
                    word.display()
                )));
            }
            _ => dags.push(word),
        }
    }
    match dags.as_slice() {
        [] => Ok(None),
        [dag] => {
            args.dag = PathBuf::from(dag);
            Ok(Some(()))
        }
        // Told last: what is wrong with an option says more.
        _ => Err(EarlyExit::refuse("Invalid argument\n")),
    }
}

/// A path, if the word is not empty: scripts pass an empty one on to say that there is none.
fn path(word: OsString) -> Option<PathBuf> {
    (!word.is_empty()).then(|| word.into())
}

/// Workers of a local run are threads, with a process each for their task.
const MOST_WORKERS: i64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_with(line: &str, variables: &[(&str, &str)]) -> Result<RawArgs, EarlyExit> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let lookup = |name: &str| {
            variables
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, value)| OsString::from(value))
        };
        parse(OsStr::new("pmc"), &words, lookup, true)
    }

    fn refusal(line: &str) -> String {
        match parse_with(line, &[]) {
            Err(EarlyExit::Print {
                text,
                code: 1,
                everywhere: false,
            }) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn refusals() {
        for (line, message) in [
            ("-x a.dag", "Unrecognized argument: -x\n"),
            ("a.dag -", "Unrecognized argument: -\n"),
            ("-sn a.dag", "Unrecognized argument: -sn\n"),
            ("--tries=2 a.dag", "Unrecognized argument: --tries=2\n"),
            ("a.dag -o", "-o/--stdout requires PATH\n"),
            ("-e", "-e/--stderr requires PATH\n"),
            ("-m", "-m/--max-failures requires N\n"),
            ("-m x a.dag", "N for -m/--max-failures is invalid\n"),
            ("-m -1 a.dag", "N for -m/--max-failures must be >= 0\n"),
            ("-t", "-t/--tries requires N\n"),
            ("-t x a.dag", "N for -t/--tries is invalid\n"),
            ("-t 0 a.dag", "N for -t/--tries must be >= 1\n"),
            ("-r", "-r/--rescue requires PATH\n"),
            ("--host-script", "--host-script requires PATH\n"),
            ("--host-memory", "--host-memory requires N\n"),
            ("--host-memory much a.dag", "Invalid value for --host-memory\n"),
            ("--host-memory 0 a.dag", "--host-memory must be an integer >= 1\n"),
            ("--host-cpus", "--host-cpus requires N\n"),
            ("--host-cpus few a.dag", "Invalid value for --host-cpus\n"),
            ("--host-gpus", "--host-gpus requires N\n"),
            ("--host-gpus all a.dag", "Invalid value for --host-gpus\n"),
            ("--runtime-limit", "--runtime-limit requires SECONDS\n"),
            ("--runtime-limit -1 a.dag", "Invalid value for --runtime-limit\n"),
            ("--drain-grace", "--drain-grace requires SECONDS\n"),
            ("--drain-grace -1 a.dag", "Invalid value for --drain-grace\n"),
            ("--drain-grace nan a.dag", "Invalid value for --drain-grace\n"),
            ("--max-wall-time", "--max-wall-time requires T\n"),
            (
                "--max-wall-time long a.dag",
                "Invalid value for --max-wall-time\n",
            ),
            ("--maxfds", "--maxfds requires N\n"),
            ("--maxfds x a.dag", "Invalid value for --maxfds\n"),
            ("--maxfds 0 a.dag", "--maxfds must be at least 1\n"),
            ("--sync-interval", "--sync-interval requires MS\n"),
            (
                "--sync-interval soon a.dag",
                "Invalid value for --sync-interval\n",
            ),
            (
                "--sync-interval -1 a.dag",
                "--sync-interval must be a number of milliseconds\n",
            ),
            ("a.dag b.dag", "Invalid argument\n\n"),
            ("a.dag b.dag --maxfds 0", "--maxfds must be at least 1\n"),
            ("--workers many a.dag", "Invalid value for --workers\n"),
            ("--workers 99999 a.dag", "--workers must be at most 10000\n"),
        ] {
            assert_eq!(refusal(line), message, "{line}");
        }
    }

    #[test]
    fn everything_at_once() {
        let line = "-v -v -q -o out -e err -s -m 3 -t 2x -n a.dag -r res --host-script hs --host-memory 100 \
                    --host-cpus 4 --host-gpus 3 --strict-limits --max-wall-time 0.5 --jobstate-log --monitord-hack \
                    --no-resource-log --no-sleep-on-recv --maxfds 9 --keep-affinity --set-affinity --workers 3 \
                    --no-forward-journal --sync-interval 20 --drain-grace 2.5 \
                    --runtime-limit 60";
        let args = parse_with(line, &[("PMC_KICKSTART", "exec")]).unwrap();
        let expected = RawArgs {
            dag: "a.dag".into(),
            verbosity: 1,
            stdout: Some("out".into()),
            stderr: Some("err".into()),
            skip_rescue: true,
            max_failures: 3,
            tries: Some(2),
            no_lock: true,
            rescue: Some("res".into()),
            host_script: Some("hs".into()),
            host_memory: 100,
            host_cpus: 4,
            host_gpus: 3,
            strict_limits: true,
            max_wall_time: Some(0.5),
            per_task_stdio: true,
            jobstate_log: true,
            monitord_hack: true,
            stampede: false,
            home: None,
            server_variables: Vec::new(),
            exec_kickstart: true,
            no_resource_log: true,
            no_sleep_on_recv: true,
            max_fds: Some(9),
            keep_affinity: true,
            set_affinity: true,
            no_forward_journal: true,
            sync_interval_ms: Some(20),
            runtime_limit: Some(60.0),
            drain_grace: Some(2.5),
            workers: Some(3),
        };
        assert_eq!(args, expected);
    }

    #[cfg(feature = "stampede")]
    #[test]
    fn the_database_needs_the_log_and_the_files_of_the_tasks() {
        let environment = [("HOME", "/home/u"), ("PGSSLMODE", "require"), ("PGHOST", "h")];
        let args = parse_with("--stampede a.dag", &environment).unwrap();
        assert!(args.stampede && args.monitord_hack && args.per_task_stdio);
        assert_eq!(args.home, Some("/home/u".into()));
        assert_eq!(args.server_variables, [("PGSSLMODE", "require".into())]);
    }

    #[test]
    fn the_last_option_wins() {
        assert_eq!(parse_with("-t 2 a.dag -t 3", &[]).unwrap().tries, Some(3));
        assert_eq!(
            parse_with("a.dag -o", &[]),
            Err(EarlyExit::refuse("-o/--stdout requires PATH"))
        );
    }

    #[test]
    fn variables_are_defaults_but_must_be_valid() {
        let variables = [
            ("PMC_HOST_CPUS", "3"),
            ("PMC_HOST_MEMORY", "0"),
            ("PMC_MAX_WALL_TIME", "2.5"),
        ];
        let args = parse_with("--host-cpus 2 a.dag", &variables).unwrap();
        assert_eq!(
            (args.host_cpus, args.host_memory, args.max_wall_time),
            (2, 0, Some(2.5))
        );
        for name in [
            "PMC_HOST_CPUS",
            "PMC_HOST_GPUS",
            "PMC_HOST_MEMORY",
            "PMC_MAX_WALL_TIME",
        ] {
            let refused = parse_with("--host-cpus 2 a.dag", &[(name, "x")]);
            assert_eq!(
                refused,
                Err(EarlyExit::refuse(&format!("Invalid value for {name}")))
            );
        }
        assert_eq!(
            parse_with("a.dag", &[("PMC_HOST_SCRIPT", "hs")])
                .unwrap()
                .host_script,
            Some("hs".into())
        );
    }

    #[test]
    fn an_empty_path_is_none() {
        let words = ["-r", "", "--host-script", "", "a.dag"].map(OsString::from);
        let lookup = |name: &str| (name == "PMC_HOST_SCRIPT").then(|| OsString::from("hs"));
        let args = parse(OsStr::new("pmc"), &words, lookup, true).unwrap();
        assert_eq!((args.rescue, args.host_script), (None, None));
        let args = parse_with("a.dag", &[("PMC_HOST_SCRIPT", "")]).unwrap();
        assert_eq!(args.host_script, None);
    }

    #[test]
    fn help_comes_before_everything() {
        for (line, wanted) in [("", 1), ("-x -o -h", 0), ("a.dag --help", 0), ("-s", 1)] {
            match parse_with(line, &[("PMC_HOST_CPUS", if wanted == 0 { "x" } else { "1" })]) {
                Err(EarlyExit::Print {
                    text,
                    code,
                    everywhere: true,
                }) => {
                    assert_eq!(code, wanted, "{line}");
                    assert!(text.starts_with("Usage: pmc [options] DAGFILE\n\nOptions:\n   -h|--help "));
                }
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn version_ends_the_reading() {
        match parse_with("-s -V -x", &[]) {
            Err(EarlyExit::Print {
                text,
                code: 0,
                everywhere: false,
            }) => assert!(text.starts_with("Version: ")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn help_tells_about_workers_where_it_matters() {
        let text = |words: &[&str], launched| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            match parse(OsStr::new("pmc"), &words, |_| None, launched) {
                Err(EarlyExit::Print { text, .. }) => text,
                other => panic!("{other:?}"),
            }
        };
        assert!(text(&["-h"], false).contains("--workers"));
        assert!(!text(&["-h"], true).contains("--workers"));
        assert!(!text(&["--workers", "2", "-h"], false).contains("--workers"));
    }
}
