//! Progress on stderr: a bar on a terminal, a line every ten seconds elsewhere.
//!
//! A separate thread writes it, so that a slow terminal never delays the workflow.

mod pace;
mod state;

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pace::Pace;
use pmc_terminal::escape;
pub use state::{Event, Outcome, State};

/// Delay before the bar appears: a short run needs no progress.
const BAR_DELAY: Duration = Duration::from_millis(250);
/// Interval between two redraws of the bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A bar that is redrawn in place.
    Bar,
    /// A line every ten seconds.
    Lines,
    /// Nothing.
    Silent,
}

impl Style {
    /// Chooses a bar on a terminal that can move the cursor, else lines; nothing if `quiet`.
    pub fn choose(quiet: bool, dumb: bool) -> Self {
        if quiet {
            Style::Silent
        } else if std::io::stderr().is_terminal() && !dumb {
            Style::Bar
        } else {
            Style::Lines
        }
    }
}

/// Shows the progress of a run. Dropping it removes the bar.
#[derive(Debug)]
pub struct Progress {
    sender: Option<mpsc::Sender<Event>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts with these counts. `verbose` reports the end of every task.
    pub fn start(style: Style, verbose: bool, state: State) -> Self {
        if style == Style::Silent {
            return Progress {
                sender: None,
                thread: None,
            };
        }
        let (sender, receiver) = mpsc::channel();
        let shown = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || show(style, verbose, state, &receiver));
        // Without a thread there is no progress, but the run continues.
        match shown {
            Ok(thread) => Progress {
                sender: Some(sender),
                thread: Some(thread),
            },
            Err(_) => Progress {
                sender: None,
                thread: None,
            },
        }
    }

    /// Reports an event.
    pub fn event(&self, event: Event) {
        if let Some(sender) = &self.sender {
            // The thread ends only after this sender is dropped.
            let _ = sender.send(event);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn show(style: Style, verbose: bool, mut state: State, events: &mpsc::Receiver<Event>) {
    let start = Instant::now();
    let (delay, interval) = match style {
        Style::Bar => (BAR_DELAY, BAR_INTERVAL),
        Style::Lines | Style::Silent => (LINE_INTERVAL, LINE_INTERVAL),
    };
    let mut pace = Pace::new(delay, interval);
    let mut bar: Option<ProgressBar> = None;
    let mut shown = state.clone();
    loop {
        let event = events.recv_timeout(BAR_INTERVAL);
        match &event {
            Ok(event) => {
                let mut line = state.note(event);
                if let (true, None, Event::Ended { task, .. }) = (verbose, &line, event) {
                    line = Some(format!("done: {task}"));
                }
                if let Some(line) = line {
                    match &bar {
                        Some(bar) => bar.suspend(|| write_line(&line)),
                        None => write_line(&line),
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let elapsed = start.elapsed();
        if !pace.due(elapsed) {
            continue;
        }
        match style {
            Style::Bar => {
                bar.get_or_insert_with(new_bar)
                    .set_message(escape(&state.bar(elapsed)).into_owned());
            }
            Style::Lines if state != shown => {
                write_line(&state.line(elapsed));
                shown = state.clone();
            }
            Style::Lines | Style::Silent => {}
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

/// Makes a line that is redrawn in place and truncated to the width of the terminal.
fn new_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        bar.set_style(style);
    }
    bar
}

fn write_line(line: &str) {
    pmc_terminal::message(format_args!("pmc: {line}"));
}
