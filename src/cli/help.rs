//! The text of `--help`.

use std::ffi::OsStr;
use std::fmt::Write as _;

use super::options::{OPTIONS, OptionSpec, Section};

/// Width of the column with the names.
const NAMES_WIDTH: usize = 21;

/// The help: the options of the original program as it prints them, then the others.
pub(super) fn help(program: &OsStr) -> String {
    let mut text = format!("Usage: {} [options] DAGFILE\n\nOptions:\n", program.display());
    append_section(&mut text, Section::Original);
    text.push_str("\nAdditional options:\n");
    append_section(&mut text, Section::Additional);
    text
}

fn append_section(text: &mut String, section: Section) {
    let options = OPTIONS
        .iter()
        .filter(|option| option.section == section && option.is_available());
    for option in options {
        let mut names = option.names();
        if let Some(value) = shown_value(option) {
            let _ = write!(names, " {value}");
        }
        if names.len() >= NAMES_WIDTH {
            let _ = write!(names, "\n   {:NAMES_WIDTH$}", "");
        }
        let _ = writeln!(text, "   {names:<NAMES_WIDTH$}{}", option.help);
    }
}

/// The original does not show the value of this one option.
fn shown_value(option: &OptionSpec) -> Option<&'static str> {
    option.value.filter(|_| option.long != "maxfds")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the original prints; the golden case `cli-help` has the same.
    const ORIGINAL: &str = "\
Usage: pmc [options] DAGFILE

Options:
   -h|--help            Print this message
   -V|--version         Print version information
   -v|--verbose         Increase logging level
   -q|--quiet           Decrease logging level
   -o|--stdout PATH     Path to stdout file for tasks
   -e|--stderr PATH     Path to stderr file for tasks
   -s|--skip-rescue     Ignore existing rescue file (still creates one)
   -m|--max-failures N  Stop submitting tasks after N tasks have failed
   -t|--tries N         Try tasks N times before marking them failed
   -n|--nolock          Do not try to lock DAGFILE
   -r|--rescue PATH     Path to rescue log [default: DAGFILE.rescue]
   --host-script PATH   Path to script that will be launched on each host
   --host-memory N      Amount of memory per host in MB
   --host-cpus N        Number of CPUs per host
   --strict-limits      Enforce strict task resource limits
   --max-wall-time T    Maximum wall time of the job in minutes
   --per-task-stdio     Write each task's stdout/stderr to a different file
   --jobstate-log       Generate jobstate.log
   --monitord-hack      Generate a .dagman.out file to trick monitord
   --no-resource-log    Do not generate a log of resource usage
   --no-sleep-on-recv   Do not sleep on message receive
   --maxfds             Maximum cached file descriptors
   --keep-affinity      Keep inherited CPU and memory affinity
   --set-affinity       Set CPU affinity for multicore tasks
";

    #[test]
    fn help_begins_like_that_of_the_original() {
        let help = help(OsStr::new("pmc"));
        let additional = help.strip_prefix(ORIGINAL).expect("the original's help");
        assert!(additional.starts_with("\nAdditional options:\n   --workers N          Number of "));
        assert!(additional.contains("\n   --runtime-limit SECONDS\n                        Time limit "));
        assert!(additional.contains("\n   --host-gpus N        "));
        assert_eq!(
            additional.contains("\n   --stampede           "),
            cfg!(feature = "stampede")
        );
    }

    #[test]
    fn lines_fit_a_terminal() {
        for line in help(OsStr::new("pmc")).lines() {
            assert!(line.len() <= 110, "{line}");
        }
    }
}
