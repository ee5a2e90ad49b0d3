//! Arguments of the program that a job runs.

use std::borrow::Cow;

use crate::diagnostic::Diagnostic;
use crate::exec::{JobId, Task};
use crate::model::{Arguments, Job};
use crate::refine::settings::{Integrity, Mode};
use crate::saved_request::PROPERTIES;

use super::checksums::META;
use super::nested;
use super::plan::PlannedJob;
use super::words::{Words, split};
use super::work_lists::WorkLists;

/// Adds the arguments of the program.
pub(super) fn push(
    job: PlannedJob<'_>,
    lists: &WorkLists,
    words: &mut Words,
    problems: &mut Vec<Diagnostic>,
) {
    let plan = job.plan;
    match job.task {
        Task::Compute(_) if job.is_nested() => return nested::push_arguments(job, words),
        Task::Compute(n) => {
            return compute_arguments(&plan.workflow.jobs[n], job.is_wrapped(), words, problems);
        }
        Task::StageIn(_) | Task::StageOut(_) | Task::InterSite(_) => {
            let threads = job.profiles().pegasus("transfer.threads").map_or("2", str::trim);
            let more = job.pegasus("transfer.arguments");
            let more = more.unwrap_or(plan.settings.mode.transfer_arguments());
            words.next("--threads").blanks(" ").quoted(threads);
            words.blanks(" ").quoted(more);
            push_checksum_options(job, words);
        }
        Task::Register(n) => {
            let is_debug = plan.settings.mode == Mode::Debug;
            words
                .option("--prefix", "pegasus.catalog.replica.output")
                .option("--conf", &format!("{}/{PROPERTIES}", plan.submit))
                .word(if is_debug { "-vvv" } else { "-v" });
            let producers = &plan.exec.registrations[n].producers;
            if plan.settings.integrity != Integrity::None && !producers.is_empty() {
                words.next("--meta").blanks(" ").with(|files| {
                    for (k, &producer) in producers.iter().enumerate() {
                        files.push_str(if k > 0 { "," } else { "" });
                        plan.push_job_file(producer, ".meta", files);
                    }
                });
            }
            words.next("--insert").next(&lists.file(job));
        }
        Task::Chmod(n) => {
            words.next("+x").blanks(" ");
            for &file in &plan.exec.chmods[n] {
                let name = plan.workflow.files.name(file);
                words.next(&plan.sites.scratch_path(job.staging, name));
            }
        }
        Task::CreateDir | Task::CleanUp(_) | Task::RemoveDir | Task::NoOp | Task::Cluster(..) => {}
    }
    if let Some(part) = lists.part(job.id) {
        words.blanks(" ").option("--file", &lists.file(job));
        words.word("--part").next(&part.to_string());
    }
}

/// Adds the options of a transfer job for checksums: those that it verifies, those that it computes for jobs
/// with directories of their own.
fn push_checksum_options(job: PlannedJob<'_>, words: &mut Words) {
    let plan = job.plan;
    if job.ships_files() {
        return;
    }
    match job.task {
        Task::StageIn(n) => {
            let mut files = plan.exec.transfers[n].files.iter();
            if files.any(|file| plan.checksums.keeper(file.file) == Some(job.id)) {
                let file = plan.job_file(job.id, META);
                words.next("--checksums-to").next(&file);
            }
        }
        Task::StageOut(n) => {
            let files = plan.exec.transfers[n].files.iter();
            let verified = files.filter(|file| plan.checksums.verifies(job.task, file));
            let mut keepers: Vec<JobId> = verified
                .filter_map(|file| plan.checksums.keeper(file.file))
                .collect();
            keepers.sort_unstable();
            keepers.dedup();
            if !keepers.is_empty() {
                let files = keepers.iter().map(|&keeper| plan.job_file(keeper, META));
                let files = files.collect::<Vec<_>>().join(",");
                words.next("--checksums-from").next(&files);
            }
        }
        _ => {}
    }
}

/// Maximum bytes of one argument on Linux, including the final NUL.
const MAX_ARGUMENT: usize = 128 * 1024;

fn compute_arguments(job: &Job, wrapped: bool, words: &mut Words, problems: &mut Vec<Diagnostic>) {
    match &job.arguments {
        Arguments::Raw(raw) => {
            if raw.len() >= MAX_ARGUMENT {
                for (k, word) in split(raw).enumerate() {
                    check_length(job, k + 1, word.len(), problems);
                }
            }
            words.quoted(raw);
        }
        Arguments::Words(list) | Arguments::Exact(list) => {
            for (k, word) in list.iter().enumerate() {
                if word.contains(['\n', '\r']) {
                    problems.push(Diagnostic::error(format!(
                        "job {}: argument {} contains a line break, which a DAG cannot express",
                        job.id,
                        k + 1
                    )));
                }
                check_length(job, k + 1, word.len(), problems);
                words.blanks(if k > 0 { " " } else { "" });
                words.word(&given(job, word, wrapped));
            }
        }
    }
}

