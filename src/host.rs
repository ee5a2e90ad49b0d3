//! Name, memory and CPUs of this machine, and the CPU affinity of this process.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use pmc_batch::launch::RSH;

use crate::allocation::Allocation;
use crate::protocol::Registration;

/// Returns the name of this machine.
#[must_use]
pub fn name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

/// Returns the checksum of the boot id; 0 if it is unknown. Each host has another one each time that it
/// starts. While it is the same, nothing that was written there has been lost.
#[must_use]
pub fn running_system() -> u32 {
    #[cfg(feature = "simulated")]
    if let Some(system) = pmc_system::simulated::running_system() {
        return system;
    }
    let name = std::fs::read("/proc/sys/kernel/random/boot_id");
    name.map_or(0, |name| crc32fast::hash(&name))
}

/// What the user says about a host; 0: what it has for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSize {
    /// MB of memory.
    pub memory_mb: u32,
    /// CPUs, which count as the cores of one socket.
    pub cpus: u32,
    /// GPUs. Here, 0 means none.
    pub gpus: u32,
}

/// Returns name, memory, CPUs and GPUs of this machine, as far as a process with this environment may use
/// them: batch systems, control groups and affinity masks may leave it a part of the machine. `size` and
/// `name` replace what is found.
#[must_use]
pub fn describe(name: Option<&str>, size: HostSize, environment: &[(OsString, OsString)]) -> Registration {
    let HostSize {
        memory_mb,
        cpus,
        gpus,
    } = size;
    let allocation = Allocation::of(environment, &self::name());
    let memory_mb = if memory_mb > 0 {
        memory_mb.into()
    } else {
        let physical = physical_memory_mb();
        allocation.memory_mb.map_or(physical, |mb| mb.min(physical))
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
        let allowed = allowed_cpus();
        let found = parse_cpuinfo(&text, |cpu| allowed.is_empty() || allowed.contains(&cpu));
        let threads = at_most(usable_cpus(), allocation.cpus);
        found.map_or(
            Topology {
                threads,
                cores: threads,
                sockets: 1,
            },
            |found| found.limited_to(threads),
        )
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
pub fn cpus_for_workers(cpus: u32, workers: u32, environment: &[(OsString, OsString)]) -> u32 {
    if cpus == 0 && workers > allocated_cpus(environment) {
        workers
    } else {
        cpus
    }
}

/// Returns the number of CPUs that a process with this environment may use, here and by its batch system.
#[must_use]
pub fn allocated_cpus(environment: &[(OsString, OsString)]) -> u32 {
    at_most(usable_cpus(), Allocation::of(environment, &name()).cpus)
}

/// As [`allocated_cpus`], whatever the affinity mask of this process: a launcher has bound each process of a
/// host to other CPUs.
#[cfg(feature = "mpi")]
pub(crate) fn allocated_cpus_of_host(environment: &[(OsString, OsString)]) -> u32 {
    std::thread::scope(|scope| {
        let unbound = scope.spawn(|| {
            reset_affinity();
            allocated_cpus(environment)
        });
        unbound.join().unwrap_or(1)
    })
}

fn at_most(number: u32, limit: Option<u32>) -> u32 {
    limit.map_or(number, |limit| limit.min(number))
}

/// Returns the numbers of the CPUs in the affinity mask of this thread, in order; none if it is unknown.
fn allowed_cpus() -> Vec<u32> {
    let mask = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let is_set = |cpu: &usize| mask.is_set(*cpu).unwrap_or(false);
    let cpus = (0..CpuSet::count()).filter(is_set);
    cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect()
}

/// Returns the CPUs that stand for these numbers of a host: the master counts the CPUs that are allowed here
/// from 0. `None` if there are fewer.
pub(crate) fn real_cpus(numbers: &[u32]) -> Option<Vec<u32>> {
    nth_cpus(&allowed_cpus(), numbers)
}

fn nth_cpus(allowed: &[u32], numbers: &[u32]) -> Option<Vec<u32>> {
    numbers
        .iter()
        .map(|&n| allowed.get(n as usize).copied())
        .collect()
}

/// Returns the number of CPUs that this process may use, by affinity mask and quotas.
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

impl Topology {
    /// A part of these processors.
    fn limited_to(self, threads: u32) -> Self {
        Self {
            threads: self.threads.min(threads),
            cores: self.cores.min(threads),
            sockets: self.sockets.min(threads),
        }
    }
}

/// Counts the processors for which `counts` is true, their cores and sockets in the text of `/proc/cpuinfo`.
/// `None` without such processors. If cores or sockets are missing (virtual machines, other architectures),
/// every thread is a core and all are in one socket.
fn parse_cpuinfo(cpuinfo: &str, counts: impl Fn(u32) -> bool) -> Option<Topology> {
    let mut threads = 0;
    let mut socket = "";
    let mut is_counted = true;
    let (mut cores, mut sockets) = (BTreeSet::new(), BTreeSet::new());
    for line in cpuinfo.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        match key.trim() {
            "processor" => {
                is_counted = value.trim().parse().map_or(true, &counts);
                threads += u32::from(is_counted);
            }
            _ if !is_counted => {}
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

/// Returns the program that runs commands on other hosts of a gang: that beside this program, else that of
/// the search path.
pub(crate) fn rsh_program() -> PathBuf {
    let beside = own_path().ok().map(|program| program.with_file_name(RSH));
    beside
        .filter(|program| program.is_file())
        .unwrap_or_else(|| RSH.into())
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
            parse_cpuinfo(&text, |_| true),
            Some(Topology {
                threads: 8,
                cores: 4,
                sockets: 2
            })
        );
        // Two threads of a core, and a core of the other socket.
        assert_eq!(
            parse_cpuinfo(&text, |cpu| [0, 4, 1].contains(&cpu)),
            Some(Topology {
                threads: 3,
                cores: 2,
                sockets: 2
            })
        );
        let plain = "processor : 0\nprocessor : 1\n";
        assert_eq!(
            parse_cpuinfo(plain, |_| true),
            Some(Topology {
                threads: 2,
                cores: 2,
                sockets: 1
            })
        );
        assert_eq!(parse_cpuinfo("", |_| true), None);
    }

    #[test]
    fn each_worker_has_a_cpu() {
        let all = describe(None, HostSize::default(), &[]).threads;
        for (cpus, workers, counted) in [(0, all, 0), (0, all + 6, all + 6), (1, all + 6, 1)] {
            assert_eq!(cpus_for_workers(cpus, workers, &[]), counted);
        }
    }

    #[test]
    fn options_replace_the_real_values() {
        let size = HostSize {
            memory_mb: 100,
            cpus: 3,
            gpus: 2,
        };
        let host = describe(Some("node7"), size, &[]);
        assert_eq!(host.host, "node7");
        assert_eq!(
            (host.memory_mb, host.threads, host.cores, host.sockets),
            (100, 3, 3, 1)
        );
        let host = describe(None, HostSize::default(), &[]);
        assert_eq!(host.host, name());
        assert!(host.memory_mb > 0 && host.threads > 0 && host.cores > 0 && host.sockets > 0);
    }

    #[test]
    fn a_shared_node_is_as_large_as_the_batch_job_says() {
        let environment = [("SLURM_CPUS_ON_NODE", "1"), ("SLURM_MEM_PER_NODE", "500")];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let host = describe(None, HostSize::default(), &environment);
        assert_eq!((host.threads, host.cores, host.sockets), (1, 1, 1));
        assert_eq!(host.memory_mb, 500);
        assert_eq!(allocated_cpus(&environment), 1);
    }

    #[test]
    fn granted_numbers_stand_for_allowed_cpus() {
        assert_eq!(nth_cpus(&[3, 5, 9], &[0, 2]), Some(vec![3, 9]));
        assert_eq!(nth_cpus(&[3], &[0, 1]), None);
    }
}
