//! The options of the program: one table for the parser, `--help`, the manual page and completions.

use pmc_dag::RetryDelay;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::agents;
use super::args::{EarlyExit, RawArgs};
use super::limits::{set_max_jobs, set_max_plans, set_wall_time};
use super::values::{at_least, host_name, integer, path, seconds, unsigned};

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Short name, without the dash.
    pub short: Option<char>,
    /// Long name, without the dashes.
    pub long: &'static str,
    /// Name of the value, if the option takes one.
    pub value: Option<&'static str>,
    /// What the option does, in one line.
    pub help: &'static str,
    /// Where `--help` lists the option.
    pub section: Section,
    /// Feature of this crate without which the option is refused.
    pub feature: Option<&'static str>,
    pub(super) action: Action,
}

/// Section of the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Options of the original program. Scripts compare their help, so the texts must not change.
    Original,
    /// Options that the original program does not have.
    Additional,
}

/// What the parser does with an option.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Prints the help.
    Help,
    /// Prints the version.
    Version,
    /// Sets a flag.
    Flag(fn(&mut RawArgs)),
    /// Stores the next word.
    Value(fn(&mut RawArgs, &OsStr) -> Result<(), EarlyExit>),
}

/// All options, in the order of the help.
pub const OPTIONS: &[OptionSpec] = &[
    option("help", Action::Help, "Print this message").short('h'),
    option("version", Action::Version, "Print version information").short('V'),
    flag("verbose", |args| args.verbosity += 1, "Increase logging level").short('v'),
    flag("quiet", |args| args.verbosity -= 1, "Decrease logging level").short('q'),
    value("stdout", "PATH", set_stdout, "Path to stdout file for tasks").short('o'),
    value("stderr", "PATH", set_stderr, "Path to stderr file for tasks").short('e'),
    flag(
        "skip-rescue",
        |args| args.skip_rescue = true,
        "Ignore existing rescue file (still creates one)",
    )
    .short('s'),
    value(
        "max-failures",
        "N",
        set_max_failures,
        "Stop submitting tasks after N tasks have failed",
    )
    .short('m'),
    value(
        "tries",
        "N",
        set_tries,
        "Try tasks N times before marking them failed",
    )
    .short('t'),
    flag("nolock", |args| args.no_lock = true, "Do not try to lock DAGFILE").short('n'),
    value(
        "rescue",
        "PATH",
        set_rescue,
        "Path to rescue log [default: DAGFILE.rescue]",
    )
    .short('r'),
    value(
        "host-script",
        "PATH",
        set_host_script,
        "Path to script that will be launched on each host",
    ),
    value(
        "host-memory",
        "N",
        set_host_memory,
        "Amount of memory per host in MB",
    ),
    value("host-cpus", "N", set_host_cpus, "Number of CPUs per host"),
    flag(
        "strict-limits",
        |args| args.strict_limits = true,
        "Enforce strict task resource limits",
    ),
    value(
        "max-wall-time",
        "T",
        set_max_wall_time,
        "Maximum wall time of the job in minutes",
    ),
    flag(
        "per-task-stdio",
        |args| args.per_task_stdio = true,
        "Write each task's stdout/stderr to a different file",
    ),
    flag(
        "jobstate-log",
        |args| args.jobstate_log = true,
        "Generate jobstate.log",
    ),
    flag(
        "monitord-hack",
        set_monitord_hack,
        "Generate a .dagman.out file to trick monitord",
    ),
    flag(
        "no-resource-log",
        |args| args.no_resource_log = true,
        "Do not generate a log of resource usage",
    ),
    flag(
        "no-sleep-on-recv",
        |args| args.no_sleep_on_recv = true,
        "Do not sleep on message receive",
    ),
    value("maxfds", "N", set_max_fds, "Maximum cached file descriptors"),
    flag(
        "keep-affinity",
        |args| args.keep_affinity = true,
        "Keep inherited CPU and memory affinity",
    ),
    flag(
        "set-affinity",
        |args| args.set_affinity = true,
        "Set CPU affinity for multicore tasks",
    ),
    value(
        "workers",
        "N",
        set_workers,
        "Number of workers without an MPI launcher [default: one per CPU]",
    )
    .additional(),
    value(
        "host-name",
        "NAME",
        set_host_name,
        "Name of this host; workers with the same name share its memory and CPUs",
    )
    .additional(),
    value("host-gpus", "N", set_host_gpus, "Number of GPUs per host").additional(),
    value(
        "runtime-limit",
        "SECONDS",
        set_runtime_limit,
        "Time limit of each task without an option -T of its own",
    )
    .additional(),
    value(
        "drain-grace",
        "SECONDS",
        set_drain_grace,
        "Time that running tasks have after SIGTERM [default: 8]",
    )
    .additional(),
    value(
        "stop-grace",
        "SECONDS",
        set_stop_grace,
        "Ask tasks to end this long before the wall time is over [default: 0; 10 with job:T]",
    )
    .additional(),
    flag(
        "watch-memory",
        |args| args.watch_memory = true,
        "End tasks whose processes use more memory than they request",
    )
    .additional(),
    value(
        "more-memory",
        "FACTOR",
        set_more_memory,
        "Let tasks request FACTOR times their memory after running out of it [default: 1]",
    )
    .additional(),
    value(
        "retry-delay",
        "SECONDS[,FACTOR[,MAX]]",
        set_retry_delay,
        "Wait before a retry; each wait is FACTOR times the last [default: 0; transfers 2,2,60]",
    )
    .additional(),
    value(
        "disk-reserve",
        "MIB",
        set_disk_reserve,
        "Start no tasks while the disk has less free space; 0: no check [default: 8]",
    )
    .additional(),
    value(
        "forward-limit",
        "MIB",
        set_forward_limit,
        "Fail tasks that forward more through their pipes; 0: no limit [default: 1024]",
    )
    .additional(),
    flag(
        "accept-incomplete",
        |args| args.accept_incomplete = true,
        "Run the tasks that are there if the end of DAGFILE is missing",
    )
    .additional(),
    value(
        "max-jobs",
        "CATEGORY=N",
        set_max_jobs,
        "Run at most N tasks of a category at a time; may be repeated",
    )
    .additional(),
    value(
        "max-plans",
        "N",
        set_max_plans,
        "Plan at most N sub-workflows at a time [default: 4]",
    )
    .additional(),
    flag(
        "packed-output",
        set_packed_output,
        "Write the tasks' stdout/stderr to a few files with indexes, in packed-output/",
    )
    .additional(),
    flag(
        "stampede",
        set_stampede,
        "Write the STAMPEDE database during the run",
    )
    .additional()
    .feature("stampede"),
    flag(
        "pmix",
        set_pmix,
        "Let tools that are written for PMIx find the run",
    )
    .additional()
    .feature("pmix"),
    value(
        "sync-interval",
        "MS",
        set_sync_interval,
        "Sync rescue file and forwarded data to disk this often; 0: never [default: 1000]",
    )
    .additional(),
    flag(
        "no-forward-journal",
        |args| args.no_forward_journal = true,
        "Keep no journal of forwarded data; a crash may then duplicate or cut data",
    )
    .additional(),
    value(
        "agents",
        "N|HOSTS|gang",
        agents::set_agents,
        "Run tasks in this number of agents, or one on each host of n[1-4,7],x or of the gang",
    )
    .additional(),
    value(
        "launch",
        "HOW",
        agents::set_launch,
        "Start agents: local, ssh, srun, pbsdsh, mpiexec, flux, blaunch, pmc-rsh or a command",
    )
    .additional(),
    value("slots", "N", agents::set_slots, "Tasks of an agent at a time").additional(),
    flag(
        "agent",
        |args| args.agent = true,
        "Be an agent; the file is the endpoint",
    )
    .additional(),
    value(
        "agent-timeout",
        "SECONDS",
        agents::set_agent_timeout,
        "An agent that is silent for this time is lost [default: 30]",
    )
    .additional(),
    value(
        "listen",
        "ADDRESS[:PORT[-PORT]]",
        agents::set_listen,
        "Where the master of agents listens [default: all addresses]",
    )
    .additional(),
    value(
        "start-with",
        "N",
        agents::set_start_with,
        "Start with the first task when N agents are there [default: 1]",
    )
    .additional(),
    value(
        "crash-limit",
        "N",
        agents::set_crash_limit,
        "A task has failed if N agents were lost while it ran; 0: no limit [default: 5]",
    )
    .additional(),
    value(
        "bad-host-limit",
        "N",
        agents::set_bad_host_limit,
        "Set a host aside on which N tasks in a row failed that succeed elsewhere [default: 3]",
    )
    .additional(),
    value(
        "master-timeout",
        "SECONDS",
        agents::set_master_timeout,
        "Time that agents wait for another master if theirs has died [default: 600]",
    )
    .additional(),
    value(
        "join-timeout",
        "SECONDS",
        agents::set_join_timeout,
        "Time for agents and master to find each other [default: 300]",
    )
    .additional(),
];

