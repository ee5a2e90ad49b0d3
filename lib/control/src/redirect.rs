//! Output of a task that a tool gets instead of the file.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use serde::{Deserialize, Serialize};

/// Number of the device that takes everything.
const NULL_DEVICE: u64 = (1 << 8) | 3;

/// What a tool asks for when it redirects streams of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectOptions {
    /// Number that the tool has made up: it names the redirect in later requests.
    pub token: u64,
    /// Name of the tool, for the messages to others.
    pub tool: String,
    /// Whether it wants standard output and standard error.
    pub streams: [bool; 2],
    /// Bytes of a stream that may wait for the tool.
    pub buffer: u32,
    /// Milliseconds for which a full buffer may hold up the task.
    pub patience_ms: u32,
    /// What happens then.
    pub overflow: Overflow,
}

impl RedirectOptions {
    /// Default of [`RedirectOptions::buffer`].
    pub const BUFFER: u32 = 2 << 20;
    /// Largest [`RedirectOptions::buffer`].
    pub const MAX_BUFFER: u32 = 64 << 20;
    /// Default of [`RedirectOptions::patience_ms`].
    pub const PATIENCE_MS: u32 = 1000;
    /// Largest [`RedirectOptions::patience_ms`].
    pub const MAX_PATIENCE_MS: u32 = 3_600_000;
}

/// What happens when the tool takes less than half of a full buffer in its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// The redirect ends: what waits, and all that follows, goes to the file.
    #[default]
    File,
    /// The older half of the buffer is lost.
    DropOldest,
    /// What comes is lost until half of the buffer is free.
    DropNewest,
}

/// What a tool says each time it asks for more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectPoll {
    /// The redirect. The first poll begins it.
    #[serde(rename = "claim")]
    pub options: RedirectOptions,
    /// Bytes that the tool has delivered of each stream, since the redirect began. The rest goes to the file
    /// if the redirect ends.
    pub delivered: [u64; 2],
    /// The redirect ends.
    pub is_end: bool,
}

/// Why a redirect has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RedirectEnd {
    /// The tool has ended it.
    Detached,
    /// The attempt has ended.
    TaskEnded,
    /// The tool was too slow.
    TooSlow,
    /// The tool did not ask for a long time.
    Silent,
}

/// Bytes of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunk {
    /// Bytes of the redirect before these.
    pub offset: u64,
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// When the worker read them: offsets, and microseconds since the epoch from there on.
    pub times: Vec<(u64, u64)>,
    /// Bytes of the redirect that were lost so far, by its overflow rule.
    pub dropped: u64,
}

/// A place in a file that captures a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Number of the file on its file system; 0 for no file.
    pub file: u64,
    /// Bytes before it.
    pub offset: u64,
}

/// Returns whether output can be written to a file without a wait.
#[must_use]
pub fn takes_output(file: &File) -> bool {
    file.metadata().is_ok_and(|data| {
        let kind = data.file_type();
        kind.is_file() || kind.is_fifo() || kind.is_char_device() && data.rdev() == NULL_DEVICE
    })
}
