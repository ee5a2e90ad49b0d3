//! A directory of planner inputs, and a reader for the resulting plan.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test uses some of these helpers and stops at the first unexpected result"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pmc_plan::cli::{self, Invocation};
use pmc_plan::error::PlanError;
use pmc_plan::plan::{Planned, plan};
use pmc_plan::request::Environment;

/// Planner inputs in a temporary directory.
pub struct Case {
    dir: tempfile::TempDir,
}

/// The site `local` with a work directory and a storage directory.
const SITES: &str = r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: @DIR@/scratch, fileServers: [{url: "file://@DIR@/scratch", operation: all}]}
  - {type: localStorage, path: @DIR@/out, fileServers: [{url: "file://@DIR@/out", operation: all}]}
  profiles:
    env: {PEGASUS_HOME: /opt/pegasus}
"#;

impl Case {
    /// Makes a directory with a site catalog and this workflow.
    pub fn new(workflow: &str) -> Self {
        let case = Case {
            dir: tempfile::tempdir().unwrap(),
        };
        case.put("sites.yml", SITES);
        case.put("workflow.yml", workflow);
        case
    }
    /// Path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
    /// Writes an input file. `@DIR@` in the text stands for the directory.
    pub fn put(&self, name: &str, text: &str) -> &Self {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("@DIR@", &self.path().display().to_string())).unwrap();
        self
    }
    /// Text of an input file.
    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }
    /// Writes a transformation catalog with programs installed on `local`.
    pub fn programs(&self, names: &[&str]) -> &Self {
        let mut text = String::from("pegasus: \"5.0\"\ntransformations:\n");
        for name in names {
            text.push_str(&format!(
                "- name: {name}\n  sites: [{{name: local, type: installed, pfn: /bin/{name}}}]\n"
            ));
        }
        self.put("transformations.yml", &text)
    }
    /// Writes a replica catalog with files on `local`.
    pub fn replicas(&self, names: &[&str]) -> &Self {
        let mut text = String::from("pegasus: \"5.0\"\nreplicas:\n");
        for name in names {
            text.push_str(&format!(
                "- lfn: {name}\n  pfns: [{{site: local, pfn: /data/{name}}}]\n"
            ));
        }
        self.put("replicas.yml", &text)
    }
    /// Plans `workflow.yml` with these options and reads the plan back.
    pub fn plan(&self, line: &str) -> Result<Plan, PlanError> {
        self.plan_only(line).map(Plan::read)
    }
    /// Plans `workflow.yml` with these options.
    pub fn plan_only(&self, line: &str) -> Result<Planned, PlanError> {
        let arguments: Vec<String> = std::iter::once("pmc-plan")
            .chain(line.split_whitespace())
            .map(str::to_owned)
            .collect();
        let own_bin = Some(self.path().join("bin")).filter(|bin| bin.join("pegasus-mpi-cluster").exists());
        let environment = Environment {
            is_of_other: false,
            variables: BTreeMap::new(),
            working_dir: self.path().to_owned(),
            user: "tester".into(),
            host: "here".into(),
            own_bin: own_bin.or_else(|| Some("/opt/pegasus/bin".into())),
            now: chrono::DateTime::from_timestamp(1_700_000_000, 0)
                .unwrap()
                .fixed_offset(),
            uuid: "01234567-89ab-cdef-0123-456789abcdef".into(),
        };
        let Invocation::Plan(request, _) = cli::parse(&arguments, environment).unwrap() else {
            panic!("not a planning request: {line}");
        };
        plan(&request)
    }
    /// Plans, which must fail, and returns the message.
    pub fn fail(&self, line: &str) -> String {
        match self.plan_only(line) {
            Ok(planned) => panic!("planned in {}", planned.submit_dir.display()),
            Err(e) => e.to_string(),
        }
    }
}

fn is_about_missing_input(warning: &str) -> bool {
    warning.contains("a run ends with an error unless it is there by then")
}

/// A plan, read back from its files.
pub struct Plan {
    pub planned: Planned,
    pub dag: pmc_dag::Dag,
    pub edges: BTreeSet<(String, String)>,
}

impl Plan {
    /// Warnings, as they are printed, but for the one about inputs: those of cases do not exist.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.planned.warnings.iter().map(ToString::to_string);
        warnings
            .filter(|warning| !is_about_missing_input(warning))
            .collect()
    }

    /// The warning about inputs that do not exist.
    pub fn missing_input(&self) -> Option<String> {
        let mut warnings = self.planned.warnings.iter().map(ToString::to_string);
        warnings.find(|warning| is_about_missing_input(warning))
    }

    fn read(planned: Planned) -> Self {
        let dag = pmc_dag::Dag::open(&planned.dag).unwrap();
        let text = fs::read_to_string(&planned.dag).unwrap();
        let edges = text
            .lines()
            .filter_map(|line| {
                let mut words = line.strip_prefix("EDGE ")?.split(' ');
                Some((words.next()?.to_owned(), words.next()?.to_owned()))
            })
            .collect();
        Plan { planned, dag, edges }
    }
    /// Names of all tasks in the order of the DAG.
    pub fn tasks(&self) -> Vec<String> {
        (0..self.dag.len())
            .map(|n| String::from_utf8(self.dag.name(pmc_dag::TaskId(n as u32)).to_vec()).unwrap())
            .collect()
    }
    /// Words of a task's command, split as the executor does.
    pub fn command(&self, task: &str) -> Vec<String> {
        let id = self
            .dag
            .find(task.as_bytes())
            .unwrap_or_else(|| panic!("no task {task}"));
        pmc_dag::words::split(self.dag.task(id).command)
            .into_iter()
            .map(|word| String::from_utf8(word).unwrap())
            .collect()
    }
    /// Fails unless these edges from parent to child exist.
    pub fn assert_edges(&self, edges: &[(&str, &str)]) {
        for (parent, child) in edges {
            assert!(
                self.has_edge(parent, child),
                "{parent} -> {child}: {:?}",
                self.edges
            );
        }
    }
    pub fn has_edge(&self, parent: &str, child: &str) -> bool {
        self.edges.contains(&(parent.to_owned(), child.to_owned()))
    }
    /// Text of a file in the submit directory.
    pub fn file(&self, name: &str) -> String {
        let path = self.planned.submit_dir.join(name);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }
    /// Transfers, removals or registrations that an auxiliary task performs.
    pub fn orders(&self, task: &str) -> serde_json::Value {
        serde_json::from_str(&self.file(&format!("00/00/{task}.in"))).unwrap()
    }
    /// All files of the submit directory with their text. Hashes of tasks are left out: they contain paths.
    pub fn files(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        for entry in walkdir::WalkDir::new(&self.planned.submit_dir) {
            let entry = entry.unwrap();
            if entry.file_type().is_file() {
                let name = entry.path().strip_prefix(&self.planned.submit_dir).unwrap();
                let mut text = fs::read_to_string(entry.path()).unwrap();
                if name
                    .extension()
                    .is_some_and(|extension| extension == "fingerprints")
                {
                    let without_hash = |line: &str| match line.starts_with("T ") {
                        true => line.split(' ').take(2).collect::<Vec<_>>().join(" "),
                        false => line.to_owned(),
                    };
                    text = text.lines().map(without_hash).collect::<Vec<_>>().join("\n");
                }
                files.insert(name.to_owned(), text);
            }
        }
        files
    }
}
