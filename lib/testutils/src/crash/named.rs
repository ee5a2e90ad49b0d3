//! Rounds in which one process of a run is killed that plays a part of its own: a guard, the planner of a
//! nested workflow, a tool that redirects output.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::Damage;
use super::place::{Place, Victim};
use crate::redirected;

/// Tasks of a round with agents.
const TASKS: u64 = 24;

/// Variable that an agent has and its guard has not.
const OF_AGENT: &str = "PMC_AGENT_LIFELINE";

/// It notes that it has ended, and that another attempt of it still runs.
const TASK: &str = "#!/bin/sh
[ -e pid.$1 ] && kill -0 $(cat pid.$1) 2>/dev/null && echo \"overlap $1\" >>log
echo $$ >pid.$1
sleep 0.$2
echo \"end $1\" >>log
";

/// A guard is killed: its agent ends its tasks, and the other agent runs them again.
pub(super) fn guard(place: &mut Place) {
    place.write("task.sh", TASK);
    let dag: String = (0..TASKS)
        .map(|n| format!("TASK t{n} /bin/sh task.sh t{n} {}\n", 1 + n % 3))
        .collect();
    place.write("x.dag", &dag);
    let options = [
        "--agents",
        "2",
        "--launch",
        "local",
        "--slots",
        "2",
        "--agent-timeout",
        "3",
        "x.dag",
    ];
    let mut running = place.start(&mut place.command("pegasus-mpi-cluster", options));
    // Before the first tasks run, or while they do.
    let moment = place.moment(1500);
    let ended = running.wait(moment);
    let is_guard =
        |process: &super::place::Process| process.has_argument("--agent") && !process.has_variable(OF_AGENT);
    if ended.is_none() {
        place.kill_one(&mut running, "guard", is_guard);
    }
    if !place.finish(&mut running) {
        place.find(Damage::Lost, "the run does not succeed without one of its guards");
    }
    let log = place.read("log");
    for line in log.lines().filter(|line| line.starts_with("overlap")) {
        place.find(Damage::Doubled, line);
    }
    let ended: BTreeSet<&str> = log.lines().filter_map(|line| line.strip_prefix("end ")).collect();
    for task in (0..TASKS).map(|n| format!("t{n}")) {
        if !ended.contains(task.as_str()) {
            place.find(Damage::Lost, task);
        }
    }
}

const OUTER: &str = r#"pegasus: "5.0"
name: outer
jobs:
- {type: job, id: A, name: make, uses: [{lfn: made.yml, type: output, stageOut: false, registerReplica: false}]}
- type: pegasusWorkflow
  id: S
  file: made.yml
  arguments: [--basename, made]
  uses: [{lfn: made.yml, type: input, forPlanning: true}, {lfn: end, type: output, stageOut: true, registerReplica: false}]
transformationCatalog:
  transformations:
  - {name: make, sites: [{name: local, type: installed, pfn: "${PMC_WORKFLOW_DIR}/make"}]}
"#;

/// Makes the nested workflow, with a job that notes that it has run.
const MAKE: &str = r#"#!/bin/sh
cat >made.yml <<END
pegasus: "5.0"
name: inner
transformationCatalog:
  transformations:
  - {name: end, sites: [{name: local, type: installed, pfn: "@TOP@/end"}]}
jobs:
- {type: job, id: C, name: end, uses: [{lfn: end, type: output, stageOut: true, registerReplica: false}]}
END
echo make >>@TOP@/ran
"#;

const END: &str = "#!/bin/sh\necho end >>@TOP@/ran\necho done >end\n";

/// The planner of a nested workflow is killed, once or twice. That fails an attempt, and the run plans it
/// again, or the user continues.
pub(super) fn nested_planner(place: &mut Place) {
    let top = place.path("").display().to_string();
    let top = top.trim_end_matches('/');
    for (name, text) in [("workflow.yml", OUTER), ("make", MAKE), ("end", END)] {
        place.write(name, &text.replace("@TOP@", top));
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let begin = ["run", "-q", "--dir", "runs", "workflow.yml"];
    let resume = ["resume", "-q", "runs/outer/run0001"];
    let mut words = &begin[..];
    let mut is_done = false;
    for _ in 0..=place.random.below(2) {
        let mut running = place.start(&mut place.command("pmc", words));
        words = &resume;
        place.kill_one(&mut running, "planner", |process| {
            process.has_argument("--deferred")
        });
        is_done = place.finish(&mut running);
        if is_done {
            break;
        }
    }
    if !is_done && !place.run(&mut place.command("pmc", words)) {
        place.find(Damage::Lost, "the workflow cannot be completed");
    }
    match place.read("ran").as_str() {
        "make\nend\n" => {}
        ran => place.find(Damage::Wrong, format!("what has run: {ran:?}")),
    }
    if place.read("runs/outer/run0001/output/end") != "done\n" {
        place.find(Damage::Lost, "the output of the nested workflow");
    }
}

/// Tools that redirect the output of a task are killed: each byte is in the file or was delivered, once.
pub(super) fn attach(place: &mut Place) {
    const KILLS: usize = 4;
    place.write("counts", redirected::COUNTS);
    place.write("w.dag", "TASK counts --io relay /bin/sh counts\n");
    let options = ["--workers", "2", "--per-task-stdio", "--jobstate-log", "w.dag"];
    let mut running = place.start(&mut place.command("pegasus-mpi-cluster", options));
    let begun = Instant::now();
    while !place.read("jobstate.log").contains("EXECUTE") && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (pmc, directory) = (place.program("pmc"), place.path(""));
    let killed = catch_unwind(AssertUnwindSafe(|| {
        redirected::kill_tools(&pmc, &directory, KILLS)
    }));
    place.write("stop", "");
    let is_done = place.finish(&mut running);
    for _ in 0..KILLS {
        place.fault("SIGKILL pmc attach");
    }
    match killed {
        Ok(killed) if is_done => {
            if catch_unwind(AssertUnwindSafe(|| killed.check())).is_err() {
                place.find(Damage::Torn, "the output of the task; see above");
            }
        }
        Ok(_) => place.find(Damage::Lost, "the run fails when its tools are killed"),
        Err(_) => {
            place.find(Damage::Wrong, "a tool gets no output; see above");
            place.kill(&mut running, Victim::All);
        }
    }
}
