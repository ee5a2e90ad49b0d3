//! Bad input gives one clear message with its place, and an exit code; existing files stay.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::command::{Run, Said};
use crate::support::programs::{Flavour, project};

/// A copy of the example `diamond` with the planner's result of a good run beside it.
struct Diamond {
    folder: TempDir,
    good: BTreeMap<PathBuf, Vec<u8>>,
}

impl Diamond {
    #[track_caller]
    fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("pmc-e2e.")
            .tempdir()
            .expect("a temporary folder");
        let from = project().join("examples/diamond");
        Run::new("cp")
            .arg("-r")
            .arg(from)
            .arg(folder.path().join("diamond"))
            .go()
            .ok();
        let mut diamond = Self {
            folder,
            good: BTreeMap::new(),
        };
        diamond.plan("workflow.yml").ok();
        diamond.good = contents(&diamond.submit());
        assert!(!diamond.good.is_empty(), "the good run left something");
        diamond
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("diamond").join(name)
    }

    fn submit(&self) -> PathBuf {
        self.folder.path().join("submit")
    }

    fn plan_into(&self, submit: &Path, workflow: &str) -> Said {
        Run::new(Flavour::Local.program("pmc-plan"))
            .within(&self.path(""))
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
            // Stands in the example's catalogs; `pmc run` sets it.
            .env("PMC_WORKFLOW_DIR", self.path(""))
            // A reader that follows a bomb must not take the machine with it.
            .limit(60)
            .go()
    }

    fn plan(&self, workflow: &str) -> Said {
        self.plan_into(&self.submit(), workflow)
    }

    /// Demands that this workflow is refused with one message that has all these words.
    #[track_caller]
    fn refuses(&self, workflow: &str, words: &[&str]) {
        let said = self.plan(workflow).refused();
        let message = words.iter().all(|word| said.stderr.contains(word));
        assert!(message, "a message with {words:?}: {}", said.account());
        assert!(
            said.stderr.lines().count() <= 8,
            "one message: {}",
            said.account()
        );
        assert_eq!(
            contents(&self.submit()),
            self.good,
            "earlier plans stay as they were, and no other is there"
        );
    }

    /// Replaces a part of one of the files.
    #[track_caller]
    fn spoil(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(name)).expect("a file of the example");
        assert!(text.contains(from), "{name} has no {from}");
        fs::write(self.path(name), text.replacen(from, to, 1)).expect("a file that can be written");
    }
}

/// All files below a folder with their contents.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else {
                all.insert(path.clone(), fs::read(&path).unwrap_or_default());
            }
        }
    }
    all
}

