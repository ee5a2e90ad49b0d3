//! Generates the submit directory of a large run without running anything.
//!
//! A small simulation: a task becomes ready when its parents are done, takes a free slot, lasts a while, and
//! may fail. The code that writes the DAG and the logs of real runs writes these, too.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Local};
use monitord_compat::resource_log::Free;
use monitord_compat::{dagman_out, resource_log};
use pmc_dag::write;

use crate::Random;

mod database;

pub use database::write_database;

/// Begin of the run, seconds since the epoch.
pub const BEGIN: u64 = 1_790_000_000;
/// CPUs of a host.
const CPUS: u32 = 16;
/// Memory of a host.
const MEMORY_MB: u64 = 64_000;
/// Maximum attempts of a task.
const MAX_ATTEMPTS: u8 = 2;
/// Wait status of an attempt that used up its memory: exit status 137.
const OUT_OF_MEMORY: i32 = 35_072;

/// Size and kind of a run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Approximate number of tasks.
    pub tasks: usize,
    /// Number of hosts.
    pub hosts: usize,
    /// Slots per host.
    pub slots: u32,
    /// Failing attempts per thousand.
    pub failing: u64,
    /// Write a record for each attempt, not only for failed ones.
    pub records: bool,
}

/// A task of the run.
pub struct Task {
    /// Name in the DAG.
    pub name: String,
    /// Name of the transformation.
    pub transformation: &'static str,
    /// Identifier in the workflow; `null` for an auxiliary job.
    pub id: String,
    /// Requested CPUs.
    pub cpus: u32,
    /// Requested memory.
    pub memory_mb: u64,
    /// Indices of its children.
    pub children: Vec<u32>,
    parents: u32,
}

impl Task {
    /// Returns whether this is a job of the workflow.
    #[must_use]
    pub fn is_compute(&self) -> bool {
        self.id != "null"
    }
}

/// An attempt of a task.
pub struct Attempt {
    /// Index of the task.
    pub task: u32,
    /// Submit number.
    pub number: u64,
    /// Index of the host.
    pub host: usize,
    /// Start, in microseconds since the epoch.
    pub start: u64,
    /// End, in microseconds since the epoch.
    pub end: u64,
    /// Raw wait status.
    pub status: i32,
    /// Peak resident memory in KiB.
    pub peak_kib: u64,
    /// CPU time.
    pub cpu_seconds: f64,
}

/// A run that was written but never happened.
pub struct GeneratedRun {
    /// All tasks, in the order of the DAG.
    pub tasks: Vec<Task>,
    /// All attempts, in the order of their starts.
    pub attempts: Vec<Attempt>,
    /// Names of the hosts.
    pub hosts: Vec<String>,
    /// End of the run, in microseconds since the epoch.
    pub end: u64,
    /// True if all tasks are done.
    pub success: bool,
}

/// Makes the tasks of a workflow: many simulations, filters behind them, merges of filters, plots of merges.
fn tasks(shape: Shape) -> Vec<Task> {
    let share = |percent: usize| (shape.tasks * percent / 100).max(1);
    let mut tasks = TaskList::default();
    let first = tasks.add_auxiliary("create_dir_study_0_cluster", "pegasus::dirmanager");
    let stage_ins: Vec<u32> = (0..8.min(share(60)))
        .map(|n| tasks.add_auxiliary(&format!("stage_in_local_cluster_0_{n}"), "pegasus::transfer"))
        .collect();
    let simulations = tasks.add_jobs(share(60), "simulate", 1, 1500);
    let filters = tasks.add_jobs(share(37), "filter", 1, 800);
    let merges = tasks.add_jobs(share(2), "merge", 2, 6000);
    let plots = tasks.add_jobs(merges.len().div_ceil(50), "plot", 1, 500);
    let stage_out = tasks.add_auxiliary("stage_out_cluster_local_3_0", "pegasus::transfer");
    let cleanup = tasks.add_auxiliary("cleanup_study_0_cluster", "pegasus::cleanup");

    for stage_in in &stage_ins {
        tasks.add_edge(first, *stage_in);
    }
    for (n, simulation) in simulations.iter().enumerate() {
        tasks.add_edge(stage_ins[n % stage_ins.len()], *simulation);
    }
    for (n, filter) in filters.iter().enumerate() {
        tasks.add_edge(simulations[n % simulations.len()], *filter);
    }
    for (n, filter) in filters.iter().enumerate() {
        tasks.add_edge(*filter, merges[n * merges.len() / filters.len()]);
    }
    for (n, merge) in merges.iter().enumerate() {
        tasks.add_edge(*merge, plots[n / 50]);
    }
    for plot in plots {
        tasks.add_edge(plot, stage_out);
    }
    tasks.add_edge(stage_out, cleanup);
    tasks.tasks
}

