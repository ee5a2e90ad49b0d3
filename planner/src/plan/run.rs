//! The steps of planning, from reading to publishing.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::catalog::replica::{DirectoryOptions, ReplicaCatalog};
use crate::catalog::transformation::TransformationCatalog;
use crate::catalog::{Loaded, replica, site, transformation};
use crate::error::{InputError, InputErrors};
use crate::expand::ExpandEnv;
use crate::explain::{Explainer, View};
use crate::input::{ReadOptions, read_workflow};
use crate::model::{TransferFlag, Workflow};
use crate::output::events::JobEvents;
use crate::output::layout::Layout;
use crate::output::submit_dir::SubmitDir;
use crate::output::{self, PROPERTIES, Plan, batch, records};
use crate::picture::{self, Picture};
use crate::properties::{Properties, PropertySources};
use crate::refine::cleanup::space::Sizes;
use crate::refine::exec::{Exec, ExecJob, SiteId};
use crate::refine::mapping::Mapper;
use crate::refine::programs::Programs;
use crate::refine::replicas::Replicas;
use crate::refine::settings::{Generator, Settings, generator};
use crate::refine::sites::{Sites, made_local, own_tools};
use crate::refine::storage::StorageMapper;
use crate::refine::{exec::Task, further_problems, refine, subworkflow};

use crate::summary::{Machine, Summary};

use super::{Looked, PlanError, Planned, Request, Script, iso_seconds};

/// Variable that input files may use for the directory of the workflow file.
const WORKFLOW_DIR: &str = "PMC_WORKFLOW_DIR";

/// The inputs of a plan.
struct Inputs {
    properties: Properties,
    workflow: Workflow,
    sites: Loaded<site::SiteCatalog>,
    transformations: Loaded<TransformationCatalog>,
    replicas: Replicas,
    replica_files: Vec<PathBuf>,
    warnings: Vec<String>,
}

/// A plan that is about to be written, or looked at.
struct Made<'a, 'm> {
    plan: &'a Plan<'a>,
    inputs: &'a Inputs,
    mapper: &'a Mapper<'m>,
    counts: super::Counts,
    warnings: Vec<String>,
    notes: Vec<String>,
}

/// Plans a workflow: reads the inputs, refines, writes the submit directory.
///
/// # Errors
/// Whatever stands in the way; nothing is left in the submit directory then.
pub fn plan(request: &Request) -> Result<Planned, PlanError> {
    let take = |settings: &Settings, workflow: &Workflow| {
        let directory = submit_dir(request, settings, workflow)?;
        Ok((directory.path().to_owned(), directory))
    };
    make(request, take, &mut |_| {}, |made, directory| {
        let Made {
            plan,
            inputs,
            counts,
            mut warnings,
            notes,
            ..
        } = made;
        let staging = directory.staging().to_owned();
        let code = write(plan, request, inputs, &counts, &staging, &mut warnings)?;
        let braindump = records::braindump(plan, request);
        let text = monitord_compat::braindump::write(&braindump);
        put(&staging.join("braindump.yml"), &text)?;
        let path = directory.publish()?;
        draw(plan, &request.pictures)?;
        Ok(Planned {
            dag: path.join(format!("{}.dag", plan.base)),
            shell: code.shell.map(|name| path.join(name)),
            scripts: code
                .scripts
                .into_iter()
                .map(|script| Script {
                    path: path.join(&script.path),
                    ..script
                })
                .collect(),
            submit_dir: path,
            label: plan.workflow.label.clone(),
            index: plan.workflow.index.clone(),
            uuid: request.surroundings.uuid.clone(),
            output_dirs: plan
                .sites
                .outputs
                .iter()
                .filter_map(|o| o.path.as_ref().map(PathBuf::from))
                .collect(),
            counts,
            braindump,
            warnings,
            notes,
        })
    })
}

