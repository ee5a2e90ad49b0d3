//! Tasks that are held back because the run ends before they would.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::scheduler::{Joining, Role};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ends_at(run: &mut Run, end: u64) {
    let event = Event::EndsAt(seconds(end));
    run.master.handle(event, &mut run.log).unwrap();
}

/// The time is this now, and a task has ended after one second.
fn end_at(run: &mut Run, now: u64, submit: u64) {
    run.master.advance(seconds(now));
    run.finish_after(1, submit, Outcome::new(0, seconds(1))).unwrap();
    run.schedule();
}

fn started(run: &mut Run) -> Vec<String> {
    run.take("started ")
}

#[test]
fn what_would_not_end_in_time_does_not_start() {
    let text = "TASK a -e 1 x\nTASK b -e 60 x\nTASK c -e 40 x\nTASK d x\nTASK e -e 0 x\n";
    let mut run = Run::new(text, 1);
    ends_at(&mut run, 50);
    run.take("");
    run.master.advance(seconds(10));
    run.finish_after(1, 1, Outcome::new(0, seconds(1))).unwrap();
    run.schedule();
    // Exactly what is left is enough.
    let lines = run.take("");
    assert!(lines.contains(&"held back 1 2".to_owned()), "{lines:?}");
    assert!(lines.contains(&"started 2 3 on 1".to_owned()), "{lines:?}");
    let status = run.master.task_status(TaskId(1));
    assert_eq!(status.state, "held back");
    let reason = "it is expected to run 60 s, and 40 s are left";
    assert_eq!(status.reason.as_deref(), Some(reason));
    // Nobody knows how long it runs.
    end_at(&mut run, 49, 3);
    assert_eq!(started(&mut run), ["3 4 on 1"]);
    end_at(&mut run, 50, 4);
    assert_eq!(started(&mut run), ["4 5 on 1"]);
    assert!(!run.master.only_rests(), "one runs");
    end_at(&mut run, 51, 5);
    assert!(run.master.only_rests() && run.master.has_late() && !run.master.is_finished());
    assert_eq!(run.master.waiting().map(|(task, _)| task), Some(TaskId(1)));
    // The batch job was given more time.
    ends_at(&mut run, 111);
    run.schedule();
    assert_eq!(started(&mut run), ["1 2 on 1"]);
    end_at(&mut run, 112, 2);
    assert!(run.master.is_finished() && run.master.summary().success);
}

#[test]
fn held_back_tasks_of_sub_workflows_rest_like_others() {
    let mut run = Run::new("SUBDAG EXTERNAL s s.dag\nTASK b x\nEDGE s b\n", 1);
    ends_at(&mut run, 50);
    run.schedule();
    // Its DAG is not there yet.
    assert!(run.master.nested() == 1 && !run.master.only_rests());
    let joining = Joining {
        dag: dag("TASK c -e 60 x\nTASK d -e 1 x\n"),
        done: DoneSet::new(),
        role: Role::Nested(TaskId(0)),
    };
    let segment = run.master.grow(joining).unwrap();
    run.schedule();
    assert!(run.master.has_late() && !run.master.only_rests(), "one runs");
    let (_, _, submit) = run.master.assignments().next().unwrap();
    end_at(&mut run, 2, submit.0);
    assert!(run.master.has_late() && run.master.only_rests());
    // With more time, it ends.
    ends_at(&mut run, 100);
    run.schedule();
    let (_, _, submit) = run.master.assignments().next().unwrap();
    end_at(&mut run, 70, submit.0);
    assert_eq!(run.master.take_ended(), [segment]);
    run.master.close_segment(segment);
    assert!(!run.master.only_rests());
}

#[test]
fn run_times_of_a_transformation_are_learned() {
    let task = |n: u32| format!("#@ {n} sim:1.0 ID{n}\nTASK t{n:02} x\n");
    let text: String = (1..=9).map(task).collect();
    let mut run = Run::new(&text, 1);
    ends_at(&mut run, 600);
    run.take("");
    for submit in 1..=5 {
        assert_eq!(run.master.expected_time(TaskId(8), 5), None);
        run.master.advance(seconds(60 * submit));
        run.finish_after(1, submit, Outcome::new(0, seconds(60))).unwrap();
        run.schedule();
    }
    assert_eq!(run.master.expected_time(TaskId(8), 5), Some(seconds(60)));
    assert_eq!(run.master.expected_time(TaskId(8), 6), None);
    run.take("");
    // A failure says nothing.
    run.master.advance(seconds(301));
    run.finish_after(1, 6, Outcome::new(256, seconds(1))).unwrap();
    run.master.advance(seconds(541));
    run.schedule();
    assert_eq!(started(&mut run), [] as [&str; 0]);
    assert!(run.master.has_late() && run.master.only_rests());
}

#[test]
fn run_times_of_nested_dags_are_learned() {
    let mut run = Run::new("SUBDAG EXTERNAL s s.dag\nSUBDAG EXTERNAL r r.dag\n", 1);
    let join = |run: &mut Run, parent, text: &str| {
        let joining = Joining {
            dag: dag(text),
            done: DoneSet::new(),
            role: Role::Nested(TaskId(parent)),
        };
        let segment = run.master.grow(joining).unwrap();
        run.schedule();
        segment
    };
    let end = |run: &mut Run, now| {
        let (_, _, submit) = run.master.assignments().next().unwrap();
        end_at(run, now, submit.0);
    };
    // One DAG has ended before run times are noted, another one joins after that.
    let ended = join(&mut run, 0, "#@ 1 other:1.0 ID1\nTASK a x\n");
    end(&mut run, 1);
    assert_eq!(run.master.take_ended(), [ended]);
    run.master.close_segment(ended);
    ends_at(&mut run, 600);
    let task = |n: u32| format!("#@ {n} sim:1.0 ID{n}\nTASK t{n} x\n");
    let tasks: String = (1..=6).map(task).collect();
    join(
        &mut run,
        1,
        &format!("TASK b x\n{tasks}#@ 7 new:1.0 ID7\nTASK c x\n"),
    );
    for now in 2..=8 {
        end(&mut run, now);
    }
    let expected = [3, 9, 10].map(|task| run.master.expected_time(TaskId(task), 5));
    assert_eq!(expected, [None, Some(seconds(1)), None]);
}

