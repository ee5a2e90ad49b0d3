//! Resource usage of processes.

use std::time::Duration;

use monitord_compat::invocation_record::Usage;
use nix::sys::resource::{UsageWho, getrusage};

/// Whose resource usage is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageScope {
    /// The process, from its start.
    Process,
    /// The process, from the time when its usage was this.
    Since(Usage),
    /// The calling thread.
    Thread,
}

/// Converts the counters of the system to those of the record.
#[must_use]
pub fn from_system(raw: &libc::rusage) -> Usage {
    let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
    let time = |value: libc::timeval| {
        let micros = u64::try_from(value.tv_usec).unwrap_or(0);
        Duration::from_secs(u64::try_from(value.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
    };
    Usage {
        user_time: time(raw.ru_utime),
        system_time: time(raw.ru_stime),
        max_rss_kib: count(raw.ru_maxrss),
        minor_faults: count(raw.ru_minflt),
        major_faults: count(raw.ru_majflt),
        swaps: count(raw.ru_nswap),
        blocks_in: count(raw.ru_inblock),
        blocks_out: count(raw.ru_oublock),
        messages_sent: count(raw.ru_msgsnd),
        messages_received: count(raw.ru_msgrcv),
        signals: count(raw.ru_nsignals),
        voluntary_switches: count(raw.ru_nvcsw),
        involuntary_switches: count(raw.ru_nivcsw),
    }
}

/// Returns what this process or thread has used so far.
#[must_use]
pub fn own(scope: UsageScope) -> Usage {
    let who = match scope {
        UsageScope::Process | UsageScope::Since(_) => UsageWho::RUSAGE_SELF,
        UsageScope::Thread => UsageWho::RUSAGE_THREAD,
    };
    let usage = getrusage(who)
        .map(|usage| from_system(usage.as_ref()))
        .unwrap_or_default();
    match scope {
        UsageScope::Since(before) => difference(usage, before),
        UsageScope::Process | UsageScope::Thread => usage,
    }
}

/// Raises times of zero to a millisecond, since readers compute ratios of them.
#[must_use]
pub fn measurable(usage: Usage) -> Usage {
    Usage {
        user_time: usage.user_time.max(Duration::from_millis(1)),
        system_time: usage.system_time.max(Duration::from_millis(1)),
        ..usage
    }
}

/// Adds two usages; the peak memory is the larger one.
#[must_use]
pub fn sum(one: Usage, other: Usage) -> Usage {
    Usage {
        user_time: one.user_time + other.user_time,
        system_time: one.system_time + other.system_time,
        max_rss_kib: one.max_rss_kib.max(other.max_rss_kib),
        minor_faults: one.minor_faults + other.minor_faults,
        major_faults: one.major_faults + other.major_faults,
        swaps: one.swaps + other.swaps,
        blocks_in: one.blocks_in + other.blocks_in,
        blocks_out: one.blocks_out + other.blocks_out,
        messages_sent: one.messages_sent + other.messages_sent,
        messages_received: one.messages_received + other.messages_received,
        signals: one.signals + other.signals,
        voluntary_switches: one.voluntary_switches + other.voluntary_switches,
        involuntary_switches: one.involuntary_switches + other.involuntary_switches,
    }
}

/// Returns what was used between two measurements; the peak memory is that of the later one.
fn difference(after: Usage, before: Usage) -> Usage {
    Usage {
        user_time: after.user_time.saturating_sub(before.user_time),
        system_time: after.system_time.saturating_sub(before.system_time),
        max_rss_kib: after.max_rss_kib,
        minor_faults: after.minor_faults.saturating_sub(before.minor_faults),
        major_faults: after.major_faults.saturating_sub(before.major_faults),
        swaps: after.swaps.saturating_sub(before.swaps),
        blocks_in: after.blocks_in.saturating_sub(before.blocks_in),
        blocks_out: after.blocks_out.saturating_sub(before.blocks_out),
        messages_sent: after.messages_sent.saturating_sub(before.messages_sent),
        messages_received: after.messages_received.saturating_sub(before.messages_received),
        signals: after.signals.saturating_sub(before.signals),
        voluntary_switches: after.voluntary_switches.saturating_sub(before.voluntary_switches),
        involuntary_switches: after
            .involuntary_switches
            .saturating_sub(before.involuntary_switches),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_undoes_a_sum() {
        let one = own(UsageScope::Process);
        let other = Usage {
            user_time: Duration::from_millis(3),
            max_rss_kib: one.max_rss_kib,
            minor_faults: 7,
            ..Usage::default()
        };
        assert_eq!(difference(sum(one, other), one), other);
        assert_eq!(measurable(other).system_time, Duration::from_millis(1));
    }

    #[test]
    fn a_process_uses_memory() {
        assert!(own(UsageScope::Process).max_rss_kib > 0);
    }
}
