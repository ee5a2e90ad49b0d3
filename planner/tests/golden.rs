//! The planner makes the plans of the original in the golden cases.

use std::path::Path;

use testutils::golden::{self, Case, planner};

fn program() -> &'static str {
    testutils::programs::path("pmc-plan")
}

#[test]
fn plans_are_those_of_the_original() {
    golden::check("planner", golden::processors(), |case| {
        planner::compare(case, Path::new(program()))
    });
}

#[test]
fn plans_without_a_shared_file_system_are_those_of_the_original() {
    golden::check("planner-lite", golden::processors(), |case| {
        planner::compare(case, Path::new(program()))
    });
}

#[test]
fn plans_with_nested_sub_workflows_are_those_of_the_original() {
    let nested = [("_PEGASUS__SUBWORKFLOW", "nested")];
    golden::check("planner-subworkflow", golden::processors(), |case| {
        planner::compare_with(case, Path::new(program()), &nested)
    });
}

#[test]
fn plans_for_htcondor_are_those_of_the_original() {
    golden::check("planner-condor", golden::processors(), |case| {
        planner::compare_condor(case, Path::new(program()))
    });
}

#[test]
fn other_expectations_are_reported() {
    let mut case = Case::read("planner", "diamond");
    for file in &mut case.archive.files {
        if file.path.ends_with(".dag") {
            file.content = file
                .content
                .replace("EDGE preprocess_ID0000001 ", "EDGE analyze_ID0000004 ");
        } else if file.path.ends_with("/diamond-0.cache") {
            file.path += ".other";
        }
    }
    let problems = planner::compare(&case, Path::new(program()));
    let reported = |start: &str| problems.iter().any(|problem| problem.what.starts_with(start));
    assert!(reported(
        "[dag] submit/@USER@/pegasus/diamond/run0001/diamond-0.dag: missing EDGE: analyze"
    ));
    assert!(reported(
        "[dag] submit/@USER@/pegasus/diamond/run0001/diamond-0.dag: extra   EDGE: preprocess"
    ));
    assert!(reported(
        "[tree] file names: missing file submit/@USER@/pegasus/diamond/run0001/diamond-0.cache.other"
    ));
    assert!(reported(
        "[tree] file names: extra   file submit/@USER@/pegasus/diamond/run0001/diamond-0.cache"
    ));
    // The case fails that is not expected to.
    for file in &mut case.archive.files {
        if file.path == "expected/exit" {
            file.content = "1\n".to_owned();
        }
    }
    let problems = planner::compare(&case, Path::new(program()));
    assert_eq!(problems[0].what, "[exit] exit: exit code 1 -> 0");
}
