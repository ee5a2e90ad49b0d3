//! Makes the directory of a large run as the planner and the executor would leave it, without running anything.
//!
//! A small simulation: tasks become ready when their parents are done, take a free slot, last a while, and
//! some fail. DAG and logs are written by the code that writes those of real runs.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    dead_code,
    clippy::allow_attributes,
    reason = "invented figures; not all users use all parts"
)]

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Local};
use monitord_compat::resource_log::Free;
use monitord_compat::{dagman_out, resource_log};
use pmc_dag::write;

// Of the program that this is a part of, since other parts of it may use the same numbers.
use testutils::Random;

/// Begin of the run, seconds since the epoch.
pub const BEGIN: u64 = 1_790_000_000;
/// What a host has.
const CPUS: u32 = 16;
const MEMORY_MB: u64 = 64_000;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tasks, about.
    pub tasks: usize,
    /// Hosts.
    pub hosts: usize,
    /// Slots of a host.
    pub slots: u32,
    /// Tries that fail, of a thousand.
    pub failing: u64,
    /// Write a record for each try, or for failed ones only.
    pub records: bool,
}

/// A task of the run.
pub struct Task {
    pub name: String,
    pub transformation: &'static str,
    pub id: String,
    pub cpus: u32,
    pub memory_mb: u64,
    pub children: Vec<u32>,
    parents: u32,
}

/// A try of a task.
pub struct Try {
    pub task: u32,
    pub number: u64,
    pub host: usize,
    /// Microseconds since the epoch.
    pub start: u64,
    pub end: u64,
    /// Raw wait status.
    pub status: i32,
    pub peak_kib: u64,
    pub cpu_seconds: f64,
}

/// A run that never was.
pub struct Made {
    pub tasks: Vec<Task>,
    pub tries: Vec<Try>,
    pub hosts: Vec<String>,
    pub end: u64,
    pub success: bool,
}

fn tasks(shape: Shape) -> Vec<Task> {
    let mut tasks = Vec::with_capacity(shape.tasks + 16);
    let mut add = |name: String, transformation, id: String, cpus, memory_mb| {
        tasks.push(Task {
            name,
            transformation,
            id,
            cpus,
            memory_mb,
            children: Vec::new(),
            parents: 0,
        });
        tasks.len() as u32 - 1
    };
    let null = || "null".to_owned();
    let simulate = (shape.tasks * 6 / 10).max(1);
    let filter = (shape.tasks * 37 / 100).max(1);
    let merge = (shape.tasks * 2 / 100).max(1);
    let first = add(
        "create_dir_study_0_cluster".into(),
        "pegasus::dirmanager",
        null(),
        1,
        0,
    );
    let stage: Vec<u32> = (0..8.min(simulate))
        .map(|n| {
            add(
                format!("stage_in_local_cluster_0_{n}"),
                "pegasus::transfer",
                null(),
                1,
                0,
            )
        })
        .collect();
    let mut number = 0;
    let mut jobs = |count: usize, transformation: &'static str, cpus, memory_mb| -> Vec<u32> {
        (0..count)
            .map(|_| {
                number += 1;
                let id = format!("ID{number:07}");
                add(
                    format!("{transformation}_{id}"),
                    transformation,
                    id,
                    cpus,
                    memory_mb,
                )
            })
            .collect()
    };
    let simulates = jobs(simulate, "simulate", 1, 1500);
    let filters = jobs(filter, "filter", 1, 800);
    let merges = jobs(merge, "merge", 2, 6000);
    let plots = jobs(merge.div_ceil(50), "plot", 1, 500);
    let out = add(
        "stage_out_cluster_local_3_0".into(),
        "pegasus::transfer",
        null(),
        1,
        0,
    );
    let clean = add("cleanup_study_0_cluster".into(), "pegasus::cleanup", null(), 1, 0);
    let mut edge = |parent: u32, child: u32| {
        tasks[parent as usize].children.push(child);
        tasks[child as usize].parents += 1;
    };
    stage.iter().for_each(|n| edge(first, *n));
    for (n, simulate) in simulates.iter().enumerate() {
        edge(stage[n % stage.len()], *simulate);
    }
    for (n, filter) in filters.iter().enumerate() {
        edge(simulates[n % simulates.len()], *filter);
    }
    for (n, filter) in filters.iter().enumerate() {
        edge(*filter, merges[n * merges.len() / filters.len()]);
    }
    for (n, merge) in merges.iter().enumerate() {
        edge(*merge, plots[n / 50]);
    }
    plots.iter().for_each(|plot| edge(*plot, out));
    edge(out, clean);
    tasks
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ending {
    time: std::cmp::Reverse<u64>,
    number: usize,
}

