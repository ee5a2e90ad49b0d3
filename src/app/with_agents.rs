//! The program with agents: the master of some, or one of them.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pmc_link::Timing;

use super::{begin, conclude, refuse};
use crate::agent::guard::{self, LIFELINE_VARIABLE};
use crate::agent::{self, AgentArgs};
use crate::cli::{Agents, RawArgs};
use crate::host;
use crate::interrupt::Interrupt;
use crate::launch::Launch;
use crate::options::{DEFAULT_DRAIN_GRACE, WorkerOptions};
use crate::run::{AgentRun, run_with_agents};
use crate::signals::{self, Process};
use crate::transport::agents::messages::{HostOptions, WorkerSettings};
use crate::transport::agents::{
    AGENT_TIMEOUT, AgentOptions, ENDPOINT_VARIABLE, JOIN_TIMEOUT, MASTER_TIMEOUT,
};

/// Runs an agent.
pub(super) fn agent(args: &RawArgs, words: &[OsString], worker: WorkerOptions) -> ExitCode {
    let mut environment = worker.environment;
    host::set_process_name();
    // Tasks must not know the key of the run.
    environment.retain(|(name, _)| name != ENDPOINT_VARIABLE);
    // Nor must they find it in the memory or the first environment of agent and guard.
    host::protect_process();
    if !environment.iter().any(|(name, _)| name == LIFELINE_VARIABLE) {
        return guard::run(words);
    }
    let args = AgentArgs {
        endpoint: args.endpoint.clone(),
        endpoint_value: args
            .endpoint_value
            .as_ref()
            .map(|value| value.to_string_lossy().into_owned()),
        slots: args.slots.unwrap_or(0),
        join_timeout: args.join_timeout.map_or(JOIN_TIMEOUT, time),
        host: HostOptions {
            name: worker.host_name,
            memory: worker.host_memory,
            cpus: worker.host_cpus,
            gpus: worker.host_gpus,
            environment: args.host_environment,
        },
        environment,
    };
    let interrupt = Arc::new(Interrupt::new());
    if let Err(error) = signals::catch(&interrupt, Process::Agent) {
        return refuse(&format!("Unable to handle signals: {}", pmc_dag::reason(&error)));
    }
    agent::run(&args, &interrupt)
}

/// Runs the master of agents.
pub(super) fn master(args: &RawArgs, program: &OsStr, worker: WorkerOptions, launch: &Launch) -> ExitCode {
    if let Launch::Launched { sign, .. } = launch {
        if launch.is_first() {
            return refuse(&format!(
                "--agents is for one process, but an MPI launcher has started this one ({sign} is set)"
            ));
        }
        return ExitCode::FAILURE;
    }
    if args.workers.is_some() {
        return refuse("--workers is for runs without agents: give the slots of each agent with --slots");
    }
    let options = match agent_options(args, &worker) {
        Ok(options) => options,
        Err(message) => return refuse(&message),
    };
    let interrupt = match begin(args, 1) {
        Ok(interrupt) => interrupt,
        Err(code) => return code,
    };
    let run = AgentRun {
        options: args.options(program),
        agents: options,
    };
    conclude(&run_with_agents(&run, &interrupt, &mut |_| {}))
}

fn agent_options(args: &RawArgs, worker: &WorkerOptions) -> Result<AgentOptions, String> {
    let directory = std::env::current_dir().map_err(|error| {
        format!(
            "Unable to find the working directory: {}",
            pmc_dag::reason(&error)
        )
    })?;
    let (agents, hosts) = match &args.agents {
        Some(Agents::Count(count)) => (*count, Vec::new()),
        // What it stands for was put in its place.
        Some(Agents::Gang) => (0, Vec::new()),
        Some(Agents::Hosts(hosts)) => (u32::try_from(hosts.len()).unwrap_or(u32::MAX), hosts.clone()),
        None => (0, Vec::new()),
    };
    let launch = match &args.launch {
        None => None,
        Some(how) => {
            let how = how.to_str().ok_or("--launch is not valid UTF-8")?;
            let launch = pmc_batch::launch::Launch::parse(how, agents, &hosts);
            Some(launch.map_err(|error| error.to_string())?)
        }
    };
    Ok(AgentOptions {
        agents,
        slots: args.slots.unwrap_or(0),
        listen: args.listen.clone().unwrap_or_default(),
        start_with: args.start_with.unwrap_or(1),
        join_timeout: args.join_timeout.map_or(JOIN_TIMEOUT, time),
        master_timeout: args.master_timeout.map_or(MASTER_TIMEOUT, time),
        drain_grace: args.drain_grace.map_or(DEFAULT_DRAIN_GRACE, time),
        launch,
        timing: Timing::with_lease(args.agent_timeout.map_or(AGENT_TIMEOUT, time)),
        verbosity: args.verbosity,
        ..AgentOptions::new(&args.dag, WorkerSettings::new(worker, &directory))
    })
}

/// A time that does not fit is as good as unlimited.
fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