#[derive(Default)]
struct TaskList {
    tasks: Vec<Task>,
    jobs: usize,
}

impl TaskList {
    fn add(&mut self, task: Task) -> u32 {
        self.tasks.push(task);
        self.tasks.len() as u32 - 1
    }

    fn add_auxiliary(&mut self, name: &str, transformation: &'static str) -> u32 {
        self.add(Task {
            name: name.to_owned(),
            transformation,
            id: "null".to_owned(),
            cpus: 1,
            memory_mb: 0,
            children: Vec::new(),
            parents: 0,
        })
    }

    fn add_jobs(
        &mut self,
        count: usize,
        transformation: &'static str,
        cpus: u32,
        memory_mb: u64,
    ) -> Vec<u32> {
        (0..count)
            .map(|_| {
                self.jobs += 1;
                let id = format!("ID{:07}", self.jobs);
                self.add(Task {
                    name: format!("{transformation}_{id}"),
                    transformation,
                    id,
                    cpus,
                    memory_mb,
                    children: Vec::new(),
                    parents: 0,
                })
            })
            .collect()
    }

    fn add_edge(&mut self, parent: u32, child: u32) {
        self.tasks[parent as usize].children.push(child);
        self.tasks[child as usize].parents += 1;
    }
}

/// An attempt that will end. The heap returns the earliest first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RunningAttempt {
    end: Reverse<u64>,
    index: usize,
}

/// Free resources of a host.
#[derive(Clone, Copy)]
struct FreeHost {
    slots: u32,
    cpus: u32,
    memory_mb: u64,
}

/// Generates a run and writes its DAG, logs, rescue file, braindump and records into `dir`.
///
/// # Errors
/// The directory cannot be written.
pub fn generate(dir: &Path, shape: Shape) -> io::Result<GeneratedRun> {
    fs::create_dir_all(dir)?;
    let tasks = tasks(shape);
    write_dag(&dir.join("study-0.dag"), &tasks)?;
    write_braindump(dir)?;
    let mut simulation = Simulation::new(dir, shape, tasks)?;
    simulation.run()?;
    simulation.finish()
}

fn write_braindump(dir: &Path) -> io::Result<()> {
    fs::write(
        dir.join("braindump.yml"),
        format!(
            "user: \"someone\"\ngrid_dn: null\nsubmit_hostname: \"login\"\nroot_wf_uuid: \"{UUID}\"\nwf_uuid: \"{UUID}\"\n\
             dax: \"study.yml\"\ndax_label: \"study\"\ndax_index: \"0\"\ndax_version: \"5.0.4\"\n\
             timestamp: \"20260921T000000+0000\"\nsubmit_dir: \"{0}\"\nplanner_version: \"5.1.3\"\n\
             planner_arguments: \"\"\ndag: \"{0}/study-0.dag\"\n",
            dir.display()
        ),
    )
}

struct Simulation<'a> {
    dir: &'a Path,
    shape: Shape,
    tasks: Vec<Task>,
    hosts: Vec<String>,
    free: Vec<FreeHost>,
    /// Parents of each task that are not done.
    open_parents: Vec<u32>,
    ready: VecDeque<u32>,
    /// Submit number of each task's latest attempt.
    submit_numbers: Vec<u64>,
    last_submit_number: u64,
    /// Attempts of each task that have ended.
    ended: Vec<u8>,
    attempts: Vec<Attempt>,
    running: BinaryHeap<RunningAttempt>,
    done: usize,
    /// The host that is tried next.
    host: usize,
    now: u64,
    random: Random,
    log: Log,
    rescue: BufWriter<File>,
}

