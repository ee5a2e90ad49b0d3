use std::fs;
use std::io::Write as _;

use super::*;

/// A submit directory.
pub(crate) struct TestRun {
    pub(crate) dir: tempfile::TempDir,
}

impl TestRun {
    pub(crate) fn new(dag: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("w.dag"), dag).unwrap();
        Self { dir }
    }

    pub(crate) fn append(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn open(&self) -> History {
        History::open(RunDir::open(self.dir.path()).unwrap()).unwrap()
    }
}

pub(crate) const DAG: &str = "\
#@ 1 pegasus::transfer null \nTASK stage_in_0 -c 1 t\n\
#@ 2 work A \nTASK a -c 2 -m 100 w\n#@ 3 work B \nTASK b -c 2 -m 100 w\n#@ 4 last C \nTASK c w\n\
EDGE stage_in_0 a\nEDGE stage_in_0 b\nEDGE a c\nEDGE b c\n";

#[test]
fn an_active_run_is_read_step_by_step() {
    let run = TestRun::new(DAG);
    let mut history = run.open();
    assert_eq!(history.phase(), Phase::NotStarted);
    assert_eq!(history.all().get(State::Waiting), 4);
    run.append(
        "jobstate.log",
        "100.0 INTERNAL *** PMC_STARTED ***\n100.5 stage_in_0 SUBMIT 1.0 - - 1\n\
         100.5 stage_in_0 EXECUTE 1.0 - - 1\n",
    );
    run.append(
        "w.dag.resource",
        "100.400000,2,4,1000,n1\n100.500000,1,3,1000,n1\n",
    );
    assert_eq!(history.update().unwrap(), Vec::<u32>::new());
    assert_eq!(history.state(0), State::Running);
    assert_eq!(history.hosts.name(history.attempts[0].host), Some("n1"));
    run.append(
        "jobstate.log",
        "101.0 stage_in_0 JOB_TERMINATED 1.0 - - 1\n101.0 stage_in_0 JOB_SUCCESS 0 - - 1\n\
         101.0 a SUBMIT 2.0 - - 2\n101.0 b SUBMIT 3.0 - - 3\n101.0 a EXECUTE 2.0 - - 2\n\
         109.0 a JOB_TERMINATED 2.0 - - 2\n109.0 a JOB_FAILURE 768 - - 2\n109.0 b EXECUTE 3.0 - - 3\n",
    );
    assert_eq!(history.update().unwrap(), [0, 1]);
    assert!(history.attempts[0].succeeded() && !history.attempts[1].succeeded());
    let states: Vec<_> = (0..4).map(|task| history.state(task)).collect();
    assert_eq!(
        states,
        [State::Done, State::Failed, State::Running, State::Waiting]
    );
    // The DAG is not locked: the executor is gone.
    assert_eq!(history.phase(), Phase::CutOff);
    // A run that ends after the logs were read is not cut off: its end was written first.
    let executor = std::fs::File::options()
        .write(true)
        .open(&history.dir.dag)
        .unwrap();
    monitord_compat::run_lock::lock(&executor).unwrap();
    history.update().unwrap();
    drop(executor);
    assert_eq!(history.phase(), Phase::Running);
    history.update().unwrap();
    assert_eq!(history.phase(), Phase::CutOff);
    run.append(
        "jobstate.log",
        "200.0 INTERNAL *** PMC_STARTED ***\n200.1 a SUBMIT 1.0 - - 1\n200.2 a EXECUTE 1.0 - - 1\n\
         201.0 a JOB_SUCCESS 0 - - 1\n201.0 INTERNAL *** PMC_FINISHED 1 ***\n",
    );
    history.update().unwrap();
    assert_eq!(history.phase(), Phase::Ended(1));
    assert!(history.attempts[2].lost, "the run was killed");
    assert_eq!(history.attempts[2].end, 109_000_000);
    assert_eq!(history.state(2), State::Waiting);
    assert!((history.wall_seconds(0) - 10.0).abs() < 1e-9);
    assert_eq!(
        history
            .by_kind()
            .iter()
            .map(|(kind, tally)| (*kind, tally.total()))
            .collect::<Vec<_>>(),
        [(Kind::Compute, 3), (Kind::StageIn, 1)]
    );
}

