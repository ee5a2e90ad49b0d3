//! The help text.

use pmc_calls::kickstart::OPTIONS;

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
