//! Nested sub-workflows in a plan: the command that plans them, and where their plans go.
//!
//! The plan of a sub-workflow goes into a directory below that of the job's files. Its name is a link to the
//! directory with the plan.

use std::path::{Path, PathBuf};

use crate::exec::Task;
use crate::model::{FileUse, Job, JobKind, Nested};
use crate::properties::{SECRET, SECRETS_FILE};
use crate::refine::staging_sites::directory_of;
use crate::saved_request::PROPERTIES;

use super::plan::PlannedJob;
use super::words::Words;

/// Suffix of the file with the locations of inputs.
pub(crate) const INPUT_CACHE: &str = ".input.cache";
/// Suffix of the file that says where outputs go.
pub(crate) const OUTPUT_MAP: &str = ".output.map";

/// A nested sub-workflow of a plan.
#[derive(Clone, Copy)]
pub(crate) struct NestedJob<'p> {
    pub(crate) planned: PlannedJob<'p>,
    /// The job of the workflow.
    pub(crate) job: &'p Job,
    pub(crate) nested: &'p Nested,
}

/// A `-D` option of a sub-workflow whose value is a secret.
pub(crate) struct SecretDefine<'p> {
    key: &'p str,
    /// The property of this plan that has the value.
    pub(crate) property: String,
    pub(crate) value: &'p str,
}

impl<'p> NestedJob<'p> {
    /// Returns a job that is a nested sub-workflow.
    pub(crate) fn new(planned: PlannedJob<'p>) -> Option<Self> {
        let Task::Compute(n) = planned.task else {
            return None;
        };
        let job = &planned.plan.workflow.jobs[n];
        let nested = job.nested.as_deref()?;
        Some(NestedJob { planned, job, nested })
    }

    /// Returns its directory, relative to the base of submit directories.
    fn relative(&self) -> String {
        let nesting = &self.planned.plan.nesting;
        let before = match &self.nested.options.relative_submit_dir {
            Some(directory) => format!("{directory}/"),
            None => String::new(),
        };
        let own = self.planned.plan.layout.of(self.planned.id);
        format!("{}/{own}/./{before}{}", nesting.relative, self.nested.name)
    }

    /// Returns the path of one of its files.
    fn file(&self, suffix: &str) -> String {
        let directory = self.directory();
        format!("{}/{}{suffix}", directory.display(), self.nested.base)
    }

    /// Returns whether files pass to and from it. Nodes of DAGs use no logical files.
    pub(crate) fn has_files(&self) -> bool {
        self.job.kind == JobKind::SubWorkflow
    }

