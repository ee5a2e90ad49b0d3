//! Small runs for the tests, and databases as text.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use chrono::{DateTime, NaiveDateTime, TimeDelta};
use monitord_compat::cluster_record::TaskRecord;
use monitord_compat::dagman_out::{self, Stamp};
use monitord_compat::static_bp::Events;
use monitord_compat::{braindump, job_output_reader};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

/// A temporary submit directory.
pub struct Fixture {
    home: tempfile::TempDir,
    /// The submit directory.
    pub dir: PathBuf,
    /// Text of the log, which [`Fixture::write_log`] writes.
    pub log: Vec<u8>,
    now: NaiveDateTime,
    number: u64,
}

const UUID: &str = "5d0b1c52-0000-4000-8000-0000000000aa";

impl Fixture {
    /// Plans `jobs` jobs `work_ID0`, `work_ID1`…, each with one task.
    pub fn planned(jobs: usize) -> Self {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().canonicalize().unwrap().join("submit");
        fs::create_dir(&dir).unwrap();
        let text = |value: &str| Some(value.to_owned());
        let entries = [
            ("user", text("planner")),
            ("wf_uuid", text(UUID)),
            ("dax_label", text("x")),
            ("timestamp", text("20260304T050600+0000")),
            ("submit_dir", text(&dir.display().to_string())),
            ("planner_version", text("5.1.3")),
            ("planner_arguments", text("\"--sites local \"")),
            ("dag", text("x-0.dag")),
        ];
        let entries = entries.map(|(key, value)| (key.to_owned(), value));
        fs::write(dir.join("braindump.yml"), braindump::write(&entries)).unwrap();
        let mut bp = String::new();
        let events = Events {
            time: "2026-03-04T05:06:00.000000Z",
            workflow: UUID,
        };
        let mut dag = String::new();
        for n in 0..jobs {
            let _ = writeln!(dag, "TASK work_ID{n} /bin/true");
            let id = format!("ID{n}");
            events
                .begin(&mut bp, "task.info")
                .with("task.id", &id)
                .with("type_desc", "compute")
                .with("transformation", "work")
                .with("argv", "it's");
        }
        events.begin(&mut bp, "static.meta.start");
        events
            .begin(&mut bp, "xwf.meta")
            .with("key", "wf.api")
            .with("value", "python");
        for n in 0..jobs {
            let (job, id) = (format!("work_ID{n}"), format!("ID{n}"));
            events
                .begin(&mut bp, "job.info")
                .with("job.id", &job)
                .with("submit_file", &format!("00/00/{job}.sub"))
                .with("type_desc", "compute")
                .with("clustered", "0")
                .with("max_retries", "1")
                .with("executable", "/bin/pegasus-kickstart")
                .with("argv", " -n work -R local /bin/work")
                .with("task_count", "1");
            events
                .begin(&mut bp, "wf.map.task_job")
                .with("job.id", &job)
                .with("task.id", &id);
        }
        fs::write(dir.join("x-0.static.bp"), bp).unwrap();
        fs::write(dir.join("x-0.dag"), dag).unwrap();
        let now = NaiveDateTime::parse_from_str("2026-03-04 05:06:07", "%Y-%m-%d %H:%M:%S").unwrap();
        Self {
            home,
            dir,
            log: Vec::new(),
            now,
            number: 0,
        }
    }

    /// Plans `jobs` jobs and adds a run. Each third job fails once.
    pub fn run(jobs: usize) -> Self {
        let mut this = Self::planned(jobs);
        this.begin();
        for n in 0..jobs {
            if n % 3 == 2 {
                this.job(n, 256);
            }
            this.job(n, 0);
        }
        this.end(true);
        this
    }

    fn stamp(&mut self) -> Stamp {
        self.now += TimeDelta::milliseconds(700);
        Stamp::new(self.now)
    }

    pub fn begin(&mut self) {
        let stamp = self.stamp();
        self.number = 0;
        dagman_out::start(&mut self.log, &stamp, 4_000_000, b"x-0.dag");
    }

    pub fn end(&mut self, success: bool) {
        let stamp = self.stamp();
        dagman_out::finish(&mut self.log, &stamp, 4_000_000, success);
    }

