//! The code generator Shell: a script that runs the jobs one after another on this machine, and its
//! functions.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pmc_calls::shell::shell_quote;

use crate::error::{Cause, PlanError, Problem};
use crate::exec::{JobId, Task};
use crate::profiles::Namespace;

use super::Plan;
use super::command::{Command, command, creates_work_dir, is_wrapped, work_dir};
use super::events::JobEvents;
use super::messages::{self, Kind};

/// File with the functions, beside the script.
const FUNCTIONS: (&str, &str) = (
    "shell-runner-functions.sh",
    include_str!("../../../templates/shell-runner-functions.sh"),
);

/// Maximum jobs whose problems are shown.
const MAX_SHOWN: usize = 20;

/// Writes script, functions and argument files into `dir`, and the events of jobs. Returns the name of the
/// script. `path` is the `PATH` of this process, the default for jobs.
///
/// # Errors
/// Jobs on other sites, jobs that a script cannot express, failed writes.
pub(crate) fn write(
    plan: &Plan<'_>,
    dir: &Path,
    path: Option<&str>,
    events: &mut JobEvents<'_>,
) -> Result<String, PlanError> {
    check_sites(plan)?;
    let functions = dir.join(FUNCTIONS.0);
    fs::write(&functions, FUNCTIONS.1).map_err(|e| PlanError::io("write", &functions, e))?;
    let name = format!("{}.sh", plan.run_label);
    let script = dir.join(&name);
    let failed = |source| PlanError::io("write", &script, source);
    let mut out = BufWriter::with_capacity(1 << 16, File::create(&script).map_err(failed)?);
    out.write_all(head(plan).as_bytes()).map_err(failed)?;
    let mut problems = Vec::new();
    for &id in &plan.order {
        let job = plan.job(id);
        let command = match command(plan, id) {
            Ok(command) => command,
            Err(rest) => {
                problems.extend(rest);
                if problems.len() > MAX_SHOWN {
                    break;
                }
                continue;
            }
        };
        match calls(plan, id, &command, path) {
            Ok(text) => out.write_all(text.as_bytes()).map_err(failed)?,
            Err(problem) => problems.push(problem.to_string()),
        }
        if let Some(content) = &command.argument_file {
            let path = dir.join(format!("{}.arg", job.name));
            plan.secrets.put(&path, content)?;
        }
        events.job(id, &command)?;
    }
    if !problems.is_empty() {
        return Err(PlanError::Code(problems));
    }
    out.write_all(b"\nend_workflow 0\n").map_err(failed)?;
    let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
    file.set_permissions(fs::Permissions::from_mode(0o755))
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    Ok(name)
}

/// Refuses jobs of other sites: the script runs all jobs on this machine.
fn check_sites(plan: &Plan<'_>) -> Result<(), PlanError> {
    let local = plan.sites.local();
    let mut elsewhere = plan.exec.jobs.iter().filter(|job| job.site != local);
    let Some(first) = elsewhere.next() else {
        return Ok(());
    };
    let rest = match elsewhere.count() {
        0 => String::new(),
        count => format!(" and {count} more jobs"),
    };
    Err(PlanError::Code(vec![format!(
        "the code generator Shell runs jobs on the site local only, but the job {}{rest} would run on {}: plan with \
         --sites local, or use the code generator PMC",
        first.name,
        plan.sites.get(first.site).name
    )]))
}

fn head(plan: &Plan<'_>) -> String {
    let label: String = plan.workflow.label.chars().filter(|c| !c.is_control()).collect();
    format!(
        "#!/bin/bash\n\
         # Runs the jobs of the workflow {label} on this machine, one after the other.\n\n\
         PEGASUS_SUBMIT_DIR={}\n\
         functions=$PEGASUS_SUBMIT_DIR/{}\n\
         if ! . \"$functions\"; then\n    \
             echo \"$0 needs $functions, which lies beside it when the workflow is planned\" >&2\n    \
             exit 1\n\
         fi\n\
         begin_workflow\n",
        shell_quote(&plan.submit),
        FUNCTIONS.0
    )
}

