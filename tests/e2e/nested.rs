//! Sub-workflows that are planned while the workflow around them runs, because one of its jobs makes their
//! file. Pegasus' monitoring follows them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::command::{CommandResult, Program};
use crate::support::nginx;
use crate::support::pegasus::{JobCounts, Monitored, only_file, query};
use crate::support::programs::Build;
use crate::support::server::{Server, free_port};

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
- {type: pegasusWorkflow, id: T, file: leaf.yml, arguments: [-Dpegasus.subworkflow=nested, --basename, leaf], uses: [{lfn: leaf.yml, type: input}, {lfn: upper, type: input}, {lfn: end, type: output, stageOut: true, registerReplica: false}]}
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

/// A staging site behind a server.
const HUB: &str = r#"- name: hub
  directories:
  - {type: sharedScratch, path: /stage, fileServers: [{url: "webdav://127.0.0.1:@PORT@/stage", operation: all}]}
"#;

/// The workflow in a directory of its own, planned.
struct Nested {
    directory: tempfile::TempDir,
    submit: PathBuf,
    build: Build,
}

impl Nested {
    fn plan(build: Build) -> Self {
        Self::plan_in(
            tempfile::tempdir().expect("a temporary directory"),
            build,
            "",
            &[],
        )
    }

    /// Plans for nodes without a common directory, whose files pass through a web server.
    fn plan_behind_server(build: Build) -> (Self, Server) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (top, port) = (directory.path().join("nginx"), free_port());
        fs::create_dir_all(top.join("root/stage")).expect("a directory");
        let dav = "location / { dav_methods PUT DELETE MKCOL; dav_access user:rw; }";
        let server = nginx::start(&top, port, dav);
        let options = [
            "-Dpegasus.data.configuration=nonsharedfs",
            "--staging-site",
            "local=hub",
        ];
        let hub = HUB.replace("@PORT@", &port.to_string());
        (Self::plan_in(directory, build, &hub, &options), server)
    }

    /// Plans with further sites and options.
    fn plan_in(directory: tempfile::TempDir, build: Build, more_sites: &str, options: &[&str]) -> Self {
        let sites = format!("{SITES}{more_sites}");
        let top = directory.path();
        for (name, text) in [
            ("workflow.yml", OUTER),
            ("leaf.yml", LEAF),
            ("transformations.yml", TRANSFORMATIONS),
            ("sites.yml", &sites),
            ("make", MAKE),
            ("upper", UPPER),
        ] {
            let path = top.join(name);
            fs::write(&path, text.replace("@TOP@", &top.display().to_string())).expect("an input");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        let result = Program::new(build.program("pmc-plan"))
            .in_directory(top)
            .args(options)
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
    monitored.replay();
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

/// Queries for what Pegasus' monitoring and ours store alike, without ids that depend on the order of
/// writing. Exit codes and the fractions of times differ on purpose.
const ROWS: [&str; 7] = [
    "select dax_label, wf_uuid, dag_file_name, submit_dir, planner_arguments, user, dax_file,
         (select dax_label from workflow p where p.wf_id = w.parent_wf_id),
         (select dax_label from workflow p where p.wf_id = w.root_wf_id) from workflow w order by 1",
    "select dax_label, state, restart_count, status from workflowstate join workflow using (wf_id) order by 1, 3, 2",
    "select dax_label, exec_job_id, submit_file, type_desc, max_retries, executable, argv, task_count
     from job join workflow using (wf_id) order by 1, 2",
    "select dax_label, abs_task_id, transformation, argv, type_desc from task join workflow using (wf_id)
     order by 1, 2",
    "select w.dax_label, exec_job_id, job_submit_seq, sched_id, i.site, i.user, work_dir, local_duration,
         (select dax_label from workflow s where s.wf_id = subwf_id), stdout_file, stdout_text, stderr_file,
         stderr_text, exitcode = 0, (select site || hostname from host h where h.host_id = i.host_id)
     from job_instance i join job j using (job_id) join workflow w using (wf_id) order by 1, 3",
    "select w.dax_label, exec_job_id, job_submit_seq, state, s.timestamp, jobstate_submit_seq from jobstate s
     join job_instance i using (job_instance_id) join job using (job_id) join workflow w using (wf_id)
     order by 1, 3, 6, 4",
    "select w.dax_label, exec_job_id, task_submit_seq, cast(start_time as integer), remote_duration, v.exitcode = 0,
         transformation, abs_task_id, maxrss
     from invocation v join job_instance i using (job_instance_id) join job j using (job_id)
     join workflow w on w.wf_id = j.wf_id order by 1, job_submit_seq, 3",
];

/// Loads a run with Pegasus' monitoring and ours, and compares both with `during`, the database that the
/// executor has written.
fn assert_same_rows(nested: &Nested) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let database = only_file(&nested.submit, ".stampede.db");
    let taken = |name: &str| {
        let path = place.path().join(name);
        fs::rename(&database, &path).expect("a database");
        path
    };
    let during = taken("during");
    Program::new(nested.build.program("pmc-monitord"))
        .args(["-r", "--no-dashboard"])
        .arg(format!(
            "{}.dagman.out",
            only_file(&nested.submit, ".dag").display()
        ))
        .env("HOME", nested.directory.path())
        .run()
        .ok();
    let ours = taken("ours");
    nested.monitored(&nested.submit).replay();
    let theirs = taken("theirs");
    for statement in ROWS {
        let expected = query(&theirs, statement);
        assert!(!expected.is_empty(), "{statement}");
        for database in [&ours, &during] {
            let rows = query(database, statement);
            let differing = expected.iter().zip(&rows).find(|(expected, row)| expected != row);
            assert_eq!(differing, None, "{statement}");
            assert_eq!(expected.len(), rows.len(), "{statement}");
        }
    }
    fs::rename(&during, &database).expect("a database");
}

/// Returns the counts of `pmc statistics`.
fn our_statistics(nested: &Nested) -> (JobCounts, JobCounts) {
    let result = Program::new(nested.build.program("pmc"))
        .args(["statistics", "--json", "--sections", "summary"])
        .arg(&nested.submit)
        .run()
        .ok();
    let value: serde_json::Value = serde_json::from_str(&result.stdout).expect("JSON");
    let counts = |kind: &str| {
        let count = |name: &str| value["summary"][kind][name].as_u64().expect("a count") as u32;
        JobCounts {
            succeeded: count("succeeded"),
            failed: count("failed"),
            incomplete: count("incomplete"),
            total: count("total"),
            retries: count("retries"),
        }
    };
    (counts("tasks"), counts("jobs"))
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_monitors_agree_on_workflows_in_workflows() {
    let nested = Nested::plan(Build::Local);
    nested.break_leaf(true);
    let options = ["--stampede"];
    assert_eq!(nested.run(nested.executor().args(options)).code(), 1);
    assert_same_rows(&nested);
    let theirs = nested.monitored(&nested.submit).statistics();
    assert_eq!(our_statistics(&nested), theirs);
    assert_eq!((theirs.0.failed, theirs.1.failed), (1, 1));
    nested.break_leaf(false);
    nested.run(nested.executor().args(options)).ok();
    assert_same_rows(&nested);
    assert_eq!(
        our_statistics(&nested),
        nested.monitored(&nested.submit).statistics()
    );
}

#[test]
#[ignore = "needs both MPIs: tests/run e2e"]
fn each_transport_runs_workflows_in_workflows() {
    for build in [Build::Agents, Build::OpenMpi, Build::Mpich] {
        let nested = Nested::plan(build);
        nested.run(nested.executor()).ok();
        nested.check();
    }
}

#[test]
#[ignore = "needs nginx: tests/run e2e"]
fn planners_fetch_their_workflows_from_a_server() {
    let (nested, _server) = Nested::plan_behind_server(Build::Local);
    nested.break_leaf(true);
    let failed = nested.run(nested.executor());
    assert_eq!(failed.code(), 1, "{}", failed.details());
    nested.break_leaf(false);
    // The workflow is fetched into another directory, and its plan is the same.
    nested.run(nested.executor()).ok();
    nested.check();
    let plans = fs::read_dir(nested.submit.join("00/00")).expect("a directory");
    let plans = plans.flatten().map(|entry| entry.file_name());
    let plans: Vec<_> = plans
        .filter(|name| name.to_string_lossy().starts_with("made"))
        .collect();
    assert_eq!(plans.len(), 2, "a link and one plan: {plans:?}");
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
    let pmc = |command: &str| {
        let program = Program::new(nested.build.program("pmc"));
        program.args([command]).arg(&nested.submit).run().stdout
    };
    let text = pmc("analyzer");
    assert!(
        text.contains("Sub-workflow pegasus-plan_S, in ")
            && text.contains("    1  upper: exit status 3, 1 task"),
        "{text}"
    );
    let text = pmc("status");
    assert!(text.contains("sub-workflow "), "{text}");
    nested.break_leaf(false);
    nested.run(nested.executor()).ok();
    nested.check();
}
