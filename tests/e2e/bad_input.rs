//! Bad input leads to one clear message with its location, and an exit code. Existing files stay.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::command::{CommandResult, Program};
use crate::support::programs::{Build, project};

/// A copy of the example `diamond`, with a plan beside it.
struct Diamond {
    directory: TempDir,
    plan_files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Diamond {
    #[track_caller]
    fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("pmc-e2e.")
            .tempdir()
            .expect("a temporary directory");
        let from = project().join("examples/diamond");
        Program::new("cp")
            .arg("-r")
            .arg(from)
            .arg(directory.path().join("diamond"))
            .run()
            .ok();
        let mut diamond = Self {
            directory,
            plan_files: BTreeMap::new(),
        };
        diamond.plan("workflow.yml").ok();
        diamond.plan_files = contents(&diamond.submit());
        assert!(!diamond.plan_files.is_empty(), "the planner writes files");
        diamond
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("diamond").join(name)
    }

    fn submit(&self) -> PathBuf {
        self.directory.path().join("submit")
    }

    fn plan_into(&self, submit: &Path, workflow: &str) -> CommandResult {
        Program::new(Build::Local.program("pmc-plan"))
            .in_directory(&self.path(""))
            .args([
                "-Dpegasus.catalog.replica.file=replicas.yml",
                "--sites",
                "local",
                "--output-sites",
                "local",
            ])
            .arg("--dir")
            .arg(submit)
            .arg(workflow)
            // The example's catalogs refer to it; `pmc run` sets it.
            .env("PMC_WORKFLOW_DIR", self.path(""))
            // Stops a reader that expands a bomb.
            .limit(60)
            .run()
    }

    fn plan(&self, workflow: &str) -> CommandResult {
        self.plan_into(&self.submit(), workflow)
    }

    /// Asserts that the planner refuses the workflow with one message that has all these words.
    #[track_caller]
    fn assert_refuses(&self, workflow: &str, words: &[&str]) {
        let result = self.plan(workflow).refused();
        let message = words.iter().all(|word| result.stderr.contains(word));
        assert!(message, "a message with {words:?}: {}", result.details());
        assert!(
            result.stderr.lines().count() <= 8,
            "one message: {}",
            result.details()
        );
        assert_eq!(
            contents(&self.submit()),
            self.plan_files,
            "only the earlier plan exists, unchanged"
        );
    }

    /// Replaces the first occurrence of a text in a file.
    #[track_caller]
    fn replace_in(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(name)).expect("a file of the example");
        assert!(text.contains(from), "{name} has no {from}");
        fs::write(self.path(name), text.replacen(from, to, 1)).expect("a file that can be written");
    }
}

/// Returns all files below a directory with their contents.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                directories.push(path);
            } else {
                all.insert(path.clone(), fs::read(&path).unwrap_or_default());
            }
        }
    }
    all
}