/// Finds the option that a word names.
pub(super) fn find(word: &OsStr) -> Option<&'static OptionSpec> {
    let word = word.to_str()?;
    OPTIONS.iter().find(|option| match word.strip_prefix("--") {
        Some(long) => long == option.long,
        None => {
            let mut characters = word.strip_prefix('-').unwrap_or_default().chars();
            option.short.is_some() && characters.next() == option.short && characters.next().is_none()
        }
    })
}

impl OptionSpec {
    /// `-s|--long`, or `--long` without a short name.
    #[must_use]
    pub fn names(&self) -> String {
        self.join_names("|")
    }

    /// True if this program was built with what the option needs.
    pub(super) fn is_available(&self) -> bool {
        match self.feature {
            None => true,
            Some("stampede") => cfg!(feature = "stampede"),
            Some("pmix") => cfg!(feature = "pmix"),
            Some(_) => false,
        }
    }

    pub(super) fn join_names(&self, separator: &str) -> String {
        let short = self.short.map(|short| format!("-{short}{separator}"));
        format!("{}--{}", short.unwrap_or_default(), self.long)
    }

    const fn short(self, name: char) -> Self {
        Self {
            short: Some(name),
            ..self
        }
    }

    const fn additional(self) -> Self {
        Self {
            section: Section::Additional,
            ..self
        }
    }

