//! What the submit descriptions of all jobs have in common.

use std::fs;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::catalog::site::Grid;
use crate::data_mode::DataMode;
use crate::error::PlanError;
use crate::exec::{JobId, Task};
use crate::graph::Graph;
use crate::model::FileId;
use crate::profiles::Namespace;
use crate::request::Request;
use crate::tasks::{Plan, PlannedJob, lite};

use super::{programs, stage_in};

/// Version that submit descriptions name, for programs that look for one of Pegasus.
pub(super) use crate::model::COMPATIBLE_VERSION as VERSION;

/// The plan, and what is found out once for all jobs.
pub(super) struct Context<'a> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) request: &'a Request,
    /// Directory of the tools of the submit host.
    pub(super) tools: String,
    /// `PEGASUS_HOME` of the submit host.
    pub(super) home: String,
    /// The worker package of the tools of Pegasus.
    pub(super) worker_package: Option<PathBuf>,
    /// Depth of each job: the first ones have 1. Those that make directories do not count.
    pub(super) depths: Vec<u32>,
    /// Parents of each job.
    pub(super) graph: Graph<JobId>,
    /// Ranks of stage-in jobs among those of their level.
    pub(super) stage_in_ranks: FxHashMap<JobId, i64>,
    /// Metadata of inputs from the replica catalog, for jobs that are scripts.
    pub(super) metadata: FxHashMap<FileId, &'a [(String, String)]>,
    /// The program of DAGMan, if the planner finds one.
    pub(super) dagman: Option<String>,
    /// Time of planning, in seconds of the epoch, as in the braindump.
    pub(super) time: String,
}

/// Name of the log that HTCondor writes for all jobs.
pub(super) fn log_name(plan: &Plan<'_>) -> String {
    format!("{}.log", plan.base)
}

impl<'a> Context<'a> {
    pub(super) fn new(plan: &'a Plan<'a>, request: &'a Request) -> Result<Self, PlanError> {
        let local = plan.sites.get(plan.sites.local());
        let home = home(&local.tools, local.home.as_deref());
        let is_lite = plan.exec.jobs.iter().any(|job| plan.exec.is_lite(job));
        let worker_package = match plan.has_job_scripts && is_lite {
            true => Some(worker_package(&home)?),
            false => None,
        };
        Ok(Context {
            plan,
            request,
            tools: local.tools.clone(),
            home,
            worker_package,
            depths: depths(plan),
            graph: Graph::new(plan.exec.jobs.len(), &plan.exec.edges),
            stage_in_ranks: stage_in::ranks(plan),
            metadata: match plan.has_job_scripts && is_lite {
                true => metadata(plan),
                false => FxHashMap::default(),
            },
            dagman: programs::dagman(plan, &request.environment.variables),
            time: request.environment.now.format("%Y%m%dT%H%M%S%z").to_string(),
        })
    }

    /// Returns whether the job runs as a script of the tools of Pegasus.
    pub(super) fn is_script(&self, job: PlannedJob<'_>) -> bool {
        self.plan.has_job_scripts && (job.has_description() || job.is_away())
    }

    /// Returns the path of a file of the job in a directory that will be the submit directory.
    pub(super) fn path_in(&self, dir: &Path, job: PlannedJob<'_>, suffix: &str) -> PathBuf {
        let layout = self.plan.layout.of(job.id);
        dir.join(layout).join(format!("{}{suffix}", job.name))
    }

    /// Returns the path of a file of the job relative to the submit directory.
    pub(super) fn relative(&self, job: PlannedJob<'_>, suffix: &str) -> String {
        format!("{}/{}{suffix}", self.plan.layout.of(job.id), job.name)
    }

