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

/// A run whose second task is a sub-workflow with two tasks, the last of which still runs if `is_open`.
fn around_sub_workflow(is_open: bool) -> TestRun {
    let run = TestRun::new(
        "TASK a -c 1 w\nSUBDAG EXTERNAL s sub/x.dag DIR sub\nTASK z -c 1 w\nEDGE a s\nEDGE s z\n",
    );
    fs::create_dir(run.dir.path().join("sub")).unwrap();
    run.append("sub/x.dag", "TASK x1 -c 1 w\nTASK x2 -c 1 v\nEDGE x1 x2\n");
    let attempt = |task: &str, number: u32, start: u32, end: u32| {
        format!(
            "{start}.0 {task} SUBMIT {number}.0 - - {number}\n{start}.0 {task} EXECUTE {number}.0 - - {number}\n\
             {end}.0 {task} JOB_SUCCESS 0 - - {number}\n"
        )
    };
    let started = |number: u32, task: &str, time: u32| {
        format!(
            "{time}.0 {task} SUBMIT {number}.0 - - {number}\n{time}.0 {task} EXECUTE {number}.0 - - {number}\n"
        )
    };
    run.append(
        "jobstate.log",
        &format!(
            "100.0 INTERNAL *** PMC_STARTED ***\n{}",
            attempt("a", 1, 100, 101)
        ),
    );
    run.append(
        "w.dag.resource",
        "100.000000,2,2,1000,n1\n100.000000,1,1,1000,n1\n101.000000,2,2,1000,n1\n102.000000,+1,+0,+0,n1\n\
         102.000000,2,2,1000,n1\n",
    );
    run.append(
        "sub/jobstate.log",
        &format!(
            "102.0 INTERNAL *** PMC_STARTED ***\n{}",
            attempt("x1", 1, 102, 103)
        ),
    );
    run.append(
        "sub/x.dag.resource",
        "102.000000,2,2,1000,n1\n102.000000,1,1,1000,n1\n103.000000,2,2,1000,n1\n103.000000,1,1,1000,n1\n",
    );
    if is_open {
        run.append("jobstate.log", &started(2, "s", 102));
        run.append("sub/jobstate.log", &started(2, "x2", 103));
        return run;
    }
    run.append(
        "jobstate.log",
        &format!(
            "{}{}107.0 INTERNAL *** PMC_FINISHED 0 ***\n",
            attempt("s", 2, 102, 105),
            attempt("z", 3, 105, 107)
        ),
    );
    run.append(
        "w.dag.resource",
        "105.000000,3,2,1000,n1\n105.000000,-1,-0,-0,n1\n105.000000,1,1,1000,n1\n107.000000,2,2,1000,n1\n",
    );
    run.append(
        "sub/jobstate.log",
        &format!(
            "{}105.0 INTERNAL *** PMC_FINISHED 0 ***\n",
            attempt("x2", 2, 103, 105)
        ),
    );
    run.append("sub/x.dag.resource", "105.000000,2,2,1000,n1\n");
    run
}

#[test]
fn tasks_of_sub_workflows_are_tasks_of_the_run() {
    let now = 200 * SECOND;
    let history = around_sub_workflow(false).open().with_nested(now);
    let all = history.all();
    assert_eq!((all.total(), all.get(State::Done)), (5, 5));
    let mut names: Vec<_> = history
        .attempts
        .iter()
        .map(|attempt| history.plan.text_name(attempt.task))
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["a", "s/x1", "s/x2", "z"],
        "the sub-workflow takes no slot"
    );
    assert!(history.attempts.iter().all(|attempt| attempt.succeeded()));
    let timeline = crate::timeline::Timeline::new(&history, now);
    let chain: Vec<_> = timeline
        .chain
        .iter()
        .map(|link| (history.plan.text_name(link.task), link.waited))
        .collect();
    let expected = [("a", 0.0), ("s/x1", 1.0), ("s/x2", 0.0), ("z", 0.0)];
    assert_eq!(chain, expected.map(|(name, waited)| (name.to_owned(), waited)));
    assert_eq!(timeline.rows.len(), 1, "one slot is enough");
    let hosts = history.use_of_hosts(now);
    let host = &hosts[0];
    assert_eq!(hosts.len(), 1);
    assert_eq!((host.started, host.capacity.slots), (4, 2));
    assert_eq!((host.slot_seconds, host.slot_seconds_there), (6.0, 14.0));
}

#[test]
fn a_sub_workflow_that_runs_takes_no_slot() {
    let run = around_sub_workflow(true);
    // The executor still has the DAGs.
    let locks: Vec<_> = ["w.dag", "sub/x.dag"]
        .iter()
        .map(|name| {
            let file = fs::File::options()
                .write(true)
                .open(run.dir.path().join(name))
                .unwrap();
            monitord_compat::run_lock::lock(&file).unwrap();
            file
        })
        .collect();
    let now = 110 * SECOND;
    let history = run.open().with_nested(now);
    drop(locks);
    assert_eq!(
        history.all().get(State::Running),
        2,
        "the sub-workflow and its task"
    );
    let hosts = history.use_of_hosts(now);
    let host = &hosts[0];
    assert_eq!(hosts.len(), 1);
    assert_eq!((host.started, host.capacity.slots), (3, 2));
    assert_eq!((host.slot_seconds, host.slot_seconds_there), (9.0, 20.0));
}

#[test]
fn a_directory_belongs_to_one_sub_workflow() {
    let run = TestRun::new("TASK a w\nSUBDAG EXTERNAL s sub/x.dag\nSUBDAG EXTERNAL t sub/x.dag\n");
    fs::create_dir(run.dir.path().join("sub")).unwrap();
    // Each names the other one and itself.
    run.append(
        "sub/x.dag",
        "TASK b w\nSUBDAG EXTERNAL u ../w.dag\nSUBDAG EXTERNAL v x.dag\n",
    );
    let history = run.open().with_nested(0);
    let names: Vec<_> = (0..history.plan.len())
        .map(|task| history.plan.text_name(task as TaskNumber))
        .collect();
    assert_eq!(
        names,
        ["a", "s", "t", "s/b", "s/u", "s/v", "s/u/a", "s/u/s", "s/u/t"]
    );
}

#[test]
fn a_directory_of_another_user_is_no_sub_workflow() {
    let run = around_sub_workflow(false);
    let history = run.open();
    assert!(history.nested(1, &mut Seen::default()).is_some());
    // Only root can give a directory away.
    if std::os::unix::fs::chown(run.dir.path().join("sub"), Some(65534), None).is_ok() {
        assert!(history.nested(1, &mut Seen::default()).is_none());
    }
}
