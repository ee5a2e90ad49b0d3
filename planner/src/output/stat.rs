//! Files that kickstart records before (`-S`) and after a job (`-s`).
//!
//! Small plans have a list (`.in.lof`, `.out.lof`) for each job, as in Pegasus. In a large plan, a million
//! small files would cost more than the rest of the plan and burden shared file systems. So its jobs name
//! files in the command line, unless the names are too many or unsuitable.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

use crate::error::PlanError;
use crate::exec::{FileTransfer, JobId, Task};
use crate::model::{FileId, FileUse, Link};

use super::Plan;
use super::command::quote;

/// Maximum bytes of file names in a command line, per list.
const MAX_INLINE: usize = 1000;

/// Kickstart fails if a file after this line is missing. It is a comment for the original's kickstart.
const REQUIRED: &str = "# required\n";

/// Files of a job in one direction.
#[derive(Clone, Copy, Debug)]
enum Files<'p> {
    None,
    Used(&'p [FileUse], fn(Link) -> bool),
    Moved(&'p [FileTransfer]),
    Removed(&'p [FileId]),
}

impl Files<'_> {
    /// Returns whether `each` is true for all files. Stops at the first file where it is false.
    fn all(self, mut each: impl FnMut(FileId) -> bool) -> bool {
        match self {
            Files::None => true,
            Files::Used(uses, link) => uses.iter().filter(|u| link(u.link)).all(|u| each(u.file)),
            Files::Moved(files) => files.iter().all(|moved| each(moved.file)),
            Files::Removed(files) => files.iter().all(|&file| each(file)),
        }
    }
    fn each(self, mut each: impl FnMut(FileId)) {
        self.all(|file| {
            each(file);
            true
        });
    }
    fn is_empty(self) -> bool {
        self.all(|_| false)
    }
}

fn before<'p>(plan: &Plan<'p>, id: JobId) -> Files<'p> {
    match plan.job(id).task {
        Task::Compute(_) if plan.exec.is_nested(plan.job(id)) => Files::None,
        Task::Compute(n) => Files::Used(&plan.workflow.jobs[n].uses, Link::reads),
        Task::CleanUp(n) => Files::Removed(&plan.exec.removals[n]),
        _ => Files::None,
    }
}

fn after<'p>(plan: &Plan<'p>, id: JobId) -> Files<'p> {
    match plan.job(id).task {
        // What runs under kickstart is the planner.
        Task::Compute(_) if plan.exec.is_nested(plan.job(id)) => Files::None,
        Task::Compute(n) => Files::Used(&plan.workflow.jobs[n].uses, Link::writes),
        Task::StageIn(n) | Task::InterSite(n) => Files::Moved(&plan.exec.transfers[n].files),
        _ => Files::None,
    }
}

/// Which outputs of a job kickstart must check for existence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    None,
    /// Not those that may be missing.
    Some,
    All,
}

fn check(plan: &Plan<'_>, id: JobId) -> Check {
    let Task::Compute(n) = plan.job(id).task else {
        return Check::None;
    };
    if plan.exec.is_nested(plan.job(id)) {
        return Check::None;
    }
    let mut outputs = plan.workflow.jobs[n].uses.iter().filter(|u| u.link.writes());
    if !plan.settings.check_outputs || outputs.clone().all(FileUse::may_be_missing) {
        Check::None
    } else if outputs.any(FileUse::may_be_missing) {
        Check::Some
    } else {
        Check::All
    }
}

/// Returns the names of the outputs that a job must write.
pub(crate) fn required_outputs<'p>(plan: &Plan<'p>, id: JobId) -> Vec<&'p str> {
    let uses: &[FileUse] = match plan.job(id).task {
        Task::Compute(n) if plan.settings.check_outputs && !plan.exec.is_nested(plan.job(id)) => {
            &plan.workflow.jobs[n].uses
        }
        _ => &[],
    };
    uses.iter()
        .filter(|u| u.link.writes() && !u.may_be_missing())
        .map(|u| plan.workflow.files.name(u.file))
        .collect()
}

