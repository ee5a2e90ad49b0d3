//! Small runs whose workers come and go, step by step.

use std::time::Duration;

use pmc_dag::TaskId;
use pmc_dag::rescue::DoneSet;

use super::{Log, ONE_ATTEMPT, Run, dag, registration};
use crate::protocol::{MemoryUse, Outcome, Rank, Registration, SubmitId};
use crate::scheduler::{Adoption, Event, Master, MasterConfig, MasterError, Workers};

impl Run {
    pub(super) fn dynamic(text: &str, config: MasterConfig) -> Self {
        Self {
            master: Master::new(dag(text), DoneSet::new(), Workers::Dynamic, config),
            log: Log::default(),
        }
    }

    /// Handles an event and schedules.
    pub(super) fn event(&mut self, event: Event) {
        self.master.handle(event, &mut self.log).unwrap();
        self.schedule();
    }

    /// Starts the run with these workers.
    pub(super) fn begin(text: &str, workers: &[(u32, &str)], config: MasterConfig) -> Self {
        let mut run = Self::dynamic(text, config);
        for (rank, host) in workers {
            run.register(*rank, host).unwrap();
        }
        run.start().unwrap();
        run.log.lines.clear();
        run.schedule();
        run
    }

    fn lines(&mut self) -> Vec<String> {
        self.take("")
    }
}

#[test]
fn workers_may_come_after_the_start() {
    let mut run = Run::dynamic("TASK a x\nTASK b x\nTASK c x\n", ONE_ATTEMPT);
    assert!(!run.master.may_start() && run.start().is_err());
    run.register(7, "h").unwrap();
    assert!(run.master.may_start());
    run.start().unwrap();
    // Hosts are recorded as they are at the start.
    assert_eq!(run.lines(), ["setup 7 0", "h 1 4 100"]);
    run.schedule();
    assert_eq!(run.take("started"), ["0 1 on 7"]);
    run.register(3, "h").unwrap();
    run.register(9, "g").unwrap();
    assert_eq!(run.register(9, "g"), Err(MasterError::RegisteredTwice(Rank(9))));
    assert_eq!(run.register(0, "g"), Err(MasterError::UnknownRank(Rank(0))));
    assert_eq!(
        run.register(u32::MAX, "g"),
        Err(MasterError::UnknownRank(Rank(u32::MAX)))
    );
    assert_eq!(run.lines(), ["h +1 +0 +0", "setup 3 1", "g 1 4 100", "setup 9 0"]);
    assert_eq!(run.master.workers(), 3);
    run.schedule();
    assert_eq!(
        run.take("started"),
        ["1 2 on 9", "2 3 on 3"],
        "the emptier host first"
    );
}

#[test]
fn tasks_of_a_lost_worker_run_elsewhere_and_use_up_no_attempt() {
    let mut run = Run::begin("TASK a x\nTASK b x\n", &[(1, "g"), (2, "h")], ONE_ATTEMPT);
    run.lines();
    run.event(Event::Lost(Rank(1)));
    assert_eq!(
        run.lines(),
        ["evicted 0 1 on 1", "g 1 4 100", "g -1 -4 -100", "queued 0 3"],
        "with a new number, at once"
    );
    // What the lost worker still sends does not count.
    run.end(1, 1, 0);
    run.event(Event::Back(Rank(1)));
    run.event(Event::Lost(Rank(1)));
    assert_eq!(run.lines(), [""; 0]);
    run.end(2, 2, 0);
    run.end(2, 3, 0);
    assert!(run.master.is_finished());
    assert_eq!((run.master.workers(), run.master.most_workers()), (1, 2));
    let summary = run.master.summary();
    assert!(summary.success);
    assert_eq!(
        (
            summary.submitted,
            summary.succeeded,
            summary.failed,
            summary.evicted
        ),
        (3, 2, 0, 1)
    );
}

