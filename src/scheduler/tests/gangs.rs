//! Tasks over several hosts.

use super::*;
use crate::scheduler::{LeadAdoption, MemberAdoption};

/// A run on hosts of four CPUs, each with this number of workers.
fn on(text: &str, hosts: &[(&str, u32)]) -> Run {
    let mut run = Run {
        master: Master::new(dag(text), DoneSet::new(), Workers::Dynamic, ONE_ATTEMPT),
        log: Log::default(),
    };
    let mut rank = 0;
    for (host, workers) in hosts {
        for _ in 0..*workers {
            rank += 1;
            run.register(rank, host).unwrap();
        }
    }
    run.start().unwrap();
    run.take("");
    run.schedule();
    run
}

fn handle(run: &mut Run, event: Event) {
    run.master.handle(event, &mut run.log).unwrap();
    run.master.sanity_check().unwrap();
}

fn left(run: &mut Run, rank: u32, submit: u64, is_cut: bool) {
    let (rank, submit) = (Rank(rank), SubmitId(submit));
    handle(run, Event::Left { rank, submit, is_cut });
    run.schedule();
}

fn at(run: &mut Run, seconds: u64) {
    run.master.advance(Duration::from_secs(seconds));
    run.schedule();
}

#[test]
fn a_gang_runs_once_all_have_joined_and_ends_once_all_have_left() {
    let mut run = on("TASK g -N 2 -c 3 x\nTASK z x\nEDGE g z\n", &[("a", 2), ("b", 2)]);
    assert_eq!(
        run.take(""),
        ["queued 0 1", "a =1 =1 =100", "b =1 =1 =100", "join 0 1:1 3:1"],
        "one slot of each host"
    );
    assert!(run.log.starts.is_empty() && !run.master.is_finished());
    handle(&mut run, Event::Joined(Rank(3), SubmitId(1)));
    assert_eq!(run.take(""), ["a =2 =1 =100", "started 0 1 on 1", "a 1 1 100"]);
    assert_eq!(run.log.starts.pop().unwrap().grant.cpu_set, [0, 1, 2]);
    run.end(1, 1, 0);
    let lines = run.take("");
    assert_eq!(
        lines,
        [
            "leave 1 3",
            "ended 0 1 on 1 with 0",
            "a 2 4 100",
            "queued 1 2",
            "started 1 2 on 4",
            "b 0 0 100"
        ],
        "it is done although its member has not left"
    );
    run.end(4, 2, 0);
    assert!(!run.master.is_finished(), "a member has not left");
    left(&mut run, 3, 1, false);
    assert!(run.master.is_finished() && run.master.summary().success);
}

#[test]
fn a_failure_counts_once_all_have_left_unless_a_connection_was_cut() {
    for is_cut in [false, true] {
        let mut run = on("TASK g -N 2 -c 3 x\n", &[("a", 1), ("b", 1)]);
        handle(&mut run, Event::Joined(Rank(2), SubmitId(1)));
        run.take("");
        run.end(1, 1, 256);
        assert_eq!(run.take("ended"), [""; 0]);
        left(&mut run, 2, 1, is_cut);
        let lines = run.take("");
        if is_cut {
            assert!(lines.contains(&"evicted 0 1 on 1".to_owned()), "{lines:?}");
            assert!(lines.contains(&"join 0 1:1 2:1".to_owned()), "{lines:?}");
        } else {
            assert!(lines.contains(&"ended 0 1 on 1 with 256".to_owned()), "{lines:?}");
            assert!(run.master.is_finished());
        }
    }
}

#[test]
fn lost_hosts_end_a_gang_everywhere() {
    for lost in [1, 2] {
        let mut run = on("TASK g -N 2 x\n", &[("a", 1), ("b", 1), ("c", 1)]);
        handle(&mut run, Event::Joined(Rank(2), SubmitId(1)));
        run.take("");
        handle(&mut run, Event::Lost(Rank(lost)));
        let other = 3 - lost;
        let lines = run.take("");
        assert!(lines.contains(&format!("leave 1 {other}")), "{lines:?}");
        run.schedule();
        assert_eq!(run.take("join"), [""; 0], "the other one has not left");
        left(&mut run, other, 1, false);
        let lines = run.take("");
        assert!(lines.contains(&"evicted 0 1 on 1".to_owned()), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("join 0")), "{lines:?}");
    }
}

