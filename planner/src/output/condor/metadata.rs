//! Metadata of jobs and their files, for tools that look for it: `B.metadata`.

use serde_json::{Map, Value, json};

use crate::exec::JobId;
use crate::exec::Task;
use crate::ids::Id as _;
use crate::profiles::Namespace;
use crate::tasks::{Plan, PlannedJob};

/// Returns the file.
pub(super) fn metadata(plan: &Plan<'_>) -> String {
    let workflow: Map<String, Value> = plan
        .workflow
        .metadata
        .iter()
        .map(|(key, value)| ((*key).to_string(), Value::from(&**value)))
        .collect();
    let jobs: Map<String, Value> = JobId::first(plan.exec.jobs.len())
        .map(|id| {
            let job = plan.at(id);
            (job.name.to_string(), Value::Object(of_job(job)))
        })
        .collect();
    let value = json!({
        "root_workflow_uuid": plan.nesting.root,
        "workflow_uuid": plan.uuid,
        "wf_metadata": workflow,
        "graph": {"jobs": jobs},
    });
    // Strings can always be serialized.
    format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default())
}

/// Returns the metadata of a job, and those of its files as `FILE@KEY`.
fn of_job(job: PlannedJob<'_>) -> Map<String, Value> {
    let plan = job.plan;
    let mut all = Map::new();
    let Task::Compute(n) = job.task else {
        return all;
    };
    let abstract_job = &plan.workflow.jobs[n];
    for (key, value) in abstract_job.metadata.iter() {
        all.insert(key.to_string(), Value::from(value.as_str()));
    }
    for (key, value) in abstract_job.profiles.of(Namespace::Metadata) {
        all.insert(key.to_owned(), Value::from(value));
    }
    for u in job.uses() {
        let name = plan.workflow.files.name(u.file);
        for (key, value) in u.metadata.iter() {
            all.insert(format!("{name}@{key}"), Value::from(value.as_str()));
        }
    }
    all
}
