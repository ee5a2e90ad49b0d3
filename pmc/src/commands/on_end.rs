//! `--on-end`: a command of the user at the end of a run.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::layout;
use crate::submit::Submit;
use crate::summary::{Status, Summary};

/// Runs the command in a shell and waits for it. Its result is passed in environment variables, and its
/// output goes to standard error, since standard output is for the summary. If it fails, prints a warning:
/// the exit code is that of the run.
pub fn run(command: &str, submit: &Submit, result: Result<&Summary, &Failure>) {
    let mut shell = Command::new("/bin/sh");
    pmc_spawn::open_files::restore_in(&mut shell);
    let status = shell
        .args(["-c", command])
        .envs(variables(submit, result))
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            pmc_terminal::message(format!("pmc: warning: the command of --on-end failed: {status}"))
        }
        Err(error) => pmc_terminal::message(format!(
            "pmc: warning: the command of --on-end cannot be started: {error}"
        )),
    }
}

/// Returns the variables for the command.
fn variables(submit: &Submit, result: Result<&Summary, &Failure>) -> Vec<(&'static str, String)> {
    let path = |path: &Path| path.display().to_string();
    let run = match submit.dir.parent() {
        Some(parent) if submit.dir.ends_with(layout::SUBMIT) => parent,
        _ => &submit.dir,
    };
    let (word, code) = match result {
        Ok(summary) => (word(summary.status), summary.exit_code),
        Err(failure) => ("failure", failure.code),
    };
    let mut variables = vec![
        ("PMC_RESULT", word.to_owned()),
        ("PMC_EXIT_CODE", code.to_string()),
        ("PMC_WORKFLOW", submit.label.clone()),
        ("PMC_RUN_DIR", path(run)),
        ("PMC_SUBMIT_DIR", path(&submit.dir)),
    ];
    if let Ok(summary) = result {
        let all = summary.all();
        variables.extend([
            ("PMC_TASKS", all.total.to_string()),
            ("PMC_TASKS_DONE", all.done.to_string()),
            ("PMC_TASKS_FAILED", all.failed.to_string()),
        ]);
    }
    variables
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Success => "success",
        Status::Drained | Status::Failed => "failure",
        Status::Interrupted(_) => "interrupted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use crate::summary::fixture;

    #[test]
    fn variables_describe_the_result() {
        let submit = Submit {
            dir: "/w/run0001/submit".into(),
            dag: "/w/run0001/submit/x.dag".into(),
            label: "x".into(),
            condor: None,
        };
        let summary = fixture::failed();
        let found = variables(&submit, Ok(&summary));
        for (name, value) in [
            ("PMC_RESULT", "failure"),
            ("PMC_EXIT_CODE", "1"),
            ("PMC_RUN_DIR", "/w/run0001"),
            ("PMC_TASKS", "7"),
            ("PMC_TASKS_FAILED", "2"),
        ] {
            assert!(found.contains(&(name, value.into())), "{name}: {found:?}");
        }
        let failure = Failure::new(exit::NOT_RUN, anyhow::anyhow!("no"));
        let found = variables(&submit, Err(&failure));
        assert!(found.contains(&("PMC_RESULT", "failure".into())));
        assert!(found.contains(&("PMC_EXIT_CODE", "4".into())));
    }
}
