//! The steps of planning, from reading to publishing.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::exec::{Exec, ExecJob};
use crate::input::SPLIT_ARGUMENTS;
use crate::model::{Arguments, TransferFlag, Workflow};
use crate::output::layout::Layout;
use crate::output::submit_dir::SubmitDir;
use crate::output::{self, Plan, batch, records};
use crate::profiles::Namespace;
use crate::properties::Properties;
use crate::refine::cleanup::space::Sizes;
use crate::refine::mapping::Mapper;
use crate::refine::programs::Programs;
use crate::refine::settings::{Generator, Settings, generator};
use crate::refine::sites::{Sites, own_tools};
use crate::refine::{WORTH_A_THREAD, refine};
use crate::report::explain::{Explainer, View};
use crate::report::picture;
use crate::report::summary::{Machine, Summary};
use crate::request::Picture;

use super::files::{self, main_site, put, write};
use super::inputs::{Inputs, add_transformations_dir, property_sources, read, with_further_problems};
use super::{Looked, Planned, Script, iso_seconds};
use crate::error::PlanError;
use crate::request::Request;

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
    let begin = |directory: &SubmitDir, catalogs: &[PathBuf], workflow: &Workflow| {
        files::begin(request, catalogs, workflow, directory.staging())
    };
    make(request, take, &mut |_| {}, begin, |made, directory, begun| {
        let tasks =
            begun.ok_or_else(|| PlanError::refinement("the plan was not begun; please report this"))??;
        let Made {
            plan,
            inputs,
            counts,
            mut warnings,
            notes,
            ..
        } = made;
        let staging = directory.staging().to_owned();
        let code = write(plan, request, inputs, &tasks, &counts, &staging, &mut warnings)?;
        let braindump = records::braindump(plan, request);
        let text = monitord_compat::braindump::write(&braindump);
        put(&staging.join("braindump.yml"), &text)?;
        if plan.exec.jobs.len() <= output::MAX_SMALL_PLAN {
            directory.sync()?;
        }
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
            uuid: request.environment.uuid.clone(),
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
    make(
        request,
        take,
        &mut |_| {},
        |(), _, _| {},
        |made, (), _| {
            let Made {
                plan,
                inputs,
                mapper,
                counts,
                mut warnings,
                notes,
            } = made;
            let site = main_site(plan);
            let resources =
                batch::Resources::new(request, &inputs.properties, &plan.sites.get(site).profiles)?;
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
                match explainer.explain(job) {
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
        },
    )
}

/// Makes a plan in memory and tells `step` the name of each step that is over, for measurements; gives the
/// numbers of jobs.
///
/// # Errors
/// Whatever stands in the way of a plan.
pub fn steps(request: &Request, step: &mut dyn FnMut(&'static str)) -> Result<super::Counts, PlanError> {
    let take = |settings: &Settings, workflow: &Workflow| Ok((preview(request, settings, workflow), ()));
    make(request, take, step, |(), _, _| {}, |made, (), _| Ok(made.counts))
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
/// step that is over; `begin` is called with the catalogs that were read and the workflow while it is refined.
fn make<D: Sync, B: Send, R>(
    request: &Request,
    take: impl FnOnce(&Settings, &Workflow) -> Result<(PathBuf, D), PlanError>,
    step: &mut dyn FnMut(&'static str),
    begin: impl FnOnce(&D, &[PathBuf], &Workflow) -> B + Send,
    finish: impl FnOnce(Made<'_, '_>, D, Option<B>) -> Result<R, PlanError>,
) -> Result<R, PlanError> {
    let properties = Properties::load(&property_sources(request))?;
    let settings = Settings::new(&properties, request)?;
    let mut inputs = read(request, properties, &settings)?;
    let mut warnings = request.warnings.clone();
    warnings.append(&mut inputs.warnings);
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
    let catalogs = files::catalogs(request, &inputs);
    let mut begun = None;
    let exec = refine(
        &mut inputs.workflow,
        &mut mapper,
        &inputs.replicas,
        &mut notes,
        step,
        |workflow| begun = Some(begin(&taken, &catalogs, workflow)),
    )?;
    note_sites(&exec, &sites, &mut notes);
    warnings.extend(words_with_blanks(&inputs.workflow, &inputs.properties));
    warnings.extend(bypass(&inputs.workflow, &inputs.properties)?);
    warnings.extend(exec.warnings.iter().cloned());
    warnings.extend(outputs_that_stay(&inputs.workflow, &exec, &sites));
    warnings.extend(scripts_after_jobs(&exec));
    let order = order(&exec)?;
    step("order");
    let workflow = &inputs.workflow;
    let plan = Plan {
        workflow,
        exec: &exec,
        sites: &sites,
        settings: &settings,
        catalog: &inputs.transformations.catalog,
        base: base(request, workflow),
        run_label: request.basename.clone().unwrap_or_else(|| workflow.label.clone()),
        stamp: iso_seconds(
            workflow.mtime.unwrap_or_else(|| request.environment.now.into()),
            *request.environment.now.offset(),
        ),
        uuid: &request.environment.uuid,
        own_tools: own_tools(request),
        kickstarts: mapper.kickstarts(),
        layout: Layout::new(&settings.submit_mapper, workflow, &exec),
        files,
        files_apart: settings.lists_apart
            || settings.generator == Generator::Shell
            || exec.jobs.len() <= output::MAX_SMALL_PLAN,
        orders: std::sync::OnceLock::new(),
        order,
        submit,
    };
    let workflow_jobs = workflow.jobs.len();
    let counts = records::count(&exec, workflow_jobs);
    let made = Made {
        plan: &plan,
        inputs: &inputs,
        mapper: &mapper,
        counts,
        warnings,
        notes,
    };
    let result = finish(made, taken, begun);
    // A million jobs take a while to be freed, for which nobody has to wait.
    drop((plan, mapper));
    drop(programs);
    if workflow_jobs >= WORTH_A_THREAD {
        let _ = std::thread::Builder::new().spawn(move || drop((exec, inputs)));
    }
    result
}

/// Base name of the files of the workflow.
pub(super) fn base(request: &Request, workflow: &Workflow) -> String {
    let default = || format!("{}-{}", workflow.label, workflow.index);
    request.basename.clone().unwrap_or_else(default)
}

/// Whether the properties ask for a shell script instead of a DAG. Problems in them are for [`plan`] to tell.
pub fn wants_shell(request: &Request) -> bool {
    Properties::load(&property_sources(request))
        .is_ok_and(|properties| generator(&properties).is_ok_and(|g| g == Generator::Shell))
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
        .join(&request.environment.user)
        .join("pegasus")
        .join(&workflow.label);
    if settings.use_timestamp {
        let stamp = request.environment.now.format("%Y%m%dT%H%M%S%z").to_string();
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
        .join(&request.environment.user)
        .join("pegasus")
        .join(&workflow.label);
    if settings.use_timestamp {
        return parent.join(request.environment.now.format("%Y%m%dT%H%M%S%z").to_string());
    }
    SubmitDir::next_path(&parent)
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
            Some(base) => format!("{base}-{}", request.environment.uuid),
            None => format!(
                "{}-{}-{}",
                workflow.label, workflow.index, request.environment.uuid
            ),
        },
        (None, Some(relative)) => relative.clone(),
        (None, None) => {
            // With `--relative-submit-dir` alone the work directory is the one of a first run elsewhere; a
            // name of its own keeps two such plans apart.
            let leaf = submit.rsplit('/').next().unwrap_or_default();
            let leaf = match &request.relative_submit_dir {
                Some(_) => format!("run-{}", request.environment.uuid),
                None => leaf.to_owned(),
            };
            format!("{}/pegasus/{}/{leaf}", request.environment.user, workflow.label)
        }
    }
}

/// Jobs parents first; of those at one depth, in order of creation.
fn order(exec: &Exec) -> Result<Vec<u32>, PlanError> {
    let graph = crate::graph::Graph::new(exec.jobs.len(), &exec.edges);
    let order = graph
        .order()
        .ok_or_else(|| PlanError::refinement("the plan has a cycle; please report this"))?;
    let depths = graph.depths(&order);
    Ok(crate::graph::by_depth(&depths).concat())
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

/// Pegasus joins the arguments of a job and lets them be split again, so an argument may be several words. Here it is
/// one, unless the property says otherwise; without the property, that is said.
fn words_with_blanks(workflow: &Workflow, properties: &Properties) -> Option<String> {
    if properties.get(SPLIT_ARGUMENTS).is_some() {
        return None;
    }
    let is_special = |word: &&str| word.contains([' ', '\t', '"', '\'']);
    let (job, word) = workflow.jobs.iter().find_map(|job| match &job.arguments {
        Arguments::Words(words) => Some((job, words.iter().find(is_special)?)),
        Arguments::Raw(_) => None,
    })?;
    Some(format!(
        "arguments with blanks or quotes, such as {word:?} of the job {}, reach their program as they are, each as one \
         word; Pegasus splits them at blanks: set the property {SPLIT_ARGUMENTS} to true for that, or to false if all is \
         well",
        job.id
    ))
}

/// Scripts before and after jobs are started by DAGMan; nothing here does.
fn scripts_after_jobs(exec: &Exec) -> Option<String> {
    let is_script = |key: &str| {
        let mut words = ["pre", "post"].iter().filter_map(|word| key.strip_prefix(word));
        words.any(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut setups = exec.setups.iter().enumerate();
    let (setup, key) = setups.find_map(|(n, setup)| {
        let mut keys = setup.profiles.of(Namespace::Dagman).map(|(key, _)| key);
        Some((n, keys.find(|key| is_script(&key.to_ascii_lowercase()))?))
    })?;
    let mut jobs = exec.jobs.iter().chain(&exec.members);
    let name = &jobs.find(|job| job.setup as usize == setup)?.name;
    Some(format!(
        "the profile dagman::{key}, as the job {name} has it, has no effect: there is no DAGMan that starts scripts before \
         and after jobs; the profiles exitcode.failuremsg and exitcode.successmsg of the namespace pegasus are heeded by \
         the code generator Shell"
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
