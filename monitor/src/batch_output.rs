//! What a batch job wrote: the files into which the scheduler puts its standard output and error.
//!
//! A batch job may end before the executor begins its log: the launcher is missing, a module does not load,
//! the executor refuses the DAG. Then these files are all that is left.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::events::{Micros, SECOND};
use crate::failure::Tail;
use crate::history::{History, Phase, State};

/// Maximum lines of a file to keep.
const MAX_LINES: usize = 10;
/// Maximum bytes to read, from the end of a file.
const MAX_READ: u64 = 64 << 10;
/// Time that a batch job may take to end after the executor has ended its log.
const ENDING_TIME: Micros = 5 * SECOND;

/// The end of a file that a scheduler wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOutput {
    /// The file.
    pub path: PathBuf,
    /// Its last lines.
    pub tail: Tail,
}

/// Returns what the latest batch job wrote, if the log of the executor does not explain its end: there is no
/// log, the log has no end, or the files are newer than the log.
#[must_use]
pub fn unexplained(history: &History) -> Vec<BatchOutput> {
    let all = history.all();
    if all.total() > 0 && all.get(State::Done) == all.total() {
        return Vec::new();
    }
    let since = match (history.phase(), history.runs.last()) {
        (Phase::Running, _) => return Vec::new(),
        (Phase::Ended(_), Some(run)) => run.end.map_or(run.last, |(end, _)| end) + ENDING_TIME,
        (_, Some(run)) => run.start - SECOND,
        (_, None) => Micros::MIN,
    };
    let stem = history.dir.dag.file_stem().unwrap_or_default().to_string_lossy();
    let mut newest: [Option<(Micros, PathBuf)>; 2] = [None, None];
    for entry in fs::read_dir(&history.dir.dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(stream) = name.to_str().and_then(|name| stream(name, &stem)) else {
            continue;
        };
        // Not of a link, and never a pipe, whose opening would wait.
        let Ok(metadata) = entry.metadata() else { continue };
        if !metadata.is_file() || metadata.len() == 0 {
            continue;
        }
        let modified = metadata
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let Some(time) = modified.and_then(|time| Micros::try_from(time.as_micros()).ok()) else {
            continue;
        };
        let found = &mut newest[stream];
        if time >= since && found.as_ref().is_none_or(|(other, _)| *other < time) {
            *found = Some((time, entry.path()));
        }
    }
    let [output, error] = newest;
    let files = [error, output].into_iter().flatten();
    files
        .filter_map(|(_, path)| {
            let tail = Tail::of(&end_of(&path).ok()?, MAX_LINES);
            (!tail.is_empty()).then_some(BatchOutput { path, tail })
        })
        .collect()
}

/// Returns 0 for standard output and 1 for standard error, if a scheduler gives a batch job's file this name.
///
/// Slurm, LSF and Flux write the names in our scripts, PBS and Torque `NAME.o17`, Cobalt `17.output`.
fn stream(name: &str, stem: &str) -> Option<usize> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(suffix) = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('.')) {
        return match suffix {
            "out" => Some(0),
            "err" => Some(1),
            _ => match suffix.split_at_checked(1) {
                Some(("o", number)) if is_number(number) => Some(0),
                Some(("e", number)) if is_number(number) => Some(1),
                _ => None,
            },
        };
    }
    let (number, suffix) = name.split_once('.')?;
    match suffix {
        "output" if is_number(number) => Some(0),
        "error" if is_number(number) => Some(1),
        _ => None,
    }
}

/// Returns the last part of a file, beginning at a line.
fn end_of(path: &Path) -> io::Result<String> {
    let mut file = pmc_files::open(path)?;
    let start = file.metadata()?.len().saturating_sub(MAX_READ);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_READ).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(match text.split_once('\n') {
        Some((_, rest)) if start > 0 => rest.to_owned(),
        _ => text.into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::{DAG, TestRun};

    #[test]
    fn files_of_schedulers_have_known_names() {
        for (name, expected) in [
            ("w-0.out", Some(0)),
            ("w-0.err", Some(1)),
            ("w-0.o17", Some(0)),
            ("w-0.e17", Some(1)),
            ("17.output", Some(0)),
            ("17.error", Some(1)),
            ("w-0.other", None),
            ("a.out.000", None),
            ("w-0.e", None),
            ("x.output", None),
        ] {
            assert_eq!(stream(name, "w-0"), expected, "{name}");
        }
    }

    #[test]
    fn a_batch_job_that_died_before_the_log_is_shown() {
        let run = TestRun::new(DAG);
        assert_eq!(unexplained(&run.open()), []);
        run.append("w.out", "\n");
        run.append("w.err", "line\nmpiexec: command not found\n");
        let found = unexplained(&run.open());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].path.ends_with("w.err"));
        assert_eq!(found[0].tail.lines, ["line", "mpiexec: command not found"]);
        // The log of an earlier run does not explain it; the log of a later one does.
        run.append(
            "jobstate.log",
            "100 INTERNAL *** PMC_STARTED ***\n101 INTERNAL *** PMC_FINISHED 1 ***\n",
        );
        assert_eq!(unexplained(&run.open()).len(), 1);
        run.append(
            "jobstate.log",
            "99999999999 INTERNAL *** PMC_STARTED ***\n99999999999 INTERNAL *** PMC_FINISHED 1 ***\n",
        );
        assert_eq!(unexplained(&run.open()), []);
    }

    #[test]
    fn only_the_end_of_a_large_file_is_read() {
        let run = TestRun::new(DAG);
        run.append("w.err", &"a long line of a program\n".repeat(10_000));
        run.append("w.err", "the end\n");
        let found = unexplained(&run.open());
        assert_eq!(found[0].tail.lines.last().map(String::as_str), Some("the end"));
        assert_eq!(found[0].tail.lines.len(), MAX_LINES);
    }
}
