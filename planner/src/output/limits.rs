//! Time, memory, CPUs and priority of a job, from its profiles.

use std::fmt::Write as _;

use crate::error::{Cause, Problem};
use crate::exec::JobId;
use crate::profiles::{Namespace, Profiles};
use crate::task_request::{self, CPUS, GPUS, MEMORY, PRIORITY};

use super::Plan;
use super::command::Command;

/// Returns the seconds until TERM, and from TERM to KILL.
///
/// Only explicit limits count. The profile `runtime` is an estimate, so a longer job must not be killed. It
/// only limits the time after the checkpoint time.
pub(crate) fn timeouts(profiles: &Profiles) -> Result<Option<(i64, Option<i64>)>, String> {
    let number = |namespace: Namespace, key: &str| -> Result<Option<i64>, String> {
        match profiles.get(namespace, key).map(str::trim) {
            None | Some("") => Ok(None),
            Some(text) => text
                .parse::<i64>()
                .ok()
                .filter(|n| (0..=i64::MAX / 60).contains(n))
                .map(Some)
                .ok_or_else(|| {
                    format!(
                        "the profile {}::{key} must be a whole number, not {text}",
                        namespace.as_str()
                    )
                }),
        }
    };
    let wall = match number(Namespace::Pegasus, "maxwalltime")? {
        Some(minutes) => Some(minutes),
        None => number(Namespace::Globus, "maxwalltime")?,
    }
    .map(|minutes| minutes * 60);
    let checkpoint = number(Namespace::Pegasus, "checkpoint.time")?;
    let Some(checkpoint) = checkpoint.map(|minutes| minutes * 60) else {
        let Some(max) = wall else { return Ok(None) };
        let term = if max >= 300 { max - 300 } else { max - 10 };
        if term < 0 {
            return Ok(None);
        }
        return Ok(Some((term, Some((max - term) / 2))));
    };
    let max = match wall {
        Some(max) => Some(max),
        None => number(Namespace::Pegasus, "runtime")?,
    };
    match max {
        None => Ok(Some((checkpoint, None))),
        Some(max) if max - checkpoint < 10 => Err(format!(
            "there are less than 10 seconds between the checkpoint time ({checkpoint} s) and the largest run time \
             ({max} s)"
        )),
        Some(max) => Ok(Some((checkpoint, Some((max - checkpoint) / 2)))),
    }
}

/// Sets resources and options of a task from its profiles.
pub(crate) fn resources(plan: &Plan<'_>, id: JobId, command: &mut Command, problems: &mut Vec<String>) {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup].profiles;
    let text = |key: &str| profiles.pegasus(key).map(str::trim).filter(|t| !t.is_empty());
    for key in ["memory", "diskspace"] {
        if let Some(value) = text(key)
            && !value.bytes().all(|b| b.is_ascii_digit())
        {
            problems.push(format!(
                "Invalid Value specified for {key} {value} for job {}: it must be a whole number of MiB",
                job.name
            ));
        }
    }
    let requested = |keys| task_request::find(profiles, keys).map(|(_, value)| value);
    if let Some(value) = requested(MEMORY).map(|value| value.text()) {
        match value.parse::<f64>() {
            // 2^53 is the largest exact integer.
            Ok(mb) if (0.0..9e15).contains(&mb) => command.memory_mb = (mb >= 1.0).then_some(mb as u64),
            _ => problems.push(format!(
                "Invalid Value specified for memory {value} for job {}: it must be a number of MiB",
                job.name
            )),
        }
    }
    if let Some(value) = requested(CPUS).map(|value| value.text()) {
        match value.parse::<u32>() {
            Ok(cpus) => command.cpus = (cpus > 0).then_some(cpus),
            Err(_) => problems.push(format!(
                "Invalid Value specified for cpu count {value} for job {}",
                job.name
            )),
        }
    }
    if let Some(value) = requested(GPUS).map(|value| value.text()) {
        match value.parse::<u32>() {
            Ok(gpus) => command.gpus = (gpus > 0).then_some(gpus),
            Err(_) => problems.push(format!(
                "Invalid Value specified for gpu count {value} for job {}: it must be a whole number",
                job.name
            )),
        }
    }
    if let Some(value) = requested(PRIORITY).map(|value| value.text()) {
        match value.parse::<i64>() {
            Ok(priority) => command.priority = Some(priority),
            Err(_) => problems.push(format!(
                "Invalid Value specified for job priority {value} for job {}: it must be a whole number",
                job.name
            )),
        }
    }
    match task_request::tries(profiles) {
        Ok(tries) => command.tries = tries,
        Err(value) => problems.push(format!(
            "Invalid Value specified for retry {value} for job {}: it must be a whole number",
            job.name
        )),
    }
    if let Some(options) = text("pmc_task_arguments").or_else(|| text("pmc_arguments")) {
        command.options = options.to_owned();
    }
}

/// Appends the task option for more memory after an attempt that ran out of it.
///
/// # Errors
/// An invalid profile; the message names the job.
pub(crate) fn push_more_memory(plan: &Plan<'_>, id: JobId, options: &mut String) -> Result<(), Problem> {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup].profiles;
    let Some(factor) = profiles.pegasus("pmc_more_memory").map(str::trim) else {
        return Ok(());
    };
    if pmc_dag::factor(factor.as_bytes()).is_none() {
        return Err(Cause::Profile.problem(format!(
            "Invalid Value specified for pmc_more_memory {factor} for job {}: it must be a number from 1 to 1000",
            job.name
        )));
    }
    // Writing into a String cannot fail.
    let _ = write!(options, "--more-memory {factor} ");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(entries: &[(Namespace, &str, &str)]) -> Result<Option<(i64, Option<i64>)>, String> {
        let mut profiles = Profiles::default();
        for (namespace, key, value) in entries {
            profiles.set(*namespace, key, value);
        }
        timeouts(&profiles)
    }

    #[test]
    fn kickstart_kills_only_at_explicit_limits() {
        use Namespace::{Globus, Pegasus};
        assert_eq!(limits(&[]), Ok(None));
        assert_eq!(limits(&[(Pegasus, "runtime", "333")]), Ok(None));
        assert_eq!(
            limits(&[(Pegasus, "maxwalltime", "10")]),
            Ok(Some((300, Some(150))))
        );
        assert_eq!(
            limits(&[(Globus, "maxwalltime", "30")]),
            Ok(Some((1500, Some(150))))
        );
        assert_eq!(
            limits(&[(Pegasus, "checkpoint.time", "2"), (Pegasus, "runtime", "600")]),
            Ok(Some((120, Some(240))))
        );
        assert_eq!(
            limits(&[(Pegasus, "checkpoint.time", "2")]),
            Ok(Some((120, None)))
        );
        assert!(limits(&[(Pegasus, "checkpoint.time", "10"), (Pegasus, "maxwalltime", "10")]).is_err());
        assert!(limits(&[(Pegasus, "maxwalltime", "soon")]).is_err());
    }
}
