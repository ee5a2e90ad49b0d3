//! Runs as calls of the loader, and the rows that they make.

mod end;

use std::fmt::Write as _;
use std::fs;

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::*;
use crate::outputs;
use crate::rows::{JobRow, WorkflowRow};
use crate::store::{Purpose, Sqlite};

/// 2026-01-01T00:00:00Z.
const MIDNIGHT: i64 = 1_767_225_600;

const UUID: &str = "5d0b1c52-0000-4000-8000-0000000000aa";

const STATES: &str = "SELECT job_submit_seq, state, timestamp, jobstate_submit_seq FROM jobstate
    JOIN job_instance USING (job_instance_id) ORDER BY 1, 4, 2";
const ATTEMPTS: &str = "SELECT exec_job_id, job_submit_seq, stdout_file, local_duration, i.exitcode
    FROM job_instance i JOIN job USING (job_id) ORDER BY 2";
const RUNS: &str = "SELECT state, timestamp, restart_count, status FROM workflowstate ORDER BY timestamp";

/// A loader with a database in a directory.
struct Load {
    dir: tempfile::TempDir,
    loader: Option<Loader>,
    notices: Vec<String>,
}

impl Load {
    /// Plans these jobs.
    fn new(jobs: &[&str]) -> Self {
        Self::planned(jobs, true, |_| {})
    }

    fn planned(jobs: &[&str], keep_output: bool, plan: impl FnOnce(&dyn Store)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Sqlite::create(&dir.path().join("db"), Purpose::Live, MIDNIGHT).unwrap();
        let row = WorkflowRow {
            wf_uuid: UUID.to_owned(),
            ..WorkflowRow::default()
        };
        store.insert_workflow(&row).unwrap();
        for job in jobs {
            let submit_file = format!("00/{job}.sub");
            let row = JobRow {
                exec_job_id: job,
                submit_file: &submit_file,
                type_desc: "compute",
                executable: "/bin/prog",
                argv: Some("-R there /bin/app"),
                task_count: 1,
                ..JobRow::default()
            };
            store.insert_job(&row).unwrap();
        }
        plan(&store);
        store.finish_plan().unwrap();
        store.commit(Position::default()).unwrap();
        let mut load = Self {
            dir,
            loader: None,
            notices: Vec::new(),
        };
        load.open(Box::new(store), keep_output, None);
        load
    }

    fn open(&mut self, store: Box<dyn Store>, keep_output: bool, log_len: Option<u64>) {
        let path = self.dir.path().join("jobstate.log");
        let log = StateLog::open(&path, log_len).unwrap();
        let workflow = Workflow {
            dir: self.dir.path().to_owned(),
            submit_dir: Some("/submit".to_owned()),
            user: Some("planner".to_owned()),
            keep_output,
        };
        self.loader = Some(Loader::new(store, log, workflow).unwrap());
    }

    /// Commits, and continues with another loader, as after a kill.
    fn restart(&mut self) {
        self.commit();
        self.loader = None;
        let (store, position) = Sqlite::open(&self.dir.path().join("db"), UUID).unwrap().unwrap();
        self.open(Box::new(store), true, Some(position.jobstate_bytes));
    }

    fn loader(&mut self) -> &mut Loader {
        self.loader.as_mut().unwrap()
    }

    fn call(&mut self, act: impl FnOnce(&mut Loader, &mut dyn FnMut(Notice)) -> Result<(), StoreError>) {
        let notices = &mut self.notices;
        let mut notice = |notice: Notice| notices.push(notice.to_string());
        act(self.loader.as_mut().unwrap(), &mut notice).unwrap();
    }

    fn start(&mut self, second: i64) {
        self.call(|loader, notice| loader.start(MIDNIGHT + second, "17", notice));
    }

    fn finish(&mut self, second: i64, status: i32) {
        self.call(|loader, notice| loader.finish(MIDNIGHT + second, status, notice));
    }

    fn submitted(&mut self, second: i64, job: &str, id: &str) {
        self.call(|loader, notice| loader.submitted(MIDNIGHT + second, job, id, notice));
    }

    fn state(&mut self, second: i64, job: &str, state: &str, id: &str) {
        self.call(|loader, notice| loader.state(MIDNIGHT + second, job, state, id, notice));
    }

    fn ended(&mut self, second: i64, job: &str, id: &str, status: i32) {
        self.call(|loader, notice| loader.ended(MIDNIGHT + second, job, id, status, notice));
    }

