//! Tasks on nodes that have no directory in common save their state: copies on other nodes survive the loss
//! of a node, and the next attempt goes on from there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testutils::node_faults::network::Node;

use crate::lite_nodes::{Grid, Nodes, Running, WORKFLOW, said};
use crate::support::programs::Build;

/// Steps of the program.
const STEPS: u64 = 60;

/// The program counts, and saves its state again and again: with a tool, or only in a file of type
/// `checkpoint`.
const COUNT: &str = r#"#!/bin/sh
step=0 sum=0
if [ "$1" = files ] || @PMC@ checkpoint get state state.txt; then
    [ ! -s state.txt ] || read -r step sum <state.txt
fi
echo "begins after $step"
begun=$step
while [ "$step" -lt @STEPS@ ]; do
    step=$((step + 1)) sum=$((sum + step))
    sleep 0.1
    @STEP@
    if [ $((step % 5)) = 0 ]; then
        echo "$step $sum" >state.new && mv state.new state.txt
        [ "$1" = files ] || @PMC@ checkpoint put state state.txt || exit 3
    fi
done
[ "$1" = files ] || @PMC@ message "counted to $step" || exit 4
echo "The sum is $sum"
"#;

/// The jobs of the workflow, as tasks.
const JOBS: [&str; 2] = ["work_tool", "work_files"];

/// The lines of the statistics.
fn records(submit: &Path) -> Vec<Value> {
    let dag = crate::support::pegasus::only_file(submit, ".dag");
    let text = fs::read_to_string(format!("{}.checkpoints.jsonl", dag.display())).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.collect()
}

/// Makes a workflow of two jobs that count, and do this in each step.
fn prepare(grid: &Grid, step: &str) {
    let program = COUNT
        .replace("@PMC@", &Build::Local.program("pmc").display().to_string())
        .replace("@STEPS@", &STEPS.to_string())
        .replace("@STEP@", step);
    grid.write("server/root/inputs/work", &program);
    let job = |id: &str, uses: &str| {
        format!(
            "- {{type: job, name: work, id: {id}, arguments: [{id}], stdout: {id}.out, \
             uses: [{uses}{{lfn: {id}.out, type: output, stageOut: true}}]}}\n"
        )
    };
    let jobs = job("tool", "") + &job("files", "{lfn: state.txt, type: checkpoint}, ");
    grid.write("workflow.yml", &format!("{WORKFLOW}{jobs}"));
}

/// The steps after which the last attempts of the jobs have begun. All have counted right.
fn begun_after(grid: &Grid, submit: &Path, code: i32) -> [u64; 2] {
    assert_eq!(code, 0, "{}", said(submit));
    JOBS.map(|job| {
        let id = job.trim_start_matches("work_");
        let output = fs::read_to_string(grid.path(&format!("server/root/outputs/{id}.out")));
        let output = output.expect("the output");
        let sum = STEPS * (STEPS + 1) / 2;
        let is_right = output.contains(&format!("The sum is {sum}\n"));
        assert!(is_right, "{job}: {output}\n{}", said(submit));
        let mut lines = output.lines().rev();
        let begun = lines.find_map(|line| line.strip_prefix("begins after "));
        begun.expect("a line").parse().expect("a number")
    })
}

