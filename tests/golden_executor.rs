//! The executor does what the original did in the golden cases, on threads of one process and in an agent.

use testutils::golden::{self, Case, executor};

/// One rank of the original is the master.
fn start(ranks: u32) -> Vec<String> {
    let workers = (ranks - 1).to_string();
    let program = testutils::programs::path("pegasus-mpi-cluster");
    [program, "--workers", &workers].map(str::to_owned).to_vec()
}

#[test]
fn executor_does_what_the_original_did() {
    // Most cases wait most of the time.
    golden::check("executor", 4 * golden::processors(), |case| {
        executor::compare(case, &start)
    });
}

/// One agent on this machine, with a slot for each worker of the original.
fn start_agent(ranks: u32) -> Vec<String> {
    let slots = (ranks - 1).to_string();
    let program = testutils::programs::path("pegasus-mpi-cluster");
    let words = [program, "--agents", "1", "--launch", "local", "--slots", &slots];
    words.map(str::to_owned).to_vec()
}

/// Cases that are refused before the first agent joins. The files for the output of workers are then missing.
const WITHOUT_WORKERS: [&str; 3] = ["cli-errors", "dag-rejected", "redirect-same"];

/// Returns whether the lines of a difference are equal but for the CPUs in the summary.
fn differs_in_cpus_only(detail: &str) -> bool {
    let lines = |sign: char| -> Vec<&str> {
        let lines = detail.lines().filter_map(|line| line.strip_prefix(sign));
        lines
            .map(|line| line.split(" cpus=").next().unwrap_or(line))
            .collect()
    };
    let expected = lines('-');
    expected.len() == 1 && expected[0].starts_with("[cluster-summary ") && expected == lines('+')
}

#[test]
fn executor_with_an_agent_does_what_the_original_did() {
    golden::check("executor", 4 * golden::processors(), |case| {
        let mut problems = executor::compare(case, &start_agent);
        let has_no_files = WITHOUT_WORKERS.contains(&case.name.as_str());
        problems.retain(|problem| !has_no_files || problem.what != "files");
        // The original always says 0. A master with agents knows the CPUs of its hosts.
        problems
            .retain(|problem| !problem.what.starts_with("stdout") || !differs_in_cpus_only(&problem.detail));
        problems
    });
}

#[test]
fn other_expectations_are_reported() {
    let mut case = Case::read("executor", "diamond");
    for file in &mut case.archive.files {
        match file.path.as_str() {
            "expected/exit" => file.content = "1\n".to_owned(),
            "expected/files" => file.content += "new      file  0644 other\n",
            "expected/stdout" => file.content = file.content.replace("this is left", "this is not"),
            "expected/tree/case.dag.rescue" => file.content += "DONE other\n",
            _ => {}
        }
    }
    let problems = executor::compare(&case, &start);
    let what: Vec<&str> = problems.iter().map(|problem| problem.what.as_str()).collect();
    assert_eq!(what, ["exit", "files", "stdout", "file case.dag.rescue"]);
    assert!(
        problems[0].detail.starts_with("@@ line 1\n-1\n+0\n"),
        "{}",
        problems[0].detail
    );
}
