//! The planner comes to the plans of the original in the golden cases.

use serde_json::Value;

use crate::support::golden::{Differences, cases, golden};
use crate::support::programs::{Flavour, python};

#[test]
#[ignore = "needs PyYAML: tests/run e2e"]
fn plans_are_those_of_the_original() {
    let results = tempfile::NamedTempFile::new().expect("a temporary file");
    let said = python()
        .arg("-I")
        .arg(golden("tools/plan_case.py"))
        .arg("--planner")
        .arg(format!(
            "env PEGASUS_HOME=@PEGASUS_HOME@ \"{}\"",
            Flavour::Local.program("pmc-plan").display()
        ))
        // The hashed folders follow an accidental order; any failure code will do.
        .args(["--any-failure", "--flatten", "--fresh-home", "--full", "--json"])
        .arg(results.path())
        .arg("--all")
        .arg(golden("planner"))
        .limit(600)
        .go();
    let text = std::fs::read_to_string(results.path()).expect("the results");
    let results: Vec<Value> =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {}", said.account()));
    let names = cases("planner");
    assert_eq!(results.len(), names.len(), "cases judged: {}", said.account());
    let mut problems = Vec::new();
    for result in &results {
        let case = result["case"].as_str().unwrap_or_default();
        for check in result["checks"].as_array().into_iter().flatten() {
            for problem in check["problems"].as_array().into_iter().flatten() {
                let place = (check["group"].as_str(), check["name"].as_str(), problem.as_str());
                let (Some(group), Some(name), Some(problem)) = place else {
                    panic!("odd result: {check}")
                };
                problems.push((case.to_owned(), format!("[{group}] {name}: {problem}")));
            }
        }
    }
    let report = Differences::read("planner.differences").judge(Flavour::Local, &names, &problems);
    assert!(report.is_empty(), "unexpected:\n{report}");
}
