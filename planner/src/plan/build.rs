//! The steps of planning, from reading the inputs to the published submit directory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::inputs::{Inputs, add_transformations_dir, property_sources, with_further_problems};
use super::{Counts, Planned, Preview, Script, advice, directories, files, iso_seconds, preflight};
use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::{Exec, JobId, Task};
use crate::fingerprint;
use crate::graph::{Graph, by_depth};
use crate::keys;
use crate::output;
use crate::output::common::private_files::put;
use crate::output::common::records;
use crate::output::common::submit_dir::SubmitDir;
use crate::properties::Properties;
use crate::refine::cleanup::space::Sizes;
use crate::refine::mapping::Mapper;
use crate::refine::programs::Programs;
use crate::refine::refine;
use crate::refine::settings::{Settings, SubmitMapper, generator};
use crate::refine::sites::{Sites, own_tools};
use crate::report::explain::{Explainer, View};
use crate::report::picture;
use crate::report::summary::Summary;
use crate::request::{Picture, Request};
use crate::saved_request::SavedRequest;
use crate::tasks::checksums::Checksums;
use crate::tasks::layout::Layout;
use crate::tasks::nesting::Nesting;
use crate::tasks::secrets::Secrets;
use crate::tasks::{Invocation, Invocations, MAX_SMALL_PLAN, Plan, WorkLists};

/// Plans a workflow: reads the inputs, refines, writes the submit directory.
///
/// # Errors
/// Everything that prevents a plan. The submit directory is removed then.
pub fn plan(request: &Request) -> Result<Planned, PlanError> {
    plan_of(request, Inputs::read(request)?)
}

/// Plans a workflow whose inputs are read.
///
/// # Errors
/// As [`plan`].
pub(super) fn plan_of(request: &Request, inputs: Inputs) -> Result<Planned, PlanError> {
    let directory = directories::reserve(request, &inputs)?;
    build(request, inputs, directory.path(), &mut |_| {})?.write(directory)
}

/// Plans without writing anything but pictures. Returns the figures of the plan and explanations of some
/// jobs. `submit` is the submit directory of the plan, if it exists already.
///
/// # Errors
/// Everything that prevents a plan, and jobs that are not in it.
pub fn preview(request: &Request, submit: Option<&Path>, jobs: &[String]) -> Result<Preview, PlanError> {
    let request = &Request {
        may_start_programs: false,
        chosen_sites: submit.and_then(|dir| SavedRequest::read(dir).ok()?.chosen_sites.map(Arc::new)),
        ..request.clone()
    };
    let inputs = Inputs::read(request)?;
    let directory = submit.map_or_else(|| directories::next(request, &inputs), Path::to_owned);
    build(request, inputs, &directory, &mut |_| {})?.preview(jobs)
}

/// Builds a plan in memory for measurements, and returns its numbers of jobs. `step` is called with the name
/// of each step when it ends.
///
/// # Errors
/// Everything that prevents a plan.
pub fn measure(request: &Request, step: &mut dyn FnMut(&'static str)) -> Result<Counts, PlanError> {
    let inputs = Inputs::read(request)?;
    let directory = directories::next(request, &inputs);
    Ok(build(request, inputs, &directory, step)?.counts())
}

/// Returns whether a batch system runs the plan: the properties name no other code generator than PMC.
/// [`plan`] reports problems in them.
pub fn wants_scheduler(request: &Request) -> bool {
    Properties::load(&property_sources(request))
        .is_ok_and(|properties| generator(&properties).is_ok_and(|of| of.abilities().is_pmc))
}

/// A plan in memory.
pub(super) struct BuiltPlan<'r> {
    request: &'r Request,
    inputs: Inputs,
    sites: Sites,
    exec: Exec,
    /// Jobs, parents before children.
    order: Vec<JobId>,
    /// Submit directory, as it will be called in the end.
    submit: String,
    /// Path of kickstart on each site.
    kickstarts: Vec<String>,
    /// Files that are only read, written and read, only written.
    files: [usize; 3],
    warnings: Vec<Diagnostic>,
    notes: Vec<String>,
}

