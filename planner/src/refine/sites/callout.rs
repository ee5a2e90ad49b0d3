//! The selector NonJavaCallout: another program is asked for each job. It gets one argument, the path of a
//! file of `key=value` lines, and prints a line `SOLUTION:SITE[:GATEWAY]`; other lines are noise. A gateway
//! has no meaning here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::selection::{Class, Placing, levels, of_job};
use crate::diagnostic::{Diagnostic, HINT};
use crate::exec::SiteId;
use crate::model::JobIndex;
use crate::request::ChosenSites;

/// Of what the program prints, no more is kept.
const MAX_PRINTED: u64 = 1 << 20;
/// What marks the answer.
const ANSWER: &str = "SOLUTION:";

/// How the program is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Callout {
    /// The program, absolute.
    pub(crate) path: PathBuf,
    /// How long it may take for a job.
    pub(crate) timeout: Duration,
    /// Which request files are kept.
    pub(crate) keep: Keep,
    /// Its environment, whole.
    pub(crate) environment: BTreeMap<String, String>,
    /// Where request files are put.
    pub(crate) temp_dir: PathBuf,
}

/// Which request files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// All.
    Always,
    /// That of the job for which there is no answer.
    OnError,
    /// None.
    Never,
}

/// Why a program gives no answer that can be used.
#[derive(Debug, thiserror::Error)]
enum CalloutError {
    /// The request file cannot be made.
    #[error("cannot be asked: cannot {action} {}: {source}", path.display())]
    Request {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The program cannot be started.
    #[error("cannot be started: {0}")]
    Start(std::io::Error),
    /// It ended with an error; `said` is the last line on its standard error.
    #[error("fails with {status}{}", after_colon(.said))]
    Failed {
        status: ExitStatus,
        said: Option<String>,
    },
    /// It printed no answer.
    #[error("prints no line {ANSWER}SITE{}", after_colon(.said))]
    NoSolution { said: Option<String> },
    /// It took too long.
    #[error(
        "gives no answer within {} s; pegasus.selector.site.timeout allows more",
        .0.as_secs_f64()
    )]
    Timeout(Duration),
    /// The site of its answer cannot run the job.
    #[error("answers {name}, which cannot run it; sites that can are [{}]", able.join(", "))]
    WrongSite { name: String, able: Vec<String> },
    /// Any of these, with the request file that is kept.
    #[error("{error}{HINT}what it was asked is in {}", path.display())]
    Kept { error: Box<CalloutError>, path: PathBuf },
}

fn after_colon(said: &Option<String>) -> String {
    said.as_ref().map_or_else(String::new, |line| format!(": {line}"))
}

/// Chooses for all jobs.
///
/// # Errors
/// The first job for which the program gives no answer that can be used: the others would fare alike.
pub(super) fn choose(placing: &Placing<'_>, callout: &Callout) -> Result<Vec<SiteId>, Vec<Diagnostic>> {
    let depth = levels(&placing.graph());
    let mut chosen = vec![placing.sites.local(); placing.workflow.jobs.len()];
    for (n, class) in placing.free() {
        let request = request(placing, class, n, depth.get(n.index()).copied().unwrap_or(0));
        let site = ask(callout, &request)
            .and_then(|name| resolve(placing, class, &name))
            .map_err(|problem| {
                vec![Diagnostic::error(format!(
                    "{}: the site selector {} {problem}",
                    of_job(placing, n),
                    callout.path.display()
                ))]
            })?;
        chosen[n] = site;
    }
    Ok(chosen)
}

/// Returns the sites of the plan that is looked at.
///
/// # Errors
/// The first job without a site there that it can use now.
pub(super) fn chosen(placing: &Placing<'_>, plan: &ChosenSites) -> Result<Vec<SiteId>, Vec<Diagnostic>> {
    let mut chosen = vec![placing.sites.local(); placing.workflow.jobs.len()];
    for (n, class) in placing.free() {
        let site = plan.site_of(n.index()).and_then(|name| placing.sites.find(name));
        let site = site.filter(|&site| class.entry(site).is_some()).ok_or_else(|| {
            vec![Diagnostic::error(format!(
                "{}: the plan names no site that can run it: the workflow or a catalog has changed",
                of_job(placing, n)
            ))]
        })?;
        chosen[n] = site;
    }
    Ok(chosen)
}

