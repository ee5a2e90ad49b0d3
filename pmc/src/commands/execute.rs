//! Runs a planned workflow and prints the summary, for `pmc run` and `pmc resume`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use monitord_compat::run_end::{EndOfRun, RunEnd};
use pegasus_mpi_cluster::{Eviction, Outcome as TaskOutcome, RunEvent};
use pmc_calls::shell::shell_quote;
use pmc_dag::{Dag, EARLIER_PLAN, TaskId, rescue, words};

use super::on_end;
use crate::cli;
use crate::executor;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::killed_run;
use crate::metrics::TextFile;
use crate::programs;
use crate::progress::{self, Event, Outcome, Progress};
use crate::run_outcome::{self, LastAttempt, Observed};
use crate::submit::{self, Submit};
use crate::summary::{self, Ending, Status, Summary};
use crate::text;

/// Options with the limits of this machine.
pub const LIMITS: &str = "--host-memory, --host-cpus and --host-gpus";

/// What to run, and how.
#[derive(Debug)]
pub struct Request {
    /// The plan.
    pub submit: Submit,
    /// Argument for `pmc resume`.
    pub name: PathBuf,
    /// The plan is for a batch system, and the user wants it to run here.
    pub here: bool,
    /// Run a DAG whose last lines are missing.
    pub accept_incomplete: bool,
    /// Limits and options of the execution.
    pub execution: cli::Execution,
    /// How the user sets the limits of this machine, for messages: [`LIMITS`], or variables.
    pub limits: &'static str,
    /// What to print.
    pub output: cli::Output,
    /// Start of the command.
    pub start: Instant,
}

/// Runs the workflow, prints the summary, and runs the user's command. Returns the exit code.
pub fn execute(request: &Request) -> Result<u8, Failure> {
    refuse_condor(&request.submit)?;
    let metrics = TextFile::start(&request.submit.dir);
    let result = run(request);
    // The last state is written before the summary.
    drop(metrics);
    if let Ok(summary) = &result {
        print_summary(summary, request.output);
    }
    if let Some(command) = &request.execution.on_end {
        on_end::run(command, &request.submit, result.as_ref());
    }
    result.map(|summary| summary.exit_code)
}

/// Refuses a plan for HTCondor.
fn refuse_condor(submit: &Submit) -> Result<(), Failure> {
    if submit.condor.is_some() {
        let error = anyhow!(
            "the plan in {0} is for HTCondor: `pmc pegasus run {0}` submits it, condor_q shows it; for a run by this program \
             plan without pegasus.code.generator = Condor",
            submit.dir.display()
        );
        return Err(Failure::new(exit::NOT_RUN, error));
    }
    Ok(())
}

/// Checks that the tasks fit on this machine, and says which would have several hosts elsewhere.
fn check_hosts(request: &Request, dag: &Dag, environment: &[(OsString, OsString)]) -> Result<(), Failure> {
    executor::check_fit(dag, &request.execution, environment, request.limits)?;
    if request.execution.hosts.is_none() && !request.output.quiet {
        executor::note_several_hosts(dag);
    }
    Ok(())
}

