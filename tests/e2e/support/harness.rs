//! Settings of the harnesses, from the environment.

use std::time::Duration;

/// For this long, a harness starts rounds if nobody says how many there are.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);

/// The number in a variable of the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

/// For how long rounds start: without end if the variable with the number of rounds is set.
pub fn limit(rounds: &str) -> Duration {
    std::env::var_os(rounds).map_or(DEFAULT_LIMIT, |_| Duration::MAX)
}
