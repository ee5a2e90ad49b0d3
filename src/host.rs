//! Name, memory and CPUs of this machine, and the CPU affinity of this process.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use crate::protocol::Registration;

/// Returns the name of this machine.
#[must_use]
pub fn name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

/// Maximum bytes of the name of a host.
const MAX_NAME: usize = 255;

/// Returns whether a text can be the name of a host: it stands in lines of logs, whose words are separated by
/// blanks.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '"';
    (1..=MAX_NAME).contains(&text.len()) && text.chars().all(is_plain)
}

/// Returns name, memory and CPUs of this machine, and `gpus`. `memory_mb` or `cpus` replaces the real value
/// unless it is 0; such CPUs count as the cores of one socket. `name` replaces the real name.
#[must_use]
pub fn describe(name: Option<&str>, memory_mb: u32, cpus: u32, gpus: u32) -> Registration {
    let memory_mb = if memory_mb > 0 {
        memory_mb.into()
    } else {
        physical_memory_mb()
    };
    let Topology {
        threads,
        cores,
        sockets,
    } = if cpus > 0 {
        Topology {
            threads: cpus,
            cores: cpus,
            sockets: 1,
        }
    } else {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        parse_cpuinfo(&text).unwrap_or_else(|| {
            let threads = usable_cpus();
            Topology {
                threads,
                cores: threads,
                sockets: 1,
            }
        })
    };
    Registration {
        host: name.map_or_else(self::name, str::to_owned),
        memory_mb,
        threads,
        cores,
        sockets,
        gpus,
        away: false,
    }
}

/// Returns the CPUs of this machine that count for a run with this number of workers, as for [`describe`].
/// `cpus` is what the user has set, or 0. Without it, there is a CPU for each worker, so that the number of
/// workers that a user asks for is the number of tasks that run at a time.
#[must_use]
pub fn cpus_for_workers(cpus: u32, workers: u32) -> u32 {
    if cpus == 0 && workers > describe(None, 1, 0, 0).threads {
        workers
    } else {
        cpus
    }
}

/// Returns the number of CPUs that this process may use.
#[must_use]
pub fn usable_cpus() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cpus).unwrap_or(u32::MAX)
}

/// Returns the physical memory, rounded up to whole MB.
fn physical_memory_mb() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};
    let get = |variable| match sysconf(variable) {
        Ok(Some(n)) => u64::try_from(n).unwrap_or(0),
        _ => 0,
    };
    (get(SysconfVar::_PHYS_PAGES) * get(SysconfVar::PAGE_SIZE)).div_ceil(1 << 20)
}

#[derive(Debug, PartialEq)]
struct Topology {
    threads: u32,
    cores: u32,
    sockets: u32,
}

/// Counts processors, cores and sockets in the text of `/proc/cpuinfo`. `None` without processors. If cores
/// or sockets are missing (virtual machines, other architectures), every thread is a core and all are in one
/// socket.
fn parse_cpuinfo(cpuinfo: &str) -> Option<Topology> {
    let mut threads = 0;
    let mut socket = "";
    let (mut cores, mut sockets) = (BTreeSet::new(), BTreeSet::new());
    for line in cpuinfo.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        match key.trim() {
            "processor" => threads += 1,
            "physical id" => {
                socket = value.trim();
                sockets.insert(socket);
            }
            "core id" => {
                cores.insert((socket, value.trim()));
            }
            _ => {}
        }
    }
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    (threads > 0).then(|| Topology {
        threads,
        cores: if cores.is_empty() {
            threads
        } else {
            count(cores.len())
        },
        sockets: count(sockets.len()).max(1),
    })
}

/// Lets this process run on all CPUs that the system allows, and use memory of all NUMA nodes. Launchers bind
/// each of their processes to one core, and the tasks would inherit that.
#[expect(
    unsafe_code,
    reason = "the system calls have no safe wrapper that takes all CPUs at once"
)]
pub fn reset_affinity() {
    let mut all = nix::sched::CpuSet::new();
    for cpu in 0..nix::sched::CpuSet::count() {
        // The kernel ignores CPUs that do not exist or are not allowed.
        let _ = all.set(cpu);
    }
    if let Err(error) = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &all) {
        tracing::debug!("Unable to clear CPU affinity: {error}");
    }
    const MPOL_DEFAULT: libc::c_long = 0;
    // SAFETY: this policy takes no set of nodes, so the call reads no memory of this process.
    let _ = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, 0, 0) };
}

/// This program as it was when this process started. Its file may have been replaced or removed since, as by
/// an update during a long run.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Returns the path of this program, for commands on other hosts.
///
/// # Errors
/// The system does not know it.
pub(crate) fn own_path() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    // What replaces the file has its name.
    let name = path.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    Ok(name.map_or_else(|| path.clone(), |name| OsStr::from_bytes(name).into()))
}

/// Gives this process the name of the program, even if it was started as [`OWN_PROGRAM`].
pub(crate) fn set_process_name() {
    let _ = nix::sys::prctl::set_name(c"pegasus-mpi-cluster");
}

/// Keeps other processes of this user away from the memory and the descriptors of this process, as far as the
/// system can: tasks could otherwise write results in place of their workers. Programs that tasks run stay as
/// they are. Debuggers cannot attach any more, and there are no core dumps.
pub fn protect_process() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::debug!("Tasks can reach this process: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_cores_and_sockets_are_counted() {
        let mut text = String::new();
        for cpu in 0..8 {
            text += &format!(
                "processor\t: {cpu}\nphysical id\t: {}\ncore id\t\t: {}\n\n",
                cpu % 2,
                cpu / 2 % 2
            );
        }
        assert_eq!(
            parse_cpuinfo(&text),
            Some(Topology {
                threads: 8,
                cores: 4,
                sockets: 2
            })
        );
        let plain = "processor : 0\nprocessor : 1\n";
        assert_eq!(
            parse_cpuinfo(plain),
            Some(Topology {
                threads: 2,
                cores: 2,
                sockets: 1
            })
        );
        assert_eq!(parse_cpuinfo(""), None);
    }

    #[test]
    fn each_worker_has_a_cpu() {
        let all = describe(None, 0, 0, 0).threads;
        for (cpus, workers, counted) in [(0, all, 0), (0, all + 6, all + 6), (1, all + 6, 1)] {
            assert_eq!(cpus_for_workers(cpus, workers), counted);
        }
    }

    #[test]
    fn options_replace_the_real_values() {
        let host = describe(Some("node7"), 100, 3, 2);
        assert_eq!(host.host, "node7");
        assert_eq!(
            (host.memory_mb, host.threads, host.cores, host.sockets),
            (100, 3, 3, 1)
        );
        let host = describe(None, 0, 0, 0);
        assert_eq!(host.host, name());
        assert!(host.memory_mb > 0 && host.threads > 0 && host.cores > 0 && host.sockets > 0);
    }
}
