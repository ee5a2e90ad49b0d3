//! Prefill, step by step.

use super::*;

/// Short tasks for one worker, of which the first has ended.
fn prefilled(text: &str) -> Run {
    let mut run = Run {
        master: Master::new(dag(text), DoneSet::new(), Workers::Fixed(1), ONE_ATTEMPT).with_prefill(),
        log: Log::default(),
    };
    run.register(1, "h").unwrap();
    run.start().unwrap();
    run.schedule();
    assert_eq!(run.log.starts.len(), 1, "run times are not known yet");
    end_short(&mut run, 1);
    run
}

fn end_short(run: &mut Run, submit: u64) {
    let result = TaskResult {
        submit: SubmitId(submit),
        outcome: Outcome::new(0, Duration::from_micros(50)),
        forwards: Vec::new(),
        returned: None,
    };
    let event = Event::Finished(Rank(1), result);
    run.master.handle(event, &mut run.log).unwrap();
    run.schedule();
}

#[test]
fn short_tasks_are_sent_in_advance() {
    let tasks: String = (0..9).map(|n| format!("TASK t{n} x\n")).collect();
    let mut run = prefilled(&tasks);
    assert!(run.master.has_prefilled());
    let sent = run.log.starts.len();
    assert!(sent > 2, "{sent} tasks were sent");
    for submit in 2..=9 {
        end_short(&mut run, submit);
    }
    assert_eq!(run.log.starts.len(), 9, "each task is sent once");
    assert!(run.master.is_finished() && !run.master.has_prefilled());
}

#[test]
fn tasks_with_numbered_resources_are_not_sent_in_advance() {
    for request in ["-c 2", "-g 1"] {
        let tasks: String = (0..4).map(|n| format!("TASK t{n} {request} x\n")).collect();
        let mut run = Run {
            master: Master::new(dag(&tasks), DoneSet::new(), Workers::Fixed(1), ONE_ATTEMPT).with_prefill(),
            log: Log::default(),
        };
        let host = Registration {
            gpus: 1,
            ..registration("h")
        };
        run.master
            .handle(Event::Registered(Rank(1), host), &mut run.log)
            .unwrap();
        run.start().unwrap();
        run.schedule();
        end_short(&mut run, 1);
        assert!(!run.master.has_prefilled(), "{request}");
        assert_eq!(run.log.starts.len(), 2, "{request}");
    }
}

#[test]
fn nothing_is_sent_in_advance_while_a_slot_is_free() {
    // Five workers share four CPUs, so one of them has none.
    let tasks: String = (0..9).map(|n| format!("TASK t{n} x\n")).collect();
    let mut run = Run {
        master: Master::new(dag(&tasks), DoneSet::new(), Workers::Fixed(5), ONE_ATTEMPT).with_prefill(),
        log: Log::default(),
    };
    for rank in 1..=5 {
        run.register(rank, "h").unwrap();
    }
    run.start().unwrap();
    run.schedule();
    end_short(&mut run, 1);
    assert_eq!(run.master.running(), 4);
    assert!(!run.master.has_prefilled());
}

#[test]
fn what_was_sent_counts_against_the_limit_of_failures() {
    let tasks: String = (0..9).map(|n| format!("TASK t{n} x\n")).collect();
    let config = MasterConfig {
        max_failures: 3,
        ..ONE_ATTEMPT
    };
    let mut run = Run {
        master: Master::new(dag(&tasks), DoneSet::new(), Workers::Fixed(1), config).with_prefill(),
        log: Log::default(),
    };
    run.register(1, "h").unwrap();
    run.start().unwrap();
    run.schedule();
    end_short(&mut run, 1);
    // The first one has ended. One runs, and two are sent: if all three fail, the limit is reached.
    assert_eq!(run.log.starts.len(), 4);
}

#[test]
fn a_worker_shares_what_is_left_with_the_others() {
    let tasks: String = (0..12).map(|n| format!("TASK t{n:02} x\n")).collect();
    let mut run = Run {
        master: Master::new(dag(&tasks), DoneSet::new(), Workers::Fixed(4), ONE_ATTEMPT).with_prefill(),
        log: Log::default(),
    };
    for rank in 1..=4 {
        run.register(rank, "h").unwrap();
    }
    run.start().unwrap();
    run.schedule();
    end_short(&mut run, 1);
    // The first four, the next one of worker 1, and its share of the seven that are left.
    assert_eq!(run.log.starts.len(), 4 + 1 + 2);
}

#[test]
fn tasks_are_taken_back_once() {
    let tasks: String = (0..9).map(|n| format!("TASK t{n} x\n")).collect();
    let mut run = prefilled(&tasks);
    run.take("");
    run.master.handle(Event::Drain, &mut run.log).unwrap();
    run.schedule();
    run.schedule();
    assert_eq!(run.take("Retract"), ["1"]);
}

#[test]
fn a_run_is_cut_short_if_ready_tasks_do_not_start() {
    let mut run = Run::new("TASK a x\nTASK b x\n", 1);
    assert!(!run.master.is_cut_short(), "it is not stopped");
    run.master.handle(Event::Drain, &mut run.log).unwrap();
    assert!(run.master.is_cut_short());
    let mut run = Run::new("TASK a x\n", 1);
    run.master.handle(Event::Drain, &mut run.log).unwrap();
    assert!(!run.master.is_cut_short(), "nothing is left to start");
}
