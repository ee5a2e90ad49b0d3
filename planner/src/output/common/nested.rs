//! Files that pass data and settings to nested sub-workflows.

use std::fmt::Write as _;
use std::path::Path;

use crate::error::PlanError;
use crate::exec::{JobId, Place};
use crate::ids::Id as _;
use crate::model::FileId;
use crate::refine::sites::Access;
use crate::tasks::Plan;
use crate::tasks::nested::{INPUT_CACHE, NestedJob, OUTPUT_MAP};

use super::lists::{catalog_value, catalog_word, put};

/// Writes the files of nested sub-workflows.
///
/// # Errors
/// A failed write.
pub(crate) fn write_files(plan: &Plan<'_>, dir: &Path) -> Result<(), PlanError> {
    for id in JobId::first(plan.exec.jobs.len()) {
        let job = plan.at(id);
        if !job.is_nested() {
            continue;
        }
        let Some(nested) = NestedJob::new(job).filter(NestedJob::has_files) else {
            continue;
        };
        let inputs = plan.exec.nested_inputs.get(&id).into_iter().flatten();
        let outputs = nested.job.uses.iter().filter(|u| u.link.writes());
        let input_cache = locations(nested, inputs.copied(), Access::Get);
        let output_map = locations(nested, outputs.map(|u| u.file), Access::Put);
        if plan.abilities().is_pmc {
            put(job, dir, ".sub", &description(nested))?;
        }
        put(job, dir, INPUT_CACHE, &input_cache)?;
        put(job, dir, OUTPUT_MAP, &output_map)?;
    }
    Ok(())
}

/// Returns the properties with secret values of options of nested sub-workflows.
pub(super) fn secret_properties(plan: &Plan<'_>) -> Vec<(String, String)> {
    let jobs = JobId::first(plan.exec.jobs.len()).map(|id| plan.at(id));
    let nested = jobs.filter(|job| job.is_nested()).filter_map(NestedJob::new);
    nested
        .flat_map(|job| job.secret_defines())
        .map(|secret| (secret.property, secret.value.to_owned()))
        .collect()
}

/// Returns a submit description: by it, Pegasus' monitoring finds the logs of the sub-workflow.
fn description(nested: NestedJob<'_>) -> String {
    let planned = nested.planned;
    let plan = planned.plan;
    let job_file = |suffix: &str| plan.job_file(planned.id, suffix);
    format!(
        "# For pegasus-monitord and pegasus-analyzer, which find the sub-workflow by it. Nothing submits it.\n\
         environment = \"_CONDOR_DAGMAN_LOG={}.dagman.out\"\n\
         executable = {}/pegasus-mpi-cluster\n\
         arguments = \"{}\"\n\
         initialdir = {}\n\
         output = {}\n\
         error = {}\n\
         universe = scheduler\n\
         +pegasus_root_wf_uuid = \"{}\"\n\
         +pegasus_wf_uuid = \"{}\"\n\
         +pegasus_wf_xformation = \"condor::dagman\"\n\
         +pegasus_wf_dax_job_id = \"{}\"\n\
         +pegasus_wf_dag_job_id = \"{}\"\n\
         +pegasus_job_class = 10\n\
         +pegasus_site = \"local\"\n\
         +pegasus_cluster_size = 1\n\
         queue\n",
        nested.dag(),
        plan.own_tools,
        nested.dag(),
        nested.directory().display(),
        job_file(".out"),
        job_file(".err"),
        plan.nesting.root,
        plan.uuid,
        nested.job.id,
        planned.name,
    )
}

/// Returns the locations of files in the work directory, as a replica catalog.
fn locations(nested: NestedJob<'_>, files: impl Iterator<Item = FileId>, access: Access) -> String {
    let mut text = String::new();
    let plan = nested.planned.plan;
    let place = Place::Scratch(nested.planned.staging);
    for file in files {
        let (site, url) = plan.url(&place, file, access);
        let lfn = plan.workflow.files.name(file);
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{} {} site={}",
            catalog_word(lfn),
            catalog_word(&url),
            catalog_value(&site)
        );
    }
    text
}
