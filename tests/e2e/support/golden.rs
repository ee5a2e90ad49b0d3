//! Golden cases and the list of what may differ.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use regex::Regex;

use super::programs::{Flavour, project};

/// A folder or file below `tests/golden`.
pub fn golden(name: &str) -> PathBuf {
    project().join("tests/golden").join(name)
}

/// One line of a list of differences.
struct Difference {
    line: usize,
    case: String,
    flavour: Option<String>,
    problem: Regex,
    seen: Cell<bool>,
}

/// What may differ from the golden cases of one kind.
///
/// A line has three words: the case (`*` for any), the flavour of the executor (`any`, `local`,
/// `openmpi`, `mpich`), and a regular expression that a problem must match from start to end, to the
/// end of the line. Lines with `#` say why.
pub struct Differences {
    file: String,
    list: Vec<Difference>,
}

impl Differences {
    /// Reads `tests/golden/FILE`.
    pub fn read(file: &str) -> Self {
        let path = golden(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut list = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.splitn(3, char::is_whitespace);
            let (Some(case), Some(flavour), Some(problem)) = (words.next(), words.next(), words.next())
            else {
                panic!("{file}:{}: wants a case, a flavour and an expression", number + 1)
            };
            list.push(Difference {
                line: number + 1,
                case: case.to_owned(),
                flavour: (flavour != "any").then(|| flavour.to_owned()),
                problem: Regex::new(&format!("^(?:{})$", problem.trim())).expect("a regular expression"),
                seen: Cell::new(false),
            });
        }
        Self {
            file: file.to_owned(),
            list,
        }
    }

    /// Compares what was found in all cases, `(case, problem)`, with the list: the report of what
    /// is wrong, empty if nothing is.
    pub fn judge(&self, flavour: Flavour, cases: &[String], problems: &[(String, String)]) -> String {
        let flavour = format!("{flavour:?}").to_lowercase();
        let applies = |d: &Difference| d.flavour.as_ref().is_none_or(|f| *f == flavour);
        let mut report = String::new();
        for (case, problem) in problems {
            let mut listed = false;
            for d in self
                .list
                .iter()
                .filter(|d| applies(d) && (d.case == "*" || d.case == *case))
            {
                if d.problem.is_match(problem) {
                    d.seen.set(true);
                    listed = true;
                }
            }
            if !listed {
                let _ = writeln!(report, "{case}: {problem}");
            }
        }
        for d in self.list.iter().filter(|d| applies(d) && !d.seen.get()) {
            if d.case == "*" || cases.contains(&d.case) {
                let _ = writeln!(
                    report,
                    "{}:{}: nothing differs like that in {} any more: take the line out",
                    self.file, d.line, d.case
                );
            } else {
                let _ = writeln!(report, "{}:{}: there is no case {}", self.file, d.line, d.case);
            }
        }
        report
    }
}

/// Names of the cases below a folder.
pub fn cases(folder: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(golden(folder))
        .expect("a folder of golden cases")
        .filter_map(|entry| {
            let entry = entry.ok()?;
            entry
                .path()
                .join("args")
                .exists()
                .then(|| entry.file_name().into_string().ok())?
        })
        .collect();
    names.sort_unstable();
    names
}