/// Builds the plan for a submit directory. Without a plan, catalogs that are named and missing are problems
/// too: they may be the reason.
pub(super) fn build<'r>(
    request: &'r Request,
    inputs: Inputs,
    directory: &Path,
    step: &mut dyn FnMut(&'static str),
) -> Result<BuiltPlan<'r>, PlanError> {
    let missing = inputs.missing.clone();
    let problem = |file: &PathBuf| Diagnostic::error(format!("{}: no such catalog", file.display()));
    build_plan(request, inputs, directory, step)
        .map_err(|error| error.with_further(|| missing.iter().map(problem)))
}

/// Builds the plan for a submit directory.
fn build_plan<'r>(
    request: &'r Request,
    mut inputs: Inputs,
    directory: &Path,
    step: &mut dyn FnMut(&'static str),
) -> Result<BuiltPlan<'r>, PlanError> {
    let mut warnings: Vec<Diagnostic> = request
        .warnings
        .iter()
        .cloned()
        .map(Diagnostic::warning)
        .collect();
    warnings.append(&mut inputs.warnings);
    warnings.extend(inputs.settings.warnings.iter().cloned().map(Diagnostic::warning));
    let mut notes = Vec::new();
    let submit = directory.display().to_string();
    let dirs = directories::run_dirs(request, &inputs.workflow, &submit);
    let sites = Sites::new(&inputs.sites.catalog, request, &inputs.settings, &dirs)
        .map_err(|error| with_further_problems(error, request, &inputs))?;
    add_transformations_dir(request, &sites, &mut inputs, &mut warnings)?;
    let files = records::count_files(&inputs.workflow);
    step("reading");
    let programs = Programs::new(&inputs.transformations.catalog, inputs.settings.transformations);
    let prefix = request.job_prefix.as_deref().unwrap_or_default();
    let mut mapper = Mapper::new(
        &sites,
        &programs,
        &inputs.settings,
        tools(request, &inputs.settings, &sites),
        prefix,
    );
    let exec = refine(
        &mut inputs.workflow,
        &mut mapper,
        &inputs.replicas,
        &mut notes,
        step,
    )?;
    let kickstarts = mapper.kickstarts();
    if request.check_files {
        preflight::check(&inputs.workflow, &exec)?;
    }
    let workflow = &inputs.workflow;
    advice::note_sites(&exec, &sites, &mut notes);
    let further = [
        advice::doubtful_arguments(workflow, &exec),
        advice::bypass(workflow, &exec, inputs.settings.bypass),
        advice::missing_hooks(workflow),
        advice::batch_requests(workflow),
        advice::missing_kickstart(&exec, &sites, &kickstarts, request),
    ];
    let further = further.into_iter().flatten().chain(exec.warnings.iter().cloned());
    let further = further.chain(advice::outputs_that_stay(workflow, &exec, &sites));
    let further = further.chain(advice::made_directories(&inputs, &exec, &sites, request));
    let further = further.chain(advice::htcondor_expressions(workflow, &exec));
    let further = further.chain(preflight::missing_inputs(workflow, &exec, request));
    warnings.extend(further.map(Diagnostic::warning));
    if inputs.settings.generator.abilities().ships_files {
        warnings.retain(|warning| !keys::is_wrong_for_condor(&warning.message));
    }
    let mut seen = rustc_hash::FxHashSet::default();
    warnings.retain(|warning| seen.insert(warning.to_string()));
    let order = order(&exec)?;
    step("order");
    Ok(BuiltPlan {
        request,
        inputs,
        sites,
        exec,
        order,
        submit,
        kickstarts,
        files,
        warnings,
        notes,
    })
}

