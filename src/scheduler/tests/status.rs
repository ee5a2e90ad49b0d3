//! What people who ask about hosts and tasks get to know.

use super::*;

/// A run whose workers come and go, with four CPUs and 100 MiB on each host.
fn dynamic(text: &str, workers: &[(u32, &str)]) -> Run {
    let mut run = Run {
        master: Master::new(dag(text), DoneSet::new(), Workers::Dynamic, ONE_ATTEMPT),
        log: Log::default(),
    };
    for (rank, host) in workers {
        run.register(*rank, host).unwrap();
    }
    run.start().unwrap();
    run.schedule();
    run
}

fn event(run: &mut Run, event: Event) {
    run.master.handle(event, &mut run.log).unwrap();
    run.schedule();
}

/// State, slots and busy ones, CPUs and free ones, memory and free memory of each host.
fn hosts(run: &Run) -> Vec<String> {
    let hosts = run.master.node_statuses().into_iter();
    hosts
        .map(|host| {
            format!(
                "{} {} {}/{} {}/{} {}/{}",
                host.host,
                host.state,
                host.busy,
                host.slots,
                host.free_cpus,
                host.cpus,
                host.free_memory_mib,
                host.memory_mib
            )
        })
        .collect()
}

#[test]
fn hosts_are_described() {
    let mut run = dynamic("TASK a -c 3 -m 30 x\n", &[(1, "g"), (2, "g"), (4, "h")]);
    assert_eq!(
        hosts(&run),
        ["g working 1/2 1/4 70/100", "h working 0/1 4/4 100/100"]
    );
    assert_eq!(run.master.workers_of("g"), [Rank(1), Rank(2)]);
    assert_eq!(run.master.workers_of("x"), []);
    let host_of = |rank| run.master.host_of(Rank(rank));
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(host_of),
        [None, Some("g"), Some("g"), None, Some("h"), None],
        "there is no worker 3"
    );
    event(&mut run, Event::Retire(Rank(1)));
    assert_eq!(hosts(&run)[0], "g working 1/2 1/4 70/100", "the other one works");
    event(&mut run, Event::Retire(Rank(2)));
    event(&mut run, Event::Silent(Rank(4)));
    assert_eq!(
        hosts(&run),
        ["g leaving 1/1 1/4 70/100", "h silent 0/1 4/4 100/100"]
    );
    event(&mut run, Event::Silent(Rank(1)));
    assert_eq!(hosts(&run)[0], "g silent 1/1 1/4 70/100");
    event(&mut run, Event::Lost(Rank(1)));
    assert_eq!(hosts(&run)[0], "g gone 0/0 0/4 0/100");
}

#[test]
fn a_host_whose_script_runs_is_preparing() {
    let mut run = dynamic("TASK a x\n", &[(1, "g")]);
    run.master = run.master.with_host_scripts();
    run.register(2, "h").unwrap();
    assert_eq!(hosts(&run)[1], "h preparing 0/1 4/4 100/100");
    event(&mut run, Event::HostReady(Rank(2)));
    assert_eq!(hosts(&run)[1], "h working 0/1 4/4 100/100");
}

#[test]
fn a_task_behind_a_failed_one_cannot_run() {
    let mut run = dynamic(
        "TASK a x\nTASK b x\nTASK c x\nTASK d x\nEDGE a b\nEDGE b c\n",
        &[(1, "h")],
    );
    let failed = |run: &Run| [0, 1, 2, 3].map(|task| run.master.failed_before(TaskId(task)));
    assert_eq!(failed(&run), [None, None, None, None]);
    run.end(1, 1, 256);
    let a = Some("a".to_owned());
    assert_eq!(failed(&run), [None, a.clone(), a, None]);
    assert_eq!(
        run.master.task_status(TaskId(2)).reason.as_deref(),
        Some("a has failed: it cannot run any more")
    );
}

#[test]
fn tasks_are_described() {
    let text = "TASK a x\nTASK b x\nTASK c x\nTASK d x\nTASK e -m 200 x\nTASK f -p -1 x\nTASK i x\n\
        EDGE a d\nEDGE b d\nEDGE a i\n";
    let mut run = dynamic(text, &[(1, "h")]);
    let status = |run: &Run, task| run.master.task_status(TaskId(task));
    let reason = |run: &Run, task| status(run, task).reason.unwrap_or_default();
    let running = status(&run, 0);
    assert_eq!(
        (running.task.as_str(), running.state.as_str(), running.attempt),
        ("a", "running", Some(1))
    );
    assert_eq!((running.host.as_deref(), running.reason), (Some("h"), None));
    let queued = status(&run, 1);
    assert_eq!(
        (queued.state.as_str(), queued.attempt, queued.host),
        ("queued", Some(2), None)
    );
    assert_eq!(queued.reason.as_deref(), Some("all slots are busy"));
    assert_eq!(
        reason(&run, 2),
        "b is before it and waits, too: all slots are busy"
    );
    assert_eq!(reason(&run, 4), "it requests more than any host of the run has");
    assert_eq!(
        reason(&run, 5),
        "b has a higher priority and waits, too: all slots are busy"
    );
    let waiting = status(&run, 3);
    assert_eq!((waiting.state.as_str(), waiting.attempt), ("waiting", None));
    assert_eq!(
        (waiting.parents_left, waiting.parents),
        (2, vec!["a".to_owned(), "b".to_owned()])
    );
    assert_eq!(waiting.reason, None, "its parents are the reason");
    run.end(1, 1, 0);
    assert_eq!(status(&run, 0).state, "done");
    assert_eq!(
        (status(&run, 3).parents_left, status(&run, 3).parents),
        (1, vec!["b".to_owned()])
    );
    let released = status(&run, 6);
    assert_eq!((released.parents_left, released.parents), (0, Vec::new()));
    event(&mut run, Event::Drain);
    for waits in [2, 3] {
        assert_eq!(reason(&run, waits), "the run drains: no more tasks start");
    }
}

#[test]
fn a_run_without_workers_waits_for_them() {
    let mut run = Run {
        master: Master::new(dag("TASK a x\n"), DoneSet::new(), Workers::Dynamic, ONE_ATTEMPT),
        log: Log::default(),
    };
    let reason = |run: &Run| run.master.task_status(TaskId(0)).reason;
    let expected = Some("the run waits for agents: none that could take tasks is there".to_owned());
    assert_eq!(reason(&run), expected);
    run.register(1, "h").unwrap();
    assert_eq!(reason(&run), expected, "it has not begun");
    run.start().unwrap();
    run.schedule();
    assert_eq!(reason(&run), None, "it runs");
    event(&mut run, Event::Lost(Rank(1)));
    assert_eq!(reason(&run), expected);
}

#[test]
fn a_task_that_waits_for_gpus_says_so() {
    let run = dynamic("TASK a -c 3 -g 1 x\n", &[(1, "h")]);
    let (task, reason) = run.master.waiting().unwrap();
    assert_eq!(task, TaskId(0));
    assert_eq!(
        reason.to_string(),
        "no host with a free slot has enough free CPUs and GPUs (requested: 3 and 1)"
    );
}
