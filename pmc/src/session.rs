//! The session of a batch job: the one run that has its nodes and takes what `pmc launch` starts there.
//!
//! Its directory is below that of the user's state, since agents on other nodes have to see it, and is of
//! this user alone. The first launch starts the run, the others hand it tasks. It ends some time after the
//! last one. If its process is killed, its agents end soon after, and the next launch starts another one.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};
use pmc_batch::{BatchJob, nodes};
use pmc_control::{Answer, NodeStatus, Request, ask};
use pmc_files::OFlags;
use pmc_terminal::{escape, message};

use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Longest time until a session answers.
const START: Duration = Duration::from_secs(120);

/// Time for the agents of all nodes to come, once the first one is there.
const AGENTS: Duration = Duration::from_secs(30);

const INTERVAL: Duration = Duration::from_millis(10);

/// How long agents go on without the process of the session: launches end with it.
const MASTER_TIMEOUT: &str = "1s";

/// Bytes of the log that a message has.
const MAX_SHOWN: u64 = 2000;

/// Maximum bytes of a list of nodes.
const MAX_LIST: u64 = 16 << 20;

/// A batch job in which a process runs.
pub struct Job {
    job: BatchJob,
    /// Number of its nodes.
    pub nodes: u32,
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {} of {}", self.job.id, self.job.scheduler.name())
    }
}

/// Returns the batch job of this process; `None` outside of one, and inside of a task, which has its own part
/// of a job.
pub fn job() -> Option<Job> {
    let variable = |name: &str| std::env::var(name).ok();
    if ["PMC_GANG", "PMC_CPUS", "PMC_MEMORY"]
        .iter()
        .any(|name| variable(name).is_some())
    {
        return None;
    }
    let job = BatchJob::of_environment(variable)?;
    let nodes = nodes::of_environment(variable, |path| {
        pmc_files::read_to_string(Path::new(path), MAX_LIST).ok()
    })?;
    let nodes = u32::try_from(nodes.len()).ok()?;
    Some(Job { job, nodes })
}

/// A session.
pub struct Session {
    dir: PathBuf,
    /// DAG file of its run.
    pub dag: PathBuf,
}

