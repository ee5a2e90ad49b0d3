//! Options about agents.

use std::ffi::OsStr;

use super::args::{EarlyExit, RawArgs};
use super::values::{at_least, integer, seconds, unsigned};
use crate::transport::agents::{HostsError, parse_hosts};

/// Maximum agents of a run.
const MAX_AGENTS: usize = 100_000;

/// Maximum slots of an agent. Each is a thread, with a process for its task.
const MAX_SLOTS: i64 = 10_000;

/// How many agents there are, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agents {
    /// A number of them; the launcher knows where.
    Count(u32),
    /// One on each of these hosts.
    Hosts(Vec<String>),
}

type Set = Result<(), EarlyExit>;

pub(super) fn set_agents(args: &mut RawArgs, value: &OsStr) -> Set {
    let invalid = || EarlyExit::refuse("--agents must be a number of agents, or names of hosts with commas");
    let text = value.to_str().ok_or_else(invalid)?;
    if let Ok(count) = text.parse::<usize>() {
        if !(1..=MAX_AGENTS).contains(&count) {
            return Err(EarlyExit::refuse(&format!(
                "--agents must be at least 1 and at most {MAX_AGENTS}"
            )));
        }
        args.agents = Some(Agents::Count(u32::try_from(count).unwrap_or(u32::MAX)));
        return Ok(());
    }
    let hosts = parse_hosts(text).map_err(|error| match error {
        HostsError::Name(_) => invalid(),
        HostsError::Twice(host) => EarlyExit::refuse(&format!(
            "--agents names the host {host} twice: one agent runs there, give it more --slots"
        )),
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
