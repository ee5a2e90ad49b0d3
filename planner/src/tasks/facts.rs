//! Facts about a job that decide how it is called: what wraps its program, who calls it, where it works.

use crate::exec::{Aggregator, Cluster, JobId, Place, Task};
use crate::model::{FileUse, Origin};
use crate::profiles::{Namespace, Profiles, parse_bool};
use crate::refine::programs::default_program;
use crate::refine::sites::{Access, Scratch};
use crate::task_request::is_no_wrapper;

use super::plan::{Plan, PlannedJob};
use super::style::Style;

/// Work directory of jobs that do not need that of the run.
const FALLBACK_DIR: &str = "/tmp";

/// Known wrappers. PegasusLite is ignored: the data configuration decides about it.
const WRAPPERS: &[&str] = &[
    "",
    "Kickstart",
    "None",
    "NoGridStart",
    "PegasusLite",
    "PegasusLite.None",
];

impl<'a> Plan<'a> {
    /// Returns the cluster of a job that runs in one.
    fn cluster_around(&self, id: JobId) -> Option<&'a Cluster> {
        let position = id.index().checked_sub(self.exec.jobs.len())?;
        let clusters = &self.exec.clusters;
        let after = clusters.partition_point(|cluster| cluster.members.start <= position);
        clusters.get(after.checked_sub(1)?)
    }

    /// Returns the job of the plan that runs a clustered job.
    pub(crate) fn cluster_job(&self, id: JobId) -> Option<JobId> {
        self.cluster_around(id).map(|cluster| cluster.job)
    }
}

/// What wraps the program.
impl<'p> PlannedJob<'p> {
    pub(super) fn profiles(self) -> &'p Profiles {
        &self.setup.profiles
    }

    /// Returns a value of the namespace `pegasus` without blanks around it, `None` if nothing is left.
    pub(crate) fn pegasus(self, key: &str) -> Option<&'p str> {
        let value = self.profiles().pegasus(key).map(str::trim);
        value.filter(|text| !text.is_empty())
    }

    /// Returns whether kickstart wraps the program.
    pub(crate) fn is_wrapped(self) -> bool {
        let gridstart = self.profiles().pegasus("gridstart");
        !matches!(self.task, Task::NoOp | Task::Cluster(..)) && !gridstart.is_some_and(is_no_wrapper)
    }

    /// Returns the wrapper that a profile names and nobody knows.
    pub(super) fn unknown_wrapper(self) -> Option<&'p str> {
        let name = self.profiles().pegasus("gridstart").map(str::trim)?;
        let is_known = WRAPPERS.iter().any(|known| known.eq_ignore_ascii_case(name));
        (!is_known).then_some(name)
    }

    /// Returns the path of kickstart.
    pub(super) fn kickstart(self) -> &'p str {
        self.pegasus("gridstart.path")
            .unwrap_or(&self.plan.kickstarts[self.site])
    }

    /// Returns whether a profile or a catalog names the kickstart.
    pub(super) fn names_kickstart(self) -> bool {
        let tools = &self.plan.sites.get(self.site).tools;
        let default = default_program("pegasus::kickstart", tools, &self.plan.own_tools);
        self.pegasus("gridstart.path").is_some() || self.plan.kickstarts[self.site] != default
    }

    /// Returns whether a catalog names the program that runs the jobs of a cluster.
    pub(super) fn names_executor(self) -> bool {
        let tools = &self.plan.sites.get(self.site).tools;
        *self.setup.executable != *default_program("pegasus::mpiexec", tools, &self.plan.own_tools)
    }

    /// Returns whether the kickstart is this project's.
    pub(super) fn has_own_kickstart(self) -> bool {
        let path = &self.plan.kickstarts[self.site];
        self.pegasus("gridstart.path").is_none()
            && path.strip_prefix(self.plan.own_tools.as_str()) == Some("/pegasus-kickstart")
    }

    /// Returns the launcher from the profiles and its options.
    pub(super) fn launcher(self) -> Option<(&'p str, Option<&'p str>)> {
        let options = self.profiles().pegasus("gridstart.launcher.arguments");
        Some((self.pegasus("gridstart.launcher")?, options.map(str::trim)))
    }
}

/// What it is, and who calls it.
impl<'p> PlannedJob<'p> {
    /// Returns whether the job runs in a cluster.
    pub(crate) fn is_member(self) -> bool {
        self.plan.is_member(self.id)
    }