    const fn feature(self, name: &'static str) -> Self {
        Self {
            feature: Some(name),
            ..self
        }
    }
}

const fn option(long: &'static str, action: Action, help: &'static str) -> OptionSpec {
    OptionSpec {
        short: None,
        long,
        value: None,
        help,
        section: Section::Original,
        feature: None,
        action,
    }
}

const fn flag(long: &'static str, set: fn(&mut RawArgs), help: &'static str) -> OptionSpec {
    option(long, Action::Flag(set), help)
}

const fn value(
    long: &'static str,
    name: &'static str,
    set: fn(&mut RawArgs, &OsStr) -> Result<(), EarlyExit>,
    help: &'static str,
) -> OptionSpec {
    OptionSpec {
        value: Some(name),
        ..option(long, Action::Value(set), help)
    }
}

/// Maximum workers of a local run. Each is a thread, with a process for its task.
const MAX_WORKERS: u32 = 10_000;

type Set = Result<(), EarlyExit>;

fn set_stdout(args: &mut RawArgs, value: &OsStr) -> Set {
    args.stdout = Some(value.into());
    Ok(())
}

fn set_stderr(args: &mut RawArgs, value: &OsStr) -> Set {
    args.stderr = Some(value.into());
    Ok(())
}

fn set_max_failures(args: &mut RawArgs, value: &OsStr) -> Set {
    let number = integer(value, "N for -m/--max-failures is invalid")?;
    args.max_failures = at_least(0, number, "N for -m/--max-failures must be >= 0")?;
    Ok(())
}

fn set_tries(args: &mut RawArgs, value: &OsStr) -> Set {
    let number = integer(value, "N for -t/--tries is invalid")?;
    args.tries = Some(at_least(1, number, "N for -t/--tries must be >= 1")?);
    Ok(())
}

fn set_rescue(args: &mut RawArgs, value: &OsStr) -> Set {
    args.rescue = path(value.to_owned());
    Ok(())
}

fn set_host_script(args: &mut RawArgs, value: &OsStr) -> Set {
    args.host_script = path(value.to_owned());
    Ok(())
}

