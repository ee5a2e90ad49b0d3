//! Work lists of auxiliary jobs (`.in`), section 7.4 of the planner's specification.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use pmc_calls::Part;
use pmc_job_files::{Entry, Flag, Number, Place as At, Text, write_list};
use rustc_hash::FxHashSet;

use crate::error::PlanError;
use crate::exec::{FileTransfer, JobId, Place, Task};
use crate::model::FileId;

use crate::refine::sites::Access;

use super::Plan;
use super::in_order::in_order;

/// Maximum jobs whose problems are shown.
const MAX_SHOWN: usize = 20;

/// Locations of work lists that are not in a file in the job's directory.
#[derive(Debug, Default)]
pub(crate) struct WorkLists {
    /// Offset and length in the shared file; length 0 for other jobs.
    parts: Vec<(u64, u32)>,
    /// Jobs whose list is beside the DAG.
    beside: FxHashSet<JobId>,
}

impl WorkLists {
    /// Returns offset and length of a job's list in the shared file of a large plan.
    pub(crate) fn part(&self, id: JobId) -> Option<Part> {
        let &(start, length) = self.parts.get(id.index())?;
        let length = u64::from(length);
        (length > 0).then_some(Part { start, length })
    }
    /// Returns the name of the shared file.
    pub(crate) fn file_name(base: &str) -> String {
        format!("{base}.orders")
    }
    /// Returns the absolute path of a job's list.
    pub(crate) fn file(&self, plan: &Plan<'_>, id: JobId) -> String {
        if self.beside.contains(&id) {
            format!("{}/{}.in", plan.submit, plan.job(id).name)
        } else {
            plan.job_file(id, suffix(plan, id))
        }
    }
}

/// Suffix of a list that the monitoring daemon must not find.
const UNSEEN: &str = ".entries";

