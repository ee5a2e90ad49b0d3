//! Why a task waits, for messages.

use std::fmt;
use std::time::Duration;

use pmc_dag::{Request, TaskId};
use pmc_status::memory;

use crate::scheduler::hosts::Room;
use crate::scheduler::run::{Master, Phase};

/// Why a queued task does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The run is held.
    Held,
    /// As many tasks of its category run as its limit allows.
    Category,
    /// As many tasks run as the DAG allows.
    MaxJobs,
    /// All workers are busy.
    Slots,
    /// No host with a free slot has that many free CPUs and GPUs.
    Cpus {
        /// Requested CPUs.
        cpus: u32,
        /// Requested GPUs.
        gpus: u32,
    },
    /// No host with a free slot, CPUs and GPUs sees the directory of the DAG file.
    Directory,
    /// It fits only on hosts on which it has failed, and others may run it better.
    OtherHost,
    /// The run ends before it would.
    Time {
        /// What it needs.
        needed: Duration,
        /// What is left.
        left: Duration,
        /// It is not expected to end in this time, but to do something and save itself.
        saves: bool,
    },
    /// No host with a free slot, CPUs and GPUs has so much free memory.
    Memory {
        /// Requested memory in MB.
        requested_mb: u64,
        /// The most free memory of such a host, in MB.
        free_mb: u64,
    },
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Held => f.write_str("the run is held"),
            Self::Category => f.write_str("its category is full (MAXJOBS)"),
            Self::MaxJobs => f.write_str("as many tasks run as the DAG allows (MAXJOBS *)"),
            Self::Slots => f.write_str("all slots are busy"),
            Self::OtherHost => {
                f.write_str("it failed on the hosts that have room, and waits for another one")
            }
            Self::Directory => {
                f.write_str("no host with free slots and CPUs sees the directory of the DAG file")
            }
            Self::Cpus { cpus, gpus: 0 } => {
                write!(
                    f,
                    "no host with a free slot has enough free CPUs (requested: {cpus})"
                )
            }
            Self::Cpus { cpus, gpus } => write!(
                f,
                "no host with a free slot has enough free CPUs and GPUs (requested: {cpus} and {gpus})"
            ),
            Self::Time { needed, left, saves } => {
                let (needed, left) = (needed.as_secs_f64().ceil(), left.as_secs());
                match saves {
                    false => write!(f, "it is expected to run {needed} s, and {left} s are left"),
                    true => write!(
                        f,
                        "it needs {needed} s to do something and save itself, and {left} s are left"
                    ),
                }
            }
            Self::Memory {
                requested_mb,
                free_mb,
            } => {
                write!(
                    f,
                    "it requests {}, and at most {} are free on a host",
                    memory(requested_mb),
                    memory(free_mb)
                )
            }
        }
    }
}

impl Master {
    /// Returns the task that is to start next and why it waits. `None` if no task waits, or if tasks wait
    /// only because the run ends. To be called after [`Master::schedule`].
    #[must_use]
    pub fn waiting(&self) -> Option<(TaskId, WaitReason)> {
        if self.phase != Phase::Started || self.is_stopped() {
            return None;
        }
        let next = self.queue.best(|_, _| Some(u64::MAX));
        let task = next.and_then(|shape| self.queue.first(shape));
        if self.held {
            return Some((task.or_else(|| self.ready.first().copied())?, WaitReason::Held));
        }
        let Some(next) = next else {
            let Some(closed) = self.queue.first_closed(&self.nodes) else {
                let late = *self.run_times.late().first()?;
                return Some((late, self.lacks_time(late)?));
            };
            return Some((closed, WaitReason::Category));
        };
        let request = self.queue.shape(next).request;
        let reason = if self.has_max_jobs() {
            WaitReason::MaxJobs
        } else if self.hosts.free_slots() == 0 {
            WaitReason::Slots
        } else {
            let anywhere = Request {
                anywhere: true,
                ..request
            };
            match self.hosts.most_free_memory(request, Room::Unreserved) {
                None if self.hosts.most_free_memory(anywhere, Room::Unreserved).is_some() => {
                    WaitReason::Directory
                }
                None => WaitReason::Cpus {
                    cpus: request.cpus,
                    gpus: request.gpus,
                },
                Some(free_mb) if free_mb >= request.memory_mb => WaitReason::OtherHost,
                Some(free_mb) => WaitReason::Memory {
                    requested_mb: request.memory_mb,
                    free_mb,
                },
            }
        };
        Some((task?, reason))
    }
}