#[test]
fn a_task_that_loses_too_many_workers_fails() {
    let config = MasterConfig {
        max_attempts: 3,
        max_failures: 1,
        crash_limit: 2,
    };
    let mut run = Run::begin("TASK a x\nTASK b x\nEDGE a b\n", &[(1, "g"), (2, "h")], config);
    let rank = run.master.assignments().next().unwrap().0;
    run.event(Event::Lost(rank));
    let (rank, _, submit) = run.master.assignments().next().unwrap();
    run.lines();
    run.event(Event::Lost(rank));
    assert_eq!(
        run.lines()[0],
        format!("ended 0 {} on {} with 256", submit.0, rank.0)
    );
    assert!(run.master.is_finished());
    let summary = run.master.summary();
    assert_eq!((summary.failed, summary.failed_tasks, summary.evicted), (1, 1, 1));
    assert!(summary.max_failures_reached);
}

#[test]
fn a_silent_worker_keeps_its_task_and_gets_no_other() {
    let mut run = Run::begin("TASK a x\nTASK b x\n", &[(1, "h")], ONE_ATTEMPT);
    run.lines();
    run.event(Event::Silent(Rank(1)));
    run.end(1, 1, 0);
    assert_eq!(run.lines(), ["ended 0 1 on 1 with 0", "h 1 4 100"]);
    assert_eq!(run.master.stranded(), None, "it may come back");
    run.event(Event::Back(Rank(1)));
    run.event(Event::Back(Rank(1)));
    assert_eq!(run.take("started"), ["1 2 on 1"]);
}

#[test]
fn a_worker_that_retires_ends_its_task_first() {
    let mut run = Run::begin("TASK a x\nTASK b x\n", &[(1, "h"), (2, "h")], ONE_ATTEMPT);
    run.lines();
    run.end(2, 2, 0);
    run.lines();
    run.event(Event::Retire(Rank(1)));
    run.event(Event::Retire(Rank(2)));
    assert_eq!(run.lines(), ["Shutdown 2", "h -1 -0 -0"]);
    run.end(1, 1, 0);
    assert_eq!(
        run.lines(),
        ["ended 0 1 on 1 with 0", "h 1 4 100", "Shutdown 1", "h -1 -4 -100"]
    );
    // The connection of a worker that has left is closed.
    run.event(Event::Lost(Rank(1)));
    assert!(run.master.is_finished());
    assert_eq!(run.master.workers(), 0);
    let unknown = run.master.handle(Event::Retire(Rank(5)), &mut run.log);
    assert_eq!(unknown, Err(MasterError::UnknownRank(Rank(5))));
}

#[test]
fn a_host_that_comes_back_is_prepared_again_and_may_be_another() {
    let mut run = Run::begin("TASK a -m 90 x\n", &[(1, "h"), (2, "h")], ONE_ATTEMPT);
    run.lines();
    run.event(Event::Lost(Rank(1)));
    run.event(Event::Lost(Rank(2)));
    run.lines();
    assert_eq!(run.master.stranded(), Some(TaskId(0)));
    assert_eq!(run.master.task_without_host(), Some(TaskId(0)));
    let mut small = registration("h");
    small.memory_mb = 80;
    run.event(Event::Registered(Rank(3), small));
    assert_eq!(run.lines(), ["h +1 +4 +80", "setup 3 0"]);
    assert_eq!(run.master.stranded(), Some(TaskId(0)), "it does not fit there");
    run.event(Event::Registered(Rank(4), registration("h")));
    assert_eq!(
        run.lines(),
        ["h +1 +0 +0", "setup 4 1"],
        "the first one describes the host"
    );
    assert!(run.master.stranded().is_some() && !run.master.is_finished());
    run.event(Event::Registered(Rank(5), registration("g")));
    assert_eq!(run.take("started"), ["0 3 on 5"]);
    assert_eq!(
        (run.master.stranded(), run.master.task_without_host()),
        (None, None)
    );
}

