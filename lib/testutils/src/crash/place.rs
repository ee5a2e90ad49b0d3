//! The place of one round: a directory, the programs that run in it, and what was found.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Damage;
use crate::Random;

/// Time limit for a program. The machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);

/// Time limit for the processes of a killed program to end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Age that is long ago.
const OLD: Duration = Duration::from_secs(600);

pub(super) struct Place {
    dir: tempfile::TempDir,
    programs: PathBuf,
    pub(super) random: Random,
    pub(super) found: Vec<(Damage, String)>,
    pub(super) faults: BTreeMap<String, u64>,
    pub(super) skipped: Vec<String>,
    /// Agents wait for another master if theirs is killed.
    pub(super) has_agents: bool,
    /// A file system is mounted at `small`.
    mounted: bool,
}

/// Which processes are killed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Victim {
    /// The program that was started.
    First,
    /// One of the processes that it has started, if there is one.
    Below,
    /// All.
    All,
}

/// What the system knows of a process.
pub(super) struct Process {
    arguments: Vec<u8>,
    environment: Vec<u8>,
}

impl Process {
    fn read(pid: Pid) -> Self {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        Self {
            arguments: read("cmdline"),
            environment: read("environ"),
        }
    }

    pub(super) fn has_argument(&self, word: &str) -> bool {
        let mut words = self.arguments.split(|byte| *byte == 0);
        words.any(|argument| argument == word.as_bytes())
    }

    pub(super) fn has_variable(&self, name: &str) -> bool {
        let mut entries = self.environment.split(|byte| *byte == 0);
        entries.any(|entry| {
            entry
                .strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.starts_with(b"="))
        })
    }
}

/// A program that runs. It leads a session, which all its descendants belong to.
pub(super) struct Running {
    child: Child,
}

impl Place {
    pub(super) fn new(programs: &Path, random: Random) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("pmc-crash.")
            .tempdir()
            .expect("a directory");
        for name in ["home", "tmp", "small"] {
            fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        Self {
            dir,
            programs: programs.to_owned(),
            random,
            found: Vec::new(),
            faults: BTreeMap::new(),
            skipped: Vec::new(),
            has_agents: false,
            mounted: false,
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file");
    }

    pub(super) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(super) fn find(&mut self, damage: Damage, what: impl Into<String>) {
        self.found.push((damage, what.into()));
    }

    pub(super) fn fault(&mut self, name: &str) {
        *self.faults.entry(name.to_owned()).or_default() += 1;
    }

    /// Returns a random time up to a number of milliseconds, more often a short one.
    pub(super) fn moment(&mut self, max_ms: u64) -> Duration {
        let max = self.random.below(max_ms.max(1)) + 1;
        Duration::from_micros(self.random.below(max * 1000))
    }

    /// Returns a program in this place, in a session of its own.
    pub(super) fn command<S: AsRef<OsStr>>(
        &self,
        program: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new("setsid");
        command
            .arg(self.programs.join(program))
            .args(arguments)
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("tmp"))
            .stdin(Stdio::null());
        command
    }

    /// The same with at most `limit` descriptors.
    pub(super) fn limited(&self, limit: u64, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(program, [""; 0]);
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        let mut limited = Command::new("setsid");
        limited
            .args(["sh", "-c", script.as_str(), "sh"])
            .arg(self.programs.join(program))
            .args(arguments)
            .current_dir(self.dir.path())
            .env_clear();
        for (name, value) in command.get_envs() {
            limited.env(name, value.unwrap_or_default());
        }
        command = limited;
        command.stdin(Stdio::null());
        command
    }

