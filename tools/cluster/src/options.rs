//! Command line and environment.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use clap::{ArgAction, Parser};

/// Maximum commands that run at a time.
const MAX_CPUS: usize = 1024;

const NOTES: &str = "\
SEQEXEC_SETUP and SEQEXEC_CLEANUP name commands to run before and after all others.

Exit status: 0 success, 1 wrong usage, 2 FILE of -s cannot be opened, 3 LIST cannot be read,
4 output cannot be written, 5 a command failed or a signal ended the run.";

/// Runs a list of commands as one job, with a record of each.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "pegasus-cluster",
    version,
    disable_help_flag = true,
    after_help = NOTES
)]
pub struct Args {
    /// Print every start and end of a command, in lines that begin with #
    #[arg(short, overrides_with = "debug")]
    debug: bool,
    /// Exit with 0, even if commands fail
    #[arg(
        short = 'e',
        overrides_with = "ignore_failures",
        conflicts_with = "stop_at_failure"
    )]
    ignore_failures: bool,
    /// Start no further command after a failure [default: run all, exit with 5 if one failed]
    #[arg(short = 'f', overrides_with = "stop_at_failure")]
    stop_at_failure: bool,
    /// Treat this exit code of a command as success, too; may be repeated
    #[arg(short = 'S', value_name = "CODE", allow_hyphen_values = true)]
    success_codes: Vec<u8>,
    /// Append records to FILE instead of printing them
    #[arg(
        short = 's',
        value_name = "FILE",
        overrides_with = "records",
        allow_hyphen_values = true
    )]
    records: Option<PathBuf>,
    /// Append a line to FILE when a command starts or ends [default: SEQEXEC_PROGRESS_REPORT]
    #[arg(
        short = 'R',
        value_name = "FILE",
        overrides_with = "progress",
        allow_hyphen_values = true
    )]
    progress: Option<PathBuf>,
    /// Run N commands at a time; auto: as many as there are CPUs [default: SEQEXEC_CPUS, else 1]
    #[arg(
        short = 'n',
        value_name = "N",
        overrides_with = "cpus",
        allow_hyphen_values = true,
        value_parser = |text: &str| Cpus::parse(text.as_ref()).ok_or("expected a number or auto")
    )]
    cpus: Option<Cpus>,
    /// Commands, one per line [default: standard input]
    #[arg(value_name = "LIST")]
    list: Option<PathBuf>,
    /// Print help
    #[arg(short, long, short_alias = '?', action = ArgAction::Help)]
    help: Option<bool>,
}

/// What to run, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-d`: print more, on standard output.
    pub debug: bool,
    /// What failed commands mean.
    pub failures: Failures,
    /// `-S`: exit codes other than 0 that are successes.
    pub success_codes: BTreeSet<i32>,
    /// `-s`: file to append records to, instead of standard output.
    pub records: Option<PathBuf>,
    /// `-R`, else `SEQEXEC_PROGRESS_REPORT`: file to append starts and ends of commands to.
    pub progress: Option<PathBuf>,
    /// `-n`, else `SEQEXEC_CPUS`: number of commands that run at a time.
    pub cpus: Cpus,
    /// The list; `None` means standard input.
    pub list: Option<PathBuf>,
    /// `SEQEXEC_SETUP`: a command to run before all others.
    pub setup: Option<Vec<u8>>,
    /// `SEQEXEC_CLEANUP`: a command to run after all others.
    pub cleanup: Option<Vec<u8>>,
    /// Warnings about settings that are ignored.
    pub warnings: Vec<String>,
}

/// What failed commands mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failures {
    /// All commands run; then the exit code reports failures.
    #[default]
    Count,
    /// `-f`: no further command is started.
    Stop,
    /// `-e`: failures do not change the exit code.
    Ignore,
}

/// Number of commands that run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// A fixed number.
    Number(usize),
    /// The number of CPUs of this process.
    Auto,
}

impl Default for Cpus {
    fn default() -> Self {
        Cpus::Number(1)
    }
}

impl Cpus {
    /// Parses `auto` or a number; 0 means 1.
    fn parse(text: &OsStr) -> Option<Self> {
        let text = text.to_str()?.trim();
        if text.eq_ignore_ascii_case("auto") {
            return Some(Cpus::Auto);
        }
        let number = text.parse::<usize>().ok()?;
        Some(Cpus::Number(number.clamp(1, MAX_CPUS)))
    }
}

