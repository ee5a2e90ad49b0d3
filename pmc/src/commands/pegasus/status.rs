//! `pegasus-status`: the state of a workflow in the columns of Pegasus.

use std::time::Duration;

use pmc_monitor::history::{History, Phase, State};
use serde_json::json;

use super::open;
use crate::cli::pegasus;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use pmc_terminal::print;

const LEGEND: &str = "\
UNREADY: Jobs that wait for others  READY: Jobs that wait for a slot  PRE, POST: always 0
QUEUED, IN_Q: Running jobs  SUCCESS, DONE: Jobs that succeeded  FAILURE, FAIL: Jobs that failed
%DONE: Jobs that succeeded, in percent  STATE: State of the workflow  DAGNAME: File of the workflow
";

/// Figures of a workflow.
struct Figures {
    unready: usize,
    ready: usize,
    running: usize,
    done: usize,
    failed: usize,
    total: usize,
    state: &'static str,
    dag: String,
}

/// Prints the state of a workflow. Returns the exit code.
pub fn status(options: &pegasus::Status) -> Result<u8, Failure> {
    let submit = open(&options.dir)?;
    loop {
        let dir = layout::find_run(&submit.dir)?;
        let figures = Figures::new(&History::open(dir).or_code(exit::TASKS_FAILED)?);
        if options.jsonrv {
            print(&format!("{:#}\n", figures.json()));
        } else {
            if options.legend {
                print(LEGEND);
            }
            print(&figures.text(options.long));
        }
        match options.watch {
            Some(seconds) if figures.state == "Running" => {
                std::thread::sleep(Duration::from_secs(seconds.max(1)));
            }
            _ => return Ok(exit::SUCCESS),
        }
    }
}

impl Figures {
    fn new(history: &History) -> Self {
        let all = history.all();
        let name = history.dir.dag.file_name().unwrap_or_default();
        Self {
            unready: all.get(State::Waiting),
            ready: all.get(State::Ready),
            running: all.get(State::Running),
            done: all.get(State::Done),
            failed: all.get(State::Failed),
            total: all.total(),
            state: match history.phase() {
                // A planned workflow is running to Pegasus.
                Phase::NotStarted | Phase::Running => "Running",
                Phase::Ended(0) => "Success",
                Phase::Ended(_) | Phase::CutOff => "Failure",
            },
            dag: name.to_string_lossy().into_owned(),
        }
    }

    /// Returns the part of the jobs that are done, in percent.
    fn percent(&self) -> f64 {
        let percent = 100.0 * self.done as f64 / self.total.max(1) as f64;
        (percent * 100.0).round() / 100.0
    }

    fn text(&self, long: bool) -> String {
        let percent = format!("{:?}", self.percent());
        let Figures {
            unready,
            ready,
            running,
            done,
            failed,
            ..
        } = self;
        let table = if long {
            format!(
                "UNREADY READY  PRE  IN_Q  POST  DONE  FAIL %DONE  STATE  DAGNAME\n\
                 {unready:^7}{ready:^7}{:^5}{running:^6}{:^6}{done:^6}{failed:^6}{percent:^6}{:^8}{:25}\n",
                0, 0, self.state, self.dag
            )
        } else {
            format!(
                "UNREADY  READY  PRE   QUEUED   POST  SUCCESS  FAILURE  %DONE\n\
                 {unready:^8}{ready:^8}{:^6}{running:^8}{:^8}{done:^9}{failed:^9}{percent:^8}\n",
                0, 0
            )
        };
        format!("\n{table}Summary: 1 DAG total ({}:1)\n", self.state)
    }

    fn json(&self) -> serde_json::Value {
        let counts = json!({
            "unready": self.unready,
            "ready": self.ready,
            "pre": 0,
            "queued": self.running,
            "post": 0,
            "succeeded": self.done,
            "failed": self.failed,
            "percent_done": self.percent(),
            "total": self.total,
        });
        let mut root = counts.clone();
        root["state"] = self.state.into();
        root["dagname"] = self.dag.clone().into();
        json!({ "totals": counts, "dags": { "root": root } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_those_of_pegasus() {
        let figures = Figures {
            unready: 3,
            ready: 0,
            running: 2,
            done: 10,
            failed: 1,
            total: 16,
            state: "Running",
            dag: "w-0.dag".into(),
        };
        let words = |text: &str| -> Vec<Vec<String>> {
            let split = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            text.trim().lines().map(split).collect()
        };
        let short = words(&figures.text(false));
        assert_eq!(short[1], ["3", "0", "0", "2", "0", "10", "1", "62.5"]);
        let long = words(&figures.text(true));
        assert_eq!(long[0].len(), long[1].len());
        assert_eq!(long[1][7..], ["62.5", "Running", "w-0.dag"]);
        assert_eq!(figures.json()["dags"]["root"]["percent_done"], 62.5);
        assert_eq!(figures.json()["totals"]["queued"], 2);
    }
}
