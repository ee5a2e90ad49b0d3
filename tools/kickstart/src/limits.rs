//! Resource limits of this process.

use monitord_compat::invocation_record::Limit;

/// Names of the limits, indexed by the kernel's numbers. Two have no name in the record.
const NAMES: [Option<&str>; 16] = [
    Some("CPU"),
    Some("FSIZE"),
    Some("DATA"),
    Some("STACK"),
    Some("CORE"),
    None,
    Some("NPROC"),
    Some("NOFILE"),
    Some("MEMLOCK"),
    Some("AS"),
    Some("LOCKS"),
    Some("SIGPENDING"),
    Some("MSGQUEUE"),
    Some("NICE"),
    Some("RTPRIO"),
    None,
];

/// Returns the limits of this process, which its children inherit.
#[must_use]
pub fn read() -> Vec<Limit> {
    let mut limits = Vec::with_capacity(NAMES.len());
    for (number, name) in NAMES.iter().enumerate() {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        let Ok(resource) = u32::try_from(number) else {
            continue;
        };
        #[expect(unsafe_code, reason = "nix knows only some of the resources")]
        // SAFETY: getrlimit writes to the limit only, and returns an error for an unknown number.
        let result = unsafe { libc::getrlimit(resource as _, &raw mut limit) };
        if result == 0 {
            let name = name.map_or_else(|| format!("RESOURCE_{number}"), |name| format!("RLIMIT_{name}"));
            let value = |value| (value != libc::RLIM_INFINITY).then_some(value);
            limits.push((name.into(), value(limit.rlim_cur), value(limit.rlim_max)));
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named() {
        let names: Vec<_> = read().into_iter().map(|limit| limit.0).collect();
        assert_eq!(
            &names[..6],
            [
                "RLIMIT_CPU",
                "RLIMIT_FSIZE",
                "RLIMIT_DATA",
                "RLIMIT_STACK",
                "RLIMIT_CORE",
                "RESOURCE_5"
            ]
        );
    }
}
