use proptest::prelude::*;

use super::*;

fn status(scheduler: Scheduler, printed: &str) -> JobStatus {
    parse(scheduler, printed).unwrap_or_else(|| panic!("{scheduler} does not know it: {printed}"))
}

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[test]
fn slurm_says_state_nodes_and_time_left() {
    let running = status(Scheduler::Slurm, "RUNNING|n[1-3]|n2|9:58|None\n");
    assert_eq!(running.state, Running);
    assert_eq!(running.nodes, ["n2", "n1", "n3"]);
    assert_eq!(running.time_left, seconds(598));
    assert_eq!(running.reason, "");
    let waiting = status(
        Scheduler::Slurm,
        "PENDING||n/a|1-00:00:00|ReqNodeNotAvail, UnavailableNodes:n1\n",
    );
    assert_eq!((waiting.state, waiting.time_left), (Waiting, None));
    assert_eq!(waiting.reason, "ReqNodeNotAvail, UnavailableNodes:n1");
    assert!(waiting.nodes.is_empty());
    for (name, end) in [
        ("COMPLETED", JobEnd::Success),
        ("TIMEOUT", JobEnd::TimeLimit),
        ("NODE_FAIL", JobEnd::NodeLost),
        ("PREEMPTED", JobEnd::Preempted),
        ("CANCELLED", JobEnd::Cancelled),
        ("OUT_OF_MEMORY", JobEnd::Failure),
        ("BOOT_FAIL", JobEnd::Failure),
    ] {
        let ended = status(Scheduler::Slurm, &format!("{name}|n1|n1|0:00|None\n"));
        assert_eq!((ended.state, ended.time_left), (Ended(end), None), "{name}");
    }
    let unlimited = status(Scheduler::Slurm, "RUNNING|n1|n1|UNLIMITED|None\n");
    assert_eq!(unlimited.time_left, None);
    assert_eq!(parse(Scheduler::Slurm, ""), None);
}

#[test]
fn pbs_folds_long_lines() {
    let text = "Job Id: 69301.head\n    Job_Name = flow\n    resources_used.cput = 00:00:01\n    \
                resources_used.walltime = 00:10:30\n    job_state = R\n    \
                exec_host = b141/0*16+b142/0*16+b1\n\t43/0*16+b144/0*16\n    comment = Job run at Fri Nov\n    \
                Resource_List.walltime = 01:00:00\n";
    let running = status(Scheduler::PbsPro, text);
    assert_eq!(running.state, Running);
    assert_eq!(running.nodes, ["b141", "b142", "b143", "b144"]);
    assert_eq!(running.time_left, seconds(49 * 60 + 30));
    assert_eq!(running.reason, "Job run at Fri Nov");
}

#[test]
fn pbs_says_how_a_job_has_ended() {
    let ended = |lines: &str| {
        status(
            Scheduler::PbsPro,
            &format!("Job Id: 1.head\n    job_state = F\n{lines}"),
        )
    };
    assert_eq!(ended("    Exit_status = 0\n").state, Ended(JobEnd::Success));
    assert_eq!(ended("    Exit_status = -29\n").state, Ended(JobEnd::TimeLimit));
    let failed = ended("    Exit_status = 126\n");
    assert_eq!(
        (failed.state, failed.reason.as_str()),
        (Ended(JobEnd::Failure), "exit status 126")
    );
    assert_eq!(ended("").state, Ended(JobEnd::Cancelled));
}

#[test]
fn torque_names_a_node_once_for_each_cpu() {
    let text = "Job Id: 17.head\n    job_state = R\n    exec_host = n1/0+n1/1+n2/0\n    \
                Resource_List.walltime = 00:10:00\n    Walltime.Remaining = 540\n";
    let running = status(Scheduler::Torque, text);
    assert_eq!(running.nodes, ["n1", "n2"]);
    assert_eq!(running.time_left, seconds(540));
    let waiting = status(Scheduler::Torque, "Job Id: 17.head\n    job_state = Q\n");
    assert_eq!(waiting.state, Waiting);
    let ended = "Job Id: 17.head\n    job_state = C\n    exit_status = -11\n";
    assert_eq!(status(Scheduler::Torque, ended).state, Ended(JobEnd::TimeLimit));
    assert_eq!(parse(Scheduler::Torque, "qstat: Unknown Job Id 18.head\n"), None);
}

