//! Reads the inputs of a plan.

use std::path::{Path, PathBuf};

use rustc_hash::FxHashSet;

use crate::catalog::replica::DirectoryOptions;
use crate::catalog::transformation::TransformationCatalog;
use crate::catalog::{Loaded, SearchDirs, replica, site, transformation};
use crate::diagnostic::Diagnostic;
use crate::error::{InputErrors, PlanError};
use crate::expand::ExpandEnv;
use crate::input::{ParsedWorkflow, ReadOptions, read_workflow};
use crate::keys;
use crate::model::{Origin, Workflow};
use crate::properties::{Properties, PropertySources};
use crate::refine::output_mapper::StorageMapper;
use crate::refine::programs::Programs;
use crate::refine::replicas::Replicas;
use crate::refine::settings::Settings;
use crate::refine::sites::{Sites, local};
use crate::refine::{further_problems, subworkflow};
use crate::syntax::text;

use super::this_machine;

use crate::request::Request;

/// Variable that input files may use for the directory of the workflow file.
const WORKFLOW_DIR: &str = "PMC_WORKFLOW_DIR";

/// Property for files or packs.
const OUTPUT_OF_TASKS: &str = "pegasus.batch.output";

/// The inputs of a plan.
pub(super) struct Inputs {
    pub(super) properties: Properties,
    pub(super) settings: Settings,
    pub(super) workflow: Workflow,
    pub(super) sites: Loaded<site::SiteCatalog>,
    /// A catalog has the site `local`.
    pub(super) describes_local: bool,
    /// Directories of the site `local` that no catalog has.
    pub(super) made: local::Made,
    pub(super) transformations: Loaded<TransformationCatalog>,
    pub(super) replicas: Replicas,
    pub(super) replica_files: Vec<PathBuf>,
    /// Catalogs that properties name and that do not exist.
    pub(super) missing: Vec<PathBuf>,
    pub(super) warnings: Vec<Diagnostic>,
}

pub(super) fn property_sources(request: &Request) -> PropertySources {
    let environment = &request.environment.variables;
    let file = |variable: &str, name: &str| {
        environment
            .get(variable)
            .filter(|directory| !directory.is_empty())
            .map(|directory| Path::new(directory).join(name))
    };
    PropertySources {
        system_file: file("PEGASUS_HOME", "etc/pegasus.properties"),
        user_file: file("HOME", ".pegasusrc"),
        working_file: Some(request.environment.working_dir.join("pegasus.properties")),
        conf_file: request.conf.clone(),
        environment: environment.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        command_line: request.defines.clone(),
        is_conf_of_plan: request.deferred,
    }
}

