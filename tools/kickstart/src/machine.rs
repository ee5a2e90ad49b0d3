//! The host: facts that stay the same ([`Host`]), and its load.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};

use monitord_compat::invocation_record::{Machine, MachineFacts, MachineLines, Text};
use nix::sys::utsname::uname;
use nix::unistd::{SysconfVar, sysconf};

use crate::network;

/// Facts about the host that do not change while a process runs.
#[derive(Clone, Debug)]
pub struct Host {
    /// Interface of `address`.
    pub interface: Option<Text>,
    /// IPv4 address, dotted.
    pub address: String,
    /// Name of the host, from the system: a name server may take seconds.
    pub name: Text,
    machine: MachineLines,
}

/// Main memory, swap and load averages, in the units of [`Machine`].
#[derive(Clone, Copy, Debug, Default)]
struct State {
    ram_kib: [u64; 4],
    swap_kib: [u64; 2],
    load: [u64; 3],
}

#[derive(Default)]
struct Cpu {
    vendor: Text,
    model: Text,
    mhz: u32,
}

impl Host {
    /// Gathers the facts. Without `machine`, leaves out those of the record's `machine` block.
    #[must_use]
    pub fn gather(machine: bool) -> Self {
        let (interface, address) = network::primary();
        let (system, name, release, architecture) = match uname() {
            Ok(names) => (
                bytes(names.sysname()),
                bytes(names.nodename()),
                bytes(names.release()),
                bytes(names.machine()),
            ),
            Err(_) => Default::default(),
        };
        let cpu = if machine {
            read_cpu().unwrap_or_default()
        } else {
            Cpu::default()
        };
        let facts = MachineFacts {
            page_size: system_value(SysconfVar::PAGE_SIZE),
            system: system.to_ascii_lowercase(),
            node_name: name.to_ascii_lowercase(),
            release,
            architecture: architecture.to_ascii_lowercase(),
            cpu_count: u32::try_from(system_value(SysconfVar::_NPROCESSORS_ONLN)).unwrap_or(0),
            cpu_mhz: cpu.mhz,
            cpu_vendor: cpu.vendor,
            cpu_model: cpu.model,
        };
        Self {
            interface,
            address: address.to_string(),
            name,
            machine: (&facts).into(),
        }
    }

    /// Returns the `machine` block: facts, memory and load. With `census`, processes and threads are counted,
    /// which takes milliseconds.
    #[must_use]
    pub fn machine(&self, census: bool) -> Machine {
        let State {
            ram_kib,
            swap_kib,
            load,
        } = State::read();
        Machine {
            facts: self.machine.clone(),
            ram_kib,
            swap_kib,
            load,
            census: if census { take_census() } else { Vec::new() },
        }
    }
}

impl State {
    fn read() -> Self {
        let Some(info) = system_info() else {
            return Self::default();
        };
        let unit = u64::from(info.mem_unit).max(1);
        #[expect(
            clippy::useless_conversion,
            reason = "the fields are 32 bits wide on some machines"
        )]
        let (kib, load) = (
            |amount: libc::c_ulong| u64::from(amount).saturating_mul(unit) / 1024,
            info.loads.map(u64::from),
        );
        Self {
            ram_kib: [
                kib(info.totalram),
                kib(info.freeram),
                kib(info.sharedram),
                kib(info.bufferram),
            ],
            swap_kib: [kib(info.totalswap), kib(info.freeswap)],
            load,
        }
    }
}

fn bytes(text: &std::ffi::OsStr) -> Text {
    text.as_encoded_bytes().to_vec()
}

fn system_value(name: SysconfVar) -> u64 {
    sysconf(name)
        .ok()
        .flatten()
        .and_then(|value| u64::try_from(value).ok())
        .unwrap_or(0)
}

fn system_info() -> Option<libc::sysinfo> {
    #[expect(unsafe_code, reason = "nix does not give all fields")]
    // SAFETY: a zeroed sysinfo is valid, and the call writes to it only.
    unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        (libc::sysinfo(&raw mut info) == 0).then_some(info)
    }
}

/// Reads the entry of the first processor. On machines with many processors, the whole file takes
/// milliseconds.
fn read_cpu() -> io::Result<Cpu> {
    let mut start = [0; 2048];
    let count = File::open("/proc/cpuinfo")?.read(&mut start)?;
    Ok(parse_cpu(&start[..count]))
}

