//! When a task is to save its state again: Young's interval, with limits.

/// The longest interval, in seconds.
const MAX_SECONDS: f64 = 3600.0;

/// Part of its time that a task spends on saving, at most.
pub(crate) const MAX_SHARE: f64 = 0.05;

/// Hours that a node works before it is lost, as far as nothing else is known.
pub const NODE_HOURS: f64 = 10_000.0;

/// When a task is to save for the first time, in seconds: what that takes is not known before.
const FIRST_SECONDS: f64 = 60.0;

/// Seconds that are left for anything else when the time is nearly over.
const END_SECONDS: f64 = 30.0;

/// What decides how often a task saves its state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Seconds for which the last series has blocked the task; `None` before the first one.
    pub cost: Option<f64>,
    /// Node-hours that were used so far.
    pub node_hours: f64,
    /// Nodes that were lost in them.
    pub losses: u32,
    /// Nodes on which the task runs.
    pub nodes: u32,
}

impl Interval {
    /// Returns the seconds from one series to the next.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        let Some(cost) = self.cost else {
            return FIRST_SECONDS;
        };
        let per_node = (NODE_HOURS + self.node_hours.max(0.0)) / (1.0 + f64::from(self.losses));
        best_interval(cost, per_node * 3600.0 / f64::from(self.nodes.max(1)))
    }
}

/// Returns the seconds from one series to the next if a series blocks the task for `cost` seconds, and its
/// nodes work `mean` seconds on average until one of them is lost.
#[must_use]
pub fn best_interval(cost: f64, mean: f64) -> f64 {
    let cost = cost.max(0.0);
    (cost / MAX_SHARE)
        .max((2.0 * cost * mean).sqrt())
        .min(MAX_SECONDS)
}

/// Returns whether a task is to save its state now. `since` are the seconds since the last series, or since
/// the task began; `until_end` those until it is asked to end; `since_drain` those since the run was asked to
/// drain.
#[must_use]
pub fn is_due(interval: &Interval, since: f64, until_end: Option<f64>, since_drain: Option<f64>) -> bool {
    let last_call = 2.0 * interval.cost.unwrap_or(0.0) + END_SECONDS;
    // Once, and not again and again until the end.
    let ends = until_end.is_some_and(|left| left <= last_call && since > last_call - left);
    let drains = since_drain.is_some_and(|drained| since > drained);
    ends || drains || since >= interval.seconds()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs(cost: f64) -> Interval {
        Interval {
            cost: Some(cost),
            nodes: 1,
            ..Interval::default()
        }
    }

    #[test]
    fn the_interval_grows_with_the_cost() {
        assert_eq!(Interval::default().seconds(), 60.0);
        assert!((costs(0.001).seconds() - 268.3).abs() < 0.1);
        assert!((costs(0.1).seconds() - 2683.3).abs() < 0.1);
        assert_eq!(costs(1.0).seconds(), 3600.0);
        let many = Interval {
            nodes: 10_000,
            losses: 3,
            ..costs(10.0)
        };
        // A node is lost every 15 minutes: 134 s would be best, but 200 s keep the share.
        assert_eq!(many.seconds(), 200.0);
    }

    #[test]
    fn a_task_saves_once_at_a_drain_and_before_the_end() {
        let interval = costs(1.0);
        assert!(!is_due(&interval, 100.0, None, None));
        assert!(is_due(&interval, 3600.0, None, None));
        assert!(is_due(&interval, 100.0, None, Some(5.0)));
        assert!(!is_due(&interval, 3.0, None, Some(5.0)));
        assert!(!is_due(&interval, 100.0, Some(33.0), None));
        assert!(is_due(&interval, 100.0, Some(32.0), None));
        assert!(!is_due(&interval, 1.0, Some(30.0), None));
    }

    proptest! {
        #[test]
        fn the_share_of_time_is_kept(
            cost in 0.0_f64..1e6,
            node_hours in 0.0_f64..1e9,
            losses in 0_u32..1000,
            nodes in 1_u32..100_000,
        ) {
            let interval = Interval { cost: Some(cost), node_hours, losses, nodes };
            let seconds = interval.seconds();
            prop_assert!((0.0..=3600.0).contains(&seconds));
            // Only what costs more than the longest interval allows takes more.
            prop_assert!(seconds >= (cost / 0.05).min(3600.0) * 0.999);
            // More losses never mean a longer interval.
            let riskier = Interval { losses: losses + 1, ..interval };
            prop_assert!(riskier.seconds() <= seconds);
            prop_assert!(is_due(&interval, seconds, None, None));
        }
    }
}