/// Makes the run and writes DAG, log, resource log, rescue file, braindump and records.
pub fn generate(dir: &Path, shape: Shape) -> io::Result<Made> {
    fs::create_dir_all(dir)?;
    let tasks = tasks(shape);
    write_dag(&dir.join("study-0.dag"), &tasks)?;
    fs::write(
        dir.join("braindump.yml"),
        format!(
            "user: \"someone\"\ngrid_dn: null\nsubmit_hostname: \"login\"\nroot_wf_uuid: \"{UUID}\"\nwf_uuid: \"{UUID}\"\n\
             dax: \"study.yml\"\ndax_label: \"study\"\ndax_index: \"0\"\ndax_version: \"5.0.4\"\ntimestamp: \"20260921T000000+0000\"\n\
             submit_dir: \"{0}\"\nplanner_version: \"5.1.3\"\nplanner_arguments: \"\"\ndag: \"{0}/study-0.dag\"\n",
            dir.display()
        ),
    )?;
    let mut log = Log::create(dir)?;
    let hosts: Vec<String> = (1..=shape.hosts).map(|n| format!("node{n:03}")).collect();
    let mut free: Vec<(u32, u32, u64)> = vec![(shape.slots, CPUS, MEMORY_MB); shape.hosts];
    let mut now = BEGIN * 1_000_000;
    log.start(now);
    now += 200_000;
    for (host, name) in hosts.iter().enumerate() {
        log.free(now, name, free[host])?;
    }
    let mut random = Random(7);
    let mut parents: Vec<u32> = tasks.iter().map(|task| task.parents).collect();
    let mut ready: VecDeque<u32> = VecDeque::new();
    let mut numbers = vec![0_u64; tasks.len()];
    let mut attempts = vec![0_u8; tasks.len()];
    let mut next = 0;
    let mut tries: Vec<Try> = Vec::with_capacity(tasks.len());
    let mut ends: BinaryHeap<Ending> = BinaryHeap::new();
    let mut rescue = BufWriter::new(File::create(dir.join("study-0.dag.rescue"))?);
    let mut done = 0;
    for task in 0..tasks.len() as u32 {
        if parents[task as usize] == 0 {
            next += 1;
            numbers[task as usize] = next;
            log.queued(now, &tasks[task as usize].name, next)?;
            ready.push_back(task);
        }
    }
    let mut host = 0;
    loop {
        // Fill the hosts in turn.
        let mut refused = 0;
        while refused < shape.hosts
            && let Some(&task) = ready.front()
        {
            let what = &tasks[task as usize];
            let there = &mut free[host];
            if there.0 == 0 || there.1 < what.cpus || there.2 < what.memory_mb {
                refused += 1;
                host = (host + 1) % shape.hosts;
                continue;
            }
            refused = 0;
            ready.pop_front();
            *there = (there.0 - 1, there.1 - what.cpus, there.2 - what.memory_mb);
            now += 20;
            let number = numbers[task as usize];
            log.started(now, &what.name, number)?;
            log.free(now + 3, &hosts[host], free[host])?;
            let (median, spread) = match what.transformation {
                "simulate" => (55.0, 0.35),
                "filter" => (22.0, 0.5),
                "merge" => (90.0, 0.2),
                "plot" => (35.0, 0.3),
                _ => (4.0, 0.4),
            };
            // One host is slower than the others.
            let slow = if host == 1 { 1.35 } else { 1.0 };
            let seconds = random.long_tailed(median, spread) * slow;
            let fails = what.id != "null" && random.number() % 1000 < shape.failing;
            let status = match (fails, what.transformation) {
                (false, _) => 0,
                (true, "simulate") => 256,
                (true, _) => 35_072,
            };
            let seconds = if fails { seconds * 0.4 } else { seconds };
            let peak = what.memory_mb.max(20) as f64 * 1024.0 * (0.3 + 0.6 * random.unit());
            tries.push(Try {
                task,
                number,
                host,
                start: now + 3,
                end: now + (seconds * 1e6) as u64,
                status,
                peak_kib: if status == 35_072 {
                    what.memory_mb * 1010
                } else {
                    peak as u64
                },
                cpu_seconds: seconds * (0.6 + 0.38 * random.unit()),
            });
            ends.push(Ending {
                time: std::cmp::Reverse(tries[tries.len() - 1].end),
                number: tries.len() - 1,
            });
        }
        let Some(ending) = ends.pop() else { break };
        now = now.max(ending.time.0);
        let one = &mut tries[ending.number];
        one.end = now + 2;
        let (task, at) = (one.task, one.host);
        let what = &tasks[task as usize];
        let there = &mut free[at];
        *there = (there.0 + 1, there.1 + what.cpus, there.2 + what.memory_mb);
        log.ended(now, &what.name, one.number, one.status)?;
        log.free(now + 2, &hosts[at], free[at])?;
        host = at;
        let attempt = &mut attempts[task as usize];
        *attempt += 1;
        if shape.records || (one.status != 0 && ending.number < 3_000_000) {
            record(dir, what, one, &hosts[at], *attempt - 1)?;
        }
        if one.status == 0 {
            done += 1;
            writeln!(rescue, "DONE {}", what.name)?;
            for child in &what.children {
                parents[*child as usize] -= 1;
                if parents[*child as usize] == 0 {
                    next += 1;
                    numbers[*child as usize] = next;
                    log.queued(now, &tasks[*child as usize].name, next)?;
                    ready.push_back(*child);
                }
            }
        } else if *attempt < 2 {
            next += 1;
            numbers[task as usize] = next;
            log.queued(now, &what.name, next)?;
            ready.push_back(task);
        }
    }
    let success = done == tasks.len();
    log.finish(now + 100_000, success)?;
    Ok(Made {
        tasks,
        tries,
        hosts,
        end: now + 100_000,
        success,
    })
}

