//! Arguments of the program that a job runs.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::exec::{JobId, Task};
use crate::model::{Arguments, Job};
use crate::output::lists::{WorkLists, suffix};
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
        Task::Compute(_) if plan.exec.is_nested(job) => super::super::nested::push_arguments(plan, id, text),
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
            crate::output::lite::push_checksum_options(plan, id, text);
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
    if let Some(part) = part(plan, id) {
        let file = format!("{}/{}", plan.submit, WorkLists::file_name(&plan.base));
        let _ = write!(text, " --file {} --part {part}", quote(&file));
    }
    text
}

/// Returns the file with a job's registrations.
fn registration_orders(plan: &Plan<'_>, id: JobId) -> String {
    match plan.orders.get() {
        Some(orders) => orders.file(plan, id),
        None => plan.job_file(id, suffix(plan, id)),
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
            if raw.len() >= MAX_ARGUMENT {
                for (k, word) in pmc_dag::words::Words::new(raw.as_bytes()).enumerate() {
                    check_length(job, k + 1, word.len(), problems);
                }
            }
            raw
        }
        Arguments::Words(list) | Arguments::Exact(list) => {
            for (k, word) in list.iter().enumerate() {
                if word.contains(['\n', '\r']) {
                    problems.push(format!(
                        "job {}: argument {} contains a line break, which a DAG cannot express",
                        job.id,
                        k + 1
                    ));
                }
                check_length(job, k + 1, word.len(), problems);
                if k > 0 {
                    text.push(' ');
                }
                text.push_str(&quote(&given(job, word, wrapped)));
            }
            text
        }
    }
}

/// Reports an argument that no program can receive.
fn check_length(job: &Job, number: usize, length: usize, problems: &mut Vec<String>) {
    if length >= MAX_ARGUMENT {
        problems.push(format!(
            "job {}: argument {number} has {length} bytes, but the limit for one argument is {}: write it to a file",
            job.id,
            MAX_ARGUMENT - 1
        ));
    }
}

/// Returns the arguments of a compute job as words for an argument file, `None` if such a file cannot express
/// them. The words are those of the command line.
pub(super) fn argument_words(job: &Job, wrapped: bool) -> Option<Vec<Cow<'_, str>>> {
    // Empty lines of an argument file are ignored.
    let is_line = |word: &Cow<'_, str>| !word.is_empty();
    match &job.arguments {
        Arguments::Raw(text) => pmc_dag::words::Words::new(text.as_bytes())
            .map(|word| Some(text_of(word)).filter(is_line))
            .collect(),
        Arguments::Words(list) | Arguments::Exact(list) => list
            .iter()
            .map(|word| Some(given(job, word, wrapped)).filter(is_line))
            .collect(),
    }
}

/// Returns a word of a text as text. The splitting cuts no character.
fn text_of(word: Cow<'_, [u8]>) -> Cow<'_, str> {
    Cow::Owned(String::from_utf8_lossy(&word).into_owned())
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
    if wrapped && pmc_dag::words::Words::new(text.as_bytes()).any(|word| kickstart_refuses(&text_of(word))) {
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