    pub(super) fn start(&self, command: &mut Command) -> Running {
        let log = || {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).open(self.path("home/log"));
            file.expect("a log")
        };
        let child = command
            .stdout(log())
            .stderr(log())
            .spawn()
            .expect("the program starts");
        Running { child }
    }

    /// Runs a program to its end. Returns whether it succeeded.
    pub(super) fn run(&mut self, command: &mut Command) -> bool {
        let mut running = self.start(command);
        match running.wait(LIMIT) {
            Some(status) => {
                self.note_end(status);
                status.success()
            }
            None => {
                self.find(Damage::Wrong, format!("does not end: {command:?}"));
                self.kill(&mut running, Victim::All);
                false
            }
        }
    }

    pub(super) fn note_end(&mut self, status: ExitStatus) {
        // 101 is that of a panic.
        if status.code() == Some(101) {
            self.find(Damage::Wrong, "a program panicked");
        }
    }

    /// Runs a program for a random time, then kills it. Returns whether it ended by itself with success.
    pub(super) fn run_and_kill(&mut self, command: &mut Command, max_ms: u64, victim: Victim) -> bool {
        let moment = self.moment(max_ms);
        let mut running = self.start(command);
        if let Some(status) = running.wait(moment) {
            self.note_end(status);
            return status.success();
        }
        self.kill(&mut running, victim);
        false
    }

    /// Kills one of the processes of a program, as soon as there is one that fits. Returns its number, or
    /// `None` if the program has ended before.
    pub(super) fn kill_one(
        &mut self,
        running: &mut Running,
        name: &str,
        fits: impl Fn(&Process) -> bool,
    ) -> Option<Pid> {
        let first = Pid::from_raw(running.child.id().cast_signed());
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            let members = self.members(first).into_iter();
            let found: Vec<Pid> = members
                .map(|member| member.0)
                .filter(|pid| fits(&Process::read(*pid)))
                .collect();
            if !found.is_empty() {
                let pid = found[self.random.index(found.len())];
                if kill(pid, Signal::SIGKILL).is_ok() {
                    self.fault(&format!("SIGKILL {name}"));
                    return Some(pid);
                }
            }
            if let Some(status) = running.wait(Duration::from_micros(500)) {
                self.note_end(status);
                return None;
            }
        }
        self.find(Damage::Wrong, format!("there is no {name}"));
        None
    }

    /// Waits for the end of a program and of all that it has started. Returns whether it succeeded.
    pub(super) fn finish(&mut self, running: &mut Running) -> bool {
        let Some(status) = running.wait(LIMIT) else {
            self.find(Damage::Wrong, "does not end");
            self.kill(running, Victim::All);
            return false;
        };
        self.note_end(status);
        self.expect_no_process(Pid::from_raw(running.child.id().cast_signed()));
        status.success()
    }

    /// Kills processes and waits for the end of all.
    pub(super) fn kill(&mut self, running: &mut Running, victim: Victim) {
        let first = Pid::from_raw(running.child.id().cast_signed());
        let members = self.members(first);
        let below: Vec<_> = members.iter().filter(|member| member.0 != first).collect();
        let chosen: Vec<(Pid, String)> = match victim {
            Victim::All => members.clone(),
            Victim::Below if !below.is_empty() => {
                vec![below[self.random.index(below.len())].clone()]
            }
            _ => members
                .iter()
                .filter(|member| member.0 == first)
                .cloned()
                .collect(),
        };
        for (pid, name) in chosen {
            // It may have ended by itself.
            if kill(pid, Signal::SIGKILL).is_ok() {
                self.fault(&format!("SIGKILL {name}"));
            }
        }
        match running.wait(LIMIT) {
            Some(status) => self.note_end(status),
            None => {
                self.find(
                    Damage::Wrong,
                    "does not end after one of its processes was killed",
                );
                let _ = running.child.kill();
                let _ = running.child.wait();
            }
        }
        if !(self.has_agents && matches!(victim, Victim::First)) {
            self.expect_no_process(first);
        }
    }

    /// Ends agents that wait for a master, as they do for minutes. Other processes that stay are a finding.
    pub(super) fn end_agents(&mut self) {
        // No process has this session.
        let none = Pid::from_raw(-1);
        for (pid, _) in self.members(none) {
            let _ = kill(pid, Signal::SIGTERM);
        }
        self.expect_no_process(none);
    }

    /// Returns the live processes of a session, and others of this place: agents have sessions of their own.
    fn members(&self, session: Pid) -> Vec<(Pid, String)> {
        members(session, &format!("HOME={}", self.path("home").display()))
    }

    /// Waits for the processes of a session. Those that stay are a finding.
    fn expect_no_process(&mut self, session: Pid) {
        let start = Instant::now();
        loop {
            let left = self.members(session);
            if left.is_empty() {
                return;
            }
            if start.elapsed() > END_LIMIT {
                let names: Vec<_> = left.iter().map(|member| member.1.as_str()).collect();
                self.find(Damage::LeftOver, format!("processes: {}", names.join(" ")));
                for (pid, _) in left {
                    let _ = kill(pid, Signal::SIGKILL);
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes what a killed planner has left below a directory look as if that had been long ago.
    pub(super) fn age(&self, directory: &Path) {
        let mut left = vec![directory.to_owned()];
        while let Some(next) = left.pop() {
            for entry in next.read_dir().into_iter().flatten().flatten() {
                let path = entry.path();
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                if let Ok(directory) = fs::File::open(&path) {
                    let _ = directory.set_modified(SystemTime::now() - OLD);
                }
                if !entry.file_name().as_encoded_bytes().starts_with(b".plan-") {
                    left.push(path);
                }
            }
        }
    }

    /// Mounts a file system of some MiB at `small`. Returns false if this user may not.
    pub(super) fn mount_small(&mut self, mib: u64) -> bool {
        // In a name space of its own, the file system disappears with this process.
        let is_own = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).is_ok()
            && succeeds(Command::new("mount").args(["--make-rprivate", "/"]));
        self.mounted = is_own
            && succeeds(
                Command::new("mount")
                    .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "pmc-crash"])
                    .arg(self.path("small")),
            );
        if !self.mounted {
            self.skipped.push("a full disk: needs root".to_owned());
        }
        self.mounted
    }

    /// Ends the round: no panic was logged, nothing is left in the directory for temporary files.
    pub(super) fn end(&mut self) {
        let log = self.read("home/log");
        if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
            let line = line.to_owned();
            self.find(Damage::Wrong, line);
        }
        for entry in self.path("tmp").read_dir().into_iter().flatten().flatten() {
            self.find(Damage::LeftOver, entry.path().display().to_string());
        }
    }

    /// Keeps the directory and returns its path.
    pub(super) fn keep(mut self) -> PathBuf {
        let path = self.dir.path().to_owned();
        if self.mounted {
            // What is in it would be lost.
            let _ = succeeds(
                Command::new("cp")
                    .arg("-a")
                    .args([path.join("small"), path.join("kept")]),
            );
        }
        self.unmount();
        self.dir.disable_cleanup(true);
        path
    }

    fn unmount(&mut self) {
        if std::mem::take(&mut self.mounted) {
            let _ = succeeds(Command::new("umount").arg("-l").arg(self.path("small")));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unmount();
    }
}

impl Running {
    /// Waits up to `time`. Returns the exit status if the program has ended.
    pub(super) fn wait(&mut self, time: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                return Some(status);
            }
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return None;
            }
            std::thread::sleep(left.min(Duration::from_micros(500)));
        }
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// Returns the live processes of a session or with a variable, with their names.
fn members(session: Pid, variable: &str) -> Vec<(Pid, String)> {
    let has_variable = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == variable.as_bytes())
    };
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let member = |pid: i32| {
        // PID (NAME) STATE PARENT GROUP SESSION …
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let mut words = tail.split_whitespace();
        let is_alive = words.next()? != "Z";
        let of: i32 = words.nth(2)?.parse().ok()?;
        let name = head.split_once('(')?.1.to_owned();
        let is_member = is_alive && (of == session.as_raw() || has_variable(pid));
        is_member.then_some((Pid::from_raw(pid), name))
    };
    pids.filter_map(member).collect()
}