/// Runs the workflow.
fn run(request: &Request) -> Result<Summary, Failure> {
    let submit = &request.submit;
    let dag = open_dag(submit, request.accept_incomplete)?;
    check_programs(&dag)?;
    let environment: Vec<_> = std::env::vars_os().collect();
    check_hosts(request, &dag, &environment)?;
    let rescue_path = pmc_files::with_suffix(&submit.dag, ".rescue");
    let before = rescue::read(&rescue_path, &dag)
        .with_context(|| format!("cannot use the rescue file {}", rescue_path.display()))
        .or_code(exit::NOT_RUN)?;
    if let Some(unknown) = before.unknown() {
        eprintln!("pmc: warning: {}: {unknown}", rescue_path.display());
    }
    let done = before.ids().filter(|task| is_planned(&dag, *task));
    let done: Vec<String> = done.map(|task| lossy(dag.name(task))).collect();
    let done_before = done.len();
    let total = dag.ids().filter(|task| is_planned(&dag, *task)).count();
    let observed = Observed {
        done,
        ..Observed::default()
    };

    // The executor's log would break the progress bar.
    let log = request.output.verbose > 1;
    if log {
        pegasus_mpi_cluster::init_logging(0);
    }
    let style = progress::Style::choose(request.output.quiet, log || is_dumb());
    let state = progress::State {
        total,
        succeeded: done_before,
        ..Default::default()
    };
    let progress = Progress::start(style, request.output.verbose > 0, state);
    let resume = resume_command(request);
    let mut watch = Watch {
        dag: &dag,
        max_attempts: request.execution.tries,
        progress: &progress,
        started: BTreeMap::new(),
        observed,
    };
    let ended = if done_before == total && !killed_run::exists(&submit.dag, request.execution.stampede) {
        // An empty run would only add to the logs.
        executor::Ended::nothing_left()
    } else {
        let mut what = executor::Target::new(&submit.dag, dag.len());
        what.accept_incomplete = request.accept_incomplete;
        executor::run(&what, &request.execution, environment, log, &mut |event| {
            watch.note(event)
        })
        .map_err(|failure| {
            let command: Vec<String> = resume.iter().map(|word| shell_quote(word).into_owned()).collect();
            let advice = format!("fix the problem, then resume with `{}`", command.join(" "));
            let advice = match &failure.hint {
                Some(first) => format!("{first}; {advice}"),
                None => advice,
            };
            failure.hint(advice)
        })?
    };
    let mut observed = watch.observed;
    drop(progress);
    if let (Some(problem), false) = (&ended.database, log) {
        pmc_terminal::message(format_args!("pmc: warning: {problem}"));
    }
    if let (Some(excess), false, false) = (&ended.memory_excess, log, request.output.quiet) {
        eprintln!("pmc: warning: {excess}");
    }
    // A task that waited for a retry has failed when the run ends.
    for (name, status) in &ended.failures {
        let task = lossy(name);
        if !observed.failed.iter().any(|last| last.task == task) {
            observed.failed.push(LastAttempt {
                task,
                status: *status,
                runtime: None,
                is_running: false,
            });
        }
    }

    Ok(summarize(request, &dag, &ended, observed, done_before))
}

fn open_dag(submit: &Submit, accept_incomplete: bool) -> Result<Dag, Failure> {
    let is_empty = submit.dag.metadata().is_ok_and(|file| file.len() == 0);
    if is_empty && !accept_incomplete {
        // Also that of a workflow without jobs has lines.
        let error = anyhow!("cannot use the DAG {}: it is empty", submit.dag.display());
        return Err(Failure::new(exit::NOT_RUN, error).hint("plan again, with `pmc resume --replan`"));
    }
    let read = match accept_incomplete {
        true => Dag::open_incomplete(&submit.dag),
        false => Dag::open(&submit.dag).map(|dag| (dag, false)),
    };
    let (dag, is_incomplete) = read
        .with_context(|| format!("cannot use the DAG {}", submit.dag.display()))
        .or_code(exit::NOT_RUN)?;
    if is_incomplete {
        pmc_terminal::message(format_args!(
            "pmc: warning: {}: the end is missing; this run is of {} only",
            submit.dag.display(),
            text::count(dag.len(), "task")
        ));
    }
    Ok(dag)
}

/// Returns whether the run of a DAG that has just ended was drained.
fn is_drained(dag: &Path) -> bool {
    EndOfRun::of(dag).is_some_and(|end| matches!(end.end, RunEnd::Drained { .. }))
}

fn summarize(
    request: &Request,
    dag: &Dag,
    ended: &executor::Ended,
    observed: Observed,
    done_before: usize,
) -> Summary {
    let (status, exit_code) = match ended.signal {
        Some(signal) => (
            Status::Interrupted(signal),
            exit::SIGNAL_BASE.saturating_add(signal),
        ),
        None if ended.success => (Status::Success, exit::SUCCESS),
        None if ended.failures.is_empty() && is_drained(&request.submit.dag) => {
            (Status::Drained, exit::TASKS_FAILED)
        }
        None => (Status::Failed, ended.task_exit.unwrap_or(exit::TASKS_FAILED)),
    };
    let submit = &request.submit;
    let jobs = submit.jobs();
    let tasks = dag.ids().filter(|task| is_planned(dag, *task));
    let names: Vec<String> = tasks.map(|task| lossy(dag.name(task))).collect();
    Summary {
        label: submit.label.clone(),
        status,
        exit_code,
        wall: request.start.elapsed(),
        tallies: run_outcome::tallies(names.iter().map(String::as_str), &jobs, &observed),
        done_before,
        failures: run_outcome::failures(&submit.dir, &observed),
        max_failures_reached: ended.max_failures_reached,
        outputs: submit::outputs(&submit.destinations(&jobs)),
        submit_dir: submit.dir.clone(),
        resume: resume_command(request),
    }
}

/// Collects events of the run.
struct Watch<'a> {
    dag: &'a Dag,
    /// Default for the maximum attempts per task.
    max_attempts: u32,
    progress: &'a Progress,
    started: BTreeMap<String, Instant>,
    observed: Observed,
}

