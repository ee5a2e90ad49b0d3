//! Writes the files of a submit directory.

use std::fs;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use sha2::{Digest as _, Sha256};

use crate::catalog::replica::ReplicaCatalog;
use crate::catalog::site::hosted;
use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::{ExecJob, Place, SiteId, Task};
use crate::fingerprint::Facts;
use crate::output::common::events::{JobEvents, Tasks};
use crate::output::common::private_files::put;
use crate::output::common::{lists, nested, records};
use crate::output::pmc::{batch, executor};
use crate::output::{self, Code, Writing};
use crate::properties::Properties;
use crate::refine::output_mapper::{self, StorageMapper};
use crate::refine::sites::WorkSite;
use crate::tasks::secrets::Secrets;
use crate::tasks::{PROPERTIES, Plan};

use super::inputs::{Inputs, property_sources};
use super::iso_seconds;
use crate::request::Request;

/// Writes all files but the braindump. Returns what runs the plan.
pub(super) fn write(
    plan: &Plan<'_>,
    request: &Request,
    inputs: &Inputs,
    counts: &super::Counts,
    dir: &Path,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Code, PlanError> {
    let base = &plan.base;
    if !request.deferred {
        // The plan around it has them, and what it passes on is beside its files.
        copy_catalogs(&catalogs(request, inputs), dir, &plan.secrets)?;
    }
    if let Some(name) = request.workflow.file_name() {
        copy(&request.workflow, &dir.join(name), &plan.secrets)?;
    }
    plan.secrets.write(dir)?;
    let now = request.environment.now;
    let time = now.to_utc().format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let tasks = Tasks::create(
        plan.workflow,
        plan.uuid,
        dir.join(format!("{base}.static.bp")),
        time,
    )?;
    let site = main_site(plan);
    let resources = resources(plan, request, &inputs.properties, plan.sites.get(site))?;
    warnings.extend(resources.warnings().into_iter().map(Diagnostic::warning));
    let lists = lists::write(plan, dir)?;
    let mut to = Writing {
        plan,
        request,
        lists: &lists,
        facts: &facts(plan, request, inputs, &resources),
        read: &read_files(request, inputs),
        resources: &resources,
        site,
        dir,
        events: JobEvents::new(plan, &tasks)?,
        warnings,
    };
    let code = output::generator(plan.settings.generator).write(&mut to)?;
    to.events.finish()?;
    records::write_cache(plan, &dir.join(format!("{base}.cache")))?;
    nested::write_files(plan, dir)?;
    put(&dir.join(format!("{base}.notify")), &records::notify(plan))?;
    let metrics = records::metrics(plan, request, &inputs.properties, counts);
    put(&dir.join(format!("{base}.metrics")), &metrics)?;
    let properties = records::properties(
        plan,
        request,
        &inputs.properties,
        inputs.sites.path.as_deref(),
        inputs.transformations.path.as_deref(),
    );
    plan.secrets.put(&dir.join(PROPERTIES), &properties)?;
    if let Some(embedded) = &inputs.replicas.embedded {
        plan.secrets.put(
            &dir.join(format!("{base}.replica.store")),
            &replica_store(plan, embedded, &iso_seconds(now.into(), *now.offset())),
        )?;
    }
    Ok(code)
}

/// Returns the facts about a plan for later commands.
fn facts(plan: &Plan<'_>, request: &Request, inputs: &Inputs, resources: &batch::Resources) -> Facts {
    let is_elsewhere = |job: &ExecJob| plan.sites.get(job.site).name != "local";
    let chosen = !request.batch.schedulers.is_empty()
        || request.batch.detected.is_some()
        || inputs.properties.get("pegasus.batch.scheduler").is_some();
    let scripts = resources.schedulers.iter().filter(|_| !request.deferred);
    Facts {
        cluster: !request.runs_here && (chosen || plan.exec.jobs.iter().any(is_elsewhere)),
        scripts: scripts
            .map(|scheduler| {
                let name = format!("{}.{}", plan.base, scheduler.suffix());
                (scheduler.name().to_owned(), name)
            })
            .collect(),
        chosen,
        reused: plan.exec.deleted,
        made_of: match request.deferred {
            true => made_of(request, inputs),
            false => String::new(),
        },
    }
}

/// Returns a hash of everything that the plan of a sub-workflow is made of.
pub(super) fn made_of(request: &Request, inputs: &Inputs) -> String {
    let mut hasher = Sha256::new();
    let mut add = |part: &[u8]| {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    add(env!("CARGO_PKG_VERSION").as_bytes());
    for word in request.line.iter().filter(|word| *word != "--force-replan") {
        add(word.as_bytes());
    }
    for (key, value) in inputs.properties.iter() {
        add(key.as_bytes());
        add(value.as_bytes());
    }
    let read = read_files(request, inputs);
    for path in read.iter().chain(&request.output_map).chain(&request.reuse_dirs) {
        // The working directory may be a new one each time, into which these files are fetched.
        let name = path
            .strip_prefix(&request.environment.working_dir)
            .unwrap_or(path);
        add(name.as_os_str().as_encoded_bytes());
        match pmc_files::read(path, pmc_files::MAX_LIST) {
            Ok(content) => add(&content),
            // A directory: what is in it, and since when.
            Err(_) => add(names_in(path).as_bytes()),
        }
    }
    let digest = hasher.finalize();
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the names in a directory, with the times of their last changes; empty if it cannot be read.
fn names_in(path: &Path) -> String {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let changed = entry.metadata().and_then(|data| data.modified()).ok();
            format!("{:?} {changed:?}\n", entry.file_name())
        })
        .collect();
    names.sort_unstable();
    names.concat()
}

/// Returns the files from which the plan is made, whether they exist or not.
fn read_files(request: &Request, inputs: &Inputs) -> Vec<PathBuf> {
    let properties = property_sources(request);
    let files = [
        properties.system_file,
        properties.user_file,
        properties.working_file,
        properties.conf_file,
    ];
    let mut all = vec![request.workflow.clone()];
    all.extend(files.into_iter().flatten());
    all.extend(catalogs(request, inputs));
    all.extend(storage_map(request, inputs));
    all.extend(request.input_dirs.iter().cloned());
    all.extend(request.transformations_dir.clone());
    all
}

/// Returns the file of the storage mapper Replica.
fn storage_map(request: &Request, inputs: &Inputs) -> Option<PathBuf> {
    let file = inputs.properties.get(output_mapper::MAP_FILE)?;
    let is_read = matches!(inputs.settings.storage_mapper, StorageMapper::Replica { .. });
    is_read.then(|| request.environment.working_dir.join(file.trim()))
}

/// Returns the resources of the batch job of a site.
///
/// # Errors
/// Invalid settings.
pub(super) fn resources(
    plan: &Plan<'_>,
    request: &Request,
    properties: &Properties,
    site: &WorkSite,
) -> Result<batch::Resources, PlanError> {
    let (executor, _) = executor(request, &site.tools);
    let own_bin = request.environment.own_bin.as_deref();
    // A plan that joins a run is in no script of its own.
    let may_ask = request.may_start_programs && !request.deferred;
    let lacks_mpi = || may_ask && batch::lacks_mpi(&executor, own_bin);
    let demand = batch::Demand::of(plan);
    let resources = batch::Resources::new(request, properties, site, demand, &lacks_mpi)?;
    let estimate = batch::estimate(plan, resources.machine());
    Ok(resources.with_estimate(estimate))
}

/// Returns the catalogs to copy into the submit directory.
fn catalogs(request: &Request, inputs: &Inputs) -> Vec<PathBuf> {
    let hosted = hosted::copy(&inputs.properties, &request.environment.working_dir);
    [&inputs.sites.path, &hosted, &inputs.transformations.path]
        .into_iter()
        .flatten()
        .chain(&inputs.replica_files)
        .chain(&request.cache_files)
        .chain(&request.inherited_files)
        .filter(|path| path.is_file())
        .cloned()
        .collect()
}

fn copy_catalogs(files: &[PathBuf], dir: &Path, secrets: &Secrets) -> Result<(), PlanError> {
    if files.is_empty() {
        return Ok(());
    }
    let target = dir.join("catalogs");
    fs::create_dir_all(&target).map_err(|e| PlanError::io("make the directory", &target, e))?;
    for file in files {
        let Some(name) = file.file_name() else { continue };
        let mut path = target.join(name);
        let mut number = 1;
        while path.exists() {
            number += 1;
            path = target.join(format!("{}.{number}", name.display()));
        }
        copy(file, &path, secrets)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, secrets: &Secrets) -> Result<(), PlanError> {
    secrets
        .copy(from, to)
        .map_err(|e| PlanError::io("copy to", to, e))
}

/// Returns the priorities of the locations of inputs, by name, URL and site.
fn priorities<'p>(plan: &'p Plan<'_>) -> FxHashMap<(&'p str, &'p str, &'p str), u32> {
    let mut found = FxHashMap::default();
    for job in &plan.exec.jobs {
        let Task::StageIn(n) = job.task else { continue };
        for moved in &plan.exec.transfers[n].files {
            for source in &moved.sources {
                if let (Place::Url(url, site), Some(priority)) = source {
                    let name = plan.workflow.files.name(moved.file);
                    found.insert((name, &**url, &**site), *priority);
                }
            }
        }
    }
    found
}

/// Locations in the workflow as a text replica catalog, with the priority of those that inputs are taken
/// from.
fn replica_store(plan: &Plan<'_>, catalog: &ReplicaCatalog, time: &str) -> String {
    use crate::output::common::lists::{catalog_value, catalog_word};
    use std::fmt::Write as _;
    let priorities = priorities(plan);
    let mut text = format!("# file-based replica catalog: {time}\n");
    for entry in catalog.entries() {
        for replica in &entry.replicas {
            // Writing into a String cannot fail.
            let _ = write!(
                text,
                "{} {}",
                catalog_word(&entry.lfn),
                catalog_word(&replica.pfn)
            );
            let key = (
                &*entry.lfn,
                &*replica.pfn,
                replica.site.as_deref().unwrap_or_default(),
            );
            if let Some(priority) = priorities.get(&key) {
                let _ = write!(text, " priority=\"{priority}\"");
            }
            if let Some(site) = &replica.site {
                let _ = write!(text, " site={}", catalog_value(site));
            }
            if entry.regex {
                text.push_str(" regex=\"true\"");
            }
            text.push('\n');
        }
    }
    text
}

/// Returns the site of the work directory of the first compute job.
pub(super) fn main_site(plan: &Plan<'_>) -> SiteId {
    plan.exec
        .jobs
        .iter()
        .find(|job| matches!(job.task, Task::Compute(_) | Task::Cluster(..)))
        .or(plan.exec.jobs.first())
        .map_or(plan.sites.local(), |job| job.staging)
}
