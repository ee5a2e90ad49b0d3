//! Likely reasons for a group of equal failures.

use std::io::Read as _;
use std::path::Path;

use monitord_compat::reason::Reason;

use super::Cause;
use crate::ending::Ending;
use crate::history::History;

/// Minimum failures on a single host for which the host may be the reason.
const MIN_SUSPICIOUS: usize = 3;

/// Returns likely reasons for a cause.
pub(super) fn likely_reasons(history: &History, cause: &Cause) -> Vec<String> {
    let mut reasons = Vec::new();
    let example = &cause.example;
    let text = |part: &str| {
        let lines = example.stderr.lines.iter().chain(&example.stdout.lines);
        lines.chain(&example.note).any(|line| line.contains(part))
    };
    if cause.reason.is_none() {
        reasons.extend(guess_of_signal(cause, &text));
    }
    if matches!(cause.ending, Ending::Signal(4)) {
        reasons.push("illegal instruction: perhaps the program was built for another CPU".to_owned());
    }
    if matches!(cause.ending, Ending::Exit(126 | 127) | Ending::NotStarted) {
        let interpreter = example
            .command
            .first()
            .and_then(|program| missing_interpreter(program));
        match (interpreter, cause.ending) {
            (Some(interpreter), _) => reasons.push(format!("interpreter {interpreter} not found")),
            (None, Ending::Exit(127)) => reasons.push("program not found".to_owned()),
            (None, Ending::Exit(126)) => reasons.push("program not executable".to_owned()),
            (None, _) => {}
        }
    }
    for (part, meaning) in [
        ("No space left on device", "a file system is full"),
        ("Disk quota exceeded", "the disk quota is exceeded"),
        ("Permission denied", "no permission for a file"),
        ("Read-only file system", "a file system is read-only"),
        ("Stale file handle", "a network file system lost an open file"),
        (
            "error while loading shared libraries",
            "a library is missing on the host: load its module in the job",
        ),
        ("ModuleNotFoundError", "a Python module is missing on the host"),
        (
            "Exec format error",
            "the program is for another architecture, or a script without `#!` in its first line",
        ),
    ] {
        if text(part) {
            reasons.push(meaning.to_owned());
        }
    }
    if reasons.is_empty() && text("No such file or directory") {
        reasons.push("a file is missing".to_owned());
    }
    reasons.extend(host_to_blame(history, cause));
    reasons
}

/// Returns what may have ended a program whose end no one else explains.
fn guess_of_signal(cause: &Cause, text: &dyn Fn(&str) -> bool) -> Option<String> {
    const NO_MEMORY: [&str; 5] = [
        "MemoryError",
        "bad_alloc",
        "Cannot allocate memory",
        "ut of memory",
        "oom-kill",
    ];
    let peak_mb = cause.peak_kib.map(|kib| kib / 1024);
    let at_limit = cause.request_mb > 0 && peak_mb.is_some_and(|peak| peak * 10 >= cause.request_mb * 9);
    let is_killed = matches!(cause.ending, Ending::Signal(9) | Ending::Exit(137));
    if (is_killed || matches!(cause.ending, Ending::Signal(_))) && at_limit {
        let (used_mib, requested_mib) = (peak_mb.unwrap_or(0), cause.request_mb);
        let reason = Reason::OutOfMemory {
            used_mib,
            requested_mib,
        };
        return Some(reason.to_string());
    }
    let guess = if NO_MEMORY.iter().any(|part| text(part)) {
        "out of memory: request more with the profile pmc_request_memory"
    } else if is_killed {
        "killed by another process, perhaps by the system for lack of memory; see the log of the host"
    } else if matches!(cause.ending, Ending::Signal(15) | Ending::Exit(143)) {
        "terminated: by a time limit, or because the run was stopped"
    } else {
        return None;
    };
    Some(guess.to_owned())
}

/// Returns the interpreter in the first line of a script if it does not exist.
fn missing_interpreter(program: &str) -> Option<String> {
    let mut start = Vec::new();
    pmc_files::open(Path::new(program))
        .ok()?
        .take(256)
        .read_to_end(&mut start)
        .ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let interpreter = line.split_whitespace().next()?;
    (!Path::new(interpreter).exists()).then(|| interpreter.to_owned())
}

/// Returns a remark if all failures are on one host and other hosts succeeded.
fn host_to_blame(history: &History, cause: &Cause) -> Option<String> {
    let (host, count) = cause.hosts.first_key_value()?;
    if cause.hosts.len() != 1 || *count < MIN_SUSPICIOUS || history.hosts.all().len() < 2 {
        return None;
    }
    let class = history.plan.class_index(*cause.tasks.first()?);
    let elsewhere = history.attempts.iter().any(|attempt| {
        attempt.succeeded()
            && history.plan.class_index(attempt.task) == class
            && history.hosts.name(attempt.host).is_some_and(|name| name != host)
    });
    elsewhere.then(|| format!("perhaps the host: all {count} failed on {host}, others succeeded elsewhere"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_interpreters_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let script = |text: &str| {
            let path = dir.path().join("script");
            std::fs::write(&path, text).unwrap();
            missing_interpreter(&path.display().to_string())
        };
        assert_eq!(script("#! /no/such -x\necho\n").as_deref(), Some("/no/such"));
        assert_eq!(script("#!/bin/sh\necho\n"), None);
        assert_eq!(script("echo\n"), None);
        assert_eq!(missing_interpreter("/no/such/program"), None);
    }
}
