//! The master of many agents: messages through the code of a real connection, without sockets and encryption.
//!
//! Each agent has one slot and answers each task with a result. The master decodes the frame, handles the
//! result, schedules, and encodes the frame of the next task, for one message after the other. Logs are not
//! written. Only the time of the master counts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pegasus_mpi_cluster::internals::{
    AgentMaster, AgentOptions, Event, GangParts, LaunchOptions, Master, MasterConfig, MasterTransport,
    Membership, Outbox, Output, Record, Start, SubmitId, TaskResult, ToMaster, ToWorker, Workers,
    agent_messages as messages, assignment,
};
use pegasus_mpi_cluster::{Interrupt, Outcome, Rank, Registration, WorkerOptions};
use pmc_dag::Dag;
use pmc_dag::rescue::DoneSet;
use pmc_link::{MemoryAgent, Timing};

use super::cpu_time;

/// Number of agents.
pub const AGENTS: u32 = 10_000;

/// Time of the master.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// For each agent that joined and registered.
    pub join: Duration,
    /// For each task.
    pub task: Duration,
    /// Share of a core that the heartbeats of all agents take, from 0 to 1.
    pub heartbeats: f64,
}

struct Agent {
    link: MemoryAgent,
    rank: Rank,
    /// The attempt that runs.
    runs: Option<SubmitId>,
}

/// Sends what the scheduler decides.
struct Sender<'a> {
    dag: &'a Dag,
    transport: &'a mut AgentMaster,
}

impl Outbox for Sender<'_> {
    fn start(&mut self, start: Start) {
        let rank = start.rank;
        let assignment = assignment(&self.dag.task(start.task), start, None, Output::Own);
        self.send(rank, ToWorker::Run(Box::new(assignment)));
    }

    fn join(&mut self, _: GangParts) {}

    fn leave(&mut self, _: Rank, _: SubmitId) {}

    fn send(&mut self, to: Rank, message: ToWorker) {
        self.transport.send(to, message).expect("the agents are there");
    }

    fn record(&mut self, _: Record<'_>) {}
}

/// Runs a DAG.
pub fn measure(dag: &Arc<Dag>) -> Times {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut transport = AgentMaster::new(options(&folder.path().join("x.dag")), &Interrupt::new());
    transport.begin().expect("the master can listen");
    let config = MasterConfig {
        max_attempts: 1,
        max_failures: 0,
        crash_limit: 0,
    };
    let mut master = Master::new(Arc::clone(dag), DoneSet::new(), Workers::Dynamic, config);
    let begun = cpu_time();
    let mut agents: Vec<Agent> = (0..AGENTS).map(|number| join(&transport, number)).collect();
    for agent in &mut agents {
        let frame = agent.say(&ToMaster::Register(registration(agent.rank)));
        handle(&mut master, dag, &mut transport, (agent, &frame));
    }
    let join = (cpu_time() - begun) / AGENTS;
    master
        .start(&mut Sender {
            dag,
            transport: &mut transport,
        })
        .expect("every task fits");
    master.schedule(&mut Sender {
        dag,
        transport: &mut transport,
    });
    let mut spent = Duration::ZERO;
    while !master.is_finished() {
        // All agents end their tasks at the same time.
        let frames: Vec<_> = agents.iter_mut().map(Agent::run).collect();
        let begun = cpu_time();
        for (agent, frame) in agents.iter().zip(&frames) {
            if let Some(frame) = frame {
                handle(&mut master, dag, &mut transport, (agent, frame));
            }
        }
        spent += cpu_time() - begun;
    }
    assert!(master.summary().success);
    let times = Times {
        join,
        task: spent / dag.len() as u32,
        heartbeats: heartbeats(&mut agents),
    };
    // What is settled is forgotten: an agent keeps its last result only.
    assert!(agents.iter_mut().all(|agent| {
        agent.run();
        agent.link.unsettled() <= 1
    }));
    times
}