/// Reports an argument that no program can receive.
fn check_length(job: &Job, number: usize, length: usize, problems: &mut Vec<Diagnostic>) {
    if length >= MAX_ARGUMENT {
        problems.push(Diagnostic::error(format!(
            "job {}: argument {number} has {length} bytes, but the limit for one argument is {}: write it to a file",
            job.id,
            MAX_ARGUMENT - 1
        )));
    }
}

/// Returns the arguments of a compute job as words for an argument file, `None` if such a file cannot express
/// them. The words are those of the command line.
pub(super) fn argument_words(job: &Job, wrapped: bool) -> Option<Vec<Cow<'_, str>>> {
    // Empty lines of an argument file are ignored.
    let is_line = |word: &Cow<'_, str>| !word.is_empty();
    match &job.arguments {
        Arguments::Raw(text) => split(text).map(|word| Some(word).filter(is_line)).collect(),
        Arguments::Words(list) | Arguments::Exact(list) => list
            .iter()
            .map(|word| Some(given(job, word, wrapped)).filter(is_line))
            .collect(),
    }
}

/// Returns why the arguments of a job do not reach its program as they were meant, `None` if all is well.
/// `wrapped`: kickstart starts the program.
pub(crate) fn doubt(text: &str, wrapped: bool) -> Option<&'static str> {
    if !text.contains(['\'', '"', '\\', '$']) {
        return None;
    }
    if pmc_dag::words::has_open_quote(text.as_bytes()) {
        return Some("contain a quote that is not closed, so that all text after it is one word");
    }
    if wrapped && split(text).any(|word| kickstart_refuses(&word)) {
        return Some(
            "contain a quote, a backslash or a `$` after the split that kickstart refuses, so that the job will fail",
        );
    }
    None
}

/// Returns whether kickstart refuses a word: a quote is not closed, nothing follows a backslash, or a `$`
/// begins no variable.
fn kickstart_refuses(word: &str) -> bool {
    let mut quote = None;
    let mut chars = word.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', _) if chars.next().is_none() => return true,
            ('$', None | Some('"')) if !begins_variable(chars.as_str()) => return true,
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            _ => {}
        }
    }
    quote.is_some()
}

/// Quotes a word of a job for the program, which kickstart may start.
fn given<'w>(job: &Job, word: &'w str, wrapped: bool) -> Cow<'w, str> {
    match job.arguments {
        _ if !wrapped => Cow::Borrowed(word),
        Arguments::Exact(_) => exactly_for_kickstart(word),
        _ => for_kickstart(word),
    }
}

/// Escapes a word so that kickstart passes it unchanged and expands nothing.
fn exactly_for_kickstart(word: &str) -> Cow<'_, str> {
    const SPECIAL: [char; 4] = ['\\', '"', '\'', '$'];
    if !word.contains(SPECIAL) {
        return Cow::Borrowed(word);
    }
    let mut out = String::with_capacity(word.len() + 8);
    for c in word.chars() {
        if SPECIAL.contains(&c) {
            out.push('\\');
        }
        out.push(c);
    }
    Cow::Owned(out)
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
        assert_eq!(
            exactly_for_kickstart(r#"\$HOME 'a' ${b} "c""#),
            r#"\\\$HOME \'a\' \${b} \"c\""#
        );
    }

    #[test]
    fn doubtful_arguments_are_found() {
        for text in [
            "-a 'two words' $HOME ${HOME}/x",
            r"it\\\'s \\$ 5\\$",
            "plain",
            r"a\ b",
            r#"\"q\""#,
            r#""\"it\\\'s\"" x"#,
        ] {
            assert_eq!(doubt(text, true), None, "{text}");
        }
        for text in ["it's", "\"a"] {
            assert!(doubt(text, false).is_some(), "{text}");
        }
        for text in [r"it\'s", "$(date)", "5$", "'$'", r"a\\"] {
            assert!(doubt(text, true).is_some(), "{text}");
            assert_eq!(doubt(text, false), None, "{text}");
        }
    }

    #[test]
    fn words_of_an_argument_file_are_those_of_the_command_line() {
        let job = |arguments| Job {
            arguments,
            ..Job::default()
        };
        let raw = job(Arguments::Raw(r#" -a  'b c' d\ e "#.into()));
        assert_eq!(
            argument_words(&raw, true).expect("no empty word"),
            ["-a", "b c", "d e"]
        );
        assert_eq!(argument_words(&job(Arguments::Raw("a ''".into())), true), None);
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
