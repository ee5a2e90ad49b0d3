//! `pmc status`: how far a run is.

mod human;
mod json;

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use console::Term;
use pmc_monitor::events::Micros;
use pmc_monitor::history::{History, Phase, State};
use pmc_monitor::progress::{Observer, Progress};

use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::output::{now, print};

/// How often a run is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often the progress is told where there is no terminal.
const TELL: Duration = Duration::from_secs(10);

/// A run that is looked at.
struct Watch {
    history: History,
    observer: Observer,
}

impl Watch {
    fn open(dir: &Path) -> Result<Self, Failure> {
        let dir = layout::find_run(dir)?;
        let history = History::open(dir).or_code(exit::NOT_RUN)?;
        let observer = Observer::new(&history.plan);
        Ok(Self { history, observer })
    }

    /// Reads on. Gives the tries that ended.
    fn update(&mut self, dir: &Path) -> Result<Vec<u32>, Failure> {
        if self.history.is_stale() {
            *self = Self::open(dir)?;
            return Ok(Vec::new());
        }
        self.history.update().or_code(exit::NOT_RUN)
    }

    fn look(&mut self, now: Micros) -> Progress {
        self.observer.look(&self.history, now)
    }
}

/// Tells how far a run is. Returns the exit code.
pub fn status(arguments: &cli::Status) -> Result<u8, Failure> {
    let mut watch = Watch::open(&arguments.dir)?;
    let mut progress = watch.look(now());
    if arguments.watch {
        progress = follow(arguments, &mut watch, progress)?;
    }
    if !(arguments.quiet || arguments.watch && arguments.json) {
        print(&render(arguments, &watch, &progress, !arguments.json));
    }
    Ok(if arguments.quiet {
        code(&progress)
    } else {
        exit::SUCCESS
    })
}

/// Looks again until the run ends. The last look is not shown.
fn follow(arguments: &cli::Status, watch: &mut Watch, first: Progress) -> Result<Progress, Failure> {
    let terminal = std::io::stdout().is_terminal() && !arguments.json && !arguments.quiet;
    let term = Term::stdout();
    let mut progress = first;
    let mut told = None;
    let mut shown = 0;
    loop {
        let over = matches!(progress.phase, Phase::Ended(_) | Phase::Cut);
        if terminal {
            let _ = term.clear_last_lines(shown);
            if !over {
                let text = fit(&render(arguments, watch, &progress, false), &term);
                shown = text.lines().count();
                let _ = term.write_str(&text);
            }
        } else if !arguments.quiet && (over || told.is_none_or(|at: Instant| at.elapsed() >= TELL)) {
            told = Some(Instant::now());
            if arguments.json {
                print(&format!(
                    "{}\n",
                    json::value(&watch.history, &progress, arguments.lines)
                ));
            } else if !over {
                print(&format!("{}\n", human::line(&watch.history, &progress)));
            }
        }
        if over {
            return Ok(progress);
        }
        std::thread::sleep(INTERVAL);
        let ended = watch.update(&arguments.dir)?;
        if !terminal && !arguments.json && !arguments.quiet {
            for number in ended {
                if let Some(one) = watch.history.tries.get(number as usize)
                    && !one.succeeded()
                {
                    print(&format!("{}\n", human::failure(&watch.history, one)));
                }
            }
        }
        progress = watch.look(now());
    }
}

/// Lines that would not fit on the terminal cannot be taken back.
fn fit(text: &str, term: &Term) -> String {
    let (rows, columns) = term.size();
    let (rows, columns) = (usize::from(rows.max(4)), usize::from(columns.max(20)));
    let lines = text.lines().take(rows - 1);
    lines
        .map(|line| format!("{}\n", console::truncate_str(line, columns - 1, "…")))
        .collect()
}

fn render(arguments: &cli::Status, watch: &Watch, progress: &Progress, whole: bool) -> String {
    if arguments.json {
        return format!("{:#}\n", json::value(&watch.history, progress, arguments.lines));
    }
    let shown = human::Shown {
        dir: &arguments.dir,
        lines: arguments.lines,
        now: now(),
        hints: whole,
    };
    human::render(&watch.history, progress, &shown)
}

fn code(progress: &Progress) -> u8 {
    let done = progress.all.get(State::Done) == progress.all.total() && progress.all.total() > 0;
    match progress.phase {
        Phase::Running => exit::NOT_ENDED,
        _ if done => exit::SUCCESS,
        Phase::NotStarted => exit::NOT_ENDED,
        Phase::Ended(_) | Phase::Cut => exit::TASKS_FAILED,
    }
}