    /// A whole attempt that is submitted at this second, begins one later and ends three later.
    fn attempt(&mut self, second: i64, job: &str, id: &str, status: i32) {
        self.submitted(second, job, id);
        self.state(second + 1, job, "EXECUTE", id);
        self.state(second + 4, job, "JOB_TERMINATED", id);
        self.ended(second + 4, job, id, status);
    }

    /// Writes the output files of an attempt with the record of the executor.
    fn output(&self, job: &str, number: u32, status: i32, second: i64, text: &str) {
        let record = format!(
            "{text}[cluster-task id=1, name={job}, start=\"2026-01-01T00:00:{second:02}.000+00:00\", \
             duration=3.000, status={status}, app=\"x\", hostname=\"node1\", slot=1, cpus=1, memory=0]\n"
        );
        fs::write(self.dir.path().join(outputs::name(job, "out", number)), record).unwrap();
        fs::write(self.dir.path().join(outputs::name(job, "err", number)), "").unwrap();
    }

    fn commit(&mut self) {
        self.loader().commit(Position::default()).unwrap();
    }

    /// Commits, and returns the rows of a query with `|` between the columns. Times count from midnight.
    fn rows(&mut self, sql: &str) -> Vec<String> {
        self.commit();
        let connection = Connection::open(self.dir.path().join("db")).unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query(()).unwrap();
        let mut lines = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            let mut line = String::new();
            for column in 0..columns {
                if column > 0 {
                    line.push('|');
                }
                match row.get_ref(column).unwrap() {
                    ValueRef::Null => line.push('-'),
                    ValueRef::Integer(value) if value >= MIDNIGHT => _ = write!(line, "{}", value - MIDNIGHT),
                    ValueRef::Integer(value) => _ = write!(line, "{value}"),
                    ValueRef::Real(value) if value >= MIDNIGHT as f64 => {
                        _ = write!(line, "{:.3}", value - MIDNIGHT as f64);
                    }
                    ValueRef::Real(value) => _ = write!(line, "{value}"),
                    ValueRef::Text(text) | ValueRef::Blob(text) => {
                        line.push_str(std::str::from_utf8(text).unwrap());
                    }
                }
            }
            lines.push(line);
        }
        lines
    }

    fn log(&mut self) -> String {
        self.commit();
        let text = fs::read_to_string(self.dir.path().join("jobstate.log")).unwrap();
        text.replace(&MIDNIGHT.to_string()[..7], "T")
    }
}

const OUTCOME: &str = "SELECT state FROM jobstate JOIN job_instance USING (job_instance_id)
    WHERE state IN ('JOB_SUCCESS', 'JOB_FAILURE') ORDER BY job_submit_seq";

#[test]
fn an_attempt_has_these_rows() {
    let mut load = Load::new(&["a"]);
    assert!(!load.loader().was_started() && load.loader().starts() == 0);
    load.output("a", 0, 0, 2, "");
    load.start(0);
    assert!(load.loader().was_started() && load.loader().is_running());
    load.attempt(1, "a", "1.0", 0);
    load.finish(9, 0);
    assert_eq!(load.notices, [""; 0]);
    assert_eq!(
        load.rows(STATES),
        [
            "1|SUBMIT|1|1",
            "1|EXECUTE|2|2",
            "1|JOB_TERMINATED|5|3",
            "1|JOB_SUCCESS|5|4"
        ]
    );
    assert_eq!(load.rows(ATTEMPTS), ["a|1|a.out.000|3|0"]);
    assert_eq!(
        load.rows("SELECT i.site, user, work_dir, stderr_file, hostname FROM job_instance i JOIN host USING (host_id)"),
        ["there|planner|/submit|a.err.000|node1"]
    );
    assert_eq!(
        load.rows(RUNS),
        ["WORKFLOW_STARTED|0|0|-", "WORKFLOW_TERMINATED|9|0|0"]
    );
    assert_eq!(
        load.log(),
        "T600 INTERNAL *** DAGMAN_STARTED 17 ***\nT601 a SUBMIT 1.0 - - 1\nT602 a EXECUTE 1.0 - - 1\n\
         T605 a JOB_TERMINATED 1.0 - - 1\nT605 a JOB_SUCCESS 0 there - 1\nT609 INTERNAL *** DAGMAN_FINISHED 0 ***\n"
    );
    let loader = load.loader();
    assert_eq!(
        (loader.jobs_ended(), loader.last_sequence(), loader.starts()),
        (1, 1, 1)
    );
    assert_eq!((loader.is_running(), loader.states().len()), (false, 2));
}

