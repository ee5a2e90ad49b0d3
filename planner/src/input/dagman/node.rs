//! The job of a node: its program, or a shell that runs its scripts around it.

use std::fmt::Write as _;
use std::path::Path;

use pmc_calls::shell::shell_quote;
use pmc_dagman::{Node, RETRY, Script, Word, Work};

use super::super::builder::Builder;
use crate::model::{Arguments, FileId, Job, Position, TransformationName, Words};
use crate::profiles::{Namespace, Profiles};

const SHELL: &str = "/bin/sh";
/// Program of a node without work.
const NOTHING: &str = "/bin/true";

/// Returns the job of a node.
pub(super) fn job(node: &Node, builder: &mut Builder, position: Position) -> Job {
    let mut profiles = Profiles::default();
    set_profiles(node, &mut profiles);
    let (name, directory) = match &node.work {
        Work::Nothing => ("noop".to_owned(), &node.directory),
        Work::Job(job) => {
            let name = job.program.file_name().unwrap_or(job.program.as_os_str());
            (name.to_string_lossy().into_owned(), &job.directory)
        }
    };
    let mut new = Job {
        id: node.name.clone(),
        transformation: builder.transformation(TransformationName {
            name,
            ..TransformationName::default()
        }),
        position,
        ..Job::default()
    };
    let mut set_program = |program: &str, directory: &Path| {
        profiles.set(Namespace::Selector, "pfn", program);
        profiles.set(Namespace::Globus, "directory", &directory.display().to_string());
    };
    let words: Words = match script(node) {
        Some(script) => {
            set_program(SHELL, &node.directory);
            let program = match &node.work {
                Work::Nothing => None,
                Work::Job(job) => Some((job.program.display().to_string(), &job.arguments)),
            };
            let own = program
                .iter()
                .flat_map(|(program, arguments)| [program].into_iter().chain(arguments.iter()));
            let words = ["-c", &script, &node.name].into_iter().map(str::to_owned);
            // Words that depend on the attempt are those of the script.
            words
                .chain(own.filter(|_| !has_retry_words(node)).cloned())
                .collect()
        }
        None => match &node.work {
            Work::Nothing => {
                set_program(NOTHING, directory);
                Words::default()
            }
            Work::Job(job) => {
                set_program(&job.program.display().to_string(), directory);
                let mut file = |path: &Option<std::path::PathBuf>| -> Option<FileId> {
                    let path = path.as_ref()?.display().to_string();
                    Some(builder.workflow.files.intern(&path))
                };
                new.stdin = file(&job.input);
                new.stdout = file(&job.output);
                new.stderr = file(&job.error);
                job.arguments.iter().collect()
            }
        },
    };
    new.arguments = Arguments::Exact(words);
    new.profiles = profiles;
    new
}

/// Sets what the executor must know of a node.
fn set_profiles(node: &Node, profiles: &mut Profiles) {
    let mut dagman = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            profiles.set(Namespace::Dagman, key, &value);
        }
    };
    dagman("retry", node.retries.map(|retries| retries.to_string()));
    dagman("priority", node.priority.map(|priority| priority.to_string()));
    dagman("category", node.category.clone());
    let abort_on = node.abort_on.map(|abort_on| match abort_on.exit {
        Some(exit) => format!("{} RETURN {exit}", abort_on.code),
        None => abort_on.code.to_string(),
    });
    dagman("abort-dag-on", abort_on);
    if let Some(code) = node.unless_exit.filter(|_| node.retries > Some(0)) {
        let option = format!("--unless-exit {code}");
        profiles.set(Namespace::Pegasus, "pmc_task_arguments", &option);
    }
    let Work::Job(job) = &node.work else { return };
    for (name, value) in &job.environment {
        profiles.set(Namespace::Env, name, value);
    }
    for (key, value) in [
        ("cores", job.cpus.map(u64::from)),
        ("memory", job.memory_mb),
        ("gpus", job.gpus.map(u64::from)),
        ("pmc_checkpoint_exit", job.checkpoint_exit.map(u64::from)),
    ] {
        if let Some(value) = value {
            profiles.set(Namespace::Pegasus, key, &value.to_string());
        }
    }
}

