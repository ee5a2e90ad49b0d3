//! Arguments of sub-workflow jobs, which are planner options. Options that the plan fulfils anyway are
//! accepted. Options without effect on the results give a warning. Other options are refused.

use std::path::PathBuf;

use crate::model::{Arguments, Job, Workflow};
use crate::properties::{Properties, PropertySources};
use crate::request::SubworkflowOptions;

use super::super::replicas::Replicas;
use super::{OuterWorkflow, canonical};

/// Advice about an option that differs.
const WITH_PLAN: &str = "Plan the whole with it, or leave it out here";

/// Checks the arguments of a sub-workflow job.
#[expect(clippy::too_many_lines, reason = "one option after another")]
pub(super) fn check(
    workflow: &Workflow,
    job: &Job,
    outer: &OuterWorkflow<'_>,
    replicas: &Replicas,
    warnings: &mut Vec<String>,
    problems: &mut Vec<String>,
) {
    let words: Vec<String> = match &job.arguments {
        Arguments::Raw(text) => pmc_dag::words::Words::new(text.as_bytes())
            .map(|word| String::from_utf8_lossy(&word).into_owned())
            .collect(),
        Arguments::Words(words) => words.iter().map(str::to_owned).collect(),
    };
    let own = match (outer.request.parse_options)(&words) {
        Ok(options) => options,
        Err(error) => {
            let message = error.to_string();
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            let first = message.lines().next().unwrap_or_default();
            problems.push(format!(
                "the job {}: its arguments {}: {first}",
                job.id,
                words.join(" ")
            ));
            return;
        }
    };
    let request = outer.request;
    let mut refuse = |option: &str, value: String, advice: &str| {
        problems.push(format!(
            "the job {}: its argument {option} {value} differs from what the workflow around it is planned with; \
             its jobs become part of that plan. {advice}",
            job.id
        ));
    };
    let differ = |own: &[String], whole: &[String]| -> bool {
        let sorted = |list: &[String]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list.dedup();
            list
        };
        !own.is_empty() && sorted(own) != sorted(whole)
    };
    if differ(&own.sites, &request.sites) {
        refuse("--sites", own.sites.join(","), WITH_PLAN);
    }
    if differ(&own.output_sites, &request.output_sites) {
        refuse("--output-sites", own.output_sites.join(","), WITH_PLAN);
    }
    let here = &request.environment.working_dir;
    if let Some(dir) = &own.output_dir
        && request.output_dir.as_ref().map(|d| here.join(d)) != Some(here.join(dir))
    {
        refuse("--output-dir", dir.clone(), WITH_PLAN);
    }
    let path = |file: &PathBuf| -> PathBuf {
        let name = file.to_string_lossy();
        let location = replicas
            .lookup(&name)
            .and_then(|known| known.replicas.into_iter().next());
        match location {
            Some(replica) => replica.pfn.strip_prefix("file://").unwrap_or(&replica.pfn).into(),
            None => {
                let beside = workflow.path.with_file_name(file);
                if file.is_relative() && beside.exists() {
                    beside
                } else {
                    here.join(file)
                }
            }
        }
    };
    for (option, own, whole) in [
        ("--cache", &own.cache, &request.cache_files),
        ("--inherited-rc-files", &own.inherited, &request.inherited_files),
        ("--input-dir", &own.input_dirs, &request.input_dirs),
    ] {
        for file in own {
            let file = canonical(&path(file));
            if !whole.iter().any(|known| canonical(known) == file) {
                refuse(option, file.display().to_string(), WITH_PLAN);
            }
        }
    }
    if let Some(dir) = &own.transformations_dir {
        let dir = canonical(&path(dir));
        if request.transformations_dir.as_deref().map(canonical) != Some(dir.clone()) {
            refuse("--transformations-dir", dir.display().to_string(), WITH_PLAN);
        }
    }
    check_properties(job, outer, &own, path, problems);
    if !own.without_effect.is_empty() {
        warnings.push(format!(
            "the job {}: the arguments {} are passed over, since its jobs become jobs of this plan, where the options \
             of the whole hold",
            job.id,
            own.without_effect.join(", ")
        ));
    }
}

/// Refuses properties that differ from those of the outer workflow.
fn check_properties(
    job: &Job,
    outer: &OuterWorkflow<'_>,
    own: &SubworkflowOptions,
    path: impl Fn(&PathBuf) -> PathBuf,
    problems: &mut Vec<String>,
) {
    let request = outer.request;
    let conf = own
        .conf
        .as_ref()
        .map(path)
        .filter(|file| Some(canonical(file)) != request.conf.as_deref().map(canonical));
    let sources = PropertySources {
        system_file: None,
        user_file: None,
        working_file: None,
        conf_file: conf,
        environment: Vec::new(),
        command_line: own.defines.clone(),
    };
    match Properties::load(&sources) {
        Err(e) => problems.push(format!("the job {}: {e}", job.id)),
        Ok(properties) => {
            for (key, value) in properties.iter() {
                if outer.properties.get(key) != Some(value) {
                    let with = outer.properties.get(key).map_or_else(
                        || "which the workflow around it is planned without".to_owned(),
                        |whole| format!("which is {whole} for the workflow around it"),
                    );
                    problems.push(format!(
                        "the job {}: its workflow is to have the property {key} = {value}, {with}; its jobs become \
                         part of that plan. {WITH_PLAN}",
                        job.id
                    ));
                }
            }
        }
    }
}
