//! Golden cases of the planner: a workflow with catalogs and properties, and the plan, compared by its
//! meaning.

mod compare;
mod condor;
mod dag;
mod events;
mod lite;
mod normalize;
mod run;
mod yaml;

use std::collections::BTreeMap;
use std::path::Path;

use super::text::regex;
use super::{Case, Problem};
pub use run::{FIXED_TIME, fill};

/// The files of a plan, by normalized path, with normalized content.
type Tree = BTreeMap<String, String>;

/// Plans a case and compares the plan with the one that the case expects. The problems have the form
/// `[GROUP] FILE: PROBLEM`. Any exit code from 1 to 123 is as good as another one, and the hashed
/// directories of the jobs do not count.
///
/// # Panics
/// The case is malformed, or the planner does not start.
pub fn compare(case: &Case, planner: &Path) -> Vec<Problem> {
    compare_with(case, planner, &[])
}

/// As [`compare`], with further environment variables for the planner.
///
/// # Panics
/// As [`compare`].
pub fn compare_with(case: &Case, planner: &Path, variables: &[(&str, &str)]) -> Vec<Problem> {
    compare_plan(case, planner, variables, false)
}

/// As [`compare`], for plans for HTCondor. Of the events for monitoring, jobs, tasks and edges count; how
/// jobs are started is compared with the submit descriptions.
///
/// # Panics
/// As [`compare`].
pub fn compare_condor(case: &Case, planner: &Path) -> Vec<Problem> {
    const GROUPS: [&str; 7] = ["exit", "tree", "dagman", "sub", "lite", "dagmansub", "bp"];
    let is_start = |problem: &Problem| {
        problem.what.starts_with("[bp]")
            && (problem.what.contains(": argv: ") || problem.what.contains(": executable: "))
    };
    let mut problems = compare_plan(case, planner, &[("USER", "tester")], true);
    let is_of = |group: &&str, problem: &Problem| problem.what.starts_with(&format!("[{group}]"));
    problems.retain(|problem| GROUPS.iter().any(|group| is_of(group, problem)) && !is_start(problem));
    problems
}

/// Plans all cases of a kind, each in a directory of its name below `folder`, which is made.
///
/// # Panics
/// A case is malformed, the directories cannot be made, or the planner does not start.
pub fn plan_all(kind: &str, planner: &Path, folder: &Path) {
    for case in Case::read_all(kind) {
        let directory = folder.join(&case.name);
        std::fs::create_dir_all(&directory).expect("a directory");
        run::run_in(&directory, &case, planner, &[("USER", "tester")]);
    }
}

fn compare_plan(case: &Case, planner: &Path, variables: &[(&str, &str)], is_condor: bool) -> Vec<Problem> {
    let plan = run::run(case, planner, variables);
    let mut problems = Vec::new();
    let expected: i32 = case.file("expected/exit").trim().parse().expect("an exit code");
    let as_expected = match plan.code {
        Some(code) if expected != 0 => (1..124).contains(&code),
        code => code == Some(expected),
    };
    if !as_expected {
        let code = plan.code.map_or("none".to_owned(), |code| code.to_string());
        problems.push(Problem {
            what: format!("[exit] exit: exit code {expected} -> {code}"),
            detail: plan.output.clone(),
        });
    }
    if let Some(messages) = case.archive.get("expected/stderr") {
        let output = compare::squeeze(&plan.output);
        for message in messages.lines().map(compare::squeeze) {
            if !output.contains(&message) {
                problems.push(Problem::new(format!(
                    "[stderr] stderr: missing message: {message}"
                )));
            }
        }
    }
    if expected == 0 {
        let found = compare_trees(case, plan.tree, is_condor);
        problems.extend(found.into_iter().map(Problem::new));
    }
    problems
}

fn compare_trees(case: &Case, tree: Tree, is_condor: bool) -> Vec<String> {
    let expected = case.archive.below("expected/tree");
    let expected = expected.map(|(path, file)| {
        let content = file
            .content
            .replace("pegasus-plan:@PLANNER_VERSION@", "pegasus-plan:5.1.3");
        (path.to_owned(), content)
    });
    let expected = lite::settle_scripts(expected.collect());
    let tree = match is_condor {
        true => lite::settle_scripts(tree),
        false => lite::settle_descriptions(tree),
    };
    let is_package = |path: &String| path.contains("/pegasus-worker-");
    let (expected, tree) = (without_hashes(expected), without_hashes(tree));
    let mut problems = Vec::new();
    for (path, content) in &expected {
        let Some(got) = tree.get(path) else {
            problems.push(format!("[tree] file names: missing file {path}"));
            if !is_condor {
                problems.push(format!("[{}] {path}: file is missing", compare::group(path)));
            }
            continue;
        };
        let of_condor = condor::group(path).filter(|_| is_condor);
        let group = of_condor.unwrap_or_else(|| compare::group(path));
        let found = match of_condor {
            Some(group) => condor::files(group, content, got),
            None => compare::files(group, content, got),
        };
        problems.extend(found.iter().map(|problem| format!("[{group}] {path}: {problem}")));
    }
    // Of our own, for `pmc resume`.
    let is_own = |path: &String| path.ends_with(".fingerprints");
    let additional = tree
        .keys()
        .filter(|path| !expected.contains_key(*path) && !is_own(path) && !is_package(path));
    problems.extend(additional.map(|path| format!("[tree] file names: extra   file {path}")));
    problems
}

/// Removes the hashed directories (`00/00`, `00/01`, …) of the files of jobs.
fn without_hashes(tree: Tree) -> Tree {
    let remove = |text: &str| {
        let directories = regex!(r#"([/"])(?:[0-9A-F]{2}/){1,6}([\w.-])"#);
        directories.replace_all(text, "$1$2").into_owned()
    };
    tree.iter()
        .map(|(path, content)| (remove(path), remove(content)))
        .collect()
}
