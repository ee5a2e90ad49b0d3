//! Small runs, step by step.

mod avoidance;
mod cache_index;
mod gangs;
mod growth;
mod next_request;
mod nodes;
mod prefill;
mod reserved_hosts;
mod run_times;
mod shares;
mod status;

use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, Request, TaskId};

use crate::protocol::{Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker};
use crate::scheduler::{
    Event, GangParts, Granted, Master, MasterConfig, MasterError, Outbox, Record, Start, WaitReason, Workers,
};

/// One attempt for each task, and no limit of failures.
const ONE_ATTEMPT: MasterConfig = MasterConfig {
    max_attempts: 1,
    max_failures: 0,
    crash_limit: 0,
};

/// Keeps all output as short lines of text.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    starts: Vec<Start>,
}

impl Outbox for Log {
    fn start(&mut self, start: Start) {
        self.starts.push(start);
    }

    fn join(&mut self, gang: GangParts) {
        let parts = gang
            .parts
            .iter()
            .map(|part| format!(" {}:{}", part.rank.0, part.ranks));
        self.lines
            .push(format!("join {}{}", gang.task.0, parts.collect::<String>()));
    }

    fn leave(&mut self, from: Rank, submit: SubmitId) {
        self.lines.push(format!("leave {} {}", submit.0, from.0));
    }

    fn send(&mut self, to: Rank, message: ToWorker) {
        match message {
            ToWorker::Setup { host_rank } => self.lines.push(format!("setup {} {host_rank}", to.0)),
            other => self.lines.push(format!("{other:?} {}", to.0)),
        }
    }

    fn record(&mut self, record: Record<'_>) {
        self.lines.push(match record {
            Record::Resources {
                host,
                slots,
                cpus,
                memory_mb,
            } => {
                format!("{host} {slots} {cpus} {memory_mb}")
            }
            Record::Beside {
                host,
                slots,
                cpus,
                memory_mb,
                ..
            } => format!("{host} ={slots} ={cpus} ={memory_mb}"),
            Record::Capacity {
                host,
                gone,
                slots,
                cpus,
                memory_mb,
            } => {
                let sign = if gone { '-' } else { '+' };
                format!("{host} {sign}{slots} {sign}{cpus} {sign}{memory_mb}")
            }
            Record::NewRequest { task, request, .. } => {
                let Request {
                    memory_mb,
                    cpus,
                    gpus,
                    ..
                } = request;
                format!("request {} {memory_mb} {cpus} {gpus}", task.0)
            }
            Record::ExpressionSkipped {
                task,
                request,
                reason,
            } => {
                format!("skipped {} {request} {reason}", task.0)
            }
            Record::RequestCapped { task, shortage } => format!("capped {} {shortage}", task.0),
            Record::Adopted(task, submit) => format!("adopted {} {}", task.0, submit.0),
            Record::Evicted {
                task, submit, rank, ..
            } => {
                format!("evicted {} {} on {}", task.0, submit.0, rank.0)
            }
            Record::Queued(task, submit) => format!("queued {} {}", task.0, submit.0),
            Record::Fragmented(task, submit) => format!("fragmented {} {}", task.0, submit.0),
            Record::HeldBack(task, submit) => format!("held back {} {}", task.0, submit.0),
            Record::Started(task, submit, rank) => format!("started {} {} on {}", task.0, submit.0, rank.0),
            Record::Prepared {
                task,
                submit,
                rank,
                outcome,
            } => format!(
                "prepared {} {} on {}: {}",
                task.0, submit.0, rank.0, outcome.status
            ),
            Record::Nested(task, submit) => format!("nested {} {}", task.0, submit.0),
            Record::Ended {
                task,
                submit,
                rank,
                outcome,
            } => format!(
                "ended {} {} on {} with {}",
                task.0, submit.0, rank.0, outcome.status
            ),
        });
    }
}

/// A master with its outbox.
struct Run {
    master: Master,
    log: Log,
}

fn registration(host: &str) -> Registration {
    Registration {
        host: host.to_owned(),
        memory_mb: 100,
        threads: 4,
        cores: 4,
        sockets: 1,
        gpus: 0,
        away: false,
    }
}

fn dag(text: &str) -> Arc<Dag> {
    Arc::new(Dag::parse(text.as_bytes().to_vec()).unwrap())
}

impl Run {
    fn new(text: &str, workers: u32) -> Self {
        Self::with(text, workers, &[], ONE_ATTEMPT)
    }

