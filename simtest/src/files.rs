//! Files that tasks need: the first host fetches each from outside, and the others get it from each other.

use std::io;
use std::time::Duration;

use pegasus_mpi_cluster::simulated::SimulatedTask;
use pmc_system::simulated as system;
use pmc_system::thread;

use crate::memberships::number_of;
use crate::plan::file_key;
use crate::world::{World, find, host_name, note, now, with};

/// The longest time of a copy, and of a fetch, in milliseconds.
const COPY_MILLIS: u64 = 800;

/// How long a host that does not answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most hosts to which one gives a file at a time.
const FAN_OUT: usize = 2;

/// A task waits no longer for its files: for each, three times two minutes for the master, and as long for
/// another task of its host.
const MAX_WAIT: Duration = Duration::from_secs(1_800);

/// Keys of the files that a task needs.
pub(crate) fn inputs(task: SimulatedTask) -> Vec<String> {
    let inputs = with(|world| {
        let task = world.tasks.get(&task.0)?;
        let task = world.plan.task(&task.name)?;
        Some(task.inputs.iter().map(|file| file_key(*file)).collect())
    });
    inputs.flatten().unwrap_or_default()
}

/// Returns whether a host has a file.
pub(crate) fn has(host: usize, key: &str) -> bool {
    with(|world| world.files.has.contains(&(host, key.to_owned()))).unwrap_or(false)
}

/// Waits for a copy.
fn wait() {
    let millis = system::random(|random| random.below(COPY_MILLIS)).unwrap_or(0);
    thread::sleep(Duration::from_millis(millis));
}

/// A host copies a file from another one.
pub(crate) fn copy(host: usize, address: &str, key: &str) -> io::Result<bool> {
    note(|| format!("{} gets {key} from {address}", host_name(host)));
    let Some(from) = number_of(address) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let entry = (from, key.to_owned());
    let answers = with(|world| {
        let is_there = world.nodes[from].is_on && !world.nodes[from].is_suspended;
        let has_file = world.files.has.contains(&entry);
        let given = world.files.given.entry(entry.clone()).or_default();
        *given += usize::from(is_there && has_file);
        let wrong = (*given > FAN_OUT).then(|| format!("{address} gives {key} to {given} at a time"));
        let wrong = wrong.or_else(|| (!has_file).then(|| format!("{address} does not have {key}")));
        let wrong = wrong.filter(|_| world.is_undisturbed());
        (is_there, has_file, wrong)
    });
    let Some((is_there, has_file, wrong)) = answers else {
        return Err(io::ErrorKind::NotFound.into());
    };
    wrong.into_iter().for_each(find);
    if !is_there {
        thread::sleep(PATIENCE);
        return Err(io::ErrorKind::TimedOut.into());
    }
    if has_file {
        wait();
        with(|world| {
            if let Some(given) = world.files.given.get_mut(&entry) {
                *given = given.saturating_sub(1);
            }
            world.files.has.insert((host, entry.1));
        });
    }
    Ok(has_file)
}

/// A host fetches a file from outside.
pub(crate) fn fetch(host: usize, key: &str) {
    note(|| format!("{} fetches {key}", host_name(host)));
    let wrong = with(|world| {
        let times = world.files.fetched.entry(key.to_owned()).or_default();
        *times += 1;
        let times = *times;
        (times > 1 && world.is_undisturbed()).then(|| format!("{key} is fetched {times} times"))
    });
    wrong.flatten().into_iter().for_each(find);
    wait();
    with(|world| world.files.has.insert((host, key.to_owned())));
}

impl World {
    /// True if nothing goes wrong, and all agents are those of the first master.
    fn is_undisturbed(&self) -> bool {
        self.plan.faults.is_empty() && self.plan.wall == 0 && self.report.masters == 1
    }

    /// A file is there that a task needs. With its last one, its program starts.
    pub(crate) fn take_input(&mut self, number: u64) -> Option<String> {
        let now = now();
        let process = self.tasks.get_mut(&number)?;
        let task = self.plan.task(&process.name)?;
        let name = task.name();
        process.lacks = process.lacks.saturating_sub(1);
        if process.lacks > 0 || process.ended.is_some() {
            return None;
        }
        let attempt = self.attempts.get(&task.number).copied().unwrap_or(0);
        process.ends_at = process.ends_at.min(now + self.plan.run_time(task, attempt));
        process.thread.into_iter().for_each(system::unpark);
        (now - process.begun > MAX_WAIT).then(|| format!("{name} waits too long for its files"))
    }
}
