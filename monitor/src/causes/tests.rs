use super::*;
use crate::history::tests::{DAG, TestRun};

fn record(raw: i32, rss: u64, stderr: &str) -> String {
    format!(
        "- invocation: True\n  transformation: \"work\"\n  hostname: n1\n  cwd: /scratch\n  mainjob:\n    usage:\n      \
         maxrss: {rss}\n    status:\n      raw: {raw}\n    executable:\n      file_name: /opt/work\n  files:\n    \
         stderr:\n      data: |\n        {stderr}\n"
    )
}

fn failed_run(ends: &str) -> TestRun {
    let run = TestRun::new(DAG);
    run.append(
        "jobstate.log",
        &format!(
            "100 INTERNAL *** PMC_STARTED ***\n100 stage_in_0 EXECUTE 1.0 - - 1\n\
         101 stage_in_0 JOB_SUCCESS 0 - - 1\n\
             101 a EXECUTE 2.0 - - 2\n101 b EXECUTE 3.0 - - 3\n{ends}"
        ),
    );
    run
}

#[test]
fn equal_failures_are_one_cause() {
    let run = failed_run(
        "103 a JOB_FAILURE 35072 - - 2\n104 b JOB_FAILURE 35072 - - 3\n\
         105 INTERNAL *** PMC_FINISHED 1 ***\n",
    );
    run.append("a.out.000", &record(9, 95 * 1024, "row 12: cannot go on"));
    run.append("b.out.000", &record(9, 40 * 1024, "row 3456: cannot go on"));
    let found = diagnose(&run.open());
    assert_eq!(found.causes.len(), 1, "{:?}", found.causes);
    let cause = &found.causes[0];
    assert_eq!(
        (cause.tasks.len(), cause.blocked, cause.ending),
        (2, 1, Ending::Signal(9))
    );
    assert_eq!(cause.signature, "row #: cannot go on");
    assert_eq!(
        cause.reasons,
        ["out of memory: it used 95 MiB and had requested 100 MiB"]
    );
    assert_eq!(cause.hosts["n1"], 2);
    assert_eq!(cause.example.directory.as_deref(), Some("/scratch"));
    assert_eq!(found.never_ran[&Kind::Compute], 1);
    assert_eq!((found.left, found.never_ran_names[0].as_str()), (0, "c"));
}

#[test]
fn the_cause_that_blocks_most_comes_first() {
    let run = TestRun::new("TASK small x\nTASK big x\nTASK c1 x\nTASK c2 x\nEDGE big c1\nEDGE c1 c2\n");
    run.append(
        "jobstate.log",
        "100 INTERNAL *** PMC_STARTED ***\n100 small EXECUTE 1.0 - - 1\n100 big EXECUTE 2.0 - - 2\n\
         101 small JOB_FAILURE 32512 - - 1\n102 big JOB_FAILURE 256 - - 2\n\
         105 INTERNAL *** PMC_FINISHED 1 ***\n",
    );
    let found = diagnose(&run.open());
    assert_eq!(
        found.causes.iter().map(|cause| cause.blocked).collect::<Vec<_>>(),
        [2, 0]
    );
    assert_eq!(found.causes[1].reasons, ["program not found"]);
    assert_eq!(found.causes[0].example.command, ["x"]);
}

#[test]
fn a_run_without_logs_is_known_from_its_rescue_file() {
    let run = TestRun::new(DAG);
    run.append("w.dag.rescue", "\nDONE stage_in_0\nDONE a\nDONE b");
    let history = run.open();
    assert_eq!(
        history.all().get(State::Done),
        3,
        "the last record has no line feed"
    );
    let found = diagnose(&history);
    assert!(
        found.remarks[0].contains("started without --jobstate-log"),
        "{:?}",
        found.remarks
    );
}

#[test]
fn cancelled_tasks_come_after_failures() {
    let run = TestRun::new("TASK small x\nTASK big x\nTASK c1 x\nTASK other x\nEDGE big c1\n");
    let log = |end: &str| {
        format!(
            "100 INTERNAL *** PMC_STARTED ***\n100 small EXECUTE 1.0 - - 1\n100 big EXECUTE 2.0 - - 2\n\
             101 small JOB_FAILURE 256 - - 1\n102 big JOB_FAILURE 15 - - 2\n\
             {end}103 INTERNAL *** PMC_FINISHED 1 ***\n"
        )
    };
    run.append("jobstate.log", &log(""));
    let found = diagnose(&run.open());
    let causes: Vec<_> = found
        .causes
        .iter()
        .map(|cause| (cause.ending, cause.cancelled))
        .collect();
    assert_eq!(causes, [(Ending::Exit(1), false), (Ending::Signal(15), true)]);

    // All that could run has run, so nothing stopped the run.
    let run = TestRun::new("TASK small x\nTASK big x\nTASK c1 x\nTASK other x\nEDGE big c1\n");
    run.append(
        "jobstate.log",
        &log("102 other EXECUTE 3.0 - - 3\n103 other JOB_SUCCESS 0 - - 3\n"),
    );
    let found = diagnose(&run.open());
    assert_eq!(found.causes[0].ending, Ending::Signal(15));
    assert!(!found.causes[0].cancelled);
}

#[test]
fn environment_and_standard_input_are_part_of_a_failure() {
    let run = TestRun::new(
        "TASK a -c 1 /usr/bin/env A=1 \"B=2 3\" /bin/sh /s/w-0.secrets kickstart -n x=y /opt/work\n",
    );
    run.append(
        "jobstate.log",
        "100 INTERNAL *** PMC_STARTED ***\n100 a EXECUTE 1.0 - - 1\n101 a JOB_FAILURE 256 - - 1\n\
         105 INTERNAL *** PMC_FINISHED 1 ***\n",
    );
    let text = record(256, 1, "no");
    let text = text.replace(
        "    stderr:\n",
        "    stdin:\n      file_name: /scratch/in\n    stderr:\n",
    );
    run.append("a.out.000", &text);
    let found = diagnose(&run.open());
    let example = &found.causes[0].example;
    assert_eq!(example.environment, ["A=1", "B=2 3"]);
    assert_eq!(example.secrets.as_deref(), Some("/s/w-0.secrets"));
    assert_eq!(example.stdin.as_deref(), Some("/scratch/in"));
    assert_eq!(example.command, ["/opt/work"]);
}

#[test]
fn a_failed_run_without_failed_tasks() {
    let found = diagnose(&failed_run("105 INTERNAL *** PMC_FINISHED 1 ***\n").open());
    assert_eq!((found.causes.len(), found.lost.len(), found.left), (0, 2, 3));
    let found = diagnose(&failed_run("").open());
    assert_eq!(found.phase, Phase::CutOff);
    assert!(found.remarks[0].contains("has no end"), "{:?}", found.remarks);
    let run = TestRun::new(DAG);
    run.append(
        "jobstate.log",
        "100 INTERNAL *** PMC_STARTED ***\n105 INTERNAL *** PMC_FINISHED 1 ***\n",
    );
    let found = diagnose(&run.open());
    assert!(found.remarks[0].contains("no task failed"), "{:?}", found.remarks);
}

#[test]
fn many_failures_are_sampled() {
    let read = |all: usize| (0..all).filter(|at| is_sampled(*at, all)).count();
    assert_eq!(read(2000), 2000);
    for all in [2001, 5000, 1_000_000] {
        assert!(
            (1000..=2001).contains(&read(all)) || all == 2001,
            "{all}: {}",
            read(all)
        );
    }
}