    /// Returns the directory of its plan.
    pub(crate) fn directory(&self) -> PathBuf {
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
            _ => self
                .planned
                .plan
                .nesting
                .dir
                .join(self.relative())
                .components()
                .collect(),
        }
    }

    /// Returns the path of its DAG file.
    pub(crate) fn dag(&self) -> String {
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
                let plan = self.planned.plan;
                let name = plan.workflow.files.name(file);
                if plan.exec.fetches_for_planner(&self.planned) {
                    return name.to_owned();
                }
                // Relative to the work directory.
                match directory_of(plan.exec, plan.sites, self.planned.staging, file) {
                    "." => name.to_owned(),
                    directory => format!("{directory}/{name}"),
                }
            }
            (None, None) => String::new(),
        }
    }

    /// Values of its options that are secrets. They are properties of this plan, so that no command line has
    /// them.
    pub(crate) fn secret_defines(&self) -> Vec<SecretDefine<'p>> {
        let (plan, own) = (self.planned.plan, &self.nested.options);
        let settings = own.defines.iter().filter_map(|define| define.split_once('='));
        let secrets = settings.filter(|(key, value)| plan.secrets.has(key) && !value.is_empty());
        let job = &self.planned.name;
        let secret = |(key, value): (&'p str, &'p str)| SecretDefine {
            key,
            property: format!("{SECRET}{job}.{key}"),
            value,
        };
        secrets.map(secret).collect()
    }

    /// Returns the arguments of the planner, in the order in which Pegasus writes them.
    fn arguments(&self) -> Vec<String> {
        let (plan, own) = (self.planned.plan, &self.nested.options);
        let nesting = &plan.nesting;
        let mut words = Line(Vec::new());
        let log = format!("{}/{}.pre.log", plan.submit, self.planned.name);
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
        let secrets = self.secret_defines();
        let properties = format!("{}/{}", plan.submit, PROPERTIES);
        if own.conf.is_some() && !secrets.is_empty() {
            words.add(format!("-D{SECRETS_FILE}={properties}"));
        }
        words.0.extend(own.defines.iter().map(|define| {
            let key = define.split('=').next().unwrap_or_default();
            match secrets.iter().find(|secret| secret.key == key) {
                // The planner replaces it by the property.
                Some(secret) => format!("-D{key}=${{{}}}", secret.property),
                None => format!("-D{define}"),
            }
        }));
        let conf = match &own.conf {
            Some(conf) => conf.display().to_string(),
            None => properties,
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
            words.value("--output-map", plan.job_file(self.planned.id, OUTPUT_MAP));
        }
        words.list("--output-sites", &own.output_sites);
        words.flag("--force", own.force);
        words.flag("--force-replan", own.force_replan);
        let cleanup = if nesting.cleans_up { "" } else { "none" };
        let cleanup = own.cleanup.as_deref().unwrap_or(cleanup);
        words.option("--cleanup", Some(cleanup).filter(|cleanup| !cleanup.is_empty()));
        (0..own.verbose).for_each(|_| words.flag("--verbose", true));
        (0..own.quiet).for_each(|_| words.flag("--quiet", true));
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
        let plan = self.planned.plan;
        let parents = plan.nesting.parents.get(&self.planned.id).into_iter().flatten();
        let parents = parents.filter_map(|&parent| {
            Some(match plan.nesting.cleans_up {
                true => plan.job_file(parent, OUTPUT_MAP),
                false => NestedJob::new(plan.at(parent))?.file(".cache"),
            })
        });
        let mut all: Vec<String> = parents.collect();
        all.extend(
            self.has_files()
                .then(|| plan.job_file(self.planned.id, INPUT_CACHE)),
        );
        all.extend(texts(&self.nested.options.cache));
        all
    }

    fn inherited(&self) -> Vec<String> {
        let plan = self.planned.plan;
        let own = || format!("{}/{}.replica.store", plan.submit, plan.base);
        let store = plan.nesting.has_replicas.then(own);
        store
            .into_iter()
            .chain(texts(&self.nested.options.inherited))
            .collect()
    }
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// The words of a command line.
struct Line(Vec<String>);

impl Line {
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
pub(crate) fn is_ready(job: PlannedJob<'_>) -> bool {
    job.is_nested() && NestedJob::new(job).is_some_and(|view| view.nested.is_ready)
}

/// Returns the files that the planner of a nested sub-workflow fetches: the workflow, what is marked, and
/// every input of a workflow from before such marks (version 5.0.4 of the format), as in Pegasus.
pub(super) fn read_by_planner(job: PlannedJob<'_>) -> Vec<FileUse> {
    let Some(view) = NestedJob::new(job) else {
        return Vec::new();
    };
    let has_marks = has_marks(&job.plan.workflow.version);
    let is_workflow = |u: &FileUse| view.job.file == Some(u.file);
    let is_here = |u: &FileUse| view.nested.path.is_some() && is_workflow(u);
    let uses = job.uses().iter();
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

/// Adds the arguments of the planner.
pub(super) fn push_arguments(job: PlannedJob<'_>, words: &mut Words) {
    let arguments = NestedJob::new(job).map(|nested| nested.arguments());
    for (n, word) in arguments.unwrap_or_default().iter().enumerate() {
        words.blanks(if n > 0 { " " } else { "" }).word(word);
    }
}
