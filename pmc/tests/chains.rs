//! Random faults while batch jobs follow each other.

use std::time::Duration;

use testutils::chains::{self, Settings};
use testutils::programs;

/// As many as begin in this time: one takes about fifteen seconds, and most of that is waiting.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn faults_in_a_chain_of_jobs_need_no_hand() {
    let settings = Settings {
        programs: programs::directory().to_owned(),
        rounds: 20,
        seed: 1,
        limit: LIMIT,
        at_once: 7,
    };
    let report = chains::run(&settings, &|line| println!("{line}")).expect("the harness runs");
    assert!(
        report.rounds > 0 && report.findings.is_empty(),
        "{:#?}",
        report.findings
    );
}
