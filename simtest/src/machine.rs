//! A host as the workers of its agent see it.

use std::io;
use std::time::Instant;

use pegasus_mpi_cluster::internals::{Assignment, SubmitId};
use pegasus_mpi_cluster::simulated::{BatchHost, Host, Membership, SimulatedEnd, SimulatedTask};
use pegasus_mpi_cluster::{Rank, Registration};
use pmc_system::simulated as system;

use crate::world::{find, host_name, note, now, with};
use crate::{files, gangs, masters};

/// The name of the host of the first master.
const FIRST_NODE: &str = "n0";

/// The host with this number, from 0.
pub(crate) struct Machine(pub(crate) usize);

impl Host for Machine {
    fn registration(&self) -> Registration {
        let plan = with(|world| world.plan.hosts[self.0].clone());
        let (cpus, memory) = plan.map_or((1, 1000), |plan| (plan.cpus, plan.memory));
        Registration {
            host: host_name(self.0),
            memory_mb: memory,
            threads: cpus,
            cores: cpus,
            sockets: 1,
            gpus: 0,
            away: false,
        }
    }

    fn start(&self, rank: Rank, task: &Assignment) -> SimulatedTask {
        let name = String::from_utf8_lossy(&task.name).into_owned();
        let host = self.0;
        note(|| {
            format!(
                "{} starts {name} ({}) in slot {}",
                host_name(host),
                task.submit.0,
                rank.0
            )
        });
        let (number, wrong) = with(|world| world.start_task(host, task)).unwrap_or_default();
        wrong.into_iter().for_each(find);
        gangs::lead_begins(number, task);
        SimulatedTask(number)
    }

    fn end_of(&self, task: SimulatedTask) -> Option<Instant> {
        let at = with(|world| world.tasks.get(&task.0).map(|task| task.ends_at));
        at.flatten().map(system::instant)
    }

    fn ended(&self, task: SimulatedTask) -> Option<SimulatedEnd> {
        let now = now();
        let ended = with(|world| {
            world.end_if_due(task.0, now);
            let task = world.tasks.get(&task.0)?;
            let status = task.ended?;
            Some(SimulatedEnd {
                status,
                forwards: if status == 0 {
                    task.forwards.clone()
                } else {
                    Vec::new()
                },
                is_cut: task.is_cut,
            })
        });
        ended.flatten()
    }

    fn signal(&self, task: SimulatedTask, signal: i32) {
        let now = now();
        with(|world| {
            world.end_if_due(task.0, now);
            world.signal(task.0, signal, now);
        });
    }

    fn join(&self, membership: &Membership) {
        gangs::join(self.0, membership);
    }

    fn begin_to_leave(&self, submit: SubmitId) -> bool {
        gangs::begin_to_leave(self.0, submit)
    }

    fn leave(&self, submit: SubmitId) -> bool {
        gangs::leave(self.0, submit)
    }

    fn memberships(&self) -> Vec<SubmitId> {
        gangs::memberships(self.0)
    }

    fn inputs(&self, task: SimulatedTask) -> Vec<String> {
        files::inputs(task)
    }

    fn begin_file(&self, key: &str) -> bool {
        let entry = (self.0, key.to_owned());
        with(|world| world.files.brought.insert(entry)).unwrap_or(true)
    }

    fn end_file(&self, key: &str) {
        let entry = (self.0, key.to_owned());
        with(|world| world.files.brought.remove(&entry));
    }

    fn has_file(&self, key: &str) -> bool {
        files::has(self.0, key)
    }

    fn copy(&self, address: &str, key: &str) -> io::Result<bool> {
        files::copy(self.0, address, key)
    }

    fn fetch(&self, key: &str) {
        files::fetch(self.0, key);
    }

    fn take_input(&self, task: SimulatedTask, _: &str) {
        let wrong = with(|world| world.take_input(task.0));
        wrong.flatten().into_iter().for_each(find);
    }

    fn succession(&self) -> Option<(u32, String)> {
        let is_on = with(|world| world.plan.succession) == Some(true);
        is_on.then(|| (self.0 as u32, host_name(self.0)))
    }

    fn batch_host(&self) -> Option<BatchHost> {
        let known = with(|world| {
            let is_known = world.batch_knows_at.is_some_and(|at| now() >= at);
            let nodes = world.nodes.iter().enumerate();
            let nodes = nodes
                .filter(|(_, node)| node.is_on)
                .map(|(host, _)| host_name(host));
            let first = Some(FIRST_NODE.to_owned()).filter(|_| !is_known);
            first.into_iter().chain(nodes).collect()
        });
        known.map(|nodes| BatchHost {
            name: FIRST_NODE.to_owned(),
            nodes,
        })
    }

    fn start_successor(&self) {
        masters::start_successor(self.0);
    }
}