/// Returns the number of the first line that has this text.
fn line_of(path: &Path, text: &str) -> usize {
    let all = fs::read_to_string(path).expect("a file");
    1 + all
        .lines()
        .position(|line| line.contains(text))
        .expect("the text is in it")
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_the_line_of_malformed_yaml() {
    let diamond = Diamond::new();
    diamond.replace_in("workflow.yml", "  name: findrange\n", "  name: [findrange\n");
    let line = line_of(&diamond.path("workflow.yml"), "[findrange");
    // The bracket is never closed, so the reader may report a later line.
    let result = diamond.plan("workflow.yml").refused();
    let place = result
        .stderr
        .split("workflow.yml:")
        .nth(1)
        .and_then(|rest| rest.split(':').next());
    let place: usize = place
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{}", result.details()));
    assert!(
        (line..=line + 3).contains(&place),
        "line {line}: {}",
        result.details()
    );
    assert_eq!(contents(&diamond.submit()), diamond.plan_files);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_the_line_of_a_wrong_type() {
    let diamond = Diamond::new();
    diamond.replace_in("workflow.yml", "stageOut: true", "stageOut: perhaps");
    let line = line_of(&diamond.path("workflow.yml"), "perhaps");
    diamond.assert_refuses("workflow.yml", &[&format!("workflow.yml:{line}:"), "perhaps"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_the_line_of_malformed_xml() {
    let diamond = Diamond::new();
    let text = "<?xml version=\"1.0\"?>\n<adag xmlns=\"http://pegasus.isi.edu/schema/DAX\" version=\"3.6\" \
                name=\"bad\">\n  <job id=\"ID1\" name=\"preprocess\">\n  </jop>\n</adag>\n";
    fs::write(diamond.path("bad.xml"), text).expect("a file");
    diamond.assert_refuses("bad.xml", &["bad.xml:4"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_refuses_an_entity_bomb() {
    let diamond = Diamond::new();
    let mut text = String::from("<?xml version=\"1.0\"?>\n<!DOCTYPE adag [\n<!ENTITY e0 \"boom\">\n");
    for level in 1..12 {
        let body = format!("&e{};", level - 1).repeat(20);
        let _ = writeln!(text, "<!ENTITY e{level} \"{body}\">");
    }
    text += "]>\n<adag xmlns=\"http://pegasus.isi.edu/schema/DAX\" version=\"3.6\" name=\"bomb\">\n\
             <job id=\"ID1\" name=\"preprocess\"><argument>&e11;</argument></job>\n</adag>\n";
    fs::write(diamond.path("bomb.xml"), text).expect("a file");
    diamond.assert_refuses("bomb.xml", &["bomb.xml:"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_refuses_an_alias_bomb() {
    let diamond = Diamond::new();
    let mut text = String::from("pegasus: \"5.0\"\nname: bomb\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let body = vec![format!("*a{}", level - 1); 10].join(", ");
        let _ = writeln!(text, "a{level}: &a{level} [{body}]");
    }
    text += "jobs: *a11\n";
    fs::write(diamond.path("bomb.yml"), text).expect("a file");
    diamond.assert_refuses("bomb.yml", &["bomb.yml:"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_the_jobs_of_a_cycle() {
    let diamond = Diamond::new();
    diamond.replace_in(
        "workflow.yml",
        "- {id: ID0000003, children: [ID0000004]}",
        "- {id: ID0000003, children: [ID0000004]}\n- {id: ID0000004, children: [ID0000001]}",
    );
    diamond.assert_refuses(
        "workflow.yml",
        &["workflow.yml", "cycle", "ID0000001", "ID0000004"],
    );
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_what_is_missing_from_the_catalogs() {
    let diamond = Diamond::new();
    diamond.replace_in("workflow.yml", "name: analyze", "name: analyse");
    diamond.assert_refuses("workflow.yml", &["analyse"]);
    diamond.replace_in("workflow.yml", "name: analyse", "name: analyze");
    diamond.replace_in("replicas.yml", "lfn: f.a", "lfn: f.x");
    diamond.assert_refuses("workflow.yml", &["f.a"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_a_file_that_two_jobs_write() {
    let diamond = Diamond::new();
    diamond.replace_in(
        "workflow.yml",
        "{lfn: f.c2, type: output",
        "{lfn: f.c1, type: output",
    );
    diamond.assert_refuses("workflow.yml", &["f.c1", "ID0000002", "ID0000003"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_a_missing_file_or_a_path_that_is_no_directory() {
    let diamond = Diamond::new();
    diamond.assert_refuses("nowhere.yml", &["nowhere.yml", "No such file"]);
    let result = diamond
        .plan_into(&diamond.path("workflow.yml"), "workflow.yml")
        .refused();
    assert!(result.stderr.contains("workflow.yml"), "{}", result.details());
}

/// Runs a shell script with a small file system at this directory, and copies the files to `*.kept`.
fn on_small_disk(directory: &Path, options: &str, script: &str) -> CommandResult {
    let setup = format!(
        "mkdir -p '{0}.kept' && mount -t tmpfs -o {options} tmpfs '{0}' && cd '{0}' && {script}; \
         code=$?; cp -r '{0}/.' '{0}.kept/'; exit $code",
        directory.display()
    );
    Program::from_line("unshare --mount sh -c").arg(setup).run()
}

#[test]
#[ignore = "needs root and all programs built: tests/run e2e"]
fn planner_leaves_nothing_half_written_on_a_full_disk() {
    let diamond = Diamond::new();
    let disk = diamond.directory.path().join("disk");
    fs::create_dir(&disk).expect("a directory");
    let script = format!(
        "cd '{0}' && PMC_WORKFLOW_DIR='{0}' '{1}' -Dpegasus.catalog.replica.file=replicas.yml --sites local --output-sites local \
         --dir '{2}/submit' workflow.yml",
        diamond.path("").display(),
        Build::Local.program("pmc-plan").display(),
        disk.display()
    );
    // A few pages: enough for some files only.
    let result = on_small_disk(&disk, "size=24k", &script).refused();
    assert!(
        result.stderr.contains("No space left on device"),
        "{}",
        result.details()
    );
    assert!(
        result.stderr.contains(&disk.display().to_string()),
        "the message names a path: {}",
        result.details()
    );
    let kept = diamond.directory.path().join("disk.kept");
    assert_eq!(
        fs::read_dir(&kept).expect("a directory").count(),
        0,
        "nothing is left"
    );
    let result = on_small_disk(&disk, "ro", &script).refused();
    assert!(
        result.stderr.contains("Read-only file system"),
        "{}",
        result.details()
    );
}

/// Writes a DAG into a temporary directory.
fn dag(text: &str) -> TempDir {
    let directory = tempfile::Builder::new()
        .prefix("pmc-e2e.")
        .tempdir()
        .expect("a temporary directory");
    fs::write(directory.path().join("small.dag"), text).expect("a file");
    directory
}

fn execute(build: Build, directory: &TempDir) -> CommandResult {
    build
        .executor_with(2)
        .args(["--monitord-hack", "--per-task-stdio", "small.dag"])
        .in_directory(directory.path())
        .limit(60)
        .run()
}

const BUILDS: [Build; 4] = [Build::Local, Build::Agents, Build::OpenMpi, Build::Mpich];

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn executor_names_the_line_of_a_malformed_dag() {
    for build in BUILDS {
        let directory = dag("TASK a /bin/true\nTASK b\n");
        let result = execute(build, &directory).refused();
        assert!(result.stderr.contains("small.dag"), "{}", result.details());
        assert!(
            result.stderr.contains(":2"),
            "the line's number: {}",
            result.details()
        );
        assert!(
            !directory.path().join("small.dag.rescue").exists(),
            "nothing has run"
        );
    }
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn executor_names_the_tasks_of_a_cycle() {
    for build in BUILDS {
        let directory = dag("TASK one /bin/true\nTASK two /bin/true\nEDGE one two\nEDGE two one\n");
        let result = execute(build, &directory).refused();
        for word in ["small.dag", "cycle", "one", "two"] {
            assert!(result.stderr.contains(word), "{word}: {}", result.details());
        }
    }
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn executor_names_a_program_that_is_missing_and_runs_the_rest() {
    for build in BUILDS {
        let directory = dag("TASK gone /no/such/program\nTASK good /bin/echo fine\n");
        let result = execute(build, &directory).refused();
        let stderr = fs::read_to_string(directory.path().join("gone.err.000")).unwrap_or_default();
        let everything = format!("{}{}{stderr}", result.stdout, result.stderr);
        assert!(
            everything.contains("gone") && everything.contains("/no/such/program"),
            "{}",
            result.details()
        );
        assert!(
            everything.contains("No such file or directory"),
            "{stderr}{}",
            result.details()
        );
        let rescue = fs::read_to_string(directory.path().join("small.dag.rescue")).expect("a rescue file");
        assert!(rescue.contains("good") && !rescue.contains("gone"), "{rescue}");
    }
}

#[test]
#[ignore = "needs root and MPI: tests/run e2e"]
fn executor_stops_on_a_full_or_read_only_disk_and_keeps_the_rescue_file() {
    let mut text = String::from("TASK first /bin/true\n");
    for number in 0..400 {
        let _ = writeln!(
            text,
            "TASK t{number} /bin/echo {}\nEDGE first t{number}",
            "x".repeat(60)
        );
    }
    for build in BUILDS {
        let directory = dag(&text);
        let disk = directory.path().join("disk");
        fs::create_dir(&disk).expect("a directory");
        let words: Vec<String> = build
            .executor_with(2)
            .words()
            .iter()
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let environment: Vec<String> = build
            .environment()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let script = format!(
            "cp ../small.dag . && echo 'DONE first' > small.dag.rescue && env {} {} --monitord-hack \
             --per-task-stdio --disk-reserve 0 small.dag",
            environment.join(" "),
            words.join(" ")
        );
        let result = on_small_disk(&disk, "size=160k", &script).refused();
        assert!(
            result.stderr.contains("No space left on device"),
            "{build:?}: {}",
            result.details()
        );
        let place = result.stderr.contains("small.dag") || result.stderr.contains("Task t");
        assert!(place, "the message names a file or a task: {}", result.details());
        let rescue =
            fs::read_to_string(directory.path().join("disk.kept/small.dag.rescue")).expect("a rescue file");
        assert!(
            rescue.starts_with("DONE first\n"),
            "completed tasks stay: {rescue}"
        );
        let is_complete = |line: &str| line.is_empty() || line.trim_start().starts_with("DONE ");
        assert!(rescue.lines().all(is_complete), "complete records only: {rescue}");

        // A read-only file system with a valid DAG.
        let script = format!(
            "mount --bind '{0}' '{0}' && mount -o remount,bind,ro '{0}' && cd '{0}' && env {1} {2} small.dag",
            directory.path().display(),
            environment.join(" "),
            words.join(" ")
        );
        let result = Program::from_line("unshare --mount sh -c")
            .arg(script)
            .limit(60)
            .run()
            .refused();
        assert!(
            result.stderr.contains("Read-only file system"),
            "{build:?}: {}",
            result.details()
        );
        assert!(result.stderr.contains("small.dag"), "{}", result.details());
    }
}