    /// Writes the files of the tools of Pegasus that travel with jobs.
    ///
    /// # Errors
    /// A failed write.
    pub(super) fn write_files(&self, dir: &Path) -> Result<(), PlanError> {
        let Some(package) = &self.worker_package else {
            return Ok(());
        };
        let common = Path::new(&self.home).join("share/pegasus/sh").join(COMMON);
        for (file, is_needed) in [(package.as_path(), true), (common.as_path(), false)] {
            let target = dir.join(file.file_name().unwrap_or_default());
            match fs::copy(file, &target) {
                Err(error) if is_needed || error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(PlanError::io("copy", file, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the `PEGASUS_HOME` of the submit host: that of its site, else that of this installation, whose
/// programs are elsewhere.
fn home(tools: &str, named: Option<&str>) -> String {
    if let Some(home) = named {
        return home.to_owned();
    }
    let base = Path::new(tools).parent().unwrap_or(Path::new("/"));
    let own = base.join(OWN_HOME);
    match own.is_dir() || tools.strip_suffix("/bin").is_none() {
        true => own.display().to_string(),
        // `PEGASUS_HOME` of the planner.
        false => base.display().to_string(),
    }
}

/// What takes the place of Pegasus' installation, beside the directory with the programs.
const OWN_HOME: &str = "share/pegasus-home";

/// Functions of the job scripts of Pegasus.
pub(super) const COMMON: &str = "pegasus-lite-common.sh";

/// Finds the worker package of Pegasus' tools.
fn worker_package(home: &str) -> Result<PathBuf, PlanError> {
    let directory = Path::new(home).join("share/pegasus/worker-packages");
    let entries = fs::read_dir(&directory).map_err(|_| {
        PlanError::Unsupported(format!(
            "Source directory for worker package does not exist: {}: jobs with directories of their own need it as long as \
             PEGASUS_HOME of the site local is that of Pegasus; set pegasus.lite.form to native to use the tools of this \
             installation",
            directory.display()
        ))
    })?;
    let mut packages: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("pegasus-worker-") && name.ends_with(".tar.gz")
        })
        .collect();
    packages.sort();
    packages.into_iter().next().ok_or_else(|| {
        PlanError::Unsupported(format!("there is no worker package in {}", directory.display()))
    })
}

/// Returns the depths of all jobs. Those that make directories have 0, and those that wait for none.
fn depths(plan: &Plan<'_>) -> Vec<u32> {
    let exec = plan.exec;
    let edges: Vec<(JobId, JobId)> = exec
        .edges
        .iter()
        .filter(|(_, child)| !matches!(exec.jobs[*child].task, Task::NoOp))
        .copied()
        .collect();
    Graph::new(exec.jobs.len(), &edges).depths(&plan.order)
}

/// Returns the metadata of all files that are staged in.
fn metadata<'a>(plan: &Plan<'a>) -> FxHashMap<FileId, &'a [(String, String)]> {
    let exec = plan.exec;
    let staged = exec.jobs.iter().filter_map(|job| match job.task {
        Task::StageIn(n) => Some(&exec.transfers[n].files),
        _ => None,
    });
    let known = staged
        .flatten()
        .filter_map(|file| Some((file.file, file.metadata.as_deref()?)));
    known.collect()
}

/// Questions about single jobs.
impl<'a> Context<'a> {
    /// Returns label and index of the workflow.
    pub(super) fn workflow_name(&self) -> String {
        let workflow = self.plan.workflow;
        format!("{}-{}", workflow.label, workflow.index)
    }

    /// Returns the id of a job in the workflow, `null` for other jobs.
    pub(super) fn logical_id(&self, job: PlannedJob<'a>) -> &'a str {
        match job.task {
            Task::Compute(n) => &self.plan.workflow.jobs[n].id,
            _ => "null",
        }
    }

    /// Returns whether HTCondor moves the data of a job.
    pub(super) fn is_moved(&self, job: PlannedJob<'_>) -> bool {
        job.is_lite() && job.setup.mode == DataMode::CondorIo
    }

    /// Returns the directory in which the data of jobs lie that HTCondor moves.
    pub(super) fn staging_directory(&self, job: PlannedJob<'_>) -> Option<String> {
        let scratch = self.plan.sites.get(job.staging).scratch.as_ref()?;
        Some(scratch.path.clone())
    }

    /// Returns whether HTCondor runs the container of a job.
    pub(super) fn has_container_universe(&self, job: PlannedJob<'_>) -> bool {
        let universe = job.setup.profiles.get(Namespace::Condor, "universe");
        job.setup.container.is_some()
            && universe.is_some_and(|name| name.trim().eq_ignore_ascii_case("container"))
    }

    /// Returns whether the worker package travels with a job: its site has no tools.
    pub(super) fn needs_worker_package(&self, job: PlannedJob<'_>) -> bool {
        job.site != self.plan.sites.local() && self.plan.sites.get(job.site).home.is_none()
    }

    /// Returns the way to the batch system or the pool of a job's site, of a type.
    pub(super) fn grid(&self, job: PlannedJob<'_>, kind: &str) -> Option<&'a Grid> {
        let is_compute = matches!(job.task, Task::Compute(_) | Task::Cluster(..));
        let grids = &self.plan.sites.get(job.site).grids;
        let of_kind = || grids.iter().filter(|grid| grid.kind == kind);
        of_kind()
            .find(|grid| grid.is_auxiliary != is_compute)
            .or_else(|| of_kind().next())
    }
}

/// Further questions about single jobs.
impl Context<'_> {
    /// Returns the script that sets the environment of a job and travels with it.
    pub(super) fn env_source(&self, job: PlannedJob<'_>) -> Option<String> {
        lite::env_source(job).map(str::to_owned)
    }

    /// Returns whether the requests of the next attempt of a job depend on expressions.
    pub(super) fn has_expressions(&self, job: PlannedJob<'_>) -> bool {
        let mut keys = job.setup.profiles.of(Namespace::Pegasus);
        keys.any(|(key, _)| key.ends_with(".expr"))
    }
}
