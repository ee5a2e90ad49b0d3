//! Hosts that are prepared, set aside and drained.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use pmc_control::{Answer, Request, ask};

use super::{PATIENCE, Run, Scene, TASK, children, wait_for_file};

#[test]
fn a_host_whose_tasks_succeed_elsewhere_is_set_aside() {
    let scene = Scene::new(8, "0.2");
    // A pause, so that the messages about failures fit into the pipe that is read at the end.
    let task = format!("#!/bin/sh\n[ -z \"$BROKEN\" ] || {{ sleep 0.03; exit 1; }}\n{TASK}");
    fs::write(scene.path("task.sh"), task).unwrap();
    let run = scene.start("2", &["--tries", "1000", "--start-with", "2"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agent = |name: &str, broken: bool| {
        let mut command = scene.command(&["--agent", "x.dag.endpoint", "--host-name", name]);
        if broken {
            command.env("BROKEN", "1");
        }
        Run::new(command)
    };
    let (good, bad) = (agent("good", false), agent("bad", true));
    // It leaves before the end of the run.
    let (code, stderr) = bad.wait();
    assert_eq!(code, 0, "{stderr}");
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(good.wait().0, 0);
    let said = "The host bad is set aside: 3 tasks in a row failed there";
    assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    scene.begins(8);
}

#[test]
fn a_host_that_is_drained_ends_what_runs_and_leaves() {
    let scene = Scene::new(6, "1");
    let run = scene.start("2", &["--start-with", "2"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agent = |name| {
        let words = ["--agent", "x.dag.endpoint", "--host-name", name];
        Run::new(scene.command(&words))
    };
    let (stays, goes) = (agent("stays"), agent("goes"));
    scene.wait_for("begin", 2);
    let drain = |host: &str| {
        let host = host.to_owned();
        ask(&scene.path("x.dag"), &Request::DrainNode { host }).unwrap()
    };
    assert!(matches!(drain("goes"), Answer::Done(_)));
    assert!(matches!(drain("other"), Answer::Refused(_)));
    // It leaves before the end of the run.
    let (code, stderr) = goes.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(scene.log().lines().count() < 12, "{}", scene.log());
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stays.wait().0, 0);
    // Nothing was run again.
    assert!(scene.begins(6).values().all(|times| *times == 1));
}

/// A task that runs until a file is there. It notes if another attempt of it runs, too.
const HELD_TASK: &str = "#!/bin/sh
exec 9> lock.$1
flock -n 9 || echo \"double $1 0\" >> log
echo \"begin $1 0\" >> log
while [ ! -e end.$1 ]; do sleep 0.02 9>&-; done
echo \"end $1 0\" >> log
";

/// A run on two hosts with one slot each, whose first two tasks run.
struct TwoHosts {
    scene: Scene,
    run: Run,
    first: Run,
    second: Run,
}

impl TwoHosts {
    fn start(tasks: usize) -> Self {
        let scene = Scene::new(tasks, "");
        fs::write(scene.path("task.sh"), HELD_TASK).unwrap();
        let run = scene.start("2", &["--start-with", "2"]);
        wait_for_file(&scene.path("x.dag.endpoint"));
        let agent = |name| {
            let words = ["--agent", "x.dag.endpoint", "--host-name", name];
            Run::new(scene.command(&words))
        };
        let (first, second) = (agent("first"), agent("second"));
        scene.wait_for("begin", 2);
        Self {
            scene,
            run,
            first,
            second,
        }
    }

    fn ask(&self, request: &Request) -> Answer {
        ask(&self.scene.path("x.dag"), request).unwrap()
    }

    fn done(&self, request: &Request) -> String {
        match self.ask(request) {
            Answer::Done(text) => text,
            other => panic!("{other:?}"),
        }
    }

    fn reserve(&self, host: &str, is_reserved: bool) -> Answer {
        let hosts = vec![host.to_owned()];
        self.ask(&Request::ReserveNodes { hosts, is_reserved })
    }

    /// The task that runs on a host.
    fn task_on(&self, host: &str) -> Option<String> {
        let is_there = |task: &String| {
            let task = task.clone();
            match self.ask(&Request::Why { task }) {
                Answer::Task(status) => status.state == "running" && status.host.as_deref() == Some(host),
                other => panic!("{other:?}"),
            }
        };
        (0..4)
            .map(|n| format!("t{n}"))
            .take_while(|task| self.has(task))
            .find(is_there)
    }

    fn has(&self, task: &str) -> bool {
        let dag = fs::read_to_string(self.scene.path("x.dag")).unwrap();
        dag.contains(&format!("TASK {task} "))
    }

    /// Lets a task end.
    fn end(&self, task: &str) {
        fs::write(self.scene.path(&format!("end.{task}")), "").unwrap();
    }
}

#[test]
fn a_host_that_is_reserved_gets_no_tasks() {
    let hosts = TwoHosts::start(4);
    let Answer::Done(text) = hosts.reserve("second", true) else {
        panic!("it is not reserved");
    };
    assert!(text.starts_with("second is reserved: ") && text.ends_with("the task that runs there goes on"));
    assert!(matches!(hosts.reserve("third", true), Answer::Refused(_)));
    for host in ["second", "first"] {
        let task = hosts.task_on(host).unwrap();
        hosts.end(&task);
        let ended = if host == "second" { 1 } else { 2 };
        hosts.scene.wait_for("end", ended);
    }
    hosts.scene.wait_for("begin", 3);
    assert_eq!(hosts.task_on("first").as_deref(), Some("t2"));
    let task = "t3".to_owned();
    let Answer::Task(last) = hosts.ask(&Request::Why { task }) else {
        panic!("no task");
    };
    let reason = "second is reserved (pmc nodes --unreserve second)";
    assert_eq!((&*last.state, last.reason.as_deref()), ("queued", Some(reason)));
    let Answer::Nodes(nodes) = hosts.ask(&Request::Nodes) else {
        panic!("no nodes");
    };
    let second = nodes.iter().find(|node| node.host == "second").unwrap();
    assert_eq!((&*second.state, second.busy), ("reserved", 0));
    assert!(second.tasks.is_empty());
    let first = nodes.iter().find(|node| node.host == "first").unwrap();
    assert_eq!(first.tasks.len(), 1);
    let (task, now) = (&first.tasks[0], SystemTime::now());
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    assert_eq!(task.task, "t2");
    // It has begun in this test.
    assert!(
        (now - 600.0..=now).contains(&task.start_time),
        "{} {now}",
        task.start_time
    );
    assert!(matches!(hosts.reserve("second", false), Answer::Done(_)));
    hosts.scene.wait_for("begin", 4);
    assert_eq!(hosts.task_on("second").as_deref(), Some("t3"));

    // What runs on a host is ended there, and nothing else.
    let host = |name: &str| name.to_owned();
    let (signal, refused) = (
        9,
        hosts.ask(&Request::KillOnHost {
            host: host("third"),
            signal: 9,
        }),
    );
    assert!(matches!(refused, Answer::Refused(_)));
    let text = hosts.done(&Request::KillOnHost {
        host: host("second"),
        signal,
    });
    assert_eq!(text, "signal 9 is sent to the task that runs on second");
    hosts.end("t2");
    let TwoHosts {
        scene,
        run,
        first,
        second,
    } = hosts;
    let (code, stderr) = run.wait();
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("Task t3 failed"), "{stderr}");
    assert_eq!((first.wait().0, second.wait().0), (0, 0));
    assert_eq!(scene.log().matches("end ").count(), 3, "{}", scene.log());
}

/// The agent that lives says that its tasks have ended.
#[test]
fn a_host_that_is_said_to_be_gone_ends_its_tasks_first() {
    let hosts = TwoHosts::start(2);
    let host = "second".to_owned();
    let text = hosts.done(&Request::NodeGone { host });
    assert!(
        text.starts_with("second is given up; what runs there runs elsewhere"),
        "{text}"
    );
    let host = "third".to_owned();
    assert!(matches!(
        hosts.ask(&Request::NodeGone { host }),
        Answer::Refused(_)
    ));
    let TwoHosts {
        scene,
        run,
        first,
        second,
    } = hosts;
    let (code, stderr) = second.wait();
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains("its host was given up (pmc nodes --gone)"),
        "{stderr}"
    );
    for task in ["t0", "t1"] {
        fs::write(scene.path(&format!("end.{task}")), "").unwrap();
    }
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    let said = "The agent on second takes no part any more: its host was given up";
    assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    assert_eq!(first.wait().0, 0);
    assert!(!scene.log().contains("double"), "{}", scene.log());
    assert_eq!(scene.begins(2).values().sum::<usize>(), 3);
}

/// One that does not answer may still have tasks, as long as it has a lease.
#[test]
fn tasks_of_a_silent_host_that_is_said_to_be_gone_run_after_its_lease() {
    let hosts = TwoHosts::start(2);
    let agent = children(hosts.second.pid)[0];
    kill(agent, Signal::SIGSTOP).unwrap();
    let host = "second".to_owned();
    let text = hosts.done(&Request::NodeGone { host });
    assert!(text.contains(" s at the latest"), "{text}");
    let other = hosts.task_on("first").unwrap();
    hosts.end(&other);
    hosts.scene.wait_for("begin", 3);
    let log = hosts.scene.log();
    assert!(!log.contains("double"), "{log}");
    // Its guard may have ended it by now.
    let _ = kill(agent, Signal::SIGCONT);
    let TwoHosts {
        scene,
        run,
        first,
        second,
    } = hosts;
    for task in ["t0", "t1"] {
        fs::write(scene.path(&format!("end.{task}")), "").unwrap();
    }
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(first.wait().0, 0);
    drop(second);
    assert_eq!(scene.begins(2).values().sum::<usize>(), 3);
}

const HOST_SCRIPT: &str = "#!/bin/sh\nsleep 0.5\n[ -z \"$BROKEN\" ] || exit 3\ntouch prepared.$HOST\n";

/// A task that succeeds only on a host whose script has ended.
const PREPARED_TASK: &str = "#!/bin/sh\n[ -e \"prepared.$HOST\" ] || exit 7\n";

impl Scene {
    /// Starts a master with a host script.
    fn start_prepared(&self, agents: &str, more: &[&str]) -> Run {
        let script = self.path("prepare");
        fs::write(&script, HOST_SCRIPT).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let words = ["--host-script", "./prepare", "--slots", "2"];
        let run = self.start(agents, &[&words, more].concat());
        wait_for_file(&self.path("x.dag.endpoint"));
        run
    }

    fn host(&self, name: &str, broken: bool) -> Run {
        let mut command = self.command(&["--agent", "x.dag.endpoint", "--host-name", name]);
        command.env("HOST", name);
        if broken {
            command.env("BROKEN", "1");
        }
        Run::new(command)
    }
}

/// No slot of a host starts a task while the script of the host runs.
#[test]
fn a_host_that_comes_late_is_prepared_first() {
    let scene = Scene::new(20, "0.2");
    let task = format!("{PREPARED_TASK}{}", TASK.trim_start_matches("#!/bin/sh\n"));
    fs::write(scene.path("task.sh"), task).unwrap();
    let run = scene.start_prepared("2", &[]);
    let first = scene.host("n1", false);
    scene.wait_for("begin", 2);
    let second = scene.host("n2", false);
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(scene.path("prepared.n2").exists());
    assert_eq!((first.wait().0, second.wait().0), (0, 0));
    assert_eq!(scene.begins(20).values().sum::<usize>(), 20);
}

#[test]
fn a_host_whose_script_fails_is_set_aside() {
    let scene = Scene::new(4, "0.5");
    let run = scene.start_prepared("2", &["--start-with", "2"]);
    let (good, bad) = (scene.host("good", false), scene.host("bad", true));
    // It leaves before the end of the run.
    let (code, stderr) = bad.wait();
    assert_eq!(code, 0, "{stderr}");
    let mut nodes = Command::new(testutils::programs::path("pmc"));
    let nodes = nodes.args(["nodes", "."]).current_dir(scene.0.path());
    let nodes = String::from_utf8(nodes.output().unwrap().stdout).unwrap();
    let line = nodes.lines().find(|line| line.starts_with("bad"));
    assert!(line.is_some_and(|line| line.contains("set aside")), "{nodes}");
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    let said = "The host bad is set aside: Host script failed with status 768";
    assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    assert_eq!(good.wait().0, 0);
    assert_eq!(scene.begins(4).values().sum::<usize>(), 4);
}

#[test]
fn a_run_on_whose_hosts_all_scripts_fail_ends_in_order() {
    let scene = Scene::new(1, "0");
    let run = scene.start_prepared("2", &["--jobstate-log"]);
    let agents = [scene.host("n1", true), scene.host("n2", true)];
    let (code, stderr) = run.wait();
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(
        stderr
            .matches("is set aside: Host script failed with status 768")
            .count(),
        1,
        "{stderr}"
    );
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("ABORT: Worker "), "{stderr}");
    assert!(last.ends_with(": Host script failed with status 768"), "{stderr}");
    assert!(agents.into_iter().all(|agent| agent.wait().0 == 0));
    assert_eq!(scene.log(), "");
    for file in ["x.dag.endpoint", "x.dag.agents"] {
        assert!(!scene.path(file).exists(), "{file}");
    }
}