#[test]
fn a_sub_workflow_fails_with_its_planner() {
    let run =
        TestRun::new("SUBDAG PLANNED s sub/x.dag DIR sub\nJOB s s.sub\nSCRIPT PRE s /bin/plan\nTASK a w\n");
    let mut history = run.open();
    assert_eq!((history.plan.subdags().count(), history.nested_dir(0)), (1, None));
    fs::create_dir(run.dir.path().join("sub")).unwrap();
    assert!(history.nested_dir(0).unwrap().ends_with("sub"));
    assert_eq!(history.nested_dir(1), None);
    run.append(
        "jobstate.log",
        "100.0 INTERNAL *** PMC_STARTED ***\n100.5 s PRE_SCRIPT_STARTED - - - 1\n\
         101.5 s PRE_SCRIPT_TERMINATED - - - 1\n101.5 s PRE_SCRIPT_FAILURE 256 - - 1\n\
         101.5 a SUBMIT 2.0 - - 2\n101.5 a EXECUTE 2.0 - - 2\n",
    );
    run.append(
        "w.dag.resource",
        "100.400000,2,4,1000,n1\n100.500000,-1,-1,-0,n1\n101.500000,+1,+1,+0,n1\n101.500000,1,3,1000,n1\n",
    );
    assert_eq!(history.update().unwrap(), [0]);
    assert_eq!(history.state(0), State::Failed);
    let attempt = &history.attempts[0];
    assert_eq!(
        (attempt.status, attempt.start, attempt.end),
        (256, 100_500_000, 101_500_000)
    );
    assert_eq!(history.hosts.name(history.attempts[1].host), Some("n1"));
}

#[test]
fn times_of_runs_are_refined() {
    use monitord_compat::dagman_out::{self, Stamp};
    let run = TestRun::new(DAG);
    let day = chrono::NaiveDate::from_ymd_opt(2026, 3, 4).unwrap();
    let at = |second| Stamp::new(day.and_hms_opt(5, 6, second).unwrap());
    let mut log = Vec::new();
    dagman_out::start(&mut log, &at(7), 42, b"w.dag");
    dagman_out::queued(&mut log, &at(7), b"a", 1);
    dagman_out::started(&mut log, &at(7), b"a", 1);
    dagman_out::ended(&mut log, &at(8), b"a", 1, 0);
    dagman_out::finish(&mut log, &at(8), 42, true);
    run.append("w.dag.dagman.out", &String::from_utf8(log).unwrap());
    let second = run.open().runs[0].start / SECOND;
    let line = |micros: i64, free: &str| {
        let time = second * SECOND + micros;
        format!("{}.{:06},{free},n1\n", time / SECOND, time % SECOND)
    };
    let lines = [
        line(700_000, "2,4,1000"),
        line(750_000, "1,4,1000"),
        line(1_250_000, "2,4,1000"),
    ];
    run.append("w.dag.resource", &lines.concat());
    let history = run.open();
    assert_eq!(history.runs[0].start % SECOND, 700_000);
    assert!(
        (history.wall_seconds(0) - 0.55).abs() < 1e-9,
        "{:?}",
        history.runs
    );
    assert_eq!(history.attempts[0].duration(), Some(500_000));
}

