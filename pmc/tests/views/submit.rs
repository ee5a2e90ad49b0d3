//! `pmc submit` hands a workflow to a running one.

use std::time::{Duration, Instant};

use crate::log::spawn_executor;
use crate::support::Place;

const TIMEOUT: Duration = Duration::from_secs(60);
const RUN: &str = "TASK first /bin/sh -c 'touch begun; while [ ! -e go ]; do sleep 0.01; done'\n";
const OPTIONS: [&str; 4] = ["--workers", "1", "--per-task-stdio", "--jobstate-log"];

#[test]
fn a_workflow_is_handed_to_a_running_one() {
    let place = Place::new();
    place.write("other/y.dag", "TASK a /bin/echo hello\n");
    let mut child = spawn_executor(&place, RUN, &OPTIONS);
    let begun = Instant::now();
    while !place.path().join("run/begun").exists() {
        assert!(begun.elapsed() < TIMEOUT, "the run does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }

    for weight in ["0", "101", "many"] {
        let refused = place.run(["submit", "--run", "run", "other", "--weight", weight]);
        let stderr = refused.code(2).stderr();
        assert!(
            stderr.contains("a weight is a number from 0.01 to 100"),
            "{stderr}"
        );
    }
    let refused = place.run(["submit", "--run", "run", "run"]);
    let stderr = refused.code(4).stderr();
    assert!(stderr.contains("is that of the run itself"), "{stderr}");

    let handed = place.run(["submit", "other", "run", "--weight", "2.5"]);
    let stdout = handed.code(0).stdout();
    assert!(stdout.contains("other/y.dag runs now with"), "{stdout}");
    assert!(stdout.ends_with(": 1 task, weight 2.5\n"), "{stdout}");
    let status = place.run(["status", "run"]).stdout();
    assert!(status.contains("\n  other                 1     "), "{status}");
    assert_eq!(
        place.run(["status", "--json", "run"]).json()["handed_over"][0]["weight"],
        2.5
    );

    place.write("run/go", "");
    assert!(child.wait().expect("the run").success());
    assert!(place.read("other/a.out.000").starts_with("hello\n"));
    let refused = place.run(["submit", "--run", "run", "other"]);
    refused.code(4);
}
