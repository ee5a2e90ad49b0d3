//! Resources used by a process.

use std::time::Duration;

use monitord_compat::invocation_record::Usage;
use nix::sys::resource::{UsageWho, getrusage};

use crate::context::OwnUsage;

/// The counters of the system in the words of the record.
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

/// What this process or thread has used so far.
#[must_use]
pub fn own(whose: OwnUsage) -> Usage {
    let who = match whose {
        OwnUsage::Process => UsageWho::RUSAGE_SELF,
        OwnUsage::Thread => UsageWho::RUSAGE_THREAD,
    };
    getrusage(who)
        .map(|usage| from_system(usage.as_ref()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_memory() {
        assert!(own(OwnUsage::Process).max_rss_kib > 0);
    }
}
