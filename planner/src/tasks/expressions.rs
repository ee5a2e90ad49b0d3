//! Expressions by which the requests of a job change after an attempt that failed, and the values of those of
//! their variables that the plan knows.

use pmc_expressions::{Amount, PLAN_VARIABLES, mentions};

use crate::exec::Task;
use crate::model::COMPATIBLE_VERSION;
use crate::profiles::Profiles;

use super::plan::PlannedJob;

/// Returns the expressions in profiles. Line ends become blanks: a task is one line.
pub(super) fn of(profiles: &Profiles) -> Vec<(Amount, String)> {
    let expression = |amount| {
        let key = match amount {
            Amount::Cores => "cores.expr",
            Amount::Gpus => "gpus.expr",
            Amount::Memory => "memory.expr",
            Amount::Diskspace => "diskspace.expr",
            Amount::Runtime => "runtime.expr",
        };
        let text = profiles.pegasus(key)?.trim();
        (!text.is_empty()).then(|| (amount, text.replace(['\n', '\r'], " ")))
    };
    Amount::ALL.into_iter().filter_map(expression).collect()
}

/// Returns the values of the variables that the expressions of a job have.
pub(super) fn values(job: PlannedJob<'_>, expressions: &[(Amount, String)]) -> Vec<(&'static str, String)> {
    let is_needed = |name: &&&str| expressions.iter().any(|(_, text)| mentions(text, name));
    let needed = PLAN_VARIABLES.iter().filter(is_needed);
    let values = needed.filter_map(|name| Some((*name, value(job, name)?.replace(['\n', '\r'], " "))));
    values.collect()
}

/// Returns the value of a variable. Settings that a job does not have give none.
fn value(job: PlannedJob<'_>, name: &str) -> Option<String> {
    let plan = job.plan;
    let profile = |key: &str| job.pegasus(key).map(str::to_owned);
    Some(match name {
        "pegasus_generator" => "Pegasus".into(),
        "pegasus_root_wf_uuid" => plan.nesting.root.clone(),
        "pegasus_wf_uuid" => plan.uuid.to_owned(),
        "pegasus_version" => COMPATIBLE_VERSION.into(),
        "pegasus_wf_name" => format!("{}-{}", plan.workflow.label, plan.workflow.index),
        "pegasus_wf_xformation" => {
            let mut text = String::new();
            plan.push_transformation(&job, &mut text);
            text
        }
        "pegasus_wf_dax_job_id" => plan.logical_id(&job).to_owned(),
        "pegasus_job_class" => job.task.kind().0.to_string(),
        "pegasus_site" => plan.sites.get(job.site).name.clone(),
        "pegasus_cluster_size" => match job.task {
            Task::Cluster(list, _) => plan.exec.clusters[list].members.len().to_string(),
            _ => "1".into(),
        },
        "pegasus_project" => profile("project")?,
        "pegasus_queue" => profile("queue")?,
        "pegasus_glite_arguments" => profile("glite.arguments")?,
        "pegasus_diskspace_mb" => profile("diskspace")?,
        "pegasus_job_runtime" => profile("runtime")?,
        _ => return None,
    })
}
