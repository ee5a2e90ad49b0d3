//! `pmc run` and `pmc resume` with real programs.
#![expect(clippy::panic, reason = "tests")]

#[path = "run/inputs.rs"]
mod inputs;
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use support::{Finished, Place, bin};

/// Root of the examples.
fn examples() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"))
}

#[test]
fn the_first_example_runs_from_anywhere() {
    let place = Place::new();
    let workflow = examples().join("diamond/workflow.yml");
    let finished = place.run([Path::new("run"), &workflow]);
    finished.code(0);
    let stdout = finished.stdout();
    assert!(
        stdout.starts_with("diamond succeeded: 8 of 8 tasks done ("),
        "{stdout}"
    );
    assert!(
        stdout.contains("  outputs  pmc-runs/diamond/run0001/output  (1 file)\n             f.d  ("),
        "{stdout}"
    );
    assert_eq!(finished.stderr(), "");
    let report = place.read("pmc-runs/diamond/latest/output/f.d");
    assert!(
        report
            .starts_with("167 words, 95 of them different\n\nwhat         5  #####\nrain         4  ####\n"),
        "{report}"
    );
    assert!(
        !place.path().join("pmc-runs/diamond/run0001/scratch").exists(),
        "scratch is removed"
    );

    let again = place.run([
        Path::new("run"),
        Path::new("-q"),
        Path::new("-O"),
        Path::new("out"),
        Path::new("--stampede"),
        &workflow,
    ]);
    again.code(0);
    assert_eq!((again.stdout(), again.stderr()), (String::new(), String::new()));
    let database = "pmc-runs/diamond/run0002/submit/diamond-0.stampede.db";
    assert!(place.path().join(database).exists());
    assert_eq!(place.read("out/f.d"), report);
    assert!(
        place
            .path()
            .join("pmc-runs/diamond/run0002/submit/braindump.yml")
            .exists()
    );
}

#[test]
fn programs_get_the_same_arguments_in_every_way() {
    let place = Place::new();
    place.script(
        "bin/show",
        "for a; do out=$a; done; for a; do printf '[%s]' \"$a\"; done > \"$out\"",
    );
    place.write(
        "workflow.yml",
        r#"pegasus: "5.0.4"
name: words
transformationCatalog:
  transformations: [{name: show, sites: [{name: local, type: installed, pfn: "${PMC_WORKFLOW_DIR}/bin/show"}]}]
jobs:
- {type: job, id: A, name: show, arguments: ["-a preprocess -T  10 -i ", in.txt, "'two  words' x\\ y", "", -o, a.txt],
   uses: [{lfn: a.txt, type: output, registerReplica: false}]}
- {type: job, id: B, name: show, arguments: [" \"d e\" ", b.txt],
   uses: [{lfn: b.txt, type: output, registerReplica: false}]}
"#,
    );
    let ways: [&[&str]; 5] = [
        &[],
        &["-Dpegasus.gridstart=none"],
        &["-Dpegasus.gridstart.invoke.always=true"],
        &["--cluster", "horizontal", "-Dpegasus.clusters.num=1"],
        &[
            "--cluster",
            "horizontal",
            "-Dpegasus.clusters.num=1",
            "-Dpegasus.clusterer.job.aggregator=mpiexec",
        ],
    ];
    let check = |way: &[&str]| {
        assert_eq!(
            place.read("out/a.txt"),
            "[-a][preprocess][-T][10][-i][in.txt][two  words][x y][-o][a.txt]",
            "{way:?}"
        );
        assert_eq!(place.read("out/b.txt"), "[d e][b.txt]", "{way:?}");
        std::fs::remove_dir_all(place.path().join("out")).expect("outputs");
    };
    place.run(["run", "-q", "-O", "out", "workflow.yml"]).code(0);
    check(&["pmc run"]);
    for (n, way) in ways.into_iter().enumerate() {
        let dir = format!("way{n}");
        let mut planner = std::process::Command::new(bin().join("pmc-plan"));
        planner
            .args(["-s", "local", "-O", "out", "--relative-dir", &dir, "workflow.yml"])
            .args(way)
            .current_dir(place.path());
        Finished::from(planner.output().expect("the planner runs")).code(0);
        let mut executor = std::process::Command::new(bin().join("pegasus-mpi-cluster"));
        executor
            .arg(place.path().join(&dir).join("words-0.dag"))
            .current_dir(place.path());
        Finished::from(executor.output().expect("the executor runs")).code(0);
        check(way);
    }
}

