//! The usage log: who has used which hosts, and for how long. A line of JSON at the start of a launch, and
//! one at its end.
//!
//! The file may be one for all users of a site. So a line is one write, under a lock for which nobody waits
//! long, and a log that cannot be written is no reason to end a launch: that is said once.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::unistd::{User, getuid};
use pmc_files::OFlags;
use serde::Serialize;

use crate::world::World;

/// Variable with the name of the file.
pub(super) const VARIABLE: &str = "PMC_USAGE_LOG";

/// Time for another process to give back its lock.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between two looks whether it is free.
const INTERVAL: Duration = Duration::from_millis(5);

/// The usage log, for one launch.
pub(super) struct UsageLog {
    path: PathBuf,
    record: Record,
    /// Longest time for which the lock of another process is waited for.
    patience: Duration,
    has_failed: bool,
}

/// A line.
#[derive(Debug, Serialize)]
struct Record {
    event: Moment,
    /// Seconds since 1970.
    time: f64,
    user: String,
    /// Where the front end runs, and its process: together with `begin_time`, the name of the launch.
    host: String,
    process: u32,
    program: String,
    ranks: usize,
    /// Those that have ranks, such as `n[1-4,7]`.
    hosts: String,
    /// Seconds since 1970.
    begin_time: f64,
    /// Exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Moment {
    Begin,
    End,
}

impl UsageLog {
    /// The log of a launch. `program` is what the person has named, without arguments.
    pub(super) fn new(path: &Path, program: &str, world: &World) -> Self {
        let names: Vec<&str> = world.hosts.iter().map(|host| host.name.as_str()).collect();
        let host = nix::unistd::gethostname().ok();
        Self {
            path: path.to_owned(),
            record: Record {
                event: Moment::Begin,
                time: 0.0,
                user: user_name(),
                host: host.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
                process: std::process::id(),
                program: program.to_owned(),
                ranks: world.ranks.len(),
                hosts: pmc_hosts::compress(&names),
                begin_time: 0.0,
                status: None,
            },
            patience: PATIENCE,
            has_failed: false,
        }
    }

    /// Notes that the ranks go.
    pub(super) fn begin(&mut self) {
        self.record.time = now();
        self.record.begin_time = self.record.time;
        self.write();
    }

    /// Notes how it has ended.
    pub(super) fn end(&mut self, status: u8) {
        self.record.event = Moment::End;
        self.record.time = now();
        self.record.status = Some(status);
        self.write();
    }

    fn write(&mut self) {
        if let Err(error) = append(&self.path, &self.record, self.patience)
            && !std::mem::replace(&mut self.has_failed, true)
        {
            pmc_terminal::message(format_args!(
                "Warning: the usage of hosts is not logged: {} ({VARIABLE}): {}",
                self.path.display(),
                pmc_dag::reason(&error)
            ));
        }
    }
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Milliseconds are enough, and shorter.
    now.as_millis() as f64 / 1e3
}

fn user_name() -> String {
    let user = User::from_uid(getuid()).ok().flatten();
    user.map_or_else(|| getuid().to_string(), |user| user.name)
}

/// Appends a line. The file is opened each time, so that it can be renamed meanwhile.
fn append(path: &Path, record: &Record, patience: Duration) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let mut file = pmc_files::open_output(path, flags, 0o666)?;
    let mut line = serde_json::to_string(record).map_err(io::Error::other)?;
    line.push('\n');
    lock(&file, patience)?;
    // The lock goes with the file.
    file.write_all(line.as_bytes())
}

/// Locks the file, if its file system has locks. Who may open it may hold the lock for ever.
fn lock(file: &File, patience: Duration) -> io::Result<()> {
    let until = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(INTERVAL),
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("another process has locked it"));
            }
            // Without locks, appending is the best that there is.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Host, Place};

    fn world() -> World {
        let host = |name: &str| Host {
            name: name.to_owned(),
            slots: 2,
        };
        let place = |host| Place {
            host,
            program: 0,
            offset: 0,
        };
        World {
            hosts: vec![host("n1"), host("n2")],
            ranks: [0, 0, 1].map(place).into(),
            programs: vec![vec![b"./a".to_vec(), b"secret".to_vec()]],
        }
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn fails(path: &Path) -> bool {
        let mut log = UsageLog::new(path, "a", &world());
        log.begin();
        log.has_failed
    }

    #[test]
    fn a_launch_has_a_line_at_its_start_and_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage");
        let mut log = UsageLog::new(&path, "./a", &world());
        log.begin();
        log.end(3);
        assert!(!log.has_failed);
        let lines = lines(&path);
        assert_eq!(lines.len(), 2);
        for (line, event) in lines.iter().zip(["begin", "end"]) {
            assert_eq!(line["event"], event);
            assert_eq!((&line["hosts"], &line["ranks"]), (&"n[1-2]".into(), &3.into()));
            assert_eq!(
                (&line["program"], &line["begin_time"]),
                (&"./a".into(), &lines[0]["time"])
            );
            assert_eq!(line["user"], user_name());
            assert!(!line.to_string().contains("secret"), "arguments are not logged");
        }
        assert!(lines[0].get("status").is_none());
        let schema = include_str!("../../../../share/schemas/pmc-usage.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let keys = |value: &serde_json::Value| {
            let keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys
        };
        assert_eq!(keys(&schema["properties"]), keys(&lines[1]));
        assert_eq!(lines[1]["status"], 3);
        assert!(lines[1]["time"].as_f64() >= lines[1]["begin_time"].as_f64());
    }

    #[test]
    fn lines_of_launches_at_once_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for status in 0..20 {
                        let mut log = UsageLog::new(&path, &"x".repeat(5000), &world());
                        // The machine may be busy.
                        log.patience = Duration::from_secs(100);
                        log.begin();
                        log.end(status);
                    }
                });
            }
        });
        assert_eq!(lines(&path).len(), 8 * 20 * 2);
    }

    #[test]
    fn a_log_that_cannot_be_written_holds_up_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(fails(&path));
        assert!(fails(&folder.path().join("no/usage")));
        // The lock of somebody who does not give it back.
        let path = folder.path().join("locked");
        let held = File::create(&path).unwrap();
        held.lock().unwrap();
        assert!(fails(&path));
        assert_eq!(held.metadata().unwrap().len(), 0);
    }

    /// Where other users may write, they can take the name before.
    #[test]
    fn a_link_of_another_user_in_place_of_the_usage_log_is_not_followed() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (path, mine) = (folder.path().join("usage"), folder.path().join("mine"));
        std::fs::write(&mine, "kept").unwrap();
        std::os::unix::fs::symlink(&mine, &path).unwrap();
        std::os::unix::fs::lchown(&path, Some(65534), None).unwrap();
        assert!(fails(&path));
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), "kept");
    }
}