/// The site of an answer.
fn resolve(placing: &Placing<'_>, class: &Class, name: &str) -> Result<SiteId, CalloutError> {
    let sites = placing.sites;
    let found = sites.find(name).filter(|&site| class.entry(site).is_some());
    found.ok_or_else(|| CalloutError::WrongSite {
        name: name.to_owned(),
        able: class
            .options
            .iter()
            .map(|(site, _)| sites.get(*site).name.clone())
            .collect(),
    })
}

/// The text of the request file.
fn request(placing: &Placing<'_>, class: &Class, n: JobIndex, level: u32) -> String {
    let job = placing.job(n);
    let workflow = placing.workflow;
    let mut text = String::new();
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        // A line break in a value would begin another pair. Writing into a String cannot fail.
        let value = value.to_string().replace(['\n', '\r'], " ");
        let _ = writeln!(text, "{key}={value}");
    };
    line("version", &"2.0");
    line("transformation", &job.transformation);
    line("derivation", &"null");
    line("job.level", &level);
    line("job.id", &job.id);
    let mut has_resources = false;
    for &(site, _) in &class.options {
        let site = placing.sites.get(site);
        for server in &site.servers {
            has_resources = true;
            line("resource.id", &format_args!("{} {server}", site.name));
        }
    }
    if !has_resources {
        line("resource.id", &"NONE NONE");
    }
    for file_use in job.uses.iter().filter(|u| u.link.reads()) {
        let lfn = workflow.files.name(file_use.file);
        match file_use.size {
            Some(size) => line("input.lfn", &format_args!("{lfn} {size}")),
            None => line("input.lfn", &lfn),
        }
    }
    line("wf.name", &workflow.label);
    line("wf.index", &workflow.index);
    if let Some(time) = workflow.mtime {
        let time = chrono::DateTime::<chrono::Utc>::from(time);
        line("wf.time", &time.format("%Y-%m-%dT%H:%M:%S%:z"));
    }
    line("wf.manager", &"dagman");
    line("vo.name", &"NONE");
    line("vo.group", &"NONE");
    text
}

/// Asks about one job; gives the name of a site.
fn ask(callout: &Callout, request: &str) -> Result<String, CalloutError> {
    let failed = |action, path: &Path, source| CalloutError::Request {
        action,
        path: path.to_owned(),
        source,
    };
    let mut file = tempfile::Builder::new()
        .prefix("pegasus")
        .suffix(".tmp")
        .tempfile_in(&callout.temp_dir)
        .map_err(|e| failed("make a file in", &callout.temp_dir, e))?;
    file.write_all(request.as_bytes())
        .map_err(|e| failed("write", file.path(), e))?;
    let answer = run(callout, file.path());
    let is_kept = match callout.keep {
        Keep::Always => true,
        Keep::OnError => answer.is_err(),
        Keep::Never => false,
    };
    if !is_kept {
        return answer;
    }
    let path = file
        .into_temp_path()
        .keep()
        .map_err(|e| failed("keep", &callout.temp_dir, e.error))?;
    answer.map_err(|error| CalloutError::Kept {
        error: Box::new(error),
        path,
    })
}

fn run(callout: &Callout, request: &Path) -> Result<String, CalloutError> {
    let mut child = Command::new(&callout.path)
        .arg(request)
        .env_clear()
        .envs(&callout.environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(CalloutError::Start)?;
    let (sender, texts) = mpsc::channel();
    collect(child.stdout.take(), true, &sender);
    collect(child.stderr.take(), false, &sender);
    drop(sender);
    let deadline = Instant::now() + callout.timeout;
    let (mut out, mut err) = (String::new(), String::new());
    // The channel ends when both streams have.
    loop {
        match texts.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((true, text)) => out = text,
            Ok((false, text)) => err = text,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(stop(&mut child, callout)),
        }
    }
    let Some(status) = wait(&mut child, deadline) else {
        return Err(stop(&mut child, callout));
    };
    let said = err.lines().last().map(str::to_owned);
    if !status.success() {
        return Err(CalloutError::Failed { status, said });
    }
    let answer = out
        .lines()
        .filter_map(|line| line.trim().strip_prefix(ANSWER))
        .filter_map(|solution| solution.split(':').next())
        .map(str::trim)
        .find(|site| !site.is_empty());
    answer.map(str::to_owned).ok_or(CalloutError::NoSolution { said })
}

