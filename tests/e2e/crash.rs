//! Rounds of the crash harness (`cargo xtask crash`): programs are killed, the disk gets full, directories
//! disappear. `PMC_CRASH_ROUNDS` sets the number of rounds (default 60, as many of them as start within a
//! minute), `PMC_CRASH_SEED` the first seed.

use testutils::crash::{self, Settings};

use crate::support::harness::{limit, setting};

#[test]
#[ignore = "takes time: tests/run e2e"]
fn faults_lose_double_and_leave_nothing() {
    let settings = Settings {
        programs: testutils::programs::directory().to_owned(),
        rounds: setting("PMC_CRASH_ROUNDS", 60),
        seed: setting("PMC_CRASH_SEED", 1),
        limit: limit("PMC_CRASH_ROUNDS"),
        only: None,
    };
    let report = crash::run(&settings, &mut |findings, kept| {
        for finding in findings {
            println!("{finding}");
        }
        if let Some(kept) = kept {
            println!("    kept: {}", kept.display());
        }
    });
    println!("{report}");
    assert!(
        report.findings.is_empty(),
        "see above; repeat with PMC_CRASH_SEED"
    );
    assert!(report.skipped.is_empty(), "a part was not tested, see above");
}