#[test]
fn an_unwritable_database_is_reported() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    let run = place.run([
        "run",
        "--stampede",
        "-Dpegasus.catalog.workflow.url=postgresql://u:open-sesame@127.0.0.1:1/d",
        "workflow.yml",
    ]);
    run.code(0);
    let stderr = run.stderr();
    assert!(
        stderr.contains(
            "pmc: warning: the database is not whole: cannot write the database postgresql://u@127.0.0.1:1/d: "
        ),
        "{stderr}"
    );
    assert!(
        stderr.contains("; pmc-monitord -r loads it from the log") && !stderr.contains("sesame"),
        "{stderr}"
    );
}

#[test]
fn a_failure_is_explained_and_repaired() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "echo 'disk of doom' >&2; exit 3");
    let failed = place.run(["run", "workflow.yml"]);
    failed.code(1);
    let stdout = failed.stdout();
    assert!(
        stdout.starts_with("second_B failed: exit status 3, after "),
        "{stdout}"
    );
    assert!(stdout.contains("\n  stderr   | disk of doom\n"), "{stdout}");
    assert!(stdout.contains("/bin/second\n"), "{stdout}");
    assert!(stdout.contains(" resume pmc-runs/chain/run0001\n"), "{stdout}");
    assert!(
        failed.stderr().contains("pmc: failed: second_B (exit status "),
        "{}",
        failed.stderr()
    );

    place.script("bin/second", "tr a-z A-Z < mid.txt > out.txt");
    let resumed = place.run(["resume", "--json", "pmc-runs/chain/run0001"]);
    resumed.code(0);
    let summary = resumed.json();
    assert_eq!(summary["status"], "success");
    assert_eq!(summary["failures"], serde_json::json!([]));
    assert_eq!(summary["tasks"]["done"], summary["tasks"]["total"]);
    assert_eq!(summary["tasks"]["by_kind"]["compute"]["total"], 3);
    // Create directory, stage in, first, alone.
    assert!(summary["tasks"]["done_before"].as_u64() >= Some(4), "{summary}");
    assert_eq!(place.read("pmc-runs/chain/run0001/output/out.txt"), "SOMETHING\n");
    assert_eq!(place.read("pmc-runs/chain/run0001/output/alone.txt"), "alone\n");

    // Both runs are in the log for Pegasus' monitoring, at different seconds.
    let log = place.read("pmc-runs/chain/run0001/submit/chain-0.dag.dagman.out");
    let starts: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" Parsing "))
        .filter_map(|line| line.get(..17))
        .collect();
    assert_eq!(starts.len(), 2, "{log}");
    assert_ne!(starts[0], starts[1]);
    let once_more = place.run(["resume", "pmc-runs/chain/run0001"]);
    once_more.code(0);
    assert_eq!(
        place.read("pmc-runs/chain/run0001/submit/chain-0.dag.dagman.out"),
        log,
        "no task was left to run"
    );
}