impl<'a> Simulation<'a> {
    fn new(dir: &'a Path, shape: Shape, tasks: Vec<Task>) -> io::Result<Self> {
        let free = FreeHost {
            slots: shape.slots,
            cpus: CPUS,
            memory_mb: MEMORY_MB,
        };
        Ok(Self {
            dir,
            shape,
            hosts: (1..=shape.hosts).map(|n| format!("node{n:03}")).collect(),
            free: vec![free; shape.hosts],
            open_parents: tasks.iter().map(|task| task.parents).collect(),
            ready: VecDeque::new(),
            submit_numbers: vec![0; tasks.len()],
            last_submit_number: 0,
            ended: vec![0; tasks.len()],
            attempts: Vec::with_capacity(tasks.len()),
            running: BinaryHeap::new(),
            done: 0,
            host: 0,
            now: BEGIN * 1_000_000,
            random: Random(7),
            log: Log::create(dir)?,
            rescue: BufWriter::new(File::create(dir.join("study-0.dag.rescue"))?),
            tasks,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        self.log.start(self.now)?;
        self.now += 200_000;
        for (name, free) in self.hosts.iter().zip(&self.free) {
            self.log.free(self.now, name, *free)?;
        }
        for task in 0..self.tasks.len() as u32 {
            if self.open_parents[task as usize] == 0 {
                self.queue(task)?;
            }
        }
        loop {
            self.fill_hosts()?;
            let Some(next) = self.running.pop() else {
                return Ok(());
            };
            self.end(next.index, next.end.0)?;
        }
    }

    fn finish(mut self) -> io::Result<GeneratedRun> {
        let end = self.now + 100_000;
        let success = self.done == self.tasks.len();
        self.log.finish(end, success)?;
        self.rescue.flush()?;
        Ok(GeneratedRun {
            tasks: self.tasks,
            attempts: self.attempts,
            hosts: self.hosts,
            end,
            success,
        })
    }

    fn queue(&mut self, task: u32) -> io::Result<()> {
        self.last_submit_number += 1;
        self.submit_numbers[task as usize] = self.last_submit_number;
        let name = &self.tasks[task as usize].name;
        self.log.queued(self.now, name, self.last_submit_number)?;
        self.ready.push_back(task);
        Ok(())
    }

    /// Starts ready tasks on the hosts in turn, until no host has room for the next one.
    fn fill_hosts(&mut self) -> io::Result<()> {
        let mut full_hosts = 0;
        while full_hosts < self.shape.hosts
            && let Some(&task) = self.ready.front()
        {
            let asked = &self.tasks[task as usize];
            let free = &mut self.free[self.host];
            if free.slots == 0 || free.cpus < asked.cpus || free.memory_mb < asked.memory_mb {
                full_hosts += 1;
                self.host = (self.host + 1) % self.shape.hosts;
                continue;
            }
            full_hosts = 0;
            self.ready.pop_front();
            free.slots -= 1;
            free.cpus -= asked.cpus;
            free.memory_mb -= asked.memory_mb;
            self.start(task)?;
        }
        Ok(())
    }

    fn start(&mut self, task: u32) -> io::Result<()> {
        self.now += 20;
        let (now, host) = (self.now, self.host);
        let asked = &self.tasks[task as usize];
        let number = self.submit_numbers[task as usize];
        self.log.started(now, &asked.name, number)?;
        self.log.free(now + 3, &self.hosts[host], self.free[host])?;
        let (median, spread) = match asked.transformation {
            "simulate" => (55.0, 0.35),
            "filter" => (22.0, 0.5),
            "merge" => (90.0, 0.2),
            "plot" => (35.0, 0.3),
            _ => (4.0, 0.4),
        };
        // One host is slower than the others.
        let slowdown = if host == 1 { 1.35 } else { 1.0 };
        let seconds = self.random.long_tailed(median, spread) * slowdown;
        let fails = asked.is_compute() && self.random.number() % 1000 < self.shape.failing;
        let status = match (fails, asked.transformation) {
            (false, _) => 0,
            (true, "simulate") => 256,
            (true, _) => OUT_OF_MEMORY,
        };
        let seconds = if fails { seconds * 0.4 } else { seconds };
        let peak = asked.memory_mb.max(20) as f64 * 1024.0 * (0.3 + 0.6 * self.random.unit());
        let end = now + (seconds * 1e6) as u64;
        self.running.push(RunningAttempt {
            end: Reverse(end),
            index: self.attempts.len(),
        });
        self.attempts.push(Attempt {
            task,
            number,
            host,
            start: now + 3,
            end,
            status,
            peak_kib: if status == OUT_OF_MEMORY {
                asked.memory_mb * 1010
            } else {
                peak as u64
            },
            cpu_seconds: seconds * (0.6 + 0.38 * self.random.unit()),
        });
        Ok(())
    }

    fn end(&mut self, index: usize, time: u64) -> io::Result<()> {
        self.now = self.now.max(time);
        let attempt = &mut self.attempts[index];
        attempt.end = self.now + 2;
        let (id, host, status) = (attempt.task, attempt.host, attempt.status);
        let task = &self.tasks[id as usize];
        let free = &mut self.free[host];
        free.slots += 1;
        free.cpus += task.cpus;
        free.memory_mb += task.memory_mb;
        self.log.ended(self.now, &task.name, attempt.number, status)?;
        self.log.free(self.now + 2, &self.hosts[host], *free)?;
        self.host = host;
        let ended = &mut self.ended[id as usize];
        *ended += 1;
        if self.shape.records || status != 0 {
            write_record(self.dir, task, attempt, &self.hosts[host], *ended - 1)?;
        }
        if status == 0 {
            self.done += 1;
            writeln!(self.rescue, "DONE {}", task.name)?;
            for child in self.tasks[id as usize].children.clone() {
                self.open_parents[child as usize] -= 1;
                if self.open_parents[child as usize] == 0 {
                    self.queue(child)?;
                }
            }
        } else if *ended < MAX_ATTEMPTS {
            self.queue(id)?;
        }
        Ok(())
    }
}

/// UUID of the workflow.
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

    /// Prepares a line for this time.
    fn at(&mut self, micros: u64) {
        let second = micros / 1_000_000;
        if second != self.second {
            self.second = second;
            let time = DateTime::from_timestamp(second as i64, 0).unwrap_or_default();
            self.stamp = dagman_out::Stamp::new(time.with_timezone(&Local).naive_local());
        }
        self.line.clear();
    }

    fn start(&mut self, micros: u64) -> io::Result<()> {
        self.at(micros);
        dagman_out::start(&mut self.line, &self.stamp, 4242, b"study-0.dag");
        self.dagman.write_all(&self.line)
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

    fn free(&mut self, micros: u64, host: &str, free: FreeHost) -> io::Result<()> {
        self.line.clear();
        let free = Free {
            host,
            slots: free.slots,
            cpus: free.cpus,
            memory_mb: free.memory_mb,
        };
        resource_log::line(&mut self.line, Duration::from_micros(micros), free);
        self.resource.write_all(&self.line)
    }
}

/// Writes the output file of an attempt, with the record of kickstart.
fn write_record(dir: &Path, task: &Task, attempt: &Attempt, host: &str, number: u8) -> io::Result<()> {
    let time = DateTime::from_timestamp_micros(attempt.start as i64).unwrap_or_default();
    let start = time.format("%Y-%m-%dT%H:%M:%S%.3f+00:00");
    let seconds = (attempt.end - attempt.start) as f64 / 1e6;
    let raw = if attempt.status == OUT_OF_MEMORY {
        9
    } else {
        attempt.status
    };
    let stderr = match attempt.status {
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
        attempt.cpu_seconds,
        attempt.peak_kib,
        task.transformation,
        task.name,
        attempt.status,
        task.cpus,
        task.memory_mb
    );
    fs::write(dir.join(format!("{}.out.{number:03}", task.name)), text)
}

/// Counts successful attempts by transformation.
#[must_use]
pub fn count_succeeded(run: &GeneratedRun) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for attempt in run.attempts.iter().filter(|attempt| attempt.status == 0) {
        *counts
            .entry(run.tasks[attempt.task as usize].transformation)
            .or_insert(0) += 1;
    }
    counts
}