fn set_host_memory(args: &mut RawArgs, value: &OsStr) -> Set {
    args.host_memory = unsigned(value, "--host-memory")?;
    if args.host_memory < 1 {
        return Err(EarlyExit::refuse("--host-memory must be an integer >= 1"));
    }
    Ok(())
}

fn set_host_cpus(args: &mut RawArgs, value: &OsStr) -> Set {
    args.host_cpus = unsigned(value, "--host-cpus")?;
    Ok(())
}

fn set_host_gpus(args: &mut RawArgs, value: &OsStr) -> Set {
    args.host_gpus = unsigned(value, "--host-gpus")?;
    Ok(())
}

fn set_host_name(args: &mut RawArgs, value: &OsStr) -> Set {
    args.host_name = host_name(value, "--host-name")?;
    Ok(())
}

fn set_more_memory(args: &mut RawArgs, value: &OsStr) -> Set {
    let percent = pmc_dag::factor(value.as_bytes());
    let refusal = || EarlyExit::refuse("--more-memory must be a number from 1 to 1000");
    args.more_memory_percent = Some(percent.ok_or_else(refusal)?);
    Ok(())
}

fn set_retry_delay(args: &mut RawArgs, value: &OsStr) -> Set {
    let refusal =
        || EarlyExit::refuse("--retry-delay must be SECONDS[,FACTOR[,MAX]], with a FACTOR from 1 to 1000");
    args.retry_delay = Some(RetryDelay::parse(value.as_bytes()).ok_or_else(refusal)?);
    Ok(())
}

fn set_disk_reserve(args: &mut RawArgs, value: &OsStr) -> Set {
    args.disk_reserve_mib = Some(unsigned(value, "--disk-reserve")?);
    Ok(())
}

fn set_forward_limit(args: &mut RawArgs, value: &OsStr) -> Set {
    args.forward_limit_mib = Some(unsigned(value, "--forward-limit")?);
    Ok(())
}

fn set_max_wall_time(args: &mut RawArgs, value: &OsStr) -> Set {
    set_wall_time(args, value, "--max-wall-time")
}

fn set_monitord_hack(args: &mut RawArgs) {
    args.monitord_hack = true;
    args.per_task_stdio = true;
}

fn set_packed_output(args: &mut RawArgs) {
    args.packed_output = true;
    args.per_task_stdio = true;
}

fn set_pmix(args: &mut RawArgs) {
    args.pmix = true;
    args.jobstate_log = true;
    args.per_task_stdio = true;
}

fn set_stampede(args: &mut RawArgs) {
    args.stampede = true;
    set_monitord_hack(args);
}

fn set_max_fds(args: &mut RawArgs, value: &OsStr) -> Set {
    let number = integer(value, "Invalid value for --maxfds")?;
    args.max_fds = Some(at_least(1, number, "--maxfds must be at least 1")?);
    Ok(())
}

fn set_workers(args: &mut RawArgs, value: &OsStr) -> Set {
    let number = integer(value, "Invalid value for --workers")?;
    let workers = u32::try_from(number)
        .ok()
        .filter(|workers| *workers <= MAX_WORKERS);
    let too_many = || EarlyExit::refuse(&format!("--workers must be at most {MAX_WORKERS}"));
    args.workers = Some(workers.ok_or_else(too_many)?);
    Ok(())
}

fn set_sync_interval(args: &mut RawArgs, value: &OsStr) -> Set {
    let number = integer(value, "Invalid value for --sync-interval")?;
    let refuse = |_| EarlyExit::refuse("--sync-interval must be a number of milliseconds");
    args.sync_interval_ms = Some(u32::try_from(number).map_err(refuse)?);
    Ok(())
}

fn set_runtime_limit(args: &mut RawArgs, value: &OsStr) -> Set {
    args.runtime_limit = Some(seconds(value, "--runtime-limit")?);
    Ok(())
}

fn set_stop_grace(args: &mut RawArgs, value: &OsStr) -> Set {
    args.stop_grace = Some(seconds(value, "--stop-grace")?);
    Ok(())
}

fn set_drain_grace(args: &mut RawArgs, value: &OsStr) -> Set {
    args.drain_grace = Some(seconds(value, "--drain-grace")?);
    Ok(())
}

#[cfg(test)]
mod tests;
