//! `pmc supervise` in a batch script starts the executor again that was killed, and lets others end. The
//! executor is a stub.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::common::{Case, Plan};
use super::{LINE, case};

/// Puts a program in place of the executor, and plans with it.
fn planned(executor: &str, options: &str) -> (Case, Plan) {
    let case = case();
    let text = format!("#!/bin/bash\necho \"$*\" >>@DIR@/started\n{executor}\n");
    case.put(
        "bin/pegasus-mpi-cluster",
        &text.replace("@DIR@", &case.path().display().to_string()),
    );
    let path = case.path().join("bin/pegasus-mpi-cluster");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    let pmc = testutils::programs::path("pmc");
    std::os::unix::fs::symlink(pmc, case.path().join("bin/pmc")).expect("a link");
    let sites = case.file("sites.yml");
    case.put(
        "sites.yml",
        &sites.replace("/opt/pegasus", &case.path().display().to_string()),
    );
    let plan = case
        .plan(&format!("{LINE} -Dpegasus.batch.transport=none {options}"))
        .expect("planned");
    (case, plan)
}

fn start(plan: &Plan, suffix: &str) -> Child {
    Command::new("bash")
        .arg(plan.planned.dag.with_extension(suffix))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash")
}

/// The words of each start of the executor.
fn starts(case: &Case) -> Vec<String> {
    let text = fs::read_to_string(case.path().join("started")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn code(mut script: Child) -> Option<i32> {
    script.wait().expect("an end").code()
}

#[test]
fn an_executor_that_was_killed_starts_again() {
    for (executor, wanted, times) in [
        ("[ $(wc -l <@DIR@/started) = 3 ] || kill -KILL $$", 0, 3),
        ("[ $(wc -l <@DIR@/started) = 2 ] && exit 7; kill -ABRT $$", 7, 2),
        ("exit 1", 1, 1),
        ("exit 75", 75, 1),
        ("exit 76", 76, 1),
        // What a person or the batch system has asked for.
        ("kill -TERM $$", 143, 1),
        ("kill -INT $$", 130, 1),
        ("kill -SEGV $$", 139, 10),
    ] {
        for (suffix, options) in [("sbatch", "--batch slurm"), ("lsf", "--batch lsf --drain 2")] {
            let (case, plan) = planned(executor, options);
            assert_eq!(code(start(&plan, suffix)), Some(wanted), "{executor} {suffix}");
            assert_eq!(starts(&case).len(), times, "{executor} {suffix}");
        }
    }
}

/// Slurm sends SIGUSR1 to the batch script only, SIGTERM to all processes.
#[test]
fn the_signal_to_drain_reaches_the_executor() {
    let executor = "trap 'exit 75' USR1; trap 'exit 9' TERM; trap 'exit 3' INT
touch @DIR@/ready; while :; do sleep 0.01; done";
    for (signals, to_executor, wanted) in [
        (&[Signal::SIGUSR1][..], None, 75),
        // SIGTERM does not end the shell before the executor.
        (&[Signal::SIGTERM, Signal::SIGUSR1], None, 75),
        (&[Signal::SIGTERM], Some(Signal::SIGTERM), 9),
        // The executor does not ignore it.
        (&[], Some(Signal::SIGINT), 3),
        // No executor starts in a job that ends.
        (&[Signal::SIGTERM], Some(Signal::SIGKILL), 137),
    ] {
        let (case, plan) = planned(&format!("echo $$ >@DIR@/pid; {executor}"), "--batch slurm");
        let script = start(&plan, "sbatch");
        let begun = Instant::now();
        while !case.path().join("ready").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not start");
            thread::sleep(Duration::from_millis(5));
        }
        for signal in signals {
            kill(Pid::from_raw(script.id().cast_signed()), *signal).expect("sent");
            thread::sleep(Duration::from_millis(50));
        }
        if let Some(signal) = to_executor {
            let pid = case.file("pid").trim().parse().expect("a number");
            kill(Pid::from_raw(pid), signal).expect("sent");
        }
        assert_eq!(code(script), Some(wanted), "{signals:?} {to_executor:?}");
        assert_eq!(starts(&case).len(), 1);
    }
}

#[test]
fn the_number_of_agents_follows_the_batch_job() {
    let count = |suffix: &str, batch: &str, variables: &[(&str, &str)]| {
        let (case, _) = planned("", "");
        let line = LINE.replace("--dir submit", "--dir other");
        let plan = case
            .plan(&format!(
                "{line} --nodes 3 -Dpegasus.batch.transport=agents --batch {batch}"
            ))
            .expect("planned");
        case.put("hosts", "n1\nn1\nn2\nn2\n");
        let mut command = Command::new("bash");
        command
            .arg(plan.planned.dag.with_extension(suffix))
            .stderr(Stdio::null());
        for (name, value) in variables {
            command.env(name, value.replace("@DIR@", &case.path().display().to_string()));
        }
        assert!(command.status().expect("bash").success());
        let words = starts(&case).concat();
        words
            .split_once("--agents ")
            .and_then(|(_, rest)| rest.split(' ').next())
            .map(str::to_owned)
    };
    for (suffix, batch, variable) in [
        ("sbatch", "slurm", ("SLURM_JOB_NUM_NODES", "2")),
        ("pbs", "pbspro", ("PBS_NODEFILE", "@DIR@/hosts")),
        ("lsf", "lsf", ("LSB_DJOB_HOSTFILE", "@DIR@/hosts")),
        ("cobalt", "cobalt", ("COBALT_PARTSIZE", "2")),
    ] {
        assert_eq!(count(suffix, batch, &[variable]).as_deref(), Some("2"), "{batch}");
        // Started by hand, without the batch system.
        assert_eq!(count(suffix, batch, &[]).as_deref(), Some("3"), "{batch}");
    }
    assert_eq!(count("flux", "flux", &[]).as_deref(), Some("3"));
}