    fn with(text: &str, workers: u32, done: &[u32], config: MasterConfig) -> Self {
        let mut set = DoneSet::new();
        for task in done {
            set.insert(TaskId(*task));
        }
        let mut run = Self {
            master: Master::new(dag(text), set, Workers::Fixed(workers), config),
            log: Log::default(),
        };
        for rank in 1..=workers {
            run.register(rank, "h").unwrap();
        }
        run.start().unwrap();
        run.log.lines.clear();
        run.schedule();
        run
    }

    fn register(&mut self, rank: u32, host: &str) -> Result<(), MasterError> {
        self.master
            .handle(Event::Registered(Rank(rank), registration(host)), &mut self.log)
    }

    fn start(&mut self) -> Result<(), MasterError> {
        self.master.start(&mut self.log)
    }

    fn schedule(&mut self) {
        self.master.schedule(&mut self.log);
        self.master.sanity_check().unwrap();
    }

    fn finish(&mut self, rank: u32, submit: u64, status: i32) -> Result<(), MasterError> {
        self.finish_after(rank, submit, Outcome::new(status, Duration::from_secs(1)))
    }

    fn finish_after(&mut self, rank: u32, submit: u64, outcome: Outcome) -> Result<(), MasterError> {
        let result = TaskResult {
            submit: SubmitId(submit),
            outcome,
            forwards: Vec::new(),
            returned: None,
        };
        self.master
            .handle(Event::Finished(Rank(rank), result), &mut self.log)
    }

    fn end(&mut self, rank: u32, submit: u64, status: i32) {
        self.finish(rank, submit, status).unwrap();
        self.schedule();
    }

    /// Takes the lines since the last call and returns those with this prefix, without it.
    fn take(&mut self, start: &str) -> Vec<String> {
        let lines = std::mem::take(&mut self.log.lines);
        lines
            .into_iter()
            .filter_map(|line| line.strip_prefix(start).map(|l| l.trim().to_owned()))
            .collect()
    }
}

const DIAMOND: &str =
    "TASK d x\nTASK b x\nTASK c x\nTASK a x\nEDGE a c\nEDGE a b\nEDGE b d\nEDGE c d\nEDGE a b\n";

#[test]
fn a_diamond_runs_in_order() {
    let mut run = Run::new(DIAMOND, 2);
    assert_eq!(run.log.lines, ["queued 3 1", "started 3 1 on 1", "h 1 3 100"]);
    run.take("");
    run.end(1, 1, 0);
    assert_eq!(
        run.take(""),
        [
            "ended 3 1 on 1 with 0",
            "h 2 4 100",
            "queued 2 2",
            "queued 1 3",
            "started 2 2 on 1",
            "h 1 3 100",
            "started 1 3 on 2",
            "h 0 2 100"
        ],
        "children in the order of their edges, the slot that was used last first"
    );
    run.end(2, 3, 0);
    assert_eq!(run.take("queued"), [""; 0]);
    assert!(!run.master.is_finished());
    run.end(1, 2, 0);
    assert_eq!(run.take("started"), ["0 4 on 1"]);
    run.end(1, 4, 0);
    assert!(run.master.is_finished());
    let summary = run.master.summary();
    assert!(summary.success);
    assert_eq!(
        (
            summary.tasks,
            summary.submitted,
            summary.succeeded,
            summary.failed
        ),
        (4, 4, 4, 0)
    );
    assert_eq!(summary.runtime, Duration::from_secs(4));
}

#[test]
fn first_tasks_are_taken_in_byte_order_of_names() {
    let mut run = Run::new("TASK t10 x\nTASK t9 x\nTASK B x\nTASK t1 x\n", 1);
    assert_eq!(run.take("queued"), ["2 1", "3 2", "0 3", "1 4"]);
}

#[test]
fn tasks_of_a_full_category_wait() {
    let mut run = Run::new(
        "MAXJOBS db 1\nTASK a --category db x\nTASK b --category db -p 1 x\nTASK c --category db -m 10 x\nTASK d x\n",
        4,
    );
    assert_eq!(run.take("started"), ["1 2 on 1", "3 4 on 2"]);
    run.end(2, 4, 0);
    assert_eq!(run.take("started"), [""; 0], "the category is still full");
    assert_eq!(run.master.waiting(), Some((TaskId(0), WaitReason::Category)));
    run.end(1, 2, 256);
    assert_eq!(run.take("started"), ["0 1 on 1"]);
    run.end(1, 1, 0);
    assert_eq!(run.take("started"), ["2 3 on 1"]);
    run.end(1, 3, 0);
    assert!(run.master.is_finished());
}

