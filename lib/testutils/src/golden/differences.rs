//! Lists of differences on purpose.

use std::fmt::Write as _;
use std::fs;

use regex::Regex;

use super::{Problem, directory};

/// The differences on purpose between the golden cases of one kind and this project's programs.
///
/// A line has two words: the case (`*` for any), and a regular expression, up to the end of the line, that
/// must match a whole problem. Lines that start with `#` give the reason.
pub struct Differences {
    file: String,
    list: Vec<Difference>,
}

struct Difference {
    line: usize,
    case: String,
    problem: Regex,
}

impl Differences {
    /// Reads `tests/golden/KIND.differences`.
    ///
    /// # Panics
    /// The file is missing or malformed.
    pub fn read(kind: &str) -> Self {
        let file = format!("{kind}.differences");
        let path = directory().join(&file);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self::parse(&file, &text)
    }

    fn parse(file: &str, text: &str) -> Self {
        let mut list = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((case, problem)) = line.split_once(' ') else {
                panic!("{file}:{number}: expected a case and a regular expression")
            };
            let problem = Regex::new(&format!("^(?:{})$", problem.trim()))
                .unwrap_or_else(|e| panic!("{file}:{number}: {e}"));
            list.push(Difference {
                line: number,
                case: case.to_owned(),
                problem,
            });
        }
        Self {
            file: file.to_owned(),
            list,
        }
    }

    /// Reports the problems that are not listed. If `all` cases were compared, reports the listed
    /// differences that did not occur, too. The report is empty if everything is as expected.
    pub fn judge(&self, found: &[(String, Vec<Problem>)], all: bool) -> String {
        let mut report = String::new();
        let mut occurred = vec![false; self.list.len()];
        for (case, problems) in found {
            let mut unexpected = Vec::new();
            for problem in problems {
                let mut listed = false;
                for (difference, occurred) in self.list.iter().zip(&mut occurred) {
                    let applies = difference.case == "*" || difference.case == *case;
                    if applies && difference.problem.is_match(&problem.what) {
                        *occurred = true;
                        listed = true;
                    }
                }
                if !listed {
                    unexpected.push(problem);
                }
            }
            if !unexpected.is_empty() {
                let _ = writeln!(report, "FAILED {case}: {} differences", unexpected.len());
            }
            for problem in unexpected {
                let _ = writeln!(report, "    {}", problem.what);
                for line in problem.detail.lines() {
                    let _ = writeln!(report, "        {line}");
                }
            }
        }
        for (difference, _) in self
            .list
            .iter()
            .zip(occurred)
            .filter(|(_, occurred)| all && !occurred)
        {
            let Difference { line, case, .. } = difference;
            let _ = writeln!(
                report,
                "{}:{line}: case {case} no longer differs in this way: remove the line",
                self.file
            );
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(list: &str, problems: &[(&str, &str)]) -> String {
        let found: Vec<_> = problems
            .iter()
            .map(|(case, what)| ((*case).to_owned(), vec![Problem::new(*what)]))
            .collect();
        Differences::parse("list", list).judge(&found, true)
    }

    #[test]
    fn listed_differences_are_expected() {
        let list = "# Why.\none file \\w\n\n* exit\n";
        assert_eq!(judge(list, &[("one", "file a"), ("two", "exit")]), "");
    }

    #[test]
    fn other_differences_are_reported() {
        let report = judge(
            "one file \\w\n",
            &[("one", "file a"), ("two", "file a"), ("one", "file ab")],
        );
        assert_eq!(
            report,
            "FAILED two: 1 differences\n    file a\nFAILED one: 1 differences\n    file ab\n"
        );
    }

    #[test]
    fn differences_that_no_longer_occur_are_reported() {
        let report = judge("# Why.\none exit\n", &[("two", "exit")]);
        assert!(
            report.ends_with("list:2: case one no longer differs in this way: remove the line\n"),
            "{report}"
        );
    }
}
