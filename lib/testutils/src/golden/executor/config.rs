//! How a case is run and compared: its `compare.json`.

use std::collections::BTreeMap;

use regex::Regex;
use serde::Deserialize;

use super::super::Case;
use super::super::text::{glob, matches_any};
use super::arrange::Mode;

/// The content of `compare.json`. `tests/golden/README.md` describes the keys.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A remark for readers.
    note: String,
    stdout: Mode,
    stderr: Stderr,
    modes: BTreeMap<String, Mode>,
    pub ignore: Vec<String>,
    presence: Vec<String>,
    pub mkdir: Vec<String>,
    pub bigfile: BTreeMap<String, usize>,
    pub hold_lock: Option<String>,
    /// Minimum and maximum wall time in seconds.
    pub wall: Option<(f64, f64)>,
    pub resource: Resource,
    strict_order: bool,
    pub leftovers: bool,
}

/// How the processors and the memory in the resource log are shown.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// As differences from the first line of a host.
    #[default]
    Relative,
    /// The numbers of the first line, too.
    Absolute,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Stderr {
    mode: Mode,
    drop: Vec<String>,
    keep: Vec<String>,
    float: Vec<String>,
}

impl Config {
    /// # Panics
    /// The file is malformed.
    pub fn read(case: &Case) -> Self {
        let text = case.archive.get("compare.json").unwrap_or("{}");
        serde_json::from_str(text).unwrap_or_else(|e| panic!("case {}: compare.json: {e}", case.name))
    }

    /// Returns how the standard output is compared.
    pub fn stdout_mode(&self, expected: &str) -> Mode {
        if !self.strict_order && self.stdout == Mode::Exact && expected.contains("[cluster-") {
            return Mode::Blocks;
        }
        self.stdout
    }

    /// Returns how a file of the working directory is compared.
    pub fn file_mode(&self, path: &str) -> Mode {
        const LOOSE: [(&str, Mode); 4] = [
            ("*.dagman.out", Mode::PerTask),
            ("*jobstate.log", Mode::PerTask),
            ("*.rescue*", Mode::Sorted),
            ("*.resource", Mode::Shape),
        ];
        if matches_any(&self.presence, path) {
            return Mode::Presence;
        }
        let own = self.modes.iter().map(|(pattern, mode)| (pattern.as_str(), *mode));
        let loose = LOOSE.into_iter().filter(|_| !self.strict_order);
        own.chain(loose)
            .find(|(pattern, _)| glob(pattern).is_match(path))
            .map_or(Mode::Exact, |(_, mode)| mode)
    }

    /// Brings the lines of the standard error into an order that can be compared.
    pub fn arrange_stderr(&self, text: &str) -> String {
        let regexes = |list: &[String]| -> Vec<Regex> {
            let list = list.iter().map(|pattern| Regex::new(pattern));
            list.collect::<Result<_, _>>().expect("a regular expression")
        };
        let matches = |list: &[Regex], line: &str| list.iter().any(|regex| regex.is_match(line));
        let (drop, keep, float) = (
            regexes(&self.stderr.drop),
            regexes(&self.stderr.keep),
            regexes(&self.stderr.float),
        );
        let mut lines: Vec<&str> = text.split('\n').collect();
        lines.retain(|line| !matches(&drop, line) || matches(&keep, line));
        if !self.strict_order {
            sort_merged_output(&mut lines);
        }
        let (mut floating, fixed): (Vec<&str>, Vec<&str>) = lines
            .into_iter()
            .partition(|line| matches(&float, line) || !self.strict_order && is_task_error(line));
        floating.sort_unstable();
        let fixed = self.stderr.mode.arrange(&fixed.join("\n"), &BTreeMap::new());
        format!("{fixed}\n== lines in any order\n{}", floating.join("\n"))
    }
}

/// Returns whether a line is an error of a task, and not of the run.
fn is_task_error(line: &str) -> bool {
    line.strip_prefix("[error] ").is_some_and(|rest| {
        let of_run = ["Workflow", "Max failures", "Aborting"];
        !of_run.iter().any(|start| rest.starts_with(start))
    })
}

/// Sorts the standard error of the tasks, which is merged between two lines of the log.
fn sort_merged_output(lines: &mut [&str]) {
    let find = |wanted: &str| lines.iter().position(|line| *line == wanted);
    let start = find("[info] Merging task stdio from workers...");
    let end = find("[info] Sending workers shutdown messages...");
    if let (Some(start), Some(end)) = (start, end)
        && start < end
    {
        lines[start + 1..end].sort_unstable();
    }
}