impl Session {
    /// The session of a job, whether it goes on or not.
    pub fn of(job: &Job) -> Result<Self, Failure> {
        let set = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let base = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
        let base = base.ok_or_else(|| anyhow!("neither HOME nor XDG_STATE_HOME has the path of a directory"));
        let base = base.or_code(exit::NOT_RUN)?.join("pmc");
        let word = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c), "_");
        let cluster = std::env::var("SLURM_CLUSTER_NAME").unwrap_or_default();
        let key = [job.job.scheduler.name(), &cluster, &job.job.id];
        let key = key.into_iter().filter(|part| !part.is_empty()).map(word);
        let key = key.collect::<Vec<_>>().join("-");
        let dir = base.join(format!("session-{key}"));
        let made = fs::create_dir_all(&base).and_then(|()| own_directory(&dir));
        made.with_context(|| format!("the directory {} of the session cannot be used", dir.display()))
            .or_code(exit::NOT_RUN)?;
        Ok(Self {
            dag: dir.join("run/tasks.dag"),
            dir,
        })
    }

    /// Its nodes, if it goes on.
    fn nodes(&self) -> Option<Vec<NodeStatus>> {
        match ask(&self.dag, &Request::Nodes) {
            Ok(Answer::Nodes(nodes)) => Some(nodes),
            _ => None,
        }
    }

    /// Starts it if it does not go on. Returns its nodes.
    pub fn join(&self, job: &Job, linger: u32) -> Result<Vec<NodeStatus>, Failure> {
        if self.nodes().is_none() {
            let path = self.dir.join("lock");
            let lock = pmc_files::open_for_writing(&path, OFlags::CREATE | OFlags::WRONLY, 0o600);
            let locked = lock.and_then(|lock| {
                let locked = Flock::lock(lock, FlockArg::LockExclusive);
                locked.map_err(|(_, error)| error.into())
            });
            let _lock = locked
                .context("the session cannot be locked")
                .or_code(exit::NOT_RUN)?;
            // Another launch may have started it meanwhile.
            if self.nodes().is_none() {
                self.start(job, linger)?;
            }
        }
        let until = Instant::now() + AGENTS;
        loop {
            let nodes = self.nodes().unwrap_or_default();
            let is_there =
                |node: &&NodeStatus| matches!(&*node.state, "working" | "reserved" | "joined" | "preparing");
            let there = nodes.iter().filter(is_there).count();
            if there >= job.nodes as usize || there > 0 && Instant::now() > until {
                return Ok(nodes);
            }
            if Instant::now() > until + START {
                return Err(self.failed("no node of the batch job has come"));
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn start(&self, job: &Job, linger: u32) -> Result<(), Failure> {
        let run = self.dir.join("run");
        let Some(living) = self.wait_for_earlier()? else {
            return Ok(());
        };
        if run.exists() {
            // One that ends takes its socket away.
            if pmc_control::socket(&self.dag).exists() {
                message(format_args!(
                    "pmc: the session of {job} was killed: a new one starts"
                ));
            }
            // What has ended is of no use, and what was killed runs for nobody.
            fs::remove_dir_all(&run)
                .with_context(|| format!("the session that has ended cannot be removed: {}", run.display()))
                .or_code(exit::NOT_RUN)?;
        }
        let start = || {
            // The session has this file open, and so have its launchers of agents.
            fcntl(&living, FcntlArg::F_SETFD(FdFlag::empty()))?;
            let log = pmc_files::create_anew(&self.dir.join("log"))?;
            Command::new(std::env::current_exe()?)
                .arg("serve")
                .arg(&run)
                .args(["--agents", &job.nodes.to_string()])
                .args(["--launch", job.job.scheduler.agent_launcher()])
                .args(["--idle-limit", &format!("{}s", linger.max(1)), "--quiet"])
                .args(["--master-timeout", MASTER_TIMEOUT])
                // It outlives the launch that has started it.
                .process_group(0)
                .current_dir(&self.dir)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
        };
        let mut child = start()
            .context("the session does not start")
            .or_code(exit::NOT_RUN)?;
        let until = Instant::now() + START;
        while self.nodes().is_none() {
            if !matches!(child.try_wait(), Ok(None)) {
                return Err(self.failed("the session has ended at once"));
            }
            if Instant::now() > until {
                let _ = child.kill();
                return Err(self.failed("the session gives no answer"));
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(())
    }

    /// Waits until nothing is left of an earlier session: neither its process nor what it has started agents
    /// with, which ends with them. Returns the lock by which the next launch knows that; `None` if the
    /// session answers again.
    fn wait_for_earlier(&self) -> Result<Option<File>, Failure> {
        let path = self.dir.join("living");
        let file = pmc_files::open_for_writing(&path, OFlags::CREATE | OFlags::WRONLY, 0o600);
        let file = file
            .context("the session cannot be locked")
            .or_code(exit::NOT_RUN)?;
        let until = Instant::now() + START;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(self.failed("the session before this one neither answers nor ends"));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error)
                        .context("the session cannot be locked")
                        .or_code(exit::NOT_RUN);
                }
            }
            if self.nodes().is_some() {
                return Ok(None);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// An error with what the session has said.
    fn failed(&self, what: &str) -> Failure {
        let path = self.dir.join("log");
        let shown = String::from_utf8_lossy(&end_of(&path).unwrap_or_default()).into_owned();
        let text = escape(shown.trim());
        Failure::new(exit::NOT_RUN, anyhow!("{what}: {text}")).hint(format!("its log is {}", path.display()))
    }

    /// Makes a file that is there as long as somebody waits for a launch.
    pub fn ticket(&self, label: &str) -> Result<Ticket, Failure> {
        ticket_in(&self.dir, label)
    }

    /// Directory of its run.
    pub fn run(&self) -> PathBuf {
        self.dir.join("run")
    }
}

/// Makes such a file in a directory of the user.
pub fn ticket_in(dir: &Path, label: &str) -> Result<Ticket, Failure> {
    let path = dir.join(label);
    pmc_files::create_anew(&path)
        .with_context(|| format!("cannot create {}", path.display()))
        .or_code(exit::NOT_RUN)?;
    Ok(Ticket(path))
}

/// A file that is removed with this value.
pub struct Ticket(PathBuf);

impl Ticket {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Reads the last bytes of a file.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = pmc_files::open(path)?;
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(MAX_SHOWN)))?;
    pmc_files::read_at_most(file.take(MAX_SHOWN), MAX_SHOWN)
}

/// Makes a directory of this user alone, or checks that it is one.
fn own_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = fs::symlink_metadata(path)?;
    let is_own = found.uid() == nix::unistd::geteuid().as_raw();
    if !found.is_dir() || !is_own || found.permissions().mode() & 0o077 != 0 {
        let why = "it is not a directory of this user alone (mode 0700)";
        return Err(io::Error::other(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_session_begins_when_nothing_of_the_last_one_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session {
            dag: folder.path().join("run/tasks.dag"),
            dir: folder.path().to_owned(),
        };
        let living = session.wait_for_earlier().unwrap().unwrap();
        let other = living.try_clone().unwrap();
        drop(living);
        let next = std::thread::spawn(move || session.wait_for_earlier().unwrap().is_some());
        assert!(!next.is_finished(), "a process that was started has it open");
        drop(other);
        assert!(next.join().unwrap());
    }

    #[test]
    fn only_a_directory_of_this_user_alone_is_a_session() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session");
        own_directory(&path).unwrap();
        own_directory(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(own_directory(&path).is_err(), "others can read it");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(own_directory(&link).is_err(), "a link leads anywhere");
    }
}
