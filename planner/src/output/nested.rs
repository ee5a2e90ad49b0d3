//! Nested sub-workflows in a plan: their lines in the DAG, the command that plans them, and the files that
//! pass data and settings to them.
//!
//! The plan of a sub-workflow goes into a directory below that of the job's files. Its name is a link to the
//! directory with the plan, see [`SubmitDir::numbered`](super::submit_dir::SubmitDir::numbered).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use pmc_dag::write::{self, SubdagLine, TaskLine, WriteError};
use rustc_hash::FxHashMap;

use crate::error::PlanError;
use crate::exec::{Exec, JobId, Place, Task};
use crate::ids::Id as _;
use crate::model::{FileUse, Job, JobKind, Nested};
use crate::refine::data::directory_of;
use crate::refine::sites::Access;
use crate::request::Request;

use super::Plan;
use super::command::quote;
use super::lists::{catalog_value, catalog_word, put};

/// Suffix of the file with the locations of inputs.
const INPUT_CACHE: &str = ".input.cache";
/// Suffix of the file that says where outputs go.
const OUTPUT_MAP: &str = ".output.map";

/// What nested sub-workflows take over from the plan around them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nesting {
    /// Base of submit directories.
    dir: PathBuf,
    /// The submit directory, relative to it.
    relative: String,
    /// Execution sites.
    sites: Vec<String>,
    /// Identifier of the outermost workflow.
    pub(crate) root: String,
    /// The workflow has a replica catalog of its own.
    has_replicas: bool,
    /// Sub-workflows clean up after themselves.
    cleans_up: bool,
    /// Properties of sub-workflows that have the properties of this plan.
    defines: Vec<String>,
    /// Nested workflows on which each one depends.
    parents: FxHashMap<JobId, Vec<JobId>>,
}

impl Nesting {
    /// Collects what nested sub-workflows take over. `defines` are properties that only they need.
    pub(crate) fn new(
        request: &Request,
        exec: &Exec,
        submit: &str,
        root: String,
        (has_replicas, cleans_up, defines): (bool, bool, Vec<String>),
    ) -> Self {
        let relative = Path::new(submit).strip_prefix(&request.dir);
        let mut parents: FxHashMap<JobId, Vec<JobId>> = FxHashMap::default();
        let is_workflow = |job: JobId| exec.setups[exec.jobs[job].setup].kind == JobKind::SubWorkflow;
        if exec.setups.iter().any(|setup| setup.kind == JobKind::SubWorkflow) {
            for &(parent, child) in exec
                .edges
                .iter()
                .filter(|(p, c)| is_workflow(*p) && is_workflow(*c))
            {
                parents.entry(child).or_default().push(parent);
            }
        }
        Nesting {
            dir: request.dir.clone(),
            relative: relative.map_or_else(|_| submit.to_owned(), |path| path.display().to_string()),
            sites: request.sites.clone(),
            root,
            has_replicas,
            cleans_up,
            defines,
            parents,
        }
    }
}

/// A nested sub-workflow of a plan.
struct View<'p> {
    plan: &'p Plan<'p>,
    id: JobId,
    job: &'p Job,
    nested: &'p Nested,
}

impl<'p> View<'p> {
    fn new(plan: &'p Plan<'_>, id: JobId) -> Option<Self> {
        let Task::Compute(n) = plan.job(id).task else {
            return None;
        };
        let job = &plan.workflow.jobs[n];
        let nested = job.nested.as_deref()?;
        Some(View {
            plan,
            id,
            job,
            nested,
        })
    }

    /// Returns its directory, relative to the base of submit directories.
    fn relative(&self) -> String {
        let nesting = &self.plan.nesting;
        let before = match &self.nested.options.relative_submit_dir {
            Some(directory) => format!("{directory}/"),
            None => String::new(),
        };
        let own = self.plan.layout.of(self.id);
        format!("{}/{own}/./{before}{}", nesting.relative, self.nested.name)
    }

    /// Returns the path of one of its files.
    fn file(&self, suffix: &str) -> String {
        let directory = self.directory();
        format!("{}/{}{suffix}", directory.display(), self.nested.base)
    }

    /// Returns whether files pass to and from it. Nodes of DAGs use no logical files.
    fn has_files(&self) -> bool {
        self.job.kind == JobKind::SubWorkflow
    }

    fn directory(&self) -> PathBuf {
        match (self.nested.is_ready, &self.nested.path) {
            (true, Some(path)) => {
                let beside = path.parent().unwrap_or(Path::new("/"));
                self.nested
                    .directory
                    .as_deref()
                    .unwrap_or(beside)
                    .components()
                    .collect()
            }
            // Without `.` parts.
            _ => self.plan.nesting.dir.join(self.relative()).components().collect(),
        }
    }

    fn dag(&self) -> String {
        match (self.nested.is_ready, &self.nested.path) {
            (true, Some(path)) => path.display().to_string(),
            _ => self.file(".dag"),
        }
    }