/// Returns whether the kickstart of a job is this project's.
fn is_own_kickstart(plan: &Plan<'_>, id: JobId) -> bool {
    let job = plan.job(id);
    let other = plan.exec.setups[job.setup].profiles.pegasus("gridstart.path");
    let path = &plan.kickstarts[job.site];
    other.is_none_or(|path| path.trim().is_empty())
        && path.strip_prefix(plan.own_tools.as_str()) == Some("/pegasus-kickstart")
}

/// Returns whether the command line can name the files.
fn fits_line(plan: &Plan<'_>, files: Files<'_>) -> bool {
    if plan.files_apart {
        return false;
    }
    let mut room = MAX_INLINE;
    files.all(|file| {
        let name = plan.workflow.files.name(file);
        let fits = name.len() < room && !name.starts_with('@');
        room = room.saturating_sub(name.len() + 1);
        fits
    })
}

/// Appends the options for kickstart.
pub(crate) fn options(plan: &Plan<'_>, id: JobId, line: &mut String) {
    for (option, files, suffix) in [
        ("-S", before(plan, id), ".in.lof"),
        ("-s", after(plan, id), ".out.lof"),
    ] {
        // A clean-up job always has files, and an empty list would do no harm.
        if files.is_empty() {
            continue;
        }
        let check = if option == "-s" {
            check(plan, id)
        } else {
            Check::None
        };
        if check != Check::Some && fits_line(plan, files) {
            if check == Check::All && is_own_kickstart(plan, id) {
                line.push_str(" -M");
            }
            files.each(|file| {
                let name = plan.workflow.files.name(file);
                push(line, &[" ", option, " "]);
                match quote(name) {
                    Cow::Borrowed(name) => push(line, &[name, "=", name]),
                    Cow::Owned(_) => line.push_str(&quote(&format!("{name}={name}"))),
                }
            });
            line.push(' ');
        } else {
            // Writing into a String cannot fail.
            let _ = write!(
                line,
                " {option} {} ",
                quote(&format!("@{}", plan.job_file(id, suffix)))
            );
        }
    }
    line.push(' ');
}

fn push(line: &mut String, parts: &[&str]) {
    for part in parts {
        line.push_str(part);
    }
}

/// Writes the lists of a job whose command line does not name the files.
///
/// # Errors
/// A failed write.
pub(crate) fn write(plan: &Plan<'_>, dir: &Path, id: JobId, text: &mut String) -> Result<(), PlanError> {
    let written = match plan.job(id).task {
        // Lists without options cover all transfer jobs.
        Task::StageOut(n) if !plan.settings.stat => Files::Moved(&plan.exec.transfers[n].files),
        _ => after(plan, id),
    };
    for (files, suffix) in [(before(plan, id), ".in.lof"), (written, ".out.lof")] {
        let check = if suffix == ".out.lof" {
            check(plan, id)
        } else {
            Check::None
        };
        if files.is_empty() || (check != Check::Some && fits_line(plan, files)) {
            continue;
        }
        text.clear();
        let add = |text: &mut String, file: FileId| {
            let name = plan.workflow.files.name(file);
            push(text, &[name, "=", name, "\n"]);
        };
        match (check, files) {
            (Check::Some | Check::All, Files::Used(uses, link)) => {
                let of = |missing: bool| {
                    let uses = uses.iter().filter(move |u| link(u.link));
                    uses.filter(move |u| u.may_be_missing() == missing)
                };
                of(true).for_each(|u| add(text, u.file));
                text.push_str(REQUIRED);
                of(false).for_each(|u| add(text, u.file));
            }
            _ => files.each(|file| add(text, file)),
        }
        super::lists::put(plan, dir, id, suffix, text)?;
    }
    Ok(())
}
