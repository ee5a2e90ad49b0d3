//! Every plan of the golden cases runs: with programs that write the outputs of their jobs and look whether the
//! inputs are there, in the order and with the clean-up of the plan. Pegasus' own monitoring loads each run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::support::command::Run;
use crate::support::golden::{cases, golden};
use crate::support::pegasus::Monitored;
use crate::support::programs::Flavour;

/// Cases with jobs that cannot work: one reads a file that it does not list, so that nobody stages it; one has `$(date)`
/// among its arguments, which kickstart refuses.
const NOT_RUN: [&str; 2] = ["stdio", "quoting"];

/// The program of all jobs. Which files a job reads and writes stands in the lists that kickstart is given, or,
/// where there are none, among its arguments.
const JOB: &str = r#"#!/bin/bash
for list in $(find '@BASE@/submit' -name "$PMC_TASK.*.lof"); do
    while IFS== read -r file _; do
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

/// Servers are directories of this machine.
const TRANSFER: &str = r#"#!/bin/bash
sed -E 's#"(gsiftp|https?)://#"file://@BASE@/servers/#g' | '@REAL@' "$@"
"#;

/// A golden case in a folder of its own.
struct Case {
    folder: tempfile::TempDir,
    name: String,
}

impl Case {
    fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("pmc-case.")
            .tempdir()
            .expect("a temporary folder");
        let case = Self {
            folder,
            name: name.to_owned(),
        };
        let bin = case.home().join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        for program in ["pegasus-kickstart", "pegasus-rc-client", "pegasus-mpi-cluster"] {
            symlink(Flavour::Local.program(program), bin.join(program)).expect("a link");
        }
        case.program("pegasus-keg", JOB);
        case.program("pegasus-transfer", TRANSFER);
        case.copy(&golden("planner").join(name).join("input"), &case.base());
        // Programs that are staged.
        for entry in fs::read_dir(case.base().join("bin")).into_iter().flatten() {
            fs::write(entry.expect("a program").path(), case.fill(JOB)).expect("a program");
        }
        case
    }
    fn base(&self) -> PathBuf {
        self.folder.path().join("w")
    }
    fn home(&self) -> PathBuf {
        self.folder.path().join("pegasus")
    }
    fn fill(&self, text: &str) -> String {
        // Programs that are not in the installation.
        text.replace("/opt/${PLANCASE_WORD}/bin/one", "@PEGASUS_HOME@/bin/pegasus-keg")
            .replace("/usr/bin/tr", "@PEGASUS_HOME@/bin/pegasus-keg")
            .replace("/opt/pegasus/bin/", "@PEGASUS_HOME@/bin/")
            .replace("@BASE@", &self.base().display().to_string())
            .replace("@PEGASUS_HOME@", &self.home().display().to_string())
            .replace(
                "@REAL@",
                &Flavour::Local.program("pegasus-transfer").display().to_string(),
            )
    }
    fn program(&self, name: &str, text: &str) {
        let path = self.home().join("bin").join(name);
        fs::write(&path, self.fill(text)).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    /// Copies the inputs, with the names of this machine in them.
    fn copy(&self, from: &Path, to: &Path) {
        fs::create_dir_all(to).expect("a folder");
        for entry in fs::read_dir(from).expect("the inputs") {
            let (path, target) = entry
                .map(|e| (e.path(), to.join(e.file_name())))
                .expect("an input");
            if path.is_dir() {
                self.copy(&path, &target);
                continue;
            }
            fs::copy(&path, &target).expect("a copy");
            if let Ok(text) = fs::read_to_string(&path) {
                fs::write(&target, self.fill(&text)).expect("a copy");
            }
        }
    }
    /// Plans; gives the submit directory.
    fn plan(&self) -> PathBuf {
        let text = fs::read_to_string(golden("planner").join(&self.name).join("args")).expect("arguments");
        let said = self
            .run(&Flavour::Local.program("pmc-plan"))
            .arg("--json")
            .args(
                text.lines()
                    .filter(|line| !line.is_empty())
                    .map(|line| self.fill(line)),
            )
            .within(&self.base())
            .go()
            .ok();
        let object: Value = serde_json::from_str(&said.stdout).expect("JSON");
        object["submit_dir"].as_str().expect("a submit directory").into()
    }
    fn run(&self, program: &Path) -> Run {
        Run::new(program)
            .env("HOME", self.folder.path())
            .env("PEGASUS_HOME", self.home())
            .env("PLANCASE_WORD", "harbour")
    }
    /// Where a URL of the plan is on this machine.
    fn path(&self, url: &str) -> PathBuf {
        match url.split_once("://") {
            None => url.into(),
            Some(("file" | "symlink", path)) => path.into(),
            Some((_, path)) => self.base().join("servers").join(path),
        }
    }
}

/// Sources and destinations of all transfers of one kind.
fn urls(submit: &Path, kind: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![submit.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                folders.push(path);
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

/// Plans and runs a case; gives it and its submit directory.
fn executed(name: &str) -> (Case, PathBuf) {
    let case = Case::new(name);
    let submit = case.plan();
    let scratch = case.base().join("scratch");
    for (source, _) in urls(&submit, "stage_in")
        .into_iter()
        .chain(urls(&submit, "stage_out"))
    {
        let path = case.path(&source);
        if !path.exists() && !path.starts_with(&scratch) && !source.contains("/run0001/") {
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, "input\n").expect("an input");
        }
    }
    let dag = crate::support::pegasus::only_file(&submit, ".dag");
    case.run(&Flavour::Local.program("pegasus-mpi-cluster"))
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
        .within(&submit)
        .go()
        .ok();
    for (_, target) in urls(&submit, "stage_out") {
        let path = case.path(&target);
        assert!(
            path.exists(),
            "{name}: the output {} is not there",
            path.display()
        );
    }
    (case, submit)
}

/// Has Pegasus' monitoring load a run, and compares what it stored with the plan.
fn monitored(name: &str, case: &Case, submit: &Path) {
    let monitored = Monitored {
        submit,
        home: case.folder.path(),
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

/// Plans and runs all cases in which the original makes a plan, several at a time, and has each looked at.
fn execute_all(look: fn(&str, &Case, &Path)) {
    let names: Vec<String> = cases("planner")
        .into_iter()
        .filter(|name| {
            let exit = golden("planner").join(name).join("expected/exit");
            let planned = fs::read_to_string(exit).expect("an exit code").trim() == "0";
            planned && !NOT_RUN.contains(&name.as_str())
        })
        .collect();
    assert!(names.len() >= 40, "{} cases", names.len());
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (case, submit) = executed(name);
                    look(name, &case, &submit);
                }
            });
        }
    });
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn every_golden_plan_runs() {
    execute_all(|_, _, _| {});
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn monitoring_loads_every_golden_plan() {
    execute_all(monitored);
}