/// Appends the calls for one job.
fn calls(plan: &Plan<'_>, id: JobId, command: &Command, path: Option<&str>) -> Result<String, Problem> {
    let job = plan.job(id);
    let files = format!("{}/{}", plan.submit, plan.layout.of(id));
    let elsewhere = matches!(
        job.task,
        Task::StageIn(_)
            | Task::StageOut(_)
            | Task::InterSite(_)
            | Task::Register(_)
            | Task::CreateDir
            | Task::NoOp
    );
    let directory = if elsewhere || creates_work_dir(plan, id) {
        files.as_str()
    } else {
        work_dir(plan, id)
    };
    let (mut program, mut arguments) = words(command);
    if let Some(script) = plan.secrets.path(job.setup) {
        let rest = [
            shell_quote(&script),
            shell_quote(&program),
            Cow::Borrowed(&*arguments),
        ];
        arguments = rest.join(" ");
        program = "/bin/sh".into();
    }
    let mut text = format!(
        "\nexecute_job {} {} {} {} {} {}",
        shell_quote(&job.name),
        shell_quote(directory),
        shell_quote(&files),
        shell_quote(&program),
        double_quoted(&arguments),
        command
            .stdin
            .as_deref()
            .map_or(Cow::Borrowed("\"\""), shell_quote),
    );
    for (key, value) in environment(plan, id, path) {
        if key.is_empty() || key.contains('=') {
            return Err(Cause::Profile.problem(format!(
                "job {}: {key:?} cannot be the name of an environment variable",
                job.name
            )));
        }
        text.push(' ');
        text.push_str(&double_quoted(&format!("{key}={value}")));
    }
    text.push('\n');
    // Writing into a String cannot fail.
    if is_wrapped(plan, id) {
        let _ = writeln!(
            text,
            "execute_post_script {} {} check_output {} \"\"",
            shell_quote(&job.name),
            shell_quote(&files),
            double_quoted(&post_arguments(plan, id))
        );
        let _ = writeln!(text, "check_exitcode {} POST_SCRIPT $?", shell_quote(&job.name));
    } else {
        let _ = writeln!(text, "check_exitcode {} JOB $?", shell_quote(&job.name));
    }
    if text.contains('\0') {
        let message = format!("job {}: its command contains a NUL character", job.name);
        return Err(Cause::Job.problem(message));
    }
    Ok(text)
}

/// Returns the program and its arguments as words of a shell.
fn words(command: &Command) -> (String, String) {
    let split = |text: &str| -> Vec<String> {
        pmc_dag::words::split(text.as_bytes())
            .into_iter()
            .map(|word| String::from_utf8_lossy(&word).into_owned())
            .collect()
    };
    let program = split(&command.program).into_iter().next().unwrap_or_default();
    let arguments: Vec<String> = split(&command.arguments)
        .iter()
        .map(|word| shell_quote(word).into_owned())
        .collect();
    (program, arguments.join(" "))
}

/// Returns the arguments for the check of the output: messages of failure and success, and the name of the
/// job.
fn post_arguments(plan: &Plan<'_>, id: JobId) -> String {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup].profiles;
    let mut text = String::new();
    for (kind, message) in messages::of(profiles) {
        let option = match kind {
            Kind::Failure => "-f",
            Kind::Success => "-s",
        };
        let _ = write!(text, "{option} {} ", shell_quote(message));
    }
    text.push_str(&shell_quote(&job.name));
    text
}

/// Returns the environment of a job: defaults, overridden by its profiles.
fn environment<'p>(plan: &'p Plan<'_>, id: JobId, path: Option<&'p str>) -> Vec<(&'p str, Cow<'p, str>)> {
    let job = plan.job(id);
    let own: Vec<(&str, &str)> = plan.exec.setups[job.setup].profiles.of(Namespace::Env).collect();
    let home = plan.sites.get(job.site).tools.strip_suffix("/bin");
    let everywhere = [
        ("LANG", Some("en_US.UTF-8")),
        ("PEGASUS_HOME", home),
        ("PATH", path),
    ];
    everywhere
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .filter(|(key, _)| !own.iter().any(|(k, _)| k == key))
        .chain(own.iter().copied())
        .filter(|(key, _)| !plan.secrets.has(key))
        .map(|(key, value)| (key, Cow::Borrowed(value)))
        .collect()
}

/// Quotes a word with double quotes.
fn double_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '$' | '`' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_two_shells() {
        let command = Command {
            program: "/bin/echo".into(),
            arguments: pmc_dag_text(&["it's", "$HOME", "a b", "\"q\"", "back\\slash", ""]),
            ..Command::default()
        };
        let (program, arguments) = words(&command);
        assert_eq!(program, "/bin/echo");
        let script = format!(
            "a={}; eval \"set -- $a\"; printf '[%s]' \"$@\"",
            double_quoted(&arguments)
        );
        let output = std::process::Command::new("bash")
            .arg("-c")
            .arg(script)
            .output()
            .expect("bash is there");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "[it's][$HOME][a b][\"q\"][back\\slash][]"
        );
    }

    fn pmc_dag_text(words: &[&str]) -> String {
        let words: Vec<_> = words
            .iter()
            .map(|word| super::super::command::quote(word).into_owned())
            .collect();
        words.join(" ")
    }
}
