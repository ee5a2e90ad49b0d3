//! Arguments of the program that a job runs.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::exec::{JobId, Task};
use crate::model::{Arguments, Job};
use crate::output::lists::WorkLists;
use crate::output::{PROPERTIES, Plan};
use crate::refine::settings::Mode;

use super::places::part;
use super::quoting::{push_word, quote};

/// Returns the arguments of the program as one text quoted for the DAG. `text` is a buffer.
pub(super) fn arguments<'t>(
    plan: &Plan<'t>,
    id: JobId,
    wrapped: bool,
    text: &'t mut String,
    problems: &mut Vec<String>,
) -> &'t str {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup].profiles;
    match job.task {
        Task::Compute(n) => {
            return compute_arguments(&plan.workflow.jobs[n], wrapped, text, problems);
        }
        Task::StageIn(_) | Task::StageOut(_) | Task::InterSite(_) => {
            let threads = profiles.pegasus("transfer.threads").map_or("2", str::trim);
            for part in [" --threads ", threads, " "] {
                text.push_str(part);
            }
            match profiles.pegasus("transfer.arguments").map(str::trim) {
                Some(more) if !more.is_empty() => text.push_str(more),
                _ => text.push_str(plan.settings.mode.transfer_arguments()),
            }
        }
        Task::Register(n) => {
            let _ = write!(
                text,
                "--prefix pegasus.catalog.replica.output --conf {} {}",
                quote(&format!("{}/{PROPERTIES}", plan.submit)),
                if plan.settings.mode == Mode::Debug {
                    "-vvv"
                } else {
                    "-v"
                }
            );
            let producers = &plan.exec.registrations[n].producers;
            let with_metadata = plan.settings.integrity != crate::refine::settings::Integrity::None;
            if with_metadata && !producers.is_empty() {
                let mut files = String::new();
                for (k, &producer) in producers.iter().enumerate() {
                    files.push_str(if k > 0 { "," } else { "" });
                    plan.push_job_file(producer, ".meta", &mut files);
                }
                push_word(text, " --meta ", &files, "");
            }
            push_word(text, " --insert ", &registration_orders(plan, id), "");
        }
        Task::Chmod(n) => {
            text.push_str(" +x ");
            for &file in &plan.exec.chmods[n] {
                let path = plan
                    .sites
                    .scratch_path(job.staging, plan.workflow.files.name(file));
                push_word(text, " ", &path, "");
            }
        }
        Task::CreateDir | Task::CleanUp(_) | Task::RemoveDir | Task::NoOp | Task::Cluster(..) => {}
    }
    if let Some((at, length)) = part(plan, id) {
        let file = format!("{}/{}", plan.submit, WorkLists::file_name(&plan.base));
        let _ = write!(text, " --file {} --part {at}:{length}", quote(&file));
    }
    text
}

/// Returns the file with a job's registrations.
fn registration_orders(plan: &Plan<'_>, id: JobId) -> String {
    match plan.orders.get() {
        Some(orders) => orders.file(plan, id),
        None => plan.job_file(id, ".in"),
    }
}

/// Maximum bytes of one argument on Linux, including the final NUL.
const MAX_ARGUMENT: usize = 128 * 1024;

fn compute_arguments<'t>(
    job: &'t Job,
    wrapped: bool,
    text: &'t mut String,
    problems: &mut Vec<String>,
) -> &'t str {
    match &job.arguments {
        Arguments::Raw(raw) => {
            if raw.contains('\n') {
                problems.push(format!(
                    "job {}: its arguments contain a line break, which a DAG cannot express",
                    job.id
                ));
            }
            raw
        }
        Arguments::Words(list) => {
            for (k, word) in list.iter().enumerate() {
                if word.contains(['\n', '\r']) {
                    problems.push(format!(
                        "job {}: argument {} contains a line break, which a DAG cannot express",
                        job.id,
                        k + 1
                    ));
                }
                if word.len() >= MAX_ARGUMENT {
                    problems.push(format!(
                        "job {}: argument {} has {} bytes, but the limit for one argument is {}: write it to a file",
                        job.id,
                        k + 1,
                        word.len(),
                        MAX_ARGUMENT - 1
                    ));
                }
                if k > 0 {
                    text.push(' ');
                }
                text.push_str(&quote(&given(word, wrapped)));
            }
            text
        }
    }
}

/// Returns the arguments of a compute job as words for an argument file, `None` if the text cannot be split
/// safely.
pub(super) fn argument_words(job: &Job, wrapped: bool) -> Option<Vec<Cow<'_, str>>> {
    match &job.arguments {
        Arguments::Raw(text) => Some(text.split_whitespace().map(Cow::Borrowed).collect()),
        // Empty lines of an argument file are ignored.
        Arguments::Words(list) => list
            .iter()
            .map(|word| Some(given(word, wrapped)).filter(|word| !word.is_empty()))
            .collect(),
    }
}

/// Quotes a word for the program, which kickstart may start.
fn given(word: &str, wrapped: bool) -> Cow<'_, str> {
    if wrapped {
        for_kickstart(word)
    } else {
        Cow::Borrowed(word)
    }
}

/// Escapes a word so that kickstart, which rewrites arguments, passes it unchanged. Variables `$NAME` and
/// `${NAME}` are still expanded when the job runs. `\$` is a dollar sign, as is a `$` without a variable
/// name, which kickstart would refuse.
fn for_kickstart(word: &str) -> Cow<'_, str> {
    if !word.contains(['\\', '"', '\'', '$']) {
        return Cow::Borrowed(word);
    }
    let mut out = String::with_capacity(word.len() + 8);
    let mut rest = word;
    while let Some(c) = rest.chars().next() {
        let (this, after) = rest.split_at(c.len_utf8());
        rest = after;
        let is_plain = match c {
            '\\' if after.starts_with('$') => {
                out.push_str("\\$");
                rest = &after[1..];
                continue;
            }
            '\\' | '"' | '\'' => false,
            '$' => begins_variable(after),
            _ => true,
        };
        if !is_plain {
            out.push('\\');
        }
        out.push_str(this);
    }
    Cow::Owned(out)
}

/// Returns whether the text after a dollar sign is the name of a variable.
fn begins_variable(text: &str) -> bool {
    match text.strip_prefix('{') {
        Some(name) => name.contains('}'),
        None => text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_kickstart_are_escaped() {
        assert_eq!(for_kickstart("plain $HOME"), "plain $HOME");
        assert_eq!(for_kickstart(r#"it's a\b "q""#), r#"it\'s a\\b \"q\""#);
        assert_eq!(for_kickstart(r"\$HOME"), r"\$HOME");
    }

    #[test]
    fn a_dollar_sign_without_a_variable_is_kept() {
        assert_eq!(for_kickstart("$(date)"), r"\$(date)");
        assert_eq!(for_kickstart("5$"), r"5\$");
        assert_eq!(for_kickstart("$$ $? ${"), r"\$\$ \$? \${");
        assert_eq!(for_kickstart("${HOME}/$A_1.x$"), r"${HOME}/$A_1.x\$");
        assert_eq!(for_kickstart(r"\$(x) $(y)"), r"\$(x) \$(y)");
    }
}
