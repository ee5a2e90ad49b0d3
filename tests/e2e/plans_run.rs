//! Every plan of the golden cases runs with substitute programs, which check the inputs of their jobs and
//! write the outputs. Pegasus' monitoring loads each run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;
use testutils::golden::{self, Case, planner};

use crate::support::command::Program;
use crate::support::pegasus::Monitored;
use crate::support::programs::Build;

/// Cases with jobs that must fail. One reads a file that it does not list, so the file is not staged. Another
/// has the argument `$(date)`, which kickstart refuses. The jobs of the last need more nodes than there are.
const NOT_RUN: [&str; 3] = ["stdio", "quoting", "resource-fallback"];

/// The program of all jobs. It finds the files of a job in the lists for kickstart or else in its arguments.
const JOB: &str = r#"#!/bin/bash
for list in $(find '@BASE@/submit' -name "$PMC_TASK.*.lof"); do
    while IFS== read -r file _; do
        case $file in '#'*) continue ;; esac
        case $list in
        *.in.lof) [ -e "$file" ] || { echo "the input $file is not there" >&2; exit 3; } ;;
        *) mkdir -p "$(dirname "$file")" && echo "$PMC_TASK" >"$file" ;;
        esac
    done <"$list"
done
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then
        shift
        while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do echo "$PMC_TASK" >"$1" && shift; done
    else
        shift
    fi
done
"#;

/// Transfers from and to directories of this machine instead of servers.
const TRANSFER: &str = r#"#!/bin/bash
sed -E 's#"(gsiftp|https?)://#"file://@BASE@/servers/#g' | '@REAL@' "$@"
"#;

/// A golden case in a temporary directory.
struct Plan<'a> {
    directory: tempfile::TempDir,
    case: &'a Case,
}

impl<'a> Plan<'a> {
    fn new(case: &'a Case) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("pmc-case.")
            .tempdir()
            .expect("a temporary directory");
        let plan = Self { directory, case };
        let bin = plan.home().join("bin");
        fs::create_dir_all(&bin).expect("a directory");
        for program in ["pegasus-kickstart", "pegasus-rc-client", "pegasus-mpi-cluster"] {
            symlink(Build::Local.program(program), bin.join(program)).expect("a link");
        }
        plan.program("pegasus-keg", JOB);
        plan.program("pegasus-transfer", TRANSFER);
        for (path, file) in case.archive.below("input") {
            let mut file = file.clone();
            // Programs that the plan stages.
            let text = if path.starts_with("bin/") {
                JOB
            } else {
                &file.content
            };
            file.content = plan.fill(text);
            file.write(&plan.base().join(path)).expect("an input");
        }
        plan
    }
    fn base(&self) -> PathBuf {
        self.directory.path().join("w")
    }
    fn home(&self) -> PathBuf {
        self.directory.path().join("pegasus")
    }
    fn fill(&self, text: &str) -> String {
        // Programs that are not in the installation.
        let text = text
            .replace("/opt/${PLANCASE_WORD}/bin/one", "@PEGASUS_HOME@/bin/pegasus-keg")
            .replace("/usr/bin/tr", "@PEGASUS_HOME@/bin/pegasus-keg")
            .replace("/opt/pegasus/bin/", "@PEGASUS_HOME@/bin/");
        let transfer = Build::Local.program("pegasus-transfer");
        planner::fill(&text, &self.base(), &self.home()).replace("@REAL@", &transfer.display().to_string())
    }
    fn program(&self, name: &str, text: &str) {
        let path = self.home().join("bin").join(name);
        fs::write(&path, self.fill(text)).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    /// Plans, and returns the submit directory.
    fn plan(&self) -> PathBuf {
        let arguments = self.case.file("args").lines().filter(|line| !line.is_empty());
        let result = self
            .command(&Build::Local.program("pmc-plan"))
            .arg("--json")
            .args(arguments.map(|argument| self.fill(argument)))
            .in_directory(&self.base())
            .run()
            .ok();
        let object: Value = serde_json::from_str(&result.stdout).expect("JSON");
        object["submit_dir"].as_str().expect("a submit directory").into()
    }
    fn command(&self, program: &Path) -> Program {
        Program::new(program)
            .env("HOME", self.directory.path())
            .env("PEGASUS_HOME", self.home())
            .env("PLANCASE_WORD", "harbour")
    }
    /// Returns the path of a URL of the plan on this machine.
    fn path(&self, url: &str) -> PathBuf {
        match url.split_once("://") {
            None => url.into(),
            Some(("file" | "symlink", path)) => path.into(),
            Some((_, path)) => self.base().join("servers").join(path),
        }
    }
}

/// Returns the sources and destinations of all transfers of one kind.
fn urls(submit: &Path, kind: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut directories = vec![submit.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                directories.push(path);
            } else if name.starts_with(kind) && name.ends_with(".in") {
                let text = fs::read_to_string(&path).expect("orders");
                let orders: Value = serde_json::from_str(&text).expect("JSON");
                for order in orders.as_array().into_iter().flatten() {
                    let url = |side: &str, n: usize| order[side][n]["url"].as_str().map(str::to_owned);
                    let target = url("dest_urls", 0).expect("a destination");
                    found.extend(
                        (0..)
                            .map_while(|n| url("src_urls", n))
                            .map(|source| (source, target.clone())),
                    );
                }
            }
        }
    }
    found
}

