//! A task over many hosts: how long one look of the scheduler takes when it gets its hosts, when hosts are
//! reserved for it, and after each task that ends while it waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pegasus_mpi_cluster::internals::{
    Event, GangParts, Master, MasterConfig, Outbox, Record, Start, SubmitId, ToWorker, Workers,
};
use pegasus_mpi_cluster::{Rank, Registration};
use pmc_dag::Dag;
use pmc_dag::rescue::DoneSet;

use super::{cpu_time, result};

/// Number of hosts. Each has two slots and four CPUs.
pub const HOSTS: u32 = 10_000;

/// Ends that are measured. Too few for the smallest gang to begin.
const ENDS: u32 = 100;

/// Times of one look.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// It finds that a gang fits, and takes its hosts.
    pub place: Duration,
    /// It finds that a gang does not fit, and reserves hosts.
    pub reserve: Duration,
    /// The next ones: each follows the end of a task.
    pub next: Duration,
}

/// Attempts that run, and hosts that gangs got.
#[derive(Default)]
struct Sent {
    attempts: VecDeque<(Rank, SubmitId)>,
    parts: usize,
}

impl Outbox for Sent {
    fn start(&mut self, start: Start) {
        self.attempts.push_back((start.rank, start.submit));
    }

    fn join(&mut self, gang: GangParts) {
        self.parts += gang.parts.len();
    }

    fn leave(&mut self, _: Rank, _: SubmitId) {}

    fn send(&mut self, _: Rank, _: ToWorker) {}

    fn record(&mut self, _: Record<'_>) {}
}

/// A run.
struct Run {
    master: Master,
    sent: Sent,
}

impl Run {
    fn new(text: String) -> Self {
        let dag = Arc::new(Dag::parse(text.into_bytes()).expect("the DAG is right"));
        let config = MasterConfig {
            max_attempts: 1,
            max_failures: 0,
            crash_limit: 0,
        };
        let workers = Workers::Fixed(2 * HOSTS);
        let master = Master::new(dag, DoneSet::new(), workers, config).with_gangs_over_hosts();
        let mut run = Self {
            master,
            sent: Sent::default(),
        };
        for rank in 0..2 * HOSTS {
            let registration = Registration {
                host: format!("node{:05}", rank / 2),
                memory_mb: 64_000,
                threads: 4,
                cores: 4,
                sockets: 1,
                gpus: 0,
                away: false,
            };
            run.handle(Event::Registered(Rank(rank + 1), registration));
        }
        run.master.start(&mut run.sent).expect("every task fits");
        run
    }

    fn handle(&mut self, event: Event) {
        self.master.handle(event, &mut self.sent).expect("it is possible");
    }

    /// Ends the attempt that has begun first.
    fn end_one(&mut self) {
        let (rank, submit) = self.sent.attempts.pop_front().expect("a task runs");
        self.handle(Event::Finished(rank, result(submit)));
    }

    /// Time of one look.
    fn look(&mut self) -> Duration {
        let begun = cpu_time();
        self.master.schedule(&mut self.sent);
        cpu_time() - begun
    }
}

/// Measures a gang of this number of hosts.
pub fn measure(nodes: u32) -> Times {
    let mut idle = Run::new(format!("TASK gang -N {nodes} -c 2 program\n"));
    let place = idle.look();
    assert_eq!(idle.sent.parts, nodes as usize, "it has its hosts");
    let mut text = String::from("TASK first -p 1 -c 4 program\n");
    // They take all CPUs, for times that are known.
    for task in 0..2 * HOSTS {
        text += &format!("TASK t{task} -c 2 -e {} program\n", 100 + task % 900);
    }
    text += &format!("TASK gang -N {nodes} -c 4 -p 1 program\nEDGE first gang\n");
    let mut busy = Run::new(text);
    busy.look();
    busy.end_one();
    let reserve = busy.look();
    let next = (0..ENDS).map(|_| {
        busy.end_one();
        busy.look()
    });
    let next = next.sum::<Duration>() / ENDS;
    assert_eq!(busy.sent.parts, 0, "it waits");
    Times { place, reserve, next }
}
