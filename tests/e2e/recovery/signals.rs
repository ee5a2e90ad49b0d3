//! Tasks of MPI ranks that save themselves when they are asked to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::support::command::Program;
use crate::support::programs::Build;

/// A task that is asked to save itself ends with 85; the other one waits for that.
const TASKS: &str = "#!/bin/sh
trap 'echo asked >>asked; exit 85' USR1
[ ! -e asked ] || exit 0
touch begun.$1
while [ $1 = a ] || [ ! -e asked ]; do sleep 0.1; done
";

const DAG: &str = "TASK a --checkpoint-signal USR1 --checkpoint-exit 85 ./task a\nTASK b ./task b\n";

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn a_drain_asks_tasks_of_ranks_once() {
    for build in [Build::OpenMpi, Build::Mpich] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        fs::write(top.join("x.dag"), DAG).expect("a DAG");
        fs::write(top.join("task"), TASKS).expect("a task");
        fs::set_permissions(top.join("task"), fs::Permissions::from_mode(0o755)).expect("a mode");
        let executor = || {
            let logs = ["--tries", "1", "--per-task-stdio", "--jobstate-log", "x.dag"];
            build.executor_with(2).args(logs).in_directory(top)
        };
        let run = executor().start();
        let begun = Instant::now();
        while !(top.join("begun.a").exists() && top.join("begun.b").exists()) {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "{build:?}: no task begins"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Program::new(build.program("pmc"))
            .args(["drain", "x.dag"])
            .in_directory(top)
            .run()
            .ok();
        let result = run.wait();
        assert_eq!(result.code(), 75, "{build:?}: {}", result.details());
        let read = |name: &str| fs::read_to_string(top.join(name)).expect("a file");
        assert_eq!(read("asked"), "asked\n", "{build:?}");
        let log = read("jobstate.log");
        assert!(
            log.contains(" a JOB_EVICTED ") && !log.contains("FAILURE"),
            "{build:?}: {log}"
        );
        executor().run().ok();
        assert_eq!(read("x.dag.rescue").matches("DONE").count(), 2, "{build:?}");
    }
}
