//! Random plans.

use std::fmt::Write as _;
use std::sync::Arc;

use pmc_dag::Dag;
use pmc_dag::rescue::DoneSet;
use testutils::Random;

use super::Plan;
use crate::protocol::Registration;
use crate::scheduler::MasterConfig;

/// Properties of a random DAG.
#[derive(Default)]
pub(super) struct RandomDag {
    /// Beginning of the names of its tasks.
    pub(super) name: String,
    /// The number of its running tasks is limited.
    pub(super) has_limit: bool,
    /// Some tasks are DAGs.
    pub(super) subdags: bool,
    /// Tasks have inputs that others read, too.
    pub(super) inputs: bool,
    /// Tasks have expected run times.
    pub(super) times: bool,
}

/// Creates a DAG as text, so that the reader is part of the test.
pub(super) fn random_dag(
    random: &mut Random,
    tasks: u64,
    requests: &[&str],
    categories: u64,
    RandomDag {
        name,
        has_limit,
        subdags,
        inputs,
        times,
    }: &RandomDag,
) -> Dag {
    let priorities = random.pick(&[1, 3, 1000]);
    let mut text = String::new();
    for task in 0..tasks {
        let request = requests[random.below(requests.len() as u64) as usize];
        let is_subdag = *subdags && random.one_in(6);
        if *inputs && !random.one_in(3) {
            let _ = write!(text, "#inputs {}", random_file(random));
            while random.one_in(3) {
                let _ = write!(text, " {}", random_file(random));
            }
            text.push('\n');
        }
        if *times && random.one_in(3) {
            let _ = writeln!(text, "#@ {task} kind{} ID", random.below(3));
        }
        if is_subdag {
            let _ = writeln!(text, "SUBDAG EXTERNAL {name}t{task} x.dag");
            if random.one_in(3) {
                continue;
            }
            let _ = write!(text, "SCRIPT PRE {name}t{task} {request} ");
        } else {
            let _ = write!(text, "TASK {name}t{task} {request} ");
        }
        if random.one_in(2) {
            let _ = write!(
                text,
                "-p {} ",
                random.below(priorities) as i64 - priorities as i64 / 2
            );
        }
        if random.one_in(8) {
            let _ = write!(text, "-t {} ", random.below(4));
        }
        if random.one_in(6) {
            // The requests grow beyond all hosts, and no value is missing but one.
            text.push_str(random.pick(&[
                "--request-expression 'memory=pegasus_memory_mb * 3 + 100' ",
                "--request-expression 'cores=pegasus_cores + job_retry + 1' ",
                "--request-expression 'gpus=pegasus_gpus + 1' --request-expression cores=1 ",
                "--request-expression memory=maxrss/1024 --request-expression cores=nothing ",
            ]));
        }
        if *times && random.one_in(3) {
            let milliseconds = random.below(200);
            let _ = write!(text, "-e {} ", milliseconds as f64 / 1000.0);
        }
        if *times && random.one_in(6) {
            text.push_str(random.pick(&[
                "--checkpoint-signal USR1@0 ",
                "--checkpoint-signal USR1@1 ",
                "--checkpoint-exit 85 ",
            ]));
        }
        if categories > 0 && !is_subdag && random.one_in(2) {
            let _ = write!(text, "--category c{} ", random.below(categories));
        }
        // Jobs of the first kind need no directory in common with the master.
        text.push_str(random.pick(&["/bin/pegasus-lite a\n", "/bin/true\n", "/bin/true\n"]));
    }
    for category in 0..categories {
        let _ = writeln!(text, "MAXJOBS c{category} {}", 1 + random.below(4));
    }
    if *has_limit {
        let _ = writeln!(text, "MAXJOBS * {}", 1 + random.below(4));
    }
    // Edges go from lower to higher numbers, so there is no cycle. Some are duplicates.
    for child in 1..tasks {
        for _ in 0..random.below(4) {
            let parent = child - 1 - random.below(child.min(20));
            let _ = writeln!(text, "EDGE {name}t{parent} {name}t{child}");
        }
    }
    Dag::parse(text.into_bytes()).unwrap()
}

/// Name of a file that tasks read.
pub(super) fn random_file(random: &mut Random) -> String {
    format!("f{}", random.below(8))
}

pub(super) const REQUESTS: [&str; 10] = [
    "",
    "-c 0",
    "-m 100",
    "-m 2000",
    "-c 2",
    "-c 3 -m 500",
    "-c 4",
    "-m 1e3 -c 0",
    "-g 1",
    "-g 2 -c 2 -m 500",
];

pub(super) fn random_worker(random: &mut Random) -> Registration {
    let kinds = [
        (2000, 4, 2, 1, 2),
        (3000, 8, 8, 2, 4),
        (2500, 16, 4, 2, 3),
        (8000, 6, 6, 1, 8),
    ];
    let host = random.below(5);
    let (memory_mb, threads, cores, sockets, gpus) = kinds[host as usize % kinds.len()];
    Registration {
        host: format!("host{host}"),
        memory_mb,
        threads,
        cores,
        sockets,
        gpus,
        away: host == 4,
    }
}

pub(super) fn random_plan(random: &mut Random) -> Plan {
    let first = random.below(REQUESTS.len() as u64) as usize;
    let requests = &REQUESTS[first..first + 1 + random.below((REQUESTS.len() - first) as u64) as usize];
    let tasks = random.pick(&[0, 1, 10, 60, 200]);
    let categories = random.pick(&[0, 0, 1, 3]);
    let subdags = random.one_in(2);
    let inputs = random.one_in(2);
    let end = random.one_in(3).then(|| random.below(1500));
    let kinds = RandomDag {
        subdags,
        inputs,
        times: end.is_some(),
        ..RandomDag::default()
    };
    let dag = Arc::new(random_dag(random, tasks, requests, categories, &kinds));
    let mut done = DoneSet::new();
    if random.one_in(3) {
        for task in dag.ids().filter(|_| random.one_in(4)) {
            done.insert(task);
        }
    }
    let workers = (0..random.pick(&[1, 2, 5, 40]))
        .map(|_| Registration {
            // All tasks fit.
            away: false,
            ..random_worker(random)
        })
        .collect();
    Plan {
        dag,
        done,
        workers,
        dynamic: false,
        config: MasterConfig {
            max_attempts: random.below(4) as u32,
            max_failures: if random.one_in(3) {
                1 + random.below(5) as u32
            } else {
                0
            },
            crash_limit: 0,
        },
        more_memory: random.pick(&[100, 150, 400]),
        one_in_fails: random.pick(&[0, 3, 10]),
        drain_after: random.one_in(5).then(|| random.below(50)),
        prefill: random.one_in(2),
        subdags,
        inputs,
        end,
        thorough: true,
    }
}