/// Takes the node away that has written these lines.
fn node_of(nodes: &mut [Option<Node>], record: &Value) -> Node {
    let host = record["host"].as_str().expect("a name");
    let number: usize = host.trim_start_matches('n').parse().expect("a number");
    nodes[number - 1].take().expect("it was there")
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn a_task_goes_on_elsewhere_when_its_node_is_lost() {
    let mut grid = Grid::new("0", "hello\n");
    prepare(&grid, "");
    let submit = grid.plan("saves", Some(&format!("{}/stage", grid.archive())));
    let mut lost = None;
    let code = grid.run(
        &submit,
        "10m",
        Nodes::ApartAndNear,
        |Running { network, nodes, .. }| {
            // The third series of a job is there, so the second one or the first is safe. The fourth node
            // is needed at the end.
            let records = records(&submit);
            let is_third = |record: &&Value| record["series"] == 3 && record["host"] != "n4";
            if let Some(record) = records.iter().rfind(is_third)
                && records
                    .iter()
                    .any(|record| record["task"] == JOBS[1] && record["series"] == 3)
                && lost.is_none()
            {
                let node = node_of(nodes, record);
                network.cut(&node, true).expect("its cable");
                lost = Some((record["task"].clone(), record["host"].clone()));
            }
        },
    );
    let begun = begun_after(&grid, &submit, code);
    let (task, host) = lost.unwrap_or_else(|| panic!("no series was seen: {}", said(&submit)));
    let job = JOBS.iter().position(|job| task == **job).expect("a job");
    assert!(begun[job] >= 5, "{task} {begun:?}\n{}", said(&submit));
    let records = records(&submit);
    let last = records.iter().rfind(|record| record["task"] == task);
    assert_ne!(last.expect("a line")["host"], host);
    check_that_nothing_is_left(&submit);
}

/// Neither files nor the store are left.
fn check_that_nothing_is_left(submit: &Path) {
    assert!(!store(submit).exists());
    for name in ["left.n1", "left.n2", "left.n3"] {
        let left = fs::read_to_string(submit.join(name)).unwrap_or_default();
        assert!(!left.contains("pmc-checkpoints"), "{name}: {left}");
    }
}

/// The store beside the DAG file.
fn store(submit: &Path) -> PathBuf {
    let dag = crate::support::pegasus::only_file(submit, ".dag");
    format!("{}.checkpoints", dag.display()).into()
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn what_a_run_has_saved_on_nodes_outlives_run_and_nodes() {
    let mut grid = Grid::new("0", "hello\n");
    // The first attempt does not get further.
    prepare(
        &grid,
        r#"[ "$step" != 32 ] || [ "$begun" -gt 0 ] || exec sleep 100"#,
    );
    let submit = grid.plan("ends", Some(&format!("{}/stage", grid.archive())));
    let has_saved = |submit: &Path| {
        let records = records(submit);
        let has = |job: &&str, series: u64| {
            let is_of = |record: &&Value| record["task"] == **job;
            records
                .iter()
                .filter(is_of)
                .any(|record| record["series"] == series)
        };
        has(&JOBS[0], 6) && has(&JOBS[1], 2)
    };
    let mut is_told = false;
    let code = grid.run(&submit, "10m", Nodes::ApartAndNear, |running| {
        if !is_told && has_saved(&submit) {
            is_told = true;
            running.signal_all(Signal::SIGTERM);
        }
    });
    assert!(is_told && code != 0, "{code}: {}", said(&submit));
    assert!(store(&submit).exists(), "{}", said(&submit));
    // The next run has other nodes: the disks of these are gone.
    let code = grid.run(&submit, "10m", Nodes::ApartAndNear, |_| {});
    let begun = begun_after(&grid, &submit, code);
    assert_eq!(begun, [30, 30], "{}", said(&submit));
    check_that_nothing_is_left(&submit);
}

/// A program that saves its state every 20 steps of 0.1 s, in a file of type `checkpoint` that has a byte for
/// each step.
const SAVING: &str = r#"#!/bin/sh
step=0
[ ! -s state.txt ] || step=$(wc -c <state.txt)
while [ "$step" -lt @STEPS@ ]; do
    step=$((step + 1))
    sleep 0.1
    if [ $((step % 20)) = 0 ]; then
        head -c "$step" /dev/zero >state.new && mv state.new state.txt
    fi
done
echo "counted to $step"
"#;

/// A job that loses its nodes: where it is, and what that costs.
#[derive(Default)]
struct Losses {
    /// The node that is cut off, and the steps that were saved when that happened.
    away: Option<(usize, u64)>,
    /// Steps that were saved at each loss, and those after which the next attempt has begun.
    seen: Vec<(u64, u64)>,
    /// Files that were written up to the last loss.
    written: usize,
}

impl Losses {
    /// Cuts off the node of the job when it has saved twice there, and plugs it in again when the job has
    /// saved elsewhere.
    fn go_on(&mut self, submit: &Path, kills: usize, running: &mut Running<'_>) {
        let records = records(submit);
        let of_state = |record: &&Value| record["prefix"] == "pegasusLite0";
        let used = |usage: &str| {
            let of_usage = records.iter().filter(of_state);
            of_usage
                .filter(|record| record["use"] == usage)
                .collect::<Vec<_>>()
        };
        let bytes = |record: &Value| record["bytes"].as_u64().expect("a number");
        let number = |record: &Value| {
            let host = record["host"].as_str().expect("a name");
            host.trim_start_matches('n').parse::<usize>().expect("a number") - 1
        };
        let (written, read) = (used("written"), used("read"));
        let Some(last) = written.last() else { return };
        let node = |at: usize| running.nodes[at].as_ref().expect("a node");
        if let Some((at, saved)) = self.away {
            let is_elsewhere = written.len() > self.written && number(last) != at;
            if let Some(read) = read.last().filter(|_| is_elsewhere) {
                running.network.cut(node(at), false).expect("its cable");
                self.away = None;
                self.seen.push((saved, bytes(read)));
                self.written = written.len();
            }
        } else if self.seen.len() < kills && written.len() >= self.written + 2 {
            let at = number(last);
            running.network.cut(node(at), true).expect("its cable");
            self.away = Some((at, bytes(last)));
            self.written = written.len();
        }
    }
}

/// The node of the job is lost again and again: twice, or `PMC_TEST_KILLS` times. What is saved every two
/// seconds is not counted for more than four seconds again. On a machine that has other work, too, the copy
/// of the newest file may come later, so only a run with the variable is measured by that.
#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn a_job_that_saves_every_two_seconds_loses_little_with_each_node() {
    let wanted = std::env::var("PMC_TEST_KILLS").ok();
    let is_measured = wanted.is_some();
    let kills: u64 = wanted.and_then(|kills| kills.parse().ok()).unwrap_or(2);
    let steps = 60 + 100 * kills;
    let mut grid = Grid::new("0", "hello\n");
    grid.limit += Duration::from_secs(40) * u32::try_from(kills).expect("a few");
    grid.write(
        "server/root/inputs/work",
        &SAVING.replace("@STEPS@", &steps.to_string()),
    );
    let job = "- {type: job, name: work, id: long, stdout: long.out, \
               uses: [{lfn: state.txt, type: checkpoint}, {lfn: long.out, type: output, stageOut: true}]}\n";
    grid.write("workflow.yml", &format!("{WORKFLOW}{job}"));
    let submit = grid.plan("loses", Some(&format!("{}/stage", grid.archive())));
    let mut losses = Losses::default();
    let begun = Instant::now();
    let code = grid.run(&submit, "10m", Nodes::ApartAndNear, |running| {
        losses.go_on(&submit, usize::try_from(kills).expect("a few"), running);
    });
    assert_eq!(code, 0, "{}", said(&submit));
    let output = fs::read_to_string(grid.path("server/root/outputs/long.out")).expect("the output");
    assert_eq!(output, format!("counted to {steps}\n"));
    let Losses { seen, .. } = losses;
    assert_eq!(seen.len() as u64, kills, "{}", said(&submit));
    println!("{steps} steps, {seen:?}, {:.0} s", begun.elapsed().as_secs_f64());
    let at_most = if is_measured { 20 } else { 60 };
    for (saved, begins) in &seen {
        let is_little = *begins > 0 && begins + at_most >= *saved;
        assert!(is_little, "{seen:?} {}", said(&submit));
    }
    check_that_nothing_is_left(&submit);
}
