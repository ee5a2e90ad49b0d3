//! Files that kickstart records before (`-S`) and after a job (`-s`).
//!
//! Small plans have a list (`.in.lof`, `.out.lof`) for each job, as in Pegasus. In a large plan, a million
//! small files would cost more than the rest of the plan and burden shared file systems. So its jobs name
//! files in the command line, unless the names are too many or unsuitable.

use crate::exec::{FileTransfer, Task};
use crate::model::{FileId, FileUse, Link};

use super::plan::PlannedJob;
use super::words::Words;

/// Maximum bytes of file names in a command line, per list.
const MAX_INLINE: usize = 1000;

/// Kickstart fails if a file after this line is missing. It is a comment for the original's kickstart.
const REQUIRED: &str = "# required\n";

/// Suffixes of the lists.
const SUFFIXES: [&str; 2] = [".in.lof", ".out.lof"];

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

/// Returns the files that kickstart records before and after a job.
fn recorded<'p>(job: PlannedJob<'p>) -> [Files<'p>; 2] {
    let exec = job.plan.exec;
    match job.task {
        // What runs under kickstart is the planner.
        Task::Compute(_) if job.is_nested() => [Files::None; 2],
        Task::Compute(n) => {
            let uses = &job.plan.workflow.jobs[n].uses;
            [Files::Used(uses, Link::reads), Files::Used(uses, Link::writes)]
        }
        Task::StageIn(n) | Task::InterSite(n) => [Files::None, Files::Moved(&exec.transfers[n].files)],
        Task::CleanUp(n) => [Files::Removed(&exec.removals[n]), Files::None],
        _ => [Files::None; 2],
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

fn check(job: PlannedJob<'_>) -> Check {
    let mut outputs = declared_outputs(job);
    if outputs.clone().all(FileUse::may_be_missing) {
        Check::None
    } else if outputs.any(FileUse::may_be_missing) {
        Check::Some
    } else {
        Check::All
    }
}

/// Returns the outputs of a compute job, none if they are not checked.
fn declared_outputs(job: PlannedJob<'_>) -> impl Iterator<Item = &FileUse> + Clone {
    let uses: &[FileUse] = match job.task {
        Task::Compute(n) if job.plan.settings.check_outputs && !job.is_nested() => {
            &job.plan.workflow.jobs[n].uses
        }
        _ => &[],
    };
    uses.iter().filter(|u| u.link.writes())
}

/// Returns the suffixes of the lists that the command of a job names.
pub(crate) fn suffixes(job: PlannedJob<'_>) -> impl Iterator<Item = &'static str> {
    let is_named = job.plan.settings.stat && job.is_wrapped();
    let lists = recorded(job).into_iter().zip(SUFFIXES);
    lists
        .filter(move |&(files, suffix)| {
            is_named && !files.is_empty() && !fits_line(job, files, check_of(job, suffix))
        })
        .map(|(_, suffix)| suffix)
}

/// Which files of a list kickstart must check: those that it looks for after the job.
fn check_of(job: PlannedJob<'_>, suffix: &str) -> Check {
    match suffix == SUFFIXES[1] {
        true => check(job),
        false => Check::None,
    }
}

/// Returns the names of the outputs that a job must write.
pub(super) fn required_outputs(job: PlannedJob<'_>) -> Vec<&str> {
    declared_outputs(job)
        .filter(|u| !u.may_be_missing())
        .map(|u| job.plan.workflow.files.name(u.file))
        .collect()
}

/// Returns whether the command line can name the files.
fn fits_line(job: PlannedJob<'_>, files: Files<'_>, check: Check) -> bool {
    if job.plan.names_apart || check == Check::Some {
        return false;
    }
    let mut room = MAX_INLINE;
    files.all(|file| {
        let name = job.plan.workflow.files.name(file);
        let fits = name.len() < room && !name.starts_with('@');
        room = room.saturating_sub(name.len() + 1);
        fits
    })
}

/// Adds the options for kickstart.
pub(super) fn push_options(job: PlannedJob<'_>, line: &mut Words) {
    let [before, after] = recorded(job);
    for (option, files, suffix) in [("-S", before, SUFFIXES[0]), ("-s", after, SUFFIXES[1])] {
        // A clean-up job always has files, and an empty list would do no harm.
        if files.is_empty() {
            continue;
        }
        let check = check_of(job, suffix);
        line.blanks(" ");
        if fits_line(job, files, check) {
            if check == Check::All && job.has_own_kickstart() {
                line.word("-M").blanks(" ");
            }
            files.each(|file| {
                let name = job.plan.workflow.files.name(file);
                line.word(option)
                    .blanks(" ")
                    .parts(&[name, "=", name])
                    .blanks(" ");
            });
        } else {
            line.word(option).blanks(" ");
            if job.ships_files() {
                line.parts(&[job.list_directory(), &job.name, suffix]);
            } else {
                line.parts(&["@", &job.plan.job_file(job.id, suffix)]);
            }
            line.blanks(" ");
        }
    }
    line.blanks(" ");
}

/// Renders the lists of a job whose command line does not name the files. `write` gets suffix and content.
///
/// # Errors
/// Those of `write`.
pub(crate) fn lists<E>(
    job: PlannedJob<'_>,
    text: &mut String,
    mut write: impl FnMut(&str, &str) -> Result<(), E>,
) -> Result<(), E> {
    let [before, mut after] = recorded(job);
    // Lists without options cover all transfer jobs.
    if let Task::StageOut(n) = job.task
        && !job.plan.settings.stat
    {
        after = Files::Moved(&job.plan.exec.transfers[n].files);
    }
    for (files, suffix) in [before, after].into_iter().zip(SUFFIXES) {
        let check = check_of(job, suffix);
        if files.is_empty() || fits_line(job, files, check) {
            continue;
        }
        text.clear();
        let add = |text: &mut String, file: FileId| {
            let name = job.plan.workflow.files.name(file);
            [name, "=", name, "\n"]
                .iter()
                .for_each(|part| text.push_str(part));
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
        write(suffix, text)?;
    }
    Ok(())
}
