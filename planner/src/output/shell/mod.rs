//! The code generator Shell: a script that runs the jobs one after another on this machine, and its
//! functions.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;

use pmc_calls::shell::shell_quote;

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::Task;
use crate::profiles::Namespace;

use crate::tasks::requests::{Kind, messages};
use crate::tasks::{Invocation, Invocations, Plan, PlannedJob};

use super::common::job_problems::MAX_SHOWN;
use super::common::task_line::Line;
use super::{Code, Generator, Writing};

/// File with the functions, beside the script.
const FUNCTIONS: (&str, &str) = (
    "shell-runner-functions.sh",
    include_str!("../../../templates/shell-runner-functions.sh"),
);

/// The code generator.
pub(super) struct Shell;

impl Generator for Shell {
    fn braindump(&self, plan: &Plan<'_>) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("type", Some("shell".to_owned())),
            ("script", Some(format!("{}/{}", plan.submit, script_name(plan)))),
        ]
    }

    fn write(&self, to: &mut Writing<'_>) -> Result<Code, PlanError> {
        let shell = Some(write(to)?);
        Ok(Code {
            shell,
            ..Code::default()
        })
    }
}

fn script_name(plan: &Plan<'_>) -> String {
    format!("{}.sh", plan.run_label)
}

/// Writes script, functions and argument files, and the events of jobs. Returns the name of the script.
///
/// # Errors
/// Jobs on other sites, jobs that a script cannot express, failed writes.
fn write(to: &mut Writing<'_>) -> Result<String, PlanError> {
    let Writing { plan, dir, .. } = *to;
    check_sites(plan)?;
    // Of this process, the default for jobs.
    let path = to.request.environment.variables.get("PATH").map(String::as_str);
    let functions = dir.join(FUNCTIONS.0);
    fs::write(&functions, FUNCTIONS.1).map_err(|e| PlanError::io("write", &functions, e))?;
    let name = script_name(plan);
    let script = dir.join(&name);
    let failed = |source| PlanError::io("write", &script, source);
    let mut out = BufWriter::with_capacity(1 << 16, File::create(&script).map_err(failed)?);
    out.write_all(head(plan).as_bytes()).map_err(failed)?;
    let mut problems = Vec::new();
    let mut invocations = Invocations::new(plan, to.lists);
    let (mut invocation, mut line) = (Invocation::default(), Line::default());
    for &id in &plan.order {
        let job = plan.at(id);
        if let Err(rest) = invocations.fill(id, &mut invocation) {
            problems.extend(rest);
            if problems.len() > MAX_SHOWN {
                break;
            }
            continue;
        }
        match calls(job, &invocation, path) {
            Ok(text) => out.write_all(text.as_bytes()).map_err(failed)?,
            Err(problem) => problems.push(Diagnostic::error(problem.to_string())),
        }
        if let Some(content) = &invocation.argument_file {
            let path = dir.join(format!("{}.arg", job.name));
            plan.secrets.put(&path, content)?;
        }
        line.fill(&invocation);
        to.events.job(id, &line)?;
    }
    PlanError::check_code(problems)?;
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
    Err(PlanError::code(format!(
        "the code generator Shell runs jobs on the site local only, but the job {}{rest} would run on {}: plan with \
         --sites local, or use the code generator PMC",
        first.name,
        plan.sites.get(first.site).name
    )))
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
fn calls(job: PlannedJob<'_>, invocation: &Invocation, path: Option<&str>) -> Result<String, Diagnostic> {
    let plan = job.plan;
    let files = format!("{}/{}", plan.submit, plan.layout.of(job.id));
    let elsewhere = matches!(
        job.task,
        Task::StageIn(_)
            | Task::StageOut(_)
            | Task::InterSite(_)
            | Task::Register(_)
            | Task::CreateDir
            | Task::NoOp
    );
    let directory = if elsewhere || job.creates_work_dir() {
        files.as_str()
    } else {
        job.work_dir()
    };
    let (mut program, mut arguments) = words(invocation);
    if let Some(script) = plan.secrets.path(job.setup_id()) {
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
        invocation
            .stdin
            .as_deref()
            .map_or(Cow::Borrowed("\"\""), shell_quote),
    );
    for (key, value) in environment(job, path) {
        if key.is_empty() || key.contains('=') {
            return Err(Diagnostic::error(format!(
                "job {}: {key:?} cannot be the name of an environment variable",
                job.name
            )));
        }
        text.push(' ');
        text.push_str(&double_quoted(&format!("{key}={value}")));
    }
    text.push('\n');
    // Writing into a String cannot fail.
    if job.is_wrapped() {
        let _ = writeln!(
            text,
            "execute_post_script {} {} check_output {} \"\"",
            shell_quote(&job.name),
            shell_quote(&files),
            double_quoted(&post_arguments(job))
        );
        let _ = writeln!(text, "check_exitcode {} POST_SCRIPT $?", shell_quote(&job.name));
    } else {
        let _ = writeln!(text, "check_exitcode {} JOB $?", shell_quote(&job.name));
    }
    if text.contains('\0') {
        let message = format!("job {}: its command contains a NUL character", job.name);
        return Err(Diagnostic::error(message));
    }
    Ok(text)
}

/// Returns the program and its arguments as words of a shell.
fn words(invocation: &Invocation) -> (String, String) {
    let arguments = invocation.arguments.iter();
    let arguments: Vec<String> = arguments.map(|word| shell_quote(&word).into_owned()).collect();
    (invocation.program.clone(), arguments.join(" "))
}

/// Returns the arguments for the check of the output: messages of failure and success, and the name of the
/// job.
fn post_arguments(job: PlannedJob<'_>) -> String {
    let mut text = String::new();
    for (kind, message) in messages(&job.setup.profiles) {
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
fn environment<'p>(job: PlannedJob<'p>, path: Option<&'p str>) -> Vec<(&'p str, Cow<'p, str>)> {
    let plan = job.plan;
    let own: Vec<(&str, &str)> = job.setup.profiles.of(Namespace::Env).collect();
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
        let mut invocation = Invocation {
            program: "/bin/echo".into(),
            ..Invocation::default()
        };
        for word in ["it's", "$HOME", "a b", "\"q\"", "back\\slash", ""] {
            invocation.arguments.word(word);
        }
        let (program, arguments) = words(&invocation);
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
}
