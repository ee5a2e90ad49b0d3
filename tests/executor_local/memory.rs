//! Memory of tasks: messages about it, and its limit.

use super::{Run, text};

/// `tail` keeps a line of 120 MB in memory, until it is killed or the reader takes it.
const LARGE: &str = "head -c 120000000 /dev/zero | tail -n 1 |";

#[test]
fn memory_above_the_request_is_reported() {
    let run =
        Run::new("TASK large -m 100 ./large.sh\nTASK small -m 100 ./say.sh small\nTASK none ./large.sh\n");
    run.script("large.sh", &format!("{LARGE} cat >/dev/null"));
    let output = run.run(&["--host-memory", "1000", "x.dag"]);
    assert_eq!(output.status.code(), Some(0));
    let stderr = text(&output.stderr);
    let line = stderr
        .lines()
        .find(|line| line.starts_with("[warn] Task large used 1"));
    let line = line.unwrap_or_else(|| panic!("{stderr}"));
    assert!(
        line.ends_with(" MiB of memory and had requested 100 MiB"),
        "{line}"
    );
    assert_eq!(stderr.matches(" MiB of memory").count(), 1, "{stderr}");
}

#[test]
fn a_task_above_its_request_is_ended_on_request() {
    let run = Run::new("TASK large -m 100 ./large.sh\nTASK small -m 100 ./say.sh small\n");
    run.script("large.sh", &format!("{LARGE} sleep 1000"));
    let output = run.run(&["--watch-memory", "--host-memory", "1000", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("[error] Task large failed with exitcode 9\n"),
        "{stderr}"
    );
    let line = stderr
        .lines()
        .find(|line| line.starts_with("[error] Task large ran out of memory: it used 1"));
    let line = line.unwrap_or_else(|| panic!("{stderr}"));
    assert!(line.ends_with(" MiB and had requested 100 MiB"), "{line}");
    assert_eq!(run.done(), ["small"]);
}

#[test]
fn a_task_that_ran_out_of_memory_gets_more() {
    let run =
        Run::new("TASK large -m 100 -t 2 ./large.sh\nTASK fixed -m 100 -t 2 --more-memory 1 ./large.sh\n");
    run.script(
        "large.sh",
        &format!("echo $PMC_MEMORY >> $PMC_TASK; [ $PMC_MEMORY -gt 100 ] || {{ {LARGE} sleep 1000; }}"),
    );
    let output = run.run(&[
        "--watch-memory",
        "--host-memory",
        "350",
        "--more-memory",
        "2",
        "x.dag",
    ]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(
        (run.read("large").as_str(), run.read("fixed").as_str()),
        ("100\n200\n", "100\n100\n")
    );
    let line = "Task large gets 200 MiB of memory in its next attempt\n";
    assert_eq!(stderr.matches(line).count(), 1, "{stderr}");
    assert!(!stderr.contains("Task fixed gets"), "{stderr}");
    assert_eq!(run.done(), ["large"]);
}

#[test]
fn expressions_change_the_request_of_the_next_attempt() {
    let run = Run::new(
        "TASK grows -m 1024 -t 3 --request-expression 'memory=pegasus_memory_mb * 2 if job_retry >= 0 else \
         pegasus_memory_mb' --request-expression 'cores=pegasus_cores + 1 if exitcode == 3 else 1' ./needs.sh 2000\n\
         TASK huge -m 1024 -t 2 --request-expression 'memory=\\'1 TB\\'' --request-expression cores=nonsense \
         ./needs.sh 3900\n\
         TASK seen -t 2 --request-expression 'memory=2000 if maxrss > 100 and user == \\'u\\' else 7' ./needs.sh 2000\n",
    );
    run.script(
        "needs.sh",
        &format!("echo $PMC_MEMORY $PMC_CPUS >> $PMC_TASK; {LARGE} cat >/dev/null; [ $PMC_MEMORY -ge $1 ] || exit 3"),
    );
    let mut command = run.command(&["--host-memory", "4000", "--host-cpus", "4", "x.dag"]);
    let output = command.env("USER", "u").output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(run.read("grows"), "1024 1\n2048 2\n");
    assert_eq!(run.read("huge"), "1024 1\n4000 1\n", "{stderr}");
    assert_eq!(run.read("seen"), "0 1\n2000 1\n", "{stderr}");
    for message in [
        "Task grows gets 2 GiB of memory and 2 CPUs in its next attempt\n",
        "Task huge: the expression for cores is skipped, and the old request stays: there is no variable `nonsense`\n",
        "Task huge: no host has what its expressions ask for: it requests 1024 GiB of memory, and the host that comes \
         closest, ",
    ] {
        assert_eq!(stderr.matches(message).count(), 1, "{message}\n{stderr}");
    }
}

/// Another process, or the user, may kill a task.
#[test]
fn a_killed_task_that_used_little_has_not_run_out_of_memory() {
    let run = Run::new("TASK a -m 1000 /bin/sh -c 'kill -9 $$'\n");
    let output = run.run(&["--host-memory", "1000", "x.dag"]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("Task a failed with exitcode 9\n"), "{stderr}");
    assert!(!stderr.contains("out of memory"), "{stderr}");
}