/// It has a free slot whenever a task waits: before the first success elsewhere, it has failed all of them.
#[test]
fn a_host_that_fails_at_once_does_not_eat_the_attempts() {
    let scene = Scene::new(0, "0");
    let task = "#!/bin/sh\n[ \"$PMC_HOST_NAME\" = bad ] && exit 7\nsleep 0.3\n";
    fs::write(scene.path("task.sh"), task).unwrap();
    let lines = (0..24).map(|n| format!("TASK t{n} ./task.sh\n"));
    fs::write(scene.path("x.dag"), lines.collect::<String>()).unwrap();
    // Neither is it set aside, nor are there attempts to spare.
    let words = ["--launch", "env PMC_HOST_NAME={host}", "--tries", "2"];
    let run = scene.start("bad,n1,n2", &[&words[..], &["--bad-host-limit", "0"]].concat());
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
}

/// The peak of the memory, the exit code and the host's size come from the agent.
#[test]
fn expressions_change_the_request_of_the_next_attempt_in_an_agent() {
    let scene = Scene::new(0, "0");
    let dag = "TASK a -m 100 -t 3 --request-expression 'memory=pegasus_memory_mb * 9 if maxrss > 100 and exitcode == 3 \
               else 1' --request-expression cores=64 ./needs.sh\n";
    fs::write(scene.path("x.dag"), dag).unwrap();
    let script = "#!/bin/sh\necho $PMC_MEMORY $PMC_CPUS >> log\nhead -c 90000000 /dev/zero | tail -n 1 >/dev/null\n[ $PMC_MEMORY -ge 900 ] || exit 3\n";
    fs::write(scene.path("needs.sh"), script).unwrap();
    fs::set_permissions(scene.path("needs.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let (code, stderr) = scene
        .start(
            "1",
            &["--launch", "local", "--host-memory", "4000", "--host-cpus", "4"],
        )
        .wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(scene.log(), "100 1\n900 4\n", "{stderr}");
    assert!(
        stderr.contains("no host has what its expressions ask for: it requests 64 CPUs"),
        "{stderr}"
    );
}

/// The hosts of this test share a disk, so the program comes with the second one.
#[test]
fn a_program_that_is_missing_on_the_first_host_is_run_by_the_next_one() {
    let scene = Scene::new(0, "");
    fs::write(scene.path("x.dag"), "TASK a ./only-there a 0\n").unwrap();
    let run = scene.start("2", &["--tries", "2", "--start-with", "1"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let first = scene.host("first", false);
    let waits = || scene.pmc(&["why", "a", "."]).contains("resting");
    let begun = Instant::now();
    while !waits() {
        assert!(begun.elapsed() < PATIENCE, "its attempts are used up");
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::rename(scene.path("task.sh"), scene.path("only-there")).unwrap();
    let there = scene.host("second", false);
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!((first.wait().0, there.wait().0), (0, 0));
    scene.begins(1);
}

/// Nobody else comes: the task has failed, and its other attempts are left out.
#[test]
fn a_program_that_no_host_has_is_tried_once_on_each() {
    let scene = Scene::new(0, "");
    fs::write(scene.path("x.dag"), "TASK a ./missing\n").unwrap();
    let run = scene.start("2", &["--tries", "9", "--launch", "local"]);
    let (code, stderr) = run.wait();
    assert_eq!(code, 1, "{stderr}");
    let attempts = stderr.matches("Task a failed").count();
    assert!((1..=2).contains(&attempts), "{stderr}");
}

/// `--on` names a host that does not come.
#[test]
fn a_task_on_a_host_that_is_none_ends_the_run_with_a_message() {
    let scene = Scene::new(1, "0");
    fs::write(scene.path("x.dag"), "TASK t --on nowhere -N 1 ./task.sh t 0\n").unwrap();
    let (code, stderr) = scene
        .start("1", &["--launch", "local", "--join-timeout", "3"])
        .wait();
    assert_eq!(code, 76, "{stderr}");
    let said = "Task t needs 1 nodes, 0 are there";
    assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    assert_eq!(scene.log(), "");
}
