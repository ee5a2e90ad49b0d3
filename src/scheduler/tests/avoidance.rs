//! Tasks that are tried again on other hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{ONE_ATTEMPT, Run};
use crate::protocol::{EndCause, Outcome, Rank, SubmitId};
use crate::scheduler::avoidance::MOMENT;
use crate::scheduler::{Event, MasterConfig, WaitReason};

const THREE_ATTEMPTS: MasterConfig = MasterConfig {
    max_attempts: 3,
    ..ONE_ATTEMPT
};

fn tasks(number: usize) -> String {
    (0..number).map(|task| format!("TASK t{task} x\n")).collect()
}

/// Rank, task and submit number of the first attempt that runs.
fn first(run: &Run) -> Option<(u32, u32, u64)> {
    let (rank, task, submit) = run.master.assignments().next()?;
    Some((rank.0, task.0, submit.0))
}

/// Ends all attempts that run on these workers, and returns how many there were.
fn end_on(run: &mut Run, ranks: &[u32], status: i32) -> usize {
    let running: Vec<(Rank, SubmitId)> = run
        .master
        .assignments()
        .filter(|(rank, ..)| ranks.contains(&rank.0))
        .map(|(rank, _, submit)| (rank, submit))
        .collect();
    for (rank, submit) in &running {
        run.end(rank.0, submit.0, status);
    }
    running.len()
}

#[test]
fn a_bad_host_does_not_eat_the_attempts() {
    let workers = [(1, "bad"), (2, "b"), (3, "c")];
    let mut run = Run::begin(&tasks(40), &workers, THREE_ATTEMPTS);
    // It fails all of its tasks before another one has ended.
    let mut failures = 0;
    while end_on(&mut run, &[1], 256) > 0 {
        failures += 1;
    }
    assert_eq!(failures, 38, "each task that waited fails there once");
    assert_eq!(
        run.master.waiting().map(|(_, reason)| reason),
        Some(WaitReason::OtherHost)
    );
    // Others run, so that time does not matter.
    for seconds in 1..100 {
        run.master.advance(Duration::from_secs(seconds));
        run.schedule();
        assert_eq!(run.master.running(), 2);
    }
    while end_on(&mut run, &[2, 3], 0) > 0 {}
    let summary = run.master.summary();
    assert!(run.master.is_finished() && summary.success, "{summary:?}");
    assert_eq!((summary.failed, summary.succeeded), (38, 40));
}

#[test]
fn a_bad_task_fails_after_its_attempts_on_different_hosts() {
    let workers = [(1, "a"), (2, "b"), (3, "c")];
    let mut run = Run::begin("TASK bad x\n", &workers, THREE_ATTEMPTS);
    let mut hosts = BTreeMap::new();
    while let Some((rank, _, submit)) = first(&run) {
        *hosts.entry(rank).or_insert(0) += 1;
        run.end(rank, submit, 256);
    }
    assert!(run.master.is_finished());
    assert_eq!(hosts, [(1, 1), (2, 1), (3, 1)].into());
}

/// Ends the attempts of the one task, whose program some hosts lack. Returns their workers.
fn end_without_program(run: &mut Run, lacking: &[u32]) -> Vec<u32> {
    let mut ranks = Vec::new();
    while let Some((rank, _, submit)) = first(run) {
        ranks.push(rank);
        let mut outcome = Outcome::new(256, Duration::ZERO);
        outcome.cause = lacking.contains(&rank).then_some(EndCause::CannotRun);
        run.finish_after(rank, submit, outcome).unwrap();
        run.schedule();
    }
    assert!(run.master.is_finished());
    ranks
}

#[test]
fn a_task_whose_program_is_nowhere_is_tried_once_on_each_host() {
    let five_attempts = MasterConfig {
        max_attempts: 5,
        ..ONE_ATTEMPT
    };
    let begin = |workers: &[(u32, &str)]| Run::begin("TASK t x\n", workers, five_attempts);
    let mut one = begin(&[(1, "a"), (2, "a")]);
    assert_eq!(end_without_program(&mut one, &[1, 2]), [1]);
    let mut two = begin(&[(1, "a"), (2, "b")]);
    assert_eq!(end_without_program(&mut two, &[1, 2]), [1, 2]);
    // Where it runs and fails, the task is at fault.
    let mut some = begin(&[(1, "a"), (2, "b")]);
    assert_eq!(end_without_program(&mut some, &[1]).len(), 5);
}