/// Of the workflow.
pub const UUID: &str = "11111111-2222-4333-8444-555555555555";

fn write_dag(path: &Path, tasks: &[Task]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut text = String::new();
    let failed = |error: write::WriteError| io::Error::other(error.to_string());
    for (number, task) in (1..).zip(tasks) {
        text.clear();
        write::comment(&mut text, number, task.transformation, &task.id).map_err(failed)?;
        // As long as those of planned tasks.
        let _ = std::fmt::Write::write_fmt(
            &mut text,
            format_args!(
                "TASK {} -m {} -c {} /opt/pmc/bin/pegasus-kickstart -n {} -N {} -R cluster -w /scratch/someone/study/run0001 \
                 -L study -T 2026-09-21T00:00:00+00:00 /opt/study/bin/{} -i input.{number} -o output.{number} --verbose\n",
                task.name, task.memory_mb, task.cpus, task.transformation, task.id, task.transformation
            ),
        );
        file.write_all(text.as_bytes())?;
    }
    for task in tasks {
        for child in &task.children {
            text.clear();
            write::edge(&mut text, &task.name, &tasks[*child as usize].name).map_err(failed)?;
            file.write_all(text.as_bytes())?;
        }
    }
    file.flush()
}

struct Log {
    dagman: BufWriter<File>,
    resource: BufWriter<File>,
    line: Vec<u8>,
    second: u64,
    stamp: dagman_out::Stamp,
}