/// The killed run is completed with evictions. The next master names the attempt that goes on.
#[test]
fn attempts_that_the_next_master_takes_over_are_not_lost() {
    let first = "1.0 INTERNAL *** PMC_STARTED ***\n1.0 a SUBMIT 1.0 - - 1\n1.0 a EXECUTE 1.0 - - 1\n\
                 1.0 b SUBMIT 2.0 - - 2\n1.0 b EXECUTE 2.0 - - 2\n1.0 a JOB_EVICTED 1.0 - - 1\n\
                 1.0 b JOB_EVICTED 2.0 - - 2\n1.0 INTERNAL *** PMC_FINISHED 1 ***\n";
    let next = "3.0 INTERNAL *** PMC_STARTED ***\n4.0 INTERNAL *** PMC_REASON a 1.0 taken_over ***\n\
                4.0 a SUBMIT 1.0 - - 1\n4.0 a EXECUTE 1.0 - - 1\n\
                5.0 INTERNAL *** PMC_REASON b 7.0 taken_over ***\n";
    let run = TestRun::new(DAG);
    run.append("jobstate.log", &format!("{first}{next}"));
    let history = run.open();
    let found: Vec<_> = (0..history.attempts.len())
        .map(|number| (history.reason(number), history.attempts[number].was_evicted()))
        .collect();
    // A number that is not that of the last attempt says nothing.
    let expected = [
        (Some(Reason::TakenOver), false),
        (Some(Reason::Evicted), true),
        (None, false),
    ];
    assert_eq!(found, expected);
    assert!(!history.attempts[0].failed());
    assert_eq!(history.all().get(State::Running), 1);
}

#[test]
fn rescue_file_and_unknown_names() {
    let run = TestRun::new(DAG);
    run.append("w.dag.rescue", "DONE stage_in_0\nDONE unknown\n");
    run.append("jobstate.log", "1.0 strange EXECUTE 1.0 - - 1\nnonsense\n");
    let mut history = run.open();
    assert_eq!(history.state(0), State::Done);
    assert_eq!((history.plan.len(), history.all().get(State::Running)), (5, 1));
    assert!(!history.is_stale());
    run.append("w.dag.rescue", "DONE a\n");
    history.update().unwrap();
    assert_eq!(history.all().get(State::Done), 2);
    fs::write(run.dir.path().join("jobstate.log"), "").unwrap();
    assert!(history.is_stale());
}

#[test]
fn attempts_that_are_lost_with_their_workers_are_no_failures() {
    let dagman = |events: &[&str]| {
        let line = |event: &&str| format!("01/02/26 10:00:00 {event}\n");
        events.iter().map(line).collect::<String>()
    };
    let jobstate = "100.0 INTERNAL *** PMC_STARTED ***\n100.1 a SUBMIT 1.0 - - 1\n\
        100.2 a EXECUTE 1.0 - - 1\n102.0 a JOB_EVICTED 1.0 - - 1\n102.0 a SUBMIT 2.0 - - 2\n\
        102.1 a EXECUTE 2.0 - - 2\n103.0 a JOB_ABORTED 2.0 - - 2\n103.0 a JOB_FAILURE 256 - - 2\n";
    let log = dagman(&[
        "Parsing w.dag ...",
        "Event: ULOG_SUBMIT for Condor Node a (1.0)",
        "Event: ULOG_EXECUTE for Condor Node a (1.0)",
        "Event: ULOG_JOB_EVICTED for Condor Node a (1.0)",
        "Event: ULOG_SUBMIT for Condor Node a (2.0)",
        "Event: ULOG_EXECUTE for Condor Node a (2.0)",
        "Event: ULOG_JOB_ABORTED for Condor Node a (2.0)",
    ]);
    for (file, text) in [("jobstate.log", jobstate), ("w.dag.dagman.out", log.as_str())] {
        let run = TestRun::new("TASK a x\n");
        run.append(file, text);
        let history = run.open();
        assert_eq!(history.state(0), State::Failed, "{file}");
        let lost: Vec<_> = history
            .attempts
            .iter()
            .map(|attempt| (attempt.was_evicted(), attempt.failed(), attempt.worker_lost))
            .collect();
        assert_eq!(lost, [(true, false, true), (false, true, true)], "{file}");
    }
}
