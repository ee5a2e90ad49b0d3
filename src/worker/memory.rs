//! Memory of tasks: peaks above the request, limits, and the system's killer of processes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;

use super::running::RunningAttempt;
use crate::protocol::MemoryUse;
use crate::transport::local::StopTask as _;

/// Interval between measurements of a task with a memory limit.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Share of the request, in percent, from which a task that was killed has run out of memory.
const AT_LIMIT_PERCENT: u64 = 90;

/// What is known about an attempt that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Request in MB; 0 for none.
    pub(super) requested_mb: u64,
    /// Raw wait status.
    pub(super) status: i32,
    /// Peak resident memory in KiB; 0 if it is unknown.
    pub(super) peak_kib: u64,
    /// The worker ended it because it exceeded its request.
    pub(super) is_over_limit: bool,
    /// The worker has sent it a signal.
    pub(super) was_signalled: bool,
    /// Allocations beyond the request fail.
    pub(super) is_limited: bool,
    /// The system has killed a process for lack of memory.
    pub(super) was_oom_killed: bool,
}

impl Facts {
    /// Returns the memory of the attempt if it exceeded its request or ran out of memory, or failed.
    pub(super) fn memory_use(&self) -> Option<MemoryUse> {
        let peak_mib = self.peak_kib.div_ceil(1024);
        let requests = self.requested_mb > 0;
        let at_limit =
            requests && peak_mib.saturating_mul(100) >= self.requested_mb.saturating_mul(AT_LIMIT_PERCENT);
        let out_of_memory = self.is_over_limit
            || is_killed(self.status) && !self.was_signalled && (self.was_oom_killed || at_limit)
            || self.status != 0 && self.is_limited && at_limit;
        let used = MemoryUse {
            peak_mib,
            requested_mib: self.requested_mb,
            out_of_memory,
        };
        let has_failed = self.status != 0 && peak_mib > 0;
        (used.is_excess() || out_of_memory || has_failed).then_some(used)
    }
}

/// Returns whether SIGKILL ended a task, or a process in a shell or kickstart.
pub(super) fn is_killed(status: i32) -> bool {
    if libc::WIFSIGNALED(status) {
        libc::WTERMSIG(status) == libc::SIGKILL
    } else {
        libc::WEXITSTATUS(status) == 128 + libc::SIGKILL
    }
}

/// Returns the peak resident memory of this process in KiB.
pub(super) fn own_peak_kib() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| u64::try_from(usage.max_rss()).unwrap_or(0))
}

/// Kills the running task when its processes use more memory than `limit_kib`. Returns what they used then.
/// `None` if the task ends before. Blocks until then.
pub(super) fn enforce(current: &RunningAttempt, leader: Pid, limit_kib: u64) -> Option<u64> {
    while !current.wait_idle(POLL_INTERVAL) {
        // Pages that processes share count once. Reading that takes longer.
        if memory_kib(leader, resident_kib) > limit_kib {
            let used = memory_kib(leader, proportional_kib);
            if used > limit_kib {
                current.end_now();
                return Some(used);
            }
        }
    }
    None
}

/// Sums up the memory of a process and its descendants, in KiB.
fn memory_kib(leader: Pid, of: fn(&Path) -> Option<u64>) -> u64 {
    let mut total = 0_u64;
    let mut left = vec![leader.as_raw()];
    while let Some(pid) = left.pop() {
        let process = PathBuf::from(format!("/proc/{pid}"));
        total = total.saturating_add(of(&process).unwrap_or(0));
        let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            left.extend(
                children
                    .split_ascii_whitespace()
                    .filter_map(|pid| pid.parse::<i32>().ok()),
            );
        }
    }
    total
}

fn resident_kib(process: &Path) -> Option<u64> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    kib_of(&status, "VmRSS:")
}

fn proportional_kib(process: &Path) -> Option<u64> {
    let rollup = fs::read_to_string(process.join("smaps_rollup"));
    let proportional = rollup.ok().and_then(|rollup| kib_of(&rollup, "Pss:"));
    proportional.or_else(|| resident_kib(process))
}

