//! Sub-workflows that are planned while the workflow around them runs, because one of its jobs makes their
//! file. Pegasus' monitoring follows them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::command::{CommandResult, Program};
use crate::support::pegasus::{Monitored, only_file};
use crate::support::programs::Build;

/// The job S is the workflow that the job A makes. In it, T is another one, whose file exists.
const OUTER: &str = r#"pegasus: "5.0"
name: outer
replicaCatalog:
  replicas:
  - {lfn: leaf.yml, pfns: [{site: local, pfn: @TOP@/leaf.yml}]}
jobs:
- {type: job, id: A, name: make, uses: [{lfn: made.yml, type: output, stageOut: false, registerReplica: false}, {lfn: word, type: output, stageOut: false, registerReplica: false}]}
- type: pegasusWorkflow
  id: S
  file: made.yml
  arguments: [--basename, made]
  uses: [{lfn: made.yml, type: input, forPlanning: true}, {lfn: leaf.yml, type: input}, {lfn: word, type: input}, {lfn: end, type: output, stageOut: true, registerReplica: false}]
"#;

const MAKE: &str = r#"#!/bin/sh
cat >made.yml <<'END'
pegasus: "5.0"
name: inner
jobs:
- {type: job, id: C, name: upper, arguments: [word, upper], uses: [{lfn: word, type: input}, {lfn: upper, type: output, stageOut: false, registerReplica: false}]}
- {type: pegasusWorkflow, id: T, file: leaf.yml, arguments: [-Dpegasus.subworkflow=nested], uses: [{lfn: leaf.yml, type: input}, {lfn: upper, type: input}, {lfn: end, type: output, stageOut: true, registerReplica: false}]}
END
echo make >>@TOP@/ran
echo hello >word
"#;

const LEAF: &str = r#"pegasus: "5.0"
name: leaf
jobs:
- {type: job, id: D, name: upper, arguments: [upper, end], uses: [{lfn: upper, type: input}, {lfn: end, type: output, stageOut: true, registerReplica: false}]}
"#;

/// Fails for the output `end` as long as the file `broken` exists.
const UPPER: &str = "#!/bin/sh\n[ \"$2\" = end ] && [ -e @TOP@/broken ] && exit 3\n\
    echo \"upper $2\" >>@TOP@/ran\ntr a-z A-Z <\"$1\" >\"$2\"\n";

const TRANSFORMATIONS: &str = r#"pegasus: "5.0"
transformations:
- {name: make, sites: [{name: local, type: installed, pfn: @TOP@/make}]}
- {name: upper, sites: [{name: local, type: installed, pfn: @TOP@/upper}]}
"#;

const SITES: &str = r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: "@TOP@/scratch", fileServers: [{url: "file://@TOP@/scratch", operation: all}]}
  - {type: localStorage, path: "@TOP@/output", fileServers: [{url: "file://@TOP@/output", operation: all}]}
"#;

/// The workflow in a directory of its own, planned.
struct Nested {
    directory: tempfile::TempDir,
    submit: PathBuf,
    build: Build,
}

impl Nested {
    fn plan(build: Build) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        for (name, text) in [
            ("workflow.yml", OUTER),
            ("leaf.yml", LEAF),
            ("transformations.yml", TRANSFORMATIONS),
            ("sites.yml", SITES),
            ("make", MAKE),
            ("upper", UPPER),
        ] {
            let path = top.join(name);
            fs::write(&path, text.replace("@TOP@", &top.display().to_string())).expect("an input");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        let result = Program::new(build.program("pmc-plan"))
            .in_directory(top)
            .args(["--sites", "local", "--output-sites", "local"])
            .args(["--dir", "submit", "--relative-submit-dir", "run", "workflow.yml"])
            .run()
            .ok();
        assert!(
            result.stderr.contains("S (the job A makes its file)"),
            "{}",
            result.details()
        );
        Self {
            submit: top.join("submit/run"),
            directory,
            build,
        }
    }

    fn run(&self, executor: Program) -> CommandResult {
        executor
            .args(["--monitord-hack", "--per-task-stdio"])
            .arg(only_file(&self.submit, ".dag"))
            .in_directory(&self.submit)
            .run()
    }

    fn executor(&self) -> Program {
        self.build.executor_with(2)
    }

    /// Checks the output, and that each job has run once.
    #[track_caller]
    fn check(&self) {
        let read = |name: &str| fs::read_to_string(self.directory.path().join(name)).expect("a file");
        assert_eq!(read("output/end"), "HELLO\n");
        assert_eq!(read("ran"), "make\nupper upper\nupper end\n");
    }

    fn break_leaf(&self, broken: bool) {
        let path = self.directory.path().join("broken");
        match broken {
            true => fs::write(path, "").expect("a file"),
            false => fs::remove_file(path).expect("the file"),
        }
    }

    fn monitored<'a>(&'a self, submit: &'a Path) -> Monitored<'a> {
        Monitored {
            submit,
            home: self.directory.path(),
        }
    }
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn monitoring_follows_workflows_in_workflows() {
    let nested = Nested::plan(Build::Local);
    nested.run(nested.executor()).ok();
    nested.check();
    let monitored = nested.monitored(&nested.submit);
    monitored.load();
    assert_eq!(
        monitored.query("select dax_label, wf_id, parent_wf_id, root_wf_id from workflow order by wf_id"),
        [
            ["outer", "1", "-", "1"],
            ["inner", "2", "1", "1"],
            ["leaf", "3", "2", "1"]
        ]
    );
    let parents = "select j.exec_job_id, i.subwf_id, i.exitcode from job_instance i join job j using (job_id) \
                   where i.subwf_id is not null order by 2";
    assert_eq!(
        monitored.query(parents),
        [["pegasus-plan_S", "2", "0"], ["pegasus-plan_T", "3", "0"]]
    );
    assert_eq!(
        monitored
            .query("select count(*) from workflowstate where state = 'WORKFLOW_TERMINATED' and status = 0"),
        [["3"]]
    );
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, jobs.failed), (3, 0, 0));
}

#[test]
#[ignore = "needs both MPIs: tests/run e2e"]
fn each_transport_runs_workflows_in_workflows() {
    for build in [Build::OpenMpi, Build::Mpich] {
        let nested = Nested::plan(build);
        nested.run(nested.executor()).ok();
        nested.check();
    }
    let nested = Nested::plan(Build::Local);
    let executor = Program::new(Build::Local.program("pegasus-mpi-cluster"));
    nested
        .run(executor.args(["--agents", "2", "--launch", "local", "--slots", "1"]))
        .ok();
    nested.check();
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn the_next_run_continues_within_the_innermost_workflow() {
    let nested = Nested::plan(Build::Local);
    nested.break_leaf(true);
    let failed = nested.run(nested.executor());
    assert_eq!(failed.code(), 1, "{}", failed.details());
    assert!(!nested.directory.path().join("output/end").exists());
    let monitored = nested.monitored(&nested.submit);
    monitored.load();
    let rows = monitored.query(
        "select j.exec_job_id, i.exitcode != 0 from job_instance i join job j using (job_id) \
         where i.subwf_id is not null or j.exec_job_id = 'upper_D' order by 1",
    );
    assert_eq!(
        rows,
        [["pegasus-plan_S", "1"], ["pegasus-plan_T", "1"], ["upper_D", "1"]]
    );
    nested.break_leaf(false);
    nested.run(nested.executor()).ok();
    nested.check();
}
