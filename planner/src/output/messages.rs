//! Texts in the output of a job that say whether it has succeeded.

use std::fmt::Write as _;

use crate::profiles::Profiles;

use super::command::quote;

/// What a message in the output means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The job has failed.
    Failure,
    /// Without it, the job has failed.
    Success,
}

/// Returns the messages in profiles. A value holds several if they are separated by `@`, as in the profiles
/// of clusters.
pub(crate) fn of(profiles: &Profiles) -> impl Iterator<Item = (Kind, &str)> {
    let keys = [
        (Kind::Failure, "exitcode.failuremsg"),
        (Kind::Success, "exitcode.successmsg"),
    ];
    keys.into_iter().flat_map(|(kind, key)| {
        let messages = profiles.pegasus(key).unwrap_or_default().split('@');
        messages
            .filter(|text| !text.is_empty())
            .map(move |text| (kind, text))
    })
}

/// Appends them as options of a task.
pub(crate) fn push_options(profiles: &Profiles, options: &mut String) {
    for (kind, message) in of(profiles) {
        let option = match kind {
            Kind::Failure => "--failure-message",
            Kind::Success => "--success-message",
        };
        // Writing into a String cannot fail.
        let _ = write!(options, "{option} {} ", quote(message));
    }
}