impl Options {
    /// Combines the command line with the environment, where `variable` looks up names.
    pub fn new(args: Args, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut warnings = Vec::new();
        let cpus = args.cpus.or_else(|| {
            let value = variable("SEQEXEC_CPUS")?;
            let cpus = Cpus::parse(&value);
            if cpus.is_none() {
                warnings.push(format!(
                    "SEQEXEC_CPUS must be a number or auto, not {}: it is ignored",
                    value.display()
                ));
            }
            cpus
        });
        Self {
            debug: args.debug,
            failures: match (args.ignore_failures, args.stop_at_failure) {
                (true, _) => Failures::Ignore,
                (_, true) => Failures::Stop,
                _ => Failures::Count,
            },
            success_codes: args.success_codes.into_iter().map(i32::from).collect(),
            records: args.records,
            progress: args
                .progress
                .or_else(|| variable("SEQEXEC_PROGRESS_REPORT").map(PathBuf::from)),
            cpus: cpus.unwrap_or_default(),
            // A dash alone means standard input.
            list: args.list.filter(|list| list.as_os_str() != "-"),
            setup: variable("SEQEXEC_SETUP").map(OsString::into_vec),
            cleanup: variable("SEQEXEC_CLEANUP").map(OsString::into_vec),
            warnings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, environment: &[(&str, &str)]) -> Result<Options, clap::Error> {
        let args = Args::try_parse_from(["pegasus-cluster"].into_iter().chain(line.split_whitespace()))?;
        Ok(Options::new(args, |name| {
            let (_, value) = environment.iter().find(|(n, _)| *n == name)?;
            Some((*value).into())
        }))
    }

    fn options(line: &str, environment: &[(&str, &str)]) -> Options {
        read(line, environment).unwrap()
    }

    #[test]
    fn options_may_be_joined_and_values_glued() {
        let found = options("-df -S 3 -S17 -s rec -R prog -n4 list.in", &[]);
        let expected = Options {
            debug: true,
            failures: Failures::Stop,
            success_codes: [3, 17].into(),
            records: Some("rec".into()),
            progress: Some("prog".into()),
            cpus: Cpus::Number(4),
            list: Some("list.in".into()),
            ..Options::default()
        };
        assert_eq!(found, expected);
        assert_eq!(options("-e -", &[]).failures, Failures::Ignore);
        assert_eq!(options("-- -x", &[]).list, Some("-x".into()));
        assert_eq!(options("-e -e -n 2 -n 3 x", &[]).cpus, Cpus::Number(3));
        assert_eq!(options("-s -x -", &[]).records, Some("-x".into()));
        for help in ["-h", "-?", "--help"] {
            let error = read(help, &[]).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp, "{help}");
        }
    }

    #[test]
    fn options_override_the_environment() {
        let environment = [
            ("SEQEXEC_CPUS", "auto"),
            ("SEQEXEC_PROGRESS_REPORT", "log"),
            ("SEQEXEC_SETUP", "/bin/s 1"),
            ("SEQEXEC_CLEANUP", ""),
        ];
        let found = options("x", &environment);
        assert_eq!(found.cpus, Cpus::Auto);
        assert_eq!(found.progress, Some("log".into()));
        assert_eq!(found.setup.as_deref(), Some(&b"/bin/s 1"[..]));
        assert_eq!(found.cleanup, None);
        let found = options("-n 0 -R own x", &environment);
        assert_eq!(
            (found.cpus, found.progress),
            (Cpus::Number(1), Some("own".into()))
        );
        assert_eq!(options("x", &[("SEQEXEC_CPUS", "many")]).warnings.len(), 1);
    }

    #[test]
    fn the_table_of_options_with_a_value_is_this_one() {
        use clap::CommandFactory as _;
        let command = Args::command();
        let with_value = command
            .get_arguments()
            .filter(|option| option.get_action().takes_values());
        let mut letters: Vec<u8> = with_value
            .filter_map(|option| u8::try_from(option.get_short()?).ok())
            .collect();
        letters.sort_unstable();
        let mut table = pmc_calls::cluster::WITH_VALUE;
        table.sort_unstable();
        assert_eq!(letters, table);
    }

    #[test]
    fn wrong_options_are_refused() {
        for line in ["-x", "-n", "-n some", "-S -1", "-S x", "-e -f", "a b", "-R"] {
            assert!(read(line, &[]).is_err(), "{line}");
        }
    }
}