#[test]
fn a_start_says_what_the_attempt_may_use() {
    let mut run = Run::new("TASK t -m 60 -c 2 prog\n", 1);
    assert_eq!(
        run.log.starts.pop().unwrap(),
        Start {
            task: TaskId(0),
            submit: SubmitId(1),
            rank: Rank(1),
            attempt: 1,
            grant: Granted {
                memory_mb: 60,
                cpus: 2,
                cpu_set: vec![0, 1],
                gpu_set: vec![],
            },
        }
    );
    assert_eq!(run.take("h"), ["0 2 40"]);
}

#[test]
fn all_workers_register_and_get_their_number_on_the_host() {
    let mut run = Run {
        master: Master::new(dag("TASK a x\n"), DoneSet::new(), Workers::Fixed(3), ONE_ATTEMPT),
        log: Log::default(),
    };
    run.register(3, "h").unwrap();
    assert_eq!(run.register(3, "h"), Err(MasterError::RegisteredTwice(Rank(3))));
    assert_eq!(run.register(0, "h"), Err(MasterError::UnknownRank(Rank(0))));
    assert_eq!(run.register(4, "h"), Err(MasterError::UnknownRank(Rank(4))));
    run.register(1, "g").unwrap();
    assert!(!run.master.may_start());
    assert_eq!(
        run.start(),
        Err(MasterError::CannotStart {
            registered: 2,
            workers: 3
        })
    );
    run.schedule();
    assert_eq!(run.log.lines, [""; 0]);
    run.register(2, "h").unwrap();
    assert!(run.master.may_start());
    assert_eq!(run.log.lines, ["setup 1 0", "setup 2 0", "setup 3 1"]);
    run.log.lines.clear();
    run.start().unwrap();
    assert_eq!(run.log.lines, ["g 1 4 100", "h 2 4 100"]);
    assert!(run.start().is_err());
    assert_eq!(run.register(1, "g"), Err(MasterError::RegisteredTwice(Rank(1))));
}

#[test]
fn a_task_that_fits_on_no_host_is_refused_before_the_run() {
    for (text, task, short) in [
        (
            "TASK z -m 101 x\nTASK y -c 5 x\nTASK a x\n",
            "y",
            ["5 CPUs", "4 CPUs"],
        ),
        (
            "TASK z -m 1e9 x\nEDGE z z\n",
            "z",
            ["976562.5 GiB of memory", "100 MiB of memory"],
        ),
    ] {
        let mut run = Run {
            master: Master::new(dag(text), DoneSet::new(), Workers::Fixed(1), ONE_ATTEMPT),
            log: Log::default(),
        };
        run.register(1, "h").unwrap();
        let error = run.start().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "FATAL ERROR: No host is capable of running task {task}: it requests {}, and the host that comes \
                 closest, h, has {}",
                short[0], short[1]
            )
        );
        run.schedule();
        assert_eq!(run.take("started"), [""; 0]);
    }
    // A done task may be too large.
    Run::with("TASK z -m 101 x\n", 1, &[0], ONE_ATTEMPT);
}

#[test]
fn only_the_worker_that_runs_an_attempt_can_end_it() {
    let mut run = Run::new("TASK a x\nTASK b x\n", 3);
    let not_running = |rank, submit| {
        Err(MasterError::NotRunning {
            rank: Rank(rank),
            submit: SubmitId(submit),
        })
    };
    assert_eq!(run.finish(2, 1, 0), not_running(2, 1));
    assert_eq!(run.finish(3, 1, 0), not_running(3, 1));
    assert_eq!(run.finish(1, 99, 0), not_running(1, 99));
    assert_eq!(run.finish(0, 1, 0), Err(MasterError::UnknownRank(Rank(0))));
    assert_eq!(run.finish(4, 1, 0), Err(MasterError::UnknownRank(Rank(4))));
    run.master.sanity_check().unwrap();
    run.end(1, 1, 0);
    assert_eq!(run.finish(1, 1, 0), not_running(1, 1), "not twice");
    run.end(2, 2, 0);
    assert!(run.master.summary().success);
}

#[test]
fn a_failed_worker_is_an_error() {
    let mut run = Run::new("TASK a x\n", 1);
    let error = run
        .master
        .handle(Event::Failed(Rank(1), "disk full".to_owned()), &mut run.log)
        .unwrap_err();
    assert_eq!(error.to_string(), "Worker 1: disk full");
}