#[test]
fn an_attempt_of_an_earlier_master_goes_on() {
    let mut run = Run::dynamic("TASK a -c 2 x\nTASK b x\nTASK c x\nEDGE a c\n", ONE_ATTEMPT);
    let expect = |task, submit| Event::Expect(TaskId(task), SubmitId(submit));
    run.event(expect(0, 41));
    let refused = run.master.handle(expect(2, 42), &mut run.log);
    assert_eq!(
        refused,
        Err(MasterError::NotExpected(TaskId(2))),
        "its parent is not done"
    );
    run.register(1, "h").unwrap();
    run.start().unwrap();
    run.lines();
    run.schedule();
    assert_eq!(run.lines(), ["queued 1 42", "started 1 42 on 1", "h 0 3 100"]);
    run.register(2, "h").unwrap();
    run.lines();
    let adopt = |task, cpus: &[u32]| {
        let adoption = Adoption {
            task: TaskId(task),
            submit: SubmitId(41),
            cpus: cpus.to_vec(),
            gpus: Vec::new(),
        };
        Event::Adopt(Rank(2), adoption)
    };
    let refused = run.master.handle(adopt(1, &[]), &mut run.log).unwrap_err();
    assert!(
        matches!(refused, MasterError::NotAdopted { .. }),
        "b runs elsewhere"
    );
    run.event(adopt(0, &[2, 3]));
    assert_eq!(run.lines(), ["adopted 0 41", "started 0 41 on 2", "h 0 1 100"]);
    run.end(2, 41, 0);
    assert_eq!(run.take("started"), ["2 43 on 2"]);
    run.end(1, 42, 0);
    run.end(2, 43, 0);
    assert!(run.master.summary().success);
}

#[test]
fn no_number_of_an_attempt_leaves_none_for_later_ones() {
    let mut run = Run::dynamic("TASK a x\n", ONE_ATTEMPT);
    run.register(1, "h").unwrap();
    run.start().unwrap();
    let adoption = Adoption {
        task: TaskId(0),
        submit: SubmitId(u64::MAX),
        cpus: Vec::new(),
        gpus: Vec::new(),
    };
    let adopted = run.master.handle(Event::Adopt(Rank(1), adoption), &mut run.log);
    assert!(
        matches!(adopted, Err(MasterError::NotAdopted { .. })),
        "{adopted:?}"
    );
    run.schedule();
    assert_eq!(run.take("started"), ["0 1 on 1"]);
}

#[test]
fn an_expected_attempt_that_does_not_come_runs_again() {
    let mut run = Run::dynamic(
        "MAXJOBS one 1\nTASK a --category one x\nTASK b --category one x\n",
        ONE_ATTEMPT,
    );
    run.event(Event::Expect(TaskId(0), SubmitId(9)));
    run.register(1, "h").unwrap();
    run.start().unwrap();
    run.schedule();
    assert_eq!(
        run.take("started"),
        [""; 0],
        "a may run elsewhere, so the category is full"
    );
    assert!(!run.master.is_finished() && run.master.stranded().is_none());
    run.event(Event::Forget(TaskId(0)));
    assert_eq!(run.take("started"), ["1 10 on 1"]);
    run.end(1, 10, 0);
    assert_eq!(run.take("started"), ["0 11 on 1"]);
}

#[test]
fn prefilled_tasks_of_a_lost_worker_may_have_started() {
    let text: String = (0..20).map(|n| format!("TASK t{n:02} x\n")).collect();
    let mut run = Run::dynamic(&text, ONE_ATTEMPT);
    run.master = run.master.with_prefill();
    run.register(1, "h").unwrap();
    run.start().unwrap();
    run.schedule();
    let short = Outcome::new(0, Duration::from_millis(4));
    run.finish_after(1, 1, short).unwrap();
    run.schedule();
    run.lines();
    assert!(run.master.has_prefilled());
    run.event(Event::Lost(Rank(1)));
    assert_eq!(run.take("evicted"), ["1 2 on 1", "2 3 on 1", "3 4 on 1"]);
    assert!(!run.master.has_prefilled());
}

#[test]
fn only_a_run_that_would_start_tasks_is_stranded() {
    let mut run = Run::begin("TASK a -m 200 x\n", &[(1, "h")], ONE_ATTEMPT);
    assert_eq!(run.master.stranded(), Some(TaskId(0)));
    run.event(Event::Hold);
    assert_eq!(run.master.stranded(), None);
    run.event(Event::Release);
    assert_eq!(run.master.stranded(), Some(TaskId(0)));
    run.event(Event::Drain);
    assert_eq!(run.master.stranded(), None);
}

