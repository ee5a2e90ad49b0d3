//! A shell around a program without kickstart.

use std::fmt::Write as _;

use pmc_calls::shell::shell_quote;

use super::Invocation;
use super::file_lists::required_outputs;
use super::plan::PlannedJob;
use super::words::Words;
use super::work_lists::WorkLists;

/// Maximum bytes of output names in a shell command that checks them. One argument has at most 128 KiB.
const MAX_CHECKED: usize = 64 * 1024;

/// Returns whether the code generator, or the job itself, does what the shell would do.
pub(super) fn is_superfluous(job: PlannedJob<'_>) -> bool {
    let [_, stdout, stderr] = job.streams();
    (job.is_prepared() || job.finds_directory())
        && job.launcher().is_none()
        && stdout.is_none()
        && stderr.is_none()
        && (job.ships_files() || required_outputs(job).is_empty())
}

/// Fills in a shell that changes into the work directory, redirects streams and checks outputs, and the
/// program with its arguments.
pub(super) fn wrap(job: PlannedJob<'_>, lists: &WorkLists, arguments: &Words, invocation: &mut Invocation) {
    let streams = job.streams();
    let executable = &*job.setup.executable;
    let line = &mut invocation.arguments;
    if job.setup.container.is_some() && streams == [None; 3] {
        // The image may have no shell. What starts the container knows the directory and checks outputs.
        match job.launcher() {
            Some((launcher, options)) => {
                invocation.program.push_str(launcher);
                push_options(options, line);
                line.word(executable).blanks(" ");
            }
            None => invocation.program.push_str(executable),
        }
        line.append(arguments);
        return;
    }
    invocation.program.push_str("/bin/sh");
    let directory = if job.starts_on_node() { "." } else { job.work_dir() };
    line.option("-c", &script(job, lists)).word(directory).blanks(" ");
    if let Some((launcher, options)) = job.launcher() {
        line.word(launcher).blanks(" ");
        push_options(options, line);
    }
    line.word(executable).blanks(" ").append(arguments);
}

fn push_options(options: Option<&str>, line: &mut Words) {
    if let Some(options) = options {
        line.quoted(options).blanks(" ");
    }
}

/// Returns the script. Its arguments are the directory, the program, and the arguments of that.
fn script(job: PlannedJob<'_>, lists: &WorkLists) -> String {
    let [stdin, stdout, stderr] = job.streams();
    let mut outputs = required_outputs(job);
    // The shell itself makes these files.
    outputs.retain(|&output| ![stdout, stderr].contains(&Some(output)));
    let length: usize = outputs.iter().map(|name| name.len() + 1).sum();
    let checks = !outputs.is_empty() && length < MAX_CHECKED;
    let mut script = String::from(if checks {
        "cd \"$0\" && \"$@\""
    } else {
        "cd \"$0\" && exec \"$@\""
    });
    let list = lists.stdin(job).filter(|_| job.reads_list());
    let streams = [
        ("<", list.as_deref()),
        ("<", stdin),
        (">", stdout),
        ("2>", stderr),
    ];
    for (operator, file) in streams {
        if let Some(file) = file {
            // Writing into a String cannot fail.
            let _ = write!(script, " {operator}{}", shell_quote(file));
        }
    }
    if checks {
        script.push_str(" || exit; m=0; for f in");
        for output in outputs {
            let _ = write!(script, " {}", shell_quote(output));
        }
        // Writing into a String cannot fail.
        let _ = write!(
            script,
            "; do test -e \"$f\" || {{ echo \"the program ended with success, but did not write its declared output: $f; \
             {}\" >&2; m=1; }}; done; exit $m",
            pmc_calls::OUTPUTS_UNCHECKED
        );
    }
    script
}
