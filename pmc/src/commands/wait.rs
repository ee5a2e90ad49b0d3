//! `pmc wait`: prints how tasks of a run that takes some end, as they do.

use std::collections::BTreeSet;
use std::io::{self, Write as _};

use anyhow::anyhow;
use pmc_control::{Answer, EndState, Ends, Request, TaskEnd, Tool};
use pmc_terminal::print;

use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::reach;

/// Maximum tasks in a request: with long names, they are as long as a request can be.
pub(super) const MAX_ASKED: usize = 400;

/// Prints the ends of tasks. Returns the exit code.
pub fn wait(arguments: &cli::Wait) -> Result<u8, Failure> {
    let (tasks, dir) = layout::tasks_and_run(arguments.words.clone());
    if arguments.follow && !tasks.is_empty() {
        let error = anyhow!("--follow is for all tasks, so that none can be named");
        return Err(Failure::new(exit::USAGE, error));
    }
    let dir = layout::given_or_latest(dir.as_deref(), true);
    let run = layout::find_run(&dir)?;
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, false);
    }
    let mut waiting = Waiting {
        tool: Tool::connect(&run.dag).or_code(exit::NOT_RUN)?,
        named: (!tasks.is_empty()).then(|| tasks.iter().cloned().collect()),
        all_done: true,
    };
    let mut state = match (&waiting.named, arguments.follow) {
        (Some(_), _) => waiting.ended(&tasks)?,
        (None, true) => Ends {
            left: 1,
            ..Ends::default()
        },
        (None, false) => waiting.ask(&Request::NextEnds { from: None })?,
    };
    loop {
        let is_over = match &waiting.named {
            Some(named) => named.is_empty(),
            None => state.left == 0 && !arguments.follow,
        };
        if is_over || (state.is_over && arguments.follow) {
            break;
        }
        if state.is_over {
            let left = waiting.named.map_or(state.left, |named| named.len() as u64);
            let error = anyhow!("the run ends, and {left} of the tasks have not run");
            let hint = format!("`pmc serve {}` goes on with them", dir.display());
            return Err(Failure::new(exit::NOT_RUN, error).hint(hint));
        }
        let from = Some(state.next);
        state = waiting.ask(&Request::NextEnds { from })?;
        waiting.print(&state.ends);
    }
    Ok(match waiting.all_done {
        true => exit::SUCCESS,
        false => exit::TASKS_FAILED,
    })
}

/// A tool that waits.
struct Waiting {
    tool: Tool,
    /// The tasks that it waits for and that have not ended; `None` for all.
    named: Option<BTreeSet<String>>,
    /// All that have ended are done.
    all_done: bool,
}

impl Waiting {
    /// Prints those of the named tasks that have ended. Returns from where to go on: what ends meanwhile is
    /// reported once more, and printed once.
    fn ended(&mut self, names: &[String]) -> Result<Ends, Failure> {
        let mut first = self.ask(&Request::NextEnds { from: None })?;
        for part in names.chunks(MAX_ASKED) {
            let tasks = part.to_vec();
            let ends = self.ask(&Request::Ends { tasks })?.ends;
            self.print(&ends);
        }
        first.ends.clear();
        Ok(first)
    }

    fn ask(&mut self, request: &Request) -> Result<Ends, Failure> {
        match self.tool.ask(request).or_code(exit::NOT_RUN)? {
            Answer::Ends(ends) => Ok(ends),
            other => Err(reach::refused(other)),
        }
    }

    /// Prints ends that are waited for, a line of JSON each.
    fn print(&mut self, ends: &[TaskEnd]) {
        let mut text = String::new();
        for end in ends {
            if let Some(named) = &mut self.named
                && !named.remove(&end.id)
            {
                continue;
            }
            self.all_done &= end.state == EndState::Done;
            // Such a structure has no keys or numbers that JSON lacks.
            text.push_str(&serde_json::to_string(end).unwrap_or_default());
            text.push('\n');
        }
        print(&text);
        // Who reads the lines may wait for them. Lost output is reported at the end.
        let _ = io::stdout().flush();
    }
}
