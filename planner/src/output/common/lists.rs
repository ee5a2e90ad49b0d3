//! Work lists of auxiliary jobs (`.in`), and further files of single jobs.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use pmc_job_files::{Entry, Flag, Number, Place as At, write_list};

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::{FileTransfer, JobId, Place, Task};
use crate::model::FileId;
use crate::refine::sites::Access;
use crate::tasks::lite::{self, image_type};
use crate::tasks::{Invocations, Plan, PlannedJob, WorkLists, file_lists};

use super::clusters;
use super::in_order::in_order;
use super::job_problems::{JobProblems, MAX_SHOWN};

/// Buffers of one thread.
#[derive(Default)]
struct Rendered {
    /// Lists for the shared file, and their jobs: number and bytes.
    shared: String,
    parts: Vec<(JobId, usize)>,
    /// Jobs whose list is beside the DAG.
    beside: Vec<JobId>,
    /// Problems of each job.
    problems: Vec<Vec<Diagnostic>>,
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
    let (mut places, no_places) = (WorkLists::default(), WorkLists::default());
    let path = dir.join(WorkLists::file_name(&plan.base));
    let failed = |e| PlanError::io("write", &path, e);
    let mut shared: Option<File> = None;
    let mut at = 0;
    let mut problems = JobProblems::default();
    in_order::<_, PlanError>(
        plan.exec.jobs.len() + plan.exec.members.len(),
        JOB_CHUNK,
        || (Invocations::new(plan, &no_places), Rendered::default()),
        |(invocations, rendered), range| {
            for id in range {
                if let Err(error) = files_of((invocations, JobId::new(id)), dir, rendered) {
                    rendered.failed = Some(error);
                }
                if rendered.failed.is_some() || rendered.problems.len() > MAX_SHOWN {
                    break;
                }
            }
        },
        |(_, rendered)| {
            problems.take(&mut rendered.problems, &mut rendered.failed)?;
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
    problems.finish()?;
    Ok(places)
}

/// Writes the files of one job, or renders its part of the shared file.
fn files_of(
    (invocations, id): (&mut Invocations<'_>, JobId),
    dir: &Path,
    rendered: &mut Rendered,
) -> Result<(), PlanError> {
    let job = invocations.plan().at(id);
    let Rendered {
        shared, parts, text, ..
    } = rendered;
    let is_shared = job.reads_parts();
    let out = if is_shared {
        &mut *shared
    } else {
        text.clear();
        &mut *text
    };
    let start = out.len();
    append_list(invocations, id, out);
    if job.cluster().is_some() {
        let list = &mut rendered.commands;
        list.clear();
        if let Err(more) = clusters::list(invocations, id, list) {
            out.truncate(start);
            rendered.problems.push(more);
            return Ok(());
        }
        put(job, dir, ".in", list)?;
        // Without records of kickstart, monitoring finds the tasks in the list.
        if job.has_bare_member() {
            link_for_monitoring(job, dir)?;
        }
    }
    let length = out.len() - start;
    if length == 0 {
    } else if is_shared {
        parts.push((id, length));
    } else if matches!(job.task, Task::Register(_)) && job.is_wrapped() && monitoring_can_read(text) {
        if append_registrations(job, dir, text)? {
            rendered.beside.push(id);
        }
    } else {
        put(job, dir, job.list_suffix(), text)?;
    }
    if job.plan.settings.lof && job.is_wrapped() {
        file_lists::lists(job, &mut rendered.text, |suffix, text| {
            put(job, dir, suffix, text)
        })?;
    }
    Ok(())
}

/// Puts a registration list beside the DAG, where the monitoring daemon expects it. Small plans have the list
/// in the job's directory as in Pegasus, and a link. Returns whether the list itself is beside the DAG.
fn append_registrations(job: PlannedJob<'_>, dir: &Path, text: &str) -> Result<bool, PlanError> {
    if job.plan.files_apart {
        put(job, dir, ".in", text)?;
        return link_for_monitoring(job, dir).map(|()| false);
    }
    let path = dir.join(format!("{}.in", job.name));
    put_list(job.plan, &path, text).map(|()| true)
}

/// Writes a job's file.
///
/// # Errors
/// A failed write.
pub(super) fn put(job: PlannedJob<'_>, dir: &Path, suffix: &str, text: &str) -> Result<(), PlanError> {
    let directory = dir.join(job.plan.layout.of(job.id));
    put_list(job.plan, &directory.join(format!("{}{suffix}", job.name)), text)
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
fn link_for_monitoring(job: PlannedJob<'_>, dir: &Path) -> Result<(), PlanError> {
    let directory = job.plan.layout.of(job.id);
    if directory == "." {
        return Ok(());
    }
    let name = format!("{}.in", job.name);
    let link = dir.join(&name);
    std::os::unix::fs::symlink(Path::new(directory).join(&name), &link)
        .map_err(|e| PlanError::io("make the link", &link, e))
}

/// Appends the work list of an auxiliary job; nothing for other jobs.
pub(super) fn append_list(invocations: &mut Invocations<'_>, id: JobId, text: &mut String) {
    let plan = invocations.plan();
    let job = plan.at(id);
    match job.task {
        Task::StageIn(n) | Task::StageOut(n) | Task::InterSite(n) => {
            let linkage = if matches!(job.task, Task::StageIn(_)) {
                "input"
            } else {
                "output"
            };
            let files = plan.exec.transfers[n].files.iter();
            write_list(files.map(|file| transfer(job, file, linkage)), text);
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
                let place = if plan.exec.files.at(file, job.staging).is_link {
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
        Task::Compute(_) | Task::Cluster(..) if job.has_description() && !plan.has_job_scripts => {
            if let Some(description) = lite::describe(invocations, id) {
                text.push_str(&description.to_json().expect("texts of a plan are UTF-8"));
            }
        }
        Task::Compute(_) | Task::Cluster(..) | Task::Chmod(_) | Task::NoOp => {}
    }
}

/// Returns the place of a file in a list.
fn at(plan: &Plan<'_>, place: &Place, file: FileId, access: Access) -> At {
    let (site, url) = plan.url_parts(place, file, access);
    At::new(site, url.concat())
}

fn transfer(job: PlannedJob<'_>, file: &FileTransfer, linkage: &str) -> Entry {
    let plan = job.plan;
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
        verify_checksum_remote: is_so(plan.checksums.verifies(job.task, file)),
        optional: is_so(file.optional),
        attributes: file.metadata.as_deref().map(<[_]>::to_vec),
        ..Entry::transfer(lfn, linkage, sources.collect(), destination)
    }
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