#[test]
fn a_missing_output_fails_the_job_that_declares_it() {
    const MISSING: &str = "the program ended with success, but did not write its declared output: ";
    let place = Place::new();
    for way in [&[][..], &["-Dpegasus.gridstart=none"]] {
        // An output that is not delivered counts, too.
        for (first, second, job, file) in [
            ("true", "cp mid.txt out.txt", "first_A", "mid.txt"),
            ("cp in.txt mid.txt", "cp mid.txt other.txt", "second_B", "out.txt"),
        ] {
            place.chain(first, second);
            let failed = place.run(["run", "workflow.yml"].iter().chain(way));
            failed.code(1);
            let stdout = failed.stdout();
            assert!(
                stdout.starts_with(&format!("{job} failed: exit status 1, after ")),
                "{stdout}"
            );
            assert!(stdout.contains(&format!("{MISSING}{file}")), "{stdout}");
            assert!(stdout.contains("pmc.check.outputs=false"), "{stdout}");
            let analysis = place.run(["analyzer", "pmc-runs/chain"]);
            assert!(
                analysis.stdout().contains(&format!("{MISSING}{file}")),
                "{}",
                analysis.stdout()
            );
            place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
            place.run(["resume", "pmc-runs/chain"]).code(0);
            assert_eq!(place.read("pmc-runs/chain/latest/output/out.txt"), "something\n");
        }
    }
    place.chain("cp in.txt mid.txt", "cp mid.txt other.txt");
    let unchecked = place.run(["run", "-Dpmc.check.outputs=false", "workflow.yml"]);
    assert!(
        unchecked.stdout().starts_with("stage_out_local_local_"),
        "{}",
        unchecked.stdout()
    );
}

/// Programs write directories as outputs: they are delivered, read by other jobs and removed.
#[test]
fn directories_are_outputs_in_every_data_configuration() {
    for data in ["sharedfs", "nonsharedfs", "condorio"] {
        let place = Place::new();
        place.chain(
            "mkdir -p mid.txt/deep; cp in.txt mid.txt/deep/file",
            "cp -r mid.txt out.txt",
        );
        let option = format!("-Dpegasus.data.configuration={data}");
        place.run(["run", &option, "workflow.yml"]).code(0);
        let delivered = "pmc-runs/chain/latest/output/out.txt/deep/file";
        assert_eq!(place.read(delivered), "something\n", "{data}");
    }
}

/// Clean-up jobs remove files one by one. A directory among them stays, and the run succeeds.
#[test]
fn a_directory_among_the_files_of_a_clean_up_job_stays() {
    let place = Place::new();
    place.chain("mkdir mid.txt; cp in.txt mid.txt/file", "cp mid.txt/file out.txt");
    place.run(["run", "--cleanup", "inplace", "workflow.yml"]).code(0);
    let dag = place.read("pmc-runs/chain/latest/submit/chain-0.dag");
    let tasks = dag.lines().filter_map(|line| line.strip_prefix("TASK "));
    let names = tasks.filter_map(|line| line.split(' ').next());
    let logs: String = names
        .filter(|name| name.starts_with("clean_up_"))
        .map(|name| place.run(["log", name]).stderr())
        .collect();
    assert!(logs.contains("stays, with what is in it"), "{logs}");
}

#[test]
fn tasks_are_retried_up_to_the_failure_limit() {
    let place = Place::new();
    place.chain(
        "cp in.txt mid.txt; test -e tried || { touch tried; kill -9 $$; }",
        "exit 5",
    );
    let finished = place.run([
        "run",
        "--json",
        "--tries",
        "2",
        "--max-failures",
        "1",
        "-w",
        "1",
        "workflow.yml",
    ]);
    finished.code(1);
    let summary = finished.json();
    assert_eq!(summary["max_failures_reached"], true);
    let failures = summary["failures"].as_array().expect("a list");
    assert_eq!(failures.len(), 1, "{summary}");
    assert_eq!(failures[0]["task"], "second_B");
    assert_eq!(failures[0]["exit_status"], 5);
    assert_eq!(failures[0]["tries"], 2);
    assert!(
        finished.stderr().contains("will be retried: first_A"),
        "{}",
        finished.stderr()
    );
}

