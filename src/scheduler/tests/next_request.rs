//! What tasks request after an attempt that failed.

use std::time::Duration;

use super::{MasterConfig, ONE_ATTEMPT, Run, registration};
use crate::protocol::{MemoryUse, Outcome, Rank, Registration};
use crate::scheduler::Event;

const THREE_ATTEMPTS: MasterConfig = MasterConfig {
    max_attempts: 3,
    ..ONE_ATTEMPT
};

fn failed(status: i32, peak_mib: u64) -> Outcome {
    let mut outcome = Outcome::new(status, Duration::from_secs(7));
    outcome.memory = Some(MemoryUse {
        peak_mib,
        requested_mib: 0,
        out_of_memory: false,
    });
    outcome
}

/// A run of one task on hosts with this memory, these CPUs and GPUs. Each has one worker.
fn run(options: &str, hosts: &[(u64, u32, u32)]) -> Run {
    let mut run = Run::dynamic(&format!("TASK a {options} x\n"), THREE_ATTEMPTS);
    for (rank, &(memory_mb, threads, gpus)) in (1..).zip(hosts) {
        let host = format!("h{rank}");
        let registration = Registration {
            memory_mb,
            threads,
            gpus,
            ..registration(&host)
        };
        run.event(Event::Registered(Rank(rank), registration));
    }
    run.start().unwrap();
    run.schedule();
    run
}

#[test]
fn expressions_change_all_requests_of_the_next_attempt() {
    let options = "-m 100 --request-expression 'memory=max(pegasus_memory_mb * 2, maxrss / 1024 * 1.5)' \
         --request-expression 'cores=pegasus_cores + 1 if job_retry == 0 else pegasus_cores' \
         --request-expression 'gpus=1 if exitcode == 137 else 0'";
    let mut run = run(options, &[(9000, 4, 1)]);
    run.finish_after(1, 1, failed(9, 300)).unwrap();
    assert_eq!(run.take("request"), ["0 450 2 1"]);
    run.schedule();
    let sent = run.log.starts.last().unwrap();
    assert_eq!(
        (sent.grant.memory_mb, sent.grant.cpus, sent.grant.gpu_set.len()),
        (450, 2, 1)
    );
    run.finish_after(1, 2, failed(256, 10)).unwrap();
    assert_eq!(run.take("request"), ["0 900 2 0"]);
    run.schedule();
    run.master.sanity_check().unwrap();
}

#[test]
fn a_skipped_expression_leaves_the_old_request() {
    let options = "-m 100 -c 2 --request-expression 'memory=total_ip_size_mb * 2' \
         --request-expression 'cores=pegasus_cores +' --request-expression queue=1";
    let mut run = run(options, &[(9000, 4, 0)]);
    run.finish_after(1, 1, failed(256, 0)).unwrap();
    assert_eq!(
        run.take("skipped"),
        [
            "0 cores syntax error: unexpected end of input, expected expression",
            "0 memory the variable `total_ip_size_mb` has no value in this run",
            "0 queue no such request is known"
        ]
    );
    assert_eq!(run.take("request"), [""; 0]);
    run.schedule();
    let sent = run.log.starts.last().unwrap();
    assert_eq!((sent.grant.memory_mb, sent.grant.cpus), (100, 2));
}

/// A task that waits for a host that is not there would stall the run.
#[test]
fn requests_that_grow_beyond_every_host_get_what_a_host_has() {
    let options =
        "-m 50 -g 1 --request-expression memory=pegasus_memory_mb*1000 --request-expression cores=64";
    // The largest host has no GPU.
    let mut run = run(options, &[(80, 2, 1), (70_000, 64, 0)]);
    run.finish_after(1, 1, failed(256, 0)).unwrap();
    let capped = "capped 0 it requests 48.828 GiB of memory and 64 CPUs, and the host that comes closest, h1, has 80 MiB \
         of memory and 2 CPUs";
    let lines = std::mem::take(&mut run.log.lines);
    let at = lines
        .iter()
        .position(|line| line == capped)
        .unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(lines[at + 1], "request 0 80 2 1");
    run.schedule();
    assert_eq!(run.master.stranded(), None);
    assert_eq!(run.log.starts.len(), 2, "it runs again");
}

/// The values of amounts that the executor does not count go from attempt to attempt.
#[test]
fn disk_space_and_run_time_are_values_for_the_next_expressions() {
    let options = "--expression-value pegasus_diskspace_mb=10 --expression-value pegasus_site=n1 \
         --request-expression 'diskspace=pegasus_diskspace_mb * 2' \
         --request-expression \"memory=pegasus_diskspace_mb if pegasus_site == \\'n1\\' else 1\"";
    let mut run = run(options, &[(9000, 4, 0)]);
    run.finish_after(1, 1, failed(256, 0)).unwrap();
    assert_eq!(run.take("request"), ["0 10 1 0"]);
    run.schedule();
    run.finish_after(1, 2, failed(256, 0)).unwrap();
    assert_eq!(run.take("request"), ["0 20 1 0"]);
}

#[test]
fn an_expression_for_memory_comes_before_the_factor() {
    let mut outcome = failed(9, 90);
    if let Some(used) = &mut outcome.memory {
        used.out_of_memory = true;
    }
    let mut own = run(
        "-m 100 --more-memory 2 --request-expression memory=130",
        &[(9000, 4, 0)],
    );
    own.finish_after(1, 1, outcome).unwrap();
    assert_eq!(own.take("request"), ["0 130 1 0"]);
    let mut other = run(
        "-m 100 --more-memory 2 --request-expression cores=2",
        &[(9000, 4, 0)],
    );
    other.finish_after(1, 1, outcome).unwrap();
    assert_eq!(other.take("request"), ["0 200 2 0"]);
}
