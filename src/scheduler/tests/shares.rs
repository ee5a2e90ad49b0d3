//! Workflows that share a run.

use std::collections::BTreeMap;

use super::*;
use crate::scheduler::{Joining, Role, SegmentId, ShareId};
use pmc_status::FIRST_WEIGHT;
use testutils::Random;

fn join(run: &mut Run, text: &str, role: Role) -> SegmentId {
    let joining = Joining {
        dag: dag(text),
        done: DoneSet::new(),
        role,
    };
    run.master.grow(joining).unwrap()
}

fn tasks(prefix: &str, count: usize) -> String {
    (0..count)
        .map(|number| format!("TASK {prefix}{number} -p {} x\n", number % 3))
        .collect()
}

/// Runs two workflows until one of them has nothing to start any more. Their tasks take random times, up to
/// twice these. Returns the slot-seconds of each from the moment at which the second one has come.
fn share(workers: u32, weight: u32, means: [u64; 2], seed: u64) -> [f64; 2] {
    let random = &mut Random(seed);
    let mut run = Run::new(&tasks("a", 2000), workers);
    let mut now = 0;
    // When attempts end, with their workers, whose they are, and when they have started.
    let mut running: BTreeMap<(u64, u64), (u32, usize, u64)> = BTreeMap::new();
    let mut used = [0.0, 0.0];
    let (mut joined, mut ended) = (u64::MAX, 0);
    loop {
        for line in run.take("started") {
            let words: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            let [task, submit, rank] = words[..] else {
                panic!("{line}");
            };
            let whose = usize::from(task >= 2000);
            let runtime = 1 + random.below(2 * means[whose]);
            running.insert((now + runtime, submit), (rank as u32, whose, now));
        }
        let waits = |whose: u32| run.master.queue.has_open(ShareId(whose));
        if joined != u64::MAX && !(waits(0) && waits(1)) {
            for (_, whose, started) in running.values() {
                used[*whose] += (now - started.max(&joined)) as f64;
            }
            return used;
        }
        let ((time, submit), (rank, whose, started)) = running.pop_first().unwrap();
        now = time;
        if joined != u64::MAX {
            used[whose] += (now - started.max(joined)) as f64;
        }
        let runtime = Duration::from_millis(now - started);
        run.finish_after(rank, submit, Outcome::new(0, runtime)).unwrap();
        ended += 1;
        if ended == 200 {
            join(&mut run, &tasks("b", 2000), Role::Guest { weight });
            joined = now;
        }
        run.master.schedule(&mut run.log);
        if ended % 500 == 0 {
            run.master.sanity_check().unwrap();
        }
    }
}

#[test]
fn slot_seconds_follow_the_weights() {
    let mut seed = 0;
    for workers in [1, 2, 7, 64] {
        for (weight, means) in [
            (FIRST_WEIGHT, [100, 100]),
            (3 * FIRST_WEIGHT, [100, 100]),
            (3 * FIRST_WEIGHT, [300, 50]),
            (FIRST_WEIGHT / 2, [20, 100]),
        ] {
            seed += 1;
            let [first, second] = share(workers, weight, means, seed);
            let ratio = second / first * f64::from(FIRST_WEIGHT) / f64::from(weight);
            assert!(
                (ratio - 1.0).abs() < 0.05,
                "{workers} workers, weight {weight}, {means:?}: {first} and {second}"
            );
        }
    }
}

#[test]
fn a_guest_that_is_drained_ends_and_the_run_goes_on() {
    let mut run = Run::new("TASK a x\nTASK b x\nEDGE a b\n", 1);
    let guest = join(
        &mut run,
        "MAXJOBS one 1\nTASK c x\nTASK d --category one x\nTASK e x\nEDGE c e\nSUBDAG EXTERNAL s s.dag\n",
        Role::Guest {
            weight: 100 * FIRST_WEIGHT,
        },
    );
    run.schedule();
    let nested = run.take("nested");
    assert_eq!(nested.len(), 1, "{nested:?}");
    join(&mut run, "TASK f x\n", Role::Nested(TaskId(5)));
    run.end(1, 1, 0);
    assert_eq!(run.take("started"), ["2 2 on 1"], "the weight decides");
    let share = run.master.share_of_segment(guest);
    run.master.handle(Event::DrainShare(share), &mut run.log).unwrap();
    run.schedule();
    assert_eq!(run.master.running_of(share), 1);
    let inner = run.master.take_ended();
    assert_eq!(inner, [SegmentId(1)], "nothing of the sub-workflow runs");
    run.master
        .handle(Event::SubdagStopped(TaskId(5)), &mut run.log)
        .unwrap();
    run.end(1, 2, 0);
    assert_eq!(run.master.take_ended(), [guest]);
    let summary = run.master.segment_summary(guest);
    assert_eq!(
        (summary.done, summary.failed_tasks, summary.success),
        (1, 0, false)
    );
    run.master.close_segment(guest);
    let last = run.take("started");
    assert_eq!(last.len(), 1, "{last:?}");
    assert!(last[0].starts_with("1 "), "{last:?}");
    assert!(!run.master.is_finished());
}