/// Plans and runs a case. Returns it and its submit directory.
fn execute(case: &Case) -> (Plan<'_>, PathBuf) {
    let name = &case.name;
    let plan = Plan::new(case);
    let submit = plan.plan();
    let scratch = plan.base().join("scratch");
    for (source, _) in urls(&submit, "stage_in")
        .into_iter()
        .chain(urls(&submit, "stage_out"))
    {
        let path = plan.path(&source);
        if !path.exists() && !path.starts_with(&scratch) && !source.contains("/run0001/") {
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(&path, "input\n").expect("an input");
        }
    }
    let dag = crate::support::pegasus::only_file(&submit, ".dag");
    plan.command(&Build::Local.program("pegasus-mpi-cluster"))
        .args([
            "--workers",
            "2",
            "--host-memory",
            "1000000",
            "--host-cpus",
            "64",
            "--host-gpus",
            "8",
        ])
        .args(["--monitord-hack", "--per-task-stdio"])
        .arg(&dag)
        .in_directory(&submit)
        .run()
        .ok();
    for (_, target) in urls(&submit, "stage_out") {
        let path = plan.path(&target);
        assert!(path.exists(), "{name}: the output {} is missing", path.display());
    }
    (plan, submit)
}

/// Loads a run with Pegasus' monitoring and compares the database with the plan.
fn check_monitoring(plan: &Plan<'_>, submit: &Path) {
    let name = &plan.case.name;
    let monitored = Monitored {
        submit,
        home: plan.directory.path(),
    };
    monitored.replay();
    let dag = fs::read_to_string(crate::support::pegasus::only_file(submit, ".dag")).expect("the DAG");
    let tasks = dag.lines().filter(|line| line.starts_with("TASK ")).count();
    assert_eq!(monitored.count("job_instance") as usize, tasks, "{name}");
    assert_eq!(
        monitored.workflow_states(),
        ["WORKFLOW_STARTED 0 -", "WORKFLOW_TERMINATED 0 0"],
        "{name}"
    );
}

/// Plans, runs and checks all cases in which Pegasus makes a plan.
fn execute_all(check: fn(&Plan<'_>, &Path)) {
    let mut cases = Case::read_all("planner");
    cases.retain(|case| case.file("expected/exit").trim() == "0" && !NOT_RUN.contains(&case.name.as_str()));
    assert!(cases.len() >= 40, "{} cases", cases.len());
    golden::for_each(&cases, golden::processors(), |case| {
        let (plan, submit) = execute(case);
        check(&plan, &submit);
    });
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn every_golden_plan_runs() {
    execute_all(|_, _| {});
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn monitoring_loads_every_golden_plan() {
    execute_all(check_monitoring);
}