impl BuiltPlan<'_> {
    fn counts(&self) -> Counts {
        records::count(&self.exec, &self.inputs.workflow)
    }

    /// The plan as the writers of files see it.
    fn view(&self) -> Plan<'_> {
        let (request, workflow, settings) = (self.request, &self.inputs.workflow, &self.inputs.settings);
        let now = request.environment.now;
        let base = directories::base(request, workflow);
        let path = format!("{}/{base}", self.submit);
        let names = request.environment.variables.get(pmc_secrets::VARIABLE);
        let are_apart = settings.lists_apart || self.exec.jobs.len() <= MAX_SMALL_PLAN;
        Plan {
            workflow,
            exec: &self.exec,
            sites: &self.sites,
            settings,
            catalog: &self.inputs.transformations.catalog,
            base,
            run_label: request.basename.clone().unwrap_or_else(|| workflow.label.clone()),
            stamp: iso_seconds(workflow.mtime.unwrap_or_else(|| now.into()), *now.offset()),
            uuid: &request.environment.uuid,
            own_tools: tools(request, settings, &self.sites),
            kickstarts: self.kickstarts.clone(),
            layout: Layout::new(self.submit_mapper(), workflow, &self.exec),
            files: self.files,
            files_apart: are_apart || !settings.generator.abilities().shares_lists,
            names_apart: are_apart,
            checksums: Checksums::new(workflow, &self.exec, &self.sites, settings),
            has_job_scripts: has_job_scripts(settings, &self.sites, request),
            nesting: self.nesting(),
            order: self.order.clone(),
            secrets: Secrets::new(&self.exec, &self.sites, names.map(String::as_str), path),
            submit: self.submit.clone(),
        }
    }

    /// Returns where the files of jobs are. As in Pegasus, those of a plan without work for HTCondor are
    /// beside its DAG.
    fn submit_mapper(&self) -> &SubmitMapper {
        let settings = &self.inputs.settings;
        let is_empty = self.exec.jobs.iter().all(|job| matches!(job.task, Task::NoOp));
        match is_empty && settings.generator.abilities().ships_files {
            true => &SubmitMapper::Flat,
            false => &settings.submit_mapper,
        }
    }

    /// What nested sub-workflows take over from the plan.
    fn nesting(&self) -> Nesting {
        let Inputs {
            properties, replicas, ..
        } = &self.inputs;
        let root = properties.get("pegasus.workflow.root.uuid").map(str::trim);
        let root = root.filter(|uuid| self.request.deferred && !uuid.is_empty());
        let own = &self.request.environment.uuid;
        Nesting::new(
            self.request,
            &self.exec,
            &self.submit,
            root.map_or_else(|| own.clone(), str::to_owned),
            (
                replicas.embedded.is_some(),
                self.inputs.settings.cleanup_deferred,
                self.inputs.for_nested(self.request),
            ),
        )
    }

    /// Writes the plan into its submit directory and publishes that.
    ///
    /// # Errors
    /// Files that cannot be written, and jobs that cannot be written into a DAG.
    fn write(self, directory: SubmitDir) -> Result<Planned, PlanError> {
        self.write_and(directory, &mut |_, _| Ok(()))
    }

    /// Writes the plan like [`BuiltPlan::write`]. `complete` gets the plan and the directory with its files
    /// before these are published.
    ///
    /// # Errors
    /// As [`BuiltPlan::write`], and those of `complete`.
    pub(super) fn write_and(
        mut self,
        directory: SubmitDir,
        complete: &mut dyn FnMut(&Plan<'_>, &Path) -> Result<(), PlanError>,
    ) -> Result<Planned, PlanError> {
        let (request, counts) = (self.request, self.counts());
        let (mut warnings, notes) = (
            std::mem::take(&mut self.warnings),
            std::mem::take(&mut self.notes),
        );
        let plan = self.view();
        let staging = directory.staging().to_owned();
        let code = files::write(&plan, request, &self.inputs, &counts, &staging, &mut warnings)?;
        let code_lines = output::generator(plan.settings.generator).braindump(&plan);
        let braindump = records::braindump(&plan, request, code_lines);
        let text = monitord_compat::braindump::write(&braindump);
        put(&staging.join("braindump.yml"), &text)?;
        complete(&plan, &staging)?;
        if request.deferred {
            // Its tasks wait for it. A plan that a failing machine loses is made again; the executor brings
            // it to the disk before the first task counts as done there.
            let dag = staging.join(format!("{}.dag", plan.base));
            fingerprint::add_parts(&dag).map_err(|e| PlanError::io("write", &fingerprint::path(&dag), e))?;
        } else {
            directory.sync()?;
        }
        let path = directory.publish()?;
        draw(&plan, &request.pictures)?;
        let scripts = code.scripts.into_iter().map(|script| Script {
            path: path.join(&script.path),
            ..script
        });
        let output_dirs = plan.sites.outputs.iter();
        let planned = Planned {
            dag: path.join(format!("{}.dag", plan.base)),
            shell: code.shell.map(|name| path.join(name)),
            condor: output::condor_file(&plan).map(|name| path.join(name)),
            scripts: scripts.collect(),
            batch_size: code.batch_size,
            run_files: code.run_files,
            log_options: code.log_options,
            needs_nodes: code.needs_nodes,
            label: plan.workflow.label.clone(),
            index: plan.workflow.index.clone(),
            uuid: request.environment.uuid.clone(),
            output_dirs: output_dirs
                .filter_map(|o| o.path.as_ref().map(PathBuf::from))
                .collect(),
            submit_dir: path,
            counts,
            braindump,
            warnings,
            notes,
        };
        Ok(planned)
    }

    /// Returns the figures of the plan and explanations of some jobs. Draws the pictures.
    ///
    /// # Errors
    /// Jobs that are not in the plan, and jobs that could not be written into a DAG.
    fn preview(mut self, jobs: &[String]) -> Result<Preview, PlanError> {
        let (mut warnings, notes) = (
            std::mem::take(&mut self.warnings),
            std::mem::take(&mut self.notes),
        );
        let plan = self.view();
        let (request, inputs) = (self.request, &self.inputs);
        let site = files::main_site(&plan);
        let resources = files::resources(&plan, request, &inputs.properties, plan.sites.get(site))?;
        warnings.extend(resources.warnings().into_iter().map(Diagnostic::warning));
        check_commands(&plan)?;
        let mut sizes = Sizes::new(plan.workflow, plan.exec, &plan.settings.space)?;
        sizes.measure(plan.exec);
        let summary = Summary::new(&plan, self.counts(), &sizes, resources.estimate);
        let programs = Programs::new(&inputs.transformations.catalog, inputs.settings.transformations);
        let prefix = request.job_prefix.as_deref().unwrap_or_default();
        let mapper = Mapper::new(
            &self.sites,
            &programs,
            &inputs.settings,
            tools(request, &inputs.settings, &self.sites),
            prefix,
        );
        let explainer = Explainer::new(View {
            plan: &plan,
            mapper: &mapper,
            replicas: &inputs.replicas,
        });
        let mut explanations = Vec::new();
        let mut problems = Vec::new();
        for job in jobs {
            match explainer.explain(job) {
                Ok(text) => explanations.push(text),
                Err(problem) => problems.push(Diagnostic::error(problem.to_string())),
            }
        }
        if !problems.is_empty() {
            return Err(PlanError::Refinement(problems));
        }
        draw(&plan, &request.pictures)?;
        Ok(Preview {
            summary,
            explanations,
            jobs: plan.exec.jobs.iter().map(|job| job.name.to_string()).collect(),
            warnings,
            notes,
        })
    }
}