#[test]
fn a_task_that_has_failed_everywhere_is_tried_where_it_failed_first() {
    let config = MasterConfig {
        max_attempts: 4,
        ..ONE_ATTEMPT
    };
    let mut run = Run::begin("TASK bad x\n", &[(1, "a"), (2, "b")], config);
    let mut ranks = Vec::new();
    while let Some((rank, _, submit)) = first(&run) {
        ranks.push(rank);
        run.end(rank, submit, 256);
    }
    assert!(ranks == [1, 2, 1, 2] || ranks == [2, 1, 2, 1], "{ranks:?}");
}

#[test]
fn nothing_waits_for_another_host_if_one_is_left() {
    let mut run = Run::begin("TASK bad x\n", &[(1, "a"), (2, "a")], THREE_ATTEMPTS);
    for _ in 0..3 {
        let (rank, _, submit) = run.master.assignments().next().unwrap();
        run.end(rank.0, submit.0, 256);
    }
    assert!(run.master.is_finished());
    // The others leave while it waits for them.
    for event in [Event::Lost(Rank(2)), Event::Retire(Rank(2))] {
        let mut run = Run::begin("TASK t0 x\nTASK t1 x\n", &[(1, "a"), (2, "b")], THREE_ATTEMPTS);
        end_on(&mut run, &[1], 256);
        assert_eq!(run.master.running(), 1);
        run.event(event);
        let on_a = |(rank, ..): &(Rank, _, _)| *rank == Rank(1);
        assert_eq!(run.master.assignments().filter(on_a).count(), 1);
    }
}

#[test]
fn a_task_waits_a_moment_for_hosts_that_run_others() {
    let dag = "TASK other x\nTASK bad -m 10 x\n";
    let mut run = Run::begin(dag, &[(1, "a"), (2, "b")], THREE_ATTEMPTS);
    let (rank, _, submit) = run.master.assignments().find(|(_, task, _)| task.0 == 1).unwrap();
    run.end(rank.0, submit.0, 256);
    assert_eq!(run.master.running(), 1, "the other host may run it better");
    let due = run.master.next_time().unwrap();
    assert_eq!(due, MOMENT);
    run.master.advance(due);
    run.schedule();
    assert_eq!(run.master.running(), 2);
    assert_eq!(run.master.next_time(), None);
}

#[test]
fn a_task_avoids_a_host_as_long_as_others_run_such_tasks() {
    let mut run = Run::begin(&tasks(4), &[(1, "a"), (2, "b")], THREE_ATTEMPTS);
    end_on(&mut run, &[2], 0);
    end_on(&mut run, &[1], 256);
    end_on(&mut run, &[1], 256);
    for _ in 0..5 {
        let due = run.master.next_time().unwrap();
        run.master.advance(due);
        run.schedule();
        assert_eq!(run.master.running(), 1);
    }
    while end_on(&mut run, &[2], 0) > 0 {}
    assert!(run.master.summary().success);
}

#[test]
fn memory_that_was_too_small_is_not_held_against_a_host() {
    let mut run = Run::begin(
        "TASK t -m 10 x\nTASK u x\n",
        &[(1, "a"), (2, "b")],
        THREE_ATTEMPTS,
    );
    let (rank, _, submit) = run.master.assignments().find(|(_, task, _)| task.0 == 0).unwrap();
    let mut outcome = crate::protocol::Outcome::new(9, Duration::ZERO);
    outcome.memory = Some(crate::protocol::MemoryUse {
        peak_mib: 10,
        requested_mib: 10,
        out_of_memory: true,
    });
    run.finish_after(rank.0, submit.0, outcome).unwrap();
    run.schedule();
    assert_eq!(run.master.running(), 2, "it runs where it ran");
}

#[test]
fn lost_tasks_run_next() {
    let mut run = Run::begin(&tasks(6), &[(1, "a"), (2, "b")], THREE_ATTEMPTS);
    let on_a = run
        .master
        .assignments()
        .find(|(rank, ..)| *rank == Rank(1))
        .unwrap()
        .1;
    // A task that is tried again comes last.
    end_on(&mut run, &[2], 256);
    run.event(Event::Lost(Rank(1)));
    end_on(&mut run, &[2], 0);
    assert_eq!(run.master.assignments().next().unwrap().1, on_a);
    let mut order = Vec::new();
    while let Some((_, task, _)) = first(&run) {
        order.push(task);
        end_on(&mut run, &[2], 0);
    }
    assert_eq!(order.len(), 5);
    assert!(order[1..4].is_sorted() && order[4] < order[3], "{order:?}");
}
