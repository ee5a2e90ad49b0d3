//! Selection of sites, replicas and storage locations, and types of catalogs.

mod bare_sites;
mod catalogs;
mod containers;
mod directories;
mod lite;
mod replicas;
mod sites;
mod storage;

use crate::common::{Case, Plan};

/// A workflow of one job on `local` that reads `in` and writes `end`.
fn one_job() -> Case {
    let case = Case::new(
        "pegasus: \"5.0\"\nname: w\njobs:\n- type: job\n  id: A\n  name: x\n  uses:\n  - {lfn: in, type: input}\n  - \
         {lfn: end, type: output, stageOut: true, registerReplica: true}\n",
    );
    case.programs(&["x"]);
    case
}

/// Sources of a file in the stage-in tasks: site, URL, priority.
fn sources(plan: &Plan, lfn: &str) -> Vec<(String, String, u64)> {
    let tasks = plan
        .tasks()
        .into_iter()
        .filter(|task| task.starts_with("stage_in_"));
    let orders: Vec<serde_json::Value> = tasks
        .flat_map(|task| plan.orders(&task).as_array().cloned().unwrap_or_default())
        .filter(|order| order["lfn"] == lfn)
        .collect();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    orders
        .iter()
        .flat_map(|order| order["src_urls"].as_array().cloned().unwrap_or_default())
        .map(|source| {
            let priority = source["priority"].as_u64().unwrap_or_default();
            (text(&source["site_label"]), text(&source["url"]), priority)
        })
        .collect()
}

/// The URLs of [`sources`].
fn urls(plan: &Plan, lfn: &str) -> Vec<String> {
    sources(plan, lfn).into_iter().map(|(_, url, _)| url).collect()
}