/// Plans without writing anything but pictures: gives the figures of the plan and tells about some of its jobs.
/// `submit`: the submit directory that the plan is for, if it exists already.
///
/// # Errors
/// Whatever stands in the way of a plan, and jobs that are not in it.
pub fn look(request: &Request, submit: Option<&Path>, jobs: &[String]) -> Result<Looked, PlanError> {
    let take = |settings: &Settings, workflow: &Workflow| {
        let path = match submit {
            Some(path) => path.to_owned(),
            None => preview(request, settings, workflow),
        };
        Ok((path, ()))
    };
    make(request, take, &mut |_| {}, |made, ()| {
        let Made {
            plan,
            inputs,
            mapper,
            counts,
            mut warnings,
            notes,
        } = made;
        let site = main_site(plan);
        let resources = batch::Resources::new(request, &inputs.properties, &plan.sites.get(site).profiles)?;
        warnings.extend(resources.warnings());
        check_commands(plan)?;
        let mut sizes = Sizes::new(plan.workflow, plan.exec, &plan.settings.space)?;
        sizes.measure(plan.exec);
        let machine = Machine {
            nodes: resources.nodes,
            tasks_per_node: resources.tasks_per_node,
        };
        let summary = Summary::new(plan, counts, &sizes, machine);
        let explainer = Explainer::new(View {
            plan,
            mapper,
            replicas: &inputs.replicas,
        });
        let mut told = Vec::new();
        let mut problems = Vec::new();
        for job in jobs {
            match explainer.tell(job) {
                Ok(text) => told.push(text),
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(PlanError::Refinement(problems));
        }
        draw(plan, &request.pictures)?;
        Ok(Looked {
            summary,
            explanations: told,
            jobs: plan.exec.jobs.iter().map(|job| job.name.to_string()).collect(),
            warnings,
            notes,
        })
    })
}

/// Makes a plan in memory and tells `step` the name of each step that is over, for measurements; gives the
/// numbers of jobs.
///
/// # Errors
/// Whatever stands in the way of a plan.
pub fn steps(request: &Request, step: &mut dyn FnMut(&'static str)) -> Result<super::Counts, PlanError> {
    let take = |settings: &Settings, workflow: &Workflow| Ok((preview(request, settings, workflow), ()));
    make(request, take, step, |made, ()| Ok(made.counts))
}

/// Draws the pictures that are asked for.
fn draw(plan: &Plan<'_>, pictures: &[Picture]) -> Result<(), PlanError> {
    for picture in pictures {
        let text = picture::draw(plan.workflow, plan.exec, picture.subject, picture.format);
        let directory = picture.path.parent().unwrap_or(Path::new("/"));
        let failed = |e| PlanError::io("write", &picture.path, e);
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .tempfile_in(directory)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.persist(&picture.path).map_err(|e| failed(e.error))?;
    }
    Ok(())
}

/// The steps up to a plan in memory. `take` says for which submit directory it is; `step` is told the name of each
/// step that is over.
fn make<D, R>(
    request: &Request,
    take: impl FnOnce(&Settings, &Workflow) -> Result<(PathBuf, D), PlanError>,
    step: &mut dyn FnMut(&'static str),
    finish: impl FnOnce(Made<'_, '_>, D) -> Result<R, PlanError>,
) -> Result<R, PlanError> {
    let properties = Properties::load(&property_sources(request))?;
    let settings = Settings::new(&properties, request)?;
    let mut inputs = read(request, properties, &settings)?;
    let mut warnings = std::mem::take(&mut inputs.warnings);
    warnings.extend(settings.warnings.iter().cloned());
    let mut notes = Vec::new();
    let (directory, taken) = take(&settings, &inputs.workflow)?;
    let submit = directory.display().to_string();
    let exec_rel = exec_rel(request, &inputs.workflow, &submit);
    let sites = Sites::new(&inputs.sites.catalog, request, &settings, &exec_rel)
        .map_err(|error| with_further_problems(error, request, &settings, &inputs))?;
    add_transformations_dir(request, &sites, &mut inputs, &mut warnings)?;
    let programs = Programs::new(&inputs.transformations.catalog, settings.transformations);
    let prefix = request.job_prefix.as_deref().unwrap_or_default();
    let mut mapper = Mapper::new(&sites, &programs, &settings, own_tools(request), prefix);
    let files = records::count_files(&inputs.workflow);
    step("reading");
    let exec = refine(
        &mut inputs.workflow,
        &mut mapper,
        &inputs.replicas,
        &mut notes,
        step,
    )?;
    note_sites(&exec, &sites, &mut notes);
    warnings.extend(bypass(&inputs.workflow, &inputs.properties)?);
    warnings.extend(exec.warnings.iter().cloned());
    warnings.extend(outputs_that_stay(&inputs.workflow, &exec, &sites));
    let order = order(&exec)?;
    step("order");
    let workflow = &inputs.workflow;
    let default_base = format!("{}-{}", workflow.label, workflow.index);
    let plan = Plan {
        workflow,
        exec: &exec,
        sites: &sites,
        settings: &settings,
        catalog: &inputs.transformations.catalog,
        base: request.basename.clone().unwrap_or(default_base),
        run_label: request.basename.clone().unwrap_or_else(|| workflow.label.clone()),
        stamp: iso_seconds(
            workflow.mtime.unwrap_or_else(|| request.surroundings.now.into()),
            *request.surroundings.now.offset(),
        ),
        uuid: &request.surroundings.uuid,
        own_tools: own_tools(request),
        layout: Layout::new(&settings.submit_mapper, workflow, &exec),
        files,
        files_apart: settings.lists_apart
            || settings.generator == Generator::Shell
            || exec.jobs.len() <= output::APART_LIMIT,
        orders: std::sync::OnceLock::new(),
        order,
        submit,
    };
    let counts = records::count(&exec, workflow.jobs.len());
    let made = Made {
        plan: &plan,
        inputs: &inputs,
        mapper: &mapper,
        counts,
        warnings,
        notes,
    };
    finish(made, taken)
}

/// Whether the properties ask for a shell script instead of a DAG. Problems in them are for [`plan`] to tell.
pub fn wants_shell(request: &Request) -> bool {
    Properties::load(&property_sources(request))
        .is_ok_and(|properties| generator(&properties).is_ok_and(|g| g == Generator::Shell))
}

fn property_sources(request: &Request) -> PropertySources {
    let environment = &request.surroundings.environment;
    let file = |variable: &str, name: &str| {
        environment
            .get(variable)
            .filter(|directory| !directory.is_empty())
            .map(|directory| Path::new(directory).join(name))
    };
    PropertySources {
        system_file: file("PEGASUS_HOME", "etc/pegasus.properties"),
        user_file: file("HOME", ".pegasusrc"),
        working_file: Some(request.surroundings.working_dir.join("pegasus.properties")),
        conf_file: request.conf.clone(),
        environment: environment.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        command_line: request.defines.clone(),
    }
}

/// Reads all inputs; problems of all of them are reported together.
fn read(request: &Request, properties: Properties, settings: &Settings) -> Result<Inputs, PlanError> {
    let surroundings = &request.surroundings;
    let mut variables = surroundings.environment.clone();
    if let Some(directory) = request.workflow.parent() {
        let directory = directory.display().to_string();
        variables.entry(WORKFLOW_DIR.into()).or_insert(directory);
    }
    let env = ExpandEnv::new(&variables).with_properties(&properties);
    let options = ReadOptions::from_properties(&properties)?;
    let mut workflow = match read_workflow(&request.workflow, &env, &options) {
        Ok(workflow) => workflow,
        Err(problems) if is_broken_xml(&request.workflow) => return Err(PlanError::BadXml(problems)),
        Err(problems) => return Err(problems.into()),
    };
    let mut problems: Option<InputErrors> = None;
    let mut keep = |error: InputErrors| match &mut problems {
        Some(all) => all.extend(error),
        none => *none = Some(error),
    };
    let here = &surroundings.working_dir;
    let mut sites = site::load_from_properties(&properties, here, &env).unwrap_or_else(|e| {
        keep(e);
        Loaded::default()
    });
    if let Some(embedded) = workflow.embedded.sites.take() {
        sites.catalog.replace_with(embedded);
    }
    let all_sites = &mut sites.catalog.sites;
    all_sites
        .entry("local".into())
        .or_insert_with(|| made_local(request));
    if let Err(e) = sites.catalog.apply_properties(&properties) {
        keep(e);
    }
    let mut transformations =
        transformation::load_from_properties(&properties, here, &env).unwrap_or_else(|e| {
            keep(e);
            Loaded::default()
        });
    if let Some(embedded) = workflow.embedded.transformations.take() {
        transformations.catalog.extend(embedded);
    }
    let names = &workflow.files;
    let catalog = replica::load_from_properties(&properties, here, &env, names).unwrap_or_else(|e| {
        keep(e);
        replica::Source::default()
    });
    let mut replicas = Replicas {
        embedded: workflow.embedded.replicas.take(),
        catalog: catalog.catalog,
        cache_adds: settings.cache_adds,
        workflow_adds: settings.workflow_adds,
        ..Replicas::default()
    };
    for (files, into) in [
        (&request.cache_files, &mut replicas.caches),
        (&request.inherited_files, &mut replicas.inherited),
    ] {
        for file in files {
            match replica::load_with_metadata(file, &env) {
                Ok(catalog) => into.push(catalog),
                Err(e) => keep(e),
            }
        }
    }
    for run in &request.reuse_dirs {
        match replica::from_run(run, &env, names) {
            Ok(catalog) => replicas.runs.push(catalog),
            Err(e) => keep(e),
        }
    }
    if matches!(settings.storage_mapper, StorageMapper::Replica { .. }) {
        const KEY: &str = "pegasus.dir.storage.mapper.replica";
        match replica::load_other(&properties, KEY, here, &env) {
            Ok(catalog) => replicas.storage = catalog,
            Err(e) => keep(e),
        }
    }
    for directory in &request.input_dirs {
        match replica::from_directory(directory, &DirectoryOptions::default()) {
            Ok(catalog) => replicas.directories.push(catalog),
            Err(e) => keep(e),
        }
    }
    if let Some(problems) = problems {
        return Err(problems.into());
    }
    let around = subworkflow::Surrounding {
        request,
        properties: &properties,
        options: &options,
        variables: &variables,
        directory_variable: WORKFLOW_DIR,
    };
    let catalogs = subworkflow::Catalogs {
        sites: &sites.catalog,
        transformations: &mut transformations.catalog,
        replicas: &mut replicas,
    };
    let of_parts = subworkflow::inline(&mut workflow, &around, catalogs)?;
    let warnings = [
        &workflow.warnings,
        &sites.catalog.warnings,
        &transformations.catalog.warnings,
        &replicas.catalog.warnings,
    ]
    .into_iter()
    .chain(replicas.runs.iter().map(|run| &run.warnings))
    .flatten()
    .map(InputError::to_string)
    .chain(of_parts)
    .collect();
    Ok(Inputs {
        properties,
        workflow,
        sites,
        transformations,
        replicas,
        replica_files: catalog.files,
        warnings,
    })
}

/// Whether a file that could not be read looks like XML and is not well-formed.
fn is_broken_xml(path: &Path) -> bool {
    let Ok(text) = fs::read(path) else { return false };
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

/// Adds to problems with sites what else is wrong, so that the user hears of it in the same message.
fn with_further_problems(
    error: PlanError,
    request: &Request,
    settings: &Settings,
    inputs: &Inputs,
) -> PlanError {
    let PlanError::Refinement(mut problems) = error else {
        return error;
    };
    // Which programs a directory would add depends on the sites.
    let programs = (!has_transformations_dir(request))
        .then(|| Programs::new(&inputs.transformations.catalog, settings.transformations));
    let names: Vec<&str> = request.sites.iter().map(String::as_str).collect();
    problems.extend(further_problems(
        &inputs.workflow,
        programs.as_ref().map(|programs| (programs, names.as_slice())),
        &inputs.replicas,
        settings.reuse,
        request.job_prefix.as_deref().unwrap_or_default(),
    ));
    PlanError::Refinement(problems)
}

fn has_transformations_dir(request: &Request) -> bool {
    let default = || request.surroundings.working_dir.join("transformations").is_dir();
    request.transformations_dir.is_some() || default()
}

/// Files of `--transformations-dir`, or of the directory of that name beside the workflow.
fn add_transformations_dir(
    request: &Request,
    sites: &Sites,
    inputs: &mut Inputs,
    warnings: &mut Vec<String>,
) -> Result<(), PlanError> {
    let default = request.surroundings.working_dir.join("transformations");
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
    warnings.extend(found.warnings.iter().map(ToString::to_string));
    inputs.transformations.catalog.extend(found);
    Ok(())
}

/// Takes the submit directory.
fn submit_dir(request: &Request, settings: &Settings, workflow: &Workflow) -> Result<SubmitDir, PlanError> {
    let relative = request
        .relative_submit_dir
        .as_ref()
        .or(request.relative_dir.as_ref());
    if let Some(relative) = relative {
        return SubmitDir::named(&normal(&request.dir.join(relative)));
    }
    let parent = request
        .dir
        .join(&request.surroundings.user)
        .join("pegasus")
        .join(&workflow.label);
    if settings.use_timestamp {
        let stamp = request.surroundings.now.format("%Y%m%dT%H%M%S%z").to_string();
        return SubmitDir::named(&parent.join(stamp));
    }
    SubmitDir::next_run(&parent)
}

/// The submit directory that [`submit_dir`] would take.
fn preview(request: &Request, settings: &Settings, workflow: &Workflow) -> PathBuf {
    let relative = request
        .relative_submit_dir
        .as_ref()
        .or(request.relative_dir.as_ref());
    if let Some(relative) = relative {
        return normal(&request.dir.join(relative));
    }
    let parent = request
        .dir
        .join(&request.surroundings.user)
        .join("pegasus")
        .join(&workflow.label);
    if settings.use_timestamp {
        return parent.join(request.surroundings.now.format("%Y%m%dT%H%M%S%z").to_string());
    }
    SubmitDir::next_path(&parent)
}

/// The site whose work directory the first compute job works in.
fn main_site(plan: &Plan<'_>) -> SiteId {
    plan.exec
        .jobs
        .iter()
        .find(|job| matches!(job.task, Task::Compute(_) | Task::Cluster(..)))
        .or(plan.exec.jobs.first())
        .map_or(plan.sites.local(), |job| job.staging)
}

/// Refuses jobs that cannot be written into the DAG.
fn check_commands(plan: &Plan<'_>) -> Result<(), PlanError> {
    const SHOWN: usize = 20;
    let problems: Vec<String> = plan
        .order
        .iter()
        .copied()
        .chain((0..plan.exec.members.len() as u32).map(|position| plan.member(position)))
        .filter_map(|job| output::command::command(plan, job).err())
        .flatten()
        .take(SHOWN)
        .collect();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(PlanError::Code(problems))
    }
}

/// A path without `.` parts; `..` stays, since a link may be before it.
fn normal(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Relative run directory on the sites.
fn exec_rel(request: &Request, workflow: &Workflow, submit: &str) -> String {
    match (&request.random_dir, &request.relative_dir) {
        (Some(Some(name)), _) => name.clone(),
        (Some(None), _) => match &request.basename {
            Some(base) => format!("{base}-{}", request.surroundings.uuid),
            None => format!(
                "{}-{}-{}",
                workflow.label, workflow.index, request.surroundings.uuid
            ),
        },
        (None, Some(relative)) => relative.clone(),
        (None, None) => {
            // With `--relative-submit-dir` alone the work directory is the one of a first run elsewhere; a
            // name of its own keeps two such plans apart.
            let leaf = submit.rsplit('/').next().unwrap_or_default();
            let leaf = match &request.relative_submit_dir {
                Some(_) => format!("run-{}", request.surroundings.uuid),
                None => leaf.to_owned(),
            };
            format!("{}/pegasus/{}/{leaf}", request.surroundings.user, workflow.label)
        }
    }
}

/// Jobs parents first; of those at one depth, in order of creation.
fn order(exec: &Exec) -> Result<Vec<u32>, PlanError> {
    let graph = crate::refine::graph::Graph::new(exec.jobs.len(), &exec.edges);
    let order = graph
        .topological()
        .ok_or_else(|| PlanError::refinement("the plan has a cycle; please report this"))?;
    let depths = graph.depths(&order);
    Ok(crate::refine::graph::by_depth(&depths).concat())
}

/// Without an output site, outputs stay where they are made.
fn outputs_that_stay(workflow: &Workflow, exec: &Exec, sites: &Sites) -> Option<String> {
    if !sites.outputs.is_empty() {
        return None;
    }
    let wanted = |job: &&ExecJob| {
        let uses = exec.uses(workflow, job.task);
        uses.iter()
            .any(|u| u.link.writes() && u.transfer != TransferFlag::Not)
    };
    let job = exec.jobs.iter().find(wanted)?;
    let directory = sites.get(job.staging).scratch.as_ref()?;
    Some(format!(
        "outputs stay in the work directory {}, which is not removed: neither --output-sites nor --output-dir is given",
        directory.path
    ))
}

/// Bypassing the work directory is for jobs that fetch their inputs themselves; here they share it.
fn bypass(workflow: &Workflow, properties: &Properties) -> Result<Option<String>, PlanError> {
    const KEY: &str = "pegasus.transfer.bypass.input.staging";
    let what = if properties.get_bool(KEY, false)? {
        format!("the property {KEY} has")
    } else {
        let uses = || workflow.jobs.iter().flat_map(|job| &job.uses);
        match uses().find(|u| u.bypass) {
            Some(first) => format!(
                "bypass, as {} inputs have it, for example {}, has",
                uses().filter(|u| u.bypass).count(),
                workflow.files.name(first.file)
            ),
            None => return Ok(None),
        }
    };
    Ok(Some(format!(
        "{what} no effect: with a shared file system all inputs come into the work directory; pegasus.transfer.links = true \
         links those that are on the site instead of copying them"
    )))
}

/// Says on which sites jobs run; all of them run inside one job of the executor.
fn note_sites(exec: &Exec, sites: &Sites, notes: &mut Vec<String>) {
    let mut used: Vec<&str> = exec
        .jobs
        .iter()
        .map(|job| sites.get(job.site).name.as_str())
        .collect();
    used.sort_unstable();
    used.dedup();
    if used.len() > 1 {
        notes.push(format!(
            "jobs of the sites {} run together inside the one job of pegasus-mpi-cluster: their file systems must be \
             visible there",
            used.join(", ")
        ));
    }
    for name in used {
        let Some(site) = sites.find(name).map(|id| sites.get(id)) else {
            continue;
        };
        if let (Some(_), Some(scratch)) = (&site.workdir, &site.scratch) {
            notes.push(format!(
                "the profile pegasus::workdir names the work directory {} on the site {name}: it is not removed at the end",
                scratch.path
            ));
        }
    }
}

fn put(path: &Path, text: &str) -> Result<(), PlanError> {
    fs::write(path, text).map_err(|e| PlanError::io("write", path, e))
}

/// What runs the plan; paths are relative to the submit directory.
#[derive(Default)]
struct Code {
    /// Batch scripts.
    scripts: Vec<Script>,
    /// Script of the generator Shell.
    shell: Option<String>,
}

/// Writes what runs the plan, and the events of its jobs.
fn generate(
    plan: &Plan<'_>,
    request: &Request,
    resources: &batch::Resources,
    site: SiteId,
    dir: &Path,
    events: &mut JobEvents<'_>,
    warnings: &mut Vec<String>,
) -> Result<Code, PlanError> {
    let base = &plan.base;
    let mut code = Code::default();
    match plan.settings.generator {
        Generator::Pmc => {
            let dag = dir.join(format!("{base}.dag"));
            output::dag::write(plan, dir, &dag, resources.node, events)?;
            let executor = executor(request, &plan.sites.get(site).tools, warnings);
            code.scripts = batch::write(plan, resources, &executor, dir)?;
        }
        Generator::Shell => {
            let search = request.surroundings.environment.get("PATH");
            let script = output::shell::write(plan, dir, search.map(String::as_str), events)?;
            code.shell = Some(script);
        }
    }
    Ok(code)
}

/// Writes everything but the braindump; gives what runs the plan.
fn write(
    plan: &Plan<'_>,
    request: &Request,
    inputs: &Inputs,
    counts: &super::Counts,
    dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<Code, PlanError> {
    let base = &plan.base;
    let site = main_site(plan);
    let resources = batch::Resources::new(request, &inputs.properties, &plan.sites.get(site).profiles)?;
    warnings.extend(resources.warnings());
    let places = output::lists::write(plan, dir)?;
    plan.orders.get_or_init(|| places);
    let time = request
        .surroundings
        .now
        .to_utc()
        .format("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string();
    let events = dir.join(format!("{base}.static.bp"));
    let code = std::thread::scope(|scope| {
        let copies = scope.spawn(|| {
            records::write_cache(plan, &dir.join(format!("{base}.cache")))?;
            copy_inputs(request, inputs, dir)
        });
        let mut events = JobEvents::create(scope, plan, &events, &time)?;
        let code = generate(plan, request, &resources, site, dir, &mut events, warnings)?;
        events.finish()?;
        copies
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok::<_, PlanError>(code)
    })?;
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
    put(&dir.join(PROPERTIES), &properties)?;
    if let Some(embedded) = &inputs.replicas.embedded {
        put(
            &dir.join(format!("{base}.replica.store")),
            &replica_store(embedded),
        )?;
    }
    Ok(code)
}

/// Path of pegasus-mpi-cluster: in the tools of the site, else on `PATH`.
fn executor(request: &Request, tools: &str, warnings: &mut Vec<String>) -> String {
    const NAME: &str = "pegasus-mpi-cluster";
    let first = Path::new(tools).join(NAME);
    if first.exists() {
        return first.display().to_string();
    }
    let path = request
        .surroundings
        .environment
        .get("PATH")
        .map_or("", String::as_str);
    let found = path
        .split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join(NAME))
        .find(|program| program.is_file());
    match found {
        Some(program) => program.display().to_string(),
        None => {
            warnings.push(format!(
                "{NAME} is neither in {tools} nor on PATH; the batch scripts name it there all the same, in case the \
                 compute nodes have it"
            ));
            first.display().to_string()
        }
    }
}

/// Copies of what the plan was made from.
fn copy_inputs(request: &Request, inputs: &Inputs, dir: &Path) -> Result<(), PlanError> {
    copy_catalogs(request, inputs, dir)?;
    match request.workflow.file_name() {
        Some(name) => copy(&request.workflow, &dir.join(name)),
        None => Ok(()),
    }
}

fn copy_catalogs(request: &Request, inputs: &Inputs, dir: &Path) -> Result<(), PlanError> {
    let files: Vec<&Path> = [&inputs.sites.path, &inputs.transformations.path]
        .into_iter()
        .flatten()
        .chain(&inputs.replica_files)
        .chain(&request.cache_files)
        .chain(&request.inherited_files)
        .map(PathBuf::as_path)
        .filter(|path| path.is_file())
        .collect();
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
        copy(file, &path)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), PlanError> {
    fs::copy(from, to)
        .map(|_| ())
        .map_err(|e| PlanError::io("copy to", to, e))
}

/// Locations in the workflow as a text replica catalog.
fn replica_store(catalog: &ReplicaCatalog) -> String {
    use crate::output::lists::{catalog_value, catalog_word};
    use std::fmt::Write as _;
    let mut text = String::from("# replicas of the workflow file\n");
    for entry in catalog.entries() {
        for replica in &entry.replicas {
            // Writing into a String cannot fail.
            let _ = write!(
                text,
                "{} {}",
                catalog_word(&entry.lfn),
                catalog_word(&replica.pfn)
            );
            if let Some(site) = &replica.site {
                let _ = write!(text, " site={}", catalog_value(site));
            }
            if entry.regex {
                text.push_str(" regex=\"true\"");
            }
            for (key, value) in &entry.metadata {
                let _ = write!(text, " {key}={}", catalog_value(value));
            }
            text.push('\n');
        }
    }
    text
}
