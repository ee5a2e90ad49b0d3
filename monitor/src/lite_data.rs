//! What lite jobs say about their data, read from the output of their attempts. Each attempt is read once.

use std::io::Read as _;

use monitord_compat::lite_data::{LiteData, find};
use pmc_packed::{Channel, TaskOutput};

use crate::history::{History, NEVER};
use crate::kinds::Kind;

/// Maximum bytes of standard error to read. The line is among the last ones.
const MAX_READ: u64 = 1 << 20;

/// Data of the attempts that have ended.
#[derive(Debug)]
pub struct DataOfRun {
    /// Sum over all attempts that say something.
    pub sum: LiteData,
    /// Number of these attempts.
    pub attempts: usize,
    output: TaskOutput,
    /// Attempts of each task so far.
    counts: Vec<u32>,
    /// Attempts of the history that were seen.
    seen: usize,
    /// Those that have not ended, with their numbers among the attempts of their tasks.
    open: Vec<(usize, u32)>,
}

impl DataOfRun {
    /// Reads the output of the attempts that have ended.
    #[must_use]
    pub fn read(history: &History) -> Self {
        let mut this = Self {
            sum: LiteData::default(),
            attempts: 0,
            output: TaskOutput::new(&history.dir.dir),
            counts: vec![0; history.plan.len()],
            seen: 0,
            open: Vec::new(),
        };
        this.update(history);
        this
    }

    /// Reads the output of the attempts that have ended since the last call. Output that is missing or
    /// cannot be read says nothing.
    pub fn update(&mut self, history: &History) {
        for (index, attempt) in history.attempts.iter().enumerate().skip(self.seen) {
            let task = attempt.task as usize;
            if self.counts.len() <= task {
                self.counts.resize(task + 1, 0);
            }
            let count = &mut self.counts[task];
            if history.plan.class(attempt.task).kind == Kind::Compute {
                self.open.push((index, *count));
            }
            *count += 1;
        }
        self.seen = history.attempts.len();
        let open = std::mem::take(&mut self.open);
        for (index, number) in open {
            let attempt = &history.attempts[index];
            if attempt.end == NEVER {
                self.open.push((index, number));
                continue;
            }
            let task = history.plan.name(attempt.task);
            if let Some(data) = self.attempt(task, number) {
                self.sum += data;
                self.attempts += 1;
            }
            self.output.forget(task, number);
        }
    }

    fn attempt(&mut self, task: &[u8], number: u32) -> Option<LiteData> {
        let stream = self.output.open(task, Channel::Err, number).ok()?;
        let mut bytes = Vec::new();
        stream.take(MAX_READ).read_to_end(&mut bytes).ok()?;
        find(&String::from_utf8_lossy(&bytes))
    }
}
