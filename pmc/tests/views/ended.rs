//! Views of runs that ended before their work was done.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Place, bin};

/// Starts the executor on two tasks, one after the other, that take this long.
fn start(place: &Place, seconds: &str, words: &[&str]) -> Child {
    let dag = format!("TASK a /bin/sleep {seconds}\nTASK b /bin/sleep {seconds}\nEDGE a b\n");
    place.write("run/x.dag", &dag);
    // Only in a submit directory, the executor writes more files than the original.
    place.write("run/braindump.yml", "dag: x.dag\n");
    Command::new(bin().join("pegasus-mpi-cluster"))
        .args(words)
        .args(["--jobstate-log", "--monitord-hack", "run/x.dag"])
        .current_dir(place.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

fn code(mut run: Child) -> Option<i32> {
    run.wait().expect("it ends").code()
}

/// Waits until `pmc status` says this.
fn wait_until(place: &Place, words: &str) -> String {
    let begun = Instant::now();
    loop {
        let text = place.run(["status", "run"]).stdout();
        if text.contains(words) {
            return text;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Lets the run be on another host, as for those who look from a login node.
fn on_another_host(place: &Place) {
    let file = place.path().join("run/x.dag.place");
    let text = std::fs::read_to_string(&file).expect("the run goes on");
    let (_, rest) = text.split_once('\n').expect("a host");
    std::fs::write(&file, format!("elsewhere.invalid\n{rest}")).expect("a file");
}

#[test]
fn a_launcher_that_cannot_be_started_is_in_the_status() {
    let place = Place::new();
    let agents = ["--agents", "h1", "--launch", "/nonexistent/launcher {host}"];
    assert_eq!(code(start(&place, "0", &agents)), Some(1));
    assert!(!place.path().join("run/x.dag.endpoint").exists());
    let error = "Unable to start /nonexistent/launcher: No such file or directory";
    let status = place.run(["status", "run"]).stdout();
    assert!(status.contains(&format!("\n  error    {error}\n")), "{status}");
    let analysis = place.run(["analyzer", "run"]).stdout();
    assert!(
        analysis.starts_with("x ended with an error: 0 of 2 tasks done\n"),
        "{analysis}"
    );
    assert!(
        analysis.contains(&format!("The run ended with an error: {error}")),
        "{analysis}"
    );
    let json = place.run(["status", "--json", "run"]).json();
    assert_eq!(
        (&json["ended"]["why"], &json["ended"]["message"]),
        (&"error".into(), &error.into())
    );

    // The next run is another one.
    assert_eq!(code(start(&place, "0", &[])), Some(0));
    assert!(!place.path().join("run/x.dag.ended").exists());
    let status = place.run(["status", "run"]).stdout();
    assert!(status.starts_with("x succeeded after "), "{status}");
}

#[test]
fn after_a_drain_the_views_say_just_that() {
    let place = Place::new();
    let run = start(&place, "2", &[]);
    wait_until(&place, "  running  transformation");
    place.run(["drain", "run"]).code(0);
    let said = "  end      when the tasks that run have ended";
    wait_until(&place, said);
    on_another_host(&place);
    let status = place.run(["status", "run"]).stdout();
    assert!(status.contains(said), "{status}");
    assert_eq!(code(run), Some(75));
    let status = place.run(["status", "run"]).stdout();
    assert!(status.starts_with("x was drained after "), "{status}");
    assert!(!status.contains("  why "), "{status}");
    let analysis = place.run(["analyzer", "run"]).stdout();
    let note = "The run was asked to start no more tasks, and those that ran have ended. Left for the next run: 1 task.";
    assert!(
        analysis.starts_with("x was drained: 1 of 2 tasks done\n"),
        "{analysis}"
    );
    assert!(
        analysis.contains(note) && !analysis.contains("failed"),
        "{analysis}"
    );
}

#[test]
fn after_the_wall_time_the_views_say_just_that_and_the_estimate_knows_it() {
    let place = Place::new();
    let run = start(&place, "60", &["--max-wall-time", "0.05"]);
    let limit = "  limit    the wall time of the run is over in ";
    let during = wait_until(&place, limit);
    assert!(during.starts_with("x is running "), "{during}");
    on_another_host(&place);
    let status = place.run(["status", "run"]).stdout();
    assert!(status.contains(limit), "{status}");
    assert_eq!(code(run), Some(1));
    let status = place.run(["status", "run"]).stdout();
    assert!(status.starts_with("x reached its wall time after "), "{status}");
    let analysis = place.run(["analyzer", "run"]).stdout();
    assert!(
        analysis.starts_with("x reached its wall time: 0 of 2 tasks done\n"),
        "{analysis}"
    );
    let note = "The run has reached its wall time (--max-wall-time) and ended its tasks. Left for the next run: 2 tasks.";
    assert!(
        analysis.contains(note) && analysis.contains("cut off"),
        "{analysis}"
    );
    assert!(!analysis.contains("failed"), "{analysis}");
    let json = place.run(["analyzer", "--json", "run"]).json();
    assert_eq!(json["ended"]["why"], "wall_time", "{json}");
}

/// "reached its wall time and ended its tasks" stood there.
#[test]
fn a_run_that_has_too_little_time_for_what_is_left_says_so() {
    let place = Place::new();
    place.write("run/x.dag", "TASK a -e 3000 /bin/true\n");
    place.write("run/braindump.yml", "dag: x.dag\n");
    let output = Command::new(bin().join("pegasus-mpi-cluster"))
        .args(["--jobstate-log", "--max-wall-time", "2", "run/x.dag"])
        .current_dir(place.path())
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(
        log.contains("What is left would not end before the time is over"),
        "{log}"
    );
    assert!(!log.contains("[fatal]") && !log.contains("ABORT"), "{log}");
    let status = place.run(["status", "run"]).stdout();
    assert!(
        status.starts_with("x had too little time for what is left after "),
        "{status}"
    );
    let analysis = place.run(["analyzer", "run"]).stdout();
    let note = "what is left was expected to take longer than the time that was left";
    assert!(
        analysis.contains(note) && !analysis.contains("ended its tasks"),
        "{analysis}"
    );
}

/// Waits for these bytes in a file.
fn wait_for(place: &Place, file: &str, words: &str) {
    let begun = Instant::now();
    while !std::fs::read_to_string(place.path().join(file)).is_ok_and(|text| text.contains(words)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{file}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The executor as the original is started: without a log, and outside of a submit directory.
#[test]
fn a_run_by_hand_without_logs_says_what_is_missing() {
    let place = Place::new();
    place.write(
        "run/x.dag",
        "TASK a /bin/true\nTASK b /bin/sh -c 'while [ ! -e run/go ]; do sleep 0.05; done; exit 3'\nEDGE a b\n",
    );
    let start = || {
        Command::new(bin().join("pegasus-mpi-cluster"))
            .arg("run/x.dag")
            .current_dir(place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts")
    };
    let status = || place.run(["status", "run"]).stdout();
    assert!(status().starts_with("x has not started\n"), "{}", status());
    place.run(["status", "-q", "run"]).code(5);
    let run = start();
    wait_for(&place, "run/x.dag.rescue", "DONE a");
    let missing =
        "  log      none: only tasks that are done are known. The executor writes it with --jobstate-log\n";
    let during = status();
    assert!(during.starts_with("x is running"), "{during}");
    assert!(during.contains(missing) && !during.contains("  end "), "{during}");
    place.run(["status", "-q", "run"]).code(5);
    place.write("run/go", "");
    assert_eq!(code(run), Some(1));
    let after = status();
    assert!(after.starts_with("x has left no log\n"), "{after}");
    assert!(after.contains(missing), "{after}");
    place.run(["status", "-q", "--watch", "run"]).code(1);
    let analysis = place.run(["analyzer", "run"]);
    analysis.code(1);
    let note = "started without --jobstate-log, or the log was removed.";
    assert!(analysis.stdout().contains(note), "{}", analysis.stdout());

    // In a submit directory, it says how it has ended.
    place.write("run/braindump.yml", "dag: x.dag\n");
    assert_eq!(code(start()), Some(1));
    let after = status();
    assert!(after.starts_with("x failed after "), "{after}");
    assert!(after.contains(missing), "{after}");
    place.run(["status", "-q", "run"]).code(1);
}
