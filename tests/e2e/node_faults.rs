//! Rounds of the harness for lost nodes (`cargo xtask node-faults`): nodes are switched off, cut off,
//! stopped and killed, and so is the master. `PMC_NODE_ROUNDS` sets the number of rounds (default 60, as
//! many of them as start within a minute), `PMC_NODE_SEED` the first seed, `PMC_MASTER_KILLS` how often
//! the master is killed in a run (default 20).

use testutils::node_faults::{self, Settings};

use crate::support::harness::{limit, setting};
use crate::support::programs::venv_bin;

fn check(settings: &Settings) {
    let report = node_faults::run(settings);
    println!("{report}");
    assert!(report.findings.is_empty(), "see above; repeat with PMC_NODE_SEED");
    assert!(report.skipped.is_empty(), "a part was not tested, see above");
}

#[test]
#[ignore = "needs network namespaces and Pegasus' monitoring: tests/run e2e"]
fn lost_nodes_cost_only_their_tasks() {
    check(&Settings {
        rounds: setting("PMC_NODE_ROUNDS", 60),
        seed: setting("PMC_NODE_SEED", 1),
        limit: limit("PMC_NODE_ROUNDS"),
        monitord: Some(venv_bin().join("pegasus-monitord")),
        ..Settings::new(testutils::programs::directory())
    });
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn nothing_starts_again_when_masters_die() {
    let kills = setting("PMC_MASTER_KILLS", 20);
    check(&Settings {
        rounds: 1,
        // A busy machine must not lose an agent.
        lease: 30,
        monitord: Some(venv_bin().join("pegasus-monitord")),
        master_kills: u32::try_from(kills).expect("a small number"),
        ..Settings::new(testutils::programs::directory())
    });
}