impl Inputs {
    /// Reads the properties, the workflow and the catalogs. Problems of all of them are reported together.
    pub(super) fn read(request: &Request) -> Result<Inputs, PlanError> {
        let properties = Properties::load(&property_sources(request))?;
        let settings = Settings::new(&properties, request)?;
        read(request, properties, settings)
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "one input after another, whose problems are collected"
)]
fn read(request: &Request, mut properties: Properties, settings: Settings) -> Result<Inputs, PlanError> {
    let environment = &request.environment;
    let mut variables = environment.variables.clone();
    if let Some(directory) = request.workflow.parent() {
        let directory = directory.display().to_string();
        variables.entry(WORKFLOW_DIR.into()).or_insert(directory);
    }
    let env = ExpandEnv::new(&variables)
        .with_variables(properties.with_prefix("env."))
        .keeping_unknown(environment.is_of_other);
    let options = ReadOptions::from_properties(&properties)?;
    let parsed = match read_workflow(&request.workflow, &env, &options) {
        Ok(parsed) => parsed,
        Err(problems) if is_broken_xml(&request.workflow) => return Err(PlanError::BadXml(problems)),
        Err(problems) => return Err(problems.into()),
    };
    let ParsedWorkflow {
        mut workflow,
        embedded,
    } = parsed;
    if workflow.origin == Origin::Commands && properties.get(OUTPUT_OF_TASKS).is_none() {
        // Nothing but our own programs looks at it.
        properties.set(OUTPUT_OF_TASKS, "packed");
    }
    let mut problems: Option<InputErrors> = None;
    let mut keep = |error: InputErrors| match &mut problems {
        Some(all) => all.extend(error),
        none => *none = Some(error),
    };
    let here = &environment.working_dir;
    let dirs = SearchDirs {
        working: here,
        workflow: request.workflow.parent(),
    };
    let mut sites = site::load_from_properties(&properties, dirs, &env).unwrap_or_else(|e| {
        keep(e);
        Loaded::default()
    });
    if let Some(embedded) = embedded.sites {
        sites.catalog.replace_with(embedded);
    }
    sites.catalog.is_absent =
        sites.catalog.sites.is_empty() && sites.path.is_none() && sites.missing.is_none();
    sites.catalog.is_missing = sites.missing.is_some();
    let describes_local = sites.catalog.get("local").is_some();
    let made = local::complete(&mut sites.catalog, &local::directory(request, &properties));
    if let Err(e) = sites.catalog.apply_properties(&properties) {
        keep(e);
    }
    let mut transformations =
        transformation::load_from_properties(&properties, dirs, &env).unwrap_or_else(|e| {
            keep(e);
            Loaded::default()
        });
    if let Some(embedded) = embedded.transformations {
        transformations.catalog.extend(embedded);
    }
    let wanted = replica::Wanted::by(&workflow);
    let catalog = replica::load_from_properties(&properties, dirs, &env, wanted).unwrap_or_else(|e| {
        keep(e);
        replica::Source::default()
    });
    let mut replicas = Replicas {
        embedded: embedded.replicas,
        catalog: catalog.catalog,
        cache_adds: settings.cache_adds,
        workflow_adds: settings.workflow_adds,
        ..Replicas::default()
    };
    add_replica_files(request, &env, wanted, &mut replicas, &mut keep);
    if matches!(settings.storage_mapper, StorageMapper::Replica { .. }) {
        const KEY: &str = "pegasus.dir.storage.mapper.replica";
        match replica::load_other(&properties, KEY, here, &env, wanted) {
            Ok(catalog) => replicas.storage = catalog,
            Err(e) => keep(e),
        }
    }
    if let Some(map) = &request.output_map {
        match replica::load(map, Some("File"), &env, wanted) {
            Ok(catalog) => replicas.output_map = Some(catalog),
            Err(e) => keep(e),
        }
    }
    if let Some(problems) = problems {
        return Err(problems.into());
    }
    let around = subworkflow::OuterWorkflow {
        request,
        properties: &properties,
        mode: settings.subworkflows,
        runs_dagman: settings.generator.abilities().runs_dagman,
        options: &options,
        variables: &variables,
        directory_variable: WORKFLOW_DIR,
    };
    let catalogs = subworkflow::Catalogs {
        sites: &sites.catalog,
        transformations: &mut transformations.catalog,
        replicas: &mut replicas,
    };
    let of_parts = subworkflow::settle(&mut workflow, &around, catalogs)?;
    let this_machine = this_machine::name_this_machine(
        request,
        &workflow,
        &mut sites.catalog,
        &mut transformations.catalog,
        &mut replicas,
    );
    let places: Vec<&Path> = [Some(here.as_path()), dirs.workflow]
        .into_iter()
        .flatten()
        .collect();
    let relative = replicas.make_absolute(&places);
    let missing = [&sites.missing, &transformations.missing].into_iter().flatten();
    let missing = missing.chain(&catalog.missing).cloned().collect();
    let warnings = [
        properties.warnings(),
        &workflow.warnings,
        &sites.catalog.warnings,
        &transformations.catalog.warnings,
        &replicas.catalog.warnings,
    ]
    .into_iter()
    .chain(replicas.runs.iter().map(|run| run.warnings.as_slice()))
    .flatten()
    .cloned()
    .map(Diagnostic::as_warning)
    .chain(
        of_parts
            .into_iter()
            .chain(this_machine)
            .chain(relative)
            .map(Diagnostic::warning),
    );
    let warnings = without_repetitions(warnings);
    Ok(Inputs {
        properties,
        settings,
        workflow,
        sites,
        describes_local,
        made,
        transformations,
        replicas,
        replica_files: catalog.files,
        missing,
        warnings,
    })
}

