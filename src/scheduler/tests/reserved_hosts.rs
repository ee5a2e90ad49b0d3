//! Hosts that a person has reserved.

use super::*;

fn reserve(run: &mut Run, host: &str, is_reserved: bool) {
    run.master.reserve_host(host, is_reserved, &mut run.log);
    run.schedule();
    run.master.sanity_check().unwrap();
}

fn state(run: &Run, host: &str) -> String {
    let statuses = run.master.node_statuses();
    let found = statuses.into_iter().find(|node| node.host == host);
    found.unwrap().state
}

#[test]
fn nothing_starts_on_a_reserved_host_until_it_is_open_again() {
    let text = "TASK a x\nTASK b x\nTASK c x\n";
    let mut run = Run::begin(text, &[(1, "g"), (2, "h")], ONE_ATTEMPT);
    reserve(&mut run, "h", true);
    assert_eq!(
        (state(&run, "g"), state(&run, "h")),
        ("working".into(), "reserved".into())
    );
    run.take("");
    run.end(2, 2, 0);
    run.schedule();
    assert_eq!(
        run.take("started"),
        [""; 0],
        "what ran has ended, and nothing follows"
    );
    let last = TaskId(2);
    let reason = run.master.task_status(last).reason.unwrap();
    assert_eq!(reason, "h is reserved (pmc nodes --unreserve h)");
    run.end(1, 1, 0);
    run.schedule();
    assert_eq!(run.take("started"), ["2 3 on 1"]);
    run.end(1, 3, 0);
    assert!(run.master.is_finished());
}

#[test]
fn a_run_whose_hosts_are_all_reserved_waits() {
    let mut run = Run::begin("TASK a x\nTASK b x\nEDGE a b\n", &[(1, "g")], ONE_ATTEMPT);
    reserve(&mut run, "g", true);
    run.end(1, 1, 0);
    run.schedule();
    assert!(run.master.stranded().is_none() && run.master.task_without_host().is_none());
    // It holds for workers that come later.
    run.event(Event::Lost(Rank(1)));
    run.register(2, "g").unwrap();
    run.schedule();
    assert_eq!(run.take("started 1"), [""; 0]);
    assert_eq!(state(&run, "g"), "reserved");
    reserve(&mut run, "g", false);
    assert_eq!(run.take("started 1"), ["2 on 2"]);
    reserve(&mut run, "unknown", true);
    assert!(!run.master.is_host("unknown") && run.master.is_host("g"));
}

#[test]
fn gangs_start_only_on_reserved_hosts_that_they_name() {
    let text = "TASK a -N 2 x\nTASK b -N 2 --on g,h x\n";
    let hosts = [(1, "f"), (2, "g"), (3, "h"), (4, "f"), (5, "g"), (6, "h")];
    let mut run = Run::dynamic(text, ONE_ATTEMPT);
    for (rank, host) in hosts {
        run.register(rank, host).unwrap();
    }
    run.start().unwrap();
    for host in ["g", "h"] {
        run.master.reserve_host(host, true, &mut run.log);
    }
    run.take("");
    run.schedule();
    assert_eq!(
        run.take("join"),
        ["1 2:1 3:1"],
        "the other one keeps no host waiting"
    );
    let reason = run.master.task_status(TaskId(0)).reason.unwrap();
    assert_eq!(
        reason,
        "it needs 2 hosts at once, and g,h are reserved (pmc nodes --unreserve g,h)"
    );
    reserve(&mut run, "h", false);
    assert_eq!(run.take("join"), ["0 1:1 6:1"]);
}
