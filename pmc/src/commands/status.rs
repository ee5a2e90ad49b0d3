//! `pmc status`: progress of a run.

mod checkpoints;
mod data;
mod human;
mod json;

use std::collections::HashSet;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use console::Term;
use pmc_control::{Answer, NodeStatus, Request};
use pmc_monitor::dir::RunDir;
use pmc_monitor::events::Micros;
use pmc_monitor::history::{History, Phase, Seen, State};
use pmc_monitor::lite_data::DataOfRun;
use pmc_monitor::plan::TaskNumber;
use pmc_monitor::progress::{Observer, Progress};
use pmc_terminal::{escape, print};
use serde_json::Value;

use crate::cli;
use crate::clock::now;
use crate::commands::message;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::metrics;
use crate::reach;

/// Interval between two reads of the logs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two lines of progress without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum bytes of the list of workflows that were handed to a run.
const MAX_GUESTS: u64 = 16 << 20;

/// A run that is being watched.
struct Watch {
    history: History,
    observer: Observer,
    /// What lite jobs have moved, if asked for.
    data: Option<DataOfRun>,
}

impl Watch {
    fn open(dir: &Path, with_data: bool) -> Result<Self, Failure> {
        let dir = layout::find_run(dir)?;
        let history = History::open(dir).or_code(exit::NOT_RUN)?;
        let observer = Observer::new(&history.plan);
        let data = with_data.then(|| DataOfRun::read(&history));
        Ok(Self {
            history,
            observer,
            data,
        })
    }

    /// Reads new log lines. Returns the attempts that ended.
    fn update(&mut self, dir: &Path) -> Result<Vec<u32>, Failure> {
        if self.history.is_stale() {
            *self = Self::open(dir, self.data.is_some())?;
            return Ok(Vec::new());
        }
        let ended = self.history.update().or_code(exit::NOT_RUN)?;
        if let Some(data) = &mut self.data {
            data.update(&self.history);
        }
        Ok(ended)
    }

    fn progress(&mut self, now: Micros) -> Progress {
        self.observer.progress(&self.history, now)
    }

    fn json(&self, progress: &Progress, lines: usize) -> Value {
        let mut value = json::value(&self.history, progress, lines);
        let limits = reach::limits(&self.history, progress);
        value["wall_seconds_left"] = limits.wall_seconds_left.into();
        value["drains"] = limits.drains.into();
        if let Some(data) = &self.data {
            value["data"] = data::json(data);
        }
        let messages = message::of_running(&self.history);
        if !messages.is_empty() {
            value["messages"] = message::json(&messages);
        }
        value
    }
}

/// Shows the progress of a run. Returns the exit code.
pub fn status(arguments: &cli::Status) -> Result<u8, Failure> {
    let dir = layout::given_or_latest(arguments.dir.as_deref(), arguments.quiet || arguments.json);
    let mut watch = Watch::open(&dir, arguments.data)?;
    let mut progress = watch.progress(now());
    if arguments.watch {
        progress = follow(arguments, &dir, &mut watch, progress)?;
    }
    if !(arguments.quiet || arguments.watch && arguments.json) {
        print(&render(arguments, &dir, &watch, &progress, !arguments.json));
    }
    Ok(if arguments.quiet {
        code(&progress)
    } else {
        exit::SUCCESS
    })
}

/// Refreshes until the run ends. Returns the last progress without showing it.
fn follow(
    arguments: &cli::Status,
    dir: &Path,
    watch: &mut Watch,
    first: Progress,
) -> Result<Progress, Failure> {
    let terminal = std::io::stdout().is_terminal() && !arguments.json && !arguments.quiet;
    let term = Term::stdout();
    let mut progress = first;
    let mut last_line = None;
    let mut shown = 0;
    loop {
        let over = progress.is_over();
        if terminal {
            let _ = term.clear_last_lines(shown);
            if !over {
                let text = fit(&escape(&render(arguments, dir, watch, &progress, false)), &term);
                shown = text.lines().count();
                let _ = term.write_str(&text);
            }
        } else if !arguments.quiet
            && (over || last_line.is_none_or(|at: Instant| at.elapsed() >= LINE_INTERVAL))
        {
            last_line = Some(Instant::now());
            if arguments.json {
                print(&format!("{}\n", watch.json(&progress, arguments.lines)));
            } else if !over {
                print(&format!("{}\n", human::line(&watch.history, &progress)));
            }
        }
        if over {
            return Ok(progress);
        }
        std::thread::sleep(POLL_INTERVAL);
        let ended = watch.update(dir)?;
        if !terminal && !arguments.json && !arguments.quiet {
            for number in ended {
                if let Some(attempt) = watch.history.attempts.get(number as usize)
                    && !attempt.succeeded()
                {
                    print(&format!(
                        "{}\n",
                        human::failure(&watch.history, attempt, number as usize)
                    ));
                }
            }
        }
        progress = watch.progress(now());
    }
}