    /// Returns the file that the planner reads.
    fn workflow(&self) -> String {
        match (&self.nested.path, self.job.file) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(file)) => {
                let name = self.plan.workflow.files.name(file);
                if self.plan.exec.fetches_for_planner(self.plan.job(self.id)) {
                    return name.to_owned();
                }
                let staging = self.plan.job(self.id).staging;
                // Relative to the work directory.
                match directory_of(self.plan.exec, self.plan.sites, staging, file) {
                    "." => name.to_owned(),
                    directory => format!("{directory}/{name}"),
                }
            }
            (None, None) => String::new(),
        }
    }

    /// Returns the arguments of the planner, in the order in which Pegasus writes them.
    fn arguments(&self) -> Vec<String> {
        let (plan, nesting, own) = (self.plan, &self.plan.nesting, &self.nested.options);
        let mut words = Words(Vec::new());
        let log = format!("{}/{}.pre.log", plan.submit, plan.job(self.id).name);
        words.add(format!("-Dpegasus.log.*={log}"));
        words.add(format!("-Dpegasus.workflow.root.uuid={}", nesting.root));
        if own.conf.is_none() {
            words
                .0
                .extend(nesting.defines.iter().map(|define| format!("-D{define}")));
        }
        if let Some(directory) = &self.nested.directory {
            words.add(format!("-Dpmc.dag.directory={}", directory.display()));
        }
        words
            .0
            .extend(own.defines.iter().map(|define| format!("-D{define}")));
        let conf = match &own.conf {
            Some(conf) => conf.display().to_string(),
            None => format!("{}/{}", plan.submit, super::PROPERTIES),
        };
        words.value("--conf", conf);
        words.value("--dir", nesting.dir.display().to_string());
        words.value("--relative-dir", self.relative());
        words.value("--relative-submit-dir", self.relative());
        words.option("--basename", own.basename.as_deref());
        words.option("--job-prefix", own.job_prefix.as_deref());
        words.list(
            "--sites",
            if own.sites.is_empty() {
                &nesting.sites
            } else {
                &own.sites
            },
        );
        if !own.staging_sites.is_empty() {
            // As Pegasus, with a comma after the last one.
            words.value("--staging-site", format!("{},", own.staging_sites.join(",")));
        }
        words.list("--cache", &self.caches());
        words.list("--inherited-rc-files", &self.inherited());
        words.list("--cluster", &own.cluster);
        words.list("--input-dir", &texts(&own.input_dirs));
        words.list("--reuse", &texts(&own.reuse));
        let directory = own
            .transformations_dir
            .as_deref()
            .map(|path| path.display().to_string());
        words.option("--transformations-dir", directory.as_deref());
        words.option("--output-dir", own.output_dir.as_deref());
        if self.has_files() {
            words.value("--output-map", plan.job_file(self.id, OUTPUT_MAP));
        }
        words.list("--output-sites", &own.output_sites);
        words.flag("--force", own.force);
        words.flag("--force-replan", own.force_replan);
        let cleanup = if nesting.cleans_up { "" } else { "none" };
        let cleanup = own.cleanup.as_deref().unwrap_or(cleanup);
        words.option("--cleanup", Some(cleanup).filter(|cleanup| !cleanup.is_empty()));
        for _ in 0..own.verbose {
            words.flag("--verbose", true);
        }
        for _ in 0..own.quiet {
            words.flag("--quiet", true);
        }
        words.flag("--deferred", true);
        match &own.random_dir {
            Some(Some(name)) => words.add(format!("--randomdir={name}")),
            Some(None) => words.flag("--randomdir", true),
            None => {}
        }
        words.option("--rescue", own.rescue.map(|n| n.to_string()).as_deref());
        words.option("--seed", own.seed.as_deref());
        words.add(self.workflow());
        words.0
    }

    /// Cache files: those of the sub-workflows before it, that of its inputs, and its own.
    fn caches(&self) -> Vec<String> {
        let plan = self.plan;
        let parents = plan.nesting.parents.get(&self.id).into_iter().flatten();
        let parents = parents.filter_map(|&parent| {
            Some(match plan.nesting.cleans_up {
                true => plan.job_file(parent, OUTPUT_MAP),
                false => View::new(plan, parent)?.file(".cache"),
            })
        });
        let mut all: Vec<String> = parents.collect();
        all.extend(self.has_files().then(|| plan.job_file(self.id, INPUT_CACHE)));
        all.extend(texts(&self.nested.options.cache));
        all
    }

    fn inherited(&self) -> Vec<String> {
        let plan = self.plan;
        let own = || format!("{}/{}.replica.store", plan.submit, plan.base);
        let store = plan.nesting.has_replicas.then(own);
        store
            .into_iter()
            .chain(texts(&self.nested.options.inherited))
            .collect()
    }

    /// Returns a submit description: by it, Pegasus' monitoring finds the logs of the sub-workflow.
    fn description(&self) -> String {
        let plan = self.plan;
        let job_file = |suffix: &str| plan.job_file(self.id, suffix);
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
            self.dag(),
            plan.own_tools,
            self.dag(),
            self.directory().display(),
            job_file(".out"),
            job_file(".err"),
            plan.nesting.root,
            plan.uuid,
            self.job.id,
            plan.job(self.id).name,
        )
    }

    fn output_map(&self) -> String {
        let outputs = self.job.uses.iter().filter(|u| u.link.writes());
        self.locations(outputs.map(|u| u.file), Access::Put)
    }

    fn input_cache(&self) -> String {
        let inputs = self.plan.exec.nested_inputs.get(&self.id);
        self.locations(inputs.into_iter().flatten().copied(), Access::Get)
    }

    /// Returns the locations of files in the work directory, as a replica catalog.
    fn locations(&self, files: impl Iterator<Item = crate::model::FileId>, access: Access) -> String {
        let mut text = String::new();
        let place = Place::Scratch(self.plan.job(self.id).staging);
        for file in files {
            let (site, url) = self.plan.url(&place, file, access);
            let lfn = self.plan.workflow.files.name(file);
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
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// The words of a command line.
struct Words(Vec<String>);

impl Words {
    fn add(&mut self, word: String) {
        self.0.push(word);
    }
    fn flag(&mut self, name: &str, is_set: bool) {
        if is_set {
            self.0.push(name.to_owned());
        }
    }
    fn value(&mut self, name: &str, value: String) {
        self.0.extend([name.to_owned(), value]);
    }
    fn option(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.value(name, value.to_owned());
        }
    }
    fn list(&mut self, name: &str, values: &[String]) {
        if !values.is_empty() {
            self.value(name, values.join(","));
        }
    }
}

/// Returns whether a job is a DAG that needs no planning.
pub(crate) fn is_ready(plan: &Plan<'_>, id: JobId) -> bool {
    plan.exec.is_nested(plan.job(id)) && View::new(plan, id).is_some_and(|view| view.nested.is_ready)
}

/// Returns the files that the planner of a nested sub-workflow fetches: the workflow, what is marked, and
/// every input of a workflow from before such marks (version 5.0.4 of the format), as in Pegasus.
pub(super) fn read_by_planner(plan: &Plan<'_>, id: JobId) -> Vec<FileUse> {
    let Some(view) = View::new(plan, id) else {
        return Vec::new();
    };
    let has_marks = has_marks(&plan.workflow.version);
    let is_workflow = |u: &FileUse| view.job.file == Some(u.file);
    let is_here = |u: &FileUse| view.nested.path.is_some() && is_workflow(u);
    let uses = plan.exec.uses(plan.workflow, plan.job(id).task).iter();
    uses.filter(|u| u.link.reads() && !is_here(u))
        .filter(|u| !has_marks || u.for_planning || is_workflow(u))
        .cloned()
        .collect()
}

/// Returns whether workflows of a version mark what is read for planning.
fn has_marks(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next()) >= (5, 0, 4)
}

