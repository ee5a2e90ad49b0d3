//! The executor: runs a workflow DAG with one master and many workers.
//!
//! [`run_local`] runs a DAG inside the calling program; [`main`] is the program `pegasus-mpi-cluster`.

#![cfg_attr(
    not(feature = "mpi"),
    expect(dead_code, reason = "some parts serve only the MPI transport")
)]

mod agent;
mod allocation;
mod app;
mod bell;
mod channels;
mod cli;
mod control;
#[cfg_attr(not(feature = "stampede"), path = "database_disabled.rs")]
mod database;
mod driver;
mod durability;
mod exit;
mod heap;
mod host;
mod interrupt;
mod launch;
mod logging;
mod logs;
mod merge;
mod node;
mod open_files;
mod options;
mod payload;
mod protocol;
mod relay;
mod requests;
mod run;
mod scheduler;
mod signals;
pub mod simulate;
pub(crate) mod stacks;
mod transport;
mod worker;

// The program and its options.
pub use app::main;
pub use cli::{OPTIONS as CLI_OPTIONS, OptionSpec, Section as OptionSection};
pub use logging::init as init_logging;

// A run on this machine, or in agents.
pub use interrupt::Interrupt;
pub use options::{
    DEFAULT_FORWARD_LIMIT, Options, SERVER_VARIABLES, Serve, Stampede, Stdio, Target, WorkerOptions,
    own_kickstart,
};
pub use run::{AgentRun, LocalRun, run_local, run_with_agents};
pub use transport::agents::{AgentOptions, LaunchOptions, messages::WorkerSettings};

// What an observer sees, and what remains.
pub use driver::{
    Aborted, FailedTask, MemoryExcess, Observer, Position, RunError, RunEvent, RunSummary, TaskEnd,
};
pub use protocol::{EndCause, MemoryUse, Outcome, Rank};
pub use scheduler::{Eviction, Summary};

// This machine.
pub use host::{HostSize, allocated_cpus, cpus_for_workers, describe as describe_host, protect_process};
pub use protocol::Registration;
pub use worker::count_gpus;

/// Parts of the executor for simulations. Not an interface for others.
#[cfg(feature = "simulated")]
#[doc(hidden)]
pub mod simulated {
    pub use crate::agent::guard::Lifeline;
    pub use crate::agent::guarded::{Guarded, MAX_RESTARTS};
    pub use crate::agent::{AgentArgs, run_simulated as run_agent};
    pub use crate::control::simulated::{Asked, Tools};
    pub use crate::protocol::{GangToken, Membership};
    pub use crate::transport::agents::NUMBER_VARIABLE;
    pub use crate::transport::agents::messages::HostOptions;
    pub use crate::worker::simulated::{Host, OnHost, SimulatedEnd, SimulatedTask};
    pub use pmc_batch::status::BatchHost;
}

/// Parts of the executor for the benchmarks, fuzz targets and tests of this repository. Not an interface for
/// others.
#[doc(hidden)]
pub mod internals {
    pub use crate::driver::assignment::assignment;
    pub use crate::durability::forward_journal;
    pub use crate::durability::forwarding::{Forwarding, NotForwarded};
    pub use crate::durability::shared_files::SharedFiles;
    pub use crate::payload::Payload;
    pub use crate::protocol::{
        Assignment, DecodeError, ENCODING_VERSION, ForwardedData, Output, Returned, SubmitId, TaskResult,
        ToMaster, ToWorker,
    };
    pub use crate::scheduler::{
        Event, GangParts, Granted, Master, MasterConfig, Outbox, Record, Start, Workers,
    };
    pub use crate::transport::agents::messages as agent_messages;
    pub use crate::transport::agents::{AgentMaster, AgentOptions, LaunchOptions};
    pub use crate::transport::{MasterTransport, Membership};
}
