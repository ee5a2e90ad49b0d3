//! Makes submit directories of runs of any size.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, TimeDelta};
use monitord_compat::braindump;
use monitord_compat::cluster_record::TaskRecord;
use monitord_compat::dagman_out::{self, Stamp};
use monitord_compat::static_bp::Events;

const UUID: &str = "5d0b1c52-0000-4000-8000-0000000000bb";
/// Name of the file of properties, which pegasus-monitord needs.
const PROPERTIES: &str = "pegasus.run.properties";
/// Invocation record of a small job.
const RECORD: &str = include_str!("record.yml");

/// Number of jobs with separate output files. Files of later jobs are mostly links, so that a run of a
/// million jobs does not take 9 GB.
const OWN_FILES: usize = 100_000;
/// Later jobs form blocks of this size. A block takes less than the minute by which a record may be older
/// than its attempt.
const BLOCK: usize = 20_000;
/// Number of jobs at the beginning of each block with separate files.
const OWN_OF_BLOCK: usize = 1000;

/// Makes a run of `jobs` jobs with invocation records. Every hundredth job fails once. Returns the log.
pub fn make(dir: &Path, jobs: usize) -> io::Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let entry = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
    let entries = [
        entry("user", "user"),
        entry("wf_uuid", UUID),
        entry("root_wf_uuid", UUID),
        entry("dax_label", "big"),
        entry("dax_index", "0"),
        entry("dax_version", "5.0.4"),
        entry("dax", "workflow.yml"),
        entry("timestamp", "20260304T050600+0000"),
        entry("submit_dir", &dir.display().to_string()),
        entry("submit_hostname", "node1"),
        entry("planner_version", "5.1.3"),
        entry("planner_arguments", "\"--sites local \""),
        entry("pegasus_wf_name", "big-0"),
        entry("jsd", "jobstate.log"),
        entry("rundir", "run0001"),
        entry("properties", PROPERTIES),
        entry("dag", "big-0.dag"),
    ];
    fs::write(dir.join(PROPERTIES), "")?;
    fs::write(dir.join("braindump.yml"), braindump::write(&entries))?;
    plan(dir, jobs)?;
    execute(dir, jobs)
}

fn plan(dir: &Path, jobs: usize) -> io::Result<()> {
    let mut dag = BufWriter::new(File::create(dir.join("big-0.dag"))?);
    let mut file = BufWriter::new(File::create(dir.join("big-0.static.bp"))?);
    let events = Events {
        time: "2026-03-04T05:06:00.000000Z",
        workflow: UUID,
    };
    let mut bp = String::new();
    let mut put = |bp: &mut String| {
        let written = file.write_all(bp.as_bytes());
        bp.clear();
        written
    };
    for n in 0..jobs {
        writeln!(dag, "TASK work_{} /bin/true", id(n))?;
        events
            .begin(&mut bp, "task.info")
            .with("task.id", &id(n))
            .with("type_desc", "compute")
            .with("transformation", "work")
            .with("argv", "-i f.in -o f.out");
        put(&mut bp)?;
    }
    events.begin(&mut bp, "static.meta.start");
    for n in 0..jobs {
        let job = format!("work_{}", id(n));
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
            .with("task.id", &id(n));
        put(&mut bp)?;
    }
    // Each job but the first has one parent.
    for n in 1..jobs {
        events
            .begin(&mut bp, "job.edge")
            .with("parent.job.id", &format!("work_{}", id(n / 2)))
            .with("child.job.id", &format!("work_{}", id(n)));
        put(&mut bp)?;
    }
    dag.flush()
}

fn execute(dir: &Path, jobs: usize) -> io::Result<PathBuf> {
    let path = dir.join("big-0.dag.dagman.out");
    let mut log = BufWriter::new(File::create(&path)?);
    let mut lines = Vec::new();
    let mut now = DateTime::from_timestamp(1_772_600_767, 0)
        .unwrap_or_default()
        .naive_utc();
    dagman_out::start(&mut lines, &Stamp::new(now), 4_000_000, b"big-0.dag");
    let (mut number, mut text) = (0, String::new());
    for n in 0..jobs {
        let name = format!("work_{}", id(n));
        let statuses: &[i32] = if n % 100 == 99 { &[256, 0] } else { &[0] };
        for (file, status) in (0..).zip(statuses.iter().copied()) {
            number += 1;
            now += TimeDelta::milliseconds(2);
            let stamp = Stamp::new(now);
            dagman_out::queued(&mut lines, &stamp, name.as_bytes(), number);
            dagman_out::started(&mut lines, &stamp, name.as_bytes(), number);
            dagman_out::ended(&mut lines, &stamp, name.as_bytes(), number, status);
            if n >= OWN_FILES && n % BLOCK >= OWN_OF_BLOCK {
                // A job with the same number of attempts.
                let first = format!("work_{}", id(n - n % BLOCK + n % OWN_OF_BLOCK));
                for stream in ["out", "err"] {
                    let of = |name: &str| dir.join(format!("{name}.{stream}.{file:03}"));
                    fs::hard_link(of(&first), of(&name))?;
                }
                continue;
            }
            let mut out = record(&mut text, n, status, now).as_bytes().to_vec();
            cluster_task(&mut out, name.as_bytes(), status, now);
            fs::write(dir.join(format!("{name}.out.{file:03}")), out)?;
            fs::write(dir.join(format!("{name}.err.{file:03}")), "")?;
        }
        log.write_all(&lines)?;
        lines.clear();
    }
    dagman_out::finish(&mut lines, &Stamp::new(now), 4_000_000, true);
    log.write_all(&lines)?;
    log.flush()?;
    Ok(path)
}

fn record(text: &mut String, n: usize, status: i32, now: NaiveDateTime) -> &str {
    let time = now.format("%Y-%m-%dT%H:%M:%S%.3f+00:00").to_string();
    text.clear();
    let _ = write!(text, "{RECORD}");
    *text = text
        .replace("{id}", &id(n))
        .replace("{n}", &n.to_string())
        .replace("{time}", &time);
    if status != 0 {
        *text = text.replace("raw: 0", &format!("raw: {status}"));
    }
    text
}

fn cluster_task(out: &mut Vec<u8>, name: &[u8], status: i32, now: NaiveDateTime) {
    TaskRecord {
        id: Some(b"1"),
        name,
        start: now.and_utc().fixed_offset(),
        duration: Duration::from_millis(300),
        status,
        app: b"/bin/pegasus-kickstart",
        hostname: "node1",
        slot: 1,
        cpus: 1,
        memory_mb: 0,
    }
    .write(out);
}

fn id(n: usize) -> String {
    format!("ID{n:07}")
}