/// Number of the first line that has this text.
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
    diamond.spoil("workflow.yml", "  name: findrange\n", "  name: [findrange\n");
    let line = line_of(&diamond.path("workflow.yml"), "[findrange");
    // The bracket is closed nowhere; where a reader notices is somewhere after it.
    let said = diamond.plan("workflow.yml").refused();
    let place = said
        .stderr
        .split("workflow.yml:")
        .nth(1)
        .and_then(|rest| rest.split(':').next());
    let place: usize = place
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{}", said.account()));
    assert!(
        (line..=line + 3).contains(&place),
        "line {line}: {}",
        said.account()
    );
    assert_eq!(contents(&diamond.submit()), diamond.good);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_the_line_of_a_wrong_type() {
    let diamond = Diamond::new();
    diamond.spoil("workflow.yml", "stageOut: true", "stageOut: perhaps");
    let line = line_of(&diamond.path("workflow.yml"), "perhaps");
    diamond.refuses("workflow.yml", &[&format!("workflow.yml:{line}:"), "perhaps"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_the_line_of_malformed_xml() {
    let diamond = Diamond::new();
    let text = "<?xml version=\"1.0\"?>\n<adag xmlns=\"http://pegasus.isi.edu/schema/DAX\" version=\"3.6\" \
                name=\"bad\">\n  <job id=\"ID1\" name=\"preprocess\">\n  </jop>\n</adag>\n";
    fs::write(diamond.path("bad.xml"), text).expect("a file");
    diamond.refuses("bad.xml", &["bad.xml:4"]);
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
    diamond.refuses("bomb.xml", &["bomb.xml:"]);
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
    diamond.refuses("bomb.yml", &["bomb.yml:"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_the_jobs_of_a_cycle() {
    let diamond = Diamond::new();
    diamond.spoil(
        "workflow.yml",
        "- {id: ID0000003, children: [ID0000004]}",
        "- {id: ID0000003, children: [ID0000004]}\n- {id: ID0000004, children: [ID0000001]}",
    );
    diamond.refuses(
        "workflow.yml",
        &["workflow.yml", "cycle", "ID0000001", "ID0000004"],
    );
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_what_no_catalog_has() {
    let diamond = Diamond::new();
    diamond.spoil("workflow.yml", "name: analyze", "name: analyse");
    diamond.refuses("workflow.yml", &["analyse"]);
    diamond.spoil("workflow.yml", "name: analyse", "name: analyze");
    diamond.spoil("replicas.yml", "lfn: f.a", "lfn: f.x");
    diamond.refuses("workflow.yml", &["f.a"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_names_a_file_that_two_jobs_write() {
    let diamond = Diamond::new();
    diamond.spoil(
        "workflow.yml",
        "{lfn: f.c2, type: output",
        "{lfn: f.c1, type: output",
    );
    diamond.refuses("workflow.yml", &["f.c1", "ID0000002", "ID0000003"]);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn planner_says_what_is_missing_or_no_folder() {
    let diamond = Diamond::new();
    diamond.refuses("nowhere.yml", &["nowhere.yml", "No such file"]);
    let said = diamond
        .plan_into(&diamond.path("workflow.yml"), "workflow.yml")
        .refused();
    assert!(said.stderr.contains("workflow.yml"), "{}", said.account());
}

/// Runs a shell script with this folder as a small file system of its own, and what it has then.
fn on_small_disk(folder: &Path, options: &str, script: &str) -> Said {
    let setup = format!(
        "mkdir -p '{0}.kept' && mount -t tmpfs -o {options} tmpfs '{0}' && cd '{0}' && {script}; \
         code=$?; cp -r '{0}/.' '{0}.kept/'; exit $code",
        folder.display()
    );
    Run::line("unshare --mount sh -c").arg(setup).go()
}

#[test]
#[ignore = "needs root and all programs built: tests/run e2e"]
fn planner_leaves_nothing_half_written_on_a_full_disk() {
    let diamond = Diamond::new();
    let disk = diamond.folder.path().join("disk");
    fs::create_dir(&disk).expect("a folder");
    let script = format!(
        "cd '{0}' && PMC_WORKFLOW_DIR='{0}' '{1}' -Dpegasus.catalog.replica.file=replicas.yml --sites local --output-sites local \
         --dir '{2}/submit' workflow.yml",
        diamond.path("").display(),
        Flavour::Local.program("pmc-plan").display(),
        disk.display()
    );
    // A few pages: enough for the first files, not for all.
    let said = on_small_disk(&disk, "size=24k", &script).refused();
    assert!(
        said.stderr.contains("No space left on device"),
        "{}",
        said.account()
    );
    assert!(
        said.stderr.contains(&disk.display().to_string()),
        "the message names a path: {}",
        said.account()
    );
    let kept = diamond.folder.path().join("disk.kept");
    assert_eq!(
        fs::read_dir(&kept).expect("a folder").count(),
        0,
        "nothing is left"
    );
    let said = on_small_disk(&disk, "ro", &script).refused();
    assert!(
        said.stderr.contains("Read-only file system"),
        "{}",
        said.account()
    );
}

/// A DAG of our own in a folder of its own.
fn dag(text: &str) -> TempDir {
    let folder = tempfile::Builder::new()
        .prefix("pmc-e2e.")
        .tempdir()
        .expect("a temporary folder");
    fs::write(folder.path().join("small.dag"), text).expect("a file");
    folder
}

fn execute(flavour: Flavour, folder: &TempDir) -> Said {
    flavour
        .executor_with(2)
        .args(["--monitord-hack", "--per-task-stdio", "small.dag"])
        .within(folder.path())
        .limit(60)
        .go()
}

const FLAVOURS: [Flavour; 3] = [Flavour::Local, Flavour::OpenMpi, Flavour::Mpich];

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn executor_names_the_line_of_a_malformed_dag() {
    for flavour in FLAVOURS {
        let folder = dag("TASK a /bin/true\nTASK b\n");
        let said = execute(flavour, &folder).refused();
        assert!(said.stderr.contains("small.dag"), "{}", said.account());
        assert!(
            said.stderr.contains(":2"),
            "the line's number: {}",
            said.account()
        );
        assert!(
            !folder.path().join("small.dag.rescue").exists(),
            "nothing has run"
        );
    }
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn executor_names_the_tasks_of_a_cycle() {
    for flavour in FLAVOURS {
        let folder = dag("TASK one /bin/true\nTASK two /bin/true\nEDGE one two\nEDGE two one\n");
        let said = execute(flavour, &folder).refused();
        for word in ["small.dag", "cycle", "one", "two"] {
            assert!(said.stderr.contains(word), "{word}: {}", said.account());
        }
    }
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn executor_names_a_program_that_is_missing_and_runs_the_rest() {
    for flavour in FLAVOURS {
        let folder = dag("TASK gone /no/such/program\nTASK good /bin/echo fine\n");
        let said = execute(flavour, &folder).refused();
        let mine = fs::read_to_string(folder.path().join("gone.err.000")).unwrap_or_default();
        let everything = format!("{}{}{mine}", said.stdout, said.stderr);
        assert!(
            everything.contains("gone") && everything.contains("/no/such/program"),
            "{}",
            said.account()
        );
        assert!(
            everything.contains("No such file or directory"),
            "{mine}{}",
            said.account()
        );
        let rescue = fs::read_to_string(folder.path().join("small.dag.rescue")).expect("a rescue file");
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
    for flavour in FLAVOURS {
        let folder = dag(&text);
        let disk = folder.path().join("disk");
        fs::create_dir(&disk).expect("a folder");
        let words: Vec<String> = flavour
            .executor_with(2)
            .words()
            .iter()
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let environment: Vec<String> = flavour
            .environment()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let script = format!(
            "cp ../small.dag . && echo 'DONE first' > small.dag.rescue && env {} {} --monitord-hack \
             --per-task-stdio small.dag",
            environment.join(" "),
            words.join(" ")
        );
        let said = on_small_disk(&disk, "size=160k", &script).refused();
        assert!(
            said.stderr.contains("No space left on device"),
            "{flavour:?}: {}",
            said.account()
        );
        let place = said.stderr.contains("small.dag") || said.stderr.contains("Task t");
        assert!(place, "the message names a file or a task: {}", said.account());
        let rescue =
            fs::read_to_string(folder.path().join("disk.kept/small.dag.rescue")).expect("a rescue file");
        assert!(
            rescue.starts_with("DONE first\n"),
            "what was done stays done: {rescue}"
        );
        let whole = |line: &str| line.is_empty() || line.trim_start().starts_with("DONE ");
        assert!(rescue.lines().all(whole), "whole records only: {rescue}");

        // The second file system is read-only from the start, over a good folder.
        let script = format!(
            "mount --bind '{0}' '{0}' && mount -o remount,bind,ro '{0}' && cd '{0}' && env {1} {2} small.dag",
            folder.path().display(),
            environment.join(" "),
            words.join(" ")
        );
        let said = Run::line("unshare --mount sh -c")
            .arg(script)
            .limit(60)
            .go()
            .refused();
        assert!(
            said.stderr.contains("Read-only file system"),
            "{flavour:?}: {}",
            said.account()
        );
        assert!(said.stderr.contains("small.dag"), "{}", said.account());
    }
}