    /// Returns whether the job works in a directory on its node.
    pub(crate) fn is_lite(self) -> bool {
        self.plan.exec.is_lite(&self)
    }

    /// Returns whether the job starts in a directory on its node.
    pub(super) fn starts_on_node(self) -> bool {
        self.is_lite() || self.plan.exec.fetches_for_planner(&self)
    }

    /// Returns the files that a compute job or cluster uses.
    pub(crate) fn uses(self) -> &'p [FileUse] {
        self.plan.exec.uses(self.plan.workflow, self.task)
    }

    /// Returns whether the job is a nested sub-workflow.
    pub(crate) fn is_nested(self) -> bool {
        self.plan.exec.is_nested(&self)
    }

    /// Returns whether `pegasus-lite` runs the job.
    pub(crate) fn has_description(self) -> bool {
        self.plan.exec.has_description(&self)
    }

    /// Returns whether the code generator starts the job in its directory and redirects its input, so that
    /// the command need not do it. The jobs of a cluster are called by the cluster.
    pub(super) fn is_prepared(self) -> bool {
        self.plan.abilities().prepares_jobs && !self.is_member()
    }

    /// Returns whether files of the submit directory come to the job, and it does not see them there.
    pub(crate) fn ships_files(self) -> bool {
        self.plan.abilities().ships_files
    }

    /// Returns whether the job is an auxiliary one of jobs with directories of their own, and runs on another
    /// site than the submit host. Its tools come with it.
    pub(crate) fn is_away(self) -> bool {
        let sites = self.plan.sites;
        let is_transfer = self.reads_list() || matches!(self.task, Task::Chmod(_));
        self.ships_files() && is_transfer && self.site != sites.local() && sites.is_lite(self.staging)
    }

    /// Returns whether the job starts in its work directory. A batch system starts it elsewhere.
    pub(super) fn starts_in_work_dir(self) -> bool {
        match self.ships_files() {
            true => self.is_away() || !self.outermost().style().is_some_and(Style::is_batch),
            false => self.is_prepared(),
        }
    }

    /// Returns the job of the plan that the job belongs to.
    pub(crate) fn outermost(self) -> Self {
        self.plan.cluster_job(self.id).map_or(self, |id| self.plan.at(id))
    }

    /// Returns the directory of lists of files, as the job names it.
    pub(super) fn list_directory(self) -> &'static str {
        let is_batch = self.style().is_some_and(Style::is_batch);
        match is_batch && !self.is_lite() && !self.is_away() && !self.is_member() {
            // Batch systems do not set the variable for kickstart itself.
            true => "@./",
            false => "@$_CONDOR_SCRATCH_DIR/",
        }
    }

    /// Returns whether the job goes to its directory by itself: the plan has no work directory, and no
    /// profile names another one.
    pub(super) fn finds_directory(self) -> bool {
        let of_commands = self.plan.workflow.origin == Origin::Commands;
        of_commands && self.profiles().get(Namespace::Globus, "directory").is_none()
    }

    /// Returns the cluster that the job is.
    pub(crate) fn cluster(self) -> Option<&'p Cluster> {
        match self.task {
            Task::Cluster(n, _) => Some(&self.plan.exec.clusters[n]),
            _ => None,
        }
    }

    /// Returns whether the job is not the first in a list for pegasus-cluster. Its record need not describe
    /// the machine again.
    pub(super) fn is_later_member(self) -> bool {
        self.plan.cluster_around(self.id).is_some_and(|cluster| {
            cluster.aggregator == Aggregator::SeqExec && self.plan.member(cluster.members.start) != self.id
        })
    }

    /// Returns whether a clustered job inherits its whole environment from the cluster.
    pub(super) fn inherits_environment(self) -> bool {
        self.plan.cluster_job(self.id).is_some_and(|cluster| {
            let outer = self.plan.at(cluster).profiles();
            self.profiles()
                .of(Namespace::Env)
                .all(|(key, value)| outer.get(Namespace::Env, key) == Some(value))
        })
    }

    /// Returns whether the job is a list with a job without kickstart.
    pub(crate) fn has_bare_member(self) -> bool {
        self.cluster().is_some_and(|cluster| {
            let mut members = cluster.members.clone();
            let is_bare = |position| !self.plan.at(self.plan.member(position)).is_wrapped();
            cluster.aggregator == Aggregator::SeqExec && members.any(is_bare)
        })
    }
}

