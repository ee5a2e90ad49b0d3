//! A stand-in for Slurm whose jobs run on this machine and last seconds.
//!
//! Scripts named `sbatch`, `squeue` and `scancel` speak with a thread by files: each job has a directory. The
//! processes of a job are those that have inherited its variable. As Slurm does, it sends SIGCONT and SIGTERM
//! to all processes of a job at its end, SIGKILL some time later, and SIGKILL to what a batch script leaves
//! behind.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Variable with the directory of its job in all processes of a job.
const VARIABLE: &str = "PMC_TEST_JOB";

/// Time from SIGTERM to SIGKILL, as `KillWait`. An executor takes 8 s of it at most.
const KILL_WAIT: Duration = Duration::from_secs(12);

/// Number of the first job.
const FIRST: u32 = 101;

/// How often the batch system looks at its jobs.
const TICK: Duration = Duration::from_millis(30);

/// While this file exists, the batch system does not answer, and starts nothing.
const AWAY: &str = "away";

const SBATCH: &str = r#"after=
for word; do case $word in --dependency=afterany:*) after=${word##*:} ;; esac; done
number=101
until mkdir "$top/jobs/$number" 2>/dev/null; do number=$((number + 1)); done
job=$top/jobs/$number
echo "$after" >"$job/after"
echo 'PENDING||' >"$job/state"
echo Dependency >"$job/reason"
echo "$PWD/$word" >"$job/new" && mv "$job/new" "$job/script"
echo "$number"
"#;

const SQUEUE: &str = r#"number=
for word; do case $word in --jobs=*) number=${word##*=} ;; esac; done
job=$top/jobs/$number
state=$(cat "$job/state" 2>/dev/null) || { echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }
left=$(($(cat "$job/end" 2>/dev/null || echo 0) - $(date +%s)))
[ "$left" -gt 0 ] || left=0
echo "$state|$((left / 60)):$(printf %02d $((left % 60)))|$(cat "$job/reason")"
"#;

const SCANCEL: &str = r#"[ -e "$top/jobs/$1/script" ] || { echo 'scancel: error: Invalid job id' >&2; exit 1; }
: >"$top/jobs/$1/cancel"
"#;

/// How a job ended, or why it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Cancelled,
    Completed,
    NodeFail,
    Timeout,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "CANCELLED",
            Self::Completed => "COMPLETED",
            Self::NodeFail => "NODE_FAIL",
            Self::Timeout => "TIMEOUT",
        })
    }
}

enum State {
    Waiting,
    Running {
        script: Child,
        ends: Instant,
    },
    /// It is to end, and gets SIGKILL at a time.
    Ending {
        script: Child,
        end: End,
        kill_at: Instant,
    },
    Ended(End),
}

struct Job {
    number: u32,
    directory: PathBuf,
    after: Option<u32>,
    script: PathBuf,
    state: State,
}

#[derive(Default)]
struct Jobs {
    all: Vec<Job>,
    /// The thread ends.
    is_over: bool,
}

/// A batch system. Its jobs are killed when it is dropped.
pub(super) struct BatchSystem {
    top: PathBuf,
    jobs: Arc<Mutex<Jobs>>,
    thread: Option<JoinHandle<()>>,
}

