//! Pegasus' own monitoring of an executed submit directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::command::{CommandResult, Program, Running};
use super::programs::{python, venv_bin};

/// A submit directory as Pegasus' tools see it.
pub struct Monitored<'a> {
    /// The submit directory.
    pub submit: &'a Path,
    /// The home directory of the tools; monitord keeps a database below it.
    pub home: &'a Path,
}

/// One line in the summary of `pegasus-statistics`.
#[derive(Debug, PartialEq, Eq)]
pub struct JobCounts {
    pub succeeded: u32,
    pub failed: u32,
    pub incomplete: u32,
    pub total: u32,
    pub retries: u32,
}

/// Returns the only file in a directory whose name has this ending.
pub fn only_file(directory: &Path, ending: &str) -> PathBuf {
    let mut found: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap_or_else(|e| panic!("cannot list {}: {e}", directory.display()))
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    assert_eq!(
        found.len(),
        1,
        "expected one *{ending} in {}: {found:?}",
        directory.display()
    );
    found.remove(0)
}

impl Monitored<'_> {
    fn tool(&self, name: &str) -> Program {
        let bin = venv_bin();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        Program::new(bin.join(name))
            .in_directory(self.submit)
            .env("PATH", path)
            .env("HOME", self.home)
            .env("LC_ALL", "C.UTF-8")
    }

    fn dagman_out(&self) -> String {
        format!("{}.dagman.out", only_file(self.submit, ".dag").display())
    }

    /// Loads the logs of a finished run with monitord, which must log no error.
    #[track_caller]
    pub fn replay(&self) {
        assert_no_errors(&self.load());
    }

    /// Loads the logs of a finished run with monitord, which must not fail.
    #[track_caller]
    pub fn load(&self) -> CommandResult {
        self.tool("pegasus-monitord")
            .args(["-N", "-r"])
            .arg(self.dagman_out())
            .run()
            .ok()
    }

    /// Starts a monitord that follows the logs of a run, and waits until it is ready. The run may not have
    /// started yet.
    #[track_caller]
    pub fn follow(&self) -> Running {
        let mut monitord = self
            .tool("pegasus-monitord")
            .arg("-N")
            .arg(self.dagman_out())
            .start();
        let started = Instant::now();
        while !self.submit.join("monitord.pid").exists() {
            assert!(
                monitord.is_running(),
                "monitord ended: {}",
                monitord.wait().details()
            );
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "monitord does not start"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        monitord
    }

    /// Queries the STAMPEDE database. Returns every value as text, and null as `-`.
    #[track_caller]
    pub fn query(&self, statement: &str) -> Vec<Vec<String>> {
        query(&only_file(self.submit, ".stampede.db"), statement)
    }

    /// Returns the number of rows of a table.
    #[track_caller]
    pub fn count(&self, table: &str) -> u32 {
        let rows = self.query(&format!("select count(*) from {table}"));
        rows[0][0].parse().expect("a count")
    }

    /// Returns state, restart count and status of each start and end of the workflow, in order.
    #[track_caller]
    pub fn workflow_states(&self) -> Vec<String> {
        self.query("select state, restart_count, status from workflowstate order by timestamp, rowid")
            .iter()
            .map(|row| row.join(" "))
            .collect()
    }

    /// Returns the counts of `pegasus-statistics` for tasks and for jobs.
    #[track_caller]
    pub fn statistics(&self) -> (JobCounts, JobCounts) {
        let result = self
            .tool("pegasus-statistics")
            .args(["-s", "all"])
            .arg(self.submit)
            .run()
            .ok();
        let line = |kind: &str| {
            let row = result.stdout.lines().find(|l| l.starts_with(kind));
            let row = row.unwrap_or_else(|| panic!("no line {kind}: {}", result.details()));
            let numbers: Vec<u32> = row
                .split_whitespace()
                .skip(1)
                .filter_map(|w| w.parse().ok())
                .collect();
            let [succeeded, failed, incomplete, total, retries, _] = numbers[..] else {
                panic!("unexpected line of statistics: {row}")
            };
            JobCounts {
                succeeded,
                failed,
                incomplete,
                total,
                retries,
            }
        };
        (line("Tasks "), line("Jobs "))
    }

    /// Returns the report of `pegasus-analyzer`, which fails if the workflow failed.
    #[track_caller]
    pub fn analyzer(&self) -> CommandResult {
        self.tool("pegasus-analyzer").arg(self.submit).run()
    }
}

/// Queries a STAMPEDE database. Returns every value as text, and null as `-`.
#[track_caller]
pub fn query(database: &Path, statement: &str) -> Vec<Vec<String>> {
    const SCRIPT: &str = "import json, sqlite3, sys\n\
        rows = sqlite3.connect('file:%s?mode=ro' % sys.argv[1], uri=True).execute(sys.argv[2])\n\
        print(json.dumps([['-' if v is None else str(v) for v in r] for r in rows]))";
    let result = python()
        .args(["-c", SCRIPT])
        .arg(database)
        .arg(statement)
        .run()
        .ok();
    serde_json::from_str(&result.stdout).expect("rows as JSON")
}

/// Asserts that monitord logged no error.
#[track_caller]
pub fn assert_no_errors(result: &CommandResult) {
    let is_error = |line: &&str| {
        line.contains(":ERROR:") || line.contains(":CRITICAL:") || line.starts_with("Traceback ")
    };
    let bad: Vec<&str> = result
        .stdout
        .lines()
        .chain(result.stderr.lines())
        .filter(is_error)
        .collect();
    assert!(
        bad.is_empty(),
        "monitord logged errors: {bad:#?}\n{}",
        result.details()
    );
}
