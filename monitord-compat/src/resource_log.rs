//! `.resource`: the free resources of a host, one line per change.
//!
//! Where workers come and go during a run, a line with signed numbers says what came to a host or left it.
//! A line whose numbers begin with `=` says what is free where nothing has started or ended: a task over
//! several hosts has taken a part of it, or has given it back.
//!
//! The values are separated by commas, as in pegasus-mpi-cluster 5.1: seconds since the epoch with six
//! decimals, free slots, free CPUs, free memory in MB, host name.

use std::io::Write as _;
use std::time::Duration;

/// Free resources of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free<'a> {
    /// Host name.
    pub host: &'a str,
    /// Free slots: workers of the host without a task.
    pub slots: u32,
    /// Free CPUs.
    pub cpus: u32,
    /// Free memory in MB.
    pub memory_mb: u64,
}

/// Writes one line. `at` is the time since the epoch.
pub fn line(out: &mut Vec<u8>, at: Duration, free: Free<'_>) {
    signed(out, at, "", free);
}

/// Writes what is free on a host where no task has started or ended.
pub fn beside(out: &mut Vec<u8>, at: Duration, free: Free<'_>) {
    signed(out, at, "=", free);
}

/// Writes what came to a known host, or left it, with a worker.
pub fn capacity(out: &mut Vec<u8>, at: Duration, gone: bool, amount: Free<'_>) {
    signed(out, at, if gone { "-" } else { "+" }, amount);
}

/// Writes a line with a sign before each amount.
fn signed(out: &mut Vec<u8>, at: Duration, sign: &str, amount: Free<'_>) {
    let Free {
        host,
        slots,
        cpus,
        memory_mb,
    } = amount;
    let (seconds, micros) = (at.as_secs(), at.subsec_micros());
    writeln!(
        out,
        "{seconds}.{micros:06},{sign}{slots},{sign}{cpus},{sign}{memory_mb},{host}"
    )
    .expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_all_values() {
        let mut out = Vec::new();
        let free = Free {
            host: "n1",
            slots: 2,
            cpus: 16,
            memory_mb: 24_104,
        };
        line(&mut out, Duration::from_millis(1_500), free);
        assert_eq!(out, b"1.500000,2,16,24104,n1\n");
        out.clear();
        capacity(&mut out, Duration::from_secs(2), true, Free { slots: 1, ..free });
        assert_eq!(out, b"2.000000,-1,-16,-24104,n1\n");
        out.clear();
        beside(&mut out, Duration::from_secs(3), free);
        assert_eq!(out, b"3.000000,=2,=16,=24104,n1\n");
    }
}
