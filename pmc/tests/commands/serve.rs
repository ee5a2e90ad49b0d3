//! `pmc serve`, `pmc add` and `pmc wait`: a run that takes tasks while it goes on.
#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Finished, Place, schema};

/// What starts a run that takes tasks. After a test that has failed, it ends by itself.
const SERVE: [&str; 6] = ["serve", "run", "--idle-limit", "60", "-w", "2"];

/// Starts a run that takes tasks, and waits until it does.
fn serve(place: &Place, options: &[&str]) -> Child {
    started(place.pmc([&SERVE, options].concat()))
}

fn started(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert!(line.contains("run takes tasks"), "{line}");
    child
}

/// Adds the tasks of lines.
fn add(place: &Place, lines: &[Value]) -> Finished {
    let mut child = place
        .pmc(["add", "run"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

fn ends(finished: &Finished) -> Vec<Value> {
    let stdout = finished.stdout();
    let ends: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    ends.iter().for_each(|end| schema::check("pmc-wait", end));
    ends
}

fn states(finished: &Finished) -> Vec<String> {
    let mut states: Vec<_> = ends(finished)
        .iter()
        .map(|end| {
            format!(
                "{} {}",
                end["id"].as_str().unwrap(),
                end["state"].as_str().unwrap()
            )
        })
        .collect();
    states.sort();
    states
}

#[test]
fn in_its_directory_a_run_need_not_be_named() {
    let place = Place::new();
    let mut child = serve(&place, &[]);
    for words in [&["add", "--", "echo one"][..], &["wait", "1"]] {
        let within = place
            .pmc(words)
            .current_dir(place.path().join("run"))
            .output()
            .unwrap();
        assert!(within.status.success(), "{within:?}");
    }
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn tasks_are_added_while_a_run_goes_on() {
    let place = Place::new();
    let mut child = serve(&place, &["--host-cpus", "2"]);
    let first = place.run(["add", "run", "--label", "first", "--", "echo one > made; pwd"]);
    assert_eq!(first.code(0).stdout(), "first\n");
    let finished = place.run(["wait", "first", "run"]);
    let reported = ends(finished.code(0));
    let [end] = &reported[..] else {
        panic!("{reported:?}")
    };
    assert!(
        end["seconds"].as_f64().is_some_and(|seconds| seconds < 60.0),
        "{end}"
    );
    assert_eq!(
        (&end["state"], &end["exit_code"], &end["signal"]),
        (&json!("done"), &json!(0), &Value::Null)
    );
    assert_eq!(
        place.run(["log", "first", "run"]).stdout(),
        format!("{}\n", place.path().display())
    );

    // What comes after a task that has failed does not run, whenever it was added.
    let lines = [
        json!({"command": "kill -9 $$", "label": "bad"}),
        json!({"command": ["touch", "never"], "after": ["bad"]}),
        json!({"command": "cat made\necho two", "after": ["first"], "cpus": 2, "label": "last"}),
    ];
    assert_eq!(
        add(&place, &lines).code(0).stdout(),
        "{\"id\":\"bad\"}\n{\"id\":\"3\"}\n{\"id\":\"last\"}\n"
    );
    let finished = place.run(["wait", "run", "bad", "3", "last"]);
    assert_eq!(states(finished.code(1)), ["3 not_run", "bad failed", "last done"]);
    assert!(
        ends(&finished).iter().any(|end| end["signal"] == 9),
        "{}",
        finished.stdout()
    );
    assert_eq!(place.run(["log", "last", "run"]).stdout(), "one\ntwo\n");
    place
        .run(["add", "run", "--after", "3", "--", "touch", "never"])
        .code(0);
    assert_eq!(states(place.run(["wait", "run", "5"]).code(1)), ["5 not_run"]);
    assert!(!place.path().join("never").exists());

    let waits = "while [ ! -e go ]; do sleep 0.01; done";
    place.run(["add", "run", "--", waits]).code(0);
    let mut follow = place
        .pmc(["wait", "run", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let mut reported = vec![lines.next().unwrap().unwrap()];
    let stopped = place.run(["serve", "run", "--stop"]);
    assert!(
        stopped.code(0).stdout().contains("takes no more tasks"),
        "{}",
        stopped.stdout()
    );
    assert!(
        place
            .run(["add", "run", "--", "true"])
            .code(4)
            .stderr()
            .contains("takes no more tasks")
    );
    place.write("go", "");
    reported.extend(lines.map_while(Result::ok));
    assert_eq!(reported.len(), 6, "{reported:?}");
    assert!(
        reported[5].starts_with("{\"id\":\"6\",\"state\":\"done\""),
        "{reported:?}"
    );
    assert_eq!(follow.wait().unwrap().code(), Some(1));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(place.read("run/jobstate.log").contains(" last JOB_SUCCESS "));
    let status = place.run(["status", "--json", "run"]).json();
    assert_eq!(
        (&status["tasks"]["done"], &status["tasks"]["failed"]),
        (&json!(3), &json!(1))
    );
}

#[test]
fn wrong_tasks_are_refused_and_the_run_goes_on() {
    let place = Place::new();
    let mut child = serve(&place, &["--host-cpus", "2"]);
    place
        .run(["add", "run", "--label", "first", "--", "true"])
        .code(0);
    for (words, message) in [
        (vec!["--label", "first", "--", "true"], "a task first already"),
        (
            vec!["--after", "nobody", "--", "true"],
            "after nobody: there is no such task",
        ),
        (vec!["-c", "3", "--", "true"], "no host has what task 2 requests"),
    ] {
        let refused = place.run([vec!["add", "run"], words].concat());
        assert!(refused.code(4).stderr().contains(message), "{}", refused.stderr());
    }
    let refused = add(&place, &[json!({"cmd": "true"})]);
    assert!(
        refused.code(2).stderr().contains("line 1 of standard input"),
        "{}",
        refused.stderr()
    );
    // A line has at most a MiB, without its line feed.
    let task = json!({"command": "true"}).to_string();
    for (length, code) in [((1 << 20) - 1, 0), (1 << 20, 2)] {
        place.write("long", &(" ".repeat(length - task.len()) + &task));
        let long = std::fs::File::open(place.path().join("long")).unwrap();
        let added = place.pmc(["add", "run"]).stdin(long).output().unwrap();
        assert_eq!(Finished::from(added).code(code).stdout().is_empty(), code != 0);
    }
    place.run(["wait", "run", "5"]).code(4);
    place.run(["cancel", "run", "5"]).code(4);
    // A second run of the directory would run the tasks twice.
    place.run(["serve", "run", "--idle-limit", "1"]).code(4);
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    place.run(["add", "run", "--", "true"]).code(4);
}

/// The reader and the schema of tasks agree.
#[test]
fn tasks_are_as_their_schema_says() {
    let place = Place::new();
    let mut child = serve(&place, &["--host-cpus", "2"]);
    for (is_good, task) in [
        (true, json!({"command": "true", "label": "a.b-c_1", "name": "x"})),
        (
            true,
            json!({"command": ["true"], "after": ["a.b-c_1"], "cpus": 1, "memory_mib": 1, "gpus": 0, "nodes": 1,
                "priority": -3, "tries": 2, "expected_seconds": 5, "directory": "/"}),
        ),
        (false, json!({"command": ""})),
        (false, json!({"label": "x"})),
        (false, json!({"command": 7})),
        (false, json!({"command": "true", "label": "12"})),
        (false, json!({"command": "true", "label": "-x"})),
        (true, json!({"command": "true", "cpus": 0})),
        (false, json!({"command": "true", "nodes": 0})),
        (false, json!({"command": "true", "tries": 0})),
        (false, json!({"command": "true", "memory_mib": -1})),
        (false, json!({"command": "true", "cpu": 1})),
    ] {
        let added = add(&place, std::slice::from_ref(&task));
        assert_eq!(!added.stdout().is_empty(), is_good, "{task}: {}", added.stderr());
        let problems = schema::problems("pmc-add", &task);
        assert_eq!(problems.is_empty(), is_good, "{task}: {problems:?}");
        for line in added.stdout().lines() {
            schema::check("pmc-add-answer", &serde_json::from_str(line).unwrap());
        }
    }
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn tasks_that_wait_are_cancelled_and_those_that_run_end() {
    let place = Place::new();
    let mut child = serve(&place, &["--host-cpus", "1"]);
    let lines = [
        json!({"command": "touch begun; exec sleep 1000", "label": "runs", "tries": 3}),
        json!({"command": "touch never", "label": "queued"}),
        json!({"command": "touch never", "label": "behind", "after": ["queued"]}),
        json!({"command": "touch never", "label": "waits", "after": ["runs"]}),
        json!({"command": "echo two", "label": "stays"}),
    ];
    add(&place, &lines).code(0);
    while !place.path().join("begun").exists() {
        std::thread::yield_now();
    }
    // Nothing is cancelled if a task is not known.
    place.run(["cancel", "run", "queued", "nobody"]).code(4);
    let cancelled = place.run(["cancel", "run", "queued", "waits"]);
    assert_eq!(
        cancelled.code(0).stdout(),
        "2 will not run, 0 that run are asked to end, 0 had ended\n"
    );
    let answer = place.run(["wait", "run", "queued", "behind", "waits"]);
    assert_eq!(
        states(answer.code(1)),
        ["behind not_run", "queued not_run", "waits not_run"]
    );
    let reasons: Vec<Value> = ends(&answer).iter().map(|end| end["reason"].clone()).collect();
    assert!(reasons.contains(&json!("it was cancelled")), "{reasons:?}");
    let why = place.run(["why", "queued", "run"]).code(0).stdout();
    assert!(why.contains("queued is cancelled"), "{why}");

    // All of its attempts are over.
    place.run(["cancel", "run", "runs", "queued"]).code(0);
    let answer = place.run(["wait", "run", "runs"]);
    let [end] = &ends(answer.code(1))[..] else {
        panic!("{}", answer.stdout())
    };
    assert!(
        end["signal"] == 15 || end["reason"] == "it was cancelled",
        "{end}"
    );
    place.run(["wait", "run", "stays"]).code(0);
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!place.path().join("never").exists());
    assert_eq!(
        place.read("run/jobstate.log").matches(" runs EXECUTE ").count(),
        1
    );
}

/// A task that is done does not run again when the run goes on. One that has failed does, with what waits for
/// it.
#[test]
fn what_has_failed_runs_again_with_the_next_start() {
    let place = Place::new();
    let mut child = serve(&place, &[]);
    let lines = [
        json!({"command": "echo good >> ran", "label": "good"}),
        json!({"command": "echo bad >> ran; [ -e mended ]", "label": "bad", "after": ["good"]}),
        json!({"command": "echo next >> ran", "label": "next", "after": ["bad"]}),
    ];
    add(&place, &lines).code(0);
    let answer = place.run(["wait", "run", "next", "bad"]);
    assert_eq!(states(answer.code(1)), ["bad failed", "next not_run"]);
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    place.write("mended", "");
    let mut child = serve(&place, &[]);
    place.run(["wait", "run", "good", "bad", "next"]).code(0);
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(place.read("ran"), "good\nbad\nbad\nnext\n");
}

/// No file can get larger than a limit, so that an addition is written in part.
#[test]
fn an_addition_without_space_is_refused_as_a_whole() {
    const LIMIT: usize = 1 << 20;
    let place = Place::new();
    let program = place.pmc(SERVE);
    let mut limited = Command::new("/bin/sh");
    // Without the signal, the write has an error, as with a full disk. The unit has 512 bytes.
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f \"$1\"; shift; exec \"$@\"", "sh"])
        .arg((LIMIT / 512).to_string())
        .arg(program.get_program())
        .args(program.get_args())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir(place.path());
    let mut child = started(limited);
    place
        .run(["add", "run", "--label", "first", "--", "true"])
        .code(0);
    let long = json!({"command": format!("true {}", "x".repeat(100_000))});
    // Long lines are handed over one by one: those before the limit are accepted.
    let refused = add(&place, &vec![long; LIMIT / 100_000 + 1]);
    let accepted = refused.stdout().lines().count();
    assert!(
        refused
            .code(4)
            .stderr()
            .contains("cannot be written into the DAG file"),
        "{}",
        refused.stderr()
    );
    // What is there of them is gone, so that the next ones are whole.
    place
        .run(["add", "run", "--label", "second", "--", "true"])
        .code(0);
    place.run(["wait", "run", "first", "second"]).code(0);
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let dag = place.read("run/tasks.dag");
    assert_eq!(
        dag.lines().filter(|line| line.starts_with("TASK ")).count(),
        2 + accepted
    );
}

/// Returns how often each of the tasks has run.
fn runs(place: &Place, tasks: usize) -> Vec<usize> {
    let ran = place.read("ran");
    let mut counts = vec![0; tasks];
    for line in ran.lines() {
        counts[line.parse::<usize>().unwrap()] += 1;
    }
    counts
}

#[test]
fn what_was_accepted_survives_the_end_of_the_run() {
    const TASKS: usize = 300;
    let place = Place::new();
    let mut child = serve(&place, &[]);
    let line =
        |number: usize| json!({"command": format!("echo {number} >> ran"), "label": format!("t{number}")});
    let lines: Vec<Value> = (0..TASKS).map(line).collect();
    assert_eq!(add(&place, &lines).code(0).stdout().lines().count(), TASKS);
    let mut follow = place
        .pmc(["wait", "run", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut reported = Vec::new();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    while reported.len() < TASKS / 10 {
        reported.push(lines.next().unwrap().unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reported.extend(lines.map_while(Result::ok));
    follow.wait().unwrap();
    let before = runs(&place, TASKS);
    // What is not whole was not accepted.
    let mut dag = std::fs::OpenOptions::new()
        .append(true)
        .open(place.path().join("run/tasks.dag"))
        .unwrap();
    dag.write_all(b"#@ 301 touch torn \nTASK torn /bin/sh -c 'touch torn'\nTASK to")
        .unwrap();
    drop(dag);

    let mut child = serve(&place, &[]);
    assert_eq!(
        place
            .run(["add", "run", "--after", "t7", "--", "echo 0 >> ran"])
            .code(0)
            .stdout(),
        "301\n"
    );
    let names: Vec<String> = (0..TASKS).map(|number| format!("t{number}")).collect();
    let words = [["wait", "run", "301"].map(str::to_owned).to_vec(), names].concat();
    assert_eq!(ends(place.run(words).code(0)).len(), TASKS + 1);
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let after = runs(&place, TASKS);
    assert!(after.iter().all(|count| *count >= 1), "a task is lost: {after:?}");
    for end in reported {
        let end: Value = serde_json::from_str(&end).unwrap();
        let number: usize = end["id"].as_str().unwrap()[1..].parse().unwrap();
        let again = after[number] - before[number] - usize::from(number == 0);
        assert_eq!(again, 0, "t{number} ran again after it was reported as done");
    }
    assert!(!place.path().join("torn").exists());
    assert!(place.run(["resume", "run"]).code(0).stdout().contains("301"));
}

/// The calls are those that Nextflow's executor `hq` makes.
#[test]
fn the_stand_in_for_hyperqueue_answers_nextflow() {
    let place = Place::new();
    let mut child = serve(&place, &["--host-cpus", "2"]);
    let hq = |words: &[&str]| {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../share/nextflow/bin/hq");
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", crate::support::bin().display());
        let output = std::process::Command::new(program)
            .args(words)
            .current_dir(place.path().join("a b"))
            .env_clear()
            .env("PATH", path)
            .env("PMC_SERVE_DIR", place.path().join("run"))
            .output();
        Finished::from(output.unwrap())
    };
    let directory = place.path().join("a b").display().to_string().replace(' ', "\\ ");
    let script = |rest: &str| {
        format!(
            "#!/bin/bash\n#HQ --name nf-say_(1)\n#HQ --log {directory}/.command.log\n#HQ --cwd {directory}\n\
             #HQ --resource mem=1048577\n#HQ --cpus 2\n#HQ --time-limit 60sec\n{rest}\n"
        )
    };
    place.write("a b/.command.run", &script("pwd; echo 0 > .exitcode"));
    place.write("a b/bad", &script("exit 7"));
    let submit = |script: &str| hq(&["--output-mode=quiet", "submit", "--directives=file", script]);
    assert_eq!(submit(".command.run").code(0).stdout(), "1\n");
    place.run(["wait", "run", "1"]).code(0);
    assert_eq!(
        place.read("a b/.command.log"),
        format!("{}/a b\n", place.path().display())
    );
    assert_eq!(place.read("a b/.exitcode"), "0\n");
    assert_eq!(submit("bad").code(0).stdout(), "2\n");
    place.run(["wait", "run", "2"]).code(1);
    let list = hq(&["--output-mode=quiet", "job", "list", "--all"])
        .code(0)
        .stdout();
    let mut states: Vec<&str> = list.lines().collect();
    states.sort_unstable();
    assert_eq!(states, ["1 FINISHED", "2 FAILED"]);
    let dag = place.read("run/tasks.dag");
    assert!(dag.contains("TASK 1 -c 2 -m 2 -e 60 /bin/sh "), "{dag}");
    place.write("a b/odd", "#HQ --no-such-option 1\n");
    hq(&["submit", "--directives=file", "odd"]).code(1);
    place.run(["serve", "run", "--stop"]).code(0);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
