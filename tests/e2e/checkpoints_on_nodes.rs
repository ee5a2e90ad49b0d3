//! Tasks on nodes that have no directory in common save their state: copies on other nodes survive the loss
//! of a node, and the next attempt goes on from there.

use std::fs;
use std::path::Path;

use serde_json::Value;
use testutils::node_faults::network::Node;

use crate::lite_nodes::{Grid, Nodes, Running, WORKFLOW, said};
use crate::support::programs::Build;

/// Steps of the program.
const STEPS: u64 = 60;

/// The program counts, and saves its state again and again.
const COUNT: &str = r#"#!/bin/sh
step=0 sum=0
if @PMC@ checkpoint get state state.txt; then read -r step sum <state.txt; fi
echo "begins after $step"
while [ "$step" -lt @STEPS@ ]; do
    step=$((step + 1)) sum=$((sum + step))
    sleep 0.1
    if [ $((step % 5)) = 0 ]; then
        echo "$step $sum" >state.txt
        @PMC@ checkpoint put state state.txt || exit 3
    fi
done
@PMC@ message "counted to $step" || exit 4
echo "The sum is $sum"
"#;

/// The lines of the statistics.
fn records(submit: &Path) -> Vec<Value> {
    let dag = crate::support::pegasus::only_file(submit, ".dag");
    let text = fs::read_to_string(format!("{}.checkpoints.jsonl", dag.display())).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.collect()
}

/// Makes a workflow of one job that runs this program.
fn prepare(grid: &Grid, program: &str, uses: &str) {
    let program = program
        .replace("@PMC@", &Build::Local.program("pmc").display().to_string())
        .replace("@STEPS@", &STEPS.to_string());
    grid.write("server/root/inputs/work", &program);
    let job = format!(
        "- {{type: job, name: work, id: count, arguments: [], stdout: total, uses: [{uses}{{lfn: total, type: output, \
         stageOut: true}}]}}\n"
    );
    grid.write("workflow.yml", &format!("{WORKFLOW}{job}"));
}

/// The output of the job, which has counted right.
fn output(grid: &Grid, submit: &Path, code: i32) -> String {
    assert_eq!(code, 0, "{}", said(submit));
    let output = fs::read_to_string(grid.path("server/root/outputs/total")).expect("the output");
    let sum = STEPS * (STEPS + 1) / 2;
    assert!(output.contains(&format!("The sum is {sum}\n")), "{output}");
    output
}

/// The step after which the last attempt has begun.
fn begun_after(output: &str) -> u64 {
    let last = output
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("begins after "));
    last.expect("a line").parse().expect("a number")
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
    prepare(&grid, COUNT, "");
    let submit = grid.plan("saves", Some(&format!("{}/stage", grid.archive())));
    let mut lost = None;
    let code = grid.run(
        &submit,
        "10m",
        Nodes::ApartAndNear,
        |Running { network, nodes, .. }| {
            let records = records(&submit);
            // The fourth series is there, so the third one or an older one is safe.
            if let Some(record) = records.iter().find(|record| record["series"] == 4)
                && lost.is_none()
            {
                let node = node_of(nodes, record);
                network.cut(&node, true).expect("its cable");
                lost = Some(record["host"].clone());
            }
        },
    );
    let output = output(&grid, &submit, code);
    let lost = lost.unwrap_or_else(|| panic!("no series was seen: {}", said(&submit)));
    assert!(begun_after(&output) >= 5, "{output}\n{}", said(&submit));
    let last = records(&submit).pop().expect("a line");
    assert_ne!(last["host"], lost);
    // Nothing is left, neither of files nor of the store.
    let dag = crate::support::pegasus::only_file(&submit, ".dag");
    assert!(!Path::new(&format!("{}.checkpoints", dag.display())).exists());
    for name in ["left.n1", "left.n2", "left.n3"] {
        let left = fs::read_to_string(submit.join(name)).unwrap_or_default();
        assert!(!left.contains("pmc-checkpoints"), "{name}: {left}");
    }
}