/// Reads a stream to its end in a thread of its own, so that the program never waits for us.
fn collect(stream: Option<impl Read + Send + 'static>, is_out: bool, sender: &mpsc::Sender<(bool, String)>) {
    let Some(mut stream) = stream else { return };
    let sender = sender.clone();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read is as if it had not been printed.
        let _ = stream.by_ref().take(MAX_PRINTED).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        let _ = sender.send((is_out, String::from_utf8_lossy(&bytes).into_owned()));
    });
}

/// How the program ended; `None` if it has not by the deadline.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let mut pause = Duration::from_micros(100);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(20));
    }
}

/// Ends the program with all that it has started.
fn stop(child: &mut Child, callout: &Callout) -> CalloutError {
    if let Ok(id) = i32::try_from(child.id()) {
        let group = nix::unistd::Pid::from_raw(id);
        // It may have ended in the meantime.
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    }
    // It can have gone to another group.
    let _ = child.kill();
    let _ = child.wait();
    CalloutError::Timeout(callout.timeout)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn callout(dir: &Path, script: &str) -> Callout {
        let path = dir.join("select");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("changes mode");
        Callout {
            path,
            timeout: Duration::from_secs(300),
            keep: Keep::OnError,
            environment: [("WORD".to_owned(), "harbour".to_owned())].into(),
            temp_dir: dir.join("tmp"),
        }
    }

    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir(dir.path().join("tmp")).expect("writable");
        dir
    }

    fn kept(dir: &tempfile::TempDir) -> usize {
        std::fs::read_dir(dir.path().join("tmp"))
            .expect("readable")
            .count()
    }

    #[test]
    fn the_answer_is_found_among_noise() {
        let dir = dir();
        let mut callout = callout(
            dir.path(),
            "echo noise; cat \"$1\"; echo \" SOLUTION:$WORD:gate \"; echo SOLUTION:late",
        );
        assert_eq!(ask(&callout, "a=b\n").expect("answers"), "harbour");
        assert_eq!(kept(&dir), 0);
        callout.keep = Keep::Always;
        assert!(ask(&callout, "a=b\n").is_ok());
        assert_eq!(kept(&dir), 1);
    }

    #[test]
    fn failures_keep_the_request() {
        let dir = dir();
        let failing = callout(dir.path(), "echo why >&2; exit 3");
        let problem = ask(&failing, "a=b\n").expect_err("fails").to_string();
        assert!(
            problem.starts_with("fails with exit status: 3: why\n  hint: what it was asked is in "),
            "{problem}"
        );
        assert_eq!(kept(&dir), 1);
        let mut silent = callout(dir.path(), "echo SOLUTION:");
        silent.keep = Keep::Never;
        let problem = ask(&silent, "").expect_err("no answer").to_string();
        assert_eq!(problem, "prints no line SOLUTION:SITE");
        assert_eq!(kept(&dir), 1);
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() {
        let dir = dir();
        let mut slow = callout(dir.path(), "sleep 900 & echo SOLUTION:a; wait");
        slow.timeout = Duration::from_millis(300);
        let begin = Instant::now();
        let problem = ask(&slow, "").expect_err("too slow").to_string();
        assert!(problem.contains("no answer within 0.3 s"), "{problem}");
        assert!(begin.elapsed() < Duration::from_secs(600));
    }

    #[test]
    fn much_output_does_not_block() {
        let dir = dir();
        let loud = callout(
            dir.path(),
            "echo SOLUTION:a; i=0; while [ $i -lt 3000 ]; do echo $i 0123456789012345678901234567890123456789; \
             i=$((i+1)); done; exec >&2; i=0; while [ $i -lt 3000 ]; do \
             echo $i 0123456789012345678901234567890123456789; i=$((i+1)); done",
        );
        assert_eq!(ask(&loud, "").expect("answers"), "a");
    }
}
