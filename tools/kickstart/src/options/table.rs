//! The options as data: for the parser, the help text, the manual page and completions.

/// An option of the command line.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Letter after one dash.
    pub short: Option<char>,
    /// Name after two dashes.
    pub long: Option<&'static str>,
    /// Placeholder of the value; `None` for a flag.
    pub value: Option<&'static str>,
    /// Description.
    pub help: &'static str,
}

const fn flag(short: char, help: &'static str) -> OptionSpec {
    OptionSpec {
        short: Some(short),
        long: None,
        value: None,
        help,
    }
}

const fn option(short: char, value: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec {
        short: Some(short),
        long: None,
        value: Some(value),
        help,
    }
}

const fn long(name: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec {
        short: None,
        long: Some(name),
        value: None,
        help,
    }
}

/// All options, in the order of the help text. The parser accepts those with a letter by this table.
pub const OPTIONS: &[OptionSpec] = &[
    option('n', "TEXT", "transformation, namespace::name:version"),
    option('N', "TEXT", "id of the task in the abstract workflow"),
    option('R', "TEXT", "site"),
    option('L', "TEXT", "label of the workflow"),
    option('T', "TEXT", "time of the abstract workflow"),
    option('w', "DIR", "working directory"),
    option('W', "DIR", "working directory; it is made if it does not exist"),
    option(
        'i',
        "FILE",
        "standard input of the program; - is that of kickstart (default: /dev/null)",
    ),
    option(
        'o',
        "FILE",
        "standard output of the program; - is that of kickstart, !FILE appends, ^FILE renames an existing \
         file to FILE.000 and so on (default: into the record)",
    ),
    option(
        'e',
        "FILE",
        "standard error of the program, with the same forms as -o",
    ),
    option(
        'l',
        "FILE",
        "append the record to FILE; if that fails, it goes to standard output with a warning (default: \
         standard output)",
    ),
    option(
        'B',
        "N",
        "characters of captured output to keep, counted from the end, or all, which is up to 256 MiB (default: 262144)",
    ),
    flag('q', "leave captured output out of the record if the jobs succeed"),
    flag(
        'f',
        "put environment and limits in the record even if the jobs succeed",
    ),
    flag('H', "leave the machine out of the record"),
    option(
        'S',
        "FILE",
        "record size, times and owner of FILE before the run; LFN=FILE gives its logical name, @LIST names a \
         file with one such entry per line; may be repeated",
    ),
    option('s', "FILE", "the same after the run, with SHA-256"),
    flag(
        'M',
        "fail if a FILE of -s is missing after a successful run, as for files after the line \"# required\" of a LIST",
    ),
    flag('X', "make the program executable first"),
    option('k', "SECONDS", "send SIGTERM after this time (default: 0, never)"),
    option(
        'K',
        "SECONDS",
        "send SIGKILL this long after SIGTERM (default: 5)",
    ),
    option(
        'I',
        "FILE",
        "read program and arguments from FILE, one per line; must be the last option",
    ),
    flag('F', "sync the record to disk"),
    flag('c', "ignored"),
    flag(
        'V',
        "print the version of Pegasus that this program is compatible with",
    ),
    long("version", "print the version of this program"),
    flag('h', "print this text and exit with 127, as -?"),
    flag('?', "print this text and exit with 127, as -h"),
    long("help", "print this text"),
];

const USAGE: &str = "\
Usage: pegasus-kickstart [options] PROGRAM [ARGUMENT...]
       pegasus-kickstart [options] -I FILE

Runs PROGRAM and prints a record of the run: times, usage, exit status, files, output.

";

const NOTES: &str = "
KICKSTART_SETUP, _PREJOB, _POSTJOB and _CLEANUP name commands to run before and after.
Tracing (-t, -z, -Z) is not available.
";

/// Returns the help text.
#[must_use]
pub fn usage() -> String {
    const INDENT: usize = 14;
    const WIDTH: usize = 96;
    let mut text = USAGE.to_owned();
    for spec in OPTIONS {
        let mut line = match (spec.short, spec.long) {
            (Some(short), _) => format!(" -{short} {}", spec.value.unwrap_or_default()),
            (None, name) => format!(" --{}", name.unwrap_or_default()),
        };
        line.truncate(line.trim_end().len());
        let mut column = line.len();
        text += &line;
        for (number, word) in spec.help.split(' ').enumerate() {
            if number == 0 || column + 1 + word.len() > WIDTH {
                if number > 0 {
                    text.push('\n');
                    column = 0;
                }
                text.extend(std::iter::repeat_n(' ', INDENT - column));
                column = INDENT;
            } else {
                text.push(' ');
                column += 1;
            }
            text += word;
            column += word.len();
        }
        text.push('\n');
    }
    text + NOTES
}
