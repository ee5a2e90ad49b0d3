//! Summary as text.

use std::fmt::Write as _;
use std::path::Path;

use pmc_calls::shell::shell_quote;

use super::{FailedTask, Status, Summary, Tail};
use crate::text::{self, printable};

/// Maximum failures to explain; the others are only named.
const MAX_EXPLAINED: usize = 5;
/// Maximum failures to name.
const MAX_NAMED: usize = 20;
/// Maximum output files to list.
const MAX_FILES: usize = 8;

/// Renders the summary for a terminal. Paths below `cwd` are shown relative to it.
pub fn render(summary: &Summary, cwd: &Path) -> String {
    let mut out = String::new();
    failures(&mut out, summary, cwd);
    let all = summary.all();
    let verdict = match summary.status {
        Status::Success => "succeeded",
        Status::Failed => "failed",
        Status::Drained => "was drained",
        Status::Interrupted(_) => "was interrupted",
    };
    let _ = write!(
        out,
        "{} {verdict}: {} of {} done",
        summary.label,
        all.done,
        text::count(all.total, "task")
    );
    if all.failed > 0 {
        let _ = write!(out, ", {} failed", all.failed);
    }
    let not_run = all.total.saturating_sub(all.done + all.failed);
    if not_run > 0 {
        let _ = write!(out, ", {not_run} not run");
    }
    let _ = writeln!(out, " ({})", text::duration(summary.wall));
    if summary.max_failures_reached {
        out.push_str("  The run stopped early: the failure limit was reached.\n");
    }

    let mut tasks = Vec::new();
    for (kind, tally) in &summary.tallies {
        let mut part = format!("{} {}", tally.total, kind.name());
        if tally.done != tally.total {
            let _ = write!(part, " ({} done)", tally.done);
        }
        tasks.push(part);
    }
    line(&mut out, "tasks", &tasks.join(", "));
    if summary.done_before > 0 {
        line(
            &mut out,
            "",
            &format!("{} done before this run", summary.done_before),
        );
    }
    if let Some(outputs) = &summary.outputs {
        let mut value = text::path(&outputs.directory, cwd);
        if outputs.files.is_empty() {
            value.push_str("  (empty)");
        } else {
            let _ = write!(value, "  ({})", text::count(outputs.files.len(), "file"));
        }
        line(&mut out, "outputs", &value);
        for (name, size) in outputs.files.iter().take(MAX_FILES) {
            line(&mut out, "", &format!("  {name}  ({})", text::bytes(*size)));
        }
        if outputs.files.len() > MAX_FILES {
            line(
                &mut out,
                "",
                &format!("  and {} more", outputs.files.len() - MAX_FILES),
            );
        }
    }
    line(&mut out, "submit", &text::path(&summary.submit_dir, cwd));
    if summary.status != Status::Success {
        let command: Vec<String> = summary
            .resume
            .iter()
            .map(|word| shell_quote(word).into_owned())
            .collect();
        line(&mut out, "resume", &command.join(" "));
    }
    out
}

fn line(out: &mut String, name: &str, value: &str) {
    let _ = writeln!(out, "  {name:<9}{value}");
}

fn failures(out: &mut String, summary: &Summary, cwd: &Path) {
    for failure in summary.failures.iter().take(MAX_EXPLAINED) {
        render_failure(out, failure, cwd);
        out.push('\n');
    }
    let rest = summary.failures.get(MAX_EXPLAINED..).unwrap_or_default();
    if !rest.is_empty() {
        let names: Vec<&str> = rest
            .iter()
            .take(MAX_NAMED)
            .map(|failure| failure.task.as_str())
            .collect();
        let _ = write!(out, "{} more failed: {}", rest.len(), names.join(", "));
        out.push_str(if rest.len() > MAX_NAMED {
            ", …\n\n"
        } else {
            "\n\n"
        });
    }
}

fn render_failure(out: &mut String, failure: &FailedTask, cwd: &Path) {
    let _ = write!(out, "{} failed: {}", failure.task, failure.ending);
    if let Some(duration) = failure.duration {
        let _ = write!(out, ", after {}", text::duration(duration));
    }
    if failure.attempts > 1 {
        let _ = write!(out, ", {} attempts", failure.attempts);
    }
    if let Some(host) = &failure.host {
        let _ = write!(out, ", on {host}");
    }
    out.push('\n');
    if !failure.command.is_empty() {
        let words: Vec<String> = failure
            .command
            .iter()
            .map(|word| shell_quote(word).into_owned())
            .collect();
        line(out, "command", &words.join(" "));
    }
    if let Some(reason) = failure.reason {
        line(out, "reason", &reason.to_string());
    }
    if let Some(note) = &failure.note {
        line(out, "note", note);
    }
    if !failure.stderr.is_empty() {
        tail(out, "stderr", &failure.stderr);
    } else if !failure.stdout.is_empty() {
        tail(out, "stdout", &failure.stdout);
    }
    if let Some(file) = &failure.output_file {
        line(out, "record", &text::path(file, cwd));
    }
}

fn tail(out: &mut String, name: &str, tail: &Tail) {
    let mut name = name;
    if tail.omitted > 0 {
        line(
            out,
            name,
            &format!("({} before)", text::count(tail.omitted, "line")),
        );
        name = "";
    }
    for text in &tail.lines {
        line(out, name, &format!("| {}", printable(text)));
        name = "";
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::{Outputs, Tally, fixture};
    use super::*;
    use crate::kinds::Kind;

    #[test]
    fn failures_come_with_their_stderr() {
        insta::assert_snapshot!(render(&fixture::failed(), Path::new("/w")));
    }

    #[test]
    fn success_is_short() {
        let summary = Summary {
            status: Status::Success,
            exit_code: 0,
            wall: Duration::from_millis(420),
            tallies: vec![(
                Kind::Compute,
                Tally {
                    total: 1,
                    done: 1,
                    failed: 0,
                },
            )],
            done_before: 0,
            failures: vec![],
            outputs: Some(Outputs {
                directory: "/w/out".into(),
                files: vec![("f.d".into(), 353)],
            }),
            ..fixture::failed()
        };
        insta::assert_snapshot!(render(&summary, Path::new("/w")));
    }

    #[test]
    fn many_failures_are_named_and_control_characters_are_replaced() {
        let mut summary = fixture::failed();
        summary.failures[0].stderr.lines = vec!["\u{1b}[31mred".into()];
        let first = summary.failures[0].clone();
        for number in 0..40 {
            summary.failures.push(FailedTask {
                task: format!("t{number}"),
                ..first.clone()
            });
        }
        let text = render(&summary, Path::new("/w"));
        assert!(text.contains("| \u{fffd}[31mred\n"), "{text}");
        assert!(text.contains("37 more failed: t3, t4,"), "{text}");
        assert!(text.contains("t22, …\n"), "{text}");
    }
}