/// Returns the suffix of a job's list. Without a record of kickstart, the monitoring daemon takes a file
/// `JOB.in` beside the DAG for a list of commands, and fails on the second line in it.
pub(crate) fn suffix(plan: &Plan<'_>, id: JobId) -> &'static str {
    if plan.exec.has_description(plan.job(id)) {
        return super::lite::SUFFIX;
    }
    let is_found = plan.layout.of(id) == ".";
    if is_found && !super::command::is_wrapped(plan, id) {
        UNSEEN
    } else {
        ".in"
    }
}

/// Returns whether a job can read its list from a part of a file. Only this project's transfer tool can.
fn reads_parts(plan: &Plan<'_>, id: JobId) -> bool {
    let job = plan.job(id);
    if plan.exec.has_description(job) {
        return !plan.files_apart;
    }
    let name = plan.exec.setups[job.setup]
        .executable
        .strip_prefix(plan.own_tools.as_str());
    !plan.files_apart && !matches!(job.task, Task::Register(_)) && name == Some("/pegasus-transfer")
}

/// Buffers of one thread.
#[derive(Default)]
struct Rendered {
    /// Lists for the shared file, and their jobs: number and bytes.
    shared: String,
    parts: Vec<(JobId, usize)>,
    /// Jobs whose list is beside the DAG.
    beside: Vec<JobId>,
    /// Problems of each job.
    problems: Vec<Vec<String>>,
    failed: Option<PlanError>,
    text: String,
    /// The list of a cluster.
    commands: String,
}

/// Jobs whose files are written in one chunk.
const JOB_CHUNK: usize = 512;
/// Directories that are created in one chunk.
const DIRECTORY_CHUNK: usize = 64;

/// Writes the files of all jobs below `dir` and returns the locations of the work lists.
///
/// # Errors
/// A failed write.
pub(crate) fn write(plan: &Plan<'_>, dir: &Path) -> Result<WorkLists, PlanError> {
    let directories: Vec<&str> = plan.layout.directories().collect();
    in_order(
        directories.len(),
        DIRECTORY_CHUNK,
        || Ok(()),
        |made, range| {
            *made = directories[range].iter().try_for_each(|directory| {
                let path = dir.join(directory);
                std::fs::create_dir_all(&path).map_err(|e| PlanError::io("make the directory", &path, e))
            });
        },
        |made| std::mem::replace(made, Ok(())),
    )?;
    let mut places = WorkLists::default();
    let path = dir.join(WorkLists::file_name(&plan.base));
    let failed = |e| PlanError::io("write", &path, e);
    let mut shared: Option<File> = None;
    let mut at = 0;
    let mut problems: Vec<Vec<String>> = Vec::new();
    in_order(
        plan.exec.jobs.len() + plan.exec.members.len(),
        JOB_CHUNK,
        Rendered::default,
        |rendered, range| {
            for id in range {
                if let Err(error) = files_of(plan, dir, JobId::new(id), rendered) {
                    rendered.failed = Some(error);
                }
                if rendered.failed.is_some() || rendered.problems.len() > MAX_SHOWN {
                    break;
                }
            }
        },
        |rendered| {
            problems.append(&mut rendered.problems);
            if problems.iter().map(Vec::len).sum::<usize>() > MAX_SHOWN {
                return Err(PlanError::Code(super::dag::shown(&mut problems)));
            }
            if let Some(error) = rendered.failed.take() {
                return Err(error);
            }
            places.beside.extend(rendered.beside.drain(..));
            if rendered.parts.is_empty() {
                return Ok(());
            }
            let out = match &mut shared {
                Some(out) => out,
                none => none.insert(plan.secrets.create_list(&path).map_err(failed)?),
            };
            out.write_all(rendered.shared.as_bytes()).map_err(failed)?;
            rendered.shared.clear();
            for (id, length) in rendered.parts.drain(..) {
                places.parts.resize(id.index(), (0, 0));
                places.parts.push((at, u32::try_from(length).unwrap_or(u32::MAX)));
                at += length as u64;
            }
            Ok(())
        },
    )?;
    if !problems.is_empty() {
        return Err(PlanError::Code(super::dag::shown(&mut problems)));
    }
    Ok(places)
}

/// Writes the files of one job, or renders its part of the shared file.
fn files_of(plan: &Plan<'_>, dir: &Path, id: JobId, rendered: &mut Rendered) -> Result<(), PlanError> {
    let task = plan.job(id).task;
    let Rendered {
        shared, parts, text, ..
    } = rendered;
    let is_shared = reads_parts(plan, id);
    let out = if is_shared {
        &mut *shared
    } else {
        text.clear();
        &mut *text
    };
    let start = out.len();
    append_list(plan, id, out);
    if matches!(task, Task::Cluster(..)) {
        let list = &mut rendered.commands;
        list.clear();
        if let Err(more) = super::cluster::list(plan, id, list) {
            out.truncate(start);
            rendered.problems.push(more);
            return Ok(());
        }
        put(plan, dir, id, ".in", list)?;
        // Without records of kickstart, monitoring finds the tasks in the list.
        if super::cluster::has_bare_member(plan, id) {
            link_for_monitoring(plan, dir, id)?;
        }
    }
    let length = out.len() - start;
    if length == 0 {
    } else if is_shared {
        parts.push((id, length));
    } else if matches!(task, Task::Register(_))
        && super::command::is_wrapped(plan, id)
        && monitoring_can_read(text)
    {
        if append_registrations(plan, dir, id, text)? {
            rendered.beside.push(id);
        }
    } else {
        put(plan, dir, id, suffix(plan, id), text)?;
    }
    if plan.settings.lof && super::command::is_wrapped(plan, id) {
        super::stat::write(plan, dir, id, &mut rendered.text)?;
    }
    Ok(())
}

/// Puts a registration list beside the DAG, where the monitoring daemon expects it. Small plans have the list
/// in the job's directory as in Pegasus, and a link. Returns whether the list itself is beside the DAG.
fn append_registrations(plan: &Plan<'_>, dir: &Path, id: JobId, text: &str) -> Result<bool, PlanError> {
    if plan.files_apart {
        put(plan, dir, id, ".in", text)?;
        return link_for_monitoring(plan, dir, id).map(|()| false);
    }
    let path = dir.join(format!("{}.in", plan.job(id).name));
    put_list(plan, &path, text).map(|()| true)
}

/// Writes a job's file.
///
/// # Errors
/// A failed write.
pub(super) fn put(plan: &Plan<'_>, dir: &Path, id: JobId, suffix: &str, text: &str) -> Result<(), PlanError> {
    let path = dir
        .join(plan.layout.of(id))
        .join(format!("{}{suffix}", plan.job(id).name));
    put_list(plan, &path, text)
}

fn put_list(plan: &Plan<'_>, path: &Path, text: &str) -> Result<(), PlanError> {
    let file = plan.secrets.create_list(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|e| PlanError::io("write", path, e))
}

/// Returns whether the monitoring daemon can read a list. It splits lines at spaces, ignores quotes, and
/// fails unless the third word is the site.
fn monitoring_can_read(text: &str) -> bool {
    let is_site = |word: &str| word.starts_with("site=\"") && word.matches('=').count() == 1;
    text.lines()
        .all(|line| line.split_whitespace().nth(2).is_some_and(is_site))
}

/// Returns the path beside the DAG where the monitoring daemon expects a registration list.
fn link_for_monitoring(plan: &Plan<'_>, dir: &Path, id: JobId) -> Result<(), PlanError> {
    let directory = plan.layout.of(id);
    if directory == "." {
        return Ok(());
    }
    let name = format!("{}.in", plan.job(id).name);
    let link = dir.join(&name);
    std::os::unix::fs::symlink(Path::new(directory).join(&name), &link)
        .map_err(|e| PlanError::io("make the link", &link, e))
}

/// Appends the work list of an auxiliary job; nothing for other jobs.
pub(super) fn append_list(plan: &Plan<'_>, id: JobId, text: &mut String) {
    let job = plan.job(id);
    match job.task {
        Task::StageIn(n) | Task::StageOut(n) | Task::InterSite(n) => {
            let linkage = if matches!(job.task, Task::StageIn(_)) {
                "input"
            } else {
                "output"
            };
            let files = plan.exec.transfers[n].files.iter();
            write_list(files.map(|file| transfer(plan, id, file, linkage)), text);
        }
        Task::Register(n) => {
            for (file, place, metadata) in &plan.exec.registrations[n].entries {
                registration(plan, *file, place, metadata.as_deref().unwrap_or_default(), text);
            }
        }
        Task::CreateDir | Task::RemoveDir => {
            let site = &plan.sites.get(job.staging).name;
            let mut target = At::new(site, plan.sites.work_url(job.staging, Access::Put));
            let kind = if let Task::RemoveDir = job.task {
                target.recursive = Some(Flag(true));
                "remove"
            } else {
                "mkdir"
            };
            write_list([Entry::target(kind, target)], text);
        }
        Task::CleanUp(n) => {
            let removals = plan.exec.removals[n].iter().map(|&file| {
                let place = if plan.exec.linked.contains(&(file, job.staging)) {
                    Place::ScratchLink(job.staging)
                } else {
                    Place::Scratch(job.staging)
                };
                let mut target = at(plan, &place, file, Access::Put);
                target.recursive = Some(Flag(false));
                Entry::target("remove", target)
            });
            write_list(removals, text);
        }
        Task::Compute(_) | Task::Cluster(..) if plan.exec.has_description(job) => {
            super::lite::append(plan, id, text);
        }
        Task::Compute(_) | Task::Cluster(..) | Task::Chmod(_) | Task::NoOp => {}
    }
}

/// Returns the place of a file in a list.
pub(super) fn at(plan: &Plan<'_>, place: &Place, file: FileId, access: Access) -> At {
    let (site, url) = plan.url_parts(place, file, access);
    At::new(site, url.concat())
}

fn transfer(plan: &Plan<'_>, id: JobId, file: &FileTransfer, linkage: &str) -> Entry {
    let sources = file.sources.iter().map(|(place, priority)| At {
        priority: priority.map(|priority| Number(priority.into())),
        ..at(plan, place, file.file, Access::Get)
    });
    let destination = At {
        image: image_type(plan, file.file),
        ..at(plan, &file.destination, file.file, Access::Put)
    };
    let is_so = |flag: bool| flag.then_some(Flag(true));
    let lfn = plan.workflow.files.name(file.file);
    Entry {
        generate_checksum: is_so(file.generate_checksum),
        verify_checksum_remote: is_so(super::lite::is_verified(plan, id, file)),
        optional: is_so(file.optional),
        attributes: file.metadata.as_deref().map(<[_]>::to_vec),
        ..Entry::transfer(lfn, linkage, sources.collect(), destination)
    }
}

/// Returns the type of a file that is an image.
pub(super) fn image_type(plan: &Plan<'_>, file: FileId) -> Option<Text> {
    let container = plan.exec.images.get(&file)?;
    Some(container.kind.image_type().into())
}

fn registration(
    plan: &Plan<'_>,
    file: FileId,
    place: &Place,
    metadata: &[(String, String)],
    text: &mut String,
) {
    let lfn = plan.workflow.files.name(file);
    let (site, url) = plan.url(place, file, Access::Get);
    let name = if plan.settings.register_deep {
        lfn
    } else {
        lfn.rsplit('/').next().unwrap_or(lfn)
    };
    let _ = write!(
        text,
        "{} {} site={}",
        catalog_word(name),
        catalog_word(&url),
        catalog_value(&site)
    );
    for (key, value) in metadata {
        let _ = write!(text, " {key}={}", catalog_value(value));
    }
    text.push('\n');
}

/// Appends a word of a text replica catalog, quoted if necessary.
pub(crate) fn catalog_word(word: &str) -> std::borrow::Cow<'_, str> {
    if word.is_empty() || word.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '\\' | '#')) {
        std::borrow::Cow::Owned(catalog_value(word))
    } else {
        std::borrow::Cow::Borrowed(word)
    }
}

/// Appends a value of a text replica catalog.
pub(crate) fn catalog_value(value: &str) -> String {
    format!(
        "\"{}\"",
        value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_unreadable_for_monitoring_are_detected() {
        assert!(monitoring_can_read("a file:///a site=\"local\" k=\"v\"\n"));
        assert!(monitoring_can_read("a file:///a site=\"local\" k=\"v w\"\n"));
        for bad in [
            "\"a b\" file:///a site=\"l\"",
            "a \"file:///a b\" site=\"l\"",
            "a b",
        ] {
            assert!(!monitoring_can_read(bad), "{bad}");
        }
    }
}
