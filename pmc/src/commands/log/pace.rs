//! How often a growing file is read.

use std::time::Duration;

/// Time between two reads while output comes.
const FAST: Duration = Duration::from_millis(2);
/// Time between two reads while none comes.
const SLOW: Duration = Duration::from_millis(100);

/// Time between two reads: short after output, longer and longer without.
pub struct Pace(Duration);

impl Default for Pace {
    fn default() -> Self {
        Self(FAST)
    }
}

impl Pace {
    /// Takes whether the last read found something.
    pub fn note(&mut self, has_found: bool) {
        if has_found {
            self.0 = FAST;
        }
    }

    /// Waits, and makes the next time longer.
    pub fn wait(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 5 / 4).min(SLOW);
    }
}
