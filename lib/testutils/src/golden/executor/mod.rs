//! Golden cases of the executor: arguments, a DAG, and everything that the executor printed and left behind.

mod arrange;
mod config;
mod normalize;
mod run;

use std::collections::BTreeMap;

use super::text::matches_any;
use super::{Case, Problem, diff};
use config::Config;

/// A regular file or a link below the working directory, by path, with its normalized content.
type Tree = BTreeMap<String, String>;
/// The parents of each task in the DAG files of a case.
type Edges = BTreeMap<String, Vec<String>>;

/// What the runs of a case did.
struct Outcome {
    /// `exit`, `stdout.2`, `files` and so on.
    results: BTreeMap<String, String>,
    /// New and changed files.
    tree: Tree,
    edges: Edges,
}

/// Runs the executor as a case says, and compares what it did with what the case expects. The order of tasks
/// with equal priority does not count.
///
/// `start` returns the words of the command that starts the executor, given the number of ranks.
///
/// # Panics
/// The case is malformed, or the executor does not start.
pub fn compare(case: &Case, start: &dyn Fn(u32) -> Vec<String>) -> Vec<Problem> {
    let config = Config::read(case);
    let Outcome { results, tree, edges } = run::run(case, &config, start);
    let mut problems = Vec::new();
    let mut check = |name: &str, expected: &str, got: &str| {
        if expected != got {
            problems.push(Problem {
                what: name.to_owned(),
                detail: diff::lines(expected, got),
            });
        }
    };
    for (name, got) in &results {
        let expected = case.archive.get(&format!("expected/{name}"));
        let expected = expected.unwrap_or("(nothing recorded)");
        match name.split('.').next() {
            Some("stdout") => {
                let mode = config.stdout_mode(expected);
                check(name, &mode.arrange(expected, &edges), &mode.arrange(got, &edges));
            }
            Some("stderr") => check(
                name,
                &config.arrange_stderr(expected),
                &config.arrange_stderr(got),
            ),
            _ => check(name, expected, got),
        }
    }
    for (path, file) in case.archive.below("expected/tree") {
        // The list of files reports a missing file.
        let Some(got) = tree.get(path).filter(|_| !matches_any(&config.ignore, path)) else {
            continue;
        };
        let mode = config.file_mode(path);
        check(
            &format!("file {path}"),
            &mode.arrange(&file.content, &edges),
            &mode.arrange(got, &edges),
        );
    }
    problems
}