#[test]
fn a_run_is_not_stranded_while_a_task_runs() {
    let mut run = Run::begin("TASK a x\nTASK b -m 200 x\n", &[(1, "h")], ONE_ATTEMPT);
    assert_eq!(run.master.stranded(), None);
    run.end(1, 1, 0);
    assert_eq!(run.master.stranded(), Some(TaskId(1)));
}

#[test]
fn requests_grow_up_to_what_a_host_that_is_there_could_give() {
    let config = MasterConfig {
        max_attempts: 2,
        ..ONE_ATTEMPT
    };
    let host = |name: &str, memory_mb, threads, gpus| Registration {
        host: name.to_owned(),
        memory_mb,
        threads,
        gpus,
        ..registration(name)
    };
    // The largest hosts have too few CPUs, no GPU, or are gone.
    let hosts = [
        host("lost", 900, 4, 1),
        host("narrow", 800, 1, 1),
        host("plain", 700, 4, 0),
        host("right", 60, 4, 1),
    ];
    let mut run = Run::dynamic("TASK a -m 50 -c 2 -g 1 x\n", config);
    run.master = run.master.with_more_memory(1000);
    for (host, rank) in hosts.into_iter().zip(1..) {
        run.event(Event::Registered(Rank(rank), host));
    }
    run.event(Event::Lost(Rank(1)));
    run.start().unwrap();
    run.schedule();
    let mut outcome = Outcome::new(9, Duration::from_secs(1));
    outcome.memory = Some(MemoryUse {
        peak_mib: 50,
        requested_mib: 50,
        out_of_memory: true,
    });
    run.finish_after(4, 1, outcome).unwrap();
    assert_eq!(run.take("request"), ["0 60 2 1"]);
}

#[test]
fn a_host_without_gpus_does_not_help_a_task_that_requests_one() {
    let mut run = Run::begin("TASK a -g 1 x\n", &[(1, "h")], ONE_ATTEMPT);
    assert_eq!(run.master.stranded(), Some(TaskId(0)));
    let with_gpu = Registration {
        gpus: 1,
        ..registration("g")
    };
    let log = &mut run.log;
    run.master
        .handle(Event::Registered(Rank(2), with_gpu), log)
        .unwrap();
    run.master.handle(Event::Silent(Rank(2)), log).unwrap();
    run.schedule();
    assert_eq!(run.master.stranded(), None, "the one with a GPU may come back");
    run.event(Event::Back(Rank(2)));
    assert_eq!(run.take("started"), ["0 1 on 2"]);
}

#[test]
fn a_queued_task_is_adopted_from_its_place() {
    let text = "TASK a -p 9 x\nTASK b -p 1 x\nTASK c -p 5 x\nTASK d -p 5 x\nTASK e -p 5 x\n";
    for (task, next) in [(1, [2, 3, 4]), (2, [3, 4, 1]), (3, [2, 4, 1]), (4, [2, 3, 1])] {
        let mut run = Run::begin(text, &[(1, "h")], ONE_ATTEMPT);
        run.register(2, "h").unwrap();
        let adoption = Adoption {
            task: TaskId(task),
            submit: SubmitId(41),
            cpus: Vec::new(),
            gpus: Vec::new(),
        };
        run.event(Event::Adopt(Rank(2), adoption));
        let mut order = Vec::new();
        for _ in next {
            let (_, _, submit) = run.master.assignments().next().unwrap();
            run.take("");
            run.end(1, submit.0, 0);
            let started = run.take("started");
            order.push(started[0].split(' ').next().unwrap().parse::<u32>().unwrap());
        }
        assert_eq!(order, next, "after {task} was adopted");
    }
}

#[test]
fn a_worker_that_retires_gives_back_what_it_holds() {
    let text: String = (0..20).map(|n| format!("TASK t{n:02} x\n")).collect();
    let mut run = Run::dynamic(&text, ONE_ATTEMPT);
    run.master = run.master.with_prefill();
    run.register(1, "h").unwrap();
    run.start().unwrap();
    run.schedule();
    run.finish_after(1, 1, Outcome::new(0, Duration::from_millis(4)))
        .unwrap();
    run.schedule();
    assert!(run.master.has_prefilled());
    run.event(Event::Retire(Rank(1)));
    assert_eq!(run.take("Retract"), ["1"]);
}

