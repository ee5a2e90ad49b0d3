//! Site, program and profiles of each job.

mod data_modes;

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::transformation::{Container, TransformationEntry, TransformationKind};
use crate::data_mode::{self, DataMode};
use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::model::{
    FileId, FileKind, FileUse, Files, Job, JobIndex, JobKind, Link, TransferFlag, TransformationName,
    Workflow,
};
use crate::profiles::{Namespace, Profiles};
use crate::task_request::{self, JobNodes};

use super::Refinement;
use super::names::{job_name, staged_name};
use super::programs::{Programs, auxiliary_name, default_program};
use super::replicas::missing;
use super::reuse::Reduced;
use super::settings::Settings;
use super::sites::selection::{self, Placed, fixed_site, named_program};
use super::sites::{Sites, WorkSite};
use super::staging_sites;
use crate::exec::{EntryId, Exec, ExecJob, JobId, Setup, SetupId, SiteId, Task};
use crate::ids::Id as _;

/// Sets the default resources where nobody requests any. `own` are the profiles of program and job alone.
fn set_defaults(profiles: &mut Profiles, own: [Option<&Profiles>; 2], nodes: Option<JobNodes>) {
    let all = nodes.map(|nodes| nodes.ranks().to_string());
    let of_node = own.into_iter().flatten().find_map(task_request::processes);
    let processes = all.as_deref().or(of_node);
    for (key, value) in task_request::DEFAULTS {
        if task_request::needs_default(profiles, key) {
            let value = processes.filter(|_| key == "cores").unwrap_or(value);
            profiles.set(Namespace::Pegasus, key, value);
        }
    }
}

/// Step: chooses a site and a program for every kept job.
pub(super) fn map_jobs(refinement: &mut Refinement<'_, '_>) -> Result<(), PlanError> {
    let Refinement {
        workflow,
        mapper,
        replicas,
        exec,
        reduced,
        notes,
        ..
    } = refinement;
    refinement.mapped = mapper
        .map(workflow, reduced, exec, notes)
        .map_err(|error| error.with_further(|| missing(workflow, &reduced.kept, replicas, &mapper.prefix)))?;
    Ok(())
}

/// Programs that the workflow stages.
#[derive(Debug, Default)]
pub(crate) struct StagedPrograms {
    /// Catalog entry of each staged file.
    pub(crate) entries: FxHashMap<FileId, EntryId>,
}

/// Result of the mapping.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    /// Number of each abstract job in the executable workflow; `None` for deleted and clustered jobs.
    pub(crate) numbers: Vec<Option<JobId>>,
    /// Programs that are inputs of their jobs.
    pub(crate) staged: StagedPrograms,
}

impl Mapped {
    /// Returns edges of the abstract workflow as edges of the executable one.
    pub(crate) fn edges(&self, edges: &[(JobIndex, JobIndex)]) -> impl Iterator<Item = (JobId, JobId)> {
        let of_plan = |&(p, c): &(JobIndex, JobIndex)| Some((self.numbers[p]?, self.numbers[c]?));
        edges.iter().filter_map(of_plan)
    }
}

/// Maps jobs onto sites and programs.
pub(crate) struct Mapper<'a> {
    pub(crate) sites: &'a Sites,
    pub(crate) programs: &'a Programs<'a>,
    pub(crate) settings: &'a Settings,
    /// Tools of the planner's own installation.
    pub(crate) own_tools: String,
    /// `--job-prefix`.
    pub(crate) prefix: String,
    /// Data configuration of the jobs of each site whose profiles say none.
    modes: Vec<DataMode>,
    shared: FxHashMap<(EntryId, SiteId), SetupId>,
    auxiliary: FxHashMap<(&'static str, SiteId), SetupId>,
}

/// What a job runs: a catalog entry, or the path that a profile gives.
enum Program {
    Entry(EntryId),
    Pinned(String),
    /// The planner, or nothing at all for a DAG that is there.
    Nested,
}

impl Program {
    fn entry(&self) -> Option<EntryId> {
        match self {
            Program::Entry(number) => Some(*number),
            Program::Pinned(_) | Program::Nested => None,
        }
    }
}

