//! Resources that a job requests, and further macros that its commands refer to.
//!
//! A command such as `request_memory` refers to a macro, `$(pegasus_memory_mb)`, so that `pegasus-exitcode`
//! can change it before the next attempt.

use std::borrow::Cow;

use crate::exec::{Aggregator, Task};
use crate::profiles::Namespace;
use crate::tasks::PlannedJob;

use super::ad::Ad;

/// Keys of the namespace `pegasus` that have expressions, with the macros that they set.
const EXPRESSIONS: [&str; 8] = [
    "cores",
    "diskspace",
    "glite.arguments",
    "gpus",
    "memory",
    "project",
    "queue",
    "runtime",
];

/// A request: the command of HTCondor, the profile of the namespace `pegasus`, the macro, and the unit of the
/// macro.
struct Request {
    command: &'static str,
    profile: &'static str,
    name: &'static str,
    unit: &'static str,
}

const CPUS: Request = Request {
    command: "request_cpus",
    profile: "cores",
    name: "pegasus_cores",
    unit: "",
};
const GPUS: Request = Request {
    command: "request_gpus",
    profile: "gpus",
    name: "pegasus_gpus",
    unit: "",
};
const MEMORY: Request = Request {
    command: "request_memory",
    profile: "memory",
    name: "pegasus_memory_mb",
    unit: " MB",
};
const DISK: Request = Request {
    command: "request_disk",
    profile: "diskspace",
    name: "pegasus_diskspace_mb",
    unit: " MB",
};

/// Adds requests and macros. `has_requests`: HTCondor finds a machine for the job.
pub(super) fn add<'a>(job: PlannedJob<'a>, has_requests: bool, ad: &mut Ad<'a>) -> Result<(), String> {
    let is_compute = matches!(job.task, Task::Compute(_) | Task::Cluster(..));
    let runtime = whole(job, "runtime")?
        .map(str::to_owned)
        .or_else(|| wall_time(job));
    ad.macros.push((
        "pegasus_job_runtime".into(),
        runtime.unwrap_or_else(|| "0".to_owned()),
    ));
    for request in [CPUS, GPUS, MEMORY, DISK] {
        let of_user = ad.get(request.command).map(str::to_owned);
        let own = whole(job, request.profile)?;
        let value = match &of_user {
            Some(value) => Some(converted(&request, value)),
            None => own.map(str::to_owned).or_else(|| of_members(job, &request)),
        };
        let default = match request.name {
            "pegasus_cores" => Some("1"),
            "pegasus_gpus" => Some("0"),
            _ => None,
        };
        let asks = value
            .as_deref()
            .is_some_and(|value| request.name != "pegasus_gpus" || value.trim() != "0");
        if !(has_requests && is_compute && asks) {
            ad.commands.remove(request.command);
        } else {
            let unit = match of_user.is_some() && request.name == "pegasus_memory_mb" {
                true => "",
                false => request.unit,
            };
            ad.set(request.command, format!("$({}){unit}", request.name));
        }
        if let Some(value) = value.or(default.map(str::to_owned))
            && (is_compute || default.is_some())
        {
            ad.macros.push((request.name.into(), value));
        }
    }
    expressions(job, ad);
    Ok(())
}

/// Returns the largest request of the jobs of a cluster, which run one after another. Those of
/// pegasus-mpi-cluster have nodes with a memory of their own.
fn of_members(job: PlannedJob<'_>, request: &Request) -> Option<String> {
    let Task::Cluster(_, aggregator) = job.task else {
        return None;
    };
    if aggregator == Aggregator::MpiExec && request.name != "pegasus_diskspace_mb" {
        return None;
    }
    let plan = job.plan;
    let members = job.cluster()?.members.clone();
    let members = members.map(|position| plan.at(plan.member(position)));
    let amounts = members.filter_map(|member| member.pegasus(request.profile)?.parse::<u64>().ok());
    amounts.max().map(|amount| amount.to_string())
}

/// Returns a profile that must be a whole number.
fn whole<'a>(job: PlannedJob<'a>, key: &str) -> Result<Option<&'a str>, String> {
    let Some(value) = job.pegasus(key) else {
        return Ok(None);
    };
    match value.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(Some(value)),
        false => Err(format!(
            "Invalid Value specified for {key} {value} for job {}: it must be a whole number",
            job.name
        )),
    }
}

/// Returns the run time of the namespace `globus`, which counts minutes, in seconds.
fn wall_time(job: PlannedJob<'_>) -> Option<String> {
    let minutes = job.setup.profiles.get(Namespace::Globus, "maxwalltime")?;
    let minutes: u64 = minutes.trim().parse().ok()?;
    Some(minutes.saturating_mul(60).to_string())
}

/// Returns the value of a command of the user in the unit of its macro. Expressions stay.
fn converted(request: &Request, value: &str) -> String {
    let value = value.trim();
    let number = value
        .trim_end_matches(|c: char| c.is_ascii_alphabetic())
        .trim_end();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let has_unit = number.len() < value.len();
    match request.name {
        // Without a unit, HTCondor counts the disk in KiB.
        "pegasus_diskspace_mb" if is_number && !has_unit => {
            let kib: u64 = number.parse().unwrap_or(u64::MAX);
            kib.div_ceil(1024).to_string()
        }
        "pegasus_diskspace_mb" | "pegasus_memory_mb" if is_number => {
            crate::profiles::megabytes(value).map_or_else(|| value.to_owned(), |mb| mb.to_string())
        }
        _ => value.to_owned(),
    }
}

/// Adds the expressions for the next attempt, for `pegasus-exitcode`.
fn expressions<'a>(job: PlannedJob<'a>, ad: &mut Ad<'a>) {
    for key in EXPRESSIONS {
        if let Some(text) = job.pegasus(&format!("{key}.expr")) {
            let name = format!("pegasus_{}_expr", key.replace('.', "_"));
            ad.commands
                .insert(Cow::Owned(name), Cow::Owned(format!("'{text}'")));
        }
    }
}
