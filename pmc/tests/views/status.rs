//! `pmc status` during and after real runs.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Finished, Place, bin};

#[test]
fn after_a_failed_run() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "kill -9 $$");
    place.run(["run", "-q", "workflow.yml"]).code(1);
    let output = place.run(["status", "pmc-runs/chain"]);
    output.code(0);
    let text = output.stdout();
    assert!(text.starts_with("chain stopped, incomplete, after "), "{text}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let compute = text
        .lines()
        .map(words)
        .find(|words| words.first().is_some_and(|word| word == "compute"));
    assert_eq!(compute, Some(words("compute 3 2 - - - 1")), "{text}");
    assert!(
        text.contains("\n  second_B  exit status 137         1  "),
        "{text}"
    );
    assert!(
        text.contains("\n  why      pmc analyzer pmc-runs/chain\n"),
        "{text}"
    );
    assert!(
        text.contains("\n  resume   pmc resume pmc-runs/chain\n"),
        "{text}"
    );
    let json = place.run(["status", "--json", "pmc-runs/chain/run0001/submit"]);
    json.code(0);
    let json = json.json();
    assert_eq!(
        (&json["format"], &json["phase"]),
        (&"pmc-status".into(), &"ended".into())
    );
    assert_eq!(json["failed"][0]["task"], "second_B");
    assert_eq!(json["failed"][0]["exit_status"], 137);
    assert!(json["failed"][0]["host"].is_string(), "{json}");
    assert_eq!(json["by_kind"]["compute"]["done"], 2);
    assert!(json["blocked"].as_u64() >= Some(1), "{json}");
    place.run(["status", "-q", "pmc-runs/chain"]).code(1);
    let rescue = place.read("pmc-runs/chain/run0001/submit/chain-0.dag.rescue");
    let done = rescue.lines().filter(|line| line.starts_with("DONE ")).count();
    assert_eq!(json["tasks"]["done"], done);

    place.script("bin/second", "cp mid.txt out.txt");
    place.run(["resume", "-q", "pmc-runs/chain"]).code(0);
    place.run(["status", "-q", "pmc-runs/chain"]).code(0);
    let text = place.run(["status", "pmc-runs/chain"]).stdout();
    assert!(
        text.starts_with("chain succeeded after ") && text.contains("(2 runs)"),
        "{text}"
    );
}