impl<'a> Mapper<'a> {
    /// Creates a mapper for a run.
    pub(crate) fn new(
        sites: &'a Sites,
        programs: &'a Programs<'a>,
        settings: &'a Settings,
        own_tools: String,
        prefix: &str,
    ) -> Self {
        Mapper {
            sites,
            programs,
            settings,
            own_tools,
            prefix: prefix.to_owned(),
            modes: vec![settings.data; sites.len()],
            shared: FxHashMap::default(),
            auxiliary: FxHashMap::default(),
        }
    }

    /// Adds the kept jobs of the abstract workflow to the executable one, in document order.
    ///
    /// # Errors
    /// All jobs that cannot be mapped.
    pub(crate) fn map(
        &mut self,
        workflow: &mut Workflow,
        reduced: &Reduced,
        exec: &mut Exec,
        notes: &mut Vec<String>,
    ) -> Result<Mapped, PlanError> {
        let chosen = self.choose_sites(workflow, reduced, notes)?;
        self.modes = self.modes_of_sites(workflow, &chosen);
        let mut numbers = vec![None; workflow.jobs.len()];
        let mut staged = StagedPrograms::default();
        let mut problems = Vec::new();
        for n in JobIndex::first(workflow.jobs.len()) {
            let Some(choice) = &chosen[n] else {
                continue;
            };
            let site = choice.0;
            let setup = match self.setup(workflow, n, choice, exec, &mut staged) {
                Ok(setup) => setup,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let staging = match self.sites.staging_of(site, exec.setups[setup].mode) {
                // The planner reads files in the work directory, or fetches them.
                Ok(staging) if workflow.jobs[n].nested.is_some() && !self.sites.is_visible(staging) => site,
                Ok(staging) => staging,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let job = &workflow.jobs[n];
            let name = job_name(&self.prefix, &job.transformation.name, &job.id);
            let id = exec.add(ExecJob {
                name,
                task: Task::Compute(n),
                site,
                staging,
                setup,
            });
            numbers[n] = Some(id);
        }
        problems.dedup();
        PlanError::check(problems)?;
        staging_sites::settle(exec, self.sites)?;
        let warnings: Vec<String> = self.describe_modes(exec).collect();
        exec.warnings.extend(warnings);
        staging_sites::fetch_for_planners(exec, workflow, self.sites);
        Ok(Mapped { numbers, staged })
    }

    /// Returns site and program of every kept job.
    fn choose_sites(
        &self,
        workflow: &Workflow,
        reduced: &Reduced,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Option<(SiteId, Program)>>, PlanError> {
        let mut problems = Vec::new();
        let placed = selection::select(
            workflow,
            &reduced.kept,
            &reduced.edges,
            self.sites,
            self.programs,
            self.settings,
        )
        .unwrap_or_else(|found| {
            problems = found;
            Placed::default()
        });
        notes.extend(placed.notes);
        let mut chosen = Vec::with_capacity(workflow.jobs.len());
        for (n, job) in workflow.jobs.iter().enumerate() {
            let choice = match placed.sites.get(n).copied().flatten() {
                Some((site, Some(entry))) => Some(Ok((site, Program::Entry(entry)))),
                Some((site, None)) => Some(self.named_program(job, site)),
                None if reduced.kept[n] && job.nested.is_some() => {
                    Some(Ok((self.sites.local(), Program::Nested)))
                }
                None if reduced.kept[n] && fixed_site(job).is_some() => Some(self.pinned(job)),
                None => None,
            };
            chosen.push(match choice {
                Some(Ok(choice)) => Some(choice),
                Some(Err(problem)) => {
                    problems.push(problem);
                    None
                }
                None => None,
            });
        }
        if problems.is_empty() {
            Ok(chosen)
        } else {
            problems.extend(self.without_directory());
            let mut seen = FxHashSet::default();
            problems.retain(|problem| seen.insert(problem.clone()));
            Err(PlanError::Refinement(problems))
        }
    }

    /// Returns the program that plans a nested sub-workflow, or the one that runs a DAG.
    fn program_of_nested(&self, job: &Job) -> String {
        let is_ready = job.nested.as_ref().is_some_and(|nested| nested.is_ready);
        let program = if is_ready {
            "pegasus-mpi-cluster"
        } else {
            "pmc-plan"
        };
        format!("{}/{program}", self.own_tools)
    }

    /// Returns the problems of execution sites that cannot be the staging sites of their jobs.
    fn without_directory(&self) -> impl Iterator<Item = Diagnostic> {
        let of_site = |site: SiteId| self.sites.get(site).profiles.pegasus(data_mode::KEY);
        self.sites.candidates.iter().filter_map(move |&site| {
            let mode = of_site(site).and_then(DataMode::parse);
            self.sites
                .staging_of(site, mode.unwrap_or(self.settings.data))
                .err()
        })
    }

    /// Returns site and program of a job whose profiles fix the site.
    fn pinned(&self, job: &Job) -> Result<(SiteId, Program), Diagnostic> {
        let name = fixed_site(job).unwrap_or_default();
        let site = self.sites.find(name).ok_or_else(|| {
            Diagnostic::error(format!(
                "the job {} is pinned to the site {name}, which is in no site catalog\n  hint: {}",
                job.id,
                self.sites.suggestion(name)
            ))
        })?;
        if named_program(job).is_some() {
            return self.named_program(job, site);
        }
        match self.programs.usable(&job.transformation, self.sites.get(site)) {
            Some(entry) => Ok((site, Program::Entry(entry))),
            None => Err(Diagnostic::error(
                self.programs.missing(&job.transformation, &[name]),
            )),
        }
    }

    /// Returns the program that a profile of the job names.
    fn named_program(&self, job: &Job, site: SiteId) -> Result<(SiteId, Program), Diagnostic> {
        let pfn = named_program(job).unwrap_or_default();
        let path = pfn.strip_prefix("file://").unwrap_or(pfn);
        if path.starts_with('/') {
            Ok((site, Program::Pinned(path.to_owned())))
        } else {
            Err(Diagnostic::error(format!(
                "the job {} names its program with the profile selector::pfn, which must be an absolute path, \
                 not {pfn}",
                job.id
            )))
        }
    }

    /// Returns what a job asks of several nodes with its own profiles and those of its program. In plans for
    /// others than our executor, the keys are for the batch system.
    fn nodes_of(&self, profiles: [Option<&Profiles>; 2]) -> Option<JobNodes> {
        let is_pmc = self.settings.generator.abilities().is_pmc;
        JobNodes::of(profiles).filter(|_| is_pmc)
    }

    /// Returns program and profiles of a compute job. Jobs without own profiles share them.
    fn setup(
        &mut self,
        workflow: &mut Workflow,
        n: JobIndex,
        (site, program): &(SiteId, Program),
        exec: &mut Exec,
        staged: &mut StagedPrograms,
    ) -> Result<SetupId, Diagnostic> {
        let site = *site;
        let declared = self.declared_programs(&mut workflow.jobs[n].uses, &workflow.files);
        let container = match program {
            Program::Entry(number) => self.container(workflow, n, *number, exec)?,
            Program::Pinned(_) | Program::Nested => None,
        };
        let own = &workflow.jobs[n].profiles;
        if let Program::Entry(number) = program
            && own.is_empty()
            && self.programs.entry(*number).kind != TransformationKind::Stageable
            && let Some(&known) = self.shared.get(&(*number, site))
        {
            return Ok(known);
        }
        let (entry, mut executable) = match program {
            Program::Entry(number) => (Some(*number), self.programs.entry(*number).pfn.clone()),
            Program::Pinned(path) => (None, path.clone()),
            Program::Nested => (None, self.program_of_nested(&workflow.jobs[n])),
        };
        let mut staged_file = None;
        if let Some(number) = entry
            && self.programs.entry(number).kind == TransformationKind::Stageable
        {
            let name = Arc::clone(&workflow.jobs[n].transformation);
            let file = self.stage_program(workflow, n, &name, number, staged)?;
            staged_file = Some(file);
            for required in self.programs.requires(&name).iter().chain(&declared) {
                let Some(other) = self.programs.usable(required, self.sites.get(site)) else {
                    let missing = self.programs.missing(required, &[&self.sites.get(site).name]);
                    return Err(Diagnostic::error(format!("{missing} (required by {name})")));
                };
                if self.programs.entry(other).kind == TransformationKind::Stageable {
                    self.stage_program(workflow, n, required, other, staged)?;
                }
            }
        }
        let own = &workflow.jobs[n].profiles;
        let sharable = entry.filter(|_| own.is_empty()).map(|entry| (entry, site));
        if let Some(&number) = sharable.and_then(|key| self.shared.get(&key)) {
            return Ok(number);
        }
        let mode = self.mode(&workflow.jobs[n], site, entry)?;
        let mut profiles = own.clone();
        for profiles_of_site in self.site_profiles(&workflow.jobs[n], site) {
            profiles.overlay(profiles_of_site);
        }
        if let Some(container) = &container {
            profiles.overlay(&container.profiles);
        }
        if let Some(number) = entry {
            profiles.overlay(&self.programs.entry(number).profiles);
        }
        profiles.fill_from(&self.settings.profiles);
        self.check_workdir(&workflow.jobs[n], site, &profiles)?;
        let program = entry.map(|number| &self.programs.entry(number).profiles);
        let nodes = self.nodes_of([program, Some(own)]);
        set_defaults(&mut profiles, [program, Some(own)], nodes);
        if let Some(file) = staged_file {
            executable = match mode {
                DataMode::Shared => self.sites.scratch_path(site, workflow.files.name(file)),
                _ => format!("./{}", workflow.files.name(file)),
            };
        }
        exec.setups.push(Setup {
            executable: executable.into(),
            profiles,
            staged: staged_file.is_some(),
            mode,
            kind: workflow.jobs[n].kind,
            container,
            in_cluster: false,
            fetches_for_planner: false,
            nodes,
            entry,
        });
        let number = SetupId::new(exec.setups.len() - 1);
        self.shared.extend(sharable.map(|key| (key, number)));
        Ok(number)
    }

    /// Removes and returns the transformations that a job lists among its input files. They are staged
    /// together with a staged program; installed programs do not need them.
    fn declared_programs(&self, uses: &mut Vec<FileUse>, files: &Files) -> Vec<TransformationName> {
        let is_program = |u: &FileUse| u.kind == FileKind::Executable && u.link == Link::Input;
        if !uses.iter().any(is_program) {
            return Vec::new();
        }
        let mut found = Vec::new();
        uses.retain(|u| {
            let name = TransformationName::parse(files.name(u.file));
            if !is_program(u) || !self.programs.knows(&name) {
                return true;
            }
            found.push(name);
            false
        });
        found
    }

    /// Refuses a job with its own work directory: jobs exchange files in the one work directory of their
    /// site.
    fn check_workdir(&self, job: &Job, site: SiteId, profiles: &Profiles) -> Result<(), Diagnostic> {
        let requested = profiles
            .pegasus("workdir")
            .map(|dir| dir.trim().trim_end_matches('/'));
        let place = self.sites.get(site);
        if requested == place.workdir.as_deref() {
            return Ok(());
        }
        let directory = place.scratch.as_ref().map_or("", |s| s.path.as_str());
        Err(Diagnostic::error(format!(
            "the job {} ({}) has the profile pegasus::workdir = {}, but with a shared file system the jobs of a site work \
             in one directory, {directory}\n  hint: set the profile for the site {} in the site catalog, or as the property \
             pegasus.workdir",
            job.id,
            job.transformation,
            requested.unwrap_or_default(),
            place.name
        )))
    }

    /// Returns the container of a catalog entry, and makes its image an input of a job.
    fn container(
        &self,
        workflow: &mut Workflow,
        n: JobIndex,
        entry: EntryId,
        exec: &mut Exec,
    ) -> Result<Option<Arc<Container>>, Diagnostic> {
        let entry = self.programs.entry(entry);
        let Some(name) = &entry.container else {
            return Ok(None);
        };
        let container = self.programs.container(name).ok_or_else(|| {
            let near = self.programs.near_container(name);
            Diagnostic {
                hint: near.map(|near| format!("did you mean {near}?")),
                ..Diagnostic::error(format!(
                    "the transformation {} runs in the container {name}, which is in no transformation catalog",
                    entry.name
                ))
            }
        })?;
        if container.has_file() {
            let file = workflow.files.intern(&container.lfn);
            let image = &mut exec.files.change(file).image;
            image.get_or_insert_with(|| Arc::clone(container));
            let job = &mut workflow.jobs[n];
            if let Some(own) = job.uses.iter().find(|u| u.file == file) {
                return Err(Diagnostic::error(format!(
                    "the job {} {} a file {}, which is also the name of the image of its container {name}: rename one of \
                     them",
                    job.id,
                    if own.link.writes() { "writes" } else { "reads" },
                    container.lfn
                )));
            }
            job.uses.push(staged_use(file, FileKind::Image, container.bypass));
        }
        Ok(Some(Arc::clone(container)))
    }

    /// Makes a program an input of a job.
    fn stage_program(
        &self,
        workflow: &mut Workflow,
        n: JobIndex,
        name: &TransformationName,
        entry: EntryId,
        staged: &mut StagedPrograms,
    ) -> Result<FileId, Diagnostic> {
        let lfn = staged_name(name, &self.settings.staging_delimiter);
        let file = workflow.files.intern(&lfn);
        staged.entries.insert(file, entry);
        let job = &mut workflow.jobs[n];
        let uses = &mut job.uses;
        let own = uses.iter().find(|u| u.file == file);
        if own.is_some_and(|u| u.link.writes()) {
            return Err(Diagnostic::error(format!(
                "the job {} has an output {lfn}, which is also the name of the program {name} that is staged for it, so \
                 the output would replace the program: rename one of them",
                job.id
            )));
        }
        if own.is_none() {
            let bypass = self.programs.entry(entry).bypass;
            uses.push(staged_use(file, FileKind::Executable, bypass));
        }
        Ok(file)
    }

    /// Returns the catalog entry for an auxiliary job on a site, if there is one.
    pub(crate) fn auxiliary_entry(&self, task: Task, site: SiteId) -> Option<&'a TransformationEntry> {
        let name = auxiliary_name(task.transformation());
        let entry = self.programs.auxiliary(&name, self.sites.get(site))?;
        Some(self.programs.entry(entry))
    }

    /// Returns the path of kickstart on each site.
    pub(crate) fn kickstarts(&self) -> Vec<String> {
        let name = "pegasus::kickstart";
        let path = |site: &WorkSite| {
            let entry = self.programs.auxiliary(&auxiliary_name(name), site);
            match entry.map(|number| self.programs.entry(number)) {
                Some(entry) if entry.kind == TransformationKind::Installed => entry.pfn.clone(),
                _ => default_program(name, &site.tools, &self.own_tools),
            }
        };
        self.sites.all().iter().map(path).collect()
    }

    /// Returns program and profiles of an auxiliary job on a site.
    pub(crate) fn auxiliary_setup(&mut self, task: Task, site: SiteId, exec: &mut Exec) -> SetupId {
        let transformation = task.transformation();
        let site_of_run = site;
        if let Some(&number) = self.auxiliary.get(&(transformation, site_of_run)) {
            return number;
        }
        let place = self.sites.get(site);
        let entry = self.programs.auxiliary(&auxiliary_name(transformation), place);
        let mut profiles = place.profiles.clone();
        let executable = match entry {
            Some(number) => {
                let entry = self.programs.entry(number);
                profiles.overlay(&entry.profiles);
                entry.pfn.clone()
            }
            None => default_program(transformation, &place.tools, &self.own_tools),
        };
        profiles.fill_from(&self.settings.profiles);
        exec.setups.push(Setup {
            executable: executable.into(),
            profiles,
            staged: false,
            mode: DataMode::Shared,
            kind: JobKind::Compute,
            container: None,
            in_cluster: false,
            fetches_for_planner: false,
            nodes: None,
            entry: None,
        });
        let number = SetupId::new(exec.setups.len() - 1);
        self.auxiliary.insert((transformation, site_of_run), number);
        number
    }
}

/// Returns the use of a file that the planner adds to the inputs of a job.
fn staged_use(file: FileId, kind: FileKind, bypass: bool) -> FileUse {
    FileUse {
        file,
        link: Link::Input,
        kind,
        transfer: TransferFlag::Mandatory,
        register: false,
        optional: false,
        bypass,
        for_planning: false,
        size: None,
        metadata: Default::default(),
    }
}
