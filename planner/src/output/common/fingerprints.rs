//! Writes the fingerprints of a plan ([`crate::fingerprint`]).

use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::error::PlanError;
use crate::exec::{JobId, Place, Task};
use crate::fingerprint::{self, Facts, Stamp, hash, push_file, push_head, push_task};
use crate::model::FileId;

use crate::tasks::{Invocation, Invocations, Plan};

use super::super::Writing;
use super::in_order::in_order;
use super::private_files::{put, put_private};
use super::task_line::Line;
use super::{clusters, lists};

/// Files whose stamps one chunk takes.
const FILE_CHUNK: usize = 1024;
/// No file.
const NONE: u32 = u32::MAX;

/// What the fingerprints of tasks refer to.
pub(crate) struct FingerprintWriter {
    /// Programs and input files, in the order of their lines.
    paths: Vec<PathBuf>,
    /// Number of the source of each input file.
    sources: FxHashMap<FileId, u32>,
    /// Number of the program of each setup.
    programs: Vec<u32>,
    /// The option with the time of the workflow file, which changes without changing the task.
    time_option: String,
}

/// Buffers of one thread.
#[derive(Default)]
pub(crate) struct Scratch {
    text: String,
    files: Vec<u32>,
}

impl FingerprintWriter {
    /// Numbers the programs and input files of a plan.
    pub(crate) fn new(plan: &Plan<'_>) -> Self {
        let mut this = FingerprintWriter {
            paths: Vec::new(),
            sources: FxHashMap::default(),
            programs: vec![NONE; plan.exec.setups.len()],
            time_option: format!(" -T {} ", plan.stamp),
        };
        let mut numbers: FxHashMap<PathBuf, u32> = FxHashMap::default();
        let mut number = |path: &str, paths: &mut Vec<PathBuf>| {
            *numbers.entry(path.into()).or_insert_with(|| {
                paths.push(path.into());
                paths.len() as u32 - 1
            })
        };
        for (job, _) in plan.exec.computing() {
            let setup = &plan.exec.setups[job.setup];
            let program = &mut this.programs[job.setup];
            if *program == NONE
                && !setup.staged
                && setup.container.is_none()
                && setup.executable.starts_with('/')
            {
                *program = number(&setup.executable, &mut this.paths);
            }
        }
        for job in &plan.exec.jobs {
            let Task::StageIn(n) = job.task else { continue };
            for moved in &plan.exec.transfers[n].files {
                let mut local = moved.sources.iter().filter_map(|(place, _)| match place {
                    Place::Url(url, _) => local_path(url),
                    _ => None,
                });
                if let Some(path) = local.next() {
                    this.sources.insert(moved.file, number(path, &mut this.paths));
                }
            }
        }
        this
    }

    /// Returns the beginning of the file: facts, inputs of the plan, programs and input files.
    ///
    /// # Errors
    /// None; the type is that of the parallel loop.
    pub(crate) fn head(&self, facts: &Facts, inputs: &[PathBuf]) -> Result<String, PlanError> {
        let mut text = String::new();
        push_head(facts, &mut text);
        for path in inputs {
            push_file('I', path, Stamp::of(path), &mut text);
        }
        in_order(
            self.paths.len(),
            FILE_CHUNK,
            String::new,
            |part, range| {
                for path in &self.paths[range] {
                    push_file('F', path, Stamp::of(path), part);
                }
            },
            |part| {
                text.push_str(part);
                part.clear();
                Ok::<(), PlanError>(())
            },
        )?;
        Ok(text)
    }

    /// Appends the line of a task.
    pub(crate) fn task(
        &self,
        (invocations, id): (&mut Invocations<'_>, JobId),
        (invocation, line): (&Invocation, &Line),
        scratch: &mut Scratch,
        out: &mut String,
    ) {
        let plan = invocations.plan();
        let job = plan.at(id);
        scratch.files.clear();
        scratch.text.clear();
        let is_compute = matches!(job.task, Task::Compute(_) | Task::Cluster(..));
        for u in job.uses() {
            scratch.text.push(if u.link.writes() { 'w' } else { 'r' });
            scratch.text.push_str(plan.workflow.files.name(u.file));
            scratch.text.push('\n');
            if u.link.reads() {
                scratch.files.extend(self.sources.get(&u.file));
            }
        }
        match job.task {
            Task::Cluster(n, _) => {
                for position in plan.exec.clusters[n].members.clone() {
                    let setup = plan.exec.members[position].setup;
                    scratch.files.push(self.programs[setup.index()]);
                    scratch
                        .text
                        .push_str(plan.secrets.script(setup).unwrap_or_default());
                }
                // Problems of the list have ended the planning before.
                let _ = clusters::list(invocations, id, &mut scratch.text);
            }
            Task::Compute(_) => scratch.files.push(self.programs[job.setup_id()]),
            Task::StageIn(n) => {
                let files = &plan.exec.transfers[n].files;
                scratch
                    .files
                    .extend(files.iter().filter_map(|moved| self.sources.get(&moved.file)));
            }
            _ => {}
        }
        lists::append_list(invocations, id, &mut scratch.text);
        scratch.files.retain(|file| *file != NONE);
        scratch.files.sort_unstable();
        scratch.files.dedup();
        // The arguments of other jobs name the place of their list, which moves when other jobs change.
        let arguments = if is_compute || matches!(job.task, Task::Chmod(_)) {
            line.arguments()
        } else {
            ""
        };
        // Another installation of kickstart does not change a task.
        let program = match job.is_wrapped() {
            true => "",
            false => line.program(),
        };
        let parts = [
            line.environment(),
            program,
            invocation.argument_file.as_deref().unwrap_or_default(),
            plan.secrets.script(job.setup_id()).unwrap_or_default(),
        ];
        // The planner of a nested sub-workflow gets the identifier of this plan, which is always another one.
        let without_root;
        let arguments = match job.is_nested() {
            true => {
                without_root = arguments.replace(&plan.nesting.root, "");
                without_root.as_str()
            }
            false => arguments,
        };
        let arguments = arguments.split(self.time_option.as_str());
        let lists = scratch.text.split(self.time_option.as_str());
        let definition = hash(parts.into_iter().chain(arguments).chain(lists).map(str::as_bytes));
        push_task(&job.name, definition, &scratch.files, out);
    }
}

/// Returns the path of a `file` URL or of a plain path.
pub(crate) fn local_path(url: &str) -> Option<&str> {
    let path = match url.split_once("://") {
        None => url,
        Some(("file", rest)) => rest.strip_prefix("localhost").unwrap_or(rest),
        Some(_) => return None,
    };
    path.starts_with('/').then_some(path)
}

/// Writes the beginning of the fingerprints. Returns their path.
///
/// # Errors
/// A failed write.
pub(crate) fn write_head(
    prints: &FingerprintWriter,
    plan: &Plan<'_>,
    to: &Writing<'_>,
) -> Result<PathBuf, PlanError> {
    let head = prints.head(to.facts, to.read)?;
    let path = file(plan, to.dir);
    match plan.secrets.are_in_environments() {
        // A hash of a short secret is not far from the secret.
        true => put_private(&path, &head)?,
        false => put(&path, &head)?,
    }
    Ok(path)
}

/// Returns the path of the fingerprints of a plan below a directory.
fn file(plan: &Plan<'_>, dir: &Path) -> PathBuf {
    fingerprint::path(&dir.join(format!("{}.dag", plan.base)))
}