impl Inputs {
    /// Returns properties for nested sub-workflows: what this plan has found by its working directory,
    /// which is not theirs.
    pub(super) fn for_nested(&self, request: &Request) -> Vec<String> {
        const REPLICAS: &str = "pegasus.catalog.replica.file";
        let mut defines = Vec::new();
        if self.properties.get(REPLICAS).is_none()
            && let [file] = &*self.replica_files
        {
            defines.push(format!("{REPLICAS}={}", file.display()));
        }
        if self.made != local::Made::default() {
            let base = local::directory(request, &self.properties);
            defines.push(format!("{}={}", local::DIRECTORY, base.display()));
        }
        defines
    }
}

/// Leaves out further warnings about one key.
fn without_repetitions(warnings: impl Iterator<Item = Diagnostic>) -> Vec<Diagnostic> {
    let mut seen = FxHashSet::default();
    warnings
        .filter(|warning| !keys::is_about_key(&warning.message) || seen.insert(warning.message.clone()))
        .collect()
}

/// Adds the replica files, runs and directories of the command line.
fn add_replica_files(
    request: &Request,
    env: &ExpandEnv,
    wanted: replica::Wanted<'_>,
    replicas: &mut Replicas,
    keep: &mut dyn FnMut(InputErrors),
) {
    for (files, into) in [
        (&request.cache_files, &mut replicas.caches),
        (&request.inherited_files, &mut replicas.inherited),
    ] {
        for file in files {
            match replica::load_with_metadata(file, env, wanted) {
                Ok(catalog) => into.push(catalog),
                Err(e) => keep(e),
            }
        }
    }
    for run in &request.reuse_dirs {
        match replica::from_run(run, env, wanted) {
            Ok(catalog) => replicas.runs.push(catalog),
            Err(e) => keep(e),
        }
    }
    for directory in &request.input_dirs {
        match replica::from_directory(directory, &DirectoryOptions::default()) {
            Ok(catalog) => replicas.directories.push(catalog),
            Err(e) => keep(e),
        }
    }
}

/// Returns whether a file looks like XML and is not well-formed.
fn is_broken_xml(path: &Path) -> bool {
    let Ok(text) = text::read(path) else { return false };
    if text.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'<') {
        return false;
    }
    let mut reader = quick_xml::Reader::from_reader(text.as_slice());
    let mut depth = 0i64;
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        match reader.read_event_into(&mut buffer) {
            Err(_) => return true,
            Ok(quick_xml::events::Event::Eof) => return depth != 0,
            Ok(quick_xml::events::Event::Start(_)) => depth += 1,
            Ok(quick_xml::events::Event::End(_)) => depth -= 1,
            Ok(_) => {}
        }
    }
}

/// Adds further problems to problems with sites, so that one message lists all.
pub(super) fn with_further_problems(error: PlanError, request: &Request, inputs: &Inputs) -> PlanError {
    // The programs of a directory depend on the sites.
    let programs = (!has_transformations_dir(request))
        .then(|| Programs::new(&inputs.transformations.catalog, inputs.settings.transformations));
    let names: Vec<&str> = request.sites.iter().map(String::as_str).collect();
    error.with_further(|| {
        further_problems(
            &inputs.workflow,
            programs.as_ref().map(|programs| (programs, names.as_slice())),
            &inputs.replicas,
            inputs.settings.reuse,
            request.job_prefix.as_deref().unwrap_or_default(),
        )
    })
}

fn has_transformations_dir(request: &Request) -> bool {
    let default = || request.environment.working_dir.join("transformations").is_dir();
    request.transformations_dir.is_some() || default()
}

/// Adds the programs of `--transformations-dir`, or of `transformations` in the working directory.
pub(super) fn add_transformations_dir(
    request: &Request,
    sites: &Sites,
    inputs: &mut Inputs,
    warnings: &mut Vec<Diagnostic>,
) -> Result<(), PlanError> {
    let default = request.environment.working_dir.join("transformations");
    let directory = match &request.transformations_dir {
        Some(directory) => directory,
        None if default.is_dir() => &default,
        None => return Ok(()),
    };
    let mut systems = sites.candidates.iter().map(|&site| &sites.get(site).sysinfo);
    let Some(system) = systems.next() else {
        return Ok(());
    };
    if systems.any(|other| other != system) {
        return Err(PlanError::refinement(format!(
            "the programs in {} cannot be used: the execution sites differ in architecture or operating system",
            directory.display()
        )));
    }
    let found = transformation::from_directory(directory, system)?;
    warnings.extend(found.warnings.iter().cloned().map(Diagnostic::as_warning));
    inputs.transformations.catalog.extend(found);
    Ok(())
}
