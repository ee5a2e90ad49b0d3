//! Commands that run when a workflow or job changes its state.

/// A command that runs on an event (a notification).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// One of never, start, on_success, success, on_error, error, at_end, end, all.
    pub when: String,
    /// Shell command.
    pub command: String,
}

impl Hook {
    /// All events that a hook may wait for.
    pub const EVENTS: &'static [&'static str] = &[
        "never",
        "start",
        "on_success",
        "success",
        "on_error",
        "error",
        "at_end",
        "end",
        "all",
    ];
}
