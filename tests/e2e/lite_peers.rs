//! Nodes that give each other what lies in their caches.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testutils::node_faults::network::Node;

use crate::lite_nodes::{Grid, Nodes, Running, WORKFLOW, said};
use crate::support::command::Program;
use crate::support::programs::Build;

/// A text of this many bytes, whose first line is that of the other tests.
fn input(bytes: usize) -> String {
    "hello\n".repeat(bytes / 6)
}

/// How many bytes of the inputs the server has sent to jobs. Only jobs read the staging site.
fn sent(grid: &Grid) -> u64 {
    let log = fs::read_to_string(grid.path("server/logs/access")).expect("the log of the server");
    let requests = log
        .lines()
        .filter(|line| line.contains("\"GET /stage/") && line.contains("/in") && line.contains(".txt "));
    // ADDRESS - USER [TIME] "REQUEST" STATUS BYTES …
    let bytes = requests.map(|line| {
        line.split('"')
            .nth(2)?
            .split_ascii_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()
    });
    bytes.map(|bytes| bytes.expect("a number of bytes")).sum()
}

/// What `pmc status --data` says.
fn data(submit: &Path) -> Value {
    let status = Program::new(Build::Local.program("pmc"))
        .args(["status", "--data", "--json"])
        .arg(submit)
        .run();
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    status["data"].clone()
}

/// A number from the environment: figures of `docs/performance.md` are measured with others than the test.
fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn an_input_of_all_jobs_leaves_the_staging_site_once() {
    let jobs = number("PMC_PEER_JOBS", 12);
    let input = input(number("PMC_PEER_BYTES", 5_000_000));
    let mut grid = Grid::with_parts(jobs, "0.5", &input);
    grid.limit += Duration::from_secs(2 * jobs as u64);
    let submit = grid.plan("peers", Some(&format!("{}/stage", grid.archive())));
    // A file has at most a tenth of the cache's disk.
    let size = format!("{}k", 100_000.max(input.len() / 50));
    let code = grid.run(&submit, &size, Nodes::Near, |_| {});
    grid.check(&submit, code, 3);
    let (size, sent) = (input.len() as u64, sent(&grid));
    let data = data(&submit);
    println!("{jobs} jobs, {size} bytes: {sent} over the staging link; {data}");
    assert!(sent * 10 <= size * 13, "{sent} bytes for a file of {size}");
    let bytes = |key: &str| data[key].as_u64().expect("a number");
    // All nodes have run jobs; two of them got the file from another one.
    assert!(bytes("bytes_from_peers") >= 2 * size, "{data}");
    assert!(bytes("bytes_cached") >= 6 * size, "{data}");
}

/// Inputs of the workflow whose jobs follow their data.
const GROUPS: usize = 6;

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn jobs_start_where_their_inputs_are() {
    let mut grid = Grid::new("0", "hello\n");
    let (mut replicas, mut jobs) = (String::new(), String::new());
    let input = input(3_000_000);
    for group in 0..GROUPS {
        // Files with the same bytes would be one in a cache.
        let text = format!("{group}{input}");
        grid.write(&format!("server/root/inputs/in{group}.txt"), &text);
        let file = format!("in{group}.txt");
        replicas +=
            &format!("  - {{lfn: {file}, pfns: [{{site: archive, pfn: \"@ARCHIVE@/inputs/{file}\"}}]}}\n");
    }
    // Jobs with the same input are far from each other.
    for n in 0..10 * GROUPS {
        let file = format!("in{}.txt", n % GROUPS);
        jobs += &format!(
            "- {{type: job, name: work, id: p{n:02}, arguments: [head, {file}], stdout: out{n}, uses: [{{lfn: {file}, \
             type: input}}, {{lfn: out{n}, type: output, stageOut: true}}]}}\n"
        );
    }
    let head = WORKFLOW.replace("jobs:\n", &format!("{replicas}jobs:\n"));
    grid.write("workflow.yml", &format!("{head}{jobs}"));
    let submit = grid.plan("placed", Some(&format!("{}/stage", grid.archive())));
    let code = grid.run(&submit, "100m", Nodes::Near, |_| {});
    assert_eq!(code, 0, "{}", said(&submit));
    let data = data(&submit);
    let from_peers = data["bytes_from_peers"].as_u64().expect("a number");
    let (all, came) = ((GROUPS * input.len()) as u64, sent(&grid) + from_peers);
    // Anywhere, each of three nodes would get nearly each input. How many get one twice depends on which node
    // is free when.
    assert!(came >= all && came <= all * 2, "{came} of {all} bytes: {data}");
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn a_node_that_is_lost_while_it_gives_a_file_delays_the_others_only() {
    let input = input(20_000_000);
    let mut grid = Grid::new("0.5", &input);
    let submit = grid.plan("giver", Some(&format!("{}/stage", grid.archive())));
    let (mut is_slow, mut is_lost) = (false, false);
    let code = grid.run(
        &submit,
        "200m",
        Nodes::Near,
        |Running { network, nodes, .. }| {
            if !std::mem::replace(&mut is_slow, true) {
                for node in nodes.iter().flatten() {
                    network.slow_down(node, 4).expect("a limit");
                }
            }
            if is_lost {
                return;
            }
            let giver = nodes.iter().flatten().flat_map(Node::peers).find_map(|peer| {
                let is_it = |node: &Option<Node>| node.as_ref().is_some_and(|node| node.address() == peer);
                nodes.iter().position(is_it)
            });
            if let Some(giver) = giver {
                let node = nodes[giver].take().expect("it was there");
                network.cut(&node, true).expect("its cable");
                is_lost = true;
            }
        },
    );
    assert!(is_lost, "no node gave another one anything: {}", said(&submit));
    grid.check(&submit, code, 2);
    let (tasks, jobs) = {
        let monitored = grid.monitored(&submit);
        monitored.replay();
        monitored.statistics()
    };
    assert_eq!((tasks.succeeded, tasks.failed, jobs.failed), (13, 0, 0));
    // Lost with its node, it came from the staging site once more.
    let (size, sent) = (input.len() as u64, sent(&grid));
    assert!(sent * 10 <= size * 23, "{sent} bytes for a file of {size}");
}
