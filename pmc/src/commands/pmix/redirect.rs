//! Output that a tool gets instead of the files of its tasks.
//!
//! Each attempt has a thread and a connection to the run. Output counts as delivered when the library has it.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pmc_control::{Answer, Overflow, Redirect, RedirectOptions, RedirectRequest, Tool};
use pmc_pmix::{Refusal, Tools};

use crate::commands::attach::format::{Origin, Receiver};
use crate::commands::attach::lines::Lines;
use crate::commands::log::Stream;

/// Time for a task that the log shows to be started by its worker.
const START: Duration = Duration::from_secs(1);
/// Time between two requests meanwhile.
const PAUSE: Duration = Duration::from_millis(10);

/// An attempt that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Name of its task.
    pub task: String,
    /// Host; empty if it is not known.
    pub host: String,
}

/// A redirect that has begun.
pub struct Redirecting {
    tool: Tool,
    request: RedirectRequest,
    origin: Origin,
    over: (Tools, Arc<AtomicBool>),
}

impl Redirecting {
    /// Begins to redirect these streams of an attempt. It ends when one of the tools has gone, or the flag is
    /// set.
    ///
    /// # Errors
    /// The attempt has ended, its output cannot be redirected, or another tool gets it.
    pub fn begin(
        dag: &Path,
        (rank, running): (u32, &Running),
        streams: [bool; 2],
        over: (Tools, Arc<AtomicBool>),
    ) -> Result<Self, Refusal> {
        let mut tool = Tool::connect(dag).map_err(|_| Refusal::NotFound)?;
        let options = RedirectOptions {
            // Each state of this kind begins with other random numbers.
            token: RandomState::new().build_hasher().finish(),
            tool: format!("a tool for PMIx, by process {}", std::process::id()),
            streams,
            buffer: RedirectOptions::BUFFER,
            patience_ms: RedirectOptions::PATIENCE_MS,
            overflow: Overflow::File,
        };
        let mut request = RedirectRequest::first(running.task.clone(), options);
        let end = Instant::now() + START;
        let attempt = loop {
            let redirect = tool.redirect(request.clone());
            match redirect.map_err(|_| Refusal::Failed)? {
                // What has come is asked for again, because it does not count as delivered.
                Redirect::On { attempt, .. } => break attempt,
                Redirect::Not(Answer::NotYet(_)) if Instant::now() < end => thread::sleep(PAUSE),
                Redirect::Ended(..) | Redirect::Not(Answer::NotYet(_)) => return Err(Refusal::NotFound),
                Redirect::Not(_) => return Err(Refusal::NotSupported),
            }
        };
        request.attempt = Some(attempt);
        if attempt.1 != u64::from(rank) {
            // The attempt that was meant has ended. The connection ends, and so the redirect of the next one.
            return Err(Refusal::NotFound);
        }
        request.may_wait = true;
        let origin = Origin {
            task: running.task.clone(),
            attempt: 0,
            host: running.host.clone(),
            submit_number: rank,
        };
        Ok(Self {
            tool,
            request,
            origin,
            over,
        })
    }

    /// Passes the output on in a thread, until the attempt or the redirect ends.
    ///
    /// # Errors
    /// There is no thread. The redirect has ended, so the output goes to its files.
    pub fn start(self, receiver: impl Receiver + Send + 'static) -> io::Result<JoinHandle<()>> {
        let thread = thread::Builder::new().name("redirect".into());
        thread.spawn(move || self.run(receiver))
    }

    fn run(mut self, mut receiver: impl Receiver) {
        let mut lines = [Lines::default(), Lines::default()];
        // If the connection ends, so does the redirect.
        while let Ok(redirect) = self.tool.redirect(self.request.clone()) {
            let Redirect::On { chunks, .. } = redirect else {
                break;
            };
            for (at, stream) in Stream::ALL.into_iter().enumerate() {
                let bytes = &chunks[at].bytes;
                if receiver.has_lines() {
                    let (origin, receiver) = (&self.origin, &mut receiver);
                    lines[at].push(bytes, |line, is_part| {
                        receiver.line(origin, stream, line, is_part)
                    });
                } else {
                    receiver.raw(&self.origin, stream, bytes);
                }
            }
            receiver.flush();
            let is_over = self.over.1.load(Ordering::Acquire) || !self.over.0.are_there();
            if !is_over {
                let delivered = chunks.map(|chunk| chunk.offset.saturating_add(chunk.bytes.len() as u64));
                self.request.poll.delivered = delivered;
            }
            self.request.poll.is_end = is_over;
        }
        for (lines, stream) in lines.iter_mut().zip(Stream::ALL) {
            let (origin, receiver) = (&self.origin, &mut receiver);
            lines.finish(|line, is_part| receiver.line(origin, stream, line, is_part));
        }
        receiver.end(&self.origin);
    }
}