impl BatchSystem {
    /// Starts one in a directory. Its jobs find these programs, and run for this time.
    pub(super) fn start(top: &Path, programs: &Path, limit: Duration) -> io::Result<Self> {
        fs::create_dir_all(top.join("jobs"))?;
        fs::create_dir(top.join("bin"))?;
        for (name, text) in [("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)] {
            let path = top.join("bin").join(name);
            let script = format!(
                "#!/bin/sh\ntop='{}'\n[ ! -e \"$top/{AWAY}\" ] || \
                 {{ echo '{name}: error: Unable to contact slurm controller' >&2; exit 1; }}\n{text}",
                top.display()
            );
            fs::write(&path, script)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        let jobs = Arc::new(Mutex::new(Jobs::default()));
        let controller = Controller {
            top: top.to_owned(),
            path: format!(
                "{}:{}:/usr/bin:/bin",
                top.join("bin").display(),
                programs.display()
            ),
            limit,
        };
        let shared = Arc::clone(&jobs);
        let thread = std::thread::spawn(move || {
            loop {
                let mut jobs = lock(&shared);
                if jobs.is_over {
                    return;
                }
                controller.tick(&mut jobs);
                drop(jobs);
                std::thread::sleep(TICK);
            }
        });
        Ok(Self {
            top: top.to_owned(),
            jobs,
            thread: Some(thread),
        })
    }

    /// Returns a program of the batch system.
    pub(super) fn program(&self, name: &str) -> Command {
        Command::new(self.top.join("bin").join(name))
    }

    /// The batch system is away, or comes back.
    pub(super) fn set_away(&self, is_away: bool) -> io::Result<()> {
        let path = self.top.join(AWAY);
        if is_away {
            fs::write(path, "")
        } else {
            fs::remove_file(path)
        }
    }

    /// Returns the process of the batch script that runs, if another job waits for its end.
    pub(super) fn running(&self) -> Option<u32> {
        let jobs = lock(&self.jobs);
        let waits = |number: u32| {
            let mut all = jobs.all.iter();
            all.any(|job| job.after == Some(number) && matches!(job.state, State::Waiting))
        };
        jobs.all.iter().find_map(|job| match &job.state {
            State::Running { script, .. } if waits(job.number) => Some(script.id()),
            _ => None,
        })
    }

    /// Loses the node of the job that runs.
    pub(super) fn lose_node(&self) {
        for job in &mut lock(&self.jobs).all {
            if matches!(job.state, State::Running { .. }) {
                job.stop(End::NodeFail, Duration::ZERO);
            }
        }
    }

    /// Returns the number of the job that runs, else of the one that is next.
    pub(super) fn first(&self) -> Option<u32> {
        let jobs = lock(&self.jobs);
        let is_left = |job: &&Job| !matches!(job.state, State::Ended(_));
        jobs.all.iter().find(is_left).map(|job| job.number)
    }

    /// Returns the jobs that have begun or ended, in their order, and how they ended.
    pub(super) fn begun(&self) -> Vec<(u32, Option<End>)> {
        let jobs = lock(&self.jobs);
        let begun = jobs.all.iter().filter_map(|job| match job.state {
            State::Waiting => None,
            State::Ended(end) => Some((job.number, Some(end))),
            _ => Some((job.number, None)),
        });
        begun.collect()
    }

    /// True if jobs wait or run.
    pub(super) fn is_busy(&self) -> bool {
        self.first().is_some()
    }

    /// Returns the processes of all jobs, with their command lines.
    pub(super) fn processes(&self) -> Vec<(Pid, String)> {
        let prefix = format!("{VARIABLE}={}/", self.top.display());
        processes(&prefix)
    }
}

impl Drop for BatchSystem {
    fn drop(&mut self) {
        lock(&self.jobs).is_over = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for (process, _) in self.processes() {
            let _ = kill(process, Signal::SIGKILL);
        }
        for job in &mut lock(&self.jobs).all {
            if let State::Running { script, .. } | State::Ending { script, .. } = &mut job.state {
                let _ = script.wait();
            }
        }
    }
}

fn lock(jobs: &Mutex<Jobs>) -> MutexGuard<'_, Jobs> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the processes that have a variable with this beginning, and their command lines.
fn processes(prefix: &str) -> Vec<(Pid, String)> {
    let found = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = found.filter_map(|entry| {
        let process = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        if !variables.any(|variable| variable.starts_with(prefix.as_bytes())) {
            return None;
        }
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some((process, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    found.collect()
}

struct Controller {
    top: PathBuf,
    /// `PATH` of jobs.
    path: String,
    limit: Duration,
}

impl Controller {
    fn tick(&self, jobs: &mut Jobs) {
        if self.top.join(AWAY).exists() {
            return;
        }
        self.find(jobs);
        let ended = |number, all: &[Job]| {
            let mut all = all.iter();
            all.any(|job| job.number == number && matches!(job.state, State::Ended(_)))
        };
        for at in 0..jobs.all.len() {
            let may_begin = jobs.all[at].after.is_none_or(|number| ended(number, &jobs.all));
            self.advance(&mut jobs.all[at], may_begin);
        }
    }

    /// Finds jobs that were handed in.
    fn find(&self, jobs: &mut Jobs) {
        for number in FIRST.. {
            if jobs.all.iter().any(|job| job.number == number) {
                continue;
            }
            let directory = self.top.join("jobs").join(number.to_string());
            let Ok(script) = fs::read_to_string(directory.join("script")) else {
                return;
            };
            let after = fs::read_to_string(directory.join("after")).unwrap_or_default();
            jobs.all.push(Job {
                number,
                directory,
                after: after.trim().parse().ok(),
                script: PathBuf::from(script.trim()),
                state: State::Waiting,
            });
        }
    }

    fn advance(&self, job: &mut Job, may_begin: bool) {
        let is_cancelled = job.directory.join("cancel").exists();
        let is_over = match &mut job.state {
            State::Running { script, .. } | State::Ending { script, .. } => {
                !matches!(script.try_wait(), Ok(None))
            }
            State::Waiting | State::Ended(_) => false,
        };
        match &job.state {
            State::Waiting if is_cancelled => job.end(End::Cancelled),
            State::Waiting if may_begin => self.begin(job),
            State::Running { .. } if is_over => job.stop(End::Completed, Duration::ZERO),
            State::Running { .. } if is_cancelled => job.stop(End::Cancelled, KILL_WAIT),
            State::Running { ends, .. } if *ends <= Instant::now() => {
                job.say("reason", "TimeLimit");
                job.stop(End::Timeout, KILL_WAIT);
            }
            State::Ending { end, kill_at, .. } => {
                let (is_late, end, left) = (*kill_at <= Instant::now(), *end, job.processes());
                // The script may have been the first that ended.
                if (is_over || is_late) && !left.is_empty() {
                    send(&left, Signal::SIGKILL);
                } else if is_over {
                    job.end(end);
                }
            }
            State::Waiting | State::Running { .. } | State::Ended(_) => {}
        }
    }

    fn begin(&self, job: &mut Job) {
        let output = || {
            let path = self.top.join("output");
            fs::OpenOptions::new().append(true).create(true).open(path)
        };
        let (Ok(out), Ok(err)) = (output(), output()) else {
            return;
        };
        let end = SystemTime::now() + self.limit;
        let end = end.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        job.say("end", &end.to_string());
        job.say("reason", "None");
        job.say("state", "RUNNING|n1|n1");
        let started = Command::new("/bin/sh")
            .arg(&job.script)
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", &self.top)
            .env("SLURM_JOB_ID", job.number.to_string())
            .env("SLURM_JOB_NODELIST", "n1")
            .env(VARIABLE, &job.directory)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn();
        if let Ok(script) = started {
            let ends = Instant::now() + self.limit;
            job.state = State::Running { script, ends };
        }
    }
}

impl Job {
    /// Begins to end a job that runs. All processes get a signal: SIGKILL at once, or else some time later.
    fn stop(&mut self, end: End, grace: Duration) {
        let processes = self.processes();
        if grace.is_zero() {
            send(&processes, Signal::SIGKILL);
        } else {
            send(&processes, Signal::SIGCONT);
            send(&processes, Signal::SIGTERM);
        }
        let state = std::mem::replace(&mut self.state, State::Waiting);
        self.state = match state {
            State::Running { script, .. } => State::Ending {
                script,
                end,
                kill_at: Instant::now() + grace,
            },
            other => other,
        };
    }

    fn end(&mut self, end: End) {
        self.say("state", &format!("{end}|n1|n1"));
        self.state = State::Ended(end);
    }

    /// Writes a file that the scripts read, as a whole.
    fn say(&self, name: &str, text: &str) {
        let new = self.directory.join("new");
        // The directory is there for as long as the test.
        let _ =
            fs::write(&new, format!("{text}\n")).and_then(|()| fs::rename(&new, self.directory.join(name)));
    }

    fn processes(&self) -> Vec<Pid> {
        let prefix = format!("{VARIABLE}={}", self.directory.display());
        processes(&prefix)
            .into_iter()
            .map(|(process, _)| process)
            .collect()
    }
}

fn send(processes: &[Pid], signal: Signal) {
    for process in processes {
        // It may have ended.
        let _ = kill(*process, signal);
    }
}
