//! Plans the example workflow `chains` in a temporary directory and runs the plan.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::command::{CommandResult, Program};
use super::pegasus::{Monitored, only_file};
use super::programs::{Build, project, python};

/// Format of the workflow file.
#[derive(Clone, Copy)]
pub enum Format {
    Yaml,
    Dax,
}

/// A planned workflow in a temporary directory.
pub struct Planned {
    directory: TempDir,
    submit: PathBuf,
    build: Build,
}

/// Options for planning.
pub struct Request {
    pub build: Build,
    pub format: Format,
    /// Number of chains. Each has two steps.
    pub chains: u32,
    /// Chains whose second step fails until [`Planned::repair`].
    pub broken: Vec<u32>,
    /// The cleanup strategy.
    pub cleanup: &'static str,
    /// Further entries of the transformation catalog.
    pub transformations: String,
    /// Further arguments of the planner.
    pub options: Vec<String>,
}

impl Request {
    /// Requests twenty chains that succeed.
    pub fn new(build: Build, format: Format) -> Self {
        Self {
            build,
            format,
            chains: 20,
            broken: Vec::new(),
            cleanup: "leaf",
            transformations: String::new(),
            options: Vec::new(),
        }
    }

    /// Writes the workflow with the real `Pegasus.api` and plans it with `pmc-plan`.
    #[track_caller]
    pub fn plan(self) -> Planned {
        let directory = tempfile::Builder::new()
            .prefix("pmc-e2e.")
            .tempdir()
            .expect("a temporary directory");
        let top = directory
            .path()
            .canonicalize()
            .expect("the temporary directory's path");
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
        generate.run().ok();
        let catalog = input.join("transformations.yml");
        let text = fs::read_to_string(&catalog).expect("a transformation catalog");
        fs::write(&catalog, text + &self.transformations).expect("a transformation catalog");
        Program::new(self.build.program("pmc-plan"))
            .in_directory(&top)
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
            .run()
            .ok();
        fs::create_dir(top.join("home")).expect("a directory");
        Planned {
            submit: top.join("submit/run"),
            build: self.build,
            directory,
        }
    }
}

impl Planned {
    /// Returns the submit directory.
    pub fn submit(&self) -> &Path {
        &self.submit
    }

    /// Returns the directory of the workflow, the plan and the outputs.
    pub fn top(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path of the DAG file.
    pub fn dag(&self) -> PathBuf {
        only_file(&self.submit, ".dag")
    }

    /// Returns Pegasus' view of the submit directory.
    pub fn monitored(&self) -> Monitored<'_> {
        Monitored {
            submit: &self.submit,
            home: self.home(),
        }
    }

    fn home(&self) -> &Path {
        // `home` is beside the directory of the submit directories.
        self.submit
            .parent()
            .and_then(Path::parent)
            .expect("a directory two levels up")
    }

    /// Returns the executor with the planned DAG and the arguments of batch scripts.
    pub fn executor(&self, workers: u32) -> Program {
        self.build
            .executor_with(workers)
            .args(["--monitord-hack", "--per-task-stdio"])
            .arg(self.dag().file_name().expect("a file name"))
            .in_directory(&self.submit)
    }

    /// Returns the executor with an agent on each of these hosts, which are all this machine.
    pub fn executor_on(&self, hosts: &str, options: &[&str]) -> Program {
        Program::new(self.build.program("pegasus-mpi-cluster"))
            .args(["--agents", hosts, "--launch", "env PMC_HOST_NAME={host}"])
            .args(options)
            .args(["--monitord-hack", "--per-task-stdio"])
            .arg(self.dag().file_name().expect("a file name"))
            .in_directory(&self.submit)
    }

    /// Removes the cause of failure of the broken chains.
    pub fn repair(&self) {
        fs::remove_file(self.top().join("workflow/broken")).expect("the marker of the broken chains");
    }

    /// Asserts that the output of each chain equals its input.
    #[track_caller]
    pub fn assert_outputs(&self, chains: impl IntoIterator<Item = u32>) {
        let input = self.top().join("workflow/inputs");
        let output = self.top().join("workflow/outputs");
        for chain in chains {
            let expected = fs::read(input.join(format!("in_{chain}.txt"))).expect("an input");
            let path = output.join(format!("out_{chain}.txt"));
            let got = fs::read(&path).unwrap_or_else(|e| panic!("no {}: {e}", path.display()));
            assert_eq!(got, expected, "{}", path.display());
        }
    }

    /// Asserts that Pegasus' tools report a complete run of twenty chains.
    #[track_caller]
    pub fn assert_complete_for_pegasus(&self) {
        let monitored = self.monitored();
        monitored.replay();
        self.assert_database_complete();
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
            has_line_with(&report, &["Workflow Status", "success"]),
            "{}",
            report.details()
        );
        assert!(
            has_line_with(&report, &["# jobs succeeded", "46 (100.00%)"]),
            "{}",
            report.details()
        );
    }

    /// Asserts that the STAMPEDE database holds all of twenty chains.
    #[track_caller]
    pub fn assert_database_complete(&self) {
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
        let linked = monitored
            .query("select count(distinct abs_task_id) from invocation where abs_task_id is not null");
        assert_eq!(
            linked,
            [["40"]],
            "invocations that belong to a task of the workflow"
        );
    }
}

/// Returns whether a line of the output has all these words.
pub fn has_line_with(result: &CommandResult, words: &[&str]) -> bool {
    result
        .stdout
        .lines()
        .any(|line| words.iter().all(|word| line.contains(word)))
}