#[test]
fn lsf_counts_time_in_minutes() {
    let running = status(Scheduler::Lsf, "RUN|4*hostA:4*hostB|1:57 L|-|-\n");
    assert_eq!(running.state, Running);
    assert_eq!(running.nodes, ["hostA", "hostB"]);
    assert_eq!(running.time_left, seconds(117 * 60));
    let waiting = status(Scheduler::Lsf, "PEND|-|-|-|New job is waiting for scheduling;\n");
    assert_eq!((waiting.state, waiting.nodes.len()), (Waiting, 0));
    assert_eq!(waiting.reason, "New job is waiting for scheduling;");
    let limit = "TERM_RUNLIMIT: job killed after reaching LSF run time limit";
    let ended = status(Scheduler::Lsf, &format!("EXIT|hostA|0:00 L|{limit}|-\n"));
    assert_eq!(
        (ended.state, ended.reason.as_str()),
        (Ended(JobEnd::TimeLimit), limit)
    );
    assert_eq!(
        status(Scheduler::Lsf, "DONE|hostA|-|-|-\n").state,
        Ended(JobEnd::Success)
    );
    assert_eq!(
        status(Scheduler::Lsf, "EXIT|hostA|-|-|-\n").state,
        Ended(JobEnd::Failure)
    );
    assert_eq!(parse(Scheduler::Lsf, "Job <99> is not found\n"), None);
}

#[test]
fn flux_says_state_result_and_exception() {
    let running = status(Scheduler::Flux, "RUN||corona[212-213]|3540.52||\n");
    assert_eq!(running.state, Running);
    assert_eq!(running.nodes, ["corona212", "corona213"]);
    assert_eq!(running.time_left, seconds(3540));
    assert_eq!(status(Scheduler::Flux, "RUN||n1|0.0||\n").time_left, None);
    let ended = status(
        Scheduler::Flux,
        "INACTIVE|TIMEOUT|n1|0.0|timeout|resource allocation expired\n",
    );
    assert_eq!(ended.state, Ended(JobEnd::TimeLimit));
    assert_eq!(ended.reason, "resource allocation expired");
    let cancelled = status(Scheduler::Flux, "INACTIVE|CANCELED||0.0|cancel|\n");
    assert_eq!(
        (cancelled.state, cancelled.reason.as_str()),
        (Ended(JobEnd::Cancelled), "cancel")
    );
    assert_eq!(
        status(Scheduler::Flux, "INACTIVE|FAILED|n1|0.0||\n").state,
        Ended(JobEnd::Failure)
    );
    assert_eq!(status(Scheduler::Flux, "SCHED|||||\n").state, Waiting);
}

#[test]
fn cobalt_says_state_and_time_left() {
    let text = "JobID: 199\n    JobName           : N/A\n    WallTime          : 01:00:00\n    \
                TimeRemaining     : 00:56:46\n    State             : running\n    Location          : 3-4\n";
    let running = status(Scheduler::Cobalt, text);
    assert_eq!(
        (running.state, running.time_left),
        (Running, seconds(56 * 60 + 46))
    );
    assert_eq!(
        status(Scheduler::Cobalt, "    State  : dep_hold\n").state,
        Waiting
    );
    assert_eq!(parse(Scheduler::Cobalt, ""), None);
}

/// The number of a job stays one word of the command.
#[test]
fn every_batch_system_is_asked_for_one_job() {
    for scheduler in Scheduler::ALL {
        let job = BatchJob::new(scheduler, "17;x").unwrap();
        let words = query(&job);
        let with_id = words.iter().filter(|word| word.ends_with("17;x"));
        assert_eq!(with_id.count(), 1, "{scheduler}: {words:?}");
    }
}

proptest! {
    #[test]
    fn no_text_of_a_batch_system_panics(text in "\\PC*|([A-Z|:0-9*n\\[\\],.\n\t -]|job_state = |exec_host = )*") {
        for scheduler in Scheduler::ALL {
            let _ = parse(scheduler, &text);
        }
    }
}

#[test]
fn a_job_may_have_lost_the_node_of_its_script() {
    let host = |printed: &str| batch_host(printed).map(|host| (host.name.clone(), host.is_lost()));
    assert_eq!(host("n1|n[1-3]\n"), Some(("n1".to_owned(), false)));
    assert_eq!(host("n1|n[2-3]\n"), Some(("n1".to_owned(), true)));
    assert_eq!(host(""), None);
}