#[test]
fn during_a_run() {
    let place = Place::new();
    place.chain(
        "until [ -e go ]; do sleep 0.05; done; cp in.txt mid.txt",
        "exit 3",
    );
    bin();
    let mut run = place
        .pmc(["run", "-q", "-w", "2", "workflow.yml"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("pmc runs");
    let start = Instant::now();
    let json = loop {
        assert!(start.elapsed() < Duration::from_secs(60), "the task does not run");
        let output = place.run(["status", "--json", "pmc-runs/chain"]);
        if !output.stdout().is_empty() {
            let json = output.json();
            let running = json["running"].as_array().map_or(0, Vec::len);
            if running == 1
                && json["running"][0]["task"] == "first_A"
                && json["running"][0]["host"].is_string()
            {
                break json;
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(json["phase"], "running");
    place.run(["status", "-q", "pmc-runs/chain"]).code(5);
    let watch = place
        .pmc(["status", "--watch", "pmc-runs/chain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pmc status runs");
    std::thread::sleep(Duration::from_millis(300));
    let scratch = place.path().join("pmc-runs/chain/run0001/scratch");
    std::fs::write(scratch.join("go"), "").expect("the work directory is there");
    let _ = run.wait();
    let watched = Finished::from(watch.wait_with_output().expect("it ends with the run"));
    watched.code(0);
    let text = watched.stdout();
    assert!(text.starts_with("chain is running: "), "{text}");
    assert!(text.contains("\nfailed: second_B (exit status 3) on "), "{text}");
    assert!(text.contains("\nchain stopped, incomplete, after "), "{text}");
}

#[test]
fn incomplete_directories() {
    let place = Place::new();
    let output = place.run(["status", "nowhere"]);
    output.code(2);
    assert!(
        output
            .stderr()
            .starts_with("pmc: nowhere: No such file or directory\n  hint: "),
        "{}",
        output.stderr()
    );
    place.write("half/submit/braindump.yml", "dax_label: \"half\"\nuser: \"me");
    let output = place.run(["status", "half"]);
    output.code(0);
    assert!(
        output
            .stdout()
            .contains("has not started\n\n  The plan has no tasks yet.\n"),
        "{}",
        output.stdout()
    );
    place.write(
        "hand/w.dag",
        "TASK a /bin/true\nTASK b /bin/true\nEDGE a b\nTASK c",
    );
    let output = place.run(["status", "hand"]);
    output.code(0);
    assert!(
        output.stdout().starts_with("w has not started\n[----")
            && output.stdout().contains("0 of 2 tasks done"),
        "{}",
        output.stdout()
    );
    place.run(["status", "-q", "hand"]).code(5);
    // A log that was cut off in the middle of a line.
    place.write(
        "hand/w.dag.dagman.out",
        "11/21/26 12:00:00 Parsing w.dag ...\n11/21/26 12:00:01 Event: ULOG_EXECUTE for Condor Node a (1.0)\n11/21/26 12:0",
    );
    let output = place.run(["status", "hand"]);
    output.code(0);
    assert!(
        output.stdout().starts_with("w was cut off after "),
        "{}",
        output.stdout()
    );
    // Without the DAG there is no lock that shows whether the run is active.
    std::fs::remove_file(place.path().join("hand/w.dag")).unwrap();
    place.write("hand/braindump.yml", "dag: w.dag\ndax_label: w\n");
    let output = place.run(["status", "hand"]);
    let text = output.stdout();
    assert!(
        text.starts_with("w is running or was cut off after ")
            && text.contains("/hand/w.dag with its lock is missing\n")
            && !text.contains("pmc resume"),
        "{text}"
    );
    let json = place.run(["status", "--json", "hand"]).json();
    assert_eq!(json["phase"], "cut_off");
    assert!(
        json["missing_dag"]
            .as_str()
            .is_some_and(|dag| dag.ends_with("/hand/w.dag")),
        "{json}"
    );
    let text = place.run(["analyzer", "hand"]).stdout();
    assert!(text.contains("/hand/w.dag is missing"), "{text}");
}

/// Errors name the problem, the place and the remedy.
#[test]
fn directories_without_a_run() {
    let place = Place::new();
    place.write("file", "text");
    place.write("empty/other", "");
    place.write("two/a.dag", "");
    place.write("two/b.dag", "");
    for view in ["status", "analyzer", "statistics", "report"] {
        for (dir, what) in [
            ("none", "none: No such file or directory"),
            ("file", "file: Not a directory"),
            (
                "empty",
                "empty: not a submit directory: no braindump.yml and no DAG",
            ),
            ("two", "two: 2 DAGs and no braindump.yml"),
        ] {
            let output = place.run([view, dir]);
            output.code(2);
            let text = output.stderr();
            assert!(
                text.starts_with("pmc: ")
                    && text.contains(what)
                    && text.contains("\n  hint: give the directory"),
                "{view} {dir}: {text}"
            );
            assert_eq!(
                (text.lines().count(), output.stdout()),
                (2, String::new()),
                "{view} {dir}"
            );
        }
    }
}

/// Views never write into the directory of a run, which may belong to another user.
#[test]
fn a_read_only_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    place.write("run/w.dag", "TASK a /bin/false\nTASK b /bin/true\nEDGE a b\n");
    place.write(
        "run/w.dag.dagman.out",
        "11/21/26 12:00:00 Parsing w.dag ...\n11/21/26 12:00:00 Event: ULOG_SUBMIT for Condor Node a (1.0)\n\
         11/21/26 12:00:00 Event: ULOG_EXECUTE for Condor Node a (1.0)\n11/21/26 12:00:02 Event: ULOG_JOB_TERMINATED for Condor Node a \
         (1.0)\n11/21/26 12:00:02 Node a job proc (1.0) failed with status 256.\n\
         11/21/26 12:00:02 **** condor_scheduniv_exec.0.0 (condor_DAGMAN) pid 1 EXITING WITH STATUS 1\n",
    );
    let dir = place.path().join("run");
    let mode = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o555);
    let outputs = [
        place.run(["status", "run"]),
        place.run(["analyzer", "run"]),
        place.run(["statistics", "run"]),
        place.run(["report", "-q", "-o", "r.html", "run"]),
    ];
    let files = std::fs::read_dir(&dir).unwrap().count();
    mode(0o755);
    for (output, code) in outputs.iter().zip([0, 1, 0, 0]) {
        output.code(code);
    }
    assert_eq!(files, 2);
}

/// Lines of a text of metrics without the labels that all have.
fn samples(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let short = |line: &str| {
        let (name, rest) = line.split_once('{').expect("labels");
        let (labels, value) = rest.rsplit_once("} ").expect("a value");
        let own = labels
            .split(',')
            .filter(|label| !label.starts_with("workflow=") && !label.starts_with("submit_directory="));
        format!("{name} {} {value}", own.collect::<Vec<_>>().join(","))
    };
    lines.map(short).collect()
}

#[test]
fn metrics_are_those_of_open_metrics() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "kill -9 $$");
    // The directory of a collector: each run has a file of its own.
    std::fs::create_dir(place.path().join("collected")).unwrap();
    let directory = place.path().join("collected");
    let property = format!("-Dpegasus.metrics.textfile={}", directory.display());
    place.run(["run", "-q", &property, "workflow.yml"]).code(1);
    let text = place.run(["status", "--openmetrics", "pmc-runs/chain"]).stdout();
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let all = samples(&text);
    for line in [
        "pmc_tasks kind=\"compute\",state=\"done\" 2",
        "pmc_tasks kind=\"compute\",state=\"failed\" 1",
        "pmc_tasks kind=\"compute\",state=\"running\" 0",
        "pmc_attempts_total outcome=\"failed\" 1",
        "pmc_run_starts_total  1",
        "pmc_run_phase phase=\"ended\" 1",
        "pmc_run_phase phase=\"running\" 0",
        "pmc_run_exit_status  1",
    ] {
        assert!(all.iter().any(|sample| sample == line), "{line}: {text}");
    }
    let files: Vec<_> = std::fs::read_dir(&directory).unwrap().flatten().collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let name = file.file_name().into_string().unwrap();
    assert!(
        name.starts_with("pmc-chain-") && name.ends_with(".prom"),
        "{name}"
    );
    let written = std::fs::read_to_string(file.path()).unwrap();
    let without_time = |text: &str| -> Vec<String> {
        let lines = samples(text).into_iter();
        lines.filter(|line| !line.contains("_seconds")).collect()
    };
    assert_eq!(without_time(&written), without_time(&text));
    // A resumed run writes it, too.
    std::fs::remove_file(file.path()).unwrap();
    place.script("bin/second", "cp mid.txt out.txt");
    place.run(["resume", "-q", "pmc-runs/chain"]).code(0);
    let written = std::fs::read_to_string(file.path()).unwrap();
    assert!(
        samples(&written).contains(&"pmc_run_exit_status  0".to_owned()),
        "{written}"
    );
}

#[test]
fn metrics_that_cannot_be_written_do_not_end_a_run() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    let run = place.run([
        "run",
        "-q",
        "-Dpegasus.metrics.textfile=/proc/none/x.prom",
        "workflow.yml",
    ]);
    run.code(0);
    let said = run.stderr();
    assert!(
        said.contains("pegasus.metrics.textfile: /proc/none/x.prom cannot be written: "),
        "{said}"
    );
}
