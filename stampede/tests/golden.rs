//! The databases of recorded runs are those that the original's monitoring made.

use std::path::Path;

use testutils::golden::{self, Case, Problem, stampede};

fn compare(case: &Case) -> Vec<Problem> {
    let recorded = tempfile::tempdir().expect("a directory");
    case.unpack("executed", recorded.path());
    let loaded = stampede::load(
        recorded.path(),
        Path::new(testutils::programs::path("pmc-monitord")),
    );
    stampede::compare(&stampede::expected(case), &loaded.dump, &[])
}

#[test]
fn databases_are_those_of_the_original() {
    golden::check("stampede", golden::processors(), compare);
}

#[test]
fn other_expectations_are_reported() {
    let mut case = Case::read("stampede", "success");
    let before = compare(&case).len();
    for file in &mut case.archive.files {
        if file.path == "expected.json" {
            file.content = file
                .content
                .replace("\"WORKFLOW_TERMINATED\"", "\"WORKFLOW_STARTED\"");
        }
    }
    let problems = compare(&case);
    assert_eq!(problems.len(), before + 1);
    let reported = "workflowstate/1/state: \"WORKFLOW_STARTED\", got \"WORKFLOW_TERMINATED\"";
    assert!(problems.iter().any(|problem| problem.what == reported));
}
