//! A task that counts, and tools that redirect its output and are killed.
//!
//! Every line is a number of its own. So the place of each part of the output is known, wherever it was cut.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Random;

/// Script of a task that writes up to 8 GB, until there is a file `stop`. Then it writes the number of lines
/// into the file `count`.
pub const COUNTS: &str =
    "n=0; while [ ! -e stop ]; do echo $((100000000 + n)); n=$((n + 1)); done; echo $n > count";

/// Bytes of a line, and the number in the first one.
const LINE: usize = 10;
const FIRST: usize = 100_000_000;

/// Time for a tool to get something.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a run notices that a tool has gone.
const NOTICE: Duration = Duration::from_millis(700);

/// Returns what a task has in its file, without the record of the executor.
///
/// # Panics
/// The file cannot be read, or has no record.
#[must_use]
pub fn in_file(path: &Path) -> Vec<u8> {
    let mut bytes = fs::read(path).expect("the output of the task");
    bytes.truncate(record(&bytes).expect("a record"));
    bytes
}

fn record(bytes: &[u8]) -> Option<usize> {
    bytes.windows(14).rposition(|part| part == b"[cluster-task ")
}

/// Returns the number of tools to kill: `PMC_TEST_KILLS`, else 20.
///
/// # Panics
/// It is no number.
#[must_use]
pub fn kills() -> usize {
    let wanted = std::env::var("PMC_TEST_KILLS").ok();
    wanted.map_or(20, |count| count.parse().expect("PMC_TEST_KILLS is a number"))
}

/// Tools that redirected the task `counts` in turn, and the files with what they have got.
#[derive(Debug)]
pub struct KilledTools<'a> {
    directory: &'a Path,
    parts: Vec<PathBuf>,
}

/// Starts and kills tools, each some time after it has got its first byte. The run of the task must go on in
/// `directory`. Standard output of half of the tools is a pipe, of the others a file.
///
/// # Panics
/// A tool cannot be started, or gets nothing.
#[must_use]
pub fn kill_tools<'a>(pmc: &Path, directory: &'a Path, rounds: usize) -> KilledTools<'a> {
    let mut random = Random(12_345);
    let parts = (0..rounds).map(|round| {
        let tool = Tool::start(pmc, directory, round);
        tool.kill(Duration::from_micros(random.below(20_000)))
    });
    KilledTools {
        directory,
        parts: parts.collect(),
    }
}

/// Starts a tool and calls `end` some time after it has got its first byte; then the tool has to end by
/// itself. Its standard output is a pipe, or a file.
///
/// # Panics
/// The tool cannot be started, or gets nothing.
#[must_use]
pub fn end_run<'a>(
    pmc: &Path,
    directory: &'a Path,
    after: Duration,
    is_pipe: bool,
    end: impl FnOnce(),
) -> KilledTools<'a> {
    let mut tool = Tool::start(pmc, directory, usize::from(is_pipe));
    tool.wait_for_output(after);
    end();
    tool.process.wait().expect("it ends");
    KilledTools {
        directory,
        parts: vec![tool.finish()],
    }
}

struct Tool {
    process: Child,
    path: PathBuf,
    reader: Option<JoinHandle<()>>,
}

impl Tool {
    fn start(pmc: &Path, directory: &Path, round: usize) -> Self {
        let mut command = Command::new(pmc);
        command
            .args(["attach", ".", "--redirect", "--stdout", "counts"])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let path = directory.join(format!("part{round}"));
        let mut file = File::create(&path).expect("a file");
        if round.is_multiple_of(2) {
            let process = command.stdout(file).spawn().expect("pmc starts");
            return Self {
                process,
                path,
                reader: None,
            };
        }
        let mut process = command.stdout(Stdio::piped()).spawn().expect("pmc starts");
        let mut stdout = process.stdout.take().expect("it is piped");
        let read = move || {
            std::io::copy(&mut stdout, &mut file).expect("it can be read");
        };
        Self {
            process,
            path,
            reader: Some(thread::spawn(read)),
        }
    }

    fn wait_for_output(&self, after: Duration) {
        let begun = Instant::now();
        while self.path.metadata().is_ok_and(|data| data.len() == 0) {
            assert!(begun.elapsed() < TIMEOUT, "the tool gets nothing");
            thread::sleep(Duration::from_millis(2));
        }
        thread::sleep(after);
    }

    fn kill(mut self, after: Duration) -> PathBuf {
        self.wait_for_output(after);
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
        if self.reader.is_none() {
            thread::sleep(NOTICE);
        }
        self.finish()
    }

    /// Returns what it has got.
    fn finish(self) -> PathBuf {
        if let Some(reader) = self.reader {
            // The run closes the pipe as soon as it notices.
            reader.join().expect("it reads");
        }
        self.path
    }
}

impl KilledTools<'_> {
    /// Checks that the file of the task and the parts of the tools are what the task has written. The run has
    /// ended.
    ///
    /// # Panics
    /// They are not.
    pub fn check(&self) {
        let bytes = self.check_parts(&in_file(&self.directory.join("counts.out.000")));
        let count = fs::read_to_string(self.directory.join("count")).expect("the number of lines");
        let count: usize = count.trim().parse().expect("a number");
        assert_eq!(bytes, count * LINE, "bytes are missing at the end");
    }

    /// The same for a task that was killed, which has no record and may have written more. Returns the number
    /// of bytes.
    ///
    /// # Panics
    /// They are not what the task has written.
    #[must_use]
    pub fn check_cut_off(&self) -> usize {
        let file = fs::read(self.directory.join("counts.out.000")).expect("the output of the task");
        assert!(record(&file).is_none(), "the task was not killed");
        self.check_parts(&file)
    }

    fn check_parts(&self, file: &[u8]) -> usize {
        let (mut at, mut in_file) = (0, 0);
        for path in &self.parts {
            let part = fs::read(path).expect("the part of a tool");
            let begin = place_of(&part);
            assert!(begin >= at, "a part comes twice: {begin} after {at}");
            let between = &file[in_file..in_file + (begin - at)];
            assert!(
                between == counted(at, between.len()),
                "the file is wrong after {at}"
            );
            assert!(
                part == counted(begin, part.len()),
                "a part is wrong after {begin}"
            );
            in_file += between.len();
            at = begin + part.len();
        }
        let rest = &file[in_file..];
        assert!(rest == counted(at, rest.len()), "the end of the file is wrong");
        at + rest.len()
    }
}

/// Returns a part of what the task writes.
fn counted(from: usize, length: usize) -> Vec<u8> {
    let lines = from / LINE..=(from + length) / LINE;
    let text: String = lines.map(|number| format!("{}\n", FIRST + number)).collect();
    text.into_bytes()[from % LINE..][..length].to_vec()
}

/// Returns where a part of what the task writes begins.
fn place_of(part: &[u8]) -> usize {
    let text = std::str::from_utf8(part).expect("digits");
    let before = text.find('\n').expect("the end of a line") + 1;
    let number: usize = match text.get(before..before + LINE - 1) {
        Some(next) => next.parse().expect("a number"),
        None => {
            text[before - LINE..before - 1]
                .parse::<usize>()
                .expect("a number")
                + 1
        }
    };
    (number - FIRST) * LINE - before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_part_is_found() {
        assert_eq!(counted(8, 5), b"0\n100");
        for from in [0, 3, 9, 10, 1234] {
            assert_eq!(place_of(&counted(from, 25)), from);
        }
    }
}