impl Watch<'_> {
    fn note(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::Begun { .. } | RunEvent::Queued { .. } => {}
            RunEvent::Started { task, .. } => {
                let task = lossy(task);
                *self.observed.attempts.entry(task.clone()).or_default() += 1;
                self.started.insert(task, Instant::now());
                self.progress.event(Event::Started);
            }
            RunEvent::Evicted { task, why } => {
                let task = lossy(task);
                self.started.remove(&task);
                // It is no attempt of its own.
                if let Some(attempts) = self.observed.attempts.get_mut(&task) {
                    *attempts = attempts.saturating_sub(1);
                }
                let how = match why {
                    Eviction::Lost => "lost with its host",
                    Eviction::Interrupted => "ended with the batch job",
                    Eviction::Saved => "has saved itself",
                };
                self.progress.event(Event::Evicted { task, how });
            }
            RunEvent::Notice(text) => self.progress.event(Event::Notice((*text).to_owned())),
            RunEvent::Ended(end) => {
                let task = lossy(end.task);
                let outcome = if end.outcome.succeeded() {
                    self.observed.done.push(task.clone());
                    Outcome::Succeeded
                } else {
                    self.failed(end.task, &task, &end.outcome)
                };
                // That of an earlier attempt counts no longer.
                self.observed.reasons.remove(&task);
                if let Some(reason) = end.outcome.reason() {
                    self.observed.reasons.insert(task.clone(), reason);
                }
                self.started.remove(&task);
                self.progress.event(Event::Ended { task, outcome });
            }
        }
    }

    fn failed(&mut self, name: &[u8], task: &str, outcome: &TaskOutcome) -> Outcome {
        let status = outcome.status;
        let reason = outcome.reason().map(|reason| reason.to_string());
        let how = reason.unwrap_or_else(|| Ending::from_wait_status(status).to_string());
        let attempts = self.observed.attempts.get(task).copied().unwrap_or(1);
        let max_attempts = self
            .dag
            .find(name)
            .and_then(|id| self.dag.tries(id))
            .unwrap_or(self.max_attempts);
        if attempts < max_attempts {
            return Outcome::WillRetry(how);
        }
        let runtime = self.started.get(task).map(Instant::elapsed).unwrap_or_default();
        self.observed.failed.push(LastAttempt {
            task: task.to_owned(),
            status,
            runtime: Some(runtime),
            is_running: false,
        });
        Outcome::Failed(how)
    }
}

/// Checks the programs of all tasks before anything runs: a missing one would fail every task.
fn check_programs(dag: &Dag) -> Result<(), Failure> {
    let mut programs = BTreeSet::new();
    for task in dag.ids() {
        if let Some(program) = words::Words::new(dag.task(task).command).next() {
            programs.insert(PathBuf::from(OsStr::from_bytes(&program)));
        }
    }
    programs::check(programs).map_err(missing_programs)
}

/// Returns a failure with advice on what to build.
pub fn missing_programs(missing: programs::Missing) -> Failure {
    let hint = missing.hint();
    let failure = Failure::new(exit::NOT_RUN, missing);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn print_summary(summary: &Summary, output: cli::Output) {
    if output.quiet && !output.json && summary.status == Status::Success {
        return;
    }
    let text = if output.json {
        summary::render_json(summary)
    } else {
        let cwd = std::env::current_dir().unwrap_or_default();
        summary::render_human(summary, &cwd)
    };
    pmc_terminal::print(&text);
}

/// Returns the command to paste for resuming the run.
fn resume_command(request: &Request) -> Vec<String> {
    let program = std::env::args().next().unwrap_or_else(|| "pmc".into());
    let mut words = vec![program, "resume".into()];
    if request.here {
        words.push("--here".into());
    }
    if request.accept_incomplete {
        words.push("--accept-incomplete".into());
    }
    if let Some(hosts) = &request.execution.hosts {
        words.extend(["--hosts".into(), hosts.0.join(",")]);
    }
    let execution = &request.execution;
    let limits = [
        ("--host-memory", execution.host_memory),
        ("--host-cpus", execution.host_cpus),
        ("--host-gpus", execution.host_gpus),
    ];
    for (option, limit) in limits {
        if let Some(limit) = limit {
            words.extend([option.to_owned(), limit.to_string()]);
        }
    }
    if execution.stampede {
        words.push("--stampede".into());
    }
    words.push(request.name.display().to_string());
    words
}

/// Returns whether a task is one of the plan, and not only of an earlier plan.
fn is_planned(dag: &Dag, task: TaskId) -> bool {
    dag.task(task).id != Some(EARLIER_PLAN.as_bytes())
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