/// Returns the directory of the tools of the submit host. Under HTCondor the site catalog may name others
/// than those of this installation.
fn tools(request: &Request, settings: &Settings, sites: &Sites) -> String {
    match settings.generator.abilities().ships_files {
        true => sites.get(sites.local()).tools.clone(),
        false => own_tools(request),
    }
}

/// Returns whether jobs with directories of their own are scripts. So they are under HTCondor, if the tools
/// of the submit host are those of Pegasus, unless a property says otherwise.
fn has_job_scripts(settings: &Settings, sites: &Sites, request: &Request) -> bool {
    if !settings.generator.abilities().ships_files {
        return false;
    }
    settings.condor.lite_scripts.unwrap_or_else(|| {
        let tools = Path::new(&sites.get(sites.local()).tools);
        let is_this = request.environment.own_bin.as_deref() == Some(tools);
        !is_this && !tools.join("pegasus-lite").exists()
    })
}

/// Draws the requested pictures.
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

/// Refuses jobs that cannot be written into the DAG.
fn check_commands(plan: &Plan<'_>) -> Result<(), PlanError> {
    const MAX_REPORTED: usize = 20;
    let lists = WorkLists::default();
    let mut invocations = Invocations::new(plan, &lists);
    let mut invocation = Invocation::default();
    let members = (0..plan.exec.members.len()).map(|position| plan.member(position));
    let problems: Vec<Diagnostic> = plan
        .order
        .iter()
        .copied()
        .chain(members)
        .filter_map(|job| invocations.fill(job, &mut invocation).err())
        .flatten()
        .take(MAX_REPORTED)
        .collect();
    PlanError::check_code(problems)
}

/// Jobs parents first; of those at one depth, in order of creation.
fn order(exec: &Exec) -> Result<Vec<JobId>, PlanError> {
    let graph = Graph::new(exec.jobs.len(), &exec.edges);
    let order = graph
        .order()
        .ok_or_else(|| PlanError::refinement("the plan has a cycle; please report this"))?;
    let depths = graph.depths(&order);
    Ok(by_depth(&depths).concat())
}
