//! Stacks of the processes of a task: which functions they are in, with files and lines where the programs
//! have debug information.
//!
//! With the feature `trace`, [`trace`] stops the processes for a moment, one after the other, and reads their
//! registers and stacks ([`ptrace`](https://man7.org/linux/man-pages/man2/ptrace.2.html)). That needs no
//! debugger and no change of the programs. Hundreds of ranks usually do one of a few things: [`merge`] shows
//! each once.

mod groups;
#[cfg(feature = "trace")]
mod modules;
#[cfg(feature = "trace")]
mod processes;
#[cfg(feature = "trace")]
mod stopped;
#[cfg(feature = "trace")]
mod symbols;
#[cfg(feature = "trace")]
mod threads;

use serde::{Deserialize, Serialize};

pub use groups::{Group, Holder, described, merge};
#[cfg(feature = "trace")]
pub use threads::{Tracer, trace};

/// Most processes of a task on a host that are traced.
pub const MAX_PROCESSES: usize = 256;

/// Most threads of a process that are traced.
pub const MAX_THREADS: usize = 256;

/// Most frames of a stack that are shown, the innermost first.
pub const MAX_FRAMES: usize = 128;

/// Most bytes of a name that are kept.
pub const MAX_NAME: usize = 200;

/// A function that has been called and has not returned.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    /// Its name, demangled; `None` if the program has no symbols there.
    pub function: Option<String>,
    /// Source file, if there is debug information.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
    /// The program or library that the code is in.
    pub module: Option<String>,
}

/// A process of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number on the host.
    pub pid: i32,
    /// Name of its program, at most 15 bytes.
    pub program: String,
    /// Its rank in an MPI program, if its environment has one.
    pub rank: Option<u32>,
}

/// Threads with the same stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// Its frames, the innermost first.
    pub frames: Vec<Frame>,
    /// The threads: the index of the process, and the number of the thread.
    pub threads: Vec<(usize, i32)>,
}

/// The stacks of the processes of a task on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStacks {
    /// The processes.
    pub processes: Vec<Process>,
    /// Their stacks.
    pub stacks: Vec<Stack>,
    /// Why there is no stack: the index of a process, and a sentence.
    pub failures: Vec<(usize, String)>,
    /// Processes that were left out, because there are too many.
    pub left_out: usize,
}

impl HostStacks {
    /// Adds a thread of a process.
    pub fn add(&mut self, process: usize, thread: i32, frames: Vec<Frame>) {
        match self.stacks.iter_mut().find(|stack| stack.frames == frames) {
            Some(stack) => stack.threads.push((process, thread)),
            None => self.stacks.push(Stack {
                frames,
                threads: vec![(process, thread)],
            }),
        }
    }
}