#[test]
fn an_interrupted_run_is_resumed() {
    let place = Place::new();
    place.chain(
        "cp in.txt mid.txt",
        "test -e go || { echo $$ > pid; exec sleep 60; }; cp mid.txt out.txt",
    );
    place.script("bin/second", &format!(
        "test -e {0}/go || {{ echo $$ > {0}/pid.tmp; mv {0}/pid.tmp {0}/pid; exec sleep 60; }}; cp mid.txt out.txt",
        place.path().display()
    ));
    let mut command = place.pmc(["run", "workflow.yml"]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("pmc starts");
    let start = Instant::now();
    while !place.path().join("pid").exists() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the second job did not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let pmc = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    nix::sys::signal::kill(pmc, nix::sys::signal::Signal::SIGINT).expect("pmc is there");
    let finished = Finished::from(child.wait_with_output().expect("pmc ends"));
    finished.code(130);
    assert!(
        start.elapsed() < Duration::from_secs(50),
        "pmc did not wait for the job"
    );
    assert!(
        finished.stdout().contains("chain was interrupted: "),
        "{}",
        finished.stdout()
    );
    assert!(
        finished.stdout().contains(" resume pmc-runs/chain/run0001\n"),
        "{}",
        finished.stdout()
    );
    let sleeper: i32 = place.read("pid").trim().parse().expect("a pid");
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleeper), None).is_err()
    });
    assert!(gone, "the job was killed");

    place.write("go", "");
    place.run(["resume", "pmc-runs/chain"]).code(0);
    assert_eq!(place.read("pmc-runs/chain/run0001/output/out.txt"), "something\n");
}

#[test]
fn a_failed_plan_leaves_no_directory() {
    let place = Place::new();
    let finished = place.run(["run", "nowhere.yml"]);
    finished.code(3);
    assert_eq!(finished.stderr(), "pmc: nowhere.yml: no such workflow file\n");
    place.write("sub/workflow.yml", "");
    let finished = place.run(["run", "sub"]);
    finished.code(3);
    assert_eq!(
        finished.stderr(),
        "pmc: sub: a directory, not a workflow file\n  hint: pmc run sub/workflow.yml\n"
    );

    place.write("bad.yml", "name: bad\njobs: [\n");
    let finished = place.run(["run", "--json", "bad.yml"]);
    assert_eq!(finished.json()["status"], "error");
    assert_eq!(finished.json()["exit_code"], 3);
    finished.code(3);
    assert!(finished.stderr().contains("bad.yml:"), "{}", finished.stderr());

    place.chain("true", "true");
    std::fs::remove_file(place.path().join("in.txt")).expect("it is there");
    let workflow = place
        .read("workflow.yml")
        .replace("lfn: in.txt, pfns", "lfn: other.txt, pfns");
    place.write("workflow.yml", &workflow);
    let finished = place.run(["run", "workflow.yml"]);
    finished.code(3);
    assert!(finished.stderr().contains("in.txt"), "{}", finished.stderr());
    let left = place.path().join("pmc-runs/chain");
    assert!(!left.exists(), "the directory of the run is removed");
}

#[test]
fn exit_codes_are_in_the_help() {
    let place = Place::new();
    let help = place.run(["run", "--help"]);
    help.code(0);
    for line in ["1    some tasks failed or did not run", "130  stopped by Ctrl-C"] {
        assert!(help.stdout().contains(line), "{}", help.stdout());
    }
    place.run(["run"]).code(2);
    place.run(["resume", "nowhere"]).code(2);
}

#[test]
fn notifications_are_sent_by_a_run_and_by_nothing_else() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    place.script("note", "echo \"$PEGASUS_EVENT $1 $PEGASUS_STATUS\" >> \"$2\"");
    let note = place.path().join("note");
    let hook = |when: &str, what: &str| {
        let (note, sent) = (note.display(), place.path().join("sent"));
        format!("{{_on: {when}, cmd: {note} {what} {}}}", sent.display())
    };
    let workflow = place.read("workflow.yml");
    let workflow = workflow.replace(
        "name: chain\n",
        &format!("name: chain\nhooks: {{shell: [{}]}}\n", hook("end", "workflow")),
    );
    let workflow = workflow.replace(
        "id: B, name: second,",
        &format!(
            "id: B, name: second, hooks: {{shell: [{}]}},",
            hook("success", "second_B")
        ),
    );
    place.write("workflow.yml", &workflow);
    place.run(["run", "workflow.yml"]).code(0);
    let sent = || {
        // Commands run at the same time.
        let mut lines: Vec<String> = place.read("sent").lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let expected = ["end workflow 0", "success second_B 0"];
    assert_eq!(sent(), expected);
    for view in ["status", "statistics", "analyzer", "report"] {
        place.run([view, "pmc-runs/chain"]).code(0);
    }
    assert_eq!(sent(), expected);
}
