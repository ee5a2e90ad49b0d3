//! What expected run times cost: a million tasks of twenty transformations, in a run that learns nothing and
//! has no end, in one that learns how long they run and ends long after them, and in one in which a task is
//! known that runs longer than the run has left, so that each other one is looked up before it starts.

use std::sync::Arc;
use std::time::Duration;

use pegasus_mpi_cluster::internals::{Event, Master};
use pmc_dag::Dag;

use super::run_with;

/// Transformations of the tasks.
const TRANSFORMATIONS: usize = 20;

/// How long the first task is expected to run, in seconds.
const LONGEST: u64 = 60;

/// A line before each task names its transformation. The first task is long, and starts first.
fn options(n: usize) -> String {
    let first = if n == 0 {
        format!("-p 1 -e {LONGEST}")
    } else {
        String::new()
    };
    format!("#@ {n} t::{} t{n}\n{first}", n % TRANSFORMATIONS)
}

/// Rates of the two runs with expected times, each as a part of that without, as medians of all rounds.
pub struct Rates {
    /// Tasks per second without, in the best round.
    pub without: f64,
    /// The end is far away.
    pub far: f64,
    /// Each task is looked up.
    pub near: f64,
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
}

/// Measures runs of this number of tasks in turns.
pub fn measure(tasks: usize, rounds: usize) -> Rates {
    let dag: Arc<Dag> = Arc::new(super::dag(tasks, options, super::one_each));
    assert!(
        dag.transformation(pmc_dag::TaskId(1)).is_some(),
        "tasks have names"
    );
    let ends_at = |master: &mut Master, seconds| {
        let event = Event::EndsAt(Duration::from_secs(seconds));
        master
            .handle(event, &mut super::Sent::new(&dag))
            .expect("a run may end");
    };
    let without = || run_with(&dag, |_| {}, |_| {});
    let far = || run_with(&dag, |master| ends_at(master, 1_000_000), |_| {});
    let near = || {
        let later = Duration::from_secs(LONGEST / 2);
        run_with(
            &dag,
            |master| ends_at(master, LONGEST),
            |master| master.advance(later),
        )
    };
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..rounds {
        // Each is the first one in a third of the rounds.
        for turn in 0..3 {
            let which = (round + turn) % 3;
            let time = match which {
                0 => without(),
                1 => far(),
                _ => near(),
            };
            times[which].push(time.as_secs_f64());
        }
    }
    let ratios = |of: &[f64]| {
        median(
            times[0]
                .iter()
                .zip(of)
                .map(|(plain, time)| plain / time)
                .collect(),
        )
    };
    let least = times[0].iter().copied().fold(f64::INFINITY, f64::min);
    Rates {
        without: tasks as f64 / least,
        far: ratios(&times[1]),
        near: ratios(&times[2]),
    }
}