/// Lets the master take a frame, as it does for each message of a run.
fn handle(
    master: &mut Master,
    dag: &Dag,
    transport: &mut AgentMaster,
    (agent, frame): (&Agent, &bytes::Bytes),
) {
    agent.link.deliver(frame).expect("the frame is right");
    while let Some((from, message)) = transport.receive(Duration::ZERO).expect("the master lives") {
        let event = match message {
            ToMaster::Register(registration) => Event::Registered(from, registration),
            ToMaster::Finished(result) => Event::Finished(from, result),
            other => unreachable!("{other:?}"),
        };
        master
            .handle(event, &mut Sender { dag, transport })
            .expect("the message is right");
    }
    master.schedule(&mut Sender { dag, transport });
    transport.check().expect("all agents are there");
    transport.settle();
}

/// Returns the share of a core that heartbeats take at the usual interval.
fn heartbeats(agents: &mut [Agent]) -> f64 {
    let frames: Vec<_> = agents.iter_mut().map(|agent| agent.link.beat()).collect();
    let begun = cpu_time();
    for (agent, frame) in agents.iter().zip(&frames) {
        agent.link.deliver(frame).expect("the frame is right");
    }
    (cpu_time() - begun).as_secs_f64() / Timing::default().heartbeat.as_secs_f64()
}

impl Agent {
    fn say(&mut self, message: &ToMaster) -> bytes::Bytes {
        let body = messages::address(self.rank, |body| message.encode(body));
        self.link.frame(body)
    }

    /// Takes what has come. Returns the result of the task, if there is one.
    fn run(&mut self) -> Option<bytes::Bytes> {
        while let Some(body) = self.link.receive().expect("the master is right") {
            if let Some((_, messages::Content::Message(message))) = messages::addressed(&body)
                && let Ok(ToWorker::Run(task)) = ToWorker::decode(message)
            {
                self.runs = Some(task.submit);
            }
        }
        let result = TaskResult {
            submit: self.runs.take()?,
            outcome: Outcome::new(0, Duration::from_millis(1)),
            forwards: Vec::new(),
            returned: None,
        };
        Some(self.say(&ToMaster::Finished(result)))
    }
}

fn join(transport: &AgentMaster, number: u32) -> Agent {
    let hello = messages::AgentHello {
        max_slots: u32::MAX,
        host: format!("node{number:05}"),
        slots: 1,
        number: Some(number),
        before: None,
        first_rank: None,
    };
    let joined = transport.join_in_memory(&hello).expect("the run has begun");
    let (link, welcome) = joined.expect("the agent is welcome");
    let welcome: messages::AgentWelcome = messages::decode(&welcome).expect("the welcome is right");
    Agent {
        link,
        rank: Rank(welcome.first_rank),
        runs: None,
    }
}

fn registration(rank: Rank) -> Registration {
    Registration {
        host: format!("node{:05}", rank.0),
        memory_mb: 64_000,
        threads: 1,
        cores: 1,
        gpus: 0,
        sockets: 1,
        away: false,
    }
}

fn options(dag: &Path) -> AgentOptions {
    let worker = WorkerOptions {
        dag: dag.to_owned(),
        per_task_stdio: false,
        worker_files: PathBuf::from("x"),
        lock_worker_files: false,
        report_quiet: false,
        host_name: None,
        host_memory: 0,
        host_cpus: 0,
        host_gpus: 0,
        strict_limits: false,
        watch_memory: false,
        set_affinity: false,
        host_script: None,
        runtime_limit: None,
        forward_limit: 0,
        kickstart: None,
        environment: Vec::new(),
        away: None,
        channels: None,
    };
    AgentOptions {
        dag: dag.to_owned(),
        agents: AGENTS,
        slots: 1,
        start_with: 1,
        master_timeout: Duration::from_secs(600),
        drain_grace: Duration::ZERO,
        join_timeout: Duration::from_secs(300),
        listen: pmc_link::Listen::default(),
        launch: None,
        launch_options: LaunchOptions::default(),
        // The agents make no heartbeats but those that are measured.
        timing: Timing::with_lease(Duration::from_secs(3600)),
        settings: messages::WorkerSettings::new(&worker, Path::new("/")),
        verbosity: 0,
    }
}
