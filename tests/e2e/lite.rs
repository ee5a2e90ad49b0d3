//! Workflows without a shared file system: each job has a directory of its own, and files pass through a
//! staging site. Pegasus' monitoring loads the runs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::command::{CommandResult, Program};
use crate::support::nginx;
use crate::support::pegasus::{Monitored, only_file};
use crate::support::programs::Build;
use crate::support::server::{Server, free_port};

/// Two levels of jobs with an installed and a staged program, a file in a directory, standard input and
/// output.
const WORKFLOW: &str = r#"pegasus: "5.0.4"
name: words
transformationCatalog:
  transformations:
  - {name: split, sites: [{name: local, type: installed, pfn: @TOP@/split}]}
  - {name: count, sites: [{name: local, type: stageable, pfn: @TOP@/count}]}
replicaCatalog:
  replicas:
  - {lfn: in.txt, pfns: [{site: local, pfn: @TOP@/in.txt}]}
jobs:
- {type: job, name: split, id: s, arguments: [in.txt, one, deep/two], uses: [{lfn: in.txt, type: input}, {lfn: one, type: output, stageOut: false}, {lfn: deep/two, type: output, stageOut: false}]}
- {type: job, name: count, id: a, arguments: [one], stdout: a.txt, uses: [{lfn: one, type: input}, {lfn: a.txt, type: output, stageOut: true}]}
- {type: job, name: count, id: b, stdin: deep/two, stdout: b.txt, uses: [{lfn: deep/two, type: input}, {lfn: b.txt, type: output, stageOut: true}]}
jobDependencies:
- {id: s, children: [a, b]}
"#;

const SPLIT: &str = "#!/bin/sh\nset -e\nmkdir -p deep\nhead -n 1 \"$1\" >\"$2\"\ntail -n 2 \"$1\" >\"$3\"\n";
const COUNT: &str = "#!/bin/sh\nwc -l \"$@\"\n";

/// A workflow in a temporary directory.
struct Words {
    directory: tempfile::TempDir,
}