#[test]
fn a_worker_gets_the_lowest_free_number_of_its_host() {
    let mut run = Run::dynamic("TASK a x\n", ONE_ATTEMPT);
    for rank in [4, 2, 9] {
        run.register(rank, "h").unwrap();
    }
    run.register(5, "g").unwrap();
    assert_eq!(run.take("setup"), ["4 0", "2 1", "9 2", "5 0"]);
    run.event(Event::Lost(Rank(2)));
    run.register(7, "h").unwrap();
    assert_eq!(run.take("setup"), ["7 1"]);
    run.event(Event::Lost(Rank(4)));
    run.event(Event::Lost(Rank(7)));
    run.register(8, "h").unwrap();
    run.register(3, "h").unwrap();
    assert_eq!(run.take("setup"), ["8 0", "3 1"]);
}

#[test]
fn a_category_stays_full_while_more_run_than_its_limit_allows() {
    // An earlier master had a higher limit.
    let text = "MAXJOBS one 1\nTASK a --category one x\nTASK b --category one x\nTASK c --category one x\n";
    let mut run = Run::dynamic(text, ONE_ATTEMPT);
    run.event(Event::Expect(TaskId(0), SubmitId(7)));
    run.event(Event::Expect(TaskId(1), SubmitId(8)));
    run.register(1, "h").unwrap();
    run.start().unwrap();
    run.schedule();
    run.event(Event::Forget(TaskId(0)));
    assert_eq!(run.take("started"), [""; 0], "b may still run");
    run.event(Event::Forget(TaskId(1)));
    assert_eq!(run.take("started"), ["2 9 on 1"]);
}

#[test]
fn a_host_gets_tasks_when_all_of_its_workers_have_prepared_it() {
    let mut run = Run::dynamic("TASK a x\nTASK b x\nTASK c x\nTASK d x\n", ONE_ATTEMPT);
    run.master = run.master.with_host_scripts();
    for (rank, host) in [(1, "g"), (2, "g"), (3, "h")] {
        run.register(rank, host).unwrap();
    }
    run.start().unwrap();
    run.schedule();
    run.event(Event::HostReady(Rank(2)));
    run.event(Event::Silent(Rank(2)));
    run.event(Event::Back(Rank(2)));
    assert_eq!(run.take("started"), [""; 0]);
    assert_eq!(run.master.stranded(), None, "hosts are there");
    assert!(run.master.only_prepares());
    run.event(Event::HostReady(Rank(3)));
    assert!(!run.master.only_prepares());
    assert_eq!(run.take("started"), ["0 1 on 3"]);
    run.event(Event::HostReady(Rank(1)));
    run.event(Event::HostReady(Rank(1)));
    assert_eq!(run.take("started"), ["1 2 on 1", "2 3 on 2"]);
    // Another agent of this host comes late, and its script fails.
    run.register(4, "h").unwrap();
    run.end(3, 1, 0);
    assert_eq!(run.take("started"), ["3 4 on 3"], "the first one goes on");
    run.event(Event::Retire(Rank(4)));
    assert_eq!(run.master.workers(), 3);
    let unknown = run.master.handle(Event::HostReady(Rank(9)), &mut run.log);
    assert_eq!(unknown, Err(MasterError::UnknownRank(Rank(9))));
}

#[test]
fn a_host_is_prepared_when_the_worker_that_has_not_is_lost() {
    let mut run = Run::dynamic("TASK a x\n", ONE_ATTEMPT);
    run.master = run.master.with_host_scripts();
    run.register(1, "g").unwrap();
    run.register(2, "g").unwrap();
    run.start().unwrap();
    run.schedule();
    run.event(Event::HostReady(Rank(1)));
    run.event(Event::Lost(Rank(2)));
    assert_eq!(run.take("started"), ["0 1 on 1"]);
}
