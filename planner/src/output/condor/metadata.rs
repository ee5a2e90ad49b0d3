//! Metadata of jobs and their files, for tools that look for it: `B.metadata`, and for each script the
//! metadata of its inputs.

use serde_json::{Map, Value, json};

use crate::exec::{JobId, Task};
use crate::ids::Id as _;
use crate::model::{FileKind, FileUse, Link};
use crate::profiles::Namespace;
use crate::refine::settings::Integrity;
use crate::tasks::{Plan, PlannedJob};

use super::context::Context;

/// Suffix of the file with the metadata of a script's inputs.
pub(super) const OF_INPUTS: &str = ".in.meta";

/// Returns the metadata of the inputs of a script, in which `pegasus-integrity` finds the checksums of
/// catalogs. `None` if nothing is known.
pub(super) fn of_inputs(context: &Context<'_>, job: PlannedJob<'_>) -> Option<String> {
    if !context.is_script(job) || !job.is_lite() || context.plan.settings.integrity == Integrity::None {
        return None;
    }
    let inputs = job
        .uses()
        .iter()
        .filter(|u| u.link.reads() && u.link != Link::Checkpoint);
    let known = inputs.filter_map(|u| {
        let attributes = attributes(context, job, u);
        let kind = match u.kind {
            FileKind::Executable => "executable",
            FileKind::Image => "container",
            _ => "data",
        };
        let name = context.plan.workflow.files.name(u.file);
        (!attributes.is_empty()).then(|| json!({"_type": kind, "_id": name, "_attributes": attributes}))
    });
    let all: Vec<Value> = known.collect();
    // Strings can always be serialized.
    (!all.is_empty()).then(|| format!("{}\n", serde_json::to_string_pretty(&all).unwrap_or_default()))
}

/// Returns the metadata of an input: of its use, and of catalogs.
fn attributes(context: &Context<'_>, job: PlannedJob<'_>, u: &FileUse) -> Map<String, Value> {
    let exec = context.plan.exec;
    let staged = context.metadata.get(&u.file).copied().unwrap_or_default();
    let mut all: Map<String, Value> = staged
        .iter()
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect();
    let bypassed = exec
        .bypassed(&job, u)
        .and_then(|bypassed| bypassed.sha256.as_deref());
    let of_image = exec.files.image(u.file).and_then(|image| image.sha256.as_deref());
    if let Some(sha256) = bypassed.or(of_image) {
        all.insert("checksum.type".to_owned(), Value::from("sha256"));
        all.insert("checksum.value".to_owned(), Value::from(sha256));
    }
    for (key, value) in u.metadata.iter() {
        all.insert(key.to_string(), Value::from(&**value));
    }
    all
}

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