#[test]
fn a_failed_attempt_and_its_retry_have_files_of_their_own() {
    let mut load = Load::new(&["a"]);
    load.output("a", 0, 256, 2, "");
    load.output("a", 1, 0, 7, "");
    load.start(0);
    load.attempt(1, "a", "1.0", 256);
    load.attempt(6, "a", "2.0", 0);
    assert_eq!(load.rows(ATTEMPTS), ["a|1|a.out.000|3|256", "a|2|a.out.001|3|0"]);
    assert_eq!(load.rows(OUTCOME), ["JOB_FAILURE", "JOB_SUCCESS"]);
    assert!(load.log().contains(" a JOB_FAILURE 256 there - 1\n"));
    assert_eq!(load.loader().jobs_ended(), 2);
}

#[test]
fn attempts_that_never_ended_had_files_too() {
    let mut load = Load::new(&["a"]);
    load.start(0);
    for (number, second) in [(1, 1), (2, 11), (3, 21)] {
        let id = format!("{number}.0");
        load.submitted(second, "a", &id);
        load.state(second + 1, "a", "EXECUTE", &id);
    }
    load.output("a", 2, 0, 22, "");
    load.ended(25, "a", "3.0", 0);
    load.output("a", 3, 0, 32, "");
    load.attempt(31, "a", "4.0", 0);
    assert_eq!(
        load.rows(ATTEMPTS),
        ["a|1|-|-|-", "a|2|-|-|-", "a|3|a.out.002|3|0", "a|4|a.out.003|3|0"]
    );
}

#[test]
fn the_same_submission_counts_once_and_another_one_begins_an_attempt() {
    let mut load = Load::new(&["a"]);
    load.start(0);
    load.submitted(1, "a", "1.0");
    load.submitted(2, "a", "1.0");
    assert_eq!(load.loader().last_sequence(), 1);
    assert_eq!(load.rows(ATTEMPTS), [""; 0], "it has not begun");
    load.submitted(3, "a", "2.0");
    assert_eq!(load.rows(STATES), ["1|SUBMIT|1|1"], "the first one never begins");
    load.state(4, "a", "EXECUTE", "2.0");
    load.submitted(5, "a", "2.0");
    load.submitted(6, "a", "3.0");
    load.state(7, "a", "EXECUTE", "3.0");
    assert_eq!(
        load.rows(STATES),
        [
            "1|SUBMIT|1|1",
            "2|SUBMIT|3|1",
            "2|EXECUTE|4|2",
            "3|SUBMIT|6|1",
            "3|EXECUTE|7|2"
        ]
    );
    assert_eq!(load.loader().last_sequence(), 3);
}

#[test]
fn queued_attempts_are_inserted_when_the_run_ends_or_begins_again() {
    let mut load = Load::new(&["a", "b"]);
    load.start(0);
    load.submitted(1, "b", "1.0");
    load.submitted(2, "a", "2.0");
    load.finish(3, 1);
    assert_eq!(load.rows(STATES), ["1|SUBMIT|1|1", "2|SUBMIT|2|1"]);
    load.start(10);
    load.submitted(11, "a", "1.0");
    load.start(20);
    assert_eq!(load.rows(STATES).len(), 3);
    assert_eq!(load.rows("SELECT count(*) FROM pmc_queued"), ["0"]);
}

#[test]
fn a_run_that_died_ends_before_the_next_one() {
    let mut load = Load::new(&["a"]);
    load.start(0);
    load.start(10);
    load.finish(10, 1);
    load.finish(11, 0);
    assert_eq!(
        load.rows(RUNS),
        [
            "WORKFLOW_STARTED|0|0|-",
            "WORKFLOW_TERMINATED|9|0|2",
            "WORKFLOW_STARTED|10|1|-",
            "WORKFLOW_TERMINATED|10.001|1|1"
        ],
        "a run ends once, and after it has begun"
    );
    load.restart();
    assert!(!load.loader().is_running());
    assert_eq!((load.loader().starts(), load.loader().states().len()), (2, 4));
    load.start(10);
    assert_eq!(load.rows(RUNS)[4], "WORKFLOW_STARTED|10.002|2|-");
    load.restart();
    assert!(load.loader().is_running());
}

