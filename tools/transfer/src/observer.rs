//! What a run tells while it goes on.

use std::time::Duration;

use crate::error::TransferError;
use crate::report::Attempt;

/// Something that an observer may want to tell its user at once.
#[derive(Debug)]
pub enum Event<'a> {
    /// A round starts.
    Round(u32),
    /// An attempt of a transfer ended; with the reason if it failed.
    Transfer(&'a Attempt, Option<&'a TransferError>),
    /// A directory was made or something removed, or not: what, and why not.
    Other(&'a str, Option<&'a TransferError>),
    /// The next round starts after a wait.
    Wait(Duration),
    /// A checksum that no file collects.
    Checksum(&'a str),
    /// Something that helps to understand what happened: a program that is started, what it said.
    Note(String),
    /// The same, of interest only when something is searched for.
    Detail(String),
    /// Something went wrong that does not fail the transfer.
    Warning(String),
}

/// Is told what happens, from several threads.
pub trait Observer: Sync {
    /// Takes note of an event.
    fn event(&self, event: &Event<'_>);
}

/// An observer that takes no note.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}