#[test]
fn hosts_that_refuse_are_avoided_and_the_third_refusal_is_a_failure() {
    let hosts = [("a", 1), ("b", 1), ("c", 1)];
    let mut run = on("TASK g -N 2 x\n", &hosts);
    let refuse = |run: &mut Run, rank: u32| {
        let (rank, submit, is_answer) = (Rank(rank), SubmitId(1), true);
        handle(
            run,
            Event::NotJoined {
                rank,
                submit,
                is_answer,
            },
        );
        run.schedule();
    };
    assert_eq!(run.take("join"), ["0 1:1 2:1"]);
    refuse(&mut run, 2);
    assert_eq!(run.take("join"), ["0 1:1 3:1"], "b is avoided");
    refuse(&mut run, 3);
    let again = run.take("join");
    assert_eq!(
        again.len(),
        1,
        "too few others are left, so the earlier one counts no more"
    );
    let member = again[0].split(' ').next_back().unwrap();
    refuse(&mut run, member.split(':').next().unwrap().parse().unwrap());
    assert_eq!(run.take("ended").len(), 1);
    assert!(run.master.is_finished());
}

#[test]
fn a_gang_that_comes_first_reserves_its_parts_and_short_tasks_run_there_meanwhile() {
    let text = "TASK long -p 7 -c 4 -T 100 x\nTASK big -N 2 -c 4 -p 5 x\nTASK short -T 50 -c 1 x\n\
                TASK slow -T 500 -c 1 x\nTASK unknown -c 1 x\nTASK start -p 9 x\n\
                EDGE start big\nEDGE start short\nEDGE start slow\nEDGE start unknown\nEDGE start long\n";
    let mut run = on(text, &[("a", 3), ("b", 3)]);
    at(&mut run, 10);
    run.take("");
    run.end(1, 1, 0);
    let lines = run.take("started");
    assert_eq!(lines.len(), 2, "long, and short beside the gang: {lines:?}");
    assert!(
        lines[0].starts_with("0 ") && lines[1].starts_with("2 "),
        "{lines:?}"
    );
    let status = run.master.task_status(TaskId(1));
    assert_eq!(
        status.reason.unwrap(),
        "it needs 2 hosts at once: a,b are expected in 100 s"
    );
    let reason = run.master.task_status(TaskId(4)).reason.unwrap();
    assert!(
        reason.ends_with("is reserved for big, which needs 2 hosts at once"),
        "{reason}"
    );
    let reserved = run.master.node_statuses();
    assert!(
        reserved
            .iter()
            .all(|node| node.reserved_for.as_deref() == Some("big"))
    );
    // The reservation slips once, because `long` takes longer than it said.
    at(&mut run, 150);
    assert_eq!(run.take("started"), [""; 0]);
}

#[test]
fn tasks_of_higher_priority_start_before_a_gang_that_waits() {
    let text = "TASK a -c 4 -T 10 x\nTASK g -N 2 -c 4 x\nTASK h -p 3 -c 4 x\nEDGE a h\n";
    let mut run = on(text, &[("a", 2), ("b", 2)]);
    assert_eq!(run.take("started"), ["0 1 on 1"]);
    run.end(1, 1, 0);
    assert_eq!(run.take("started"), ["2 3 on 1"]);
    run.end(1, 3, 0);
    assert_eq!(run.take("join").len(), 1);
}

#[test]
fn a_gang_on_a_host_that_is_none_never_starts() {
    let mut run = on("TASK g --on nowhere -N 1 -p 5 x\nTASK t x\n", &[("a", 1)]);
    assert_eq!(run.take("started").len(), 1);
    assert_eq!(
        run.master.task_status(TaskId(0)).reason.unwrap(),
        "it needs 1 nodes that have what its ranks request, 0 are there"
    );
    run.end(1, 2, 0);
    assert!(run.take("started").is_empty() && run.take("join").is_empty());
    assert_eq!(run.master.stranded(), Some(TaskId(0)));
}