/// Cuts the text to the size of the terminal: only visible lines can be cleared.
fn fit(text: &str, term: &Term) -> String {
    let (rows, columns) = term.size();
    let (rows, columns) = (usize::from(rows.max(4)), usize::from(columns.max(20)));
    let lines = text.lines().take(rows - 1);
    lines
        .map(|line| format!("{}\n", console::truncate_str(line, columns - 1, "…")))
        .collect()
}

fn render(arguments: &cli::Status, dir: &Path, watch: &Watch, progress: &Progress, whole: bool) -> String {
    if arguments.json {
        return format!("{:#}\n", watch.json(progress, arguments.lines));
    }
    if arguments.openmetrics {
        return metrics::render(&watch.history, progress, &reach::limits(&watch.history, progress));
    }
    let shown = human::Shown {
        dir,
        lines: arguments.lines,
        now: now(),
        hints: whole,
        waits_for_agents: waits_for_agents(&watch.history, progress),
        limits: reach::limits(&watch.history, progress),
    };
    let mut text = human::render(&watch.history, progress, &shown);
    if let Some(data) = &watch.data {
        data::human(&mut text, data);
    }
    message::human(&mut text, &message::of_running(&watch.history));
    text
}

/// Returns whether the run says that it has no agent that could take tasks. It can be asked on its own host.
fn waits_for_agents(history: &History, progress: &Progress) -> bool {
    let is_idle = progress.phase == Phase::Running && progress.all.get(State::Running) == 0;
    let is_open = progress.all.get(State::Done) < progress.all.total();
    if !(is_idle && is_open) {
        return false;
    }
    if reach::elsewhere(&history.dir.dag).is_some() {
        // The files of the run show that it has begun: then tasks are ready.
        return progress.all.get(State::Ready) == 0;
    }
    // Without agents, workers are there before tasks are ready.
    let is_of_none = |node: &NodeStatus| ["gone", "leaving", "silent", "joined"].contains(&&*node.state);
    matches!(
        pmc_control::ask(&history.dir.dag, &Request::Nodes),
        Ok(Answer::Nodes(nodes)) if nodes.iter().all(is_of_none)
    )
}

/// Returns the sub-workflows that run or have failed, each with its task, as far as they have begun.
fn unfinished(history: &History) -> impl Iterator<Item = (TaskNumber, History)> + '_ {
    let mut seen = Seen::default();
    history.plan.subdags().filter_map(move |task| {
        if !matches!(history.state(task), State::Running | State::Failed) {
            return None;
        }
        Some((task, history.nested(task, &mut seen)?))
    })
}

/// A workflow that was handed to the run.
struct Guest {
    weight: f64,
    history: History,
}

/// Returns the workflows that were handed to the run, the latest first.
fn guests(history: &History) -> impl Iterator<Item = Guest> {
    let path = history.dir.beside_dag(".guests");
    let text = pmc_files::read_to_string(&path, MAX_GUESTS).unwrap_or_default();
    let lines: Vec<GuestLine> = text
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let mut seen = HashSet::new();
    lines.into_iter().filter_map(move |GuestLine { dag, weight }| {
        let dir = RunDir::open(dag.parent()?).ok()?;
        let history = seen.insert(dag).then(|| History::open(dir).ok())??;
        Some(Guest { weight, history })
    })
}

/// A line of the list that the executor writes.
#[derive(serde::Deserialize)]
struct GuestLine {
    dag: PathBuf,
    weight: f64,
}

fn code(progress: &Progress) -> u8 {
    let done = progress.all.get(State::Done) == progress.all.total() && progress.all.total() > 0;
    match progress.phase {
        Phase::Running => exit::NOT_ENDED,
        _ if done => exit::SUCCESS,
        _ if progress.is_over() => exit::TASKS_FAILED,
        _ => exit::NOT_ENDED,
    }
}