#[test]
fn attempts_of_the_task_override_those_of_the_run() {
    let text = "TASK a x\nTASK b -t 1 x\nTASK c -t 0 x\nTASK child x\nEDGE a child\n";
    let mut run = Run::with(
        text,
        1,
        &[],
        MasterConfig {
            max_attempts: 2,
            max_failures: 0,
            crash_limit: 0,
        },
    );
    run.end(1, 1, 256);
    assert_eq!(
        run.take("queued").last().unwrap(),
        "0 4",
        "a retry goes to the end"
    );
    run.end(1, 2, 256);
    run.end(1, 3, 9);
    assert_eq!(run.take("queued"), [""; 0], "b and c have no attempts left");
    run.end(1, 4, 0);
    assert_eq!(run.take("started"), ["3 5 on 1"]);
    run.end(1, 5, 0);
    assert!(run.master.is_finished());
    let summary = run.master.summary();
    assert!(!summary.success);
    assert_eq!((summary.submitted, summary.succeeded, summary.failed), (5, 2, 3));
    assert_eq!((summary.done, summary.failed_tasks), (2, 2));
}

#[test]
fn no_task_starts_after_too_many_failures() {
    let text = "TASK a x\nTASK b x\nTASK c x\nTASK child x\nEDGE b child\n";
    let mut run = Run::with(
        text,
        2,
        &[],
        MasterConfig {
            max_attempts: 1,
            max_failures: 1,
            crash_limit: 0,
        },
    );
    run.take("");
    run.end(1, 1, 256);
    assert!(!run.master.is_finished(), "b still runs");
    run.end(2, 2, 0);
    assert!(run.master.is_finished());
    assert_eq!(
        run.take("started"),
        [""; 0],
        "neither c, which is queued, nor the child of b"
    );
    let summary = run.master.summary();
    assert!(summary.max_failures_reached && !summary.success);
    assert_eq!(summary.submitted, 2);
}

#[test]
fn retried_attempts_do_not_count_as_failures() {
    let mut run = Run::with(
        "TASK a x\n",
        1,
        &[],
        MasterConfig {
            max_attempts: 2,
            max_failures: 1,
            crash_limit: 0,
        },
    );
    run.end(1, 1, 256);
    assert!(!run.master.summary().max_failures_reached);
    run.end(1, 2, 0);
    assert!(run.master.summary().success);
}

#[test]
fn an_exit_code_ends_the_retries_of_a_task() {
    let mut run = Run::new("TASK a -t 3 --unless-exit 2 x\n", 1);
    run.end(1, 1, 256);
    assert!(!run.master.is_finished(), "another code is retried");
    run.end(1, 2, 2 << 8);
    assert!(run.master.is_finished());
    let summary = run.master.summary();
    assert_eq!((summary.failed, summary.failed_tasks), (2, 1));
}

#[test]
fn a_drain_lets_running_tasks_end() {
    let mut run = Run::new("TASK a x\nTASK b x\n", 1);
    run.take("");
    run.master.handle(Event::Drain, &mut run.log).unwrap();
    run.schedule();
    assert!(!run.master.is_finished());
    run.end(1, 1, 0);
    assert!(run.master.is_finished());
    assert_eq!(run.take("started"), [""; 0]);
    assert_eq!(run.master.summary().done, 1);
}

#[test]
fn done_tasks_do_not_run_again() {
    // d is done although its parents are not. It stays done when they end.
    let mut run = Run::with(DIAMOND, 1, &[0, 3], ONE_ATTEMPT);
    assert_eq!(run.take("started"), ["1 1 on 1"]);
    run.end(1, 1, 0);
    run.end(1, 2, 0);
    assert!(run.master.is_finished());
    let summary = run.master.summary();
    assert!(summary.success);
    assert_eq!((summary.done_before, summary.submitted), (2, 2));
    assert!(Run::with("", 1, &[], ONE_ATTEMPT).master.summary().success);
}

#[test]
fn a_cycle_ends_the_run_as_failed() {
    let mut run = Run::new("TASK a x\nTASK b x\nTASK c x\nEDGE a b\nEDGE b c\nEDGE c b\n", 1);
    run.end(1, 1, 0);
    assert!(run.master.is_finished());
    assert!(!run.master.summary().success);
}

#[test]
fn only_tasks_with_other_requests_overtake() {
    let text = "TASK a -m 60 -p 1 x\nTASK b -m 60 -p 9 x\nTASK c -m 60 -p 5 x\nTASK d -m 20 -p -1 x\n";
    let mut run = Run::new(text, 3);
    assert_eq!(run.take("started"), ["1 2 on 1", "3 4 on 2"]);
    run.end(2, 4, 0);
    assert_eq!(run.take("started"), [""; 0]);
    run.end(1, 2, 0);
    assert_eq!(run.take("started"), ["2 3 on 1"]);
}