/// Returns the shell script of a node that has scripts, or writes both streams to one file. It starts in the
/// directory of the node; its arguments are program and arguments of the job. As in DAGMan, the exit code of
/// what ran last is that of the node.
fn script(node: &Node) -> Option<String> {
    let one_stream = match &node.work {
        Work::Job(job) => job.output.is_some() && job.output == job.error,
        Work::Nothing => false,
    };
    let is_numbered = knows_retry(node);
    if node.pre.is_none() && node.post.is_none() && !one_stream && !is_numbered {
        return None;
    }
    let mut text = String::new();
    if is_numbered {
        // The first attempt has no such variable.
        text.push_str("k=${PMC_ATTEMPT:-1}; k=$((k - 1)); ");
    }
    if let Work::Job(job) = &node.work
        && has_retry_words(node)
    {
        text.push_str("set --");
        for word in std::iter::once(&job.program.display().to_string()).chain(&job.arguments) {
            text.push(' ');
            text.push_str(&quoted(word));
        }
        text.push_str("; ");
    }
    if let Some(pre) = &node.pre {
        push_script(pre, &mut text);
        text.push_str("; p=$?; ");
        if let Some(code) = node.pre_skip {
            let _ = write!(text, "[ $p -ne {code} ] || exit 0; ");
        }
        text.push_str("[ $p -eq 0 ] || exit $p; ");
    } else if node.post.is_some() {
        text.push_str("p=-1; ");
    }
    push_job(node, one_stream, &mut text);
    if let Some(post) = &node.post {
        // A shell shows a signal as 128 and its number, DAGMan as its negative number.
        text.push_str("; r=$?; ");
        if let Work::Job(job) = &node.work
            && let Some(code) = job.checkpoint_exit
        {
            // The job has no result yet: it runs again.
            let _ = write!(text, "[ $r -ne {code} ] || exit {code}; ");
        }
        text.push_str("s=True; [ $r -eq 0 ] || s=False; [ $r -le 128 ] || r=$((128 - r)); ");
        push_script(post, &mut text);
    }
    Some(text)
}

/// Returns whether a node has words for its job that depend on the attempt.
fn has_retry_words(node: &Node) -> bool {
    match &node.work {
        Work::Job(job) => job.arguments.iter().any(|word| word.contains(RETRY)),
        Work::Nothing => false,
    }
}

/// Returns whether a part of a node depends on the attempt.
fn knows_retry(node: &Node) -> bool {
    let of_paths = match &node.work {
        Work::Job(job) => [&job.input, &job.output, &job.error]
            .into_iter()
            .flatten()
            .any(|path| path.to_string_lossy().contains(RETRY)),
        Work::Nothing => false,
    };
    let mut scripts = [&node.pre, &node.post].into_iter().flatten();
    of_paths || has_retry_words(node) || scripts.any(|script| script.arguments.contains(&Word::Retry))
}

/// Quotes a text for the shell; the variable `k` is the number of the retry.
fn quoted(text: &str) -> String {
    let parts: Vec<String> = text.split(RETRY).map(|part| shell_quote(part).into()).collect();
    parts.join("\"$k\"")
}

/// Appends the start of the job.
fn push_job(node: &Node, one_stream: bool, text: &mut String) {
    let Work::Job(job) = &node.work else {
        text.push_str("true");
        return;
    };
    text.push('(');
    if job.directory != node.directory {
        let _ = write!(
            text,
            "cd {} && ",
            shell_quote(&job.directory.display().to_string())
        );
    }
    text.push_str("exec \"$@\"");
    let mut redirect = |operator: &str, path: &Option<std::path::PathBuf>| {
        if let Some(path) = path {
            let _ = write!(text, " {operator}{}", quoted(&path.display().to_string()));
        }
    };
    redirect("<", &job.input);
    redirect(">", &job.output);
    match one_stream {
        true => text.push_str(" 2>&1"),
        false => redirect("2>", &job.error),
    }
    text.push(')');
}

/// Appends the start of a script. A program without a slash is one of the node's directory, else of `PATH`.
fn push_script(script: &Script, text: &mut String) {
    text.push('(');
    if !script.program.contains('/') {
        text.push_str("PATH=.:$PATH; ");
    }
    let _ = write!(text, "exec {}", shell_quote(&script.program));
    for word in &script.arguments {
        text.push(' ');
        match word {
            Word::Text(word) => text.push_str(&shell_quote(word)),
            Word::Return => text.push_str("$r"),
            Word::Success => text.push_str("$s"),
            Word::PreScriptReturn => text.push_str("$p"),
            Word::Retry => text.push_str("$k"),
        }
    }
    text.push(')');
}