#[test]
fn a_gang_that_fits_nowhere_keeps_nobody_waiting() {
    let mut run = on("TASK g -N 3 -p 5 x\nTASK t x\n", &[("a", 1), ("b", 1)]);
    assert_eq!(run.take("started").len(), 1);
    assert_eq!(
        run.master.task_status(TaskId(0)).reason.unwrap(),
        "it needs 3 nodes that have what its ranks request, 2 are there"
    );
    run.end(1, 2, 0);
    assert_eq!(run.master.stranded(), Some(TaskId(0)));
    assert_eq!(run.master.nodes_of_gang(TaskId(0)), Some((3, 2)));
    run.register(9, "c").unwrap();
    run.schedule();
    assert_eq!(run.take("join").len(), 1);
}

#[test]
fn without_agents_gangs_have_one_host() {
    let mut run = Run::new("TASK g -N 1 -c 2 --ranks 2 x\n", 2);
    assert_eq!(run.take("started"), ["0 1 on 1"]);
    run.end(1, 1, 0);
    assert!(run.master.summary().success);
    let mut refused = Run {
        master: Master::new(
            dag("TASK g -N 2 x\n"),
            DoneSet::new(),
            Workers::Fixed(2),
            ONE_ATTEMPT,
        ),
        log: Log::default(),
    };
    refused.register(1, "a").unwrap();
    refused.register(2, "b").unwrap();
    assert_eq!(
        refused.start().unwrap_err().to_string(),
        "Task g needs 2 nodes: tasks over several nodes need --agents"
    );
}

#[test]
fn whole_hosts_are_for_one_gang_only() {
    let mut run = on("TASK g -N 1 --exclusive -p 2 x\nTASK t -c 0 x\n", &[("a", 2)]);
    assert_eq!(run.take("started"), ["0 1 on 1"]);
    assert_eq!(run.log.starts[0].grant.cpus, 4);
    run.end(1, 1, 0);
    assert_eq!(run.take("started"), ["1 2 on 1"]);
}

#[test]
fn the_next_master_goes_on_with_a_gang_once_all_of_its_hosts_are_back() {
    let part = |task: u32| MemberAdoption {
        task: Some(TaskId(task)),
        submit: SubmitId(7),
        ranks: 1,
        cpus: 3,
        memory_mb: 0,
        cpu_set: vec![0, 1, 2],
        gpu_set: vec![],
    };
    let lead = |members: &[&str]| LeadAdoption {
        part: part(0),
        members: members.iter().map(|host| (*host).to_owned()).collect(),
    };
    for comes in [true, false] {
        let mut run = Run {
            master: Master::new(
                dag("TASK g -N 2 -c 3 x\n"),
                DoneSet::new(),
                Workers::Dynamic,
                ONE_ATTEMPT,
            ),
            log: Log::default(),
        };
        run.register(1, "a").unwrap();
        run.start().unwrap();
        handle(&mut run, Event::AdoptMember(Rank(1), part(0)));
        run.schedule();
        run.register(2, "b").unwrap();
        run.take("");
        if comes {
            handle(&mut run, Event::AdoptLead(Rank(2), lead(&["a"])));
            assert_eq!(run.take("adopted"), ["0 7"]);
            assert_eq!(run.master.running_on(Rank(2)), Some((TaskId(0), SubmitId(7))));
            run.end(2, 7, 0);
            left(&mut run, 1, 7, false);
            assert!(run.master.summary().success && run.master.is_finished());
        } else {
            handle(&mut run, Event::Forget(TaskId(0)));
            assert_eq!(run.take("leave"), ["7 1"]);
            left(&mut run, 1, 7, false);
            assert_eq!(run.take("join").len(), 1, "it runs again");
        }
    }
}

#[test]
fn parts_of_tasks_that_are_done_leave_before_others_get_their_slots() {
    let mut run = Run {
        master: Master::new(
            dag("TASK t -c 2 x\n"),
            DoneSet::new(),
            Workers::Dynamic,
            ONE_ATTEMPT,
        ),
        log: Log::default(),
    };
    run.register(1, "a").unwrap();
    run.start().unwrap();
    let adoption = MemberAdoption {
        task: None,
        submit: SubmitId(9),
        ranks: 2,
        cpus: 4,
        memory_mb: 1000,
        cpu_set: vec![],
        gpu_set: vec![3],
    };
    handle(&mut run, Event::AdoptMember(Rank(1), adoption));
    run.schedule();
    assert_eq!(run.take("leave"), ["9 1"]);
    assert_eq!(run.log.starts, []);
    left(&mut run, 1, 9, false);
    assert_eq!(run.log.starts.len(), 1);
}
