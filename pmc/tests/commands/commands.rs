//! `pmc run` with files of commands, with a command and its arguments, and with DAGs of pegasus-mpi-cluster.

use crate::support::Place;

#[test]
fn a_file_of_commands_runs_in_its_directory() {
    let place = Place::new();
    place.write(
        "lists/commands.txt",
        "#!/bin/sh\n# first\nA='x  y'; echo \"$A\" | tee one; pwd\n\n#@ -c 1 label=two tries=2\n\
         test -e tried && echo again > two || { touch tried; exit 3; }\n#@ after=3,two\ncat one two\nfalse\n",
    );
    let finished = place.run(["run", "lists/commands.txt"]);
    finished.code(1);
    assert!(
        finished.stdout().contains("3 of 4 tasks done"),
        "{}",
        finished.stdout()
    );
    assert_eq!(place.read("lists/one"), "x  y\n");
    // By the line, by the label, by the name.
    let log = |task: &str| {
        let finished = place.run(["log", task, "pmc-runs/commands/latest"]);
        finished.code(0);
        finished.stdout()
    };
    assert_eq!(log("3"), format!("x  y\n{}/lists\n", place.path().display()));
    assert_eq!(log("8"), "x  y\nagain\n");
    assert_eq!(log("cat_8"), "x  y\nagain\n");
    assert!(
        place
            .path()
            .join("pmc-runs/commands/latest/submit/packed-output")
            .is_dir()
    );
    // What has failed runs again, what is done does not.
    place.write("lists/tried", "");
    let dag = place.read("pmc-runs/commands/latest/submit/commands-0.dag");
    assert!(!dag.contains("create_dir") && !dag.contains("kickstart"), "{dag}");
    let again = place.run(["resume", "pmc-runs/commands/latest"]);
    again.code(1);
    assert!(again.stdout().contains("3 of 4 tasks done"), "{}", again.stdout());
}

#[test]
fn a_command_runs_for_each_argument() {
    let place = Place::new();
    place.write("list", "b c\nd\n");
    place
        .run(["run", "--", "echo {} {#} > {1/.}.out", "::::", "list"])
        .code(0);
    assert_eq!(place.read("b c.out"), "b c 1\n");
    assert_eq!(place.read("d.out"), "d 2\n");
    assert_eq!(
        place
            .read("pmc-runs/echo/latest/commands/echo.txt")
            .lines()
            .count(),
        2
    );
    let shown = place.run(["run", "--dry-run", "--", "echo", ":::", "a", "b"]);
    shown.code(0);
    assert!(shown.stdout().contains("2 tasks"), "{}", shown.stdout());
    let refused = place.run(["run", "--", "echo", ":::"]);
    refused.code(3);
    assert!(refused.stderr().contains("no argument"), "{}", refused.stderr());
    // What is refused leaves no run.
    assert!(!place.path().join("pmc-runs/echo/run0002").exists());
}

#[test]
fn options_that_are_wrong_leave_no_run() {
    let place = Place::new();
    place.write("commands.txt", "echo a\n#@ -c many\necho b\n#@ after=7\necho c\n");
    let refused = place.run(["run", "commands.txt"]);
    refused.code(3);
    let text = refused.stderr();
    assert!(text.contains("commands.txt:2: Invalid CPU requirement"), "{text}");
    assert!(
        text.contains("commands.txt:4: after=7: line 7 has no command"),
        "{text}"
    );
    assert!(!place.path().join("pmc-runs/commands").exists());
}

#[test]
fn a_dag_of_the_executor_is_a_workflow_too() {
    let place = Place::new();
    place.write(
        "w.dag",
        "TASK a -c 1 /bin/sh -c \"pwd > a.out\"\nTASK b -t 2 --abort-on 9=4 /bin/cat a.out\nEDGE a b\n",
    );
    let finished = place.run(["run", "w.dag"]);
    finished.code(0);
    assert!(
        finished.stdout().contains("2 of 2 tasks done"),
        "{}",
        finished.stdout()
    );
    assert_eq!(place.read("a.out"), format!("{}\n", place.path().display()));
    let dag = place.read("pmc-runs/w/latest/submit/w-0.dag");
    assert!(dag.contains("--abort-on 9=4"), "{dag}");
}

#[test]
fn a_job_file_of_hyperqueue_runs() {
    let place = Place::new();
    place.write(
        "job.toml",
        "name = \"words\"\n[[task]]\nid = 4\ncommand = [\"cat\"]\nstdin = \"four\"\nstdout = \"out/%{TASK_ID}\"\n\
         [[array]]\nids = \"7-8\"\nentries = [\"a b\", \"c\"]\ncommand = [\"sh\", \"-c\", \"echo $HQ_TASK_ID $HQ_ENTRY\"]\n\
         [[task]]\nid = 9\ndeps = [4]\ntask_dir = true\ncommand = [\"sh\", \"-c\", \"cat out/4; touch $HQ_TASK_DIR/x\"]\n",
    );
    place.run(["run", "job.toml"]).code(0);
    assert_eq!(place.read("out/4"), "four");
    let log = |task: &str| place.run(["log", task, "pmc-runs/words/latest"]).stdout();
    assert_eq!(
        (log("7"), log("8"), log("9")),
        ("7 a b\n".into(), "8 c\n".into(), "four".into())
    );
}
