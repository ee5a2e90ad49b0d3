//! Tasks on nodes that have no directory in common save their state: copies on other nodes survive the loss
//! of a node, and the next attempt goes on from there.

use std::fs;
use std::path::{Path, PathBuf};

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
            "- {{type: job, name: work, id: {id}, arguments: [{id}], stdout: {id}.out, uses: [{uses}{{lfn: {id}.out, \
             type: output, stageOut: true}}]}}\n"
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
