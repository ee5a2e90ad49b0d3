//! What is known of the master before this one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Variable by which an agent that starts the next master says what it knows of the one before.
pub const EARLIER_MASTER_VARIABLE: &str = "PMC_EARLIER_MASTER";

/// A master that is dead. As a text: `EPOCH:SECONDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierMaster {
    /// Its epoch.
    pub epoch: u64,
    /// For how long it has been dead, at least.
    pub dead_for: Duration,
}

impl EarlierMaster {
    /// For how long the master of this epoch has been dead, as far as that is known.
    pub(super) fn dead_for(earlier: Option<Self>, epoch: Option<u64>) -> Duration {
        let known = earlier.filter(|earlier| Some(earlier.epoch) == epoch);
        known.map_or(Duration::ZERO, |earlier| earlier.dead_for)
    }
}

impl fmt::Display for EarlierMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.dead_for.as_secs())
    }
}

/// The text is none of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMaster;

impl FromStr for EarlierMaster {
    type Err = NoMaster;

    fn from_str(text: &str) -> Result<Self, NoMaster> {
        let (epoch, seconds) = text.split_once(':').ok_or(NoMaster)?;
        Ok(Self {
            epoch: epoch.parse().map_err(|_| NoMaster)?,
            dead_for: Duration::from_secs(seconds.parse().map_err(|_| NoMaster)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_master_that_was_seen_is_known_to_be_dead() {
        let earlier = EarlierMaster {
            epoch: 7,
            dead_for: Duration::from_millis(31_900),
        };
        // Less than that is safe.
        assert_eq!(earlier.to_string(), "7:31");
        let seconds = |epoch| EarlierMaster::dead_for("7:31".parse().ok(), epoch).as_secs();
        assert_eq!([Some(7), Some(8), None].map(seconds), [31, 0, 0]);
        assert_eq!(EarlierMaster::dead_for(None, Some(7)), Duration::ZERO);
        for text in ["", "7", "7:", ":3", "7:-3", "7:x", "7:1.5"] {
            assert_eq!(text.parse::<EarlierMaster>(), Err(NoMaster), "{text}");
        }
    }
}