#[test]
fn those_that_save_themselves_use_the_tail() {
    let text = "TASK a -e 1 x\nTASK b -e 600 --checkpoint-signal USR1@20 x\n\
                TASK c --checkpoint-signal USR1@20 x\nTASK d -e 600 --checkpoint-exit 85 x\n\
                TASK e -e 30 --checkpoint-signal USR1@20 x\n";
    let mut run = Run::new(text, 1);
    ends_at(&mut run, 100);
    run.take("");
    end_at(&mut run, 60, 1);
    assert_eq!(started(&mut run), ["1 2 on 1"]);
    end_at(&mut run, 61, 2);
    let lines = run.take("");
    assert!(lines.contains(&"held back 2 3".to_owned()), "{lines:?}");
    assert!(lines.contains(&"started 3 4 on 1".to_owned()), "{lines:?}");
    let reason = run.master.task_status(TaskId(2)).reason.unwrap();
    assert_eq!(
        reason,
        "it needs 40 s to do something and save itself, and 39 s are left"
    );
    end_at(&mut run, 70, 4);
    assert_eq!(started(&mut run), ["4 5 on 1"]);
}

#[test]
fn tasks_are_not_sent_in_advance_if_they_would_not_end_in_time() {
    let tasks: String = (0..40).map(|n| format!("TASK t{n:02} -e 5 x\n")).collect();
    let mut run = Run {
        master: Master::new(dag(&tasks), DoneSet::new(), Workers::Fixed(1), ONE_ATTEMPT).with_prefill(),
        log: Log::default(),
    };
    run.register(1, "h").unwrap();
    ends_at(&mut run, 10);
    run.start().unwrap();
    run.schedule();
    let end = |run: &mut Run, submit| {
        let outcome = Outcome::new(0, Duration::from_micros(50));
        run.finish_after(1, submit, outcome).unwrap();
        run.schedule();
    };
    end(&mut run, 1);
    assert!(run.master.has_prefilled());
    run.master.advance(seconds(6));
    let sent = run.log.starts.len() as u64;
    for submit in 2..=sent {
        end(&mut run, submit);
    }
    assert_eq!(
        run.log.starts.len() as u64,
        sent,
        "what was sent runs, nothing else"
    );
    assert!(!run.master.has_prefilled() && run.master.only_rests());
}

/// Time after which tasks that still run are stopped.
const END: u64 = 290;

const SLOTS: u32 = 40;

/// Runs 1,000 tasks of 58 to 62 seconds, whose run time nobody has said, and so many of five seconds and of a
/// lower priority. Returns when those of a minute start, and the part of the slots that is in use in the last
/// minute.
fn tail(short: usize) -> (Vec<u64>, f64) {
    let minutes = (0..1000).map(|n| format!("#@ {n} minute:1.0 M{n}\nTASK m{n:04} -p 1 x\n"));
    let others = (0..short).map(|n| format!("#@ {n} short:1.0 S{n}\nTASK s{n:04} x\n"));
    let text: String = minutes.chain(others).collect();
    let mut run = Run {
        master: Master::new(dag(&text), DoneSet::new(), Workers::Fixed(SLOTS), ONE_ATTEMPT),
        log: Log::default(),
    };
    for rank in 1..=SLOTS {
        run.register(rank, &format!("h{rank}")).unwrap();
    }
    ends_at(&mut run, END);
    run.start().unwrap();
    let (mut now, mut begun, mut used) = (0, Vec::new(), 0);
    let mut running = BinaryHeap::new();
    loop {
        run.master.schedule(&mut run.log);
        for line in started(&mut run) {
            let words: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            let &[task, submit, rank] = &words[..] else {
                panic!("{line}")
            };
            let time = if task < 1000 { 58 + task % 5 } else { 5 };
            if task < 1000 {
                begun.push(now);
            }
            let end = now + time;
            used += end.min(END).saturating_sub(now.max(END - 60));
            running.push(Reverse((end, rank as u32, submit, time)));
        }
        let Some(Reverse((end, rank, submit, time))) = running.pop() else {
            break;
        };
        now = end;
        run.master.advance(seconds(now));
        run.finish_after(rank, submit, Outcome::new(0, seconds(time)))
            .unwrap();
    }
    assert!(now <= END && run.master.has_late() && run.master.only_rests());
    (begun, used as f64 / f64::from(SLOTS * 60))
}

#[test]
fn of_a_thousand_tasks_of_a_minute_none_starts_in_the_last_minute() {
    let (begun, alone) = tail(0);
    assert_eq!(begun.len(), 4 * SLOTS as usize);
    assert!(begun.iter().all(|at| at + 60 <= END), "{begun:?}");
    // Shorter ones use what these cannot.
    let (beside, both) = tail(3000);
    assert_eq!(beside, begun);
    assert!(both >= alone + 0.2 && both > 0.9, "{alone} {both}");
}