    /// Adds an attempt of a job with its output files.
    pub fn job(&mut self, n: usize, status: i32) {
        let name = format!("work_ID{n}");
        self.number += 1;
        let number = self.number;
        let stamp = self.stamp();
        dagman_out::queued(&mut self.log, &stamp, name.as_bytes(), number);
        dagman_out::started(&mut self.log, &stamp, name.as_bytes(), number);
        let start = self.now;
        let stamp = self.stamp();
        dagman_out::ended(&mut self.log, &stamp, name.as_bytes(), number, status);
        let time = start.format("%Y-%m-%dT%H:%M:%S%.3f+00:00");
        let mut out = format!(
            "- invocation: True\n  transformation: \"work\"\n  derivation: \"ID{n}\"\n  resource: \"local\"\n  \
             hostaddr: 192.0.2.{}\n  user: tester\n  mainjob:\n    start: {time}\n    duration: 0.250\n    usage:\n      \
             utime: 0.100\n      stime: 0.025\n      maxrss: 1600\n    status:\n      raw: {status}\n    executable:\n      \
             file_name: /bin/work\n  cwd: /scratch\n  files:\n    f.{n}:\n      lfn: \"f.{n}\"\n      size: {n}\n      \
             user: tester\n      ctime: {time}\n      output: True\n      sha256: abc{n}\n      checksum_timing: 0.01\n    \
             stdout:\n      data: |\n        job {n}\n",
            n % 4
        )
        .into_bytes();
        TaskRecord {
            id: Some(b"1"),
            name: name.as_bytes(),
            start: DateTime::from_timestamp(start.and_utc().timestamp(), 0)
                .unwrap()
                .fixed_offset(),
            duration: std::time::Duration::from_millis(300),
            status,
            app: b"/bin/pegasus-kickstart",
            hostname: "node1",
            slot: 1,
            cpus: 1,
            memory_mb: 0,
        }
        .write(&mut out);
        assert!(
            job_output_reader::JobOutput::read(std::str::from_utf8(&out).unwrap())
                .damage
                .is_empty()
        );
        let free = (0..)
            .find(|n| !self.dir.join(format!("{name}.out.{n:03}")).exists())
            .unwrap();
        fs::write(self.dir.join(format!("{name}.out.{free:03}")), out).unwrap();
        fs::write(self.dir.join(format!("{name}.err.{free:03}")), "careful\n").unwrap();
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.join("x-0.dag.dagman.out")
    }

    pub fn write_log(&self) {
        fs::write(self.log_path(), &self.log).unwrap();
    }

    pub fn database(&self) -> PathBuf {
        self.dir.join("x-0.stampede.db")
    }

    pub fn dashboard(&self) -> PathBuf {
        self.home.path().join(".pegasus/workflow.db")
    }

    /// Returns the command `pmc-monitord` with these options.
    pub fn monitord(&self, options: &[&str]) -> Command {
        let mut command = Command::new(testutils::programs::path("pmc-monitord"));
        command
            .args(options)
            .arg(self.log_path())
            .env("HOME", self.home.path())
            .env("TZ", "UTC")
            .stdin(Stdio::null());
        command
    }

    /// Runs `pmc-monitord` to its end. Returns its standard error.
    pub fn load(&self, options: &[&str]) -> String {
        let output = self.monitord(options).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{:?}: {stderr}", output.status);
        stderr
    }

    pub fn count(&self, sql: &str) -> i64 {
        let connection = Connection::open(self.database()).unwrap();
        connection.query_row(sql, (), |row| row.get(0)).unwrap()
    }
}

/// Queries for all tables, without ids that depend on the order of writing.
pub const QUERIES: [&str; 11] = [
    "SELECT wf_uuid, dag_file_name, timestamp, submit_dir, planner_arguments, \"user\",
         CASE WHEN root_wf_id = wf_id THEN 'root' END FROM workflow",
    "SELECT state, timestamp, restart_count, status FROM workflowstate ORDER BY timestamp",
    "SELECT key, value FROM workflow_meta ORDER BY 1",
    "SELECT abs_task_id, transformation, task.argv, exec_job_id FROM task LEFT JOIN job USING (job_id) ORDER BY 1",
    "SELECT exec_job_id, submit_file, type_desc, executable, argv, task_count FROM job ORDER BY 1",
    "SELECT exec_job_id, job_submit_seq, sched_id, i.site, i.\"user\", work_dir, local_duration, stdout_file, stdout_text,
         stderr_file, stderr_text, exitcode, hostname, ip
     FROM job_instance i JOIN job USING (job_id) LEFT JOIN host USING (host_id) ORDER BY 2",
    "SELECT job_submit_seq, state, timestamp, jobstate_submit_seq FROM jobstate
     JOIN job_instance USING (job_instance_id) ORDER BY 1, 4",
    "SELECT job_submit_seq, task_submit_seq, start_time, remote_duration, remote_cpu_time, v.exitcode,
         transformation, v.executable, abs_task_id, maxrss, avg_cpu
     FROM invocation v JOIN job_instance USING (job_instance_id) ORDER BY 1, 2",
    "SELECT lfn, key, value FROM rc_meta JOIN rc_lfn USING (lfn_id) ORDER BY 1, 2",
    "SELECT job_submit_seq, type, file_type, count, duration FROM integrity
     JOIN job_instance USING (job_instance_id) ORDER BY 1, 2",
    "SELECT site, hostname, ip FROM host ORDER BY 1, 2, 3",
];

/// Returns all rows of a database, without ids that depend on the order of writing.
pub fn dump(database: &Path) -> String {
    let connection = Connection::open(database).unwrap();
    let broken: i64 = connection
        .query_row("SELECT count(*) FROM pragma_foreign_key_check", (), |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(broken, 0);
    let mut out = String::new();
    for sql in QUERIES {
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query(()).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for column in 0..columns {
                match row.get_ref(column).unwrap() {
                    ValueRef::Null => out.push('-'),
                    ValueRef::Integer(value) => _ = write!(out, "{value}"),
                    ValueRef::Real(value) => _ = write!(out, "{value}"),
                    ValueRef::Text(value) | ValueRef::Blob(value) => {
                        out.push_str(&String::from_utf8_lossy(value))
                    }
                }
                out.push('|');
            }
            out.push('\n');
        }
        out.push('\n');
    }
    out
}
