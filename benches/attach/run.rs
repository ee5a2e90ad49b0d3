//! A run that is measured.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use testutils::processes::executors;

/// Time limit for what takes a moment.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A way in which workers run.
pub struct Flavour {
    pub name: &'static str,
    program: String,
    launcher: Vec<String>,
}

impl Flavour {
    /// Those that can be measured here.
    pub fn all() -> Vec<Self> {
        let program = testutils::programs::path("pegasus-mpi-cluster").to_owned();
        let own = |name| Self {
            name,
            program: program.clone(),
            launcher: Vec::new(),
        };
        let mut all = vec![own("local"), own("agent")];
        if let Ok(line) = std::env::var("PMC_BENCH_MPI") {
            let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            all.push(Self {
                name: "MPI",
                program: words.pop().expect("PMC_BENCH_MPI names a launcher and a program"),
                launcher: words,
            });
        }
        all
    }

    /// The same with another program.
    pub fn with_program(&self, program: &str) -> Self {
        Self {
            name: self.name,
            program: program.to_owned(),
            launcher: self.launcher.clone(),
        }
    }

    /// Returns the command line for this number of workers.
    pub fn words(&self, workers: usize) -> Vec<String> {
        let mut words = self.launcher.clone();
        if let Some(at) = words.iter().position(|word| word == "-n")
            && let Some(ranks) = words.get_mut(at + 1)
        {
            *ranks = (workers + 1).to_string();
        }
        words.push(self.program.clone());
        let workers = workers.to_string();
        let options = match self.name {
            "local" => vec!["--workers", &workers],
            "agent" => vec!["--agents", "1", "--launch", "local", "--slots", &workers],
            _ => vec![],
        };
        words.extend(options.into_iter().map(str::to_owned));
        words
    }
}

/// Resident memory of processes in KiB, at most so far.
pub type Memory = Vec<u64>;

/// A run in a directory of its own, which has the FIFOs `start` and `finish`.
pub struct Run {
    directory: tempfile::TempDir,
    child: Child,
    processes: std::cell::OnceCell<Vec<u32>>,
}

impl Run {
    pub fn start(words: Vec<String>, directory: tempfile::TempDir, dag: &str, options: &[&str]) -> Self {
        let path = directory.path();
        fs::write(path.join("w.dag"), dag).expect("a DAG");
        for name in ["start", "finish"] {
            mkfifo(&path.join(name), Mode::S_IRWXU).expect("a FIFO");
        }
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(["-s", "--jobstate-log"])
            .args(options)
            .arg("w.dag")
            .current_dir(path)
            // The executor writes the list of workflows there.
            .env("HOME", path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(path.join("messages")).expect("a file"))
            .spawn()
            .expect("the executor starts");
        Self {
            directory,
            child,
            processes: std::cell::OnceCell::new(),
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn count(&self, event: &str) -> usize {
        let log = fs::read_to_string(self.path().join("jobstate.log")).unwrap_or_default();
        log.matches(event).count()
    }

    /// Waits until this number of tasks have started.
    pub fn wait_for_tasks(&self, number: usize) {
        wait_for(|| self.count(" EXECUTE ") >= number);
        let _ = self.processes.set(executors(self.child.id()));
    }

    /// Number of tasks that have succeeded.
    pub fn done(&self) -> usize {
        self.count(" JOB_SUCCESS ")
    }

    /// Lets the task go on that reads the FIFO `start`. Returns when.
    pub fn release(&self) -> Instant {
        let fifo = OpenOptions::new().write(true).open(self.path().join("start"));
        drop(fifo.expect("a FIFO"));
        Instant::now()
    }

    /// A command of pmc in the directory of the run.
    pub fn pmc(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(testutils::programs::path("pmc"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env("HOME", self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// Returns the memory of the processes of the executor.
    pub fn memory(&self) -> Memory {
        let processes = self.processes.get().map_or(&[][..], Vec::as_slice);
        processes.iter().map(|pid| resident(*pid)).collect()
    }

    /// The same at the end of the run.
    pub fn memory_at_end(&mut self) -> Memory {
        let mut memory = self.memory();
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            for (most, now) in memory.iter_mut().zip(self.memory()) {
                *most = now.max(*most);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.end();
        memory
    }

    /// Waits for the end of a run that succeeds.
    pub fn end(&mut self) {
        let status = self.child.wait().expect("the run ends");
        let messages = fs::read_to_string(self.path().join("messages")).unwrap_or_default();
        assert!(status.success(), "the run must succeed: {messages}");
    }

    /// Waits for the end of the run.
    pub fn wait(&mut self) {
        self.child.wait().expect("the run ends");
    }

    /// Returns the number of files below the directory.
    pub fn files(&self) -> usize {
        count_files(self.path())
    }
}

impl Drop for Run {
    /// A measurement that fails leaves no process.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn count_files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => count_files(&entry.path()),
            _ => 1,
        })
        .sum()
}

/// Returns the largest resident memory of a process so far, in KiB.
pub fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_default()
}

/// Describes how much more memory each process has.
pub fn difference(before: &Memory, after: &Memory) -> String {
    let differences = after.iter().zip(before).map(|(after, before)| {
        let more = *after as f64 - *before as f64;
        format!("{:+.1}", more / 1024.0)
    });
    differences.collect::<Vec<_>>().join(", ") + " MiB"
}

/// Returns what a program prints about its standard input.
pub fn output_of(program: &str, input: &Path) -> String {
    let output = Command::new(program)
        .stdin(File::open(input).expect("the data"))
        .output();
    let output = output.expect("the program runs");
    String::from_utf8(output.stdout).expect("text")
}

pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("it runs");
}

fn wait_for(is_there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < TIMEOUT, "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}