fn parse_cpu(text: &[u8]) -> Cpu {
    let mut cpu = Cpu::default();
    for line in text
        .split(|&byte| byte == b'\n')
        .take_while(|line| !line.is_empty())
    {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let value = line[colon + 1..].trim_ascii();
        match line[..colon].trim_ascii() {
            b"vendor_id" | b"CPU implementer" => cpu.vendor = value.to_vec(),
            b"model name" => cpu.model = value.to_vec(),
            b"cpu MHz" => {
                let mhz: f64 = str::from_utf8(value)
                    .ok()
                    .and_then(|mhz| mhz.parse().ok())
                    .unwrap_or(0.0);
                cpu.mhz = mhz.round() as u32;
            }
            _ => {}
        }
    }
    cpu
}

/// Counts processes and threads by state, and sums up the memory of the processes.
fn take_census() -> Vec<(&'static str, u64)> {
    const PROCESS: [&str; 6] = [
        "procs_running",
        "procs_sleeping",
        "procs_waiting",
        "procs_stopped",
        "procs_zombie",
        "procs_other",
    ];
    const TASK: [&str; 6] = [
        "task_running",
        "task_sleeping",
        "task_waiting",
        "task_stopped",
        "task_zombie",
        "task_other",
    ];
    let (mut processes, mut tasks) = (Tally::default(), Tally::default());
    for process in numbered_entries("/proc") {
        let folder = format!("/proc/{process}");
        let Ok(status) = fs::read(format!("{folder}/status")) else {
            continue;
        };
        processes.add(&status);
        let threads = numbered_entries(&format!("{folder}/task"));
        if threads.len() == 1 {
            tasks.add(&status);
            continue;
        }
        for thread in threads {
            if let Ok(status) = fs::read(format!("{folder}/task/{thread}/status")) {
                tasks.add(&status);
            }
        }
    }
    let mut census = vec![("procs_total", processes.total)];
    census.extend(processes.states(&PROCESS));
    census.extend([
        ("procs_vmsize", processes.virtual_kib),
        ("procs_rss", processes.resident_kib),
    ]);
    census.push(("task_total", tasks.total));
    census.extend(tasks.states(&TASK));
    census
}

fn numbered_entries(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Counts of processes or threads.
#[derive(Default)]
struct Tally {
    total: u64,
    by_state: BTreeMap<usize, u64>,
    virtual_kib: u64,
    resident_kib: u64,
}

impl Tally {
    fn add(&mut self, status: &[u8]) {
        self.total += 1;
        for line in status.split(|&byte| byte == b'\n') {
            let number = |text: &[u8]| {
                let digits = text
                    .trim_ascii()
                    .split(|&byte| byte == b' ')
                    .next()
                    .unwrap_or_default();
                str::from_utf8(digits)
                    .ok()
                    .and_then(|digits| digits.parse().ok())
                    .unwrap_or(0)
            };
            if let Some(state) = line.strip_prefix(b"State:") {
                let state = match state.trim_ascii().first() {
                    Some(b'R') => 0,
                    Some(b'S') => 1,
                    Some(b'D') => 2,
                    Some(b'T' | b't') => 3,
                    Some(b'Z') => 4,
                    _ => 5,
                };
                *self.by_state.entry(state).or_default() += 1;
            } else if let Some(size) = line.strip_prefix(b"VmSize:") {
                self.virtual_kib += number(size);
            } else if let Some(size) = line.strip_prefix(b"VmRSS:") {
                self.resident_kib += number(size);
                break;
            }
        }
    }

    fn states<'a>(&self, names: &'a [&'static str; 6]) -> impl Iterator<Item = (&'static str, u64)> + 'a {
        self.by_state
            .clone()
            .into_iter()
            .filter_map(|(state, count)| Some((*names.get(state)?, count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_processor_is_parsed() {
        let text = b"processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\ncpu MHz\t\t: 2595.62\n\nvendor_id\t: X\n";
        let cpu = parse_cpu(text);
        assert_eq!(
            (cpu.vendor, cpu.model, cpu.mhz),
            (b"AuthenticAMD".to_vec(), b"AMD EPYC".to_vec(), 2596)
        );
    }

    #[test]
    fn a_census_counts_processes() {
        let machine = Host::gather(true).machine(true);
        assert!(machine.ram_kib[0] > 0 && machine.ram_kib[1] <= machine.ram_kib[0]);
        assert!(
            machine
                .census
                .iter()
                .any(|&(key, count)| key == "procs_total" && count > 0)
        );
        assert!(Host::gather(true).machine(false).census.is_empty());
    }
}
