//! Prints results, for people and as JSON.

use std::collections::BTreeMap;

use crate::diagnostic::Diagnostic;
use crate::plan::{Planned, Preview};
use pmc_batch::submit::{Submitted, command_line, is_installed};
use pmc_calls::shell::shell_quote;

/// Returns the result for people: first how to run the plan where a scheduler is on the `PATH` of this
/// environment, else how to run it on this machine.
pub fn result_text(planned: &Planned, environment: &BTreeMap<String, String>) -> String {
    let counts = &planned.counts;
    let kinds: Vec<String> = counts
        .kinds()
        .into_iter()
        .enumerate()
        .filter(|(at, (_, number))| *at == 0 || *number > 0)
        .map(|(_, (kind, number))| format!("{number} {kind}"))
        .collect();
    let mut text = format!(
        "Planned {}: {} tasks ({}), {} dependencies.\nSubmit directory: {}\n",
        planned.label,
        counts.total,
        kinds.join(", "),
        counts.edges,
        planned.submit_dir.display()
    );
    let (here, elsewhere): (Vec<_>, Vec<_>) = planned
        .scripts
        .iter()
        .partition(|script| is_installed(script.scheduler, environment));
    let by_hand = match (&planned.shell, &planned.condor) {
        (Some(script), _) => script.display().to_string(),
        (None, Some(_)) => format!(
            "pmc pegasus run {}",
            shell_quote(&planned.submit_dir.display().to_string())
        ),
        (None, None) => format!(
            "pegasus-mpi-cluster {} {}",
            planned.log_options.join(" "),
            shell_quote(&planned.dag.display().to_string())
        ),
    };
    let is_first = planned.shell.is_some() || (here.is_empty() && !planned.needs_nodes);
    if is_first {
        text.push_str(&format!("To run it:        {by_hand}\n"));
    }
    for (title, scripts) in [("To run it:    ", here), ("On a cluster: ", elsewhere)] {
        for script in scripts {
            let command = command_line(script.scheduler, &script.path);
            text.push_str(&format!("{title}    {command}\n"));
        }
    }
    if let Some(size) = &planned.batch_size {
        text.push_str(&format!("Batch job:        {size}\n"));
    }
    if let Some(files) = &planned.run_files {
        text.push_str(&format!("Files of a run:   {files}\n"));
    }
    if !is_first && !planned.needs_nodes {
        text.push_str(&format!("On this machine:  {by_hand}\n"));
    }
    text
}

/// Returns the result of `--submit` for people.
pub fn submitted_text(submitted: &Submitted) -> String {
    match &submitted.job_id {
        Some(id) => format!("Submitted:        {} job {id}\n", submitted.scheduler),
        None => format!(
            "Submitted:        to {}, which printed no job number\n",
            submitted.scheduler
        ),
    }
}

/// Returns a preview, for people or as a JSON object.
pub fn preview_text(preview: &Preview, json: bool) -> String {
    if json {
        let mut value = preview.summary.json();
        if let Some(object) = value.as_object_mut() {
            object.insert("explanations".into(), preview.explanations.clone().into());
            object.insert("warnings".into(), texts(&preview.warnings).into());
        }
        // A tree of strings and numbers always has a text.
        return format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default());
    }
    if preview.explanations.is_empty() {
        preview.summary.to_text()
    } else {
        preview.explanations.join("\n")
    }
}

/// Returns the result as a JSON object: the braindump, and how to run the plan.
pub fn result_json(
    planned: &Planned,
    submitted: Option<&Submitted>,
    environment: &BTreeMap<String, String>,
) -> String {
    let mut object = serde_json::Map::new();
    for (key, value) in &planned.braindump {
        object.insert(key.clone(), value.clone().into());
    }
    object.insert("message".into(), result_text(planned, environment).into());
    let scripts: Vec<String> = planned
        .scripts
        .iter()
        .map(|s| s.path.display().to_string())
        .collect();
    object.insert("scripts".into(), scripts.into());
    if let Some(script) = &planned.shell {
        object.insert("run".into(), script.display().to_string().into());
    }
    if let Some(description) = &planned.condor {
        object.insert("submit".into(), description.display().to_string().into());
    }
    if let Some(submitted) = submitted {
        object.insert("scheduler".into(), submitted.scheduler.name().into());
        object.insert("job_id".into(), submitted.job_id.clone().into());
    }
    object.insert("warnings".into(), texts(&planned.warnings).into());
    let value = serde_json::Value::Object(object);
    // A tree of strings always has a text.
    format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default())
}

fn texts(warnings: &[Diagnostic]) -> Vec<String> {
    warnings.iter().map(Diagnostic::to_string).collect()
}