/// Where it works, and what it reads.
impl<'p> PlannedJob<'p> {
    /// Returns the work directory.
    pub(crate) fn work_dir(self) -> &'p str {
        if self.needs_no_work_dir() || self.is_out_of_sight() {
            return FALLBACK_DIR;
        }
        // Registration needs no file of the work directory, which may be removed before or meanwhile. A run
        // without resumption has one job after the other.
        if matches!(self.task, Task::Register(_)) && self.plan.abilities().resumes {
            return FALLBACK_DIR;
        }
        match self.profiles().get(Namespace::Globus, "directory") {
            Some(directory) if !directory.trim().is_empty() => directory.trim(),
            _ => self
                .plan
                .sites
                .get(self.staging)
                .scratch
                .as_ref()
                .map_or(FALLBACK_DIR, |scratch| scratch.path.as_str()),
        }
    }

    /// Returns whether the job need not see the work directory of its staging site: it has a directory of its
    /// own, or the site is reached through a server.
    fn is_out_of_sight(self) -> bool {
        let sites = self.plan.sites;
        let is_seen = |scratch: &Scratch| sites.work_url(self.staging, Access::Put) == scratch.url;
        sites.is_lite(self.staging)
            && (self.is_lite()
                || self.site != self.staging
                || !sites.get(self.staging).scratch.as_ref().is_some_and(is_seen))
    }

    /// Returns whether the job does not need the work directory of the run.
    pub(super) fn needs_no_work_dir(self) -> bool {
        match self.task {
            Task::CreateDir | Task::NoOp => true,
            // It removes the work directory. If it is killed after that, it must be able to start again.
            Task::RemoveDir => self.plan.abilities().resumes,
            // Outputs of removed jobs do not pass through the work directory, which may not exist: these jobs
            // have no other parents.
            _ => self.is_delivery(),
        }
    }

    /// Returns whether the job stages out outputs of removed jobs.
    fn is_delivery(self) -> bool {
        let exec = self.plan.exec;
        match self.task {
            Task::StageOut(n) => exec.transfers[n].files.iter().all(|file| {
                let mut sources = file.sources.iter();
                sources.all(|(place, _)| matches!(place, Place::Url(..)))
            }),
            Task::Register(n) => exec.registrations[n].producers.is_empty(),
            _ => false,
        }
    }

    /// Returns whether kickstart creates the work directory of the job.
    pub(crate) fn creates_work_dir(self) -> bool {
        let makes = self.profiles().pegasus("create.dir").and_then(parse_bool) == Some(true);
        makes && matches!(self.task, Task::Compute(_)) && self.is_wrapped()
    }

    /// Returns the file of the workflow for the standard input of a compute job.
    pub(super) fn stdin_file(self) -> Option<String> {
        let Task::Compute(n) = self.task else { return None };
        let name = self.plan.workflow.files.name(self.plan.workflow.jobs[n].stdin?);
        // Jobs of DAGMan files read files of any directory.
        if name.starts_with('/') || self.is_lite() || (self.ships_files() && self.starts_in_work_dir()) {
            return Some(name.to_owned());
        }
        Some(self.plan.sites.scratch_path(self.staging, name))
    }

    /// Returns the files of the workflow for standard input, output and error of a compute job.
    pub(super) fn streams(self) -> [Option<&'p str>; 3] {
        let Task::Compute(n) = self.task else {
            return [None; 3];
        };
        let workflow = self.plan.workflow;
        let job = &workflow.jobs[n];
        [job.stdin, job.stdout, job.stderr].map(|file| file.map(|file| workflow.files.name(file)))
    }

    /// Returns whether the workflow names a file for standard input.
    pub(super) fn has_stdin(self) -> bool {
        matches!(self.task, Task::Compute(n) if self.plan.workflow.jobs[n].stdin.is_some())
    }

    /// Returns whether the job reads its work list from standard input, if that has a file of its own.
    pub(super) fn reads_list(self) -> bool {
        matches!(
            self.task,
            Task::StageIn(_)
                | Task::StageOut(_)
                | Task::InterSite(_)
                | Task::CreateDir
                | Task::CleanUp(_)
                | Task::RemoveDir
        )
    }
}
