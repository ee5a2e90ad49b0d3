//! Pegasus' own monitoring of an executed submit directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::command::{Run, Running, Said};
use super::programs::{python, venv_bin};

/// A submit directory as Pegasus' tools see it.
pub struct Monitored<'a> {
    /// The submit directory.
    pub submit: &'a Path,
    /// Stands in for the user's home: monitord keeps a database below it.
    pub home: &'a Path,
}

/// One line in the summary of `pegasus-statistics`.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted {
    pub succeeded: u32,
    pub failed: u32,
    pub incomplete: u32,
    pub total: u32,
    pub retries: u32,
}

/// Returns the only file in a directory with this ending.
pub fn only_file(folder: &Path, ending: &str) -> PathBuf {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("cannot list {}: {e}", folder.display()))
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    assert_eq!(
        found.len(),
        1,
        "expected one *{ending} in {}: {found:?}",
        folder.display()
    );
    found.remove(0)
}

impl Monitored<'_> {
    fn tool(&self, name: &str) -> Run {
        let bin = venv_bin();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        Run::new(bin.join(name))
            .within(self.submit)
            .env("PATH", path)
            .env("HOME", self.home)
            .env("LC_ALL", "C.UTF-8")
    }

    fn dagman_out(&self) -> String {
        format!("{}.dagman.out", only_file(self.submit, ".dag").display())
    }

    /// Has monitord read the logs of a run that has ended. It must log no error.
    #[track_caller]
    pub fn replay(&self) {
        let said = self
            .tool("pegasus-monitord")
            .args(["-N", "-r"])
            .arg(self.dagman_out())
            .go()
            .ok();
        no_complaint(&said);
    }

    /// Starts a monitord that follows the logs of a run, which may not have started, and waits until it
    /// works.
    #[track_caller]
    pub fn follow(&self) -> Running {
        let mut monitord = self
            .tool("pegasus-monitord")
            .arg("-N")
            .arg(self.dagman_out())
            .start();
        let begin = Instant::now();
        while !self.submit.join("monitord.pid").exists() {
            assert!(
                monitord.alive(),
                "monitord gave up: {}",
                monitord.wait().account()
            );
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "monitord does not start"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        monitord
    }

    /// Returns rows of the STAMPEDE database, every value as text and null as `-`.
    #[track_caller]
    pub fn query(&self, statement: &str) -> Vec<Vec<String>> {
        const SCRIPT: &str = "import json, sqlite3, sys\n\
            rows = sqlite3.connect('file:%s?mode=ro' % sys.argv[1], uri=True).execute(sys.argv[2])\n\
            print(json.dumps([['-' if v is None else str(v) for v in r] for r in rows]))";
        let database = only_file(self.submit, ".stampede.db");
        let said = python()
            .args(["-c", SCRIPT])
            .arg(database)
            .arg(statement)
            .go()
            .ok();
        serde_json::from_str(&said.stdout).expect("rows as JSON")
    }

    /// Returns the number of rows of a table.
    #[track_caller]
    pub fn count(&self, table: &str) -> u32 {
        let rows = self.query(&format!("select count(*) from {table}"));
        rows[0][0].parse().expect("a count")
    }

    /// Returns state, restart count and status of every start and end of the workflow, in order.
    #[track_caller]
    pub fn workflow_states(&self) -> Vec<String> {
        self.query("select state, restart_count, status from workflowstate order by timestamp, rowid")
            .iter()
            .map(|row| row.join(" "))
            .collect()
    }

    /// Returns the lines of `pegasus-statistics` for tasks and for jobs.
    #[track_caller]
    pub fn statistics(&self) -> (Counted, Counted) {
        let said = self
            .tool("pegasus-statistics")
            .args(["-s", "all"])
            .arg(self.submit)
            .go()
            .ok();
        let line = |kind: &str| {
            let row = said.stdout.lines().find(|l| l.starts_with(kind));
            let row = row.unwrap_or_else(|| panic!("no line {kind}: {}", said.account()));
            let numbers: Vec<u32> = row
                .split_whitespace()
                .skip(1)
                .filter_map(|w| w.parse().ok())
                .collect();
            let [succeeded, failed, incomplete, total, retries, _] = numbers[..] else {
                panic!("unexpected line of statistics: {row}")
            };
            Counted {
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
    pub fn analyzer(&self) -> Said {
        self.tool("pegasus-analyzer").arg(self.submit).go()
    }
}

/// Demands that monitord logged no error.
#[track_caller]
pub fn no_complaint(said: &Said) {
    let complaint = |line: &&str| {
        line.contains(":ERROR:") || line.contains(":CRITICAL:") || line.starts_with("Traceback ")
    };
    let bad: Vec<&str> = said
        .stdout
        .lines()
        .chain(said.stderr.lines())
        .filter(complaint)
        .collect();
    assert!(bad.is_empty(), "monitord complains: {bad:#?}\n{}", said.account());
}