#[test]
fn blocks_of_cpus_are_granted_and_returned() {
    let text = "TASK a -c 2 x\nTASK b -c 1 x\nTASK c -c 0 x\nTASK d -c 3 x\n";
    let mut run = Run::new(text, 4);
    let starts = run.log.starts.iter();
    let sets: Vec<_> = starts.map(|start| start.grant.cpu_set.clone()).collect();
    assert_eq!(sets, [vec![0, 1], vec![], vec![]]);
    run.end(1, 1, 0);
    assert_eq!(run.log.starts.last().unwrap().grant.cpu_set, [0, 1, 2]);
}

#[test]
fn scattered_cpus_are_reported() {
    let text = "TASK a -c 2 x\nTASK b -c 2 x\nTASK c -c 3 x\n";
    let mut run = Run {
        master: Master::new(dag(text), DoneSet::new(), Workers::Fixed(3), ONE_ATTEMPT),
        log: Log::default(),
    };
    for rank in 1..=3 {
        let five = Registration {
            threads: 5,
            cores: 5,
            ..registration("h")
        };
        run.master
            .handle(Event::Registered(Rank(rank), five), &mut run.log)
            .unwrap();
    }
    run.start().unwrap();
    run.schedule();
    run.log.lines.clear();
    // CPUs 0, 1 and 4 are free: enough for c, but not contiguous.
    run.end(1, 1, 0);
    assert_eq!(run.log.lines[2..4], ["fragmented 2 3", "started 2 3 on 1"]);
    assert_eq!(run.log.starts.last().unwrap().grant.cpu_set, [0; 0]);
    run.end(1, 3, 0);
    run.end(2, 2, 0);
    assert!(run.master.summary().success);
}

#[test]
fn gpus_are_granted_and_returned() {
    let text = "TASK a -g 1 x\nTASK b -g 2 x\nTASK c -g 1 x\nTASK d x\n";
    let mut run = Run {
        master: Master::new(dag(text), DoneSet::new(), Workers::Fixed(4), ONE_ATTEMPT),
        log: Log::default(),
    };
    for rank in 1..=4 {
        let three = Registration {
            gpus: 3,
            ..registration("h")
        };
        run.master
            .handle(Event::Registered(Rank(rank), three), &mut run.log)
            .unwrap();
    }
    run.start().unwrap();
    run.schedule();
    let starts = run.log.starts.iter();
    let sets: Vec<_> = starts
        .map(|start| (start.task.0, start.grant.gpu_set.clone()))
        .collect();
    assert_eq!(
        sets,
        [(0, vec![0]), (1, vec![1, 2]), (3, vec![])],
        "c waits for a GPU, and d does not"
    );
    run.end(1, 1, 0);
    assert_eq!(run.log.starts.last().unwrap().grant.gpu_set, [0]);
}

#[test]
fn a_held_run_starts_no_tasks_until_it_is_released() {
    let mut run = Run::new("TASK a x\nTASK b x\nTASK c x\n", 1);
    run.master.handle(Event::Hold, &mut run.log).unwrap();
    let submit = run.log.starts[0].submit;
    let outcome = Outcome::new(0, Duration::ZERO);
    let result = TaskResult {
        submit,
        outcome,
        forwards: Vec::new(),
        returned: None,
    };
    run.master
        .handle(Event::Finished(Rank(1), result), &mut run.log)
        .unwrap();
    run.schedule();
    assert_eq!((run.master.running(), run.master.is_finished()), (0, false));
    assert_eq!(run.master.waiting(), Some((TaskId(1), WaitReason::Held)));
    run.master.handle(Event::Release, &mut run.log).unwrap();
    run.schedule();
    assert_eq!(run.master.running(), 1);
    assert_eq!(run.master.waiting(), Some((TaskId(2), WaitReason::Slots)));
}

#[test]
fn waiting_tasks_have_reasons() {
    let waiting = |first: &str, second: &str| {
        let run = Run::new(&format!("TASK a -p 1 {first} x\nTASK b {second} x\n"), 2);
        run.master.waiting().map(|(task, reason)| {
            assert_eq!(task, TaskId(1));
            reason.to_string()
        })
    };
    assert_eq!(waiting("-c 1", "-c 3"), None);
    let cpus = "no host with a free slot has enough free CPUs (requested: 3)";
    assert_eq!(waiting("-c 2", "-c 3").as_deref(), Some(cpus));
    let memory = "it requests 60 MiB, and at most 50 MiB are free on a host";
    assert_eq!(waiting("-m 50", "-m 60").as_deref(), Some(memory));
    let limit = "as many tasks run as the DAG allows (MAXJOBS *)";
    assert_eq!(waiting("", "x\nTASK c x\nMAXJOBS * 1\n#").as_deref(), Some(limit));
}