impl Log {
    fn create(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            dagman: BufWriter::with_capacity(1 << 20, File::create(dir.join("study-0.dag.dagman.out"))?),
            resource: BufWriter::with_capacity(1 << 20, File::create(dir.join("study-0.dag.resource"))?),
            line: Vec::new(),
            second: 0,
            stamp: dagman_out::Stamp::new(DateTime::UNIX_EPOCH.naive_utc()),
        })
    }

    fn at(&mut self, micros: u64) {
        let second = micros / 1_000_000;
        if second != self.second {
            self.second = second;
            let time = DateTime::from_timestamp(second as i64, 0).unwrap_or_default();
            self.stamp = dagman_out::Stamp::new(time.with_timezone(&Local).naive_local());
        }
        self.line.clear();
    }

    fn start(&mut self, micros: u64) {
        self.at(micros);
        dagman_out::start(&mut self.line, &self.stamp, 4242, b"study-0.dag");
        let _ = self.dagman.write_all(&self.line);
    }

    fn queued(&mut self, micros: u64, name: &str, number: u64) -> io::Result<()> {
        self.at(micros);
        dagman_out::queued(&mut self.line, &self.stamp, name.as_bytes(), number);
        self.dagman.write_all(&self.line)
    }

    fn started(&mut self, micros: u64, name: &str, number: u64) -> io::Result<()> {
        self.at(micros);
        dagman_out::started(&mut self.line, &self.stamp, name.as_bytes(), number);
        self.dagman.write_all(&self.line)
    }

    fn ended(&mut self, micros: u64, name: &str, number: u64, status: i32) -> io::Result<()> {
        self.at(micros);
        dagman_out::ended(&mut self.line, &self.stamp, name.as_bytes(), number, status);
        self.dagman.write_all(&self.line)
    }

    fn finish(&mut self, micros: u64, success: bool) -> io::Result<()> {
        self.at(micros);
        dagman_out::finish(&mut self.line, &self.stamp, 4242, success);
        self.dagman.write_all(&self.line)?;
        self.dagman.flush()?;
        self.resource.flush()
    }

    fn free(&mut self, micros: u64, host: &str, (slots, cpus, memory_mb): (u32, u32, u64)) -> io::Result<()> {
        self.line.clear();
        let free = Free {
            host,
            slots,
            cpus,
            memory_mb,
        };
        resource_log::line(&mut self.line, Duration::from_micros(micros), free);
        self.resource.write_all(&self.line)
    }
}

/// What kickstart would leave.
fn record(dir: &Path, task: &Task, one: &Try, host: &str, attempt: u8) -> io::Result<()> {
    let time = DateTime::from_timestamp_micros(one.start as i64).unwrap_or_default();
    let start = time.format("%Y-%m-%dT%H:%M:%S%.3f+00:00");
    let seconds = (one.end - one.start) as f64 / 1e6;
    let raw = if one.status == 35_072 { 9 } else { one.status };
    let stderr = match one.status {
        0 => "",
        256 => "Traceback (most recent call last):\n        ValueError: step 1204 did not converge\n",
        _ => "reading 48 files\n",
    };
    let text = format!(
        "- invocation: True\n  version: 3.0\n  start: {start}\n  duration: {seconds:.3}\n  transformation: \"{}\"\n  \
         derivation: \"{}\"\n  resource: \"cluster\"\n  hostaddr: 10.0.0.1\n  hostname: {host}\n  user: someone\n  mainjob:\n    \
         start: {start}\n    duration: {seconds:.3}\n    usage:\n      utime: {:.3}\n      stime: 0.010\n      maxrss: {}\n    \
         status:\n      raw: {raw}\n    executable:\n      file_name: /opt/study/bin/{}\n    argument_vector:\n      - \"-i\"\n      \
         - \"input\"\n  cwd: /scratch/someone/study/run0001\n  files:\n    stderr:\n      data: |\n        {stderr}\n\
         [cluster-task id=1, name={}, start=\"{start}\", duration={seconds:.3}, status={}, app=\"/opt/x\", hostname=\"{host}\", \
         slot=1, cpus={}, memory={}]\n",
        task.transformation,
        task.id,
        one.cpu_seconds,
        one.peak_kib,
        task.transformation,
        task.name,
        one.status,
        task.cpus,
        task.memory_mb
    );
    fs::write(dir.join(format!("{}.out.{attempt:03}", task.name)), text)
}

/// Counts by transformation, to compare with.
pub fn succeeded(made: &Made) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for one in made.tries.iter().filter(|one| one.status == 0) {
        *counts
            .entry(made.tasks[one.task as usize].transformation)
            .or_insert(0) += 1;
    }
    counts
}