fn kib_of(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

/// Counts the processes of this control group (version 2) that the system has killed for lack of memory.
#[derive(Debug)]
pub(super) struct OomKills {
    /// `memory.events`; `None` without such a group.
    events: Option<File>,
    before: u64,
}

impl OomKills {
    /// Finds the group of this process.
    pub(super) fn of_this_process() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let events = group.map(|group| Path::new("/sys/fs/cgroup").join(group).join("memory.events"));
        Self::of(events.as_deref())
    }

    fn of(events: Option<&Path>) -> Self {
        let events = events.and_then(|path| File::open(path).ok());
        Self { events, before: 0 }
    }

    /// Notes that a task starts.
    pub(super) fn begin(&mut self) {
        self.before = self.count();
    }

    /// Returns whether the system has killed a process since the last [`OomKills::begin`].
    pub(super) fn has_killed(&self) -> bool {
        self.count() > self.before
    }

    fn count(&self) -> u64 {
        let mut text = [0; 512];
        let len = self
            .events
            .as_ref()
            .and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..len.unwrap_or(0)]).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        requested_mb: 100,
        status: 0,
        peak_kib: 90 << 10,
        is_over_limit: false,
        was_signalled: false,
        is_limited: false,
        was_oom_killed: false,
    };

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn excess_lack_and_failures_are_reported() {
        let used = |peak_mib, out_of_memory| {
            Some(MemoryUse {
                peak_mib,
                requested_mib: FACTS.requested_mb,
                out_of_memory,
            })
        };
        let killed = Facts { status: 9, ..FACTS };
        for (facts, expected) in [
            (FACTS, None),
            (
                Facts {
                    peak_kib: (100 << 10) + 1,
                    ..FACTS
                },
                used(101, false),
            ),
            (
                Facts {
                    peak_kib: 1 << 30,
                    requested_mb: 0,
                    ..FACTS
                },
                None,
            ),
            (killed, used(90, true)),
            (
                Facts {
                    status: 137 << 8,
                    ..FACTS
                },
                used(90, true),
            ),
            (
                Facts {
                    status: 1 << 8,
                    ..FACTS
                },
                used(90, false),
            ),
            (
                Facts {
                    status: 1 << 8,
                    is_limited: true,
                    ..FACTS
                },
                used(90, true),
            ),
            (
                Facts {
                    is_limited: true,
                    ..FACTS
                },
                None,
            ),
            (
                Facts {
                    peak_kib: 89 << 10,
                    ..killed
                },
                used(89, false),
            ),
            (
                Facts {
                    peak_kib: 0,
                    was_oom_killed: true,
                    ..killed
                },
                used(0, true),
            ),
            (
                Facts {
                    was_oom_killed: true,
                    ..FACTS
                },
                None,
            ),
            (
                Facts {
                    was_signalled: true,
                    ..killed
                },
                used(90, false),
            ),
            (
                Facts {
                    peak_kib: 0,
                    ..killed
                },
                None,
            ),
            (
                Facts {
                    was_signalled: true,
                    is_over_limit: true,
                    ..killed
                },
                used(90, true),
            ),
        ] {
            assert_eq!(facts.memory_use(), expected, "{facts:?}");
        }
    }

    #[test]
    fn the_killer_of_the_system_is_noticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |kills: u32| fs::write(file.path(), format!("low 0\noom 9\noom_kill {kills}\n")).unwrap();
        write(3);
        let mut kills = OomKills::of(Some(file.path()));
        kills.begin();
        assert!(!kills.has_killed());
        write(4);
        assert!(kills.has_killed());
        kills.begin();
        assert!(!kills.has_killed());
        assert!(!OomKills::of(None).has_killed());
    }

    #[test]
    fn memory_of_processes_is_measured() {
        let this = Pid::this();
        let resident = memory_kib(this, resident_kib);
        assert!(resident > 100 && memory_kib(this, proportional_kib) > 0);
        assert!(own_peak_kib() > 100);
    }
}
