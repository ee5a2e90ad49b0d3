//! A first DAG that gets more tasks.

use proptest::prelude::*;

use super::*;
use crate::scheduler::tasks::State;
use crate::scheduler::{Cancelled, GrowthError};

/// Adds tasks with these options, and edges to each from earlier ones.
fn extend(master: &mut Master, tasks: &[(&str, Vec<u32>)]) {
    let first = master.next_base();
    let lines = tasks.iter().zip(first..);
    let text: String = lines
        .map(|((options, _), number)| format!("TASK t{number} {options} /bin/true\n"))
        .collect();
    let added = Dag::parse(text.into()).unwrap();
    let mut edges = Vec::new();
    for ((_, parents), number) in tasks.iter().zip(first..) {
        edges.extend(parents.iter().map(|parent| (TaskId(*parent), TaskId(number))));
    }
    assert_eq!(master.has_room_for(tasks.len()), Ok(()));
    let mut dag = master.take_dag();
    Arc::get_mut(&mut dag).unwrap().append(&added, &edges);
    master.extend(dag, &edges);
}

/// A run of an empty DAG with two workers on a host of four CPUs.
fn begin(out: &mut Log) -> Master {
    let dag = Arc::new(Dag::default());
    let mut master = Master::new(dag, DoneSet::new(), Workers::Fixed(2), ONE_ATTEMPT);
    for rank in 1..=2 {
        let registration = registration("h");
        master
            .handle(Event::Registered(Rank(rank), registration), out)
            .unwrap();
    }
    master.start(out).unwrap();
    master
}

#[test]
fn a_run_without_room_takes_no_tasks() {
    let mut out = Log::default();
    let master = begin(&mut out);
    assert_eq!(
        master.has_room_for(u32::MAX as usize),
        Err(GrowthError::TooManyTasks)
    );
    assert!(master.is_finished());
}

proptest! {
    #[test]
    fn tasks_that_are_added_run_after_their_parents_unless_they_are_cancelled(
        steps in proptest::collection::vec(
            (0_usize..4, proptest::collection::vec(any::<u32>(), 0..4), 0_u8..5),
            1..60,
        ),
    ) {
        const OPTIONS: [&str; 4] = ["-c 1", "-c 2 -m 3", "-c 1 -p 5", "-c 4 -m 90"];
        let mut out = Log::default();
        let mut master = begin(&mut out);
        let end_one = |master: &mut Master, out: &mut Log, succeeds: bool| {
            master.schedule(out);
            let Some((rank, _, submit)) = master.assignments().next() else {
                return false;
            };
            let status = if succeeds { 0 } else { 256 };
            let result = TaskResult::new(submit, Outcome::new(status, Duration::from_millis(1)));
            master.handle(Event::Finished(rank, result), out).unwrap();
            true
        };
        for (number, parents, what) in steps {
            let there = master.next_base();
            if what < 2 {
                end_one(&mut master, &mut out, number > 0);
            } else if let (2, Some(task)) = (what, parents.first().and_then(|task| task.checked_rem(there))) {
                let state = master.nodes[task as usize].state;
                let expected = match state {
                    State::Waiting | State::Ready | State::Queued => Cancelled::Now,
                    State::Running | State::Prefilled => Cancelled::Busy,
                    _ => Cancelled::Over,
                };
                prop_assert_eq!(master.cancel(TaskId(task)), expected);
            } else {
                let mut parents: Vec<u32> = parents.iter().filter_map(|parent| parent.checked_rem(there)).collect();
                parents.sort_unstable();
                parents.dedup();
                let more = (OPTIONS[(number + 1) % 4], vec![there]);
                extend(&mut master, &[(OPTIONS[number], parents), more]);
            }
            prop_assert_eq!(master.sanity_check(), Ok(()));
        }
        while end_one(&mut master, &mut out, true) {}
        prop_assert!(master.is_finished());
        let dag = Arc::clone(master.dag());
        let state = |task: TaskId| master.nodes[task.index()].state;
        for task in dag.ids() {
            let is_blocked = dag.ids().any(|parent| {
                dag.children(parent).contains(&task) && state(parent) != State::Done
            });
            let is_cancelled = state(task) == State::Cancelled;
            prop_assert_eq!(state(task) == State::Waiting, is_blocked && !is_cancelled);
            prop_assert!(is_cancelled || matches!(state(task), State::Waiting | State::Done | State::Failed));
        }
        prop_assert_eq!(master.summary().tasks, dag.len());
    }
}
