//! Reasons why there is no plan.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::diagnostic::Diagnostic;

/// All problems of one or several files, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputErrors {
    problems: Vec<Diagnostic>,
}

/// Maximum problems shown. Further ones are only counted, since they usually have the same cause.
const MAX_SHOWN: usize = 50;

impl InputErrors {
    /// `Ok` without problems.
    ///
    /// # Errors
    /// The problems, when there are some.
    pub fn check(mut problems: Vec<Diagnostic>) -> Result<(), InputErrors> {
        if problems.is_empty() {
            return Ok(());
        }
        sort(&mut problems);
        Err(InputErrors { problems })
    }
    /// The problems: files in the order in which they were read, those of a file by position.
    pub fn problems(&self) -> &[Diagnostic] {
        &self.problems
    }
    /// Adds the problems of another file.
    pub fn extend(&mut self, other: InputErrors) {
        self.problems.extend(other.problems);
        sort(&mut self.problems);
    }
}

/// Sorts by file, in the order of their first problems, then by position. Problems of a whole file come
/// first.
fn sort(problems: &mut [Diagnostic]) {
    let mut files: FxHashMap<Option<PathBuf>, usize> = FxHashMap::default();
    for problem in &*problems {
        let next = files.len();
        files.entry(problem.file.clone()).or_insert(next);
    }
    problems.sort_by_key(|problem| {
        let place = problem.position.map(|position| (position.line, position.column));
        (files[&problem.file], place)
    });
}

impl From<Diagnostic> for InputErrors {
    fn from(problem: Diagnostic) -> Self {
        InputErrors {
            problems: vec![problem],
        }
    }
}

impl fmt::Display for InputErrors {
    /// One problem after another, equal ones once, separated by line breaks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen = FxHashSet::default();
        for problem in &self.problems {
            let text = problem.to_string();
            if seen.contains(&text) {
                continue;
            }
            match seen.len() {
                0 => f.write_str(&text)?,
                1..MAX_SHOWN => write!(f, "\n{text}")?,
                _ => {}
            }
            seen.insert(text);
        }
        if seen.len() > MAX_SHOWN {
            write!(f, "\n… and {} more problems", seen.len() - MAX_SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for InputErrors {}

/// A command line that is not understood. The message ends with a hint to `--help`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

impl From<String> for UsageError {
    fn from(message: String) -> Self {
        UsageError(message)
    }
}

impl From<Diagnostic> for PlanError {
    fn from(problem: Diagnostic) -> Self {
        PlanError::Refinement(vec![problem])
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Problems in input files.
    #[error("{0}")]
    Input(#[from] InputErrors),
    /// The workflow file is not well-formed XML.
    #[error("{0}")]
    BadXml(InputErrors),
    /// The workflow cannot be mapped onto sites, programs and replicas; all problems found.
    #[error("{}", once(.0))]
    Refinement(Vec<Diagnostic>),
    /// The plan cannot be written as a DAG for pegasus-mpi-cluster.
    #[error("Unable to generate code: {}", once(.0))]
    Code(Vec<Diagnostic>),
    /// An unsupported feature.
    #[error("{0}")]
    Unsupported(String),
    /// A file or directory cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Operation.
        action: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A batch script template is wrong.
    #[error("template of the batch script {name}: {message}")]
    Template {
        /// Template.
        name: String,
        /// What is wrong, and where.
        message: String,
    },
}

/// Returns problems as lines, equal ones once.
fn once(problems: &[impl fmt::Display]) -> String {
    let mut seen = FxHashSet::default();
    let mut texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.retain(|text| seen.insert(text.clone()));
    texts.join("\n")
}

impl PlanError {
    /// Creates the error of a failed file operation.
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        PlanError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
    /// Creates the error for one problem of the mapping, whose message a hint may follow.
    pub(crate) fn refinement(text: impl Into<String>) -> Self {
        Diagnostic::error(text).into()
    }
    /// `Ok` without problems of the mapping.
    pub(crate) fn check(problems: Vec<Diagnostic>) -> Result<(), Self> {
        match problems.is_empty() {
            true => Ok(()),
            false => Err(PlanError::Refinement(problems)),
        }
    }
    /// `Ok` without problems of the code generator.
    pub(crate) fn check_code(problems: Vec<Diagnostic>) -> Result<(), Self> {
        match problems.is_empty() {
            true => Ok(()),
            false => Err(PlanError::Code(problems)),
        }
    }
    /// Creates the error for one problem of the code generator.
    pub(crate) fn code(problem: impl ToString) -> Self {
        PlanError::Code(vec![Diagnostic::error(problem.to_string())])
    }
    /// Adds further problems if the mapping has failed, so that one message lists all.
    pub(crate) fn with_further<I: IntoIterator<Item = Diagnostic>>(
        mut self,
        further: impl FnOnce() -> I,
    ) -> Self {
        if let PlanError::Refinement(problems) = &mut self {
            problems.extend(further());
        }
        self
    }
    /// Returns each problem.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        match self {
            PlanError::Input(errors) | PlanError::BadXml(errors) => errors.problems().to_vec(),
            PlanError::Refinement(problems) | PlanError::Code(problems) => problems.clone(),
            PlanError::Unsupported(_) | PlanError::Io { .. } | PlanError::Template { .. } => {
                vec![Diagnostic::error(self.to_string())]
            }
        }
    }
    /// Exit code of `pmc-plan`: 1, or 2 for a workflow that is not well-formed XML.
    pub fn exit_code(&self) -> u8 {
        match self {
            PlanError::BadXml(_) => 2,
            _ => 1,
        }
    }
}

/// A message in which no word is longer than a path may be: a file may have any text where a name is
/// expected, and what is wrong about it could not be found among megabytes of it.
pub fn readable(message: &str) -> Cow<'_, str> {
    const MAX_WORD: usize = 4096;
    const MAX_SHOWN: usize = 200;
    if message.split_whitespace().all(|word| word.len() <= MAX_WORD) {
        return Cow::Borrowed(message);
    }
    let mut text = String::new();
    for part in message.split_inclusive(char::is_whitespace) {
        if part.len() <= MAX_WORD {
            text.push_str(part);
            continue;
        }
        let end = |from: usize| {
            (from..)
                .find(|&at| part.is_char_boundary(at))
                .unwrap_or(part.len())
        };
        text.push_str(&part[..end(MAX_SHOWN)]);
        text.push_str(&format!("…({} bytes)…", part.len()));
        text.push_str(&part[end(part.len() - MAX_SHOWN)..]);
    }
    Cow::Owned(text)
}

/// Returns the name in `known` that is most similar to `name`, if one is similar.
pub fn near_spelling<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Short names are all similar, so the limit grows with the length.
    let limit = (name.chars().count() / 3).min(3);
    known
        .into_iter()
        .filter(|k| k.len().abs_diff(name.len()) <= 3 * (limit + 1))
        .map(|k| (edit_distance(name, k), k))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, k)| (*distance, !k.starts_with(name) && !name.starts_with(k)))
        .map(|(_, k)| k)
}

