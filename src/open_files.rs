//! How many tasks a process can run at a time with the open files that the system allows it.

use pmc_spawn::open_files::raise;

/// Open files of a worker thread with a task: its streams and its bell, and those of the task and of its task
/// server.
pub(crate) const OF_WORKER: u64 = 12;

/// Open files of the rest of the program.
pub(crate) const OF_RUN: u64 = 64;

/// Raises the limit of open files, and returns how many tasks may run at a time: at least one.
pub(crate) fn max_slots() -> u32 {
    slots_within(raise())
}

/// Logs that a host runs fewer tasks at a time than the user wants. The others wait.
pub(crate) fn warn_of_fewer(host: &str, slots: u32, wanted: u32) {
    tracing::warn!(
        "{host} runs {slots} tasks at a time, not {wanted}: more would need more open files than the system \
         allows there (`ulimit -Hn`)"
    );
}

fn slots_within(limit: u64) -> u32 {
    let slots = (limit.saturating_sub(OF_RUN) / OF_WORKER).max(1);
    u32::try_from(slots).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_room_for_their_files() {
        for (limit, slots) in [(u64::MAX, u32::MAX), (1024, 80), (256, 16), (20, 1)] {
            assert_eq!(slots_within(limit), slots, "{limit}");
        }
    }
}