#[test]
fn another_loader_continues_an_attempt() {
    for terminated_before in [false, true] {
        let mut load = Load::new(&["a", "b"]);
        load.output("a", 0, 0, 2, "");
        load.start(0);
        load.submitted(1, "a", "1.0");
        load.submitted(1, "b", "2.0");
        load.state(2, "a", "EXECUTE", "1.0");
        if terminated_before {
            load.state(7, "a", "JOB_TERMINATED", "1.0");
        }
        load.restart();
        assert_eq!(load.loader().last_sequence(), 2, "b is queued");
        load.submitted(3, "b", "2.0");
        assert_eq!(load.loader().last_sequence(), 2);
        if !terminated_before {
            load.state(7, "a", "JOB_TERMINATED", "1.0");
        }
        load.ended(8, "a", "1.0", 0);
        load.state(9, "b", "EXECUTE", "2.0");
        assert_eq!(
            load.rows(STATES),
            [
                "1|SUBMIT|1|1",
                "1|EXECUTE|2|2",
                "1|JOB_TERMINATED|7|3",
                "1|JOB_SUCCESS|8|4",
                "2|SUBMIT|1|1",
                "2|EXECUTE|9|2"
            ]
        );
        assert_eq!(load.rows(ATTEMPTS), ["a|1|a.out.000|5|0", "b|2|-|-|-"]);
        assert_eq!(load.rows("SELECT count(*) FROM pmc_queued"), ["0"]);
        assert!(
            load.log()
                .contains("T608 a JOB_SUCCESS 0 there - 1\nT609 b EXECUTE")
        );
    }
}

#[test]
fn a_later_attempt_with_the_same_id_is_another_one() {
    let mut load = Load::new(&["a"]);
    load.output("a", 0, 256, 2, "");
    load.start(0);
    load.attempt(1, "a", "1.0", 256);
    load.finish(6, 1);
    load.restart();
    load.start(10);
    load.output("a", 1, 0, 12, "");
    // Its submission is not in the log.
    load.state(12, "a", "EXECUTE", "1.0");
    load.ended(15, "a", "1.0", 0);
    assert_eq!(load.rows(ATTEMPTS), ["a|1|a.out.000|3|256", "a|2|a.out.001|3|0"]);
    load.start(20);
    load.state(21, "a", "EXECUTE", "7.0");
    load.restart();
    load.state(22, "a", "EXECUTE", "8.0");
    assert_eq!(load.rows(ATTEMPTS).len(), 4);
    assert_eq!(
        load.rows("SELECT job_submit_seq, sched_id FROM job_instance ORDER BY 1")[2..],
        ["3|7.0", "4|8.0"]
    );
}

#[test]
fn an_aborted_attempt_has_no_records() {
    let mut load = Load::new(&["a"]);
    load.output("a", 0, 0, 2, "");
    load.start(0);
    load.submitted(1, "a", "1.0");
    load.state(2, "a", "EXECUTE", "1.0");
    load.state(7, "a", "JOB_ABORTED", "1.0");
    assert_eq!(
        load.rows(STATES),
        [
            "1|SUBMIT|1|1",
            "1|EXECUTE|2|2",
            "1|JOB_ABORTED|7|3",
            "1|JOB_FAILURE|7|3"
        ]
    );
    assert_eq!(load.rows(ATTEMPTS), ["a|1|a.out|5|1"]);
    assert_eq!(
        load.rows("SELECT \"user\", work_dir, stderr_file FROM job_instance"),
        ["planner|/submit|a.err"]
    );
    assert_eq!(load.loader().jobs_ended(), 1);
}

#[test]
fn an_abort_seen_by_the_earlier_loader_gives_the_duration() {
    let mut load = Load::new(&["a"]);
    load.output("a", 0, 0, 2, "");
    load.start(0);
    load.submitted(1, "a", "1.0");
    load.state(2, "a", "EXECUTE", "1.0");
    load.state(3, "a", "JOB_HELD", "1.0");
    load.ended(9, "a", "1.0", 0);
    assert_eq!(
        load.rows(ATTEMPTS),
        ["a|1|a.out.000|7|0"],
        "up to its end, without a termination"
    );
}

#[test]
fn jobs_that_are_not_in_the_plan_are_reported() {
    let mut load = Load::new(&["a"]);
    load.start(0);
    load.submitted(1, "x", "1.0");
    load.state(2, "x", "EXECUTE", "1.0");
    load.output("x", 0, 0, 2, "");
    load.ended(3, "x", "1.0", 0);
    assert_eq!(
        load.notices,
        ["job x is in the log but not in the plan; its kind is unknown"]
    );
    assert_eq!(
        load.rows("SELECT exec_job_id, type_desc FROM job ORDER BY 1"),
        ["a|compute", "x|unknown"]
    );
    assert_eq!(load.rows(ATTEMPTS), ["x|1|x.out.000|1|0"]);
}
