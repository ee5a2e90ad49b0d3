//! Files that travel with a job.

use std::borrow::Cow;

use crate::exec::{JobId, Task};
use crate::model::{FileKind, FileUse, Link};
use crate::refine::settings::Integrity;
use crate::tasks::file_lists;
use crate::tasks::{Invocation, PlannedJob};

use super::ad::literal;
use super::context::{COMMON, Context};
use super::metadata;

/// The submit directory, as submit descriptions name it.
const SUBMIT: &str = "$(wf_submit_dir)/";

/// Files that travel with a job.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    /// What the job reads: values of `transfer_input_files`, in order.
    pub(super) inputs: Vec<String>,
    /// What it writes, if HTCondor brings that.
    pub(super) outputs: Vec<String>,
    /// New names of outputs: what the job calls them, and their paths.
    pub(super) remaps: Vec<(String, String)>,
    /// Its lists of files.
    pub(super) lists: Vec<String>,
    /// Inputs that must not be read on their way.
    pub(super) encrypted: Vec<String>,
}

impl Transfers {
    /// Finds the files of a job.
    pub(super) fn of(context: &Context<'_>, job: PlannedJob<'_>, invocation: &Invocation) -> Self {
        let mut this = Transfers::default();
        if context.is_moved(job) {
            this.add_data(context, job);
        }
        let is_script = context.is_script(job);
        if is_script && context.needs_worker_package(job) {
            let package = context.worker_package.as_ref().and_then(|path| path.file_name());
            let name = package.unwrap_or_default().to_string_lossy();
            this.inputs.push(format!("{SUBMIT}{name}"));
        }
        this.add_lists(context, job);
        if invocation.argument_file.is_some() {
            this.inputs.push(format!("{SUBMIT}{}.arg", job.name));
        }
        this.add_metadata(context, job);
        if is_script {
            this.inputs.push(format!("{SUBMIT}{COMMON}"));
        } else if job.has_description() {
            this.inputs
                .push(format!("{SUBMIT}{}", context.relative(job, ".json")));
        }
        if job.has_description() || is_script {
            this.inputs.extend(context.env_source(job).map(literal_owned));
        }
        if job.cluster().is_some() && !is_script {
            let list = format!("{}/{}", context.plan.submit, context.relative(job, ".in"));
            this.inputs.push(literal(&list));
        }
        this
    }

    /// Adds data that HTCondor moves.
    fn add_data(&mut self, context: &Context<'_>, job: PlannedJob<'_>) {
        let files = &context.plan.workflow.files;
        let is_data = |u: &&FileUse| u.link != Link::Checkpoint;
        for u in job.uses().iter().filter(is_data) {
            let name = files.name(u.file);
            let is_in_container = u.kind == FileKind::Image && context.has_container_universe(job);
            if u.link.reads() && !is_in_container && context.plan.exec.bypassed(&job, u).is_none() {
                self.inputs.push(list_entry(name));
            } else if u.link.reads()
                && !is_in_container
                && let Some(bypassed) = context.plan.exec.bypassed(&job, u)
                && let Some((url, _)) = bypassed.sources.first()
            {
                self.inputs
                    .push(list_entry(url.strip_prefix("file://").unwrap_or(url)));
            }
            if u.link.writes() {
                self.outputs.push(list_entry(name));
                if let Some((_, last)) = name.rsplit_once('/') {
                    self.remaps.push((last.to_owned(), name.to_owned()));
                }
            }
        }
    }

    /// Adds the lists of kickstart, also those of the jobs of a cluster.
    fn add_lists(&mut self, context: &Context<'_>, job: PlannedJob<'_>) {
        let plan = context.plan;
        let members = job.cluster().map(|cluster| cluster.members.clone());
        let members = members
            .into_iter()
            .flatten()
            .map(|position| plan.member(position));
        let jobs: Vec<JobId> = std::iter::once(job.id).chain(members).collect();
        for id in jobs {
            let of = plan.at(id);
            for suffix in file_lists::suffixes(of) {
                let name = format!("{}{suffix}", of.name);
                self.inputs
                    .push(format!("{SUBMIT}{}", context.relative(of, suffix)));
                if id == job.id {
                    self.lists.push(name);
                }
            }
        }
    }

    /// Adds the metadata files with the checksums of inputs: of catalogs, and of the parents that make or
    /// stage them.
    fn add_metadata(&mut self, context: &Context<'_>, job: PlannedJob<'_>) {
        let plan = context.plan;
        if plan.settings.integrity == Integrity::None {
            return;
        }
        match job.task {
            Task::Compute(_) | Task::Cluster(..) if job.is_lite() => {}
            Task::StageOut(_) => {}
            _ => return,
        }
        if metadata::of_inputs(context, job).is_some() {
            let known = context.relative(job, metadata::OF_INPUTS);
            self.inputs.push(format!("{SUBMIT}{known}"));
        }
        let mut parents: Vec<JobId> = context.graph.parents(job.id).to_vec();
        parents.retain(|&parent| {
            let parent = plan.at(parent);
            match parent.task {
                Task::Compute(_) | Task::Cluster(..) => makes_checksums(parent),
                Task::StageIn(n) => {
                    !matches!(job.task, Task::StageOut(_))
                        && plan.exec.transfers[n].files.iter().any(|file| {
                            file.generate_checksum && job.uses().iter().any(|u| u.file == file.file)
                        })
                }
                _ => false,
            }
        });
        let names = parents.iter().map(|&parent| plan.at(parent));
        self.inputs
            .extend(names.map(|parent| format!("{SUBMIT}{}", context.relative(parent, ".meta"))));
    }

    /// Returns the value of `transfer_input_files`.
    pub(super) fn input_files(&self) -> Cow<'static, str> {
        Cow::Owned(self.inputs.join(","))
    }

    /// Returns the value of `transfer_output_remaps`, `None` without any.
    pub(super) fn output_remaps(&self) -> Option<String> {
        if self.remaps.is_empty() {
            return None;
        }
        let pairs = self.remaps.iter().map(|(from, to)| format!("{from}={to}"));
        Some(literal(&format!("\"{}\"", pairs.collect::<Vec<_>>().join(";"))))
    }
}

/// Returns whether kickstart records the checksums of a job's outputs.
fn makes_checksums(job: PlannedJob<'_>) -> bool {
    match job.cluster() {
        Some(cluster) => {
            let mut members = cluster.members.clone();
            members.any(|position| job.plan.at(job.plan.member(position)).is_wrapped())
        }
        // DAGMan leaves no record of a sub-workflow.
        None if job.is_nested() => false,
        None => job.is_wrapped() && job.uses().iter().any(|u| u.link.writes()),
    }
}

fn literal_owned(text: String) -> String {
    literal(&text)
}

/// Returns the name of a file in a list.
fn list_entry(name: &str) -> String {
    literal(name)
}
