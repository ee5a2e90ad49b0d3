//! The validator of RO-Crate accepts what `pmc report --ro-crate` writes.

use std::fs;

use crate::support::command::Program;
use crate::support::programs::{Build, project, validator_bin};

#[test]
#[ignore = "needs roc-validator from PyPI: tests/run e2e"]
fn the_provenance_of_a_run_is_a_valid_crate() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let work = directory.path();
    let pmc = || Program::new(Build::Local.program("pmc")).in_directory(work);
    pmc().args(["init", "--template", "fan-out", "w"]).run().ok();
    pmc().args(["run", "-q", "w/workflow.yml"]).run().ok();
    pmc().args(["report", "-q", "--ro-crate", "crate"]).run().ok();
    let validate = || {
        Program::new(validator_bin().join("python"))
            .arg(project().join("tests/e2e/ro_crate/validate.py"))
            .arg(work.join("crate"))
            .env("HOME", work)
            .run()
    };
    let valid = validate().ok();
    assert!(valid.stdout.contains("0 issues in "), "{}", valid.details());
    // The validator looks at the files, too.
    fs::remove_file(work.join("crate/inputs/text-2.txt")).expect("the input is in the crate");
    assert_eq!(validate().code(), 1);
}
