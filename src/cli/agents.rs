//! Options about agents.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr};

use pmc_hosts::{HostsError, parse_hosts};
use pmc_link::Listen;

use super::args::{Agents, EarlyExit, RawArgs};
use super::values::{at_least, integer, seconds, unsigned};

/// Maximum agents of a run.
const MAX_AGENTS: usize = 100_000;

/// Maximum slots of an agent. Each is a thread, with a process for its task.
const MAX_SLOTS: i64 = 10_000;

/// The value of `--agents` in a task over several hosts.
const GANG: &str = "gang";

type Set = Result<(), EarlyExit>;

pub(super) fn set_agents(args: &mut RawArgs, value: &OsStr) -> Set {
    let invalid = || {
        EarlyExit::refuse(
            "--agents must be a number of agents, names of hosts with commas, or gang (the hosts of the task)",
        )
    };
    let text = value.to_str().ok_or_else(invalid)?;
    if text == GANG {
        args.agents = Some(Agents::Gang);
        return Ok(());
    }
    if let Ok(count) = text.parse::<usize>() {
        if !(1..=MAX_AGENTS).contains(&count) {
            return Err(EarlyExit::refuse(&format!(
                "--agents must be at least 1 and at most {MAX_AGENTS}"
            )));
        }
        args.agents = Some(Agents::Count(u32::try_from(count).unwrap_or(u32::MAX)));
        return Ok(());
    }
    let hosts = parse_hosts(text, MAX_AGENTS).map_err(|error| match error {
        HostsError::Name(_) => invalid(),
        HostsError::Twice(host) => EarlyExit::refuse(&format!(
            "--agents names the host {host} twice: one agent runs there, give it more --slots"
        )),
        error => EarlyExit::refuse(&format!("--agents: {error}")),
    })?;
    args.agents = Some(Agents::Hosts(hosts));
    Ok(())
}

pub(super) fn set_launch(args: &mut RawArgs, value: &OsStr) -> Set {
    if value.is_empty() {
        return Err(EarlyExit::refuse("--launch must name a launcher or a command"));
    }
    args.launch = Some(value.to_owned());
    Ok(())
}

pub(super) fn set_slots(args: &mut RawArgs, value: &OsStr) -> Set {
    let number = integer(value, "Invalid value for --slots")?;
    if number == 0 {
        return Err(EarlyExit::refuse("At least one worker process is required"));
    }
    if !(1..=MAX_SLOTS).contains(&number) {
        return Err(EarlyExit::refuse(&format!(
            "--slots must be at least 1 and at most {MAX_SLOTS}"
        )));
    }
    args.slots = u32::try_from(number).ok();
    Ok(())
}

pub(super) fn set_agent_timeout(args: &mut RawArgs, value: &OsStr) -> Set {
    let time = seconds(value, "--agent-timeout")?;
    if !(1.0..=86_400.0).contains(&time) {
        return Err(EarlyExit::refuse(
            "--agent-timeout must be at least 1 second and at most a day",
        ));
    }
    args.agent_timeout = Some(time);
    Ok(())
}

pub(super) fn set_listen(args: &mut RawArgs, value: &OsStr) -> Set {
    let listen = value.to_str().and_then(read_listen);
    let invalid = "--listen must be an address, perhaps with a port or a range of ports: 10.0.0.1:7000-7010, [fd00::1]:7000";
    args.listen = Some(listen.ok_or_else(|| EarlyExit::refuse(invalid))?);
    Ok(())
}

fn read_listen(text: &str) -> Option<Listen> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(text).parse() {
        return Some(Listen {
            address: Some(address),
            ports: None,
        });
    }
    let (address, ports) = text.rsplit_once(':')?;
    let address = match address.strip_prefix('[') {
        Some(address) => address.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?.into(),
        None => address.parse::<Ipv4Addr>().ok()?.into(),
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    (0 < first && first <= last).then_some(Listen {
        address: Some(address),
        ports: Some(first..=last),
    })
}

pub(super) fn set_start_with(args: &mut RawArgs, value: &OsStr) -> Set {
    let number = integer(value, "Invalid value for --start-with")?;
    args.start_with = Some(at_least(1, number, "--start-with must be at least 1")?);
    Ok(())
}

pub(super) fn set_crash_limit(args: &mut RawArgs, value: &OsStr) -> Set {
    args.crash_limit = Some(unsigned(value, "--crash-limit")?);
    Ok(())
}

pub(super) fn set_bad_host_limit(args: &mut RawArgs, value: &OsStr) -> Set {
    args.bad_host_limit = Some(unsigned(value, "--bad-host-limit")?);
    Ok(())
}

pub(super) fn set_master_timeout(args: &mut RawArgs, value: &OsStr) -> Set {
    args.master_timeout = Some(seconds(value, "--master-timeout")?);
    Ok(())
}

pub(super) fn set_join_timeout(args: &mut RawArgs, value: &OsStr) -> Set {
    args.join_timeout = Some(seconds(value, "--join-timeout")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_at_are_read() {
        let read = |text| {
            let Listen { address, ports } = read_listen(text)?;
            Some((address?.to_string(), ports))
        };
        let listen = |address: &str, ports| Some((address.to_owned(), ports));
        assert_eq!(read("10.0.0.1"), listen("10.0.0.1", None));
        assert_eq!(read("::1"), listen("::1", None));
        assert_eq!(read("10.0.0.1:7"), listen("10.0.0.1", Some(7..=7)));
        assert_eq!(read("[fd00::1]:7-9"), listen("fd00::1", Some(7..=9)));
        for text in [
            "",
            "n1",
            "10.0.0.1:",
            "10.0.0.1:9-7",
            "10.0.0.1:0",
            "10.0.0.1:70000",
            "[::1:5",
            "[::1]:x",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