/// Appends the arguments of the planner, quoted for the DAG.
pub(super) fn push_arguments(plan: &Plan<'_>, id: JobId, text: &mut String) {
    let words = View::new(plan, id)
        .map(|view| view.arguments())
        .unwrap_or_default();
    for (n, word) in words.iter().enumerate() {
        text.push_str(if n > 0 { " " } else { "" });
        text.push_str(&quote(word));
    }
}

/// Appends the lines of a nested sub-workflow to the DAG. The command is that of `line`, then `more`.
pub(super) fn push_lines(
    plan: &Plan<'_>,
    id: JobId,
    line: &TaskLine<'_>,
    more: &str,
    text: &mut String,
) -> Result<(), WriteError> {
    let Some(view) = View::new(plan, id) else {
        return Ok(());
    };
    let description = format!("{}/{}.sub", plan.layout.of(id), line.name);
    let (dag, directory) = (view.dag(), view.directory().display().to_string());
    let subdag = SubdagLine {
        name: line.name,
        dag: &dag,
        directory: &directory,
        // Pegasus' monitoring follows no other jobs.
        description: (view.job.kind == JobKind::SubWorkflow).then_some(&description),
    };
    write::subdag(text, &subdag)?;
    if view.nested.is_ready {
        return Ok(());
    }
    let command = format!("{}{more}", line.command);
    write::pre_script(
        text,
        &TaskLine {
            command: &command,
            ..*line
        },
    )
}

/// Writes the files of nested sub-workflows.
///
/// # Errors
/// A failed write.
pub(crate) fn write_files(plan: &Plan<'_>, dir: &Path) -> Result<(), PlanError> {
    for id in JobId::first(plan.exec.jobs.len()) {
        if !plan.exec.is_nested(plan.job(id)) {
            continue;
        }
        let Some(view) = View::new(plan, id).filter(View::has_files) else {
            continue;
        };
        put(plan, dir, id, ".sub", &view.description())?;
        put(plan, dir, id, INPUT_CACHE, &view.input_cache())?;
        put(plan, dir, id, OUTPUT_MAP, &view.output_map())?;
    }
    Ok(())
}
