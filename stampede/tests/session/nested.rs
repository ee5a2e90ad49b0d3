//! Nested sub-workflows: each has a log of its own, and rows in the database of the outermost workflow.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use monitord_compat::braindump;
use monitord_compat::static_bp::Events;
use rusqlite::Connection;
use testutils::Random;

use crate::follow::wait;

/// Submit directories: the outermost workflow, one in it, and one in that.
const DIRS: [&str; 3] = ["run", "run/00/00/mid.000", "run/00/00/mid.000/00/00/leaf.000"];
const UUIDS: [&str; 3] = [
    "5d0b1c52-0000-4000-8000-0000000000a0",
    "5d0b1c52-0000-4000-8000-0000000000a1",
    "5d0b1c52-0000-4000-8000-0000000000a2",
];

/// A run of three workflows, one in another. The innermost one fails once.
struct Run {
    home: tempfile::TempDir,
    /// All lines of the logs in their order, each with the number of its workflow.
    lines: Vec<(usize, String)>,
}

impl Run {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut this = Self {
            home,
            lines: Vec::new(),
        };
        this.plan(0, &["make_A"], Some("mid"));
        this.plan(1, &["work_A", "work_B"], Some("leaf"));
        this.plan(2, &["work_A", "end_C"], None);
        this
    }

    fn dir(&self, number: usize) -> PathBuf {
        self.home.path().canonicalize().unwrap().join(DIRS[number])
    }

    fn plan(&mut self, number: usize, jobs: &[&str], nested: Option<&str>) {
        let dir = self.dir(number);
        fs::create_dir_all(dir.join("00/00")).unwrap();
        let text = |value: &str| Some(value.to_owned());
        let entries = [
            ("user", text("planner")),
            ("wf_uuid", text(UUIDS[number])),
            ("dax_label", text(["outer", "mid", "leaf"][number])),
            ("submit_dir", text(&dir.display().to_string())),
            ("dag", text(&dir.join("x.dag").display().to_string())),
        ];
        let entries = entries.map(|(key, value)| (key.to_owned(), value));
        fs::write(dir.join("braindump.yml"), braindump::write(&entries)).unwrap();
        let events = Events {
            time: "2026-03-04T05:06:00.000000Z",
            workflow: UUIDS[number],
        };
        let mut bp = String::new();
        let job = nested.map(|name| format!("plan_{name}"));
        let all = jobs.iter().copied().map(|job| (job, "compute"));
        for (job, kind) in all.chain(job.as_deref().map(|job| (job, "dax"))) {
            let task = job.rsplit('_').next().unwrap();
            events
                .begin(&mut bp, "task.info")
                .with("task.id", task)
                .with("type_desc", kind)
                .with("transformation", "work");
            let log = dir.join(format!("{job}.pre.log"));
            events
                .begin(&mut bp, "job.info")
                .with("job.id", job)
                .with("submit_file", &format!("00/00/{job}.sub"))
                .with("type_desc", kind)
                .with("executable", "/bin/pegasus-kickstart")
                .with("argv", &format!("/bin/x -Dpegasus.log.*={}", log.display()));
            events
                .begin(&mut bp, "wf.map.task_job")
                .with("job.id", job)
                .with("task.id", task);
        }
        fs::write(dir.join("x.static.bp"), bp).unwrap();
        fs::write(dir.join("x.dag"), "TASK a /bin/true\n").unwrap();
        if let (Some(name), Some(job)) = (nested, job) {
            let log = dir.join(format!("00/00/{name}/x.dag.dagman.out"));
            let text = format!(
                "environment = \"_CONDOR_DAGMAN_LOG={}\"\nexecutable = /bin/executor\n+pegasus_site = \"local\"\n\
                 +pegasus_wf_xformation = \"condor::dagman\"\n+pegasus_wf_dax_job_id = \"{name}\"\n",
                log.display()
            );
            fs::write(dir.join(format!("00/00/{job}.sub")), text).unwrap();
        }
    }

    fn line(&mut self, number: usize, text: &str) {
        let second = 10 + self.lines.len() / 4;
        let stamp = format!("03/04/26 05:{:02}:{:02}", second / 60, second % 60);
        self.lines.push((number, format!("{stamp} {text}\n")));
    }

    fn begin(&mut self, number: usize) {
        self.line(number, "** condor_scheduniv_exec.0.0 (CONDOR_DAGMAN) STARTING UP");
        self.line(number, "** PID = 4000000");
        self.line(number, "Parsing x.dag ...");
    }

    fn end(&mut self, number: usize, status: i32) {
        let text = format!(
            "**** condor_scheduniv_exec.0.0 (condor_DAGMAN) pid 4000000 EXITING WITH STATUS {status}"
        );
        self.line(number, &text);
    }

    fn event(&mut self, number: usize, state: &str, job: &str, id: u32) {
        self.line(
            number,
            &format!("Event: ULOG_{state} for Condor Node {job} ({id}.0)"),
        );
    }

    fn ended(&mut self, number: usize, job: &str, id: u32, status: i32) {
        self.event(number, "JOB_TERMINATED", job, id);
        let text = match status {
            0 => "completed successfully".to_owned(),
            _ => format!("failed with status {status}"),
        };
        self.line(number, &format!("Node {job} job proc ({id}.0) {text}."));
    }

    fn job(&mut self, number: usize, job: &str, id: u32, status: i32) {
        self.event(number, "SUBMIT", job, id);
        self.event(number, "EXECUTE", job, id);
        self.ended(number, job, id, status);
    }

    fn planned(&mut self, number: usize, job: &str, status: i32) {
        self.line(number, &format!("Running PRE script of Node {job}..."));
        let text = match status {
            0 => "completed successfully".to_owned(),
            _ => format!("failed with status {status}"),
        };
        self.line(number, &format!("PRE Script of Node {job} {text}."));
    }

    /// Adds two runs: in the first one the last job of the innermost workflow fails, the second one goes on.
    fn twice(mut self) -> Self {
        for (status, is_first) in [(256, true), (0, false)] {
            self.begin(0);
            if is_first {
                self.job(0, "make_A", 1, 0);
            }
            self.planned(0, "plan_mid", 0);
            self.begin(1);
            self.event(0, "SUBMIT", "plan_mid", 2);
            self.event(0, "EXECUTE", "plan_mid", 2);
            if is_first {
                self.job(1, "work_A", 3, 0);
            }
            self.planned(1, "plan_leaf", 0);
            self.begin(2);
            self.event(1, "SUBMIT", "plan_leaf", 4);
            self.event(1, "EXECUTE", "plan_leaf", 4);
            if is_first {
                self.job(1, "work_B", 5, 0);
                self.job(2, "work_A", 6, 0);
            }
            self.job(2, "end_C", 7, status);
            self.end(2, status / 256);
            self.ended(1, "plan_leaf", 4, status);
            self.end(1, status / 256);
            self.ended(0, "plan_mid", 2, status);
            self.end(0, status / 256);
        }
        self
    }

    fn log(&self, number: usize) -> PathBuf {
        self.dir(number).join("x.dag.dagman.out")
    }

    fn write(&self, lines: &[(usize, String)]) {
        for (number, line) in lines {
            let log = OpenOptions::new()
                .create(true)
                .append(true)
                .open(self.log(*number));
            log.unwrap().write_all(line.as_bytes()).unwrap();
        }
    }

    fn monitord(&self, options: &[&str]) -> Command {
        let mut command = Command::new(testutils::programs::path("pmc-monitord"));
        command
            .args(options)
            .arg("--no-dashboard")
            .arg(self.log(0))
            .env("HOME", self.home.path())
            .env("TZ", "UTC")
            .stdin(Stdio::null());
        command
    }

    fn load(&self, options: &[&str]) -> String {
        let output = self.monitord(options).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{:?}: {stderr}", output.status);
        stderr
    }

    fn database(&self) -> PathBuf {
        self.dir(0).join("x.stampede.db")
    }

    fn rows(&self, sql: &str) -> Vec<String> {
        let connection = Connection::open(self.database()).unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map((), |row| {
            let mut text = String::new();
            for column in 0..columns {
                let value: rusqlite::types::Value = row.get(column)?;
                let _ = match value {
                    rusqlite::types::Value::Null => write!(text, "- "),
                    rusqlite::types::Value::Integer(number) => write!(text, "{number} "),
                    rusqlite::types::Value::Real(number) => write!(text, "{number} "),
                    rusqlite::types::Value::Text(value) => write!(text, "{value} "),
                    rusqlite::types::Value::Blob(_) => write!(text, "? "),
                };
            }
            Ok(text.trim_end().to_owned())
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Returns all rows, without ids that depend on the order of writing.
    fn dump(&self) -> Vec<String> {
        let of = "JOIN job_instance i USING (job_instance_id) JOIN job j USING (job_id) JOIN workflow w ON w.wf_id = j.wf_id";
        let mut all = self.rows("SELECT count(*) FROM pragma_foreign_key_check");
        assert_eq!(all, ["0"]);
        for sql in [
            "SELECT dax_label, wf_id, parent_wf_id, root_wf_id, submit_dir FROM workflow ORDER BY 1".to_owned(),
            "SELECT dax_label, state, restart_count, status, s.timestamp FROM workflowstate s JOIN workflow USING (wf_id)
             ORDER BY 1, 5"
                .to_owned(),
            "SELECT w.dax_label, exec_job_id, job_submit_seq, sched_id, site, work_dir, local_duration,
                 (SELECT dax_label FROM workflow s WHERE s.wf_id = subwf_id), stdout_file, stdout_text, stderr_file,
                 exitcode FROM job_instance JOIN job USING (job_id) JOIN workflow w USING (wf_id) ORDER BY 1, 3"
                .to_owned(),
            format!(
                "SELECT w.dax_label, job_submit_seq, jobstate_submit_seq, state, s.timestamp FROM jobstate s {of}
                 ORDER BY 1, 2, 3"
            ),
            format!(
                "SELECT w.dax_label, job_submit_seq, task_submit_seq, start_time, v.exitcode, transformation,
                     abs_task_id FROM invocation v {of} ORDER BY 1, 2, 3"
            ),
        ] {
            all.extend(self.rows(&sql));
        }
        all
    }
}

#[test]
fn each_workflow_has_its_rows() {
    let run = Run::new().twice();
    run.write(&run.lines);
    run.load(&["-r"]);
    assert_eq!(
        run.rows("SELECT dax_label, wf_id, parent_wf_id, root_wf_id FROM workflow ORDER BY 2"),
        ["outer 1 - 1", "mid 2 1 1", "leaf 3 2 1"]
    );
    let nested =
        "SELECT exec_job_id, job_submit_seq, sched_id, subwf_id, site, exitcode, stdout_file, stderr_file
        FROM job_instance JOIN job USING (job_id) WHERE type_desc = 'dax' ORDER BY 1 DESC, 2";
    assert_eq!(
        run.rows(nested),
        [
            "plan_mid 2 2.0 2 local 256 00/00/plan_mid.out.000 00/00/plan_mid.err.000",
            "plan_mid 3 2.0 2 local 0 00/00/plan_mid.out.001 00/00/plan_mid.err.001",
            "plan_leaf 2 4.0 3 local 256 00/00/plan_leaf.out.000 00/00/plan_leaf.err.000",
            "plan_leaf 4 4.0 3 local 0 00/00/plan_leaf.out.001 00/00/plan_leaf.err.001"
        ]
    );
    let states =
        "SELECT state FROM jobstate JOIN job_instance USING (job_instance_id) JOIN job USING (job_id)
        WHERE exec_job_id = 'plan_mid' AND job_submit_seq = 2 ORDER BY jobstate_submit_seq";
    assert_eq!(
        run.rows(states),
        [
            "PRE_SCRIPT_STARTED",
            "PRE_SCRIPT_TERMINATED",
            "PRE_SCRIPT_SUCCESS",
            "SUBMIT",
            "EXECUTE",
            "JOB_TERMINATED",
            "JOB_FAILURE"
        ]
    );
    let invocations = "SELECT task_submit_seq, transformation, v.executable, abs_task_id, v.exitcode
        FROM invocation v JOIN job_instance USING (job_instance_id) JOIN job USING (job_id)
        WHERE exec_job_id = 'plan_mid' AND job_submit_seq = 2 ORDER BY 1";
    assert_eq!(
        run.rows(invocations),
        [
            "-1 dagman::pre /bin/pegasus-kickstart - 0",
            "1 condor::dagman /bin/executor mid 256"
        ]
    );
    assert_eq!(
        run.rows("SELECT count(*) FROM workflowstate WHERE state = 'WORKFLOW_TERMINATED'"),
        ["6"]
    );
    let text = fs::read_to_string(run.dir(2).join("jobstate.log")).unwrap();
    assert_eq!(text.matches(" end_C JOB_FAILURE 256 ").count(), 1, "{text}");
    run.load(&["-r", "--no-recursive"]);
    assert_eq!(run.rows("SELECT dax_label FROM workflow"), ["outer"]);
}

#[test]
fn a_planner_that_fails_is_the_output_of_its_attempt() {
    let mut run = Run::new();
    run.begin(0);
    run.planned(0, "plan_mid", 256);
    run.planned(0, "plan_mid", 512);
    run.end(0, 1);
    run.write(&run.lines);
    let log = |number: u32| run.dir(0).join(format!("plan_mid.pre.log.{number:03}"));
    fs::write(log(1), "no such file\n").unwrap();
    run.load(&["-r"]);
    let rows = run.rows(
        "SELECT job_submit_seq, sched_id, subwf_id, site, exitcode, stdout_file, stdout_text, stderr_file
         FROM job_instance JOIN job USING (job_id) ORDER BY 1",
    );
    let expected = |n: u32, code: u32, text: &str| {
        format!(
            "{} - - local {code} {} {text} 00/00/plan_mid.err",
            n + 1,
            log(n).display()
        )
    };
    assert_eq!(
        rows,
        [
            expected(0, 256, "-"),
            expected(1, 512, "#@ 1 stdout%0Ano such file%0A")
        ]
    );
    assert_eq!(run.rows("SELECT count(*) FROM workflow"), ["1"]);
}

#[test]
fn a_sub_workflow_that_cannot_be_read_is_left_out() {
    let run = Run::new().twice();
    run.write(&run.lines);
    fs::remove_file(run.dir(2).join("braindump.yml")).unwrap();
    let stderr = run.load(&["-r"]);
    assert!(stderr.contains("this sub-workflow is not loaded"), "{stderr}");
    assert_eq!(run.rows("SELECT dax_label FROM workflow"), ["outer", "mid"]);
    // Two workflows cannot have one UUID.
    fs::copy(run.dir(0).join("braindump.yml"), run.dir(2).join("braindump.yml")).unwrap();
    let stderr = run.load(&["-r"]);
    assert!(stderr.contains("is that of another workflow"), "{stderr}");
}

/// Waits until the loader has the whole log of the outermost workflow, as far as it is written.
fn wait_until_loaded(run: &Run) {
    let start = Instant::now();
    let size = |path: &Path| fs::metadata(path).map_or(0, |log| log.len().cast_signed());
    let loaded = || {
        let connection = Connection::open(run.database())?;
        connection.query_row(
            "SELECT max(log_bytes) FROM pmc_loader WHERE wf_id = 1",
            (),
            |row| row.get::<_, i64>(0),
        )
    };
    while loaded().unwrap_or(-1) < size(&run.log(0)) {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn killed_loaders_have_the_rows_of_one_that_was_not() {
    let run = Run::new().twice();
    run.write(&run.lines);
    run.load(&["-r"]);
    let expected = run.dump();
    for number in 0..3 {
        fs::remove_file(run.log(number)).unwrap();
    }
    fs::remove_file(run.database()).unwrap();
    fs::remove_file(run.dir(0).join("monitord.done")).unwrap();
    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    // The last line ends the loader.
    let (last, lines) = run.lines.split_last().unwrap();
    for part in lines.chunks(4) {
        let mut loader = run.monitord(&[]).stderr(Stdio::null()).spawn().unwrap();
        run.write(part);
        if random.index(2) == 0 {
            wait_until_loaded(&run);
        }
        std::thread::sleep(Duration::from_micros(random.index(40_000) as u64));
        loader.kill().unwrap();
        loader.wait().unwrap();
    }
    run.write(std::slice::from_ref(last));
    let mut loader = run.monitord(&[]).spawn().unwrap();
    assert_eq!(wait(&mut loader), 0);
    let got = run.dump();
    let other = expected.iter().zip(&got).find(|(expected, got)| expected != got);
    assert_eq!(other, None, "seed {seed}");
    assert_eq!(expected.len(), got.len(), "seed {seed}");
}