/// Levenshtein distance, letters of either case being equal.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().flat_map(char::to_lowercase).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().flat_map(char::to_lowercase).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Position;

    #[test]
    fn problems_are_sorted_by_file_and_position() {
        let at = |file: &str, line| Diagnostic::at(Path::new(file), Position { line, column: 1 }, "wrong");
        let mut errors = InputErrors::from(at("b", 9));
        let more = vec![
            at("a", 2),
            at("b", 1),
            Diagnostic::in_file(Path::new("a"), "wrong"),
        ];
        errors.extend(InputErrors::check(more).expect_err("has problems"));
        let places: Vec<String> = errors.problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            places,
            ["b:1:1: wrong", "b:9:1: wrong", "a: wrong", "a:2:1: wrong"]
        );
    }

    #[test]
    fn many_problems_are_counted() {
        let problems = (0..60)
            .map(|n| Diagnostic::in_file(Path::new("w"), n.to_string()))
            .collect();
        let text = InputErrors::check(problems).expect_err("problems").to_string();
        assert_eq!(text.lines().count(), 51);
        assert_eq!(text.lines().last(), Some("… and 10 more problems"));
        assert_eq!(InputErrors::check(Vec::new()), Ok(()));
    }

    #[test]
    fn equal_problems_are_shown_once() {
        let problem = || InputErrors::from(Diagnostic::in_file(Path::new("w"), "wrong"));
        let mut problems = problem();
        problems.extend(problem());
        assert_eq!(problems.to_string(), "w: wrong");
        let error = PlanError::Refinement(["a", "b", "a"].map(Diagnostic::error).to_vec());
        assert_eq!(error.to_string(), "a\nb");
    }

    #[test]
    fn long_words_are_cut() {
        let message = "w.yml:3: no site a b";
        assert!(matches!(readable(message), Cow::Borrowed(text) if text == message));
        let message = format!("the site `{}` is\n  unknown", "é".repeat(1_000_000));
        let text = readable(&message);
        assert!(text.len() < 600, "{text}");
        assert!(
            text.starts_with("the site `éé") && text.ends_with("é` is\n  unknown"),
            "{text}"
        );
        assert!(text.contains("(2000003 bytes)"), "{text}");
    }

    #[test]
    fn near_spellings() {
        let known = ["lfn", "pfns", "stageOut", "local", "x"];
        for (name, near) in [
            ("pfn", Some("pfns")),
            ("stageout", Some("stageOut")),
            ("locla", None),
            ("lokal", Some("local")),
            ("y", None),
            ("", None),
            ("somethingelse", None),
        ] {
            assert_eq!(near_spelling(name, known), near, "{name}");
        }
    }
}
