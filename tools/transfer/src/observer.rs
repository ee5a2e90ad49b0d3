//! Events of a run, and their receiver.

use std::time::Duration;

use crate::error::TransferError;
use crate::report::Attempt;

/// An event to report to the user at once.
#[derive(Debug)]
pub enum Event<'a> {
    /// A round starts.
    Round(u32),
    /// An attempt of a transfer ended; with its error if it failed.
    Transfer(&'a Attempt, Option<&'a TransferError>),
    /// A directory was created or something removed, or that failed: description and error.
    Other(&'a str, Option<&'a TransferError>),
    /// The next round starts after a wait.
    Wait(Duration),
    /// A checksum for which no file is set.
    Checksum(&'a str),
    /// Information, for instance a started program and its output.
    Note(String),
    /// Information for debugging only.
    Detail(String),
    /// A problem that does not fail the transfer.
    Warning(String),
}

/// Receives events, from several threads.
pub trait Observer: Sync {
    /// Handles an event.
    fn event(&self, event: &Event<'_>);
}

/// An observer that ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}
