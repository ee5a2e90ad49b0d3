//! Errors: problems in input files, with place and hint, and reasons why there is no plan.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};

/// Position in an input file, both numbers counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// Returns line and column (in characters) of a byte of the text.
pub(crate) fn position_of(text: &str, byte: usize) -> Position {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let start = memchr::memrchr(b'\n', before).map_or(0, |n| n + 1);
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
    Position {
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: u32::try_from(column).unwrap_or(u32::MAX),
    }
}

/// One problem in an input file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InputError {
    /// File, as the user named it.
    pub file: PathBuf,
    /// Position in the file, if known.
    pub position: Option<Position>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl InputError {
    /// Creates a problem of the whole file.
    pub fn file(file: &Path, message: impl Into<String>) -> Self {
        InputError {
            file: file.to_owned(),
            position: None,
            message: message.into(),
            hint: None,
        }
    }
    /// Creates a problem at a position.
    pub fn at(file: &Path, position: Position, message: impl Into<String>) -> Self {
        InputError {
            position: Some(position),
            ..InputError::file(file, message)
        }
    }
    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for InputError {
    /// `FILE:LINE:COLUMN: message`, and `hint: …` on the next line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(Position { line, column }) = self.position {
            write!(f, "{line}:")?;
            if column > 0 {
                write!(f, "{column}:")?;
            }
        }
        write!(f, " {}", self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

/// All problems of one or several files, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputErrors {
    problems: Vec<InputError>,
}

/// Maximum problems shown. Further ones are only counted, since they usually have the same cause.
const MAX_SHOWN: usize = 50;

impl InputErrors {
    /// `Ok` without problems.
    ///
    /// # Errors
    /// The problems, when there are some.
    pub fn check(mut problems: Vec<InputError>) -> Result<(), InputErrors> {
        if problems.is_empty() {
            return Ok(());
        }
        sort(&mut problems);
        Err(InputErrors { problems })
    }
    /// The problems: files in the order in which they were read, those of a file by position.
    pub fn problems(&self) -> &[InputError] {
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
fn sort(problems: &mut [InputError]) {
    let mut files: FxHashMap<PathBuf, usize> = FxHashMap::default();
    for problem in &*problems {
        let next = files.len();
        files.entry(problem.file.clone()).or_insert(next);
    }
    problems.sort_by_key(|problem| {
        let place = problem.position.map(|position| (position.line, position.column));
        (files[&problem.file], place)
    });
}

impl From<InputError> for InputErrors {
    fn from(problem: InputError) -> Self {
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

/// What a problem of the mapping is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A site is unknown, cannot be used, or cannot be chosen.
    Site,
    /// A program is unknown or cannot run on a site.
    Program,
    /// A file has no usable location, or its catalog does not exist.
    Replica,
    /// A profile has an invalid value.
    Profile,
    /// Jobs cannot become a cluster.
    Cluster,
    /// The work directories have too little space.
    Space,
    /// A sub-workflow cannot be part of the plan.
    SubWorkflow,
    /// The jobs themselves: cycles, equal names, jobs that do not exist.
    Job,
    /// A setting of the batch job.
    Batch,
    /// The submit directory.
    Directory,
}

impl Cause {
    /// Creates a problem from its message, which a hint may follow.
    pub(crate) fn problem(self, text: impl Into<String>) -> Problem {
        let (message, hint) = split_hint(text.into());
        Problem {
            cause: self,
            message,
            hint,
        }
    }
    /// Creates the error for one problem.
    pub(crate) fn error(self, text: impl Into<String>) -> PlanError {
        self.problem(text).into()
    }
}

/// A reason why a workflow cannot be mapped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{message}{}", .hint.as_ref().map(|hint| format!("{HINT}{hint}")).unwrap_or_default())]
pub struct Problem {
    /// What it is about.
    pub cause: Cause,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl From<Problem> for PlanError {
    fn from(problem: Problem) -> Self {
        PlanError::Refinement(vec![problem])
    }
}

/// Separates message and hint in printed form.
pub(crate) const HINT: &str = "\n  hint: ";

/// Splits the printed form of a problem into message and hint.
pub(crate) fn split_hint(mut text: String) -> (String, Option<String>) {
    let hint = text.find(HINT).map(|at| {
        let hint = text[at + HINT.len()..].to_owned();
        text.truncate(at);
        hint
    });
    (text, hint)
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
    Refinement(Vec<Problem>),
    /// The plan cannot be written as a DAG for pegasus-mpi-cluster.
    #[error("Unable to generate code: {}", once(.0))]
    Code(Vec<String>),
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
    /// `Ok` without problems of the mapping.
    pub(crate) fn check(problems: Vec<Problem>) -> Result<(), Self> {
        match problems.is_empty() {
            true => Ok(()),
            false => Err(PlanError::Refinement(problems)),
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

    #[test]
    fn problems_are_sorted_by_file_and_position() {
        let at = |file: &str, line| InputError::at(Path::new(file), Position { line, column: 1 }, "wrong");
        let mut errors = InputErrors::from(at("b", 9));
        let more = vec![at("a", 2), at("b", 1), InputError::file(Path::new("a"), "wrong")];
        errors.extend(InputErrors::check(more).expect_err("has problems"));
        let places: Vec<String> = errors.problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            places,
            ["b:1:1: wrong", "b:9:1: wrong", "a: wrong", "a:2:1: wrong"]
        );
    }

    #[test]
    fn places_and_hints() {
        let position = Position { line: 3, column: 7 };
        let error = InputError::at(Path::new("w.yml"), position, "wrong").with_hint("right");
        assert_eq!(error.to_string(), "w.yml:3:7: wrong\n  hint: right");
        assert_eq!(
            InputError::file(Path::new("w.yml"), "wrong").to_string(),
            "w.yml: wrong"
        );
    }

    #[test]
    fn many_problems_are_counted() {
        let problems = (0..60)
            .map(|n| InputError::file(Path::new("w"), n.to_string()))
            .collect();
        let text = InputErrors::check(problems).expect_err("problems").to_string();
        assert_eq!(text.lines().count(), 51);
        assert_eq!(text.lines().last(), Some("… and 10 more problems"));
        assert_eq!(InputErrors::check(Vec::new()), Ok(()));
    }

    #[test]
    fn equal_problems_are_shown_once() {
        let problem = || InputErrors::from(InputError::file(Path::new("w"), "wrong"));
        let mut problems = problem();
        problems.extend(problem());
        assert_eq!(problems.to_string(), "w: wrong");
        let error = PlanError::Refinement(["a", "b", "a"].map(|text| Cause::Job.problem(text)).to_vec());
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