impl Words {
    fn new() -> Self {
        let words = Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        words.write("workflow.yml", WORKFLOW);
        words.write("in.txt", "a\nb\nc\n");
        for (name, text) in [("split", SPLIT), ("count", COUNT)] {
            words.write(name, text);
            fs::set_permissions(words.path(name), fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        fs::create_dir(words.path("node")).expect("a directory");
        words
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let text = text.replace("@TOP@", &self.directory.path().display().to_string());
        fs::write(self.path(name), text).expect("a file");
    }

    fn program(&self, name: &str) -> Program {
        Program::new(Build::Local.program(name))
            .in_directory(self.directory.path())
            .env("PEGASUS_WN_TMP", self.path("node"))
            .env("PEGASUS_WN_TMP_MIN_SPACE", "1")
    }

    /// Plans and runs the workflow in one step. Returns the directory of the run.
    fn run(&self, mode: &str) -> (CommandResult, PathBuf) {
        let property = format!("-Dpegasus.data.configuration={mode}");
        let result = self
            .program("pmc")
            .args(["run", "--dir", mode, &property, "workflow.yml"])
            .run();
        (result, self.path(mode).join("words/latest"))
    }

    /// Plans and runs the workflow with the staging site `hub`. Returns the submit directory.
    fn plan_and_run(&self) -> PathBuf {
        self.program("pmc-plan")
            .args([
                "--sites",
                "local",
                "--output-sites",
                "local",
                "--staging-site",
                "local=hub",
                "--dir",
                "submit",
            ])
            .args(["--relative-submit-dir", "run", "workflow.yml"])
            .run()
            .ok();
        let submit = self.path("submit/run");
        self.program("pegasus-mpi-cluster")
            .args([
                "--workers",
                "2",
                "--host-memory",
                "100000",
                "--host-cpus",
                "8",
                "--monitord-hack",
                "--per-task-stdio",
            ])
            .arg(only_file(&submit, ".dag"))
            .run()
            .ok();
        submit
    }

    /// Checks outputs, and that nothing is left on the node.
    fn check(&self, outputs: &Path) {
        let read = |name: &str| fs::read_to_string(outputs.join(name)).expect("an output");
        assert_eq!((read("a.txt").trim(), read("b.txt").trim()), ("1 one", "2"));
        assert_eq!(self.left(), [""; 0]);
    }

    /// What is left on the node, except for its cache.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("node")).expect("a directory").flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.ends_with("-cache"))
            .collect()
    }
}

/// What Pegasus' monitoring knows about a run, without times and names of directories.
pub fn monitored(home: &Path, submit: &Path) -> Vec<Vec<Vec<String>>> {
    let monitored = Monitored { submit, home };
    monitored.replay();
    assert_eq!(
        monitored.workflow_states(),
        ["WORKFLOW_STARTED 0 -", "WORKFLOW_TERMINATED 0 0"]
    );
    [
        "select exec_job_id, type_desc from job where type_desc in ('compute', 'create-dir', 'stage-out-tx') order by 1",
        "select j.exec_job_id, i.exitcode from job_instance i join job j using (job_id) where type_desc = 'compute' order by 1",
        "select abs_task_id, transformation, argv, exitcode from invocation where abs_task_id is not null order by 1",
        "select lfn from rc_lfn order by 1",
    ]
    .map(|query| monitored.query(query))
    .into()
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn a_run_without_a_shared_file_system_looks_like_one_with_it() {
    let words = Words::new();
    let mut runs = Vec::new();
    for mode in ["sharedfs", "nonsharedfs", "condorio"] {
        let (result, run) = words.run(mode);
        assert_eq!(result.code(), 0, "{}", result.details());
        words.check(&run.join("output"));
        runs.push((
            run.join("submit").canonicalize().expect("a submit directory"),
            result,
        ));
    }
    let said = runs[2].1.stderr.matches("condorio").count();
    assert_eq!(said, 1, "{}", runs[2].1.details());
    let shared = monitored(words.directory.path(), &runs[0].0);
    for (submit, _) in &runs[1..] {
        // Programs have the same arguments and results, jobs the same names.
        assert_eq!(
            monitored(words.directory.path(), submit),
            shared,
            "{}",
            submit.display()
        );
        let monitored = Monitored {
            submit,
            home: words.directory.path(),
        };
        let checks = monitored.query("select sum(count) from integrity where type = 'check'");
        // One by s, two each by a and b; two of the copies at the output site.
        assert_eq!(checks, [["7".to_owned()]]);
        let (tasks, jobs) = monitored.statistics();
        assert_eq!((tasks.succeeded, jobs.failed), (3, 0));
    }
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn a_wrong_byte_on_the_staging_site_fails_the_job() {
    let words = Words::new();
    // While it runs, the program of b spoils what a reads afterwards.
    let spoil = "#!/bin/sh\nfind @TOP@/nonsharedfs -path '*/scratch/*/one' -exec sh -c 'echo x >>\"$1\"' - {} \\;\nwc -l \"$@\"\n";
    words.write("count", spoil);
    let text = fs::read_to_string(words.path("workflow.yml")).expect("the workflow");
    words.write(
        "workflow.yml",
        &text.replace(
            "- {id: s, children: [a, b]}",
            "- {id: s, children: [a, b]}\n- {id: b, children: [a]}",
        ),
    );
    let (result, run) = words.run("nonsharedfs");
    assert_eq!(result.code(), 1, "{}", result.details());
    let submit = run.join("submit").canonicalize().expect("a submit directory");
    let monitored = Monitored {
        submit: &submit,
        home: words.directory.path(),
    };
    monitored.load();
    let codes = monitored.query(
        "select i.exitcode from job_instance i join job j using (job_id) where exec_job_id = 'count_a'",
    );
    assert_eq!(codes.first(), Some(&vec!["65".to_owned()]), "{codes:?}");
    let errors = monitored.query("select sum(count) from tag where name = 'int.error'");
    assert_ne!(errors, [["-".to_owned()]]);
    assert!(
        result.stdout.contains("SHA-256") || result.stderr.contains("SHA-256"),
        "{}",
        result.details()
    );
    assert_eq!(words.left(), [""; 0]);
}

/// A staging site that is a web server.
struct Hub {
    top: PathBuf,
    _server: Server,
}

impl Hub {
    /// Starts the server, and writes the site catalog and the properties of plans that use it.
    fn start(words: &Words) -> Self {
        let port = free_port();
        let top = words.path("nginx");
        fs::create_dir_all(top.join("root/stage")).expect("a directory");
        let dav = "location / { dav_methods PUT DELETE MKCOL; dav_access user:rw; }";
        let server = nginx::start(&top, port, dav);
        words.write("sites.yml", &SITES.replace("@PORT@", &port.to_string()));
        words.write("pegasus.properties", "pegasus.data.configuration = nonsharedfs\n");
        Self { top, _server: server }
    }

    /// Requests that were answered.
    fn log(&self) -> String {
        fs::read_to_string(self.top.join("logs/access")).expect("the log of the server")
    }
}

/// The server is the staging site of the site `local`.
const SITES: &str = r#"pegasus: "5.0.4"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: "@TOP@/none", fileServers: [{url: "file://@TOP@/none", operation: all}]}
  - {type: localStorage, path: "@TOP@/outputs", fileServers: [{url: "file://@TOP@/outputs", operation: all}]}
- name: hub
  directories:
  - {type: sharedScratch, path: /stage, fileServers: [{url: "webdav://127.0.0.1:@PORT@/stage", operation: all}]}
"#;

#[test]
#[ignore = "needs nginx: tests/run e2e"]
fn files_pass_through_a_webdav_server() {
    let words = Words::new();
    let hub = Hub::start(&words);
    let submit = words.plan_and_run();
    words.check(&words.path("outputs"));
    assert!(
        !words.path("none").exists(),
        "nothing is in the directory of the execution site"
    );
    let log = hub.log();
    for request in ["PUT /stage/", "GET /stage/", "DELETE /stage/", "MKCOL /stage/"] {
        assert!(log.contains(request), "{request}: {log}");
    }
    let left: Vec<_> = fs::read_dir(hub.top.join("root/stage"))
        .expect("a directory")
        .collect();
    assert!(left.len() <= 1, "{left:?}");
    let monitored = Monitored {
        submit: &submit,
        home: words.directory.path(),
    };
    monitored.replay();
    let checks = monitored.query("select sum(count) from integrity where type = 'check'");
    assert_eq!(checks, [["7".to_owned()]]);
}

#[test]
#[ignore = "needs nginx: tests/run e2e"]
fn jobs_that_share_an_input_fetch_it_once() {
    let words = Words::new();
    let hub = Hub::start(&words);
    let text = fs::read_to_string(words.path("workflow.yml")).expect("the workflow");
    let (head, _) = text.split_once("jobs:\n").expect("jobs");
    let jobs: String = (0..12)
        .map(|n| {
            format!(
                "- {{type: job, name: count, id: j{n}, arguments: [in.txt], stdout: out{n}, uses: [{{lfn: in.txt, type: \
                 input}}, {{lfn: out{n}, type: output, stageOut: true}}]}}\n"
            )
        })
        .collect();
    words.write("workflow.yml", &format!("{head}jobs:\n{jobs}"));
    let submit = words.plan_and_run();
    for n in 0..12 {
        let output = fs::read_to_string(words.path(&format!("outputs/out{n}"))).expect("an output");
        assert_eq!(output, "3 in.txt\n");
    }
    let log = hub.log();
    for file in ["/in.txt ", "/count "] {
        let is_fetched = |line: &&str| line.contains("GET /stage/") && line.contains(file);
        assert_eq!(log.lines().filter(is_fetched).count(), 1, "{file}: {log}");
    }
    assert_eq!(words.left(), [""; 0]);
    let monitored = Monitored {
        submit: &submit,
        home: words.directory.path(),
    };
    monitored.replay();
    // Two inputs and the copy of the output of each job.
    let checks = monitored.query("select sum(count) from integrity where type = 'check'");
    assert_eq!(checks, [["36".to_owned()]]);
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, jobs.failed), (12, 0));
}
