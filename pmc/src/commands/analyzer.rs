//! `pmc analyzer`: why a run failed.

mod human;
mod json;
pub mod nested;

pub use human::{by_hand, cannot_repeat};
use pmc_monitor::causes::{Diagnosis, diagnose};
use pmc_monitor::history::{History, Phase, State};
use pmc_terminal::print;

use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;

/// Explains why a run failed. Returns the exit code.
pub fn analyzer(arguments: &cli::Analyzer) -> Result<u8, Failure> {
    let named = layout::given_or_latest(arguments.dir.as_deref(), arguments.quiet || arguments.json);
    let dir = layout::find_run(&named)?;
    let history = History::open(dir).or_code(exit::NOT_RUN)?;
    let diagnosis = diagnose(&history);
    if arguments.json {
        let mut value = json::value(&history, &diagnosis);
        value["sub_workflows"] = nested::values(&history, arguments.causes).into();
        print(&format!("{value:#}\n"));
    } else if !arguments.quiet {
        let cwd = std::env::current_dir().unwrap_or_default();
        let mut text = human::render(&history, &diagnosis, arguments, Some(&named), &cwd);
        nested::render(&mut text, &history, arguments, &cwd);
        print(&text);
    }
    Ok(if is_healthy(&history, &diagnosis) {
        exit::SUCCESS
    } else {
        exit::TASKS_FAILED
    })
}

fn is_healthy(history: &History, diagnosis: &Diagnosis) -> bool {
    let all = history.all();
    let over = match diagnosis.phase {
        Phase::Ended(_) | Phase::CutOff => true,
        // It ran without a log.
        Phase::NotStarted => history.has_no_log(),
        Phase::Running => false,
    };
    diagnosis.causes.is_empty() && (!over || all.get(State::Done) == all.total())
}
