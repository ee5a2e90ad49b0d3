//! Plans the example workflow `chains` into a folder of its own and runs what was planned.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::command::{Run, Said};
use super::pegasus::{Monitored, only_file};
use super::programs::{Flavour, project, python};

/// How the workflow is written down.
#[derive(Clone, Copy)]
pub enum Format {
    Yaml,
    Dax,
}

/// A planned workflow in a temporary folder.
pub struct Planned {
    folder: TempDir,
    submit: PathBuf,
    flavour: Flavour,
}

/// What to plan.
pub struct Request {
    pub flavour: Flavour,
    pub format: Format,
    /// Number of chains of two steps.
    pub chains: u32,
    /// Chains whose second step fails until [`Planned::repair`].
    pub broken: Vec<u32>,
    /// What the planned workflow removes.
    pub cleanup: &'static str,
    /// Further words for the planner.
    pub options: Vec<String>,
}

impl Request {
    /// Twenty chains, all in order.
    pub fn new(flavour: Flavour, format: Format) -> Self {
        Self {
            flavour,
            format,
            chains: 20,
            broken: Vec::new(),
            cleanup: "leaf",
            options: Vec::new(),
        }
    }

    /// Writes the workflow with the real `Pegasus.api` and plans it with `pmc-plan`.
    #[track_caller]
    pub fn plan(self) -> Planned {
        let folder = tempfile::Builder::new()
            .prefix("pmc-e2e.")
            .tempdir()
            .expect("a temporary folder");
        let top = folder.path().canonicalize().expect("the temporary folder's path");
        let input = top.join("workflow");
        let (format, name) = match self.format {
            Format::Yaml => ("yaml", "workflow.yml"),
            Format::Dax => ("dax", "workflow.xml"),
        };
        let mut generate = python()
            .arg(project().join("examples/chains/generate.py"))
            .arg("--out")
            .arg(&input)
            .args(["--format", format, "--chains", &self.chains.to_string()]);
        for chain in &self.broken {
            generate = generate.args(["--break", &chain.to_string()]);
        }
        generate.go().ok();
        Run::new(self.flavour.program("pmc-plan"))
            .within(&top)
            .arg("--conf")
            .arg(input.join("pegasus.properties"))
            .args([
                "--sites",
                "local",
                "--output-sites",
                "local",
                "--cleanup",
                self.cleanup,
                "--dir",
            ])
            .arg(top.join("submit"))
            .args(["--relative-submit-dir", "run"])
            .args(&self.options)
            .arg(input.join(name))
            .go()
            .ok();
        fs::create_dir(top.join("home")).expect("a folder");
        Planned {
            submit: top.join("submit/run"),
            flavour: self.flavour,
            folder,
        }
    }
}

impl Planned {
    /// The submit directory.
    pub fn submit(&self) -> &Path {
        &self.submit
    }

    /// The folder that holds everything.
    pub fn top(&self) -> &Path {
        self.folder.path()
    }

    /// The DAG file.
    pub fn dag(&self) -> PathBuf {
        only_file(&self.submit, ".dag")
    }

    /// Pegasus' view of the submit directory.
    pub fn monitored(&self) -> Monitored<'_> {
        Monitored {
            submit: &self.submit,
            home: self.home(),
        }
    }

    fn home(&self) -> &Path {
        // Beside the folder of the submit directories.
        self.submit
            .parent()
            .and_then(Path::parent)
            .expect("made two levels deep")
    }

    /// The executor on the planned DAG, as the batch scripts call it, with this many workers.
    pub fn execution(&self, workers: u32) -> Run {
        self.flavour
            .executor_with(workers)
            .args(["--monitord-hack", "--per-task-stdio"])
            .arg(self.dag().file_name().expect("a file name"))
            .within(&self.submit)
    }

    /// Repairs what made the broken chains fail.
    pub fn repair(&self) {
        fs::remove_file(self.top().join("workflow/broken")).expect("the marker of the broken chains");
    }

    /// Demands that each chain's output is there and is its input.
    #[track_caller]
    pub fn outputs_are_right(&self, chains: impl IntoIterator<Item = u32>) {
        let input = self.top().join("workflow/inputs");
        let output = self.top().join("workflow/outputs");
        for chain in chains {
            let wanted = fs::read(input.join(format!("in_{chain}.txt"))).expect("an input");
            let path = output.join(format!("out_{chain}.txt"));
            let got = fs::read(&path).unwrap_or_else(|e| panic!("no {}: {e}", path.display()));
            assert_eq!(got, wanted, "{}", path.display());
        }
    }

    /// Demands what Pegasus' tools must say of a complete run of twenty chains.
    #[track_caller]
    pub fn is_complete_for_pegasus(&self) {
        let monitored = self.monitored();
        monitored.replay();
        self.database_is_complete();
        let (tasks, jobs) = monitored.statistics();
        assert_eq!(
            (
                tasks.succeeded,
                tasks.failed,
                tasks.incomplete,
                tasks.total,
                tasks.retries
            ),
            (40, 0, 0, 40, 0)
        );
        assert_eq!(
            (
                jobs.succeeded,
                jobs.failed,
                jobs.incomplete,
                jobs.total,
                jobs.retries
            ),
            (46, 0, 0, 46, 0)
        );
        let report = monitored.analyzer().ok();
        assert!(
            says(&report, &["Workflow Status", "success"]),
            "{}",
            report.account()
        );
        assert!(
            says(&report, &["# jobs succeeded", "46 (100.00%)"]),
            "{}",
            report.account()
        );
    }

    /// Demands a STAMPEDE database with all of twenty chains in it.
    #[track_caller]
    pub fn database_is_complete(&self) {
        let monitored = self.monitored();
        let counts = ["task", "job", "job_instance", "invocation"].map(|table| monitored.count(table));
        assert_eq!(
            counts,
            [40, 46, 46, 46],
            "rows of task, job, job_instance, invocation"
        );
        assert_eq!(
            monitored.workflow_states(),
            ["WORKFLOW_STARTED 0 -", "WORKFLOW_TERMINATED 0 0"]
        );
        let failed = monitored.query("select exitcode from invocation where exitcode != 0");
        assert_eq!(failed.len(), 0, "invocations that failed");
        let tied = monitored
            .query("select count(distinct abs_task_id) from invocation where abs_task_id is not null");
        assert_eq!(
            tied,
            [["40"]],
            "invocations that belong to a task of the workflow"
        );
    }
}

/// Whether a line of the report has all these words.
pub fn says(report: &Said, words: &[&str]) -> bool {
    report
        .stdout
        .lines()
        .any(|line| words.iter().all(|word| line.contains(word)))
}
